"""Reading one chunk so that it fits the log: not before everything up to the opening is visible, with a known end.

The log reader holds a chunk's events from position O (`opened_at`) on. The SELECT must see everything before O, and H
(`ChunkRead.high_watermark`) must be behind everything it saw; the held events up to H are folded into its rows.

`ChunkRead.log_end` (D) is the log's end after the SELECT, on every server: with a snapshot that is older than its
SELECT, H does not tell which table the SELECT found under the name (`raycdc.source.snapshot.hand_off`). MariaDB notices
a table that was rebuilt meanwhile (error 1412), but neither one that was renamed to the name nor partitions that were
dropped, exchanged or converted: the rows are those of the new table as of the snapshot.

| server | before the SELECT | H: end of the log |
|---|---|---|
| MariaDB | until O is visible, then a consistent snapshot (argument in `consistent`) | when it was opened |
| MySQL with GTIDs | ``WAIT_FOR_EXECUTED_GTID_SET(O)``: executed means visible | after the SELECT |
| MySQL without, PROCESS granted | until who was committing at O no longer is (argument in `commits`) | the same |
| MySQL without, otherwise | nothing: the log reader's ring reaches back `visible_within` before O | the same |

Whether the ring is there is the log reader's to say, with each opening: where it is not and sessions cannot be seen
(any more), the chunk itself waits for `visible_within`.

A server writes a transaction to the log before SELECTs see it, so the end of the log read after the SELECT covers all
it saw; ``gtid_executed`` would not. No statement here takes a lock on rows or tables of a transactional engine. Other
engines (Aria, MyISAM) have no snapshot and show rows before they log them: `checks` warns about their tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pymysql.connections import Connection

from raycdc.clients.mysql import address_of, close_quietly, query, quote_name
from raycdc.connectors.mysql.binlog.position import BinlogOffset
from raycdc.connectors.mysql.client import ServerInfo, current_place, wait_for_gtid_set
from raycdc.connectors.mysql.snapshot.chunks import ChunkRange
from raycdc.connectors.mysql.snapshot.commits import CHUNK_MARK, CommitWatch
from raycdc.connectors.mysql.snapshot.consistent import open_snapshot
from raycdc.connectors.mysql.snapshot.resultset import stream_query
from raycdc.connectors.mysql.values.columns import TableArena
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import SourceUnavailableError
from raycdc.failpoints import reach

#: How long a chunk waits until what the log reader has read is visible. Normally it takes milliseconds; a replica
#: whose commits hang is not worth more.
VISIBILITY_TIMEOUT_S = 120.0


class ChunkRead:
    """The rows of one chunk, once: iterate to the end, then ask `high_watermark`.

    `exact` says, from the first batch on, that the rows are those at `high_watermark` and at no other position. Leaving
    the iteration early closes the connection.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch], *, exact: bool) -> None:
        self.exact = exact
        self.rows = 0
        self._batches = batches
        self._high: BinlogOffset | None = None
        self._log_end: BinlogOffset | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch

    @property
    def high_watermark(self) -> BinlogOffset:
        """H: nothing the SELECT saw lies behind it. Only after the last batch."""
        assert self._high is not None, "the chunk was not read to its end"
        return self._high

    @property
    def log_end(self) -> BinlogOffset:
        """D: what decided which table the SELECT saw is not behind it. Only after the last batch."""
        assert self._log_end is not None, "the chunk was not read to its end"
        return self._log_end


def read_chunk(
    connection: Connection[Any],
    info: ServerInfo,
    table: MySqlTable,
    chunk: ChunkRange,
    opened_at: BinlogOffset,
    *,
    columns: Sequence[str] | None = None,
    row_filter: str | None = None,
    arena: TableArena | None = None,
    commits: CommitWatch | None = None,
) -> ChunkRead:
    """Read `chunk` of `table`, opened at `opened_at`. The SELECT is sent when the first batch is asked for.

    `columns` limits the columns (in table order; default all), `row_filter` is an SQL condition every row must meet,
    `arena` (of the same columns, `resultset.arena_for`) may be reused from chunk to chunk. `commits` is for MySQL
    without GTIDs where the log reader remembers nothing. Blocks in the waits and in
    the socket. Raises `SourceUnavailableError` when the connection broke or the table was altered meanwhile,
    `SourceError` when O does not become visible.
    """
    wanted = table if columns is None else _with_columns(table, columns)
    sql = select_statement(wanted, chunk, key_table=table, row_filter=row_filter)
    if info.is_mariadb and _has_snapshots(connection, table):
        read = ChunkRead(iter(()), exact=False)
        keyed = bool(table.primary_key)
        read._batches = _at_snapshot(connection, info, opened_at, sql, wanted, arena, read, keyed=keyed)
        return read
    read = ChunkRead(iter(()), exact=False)
    if info.is_mariadb or info.gtid_mode:
        commits = None
    read._batches = _between_positions(connection, info, opened_at, sql, wanted, arena, read, commits)
    return read


