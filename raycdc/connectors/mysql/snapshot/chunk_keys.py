"""Which column a table is cut by, and which index leads there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from raycdc.connectors.mysql.connection import query
from raycdc.connectors.mysql.snapshot import keys
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LeadingIndex:
    """An index whose first column is `column`, whole; `distinct` is the server's estimate of its values."""

    name: str
    column: str
    distinct: int


def chunk_key(table: MySqlTable, named: str | None) -> MySqlColumn | None:
    """The chunk key: the one the user `named`, else the first primary-key column, if it can be one; None: one chunk.

    Raises `ConfigError` when the user named a column that cannot be a chunk key.
    """
    if named is not None:
        column = keys.column_named(table, named)
        if keys.key_kind(column) is None:
            raise ConfigError(
                f"source.snapshot.key: {table.id}.{column.name} is {column.column_type}, which has no order that "
                f"chunks could follow. Name a numeric, character, binary or temporal column."
            )
        return column
    if not table.primary_key:
        return None
    column = keys.column_named(table, table.primary_key[0])
    return None if keys.key_kind(column) is None else column


def best_key(connection: Connection[Any], table: MySqlTable, named: str | None, *, chunk_rows: int) -> str | None:
    """The chunk key's name, or None for one chunk. What the user `named` counts; see `chunk_key` for its errors.

    Otherwise the first column of the primary key; but where that is no chunk key, or one value of it has more rows
    than a chunk may have on average (tenants, shards, types), another column of the primary key that an index begins
    with.
    """
    first = chunk_key(table, named)
    if named is not None or len(table.primary_key) < 2:
        return None if first is None else first.name
    indexes = leading_indexes(connection, table)
    rows = max((index.distinct for index in _all_indexes(connection, table)), default=0)
    known = {index.column: index.distinct for index in indexes}
    if first is not None and rows <= chunk_rows * max(1, known.get(first.name, rows)):
        return first.name
    for name in table.primary_key[1:]:
        column = keys.column_named(table, name)
        if keys.key_kind(column) is not None and known.get(name, 0) * chunk_rows >= rows:
            return name
    return None if first is None else first.name


def leading_indexes(connection: Connection[Any], table: MySqlTable) -> list[LeadingIndex]:
    """Indexes that can serve ranges of their first column, the primary key first."""
    return [index for index in _all_indexes(connection, table) if index.column]


def index_of(connection: Connection[Any], table: MySqlTable, column: str) -> str | None:
    """An index that begins with `column`."""
    return next((index.name for index in leading_indexes(connection, table) if index.column == column), None)


def _all_indexes(connection: Connection[Any], table: MySqlTable) -> Sequence[LeadingIndex]:
    """Every column of every index, as a first one where it is; others have no `column`, and tell only `distinct`."""
    rows = query(
        connection,
        "SELECT INDEX_NAME, COLUMN_NAME, SEQ_IN_INDEX, SUB_PART, CARDINALITY FROM information_schema.STATISTICS "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND INDEX_TYPE = 'BTREE' "
        "ORDER BY INDEX_NAME <> 'PRIMARY', INDEX_NAME, SEQ_IN_INDEX",
        (table.id.db, table.id.table),
    )
    return [
        LeadingIndex(str(name), str(column) if sequence == 1 and part is None else "", int(distinct or 0))
        for name, column, sequence, part, distinct in rows
    ]
