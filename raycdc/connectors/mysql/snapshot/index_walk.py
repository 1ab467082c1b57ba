"""Keys of a table as the server finds them by an index: its ends, and where a number of rows ends."""

from __future__ import annotations

from typing import Any, Literal

from pymysql.connections import Connection

from raycdc.clients.mysql import query
from raycdc.connectors.mysql.snapshot.key_columns import KeyColumns
from raycdc.connectors.mysql.snapshot.keys import Bound
from raycdc.connectors.mysql.snapshot.range_estimates import IndexedKey


def end_key(connection: Connection[Any], source: str, key: KeyColumns, order: Literal["ASC", "DESC"]) -> Bound | None:
    """The least (ASC) or the greatest key in the table `source`; None where no row has one."""
    rows = query(
        connection,
        f"SELECT {key.select_list()} FROM {source} WHERE {key.range_condition(None, None)} "
        f"ORDER BY {key.order(order)} LIMIT 1",
    )
    return key.bound_of(rows[0]) if rows else None


def has_more_than(connection: Connection[Any], source: str, key: KeyColumns, *, rows: int) -> bool:
    """Whether the table `source` has more than so many rows. The server reads that many of its index."""
    return bool(query(connection, f"SELECT 1 FROM {source} ORDER BY {key.order()} LIMIT 1 OFFSET {rows}"))


def bound_behind(connection: Connection[Any], key: IndexedKey, lower: Bound, last: Bound, *, rows: int) -> Bound | None:
    """The key at which a chunk of `rows` rows ends that begins at `lower`; more where a single key value has more.

    None where fewer rows are left up to `last`.
    """
    columns = key.columns
    inside, after = columns.range_condition(lower, last), columns.after(lower)
    # The index is named, or the server may prefer the primary key's order and read the whole table for each bound.
    answer = query(
        connection,
        f"SELECT {columns.select_list()}, {after} FROM {key.source} WHERE {inside} "
        f"ORDER BY {columns.order()} LIMIT 1 OFFSET {rows}",
    )
    if answer and not answer[0][-1]:
        answer = query(
            connection,
            f"SELECT {columns.select_list()} FROM {key.source} WHERE {inside} AND {after} "
            f"ORDER BY {columns.order()} LIMIT 1",
        )
    return columns.bound_of(answer[0]) if answer else None