def select_statement(
    table: MySqlTable, chunk: ChunkRange, *, key_table: MySqlTable | None = None, row_filter: str | None = None
) -> str:
    """The SELECT of `table`'s columns for a chunk; `key_table` describes the chunk key if `table` lacks it."""
    names = ", ".join(quote_name(column.name) for column in table.columns)
    condition = chunk.condition(key_table or table)
    if row_filter:
        condition = f"({condition}) AND ({row_filter})"
    source = quote_name(table.id.db, table.id.table)
    return f"SELECT {CHUNK_MARK} {names} FROM {source}" + ("" if condition == "1 = 1" else f" WHERE {condition}")


def _at_snapshot(
    connection: Connection[Any],
    info: ServerInfo,
    opened_at: BinlogOffset,
    sql: str,
    table: MySqlTable,
    arena: TableArena | None,
    read: ChunkRead,
    *,
    keyed: bool,
) -> Iterator[pa.RecordBatch]:
    """MariaDB: rows as of one position of the log."""
    # Rows of a table without a key cannot be matched to later changes: it is worth waiting for.
    place = open_snapshot(connection, info, opened_at, exactly=not keyed, timeout_s=VISIBILITY_TIMEOUT_S)
    read.exact = place.exact
    finished = False
    try:
        reach("before_select")
        yield from stream_query(connection, sql, table, arena=arena)
        reach("after_select")
        query(connection, "COMMIT")
        finished = True
    finally:
        if not finished:
            # The snapshot must not outlive the chunk: it keeps the server from purging old row versions.
            close_quietly(connection)
    read._high, read._log_end = place.high, current_place(connection, info)
    reach("after_high_watermark")


def _between_positions(
    connection: Connection[Any],
    info: ServerInfo,
    opened_at: BinlogOffset,
    sql: str,
    table: MySqlTable,
    arena: TableArena | None,
    read: ChunkRead,
    commits: CommitWatch | None,
) -> Iterator[pa.RecordBatch]:
    """MySQL (and engines without snapshots): rows as of some position between O and H."""
    if info.gtid_mode and not info.is_mariadb and opened_at.gtid_set:
        wait_for_gtid_set(connection, info, opened_at.gtid_set, timeout_s=VISIBILITY_TIMEOUT_S)
    elif commits is not None:
        commits.wait(opened_at)
    reach("before_select")
    yield from stream_query(connection, sql, table, arena=arena)
    reach("after_select")
    high = current_place(connection, info)
    if high < opened_at:
        raise SourceUnavailableError(
            f"The log of {address_of(connection)} ends at {high}, before {opened_at} where this chunk was opened. Was "
            f"it reset, or is this another server than the one whose log is being read?"
        )
    read._high = read._log_end = high
    reach("after_high_watermark")


def _has_snapshots(connection: Connection[Any], table: MySqlTable) -> bool:
    """Whether the table's engine takes part in consistent snapshots."""
    rows = query(
        connection,
        "SELECT e.TRANSACTIONS FROM information_schema.TABLES t JOIN information_schema.ENGINES e "
        "ON e.ENGINE = t.ENGINE WHERE t.TABLE_SCHEMA = %s AND t.TABLE_NAME = %s",
        (table.id.db, table.id.table),
    )
    return bool(rows) and str(rows[0][0]).upper() == "YES"


def _with_columns(table: MySqlTable, names: Sequence[str]) -> MySqlTable:
    wanted = set(names)
    return replace(table, columns=tuple(column for column in table.columns if column.name in wanted))
