"""Chooses the column or columns by which a table is cut, and the index that begins with them.

`KeyColumns` is a table's chunk key as SQL: one column, or the first columns of its primary key. Several columns are
compared one after the other, in the order of an index over them. The server's row comparison (``(a, b) >= (1, 2)``) is
equivalent, but no server uses an index for it; written with AND and OR, all do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pymysql.connections import Connection

from raycdc.clients.mysql import query, quote_name
from raycdc.connectors.mysql.snapshot import keys
from raycdc.connectors.mysql.snapshot.keys import Bound, KeyKind, KeyValue
from raycdc.connectors.mysql.snapshot.sort_keys import can_be_ordered
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.errors import ConfigError
from raycdc.source.snapshot.key_intervals import ChunkKey, key_names


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """The columns of a chunk key, in order. Several columns belong to a primary key, so none of them can be NULL."""

    columns: tuple[MySqlColumn, ...]

    @classmethod
    def named(cls, table: MySqlTable, key: ChunkKey) -> KeyColumns:
        """Return the columns that `key` names. Raises `ConfigError` if a column does not exist."""
        return cls(tuple(keys.column_named(table, name) for name in key_names(key)))

    @property
    def name(self) -> ChunkKey:
        names = tuple(column.name for column in self.columns)
        return names[0] if self.alone else names

    @property
    def alone(self) -> bool:
        return len(self.columns) == 1

    @property
    def has_null_chunk(self) -> bool:
        """Return True if rows may belong to the chunk of NULL."""
        return any(keys.has_null_chunk(column) for column in self.columns)

    @property
    def ordering(self) -> str:
        """Return a text that changes if the server's order of the columns' values changes."""
        return json.dumps([_ordering(column) for column in self.columns])

    def select_list(self) -> str:
        """Return SQL for the key's values, which `bound_of` reads."""
        return ", ".join(keys.select_expression(column) for column in self.columns)

    def bound_of(self, cells: Sequence[Any]) -> Bound | None:
        """Return the bound in a row selected with `select_list`; later cells are ignored."""
        values = [keys.from_server(column, cell) for column, cell in zip(self.columns, cells, strict=False)]
        bound = tuple(value for value in values if value is not None)
        if len(bound) != len(values):
            return None
        return bound[0] if self.alone else bound

    def order(self, direction: Literal["ASC", "DESC"] = "ASC") -> str:
        """Return the list for ORDER BY."""
        return ", ".join(f"{quote_name(column.name)} {direction}" for column in self.columns)

    def null_condition(self) -> str:
        """Return SQL that is true for rows of the chunk of NULL, and never NULL itself."""
        if self.alone:
            return keys.null_condition(self.columns[0])
        return "(" + " OR ".join(keys.null_condition(column) for column in self.columns) + ")"

    def range_condition(self, lower: Bound | None, upper: Bound | None) -> str:
        """Return SQL for keys in [lower, upper); None is unbounded. It excludes rows of the chunk of NULL."""
        if self.alone:
            return keys.range_condition(self.columns[0], _value(lower), _value(upper))
        low, high = _values(lower), _values(upper)
        shared = 0
        # The common beginning of both bounds is written once, so that the server uses the index by it.
        while shared < min(len(low), len(high)) - 1 and low[shared] == high[shared]:
            shared += 1
        parts = [keys.equals(self.columns[i], low[i]) for i in range(shared)]
        if low:
            parts.append(self._side(">=", low, shared))
        if high:
            parts.append(self._side("<", high, shared))
        dates = [column for column in self.columns if keys.key_kind(column) is KeyKind.DATE]
        parts += [f"NOT {keys.null_condition(column)}" for column in dates]
        return " AND ".join(parts) or "1 = 1"

    def after(self, bound: Bound) -> str:
        """Return SQL for keys greater than `bound`."""
        if self.alone:
            return f"{quote_name(self.columns[0].name)} > {keys.literal(self.columns[0], _single(bound))}"
        values = _values(bound)
        return self._side(">" if len(values) == len(self.columns) else ">=", values, 0)

    def behind(self, values: tuple[KeyValue, ...]) -> str:
        """Return SQL for keys greater than all keys that begin with `values`."""
        return self._side(">", values, 0)

    def within(self, values: tuple[KeyValue, ...]) -> str:
        """Return SQL for keys that begin with `values`."""
        return " AND ".join(keys.equals(c, v) for c, v in zip(self.columns, values, strict=False)) or "1 = 1"

    def _side(self, operator: Literal["<", ">", ">="], values: tuple[KeyValue, ...], first: int) -> str:
        """Return SQL for the keys on one side of `values`.

        The SQL does not compare the columns before `first`, because the caller knows that they equal those of `values`.
        """
        strict: Literal["<", ">"] = "<" if operator == "<" else ">"
        choices = []
        for last in range(first, len(values)):
            equal = [keys.equals(self.columns[i], values[i]) for i in range(first, last)]
            side = keys.beyond(self.columns[last], operator if last == len(values) - 1 else strict, values[last])
            choices.append(" AND ".join([*equal, side]))
        return choices[0] if len(choices) == 1 else "(" + " OR ".join(f"({choice})" for choice in choices) + ")"


