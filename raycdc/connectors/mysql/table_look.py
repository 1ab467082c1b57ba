"""How a table looks now, proven to hold at a position of the log, and how its snapshot begins.

For the tables that begin again while others stream (`raycdc.source.new_beginnings`); runs in the log's fetcher thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

from pymysql.connections import Connection

from raycdc.clients.mysql import is_of_locked_table
from raycdc.connectors.mysql.binlog.position import ordinal_of
from raycdc.connectors.mysql.cascades import refusal_of
from raycdc.connectors.mysql.catalog import is_sequence, load_tables
from raycdc.connectors.mysql.checks import unfit, unreadable
from raycdc.connectors.mysql.client import current_place, probe
from raycdc.connectors.mysql.locks import PLANNING_WAIT_S, connect_briefly, locked_error
from raycdc.connectors.mysql.snapshot.chunk_keys import best_key
from raycdc.connectors.mysql.snapshot.chunks import ChunkSettings, Strategy
from raycdc.connectors.mysql.snapshot.key_columns import KeyColumns
from raycdc.connectors.mysql.table_options import TableOptions
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import SourceError, SourceUnavailableError
from raycdc.model import TableId
from raycdc.source.new_beginnings import Fit, Unfit
from raycdc.source.table_life import SnapshotState
from raycdc.transform.followed import TargetRules

#: Times a table is looked at while it keeps changing its shape.
_TRIES = 10


def look_at(
    connect: Callable[[], Connection[Any]], table: TableId, options: TableOptions, rules: TargetRules
) -> Fit[MySqlTable] | Unfit | None:
    """The table's schema, a position, the schema again: equal ones prove that it is the one there. None: no table.

    `rules` say what targets can hold. `TableLockedError` where not even its columns can be asked for.
    """
    with closing(connect_briefly(connect, seconds=PLANNING_WAIT_S)) as connection:
        try:
            return _looked_at(connection, table, options, rules)
        except SourceUnavailableError as cause:
            if not is_of_locked_table(cause.__cause__):
                raise
            raise locked_error(table) from cause


def _looked_at(
    connection: Connection[Any], table: TableId, options: TableOptions, rules: TargetRules
) -> Fit[MySqlTable] | Unfit | None:
    info = probe(connection)
    for _ in range(_TRIES):
        before = load_tables(connection, [table]).get(table)
        position = current_place(connection, info)
        after = load_tables(connection, [table]).get(table)
        if before != after:
            continue
        if after is None or is_sequence(connection, table):
            return None
        treated = options.types.treat_table(after)
        captured = options.capture(table).narrowed(treated)
        why = unfit(after) or rules.refusal(table, captured.schema()) or unreadable(connection, table)
        if not why and not options.accept_cascades:
            why = refusal_of(connection, info, table)
        if why:
            return Unfit(why, ordinal_of(position))
        return Fit(treated, ordinal_of(position), unread(connection, treated, options.chunks(table)))
    raise SourceError(
        f"{table} on {info.address} changed its shape each time it was looked at. "
        "Start again when no schema change is under way."
    )


def unread(connection: Connection[Any], table: MySqlTable, chosen: ChunkSettings) -> SnapshotState:
    """The table's snapshot state before its first chunk."""
    several = chosen.strategy is not Strategy.EVEN
    key = best_key(connection, table, chosen.key, chunk_rows=chosen.chunk_rows, several=several)
    needs_null = key is None or KeyColumns.named(table, key).has_null_chunk
    return SnapshotState(key, foldable=bool(table.primary_key), needs_null=needs_null)
