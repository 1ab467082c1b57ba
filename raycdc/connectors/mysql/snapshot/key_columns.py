"""The chunk key of a table as SQL: one column, or the first columns of its primary key.

Several columns are compared one after the other, as an index over them is ordered. The server's row comparison
(``(a, b) >= (1, 2)``) means the same, but no server looks it up in an index; written out with AND and OR, all do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from raycdc.clients.mysql import quote_name
from raycdc.connectors.mysql.snapshot import keys
from raycdc.connectors.mysql.snapshot.keys import Bound, KeyKind, KeyValue
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.source.snapshot.chunk_key import ChunkKey, key_names


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """The columns of a chunk key, in order. Of several none can be NULL: they belong to a primary key."""

    columns: tuple[MySqlColumn, ...]

    @classmethod
    def named(cls, table: MySqlTable, key: ChunkKey) -> KeyColumns:
        """The columns `key` names; `ConfigError` when there is none of that name."""
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
        """Whether rows may belong to the chunk of NULL."""
        return any(keys.has_null_chunk(column) for column in self.columns)

    @property
    def ordering(self) -> str:
        """How the server orders the columns' values, as a text that is another one where it orders them otherwise."""
        return json.dumps([_ordering(column) for column in self.columns])

    def select_list(self) -> str:
        """SQL for the key's values; `bound_of` understands them."""
        return ", ".join(keys.select_expression(column) for column in self.columns)

    def bound_of(self, cells: Sequence[Any]) -> Bound | None:
        """The bound in a row selected with `select_list`; cells behind it do not matter."""
        values = [keys.from_server(column, cell) for column, cell in zip(self.columns, cells, strict=False)]
        bound = tuple(value for value in values if value is not None)
        if len(bound) != len(values):
            return None
        return bound[0] if self.alone else bound

    def order(self, direction: Literal["ASC", "DESC"] = "ASC") -> str:
        """The list for ORDER BY."""
        return ", ".join(f"{quote_name(column.name)} {direction}" for column in self.columns)

    def null_condition(self) -> str:
        """SQL that is true for rows of the chunk of NULL, never NULL itself."""
        if self.alone:
            return keys.null_condition(self.columns[0])
        return "(" + " OR ".join(keys.null_condition(column) for column in self.columns) + ")"

    def range_condition(self, lower: Bound | None, upper: Bound | None) -> str:
        """SQL for keys in [lower, upper); None is unbounded. Excludes the rows of the chunk of NULL."""
        if self.alone:
            return keys.range_condition(self.columns[0], _value(lower), _value(upper))
        low, high = _values(lower), _values(upper)
        shared = 0
        # The common beginning of both bounds is written once, so that the server searches by it first.
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
        """SQL for keys that are more than `bound`."""
        if self.alone:
            return f"{quote_name(self.columns[0].name)} > {keys.literal(self.columns[0], _single(bound))}"
        values = _values(bound)
        return self._side(">" if len(values) == len(self.columns) else ">=", values, 0)

    def behind(self, values: tuple[KeyValue, ...]) -> str:
        """SQL for keys that are more than all keys that begin with `values`."""
        return self._side(">", values, 0)

    def within(self, values: tuple[KeyValue, ...]) -> str:
        """SQL for keys that begin with `values`."""
        return " AND ".join(keys.equals(c, v) for c, v in zip(self.columns, values, strict=False)) or "1 = 1"

    def _side(self, operator: Literal["<", ">", ">="], values: tuple[KeyValue, ...], first: int) -> str:
        """Keys on one side of `values`, whose columns before `first` are equal."""
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
    """The length of a text changes nothing; labels of an ENUM are ordered by their numbers."""
    kind, shape = column.logical(), column.shape
    labels = shape.labels if shape.base == "enum" else ()
    sizes = (kind.precision, kind.scale, kind.fsp, kind.length)
    return [column.name, shape.base, kind.kind.value, *sizes, column.charset, column.collation, *labels]


def _value(bound: Bound | None) -> KeyValue | None:
    return None if bound is None else _single(bound)