def _values(bound: Bound | None) -> tuple[KeyValue, ...]:
    if bound is None:
        return ()
    assert isinstance(bound, tuple), "a key of several columns has bounds of several values"
    return bound


def _single(bound: Bound) -> KeyValue:
    assert not isinstance(bound, tuple), "a key of one column has bounds of one value"
    return bound


def _ordering(column: MySqlColumn) -> list[str | int]:
    """Return the properties of a column that its order depends on.

    The length of a text does not matter. Labels of an ENUM are ordered by their numbers.
    """
    kind, shape = column.logical(), column.shape
    labels = shape.labels if shape.base == "enum" else ()
    sizes = (kind.precision, kind.scale, kind.fsp, kind.length)
    return [column.name, shape.base, kind.kind.value, *sizes, column.charset, column.collation, *labels]


def _value(bound: Bound | None) -> KeyValue | None:
    return None if bound is None else _single(bound)


#: Types of which an index may have only the first characters.
_PREFIXED = frozenset(
    {"char", "varchar", "binary", "varbinary", "tinytext", "text", "mediumtext", "longtext"}
    | {"tinyblob", "blob", "mediumblob", "longblob"}
)
#: A value may have this many times the average number of rows per value. Its rows must still fit into a chunk.
_UNEVENNESS = 100


@dataclass(frozen=True, slots=True)
class LeadingIndex:
    """An index that begins with the complete `column`.

    `distinct` is the server's estimate of the number of its values.
    """

    name: str
    column: str
    distinct: int


@dataclass(frozen=True, slots=True)
class _Part:
    """A column of an index. `distinct` is the estimated number of values of it together with the earlier columns."""

    index: str
    column: str
    number: int
    whole: bool
    distinct: int


def chunk_key(table: MySqlTable, named: str | None) -> MySqlColumn | None:
    """Return the user's `named` chunk key, otherwise the first primary-key column if possible; None: one chunk.

    Raises `ConfigError` when the user named a column that cannot be a chunk key.
    """
    if named is not None:
        column = keys.column_named(table, named)
        if keys.key_kind(column) in (None, KeyKind.LABEL):
            raise ConfigError(
                f"source.snapshot.key: {table.id}.{column.name} is {column.column_type}, which has no order that "
                f"chunks could follow. Name a numeric, character, binary or temporal column."
            )
        return column
    if not table.primary_key:
        return None
    column = keys.column_named(table, table.primary_key[0])
    return None if keys.key_kind(column) in (None, KeyKind.LABEL) else column


def best_key(
    connection: Connection[Any], table: MySqlTable, named: str | None, *, chunk_rows: int, several: bool = True
) -> ChunkKey | None:
    """Return the chunk key's columns, or None for one chunk. Columns that the user `named` take precedence.

    See `chunk_key` for its errors. By default the key is the first column of the primary key, if an index has the
    complete column. But one value of this column may have more rows than a chunk should have (tenants, shards, types).
    If this is so on average, the key is a different column of the primary key with which an index begins. If there is
    no such column, or some values may have many more rows than others, the key consists of as many first columns as are
    needed for few rows per value (if `several` is allowed).
    """
    first = chunk_key(table, named)
    alone = None if first is None else first.name
    may_be_cut = first is not None and first.shape.base in _PREFIXED
    if named is not None or (len(table.primary_key) < 2 and not may_be_cut):
        return alone
    parts = _parts(connection, table)
    if may_be_cut and not any(part.number == 1 and part.whole and part.column == alone for part in parts):
        # In PRIMARY KEY (k(3)), no index has the values of k in their order.
        return _other_key(table, parts)
    rows = max((part.distinct for part in parts), default=0)
    distinct = {part.column: part.distinct for part in reversed(parts) if part.number == 1 and part.whole}
    per_value = rows / max(1, distinct.get(alone, rows)) if alone is not None else rows
    if rows <= chunk_rows or per_value * _UNEVENNESS <= chunk_rows:
        return alone
    if per_value > chunk_rows:
        for name in table.primary_key[1:]:
            column = keys.column_named(table, name)
            if can_stand_alone(column) and distinct.get(name, 0) * chunk_rows >= rows:
                return name
    names = _first_columns(connection, table, parts, chunk_rows) if several else ()
    return names if len(names) > 1 else alone


