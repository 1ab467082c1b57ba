"""Which column or columns a table is cut by, and which index leads there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from raycdc.clients.mysql import query
from raycdc.connectors.mysql.snapshot import keys
from raycdc.connectors.mysql.snapshot.key_columns import KeyColumns
from raycdc.connectors.mysql.snapshot.keys import KeyKind
from raycdc.connectors.mysql.snapshot.sort_keys import can_be_ordered
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.errors import ConfigError
from raycdc.source.snapshot.chunk_key import ChunkKey

#: Types of which an index may have the first characters alone.
_PREFIXED = frozenset(
    {"char", "varchar", "binary", "varbinary", "tinytext", "text", "mediumtext", "longtext"}
    | {"tinyblob", "blob", "mediumblob", "longblob"}
)
#: A value may have this many times as many rows as values have on average, and its rows still fit into a chunk.
_UNEVENNESS = 100


@dataclass(frozen=True, slots=True)
class LeadingIndex:
    """An index whose first column is `column`, whole; `distinct` is the server's estimate of its values."""

    name: str
    column: str
    distinct: int


@dataclass(frozen=True, slots=True)
class _Part:
    """A column of an index; `distinct` values of it and those before it, by the server's estimate."""

    index: str
    column: str
    number: int
    whole: bool
    distinct: int


def chunk_key(table: MySqlTable, named: str | None) -> MySqlColumn | None:
    """The chunk key: the one the user `named`, else the first primary-key column, if it can be one; None: one chunk.

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
    """The chunk key's columns, or None for one chunk. The columns that the user `named` win; see `chunk_key` for
    its errors.

    Otherwise the first column of the primary key, where an index has it whole. But a value of it may have more rows
    than a chunk should (tenants, shards, types): on average, then another column of the primary key that an index
    begins with is taken; or, if there is none, or values differ much in how many rows they have, as many of the first
    columns as leave few rows to each (where `several` may be).
    """
    first = chunk_key(table, named)
    alone = None if first is None else first.name
    may_be_cut = first is not None and first.shape.base in _PREFIXED
    if named is not None or (len(table.primary_key) < 2 and not may_be_cut):
        return alone
    parts = _parts(connection, table)
    if may_be_cut and not any(part.number == 1 and part.whole and part.column == alone for part in parts):
        # PRIMARY KEY (k(3)): no index has the values of k in their order.
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
    """How a table is read whose primary key has only the beginnings of its first column's values; empty for others.

    Blocks on a query where that column is of a type of which an index may have beginnings.
    """
    first = None if named is not None else chunk_key(table, None)
    if first is None or first.shape.base not in _PREFIXED:
        return ""
    parts = _parts(connection, table)
    if any(part.number == 1 and part.whole and part.column == first.name for part in parts):
        return ""
    other = _other_key(table, parts)
    how = "in one piece" if other is None else f"in chunks of {other}"
    return f"{table.id}: its primary key has only the beginnings of {first.name}, so it is read {how}."


def _other_key(table: MySqlTable, parts: Sequence[_Part]) -> str | None:
    """Another column of the primary key by which an index leads to its rows; None: the table is read in one piece."""
    leading = {part.column for part in parts if part.number == 1 and part.whole}
    return next(
        (name for name in table.primary_key if name in leading and can_stand_alone(keys.column_named(table, name))),
        None,
    )


def can_stand_alone(column: MySqlColumn) -> bool:
    """Whether chunks may follow this column alone; an ENUM has too few values."""
    return keys.key_kind(column) not in (None, KeyKind.LABEL)


def settled(
    connection: Connection[Any], table: MySqlTable, key: KeyColumns | None, *, named: bool
) -> KeyColumns | None:
    """`key`, or None where its order cannot be followed; `ConfigError` when the user `named` it."""
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
    """The shortest beginning of the primary key with few rows to each of its values, as far as it makes a key."""
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
    """Indexes that can serve ranges of their first column, the primary key first."""
    parts = _parts(connection, table)
    return [LeadingIndex(p.index, p.column, p.distinct) for p in parts if p.number == 1 and p.whole]


def index_of(connection: Connection[Any], table: MySqlTable, column: str) -> str | None:
    """An index that begins with `column`."""
    return next((index.name for index in leading_indexes(connection, table) if index.column == column), None)


def _parts(connection: Connection[Any], table: MySqlTable) -> Sequence[_Part]:
    """Every column of every index, those of the primary key first."""
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