def prefix_note(connection: Connection[Any], table: MySqlTable, named: str | None) -> str:
    """Return a note about a primary key that has only a prefix of its first column; empty for other tables.

    Blocks on a query if the column has a type of which an index may have a prefix.
    """
    first = None if named is not None else chunk_key(table, None)
    if first is None or first.shape.base not in _PREFIXED:
        return ""
    parts = _parts(connection, table)
    if any(part.number == 1 and part.whole and part.column == first.name for part in parts):
        return ""
    other = _other_key(table, parts)
    how = "in one piece" if other is None else f"in chunks of {other}"
    return f"{table.id}: its primary key has only prefixes of {first.name}, so it is read {how}."


def _other_key(table: MySqlTable, parts: Sequence[_Part]) -> str | None:
    """Return another column of the primary key with an index; None: the table is read as one chunk."""
    leading = {part.column for part in parts if part.number == 1 and part.whole}
    return next(
        (name for name in table.primary_key if name in leading and can_stand_alone(keys.column_named(table, name))),
        None,
    )


def can_stand_alone(column: MySqlColumn) -> bool:
    """Return True if chunks may use this column alone. An ENUM has too few values."""
    return keys.key_kind(column) not in (None, KeyKind.LABEL)


def usable_key(
    connection: Connection[Any], table: MySqlTable, key: KeyColumns | None, *, named: bool
) -> KeyColumns | None:
    """Return `key`, or None if its order cannot be followed. Raises `ConfigError` if the user `named` it."""
    if key is None or not key.alone or can_be_ordered(connection, key.columns[0]):
        return key
    if named:
        raise ConfigError(
            f"source.snapshot.key: {table.id}.{key.name} has collation {key.columns[0].collation}, whose order cannot "
            f"be followed outside the server. Name another column."
        )
    return None


def _first_columns(
    connection: Connection[Any], table: MySqlTable, parts: Sequence[_Part], chunk_rows: int
) -> tuple[str, ...]:
    """Return the fewest first columns of the primary key with few rows per value, as far as they can be a key."""
    rows = max(part.distinct for part in parts)
    names: list[str] = []
    for part in (part for part in parts if part.index == "PRIMARY"):
        column = keys.column_named(table, part.column)
        label = keys.key_kind(column) is KeyKind.LABEL
        if not part.whole or not (label or can_be_ordered(connection, column)):
            break
        names.append(column.name)
        if rows / max(1, part.distinct) * _UNEVENNESS <= chunk_rows:
            break
    return tuple(names)


def leading_indexes(connection: Connection[Any], table: MySqlTable) -> list[LeadingIndex]:
    """Return the indexes for ranges of their first column, the primary key first."""
    parts = _parts(connection, table)
    return [LeadingIndex(p.index, p.column, p.distinct) for p in parts if p.number == 1 and p.whole]


def index_of(connection: Connection[Any], table: MySqlTable, column: str) -> str | None:
    """Return an index that begins with `column`, if there is one."""
    return next((index.name for index in leading_indexes(connection, table) if index.column == column), None)


def _parts(connection: Connection[Any], table: MySqlTable) -> Sequence[_Part]:
    """Return every column of every index, those of the primary key first."""
    rows = query(
        connection,
        "SELECT INDEX_NAME, COLUMN_NAME, SEQ_IN_INDEX, SUB_PART, CARDINALITY FROM information_schema.STATISTICS "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND INDEX_TYPE = 'BTREE' "
        "ORDER BY INDEX_NAME <> 'PRIMARY', INDEX_NAME, SEQ_IN_INDEX",
        (table.id.db, table.id.table),
    )
    return [
        _Part(str(name), str(column), int(number), part is None, int(distinct or 0))
        for name, column, number, part, distinct in rows
    ]
