"""Reading one chunk so that it fits the log: not before everything up to the opening is visible, with a known end.

The log reader holds a chunk's events from position O (`opened_at`) on. The SELECT must see everything before O, and H
(`ChunkEnd.high_watermark`) must be behind everything it saw; the held events up to H are folded into its rows.

`ChunkEnd.log_end` (D) is the log's end after the SELECT, on every server: with a snapshot that is older than its
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

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pymysql.connections import Connection

from raycdc.clients.mysql import address_of, close_quietly, query, quote_name
from raycdc.connectors.mysql.binlog.position import BinlogOffset
from raycdc.connectors.mysql.client import ServerInfo, current_place, wait_for_gtid_set
from raycdc.connectors.mysql.snapshot.chunk_range import ChunkRange
from raycdc.connectors.mysql.snapshot.commits import CHUNK_MARK, CommitWatch
from raycdc.connectors.mysql.snapshot.consistent import open_snapshot
from raycdc.connectors.mysql.snapshot.resultset import arena_for, stream_query
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import SourceUnavailableError
from raycdc.failpoints import reach
from raycdc.model.batch import BATCH_BYTES_MAX, BATCH_ROWS_MAX
from raycdc.model.pace import UNLIMITED, Pace

#: How long a chunk waits until what the log reader has read is visible. Normally it takes milliseconds; a replica
#: whose commits hang is not worth more.
VISIBILITY_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class ChunkSelect:
    """The rows and columns that are read of one table: those of `chunk` that meet the SQL condition `row_filter`.

    `columns` limits the columns, in the table's order; None: all. A batch has what `pace` lets one fetch bring.
    """

    table: MySqlTable
    chunk: ChunkRange
    columns: Sequence[str] | None = None
    row_filter: str | None = None
    pace: Pace = UNLIMITED

    @property
    def selected(self) -> MySqlTable:
        """The table with the columns that are read."""
        if self.columns is None:
            return self.table
        return replace(self.table, columns=tuple(c for c in self.table.columns if c.name in self.columns))

    def batches(self, connection: Connection[Any]) -> Iterator[pa.RecordBatch]:
        """The rows. Blocks in the socket."""
        pace, table = self.pace, self.selected
        rows_max, bytes_max = pace.rows_at_once(BATCH_ROWS_MAX), pace.bytes_at_once(BATCH_BYTES_MAX)
        arena = arena_for(table, rows_max=rows_max, bytes_max=bytes_max)
        return stream_query(connection, self.sql(), table, arena=arena)

    def sql(self) -> str:
        names = ", ".join(quote_name(column.name) for column in self.selected.columns)
        # Of all columns: the chunk key need not be one of those that are read.
        condition = self.chunk.condition(self.table)
        if self.row_filter:
            condition = f"({condition}) AND ({self.row_filter})"
        source = quote_name(self.table.id.db, self.table.id.table)
        return f"SELECT {CHUNK_MARK} {names} FROM {source}" + ("" if condition == "1 = 1" else f" WHERE {condition}")


@dataclass(frozen=True, slots=True)
class ChunkEnd:
    """Known of a chunk once it was read: no row that the SELECT saw lies behind H, the `high_watermark`.

    `exact`: the rows are those at H and at no other position. A statement that decided which table the SELECT saw lies
    before D, the `log_end`.
    """

    high_watermark: BinlogOffset
    log_end: BinlogOffset
    exact: bool


class ChunkRead:
    """The rows of one chunk, once: iterate over all of them, then ask for the `end`.

    Leaving the iteration early closes the connection.
    """

    def __init__(self, batches: Generator[pa.RecordBatch, None, ChunkEnd]) -> None:
        self._batches = batches
        self._end: ChunkEnd | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        self._end = yield from self._batches

    @property
    def end(self) -> ChunkEnd:
        """Only after the last batch."""
        assert self._end is not None, "the chunk was not read to its end"
        return self._end


def read_chunk(
    connection: Connection[Any],
    info: ServerInfo,
    select: ChunkSelect,
    opened_at: BinlogOffset,
    *,
    commits: CommitWatch | None = None,
) -> ChunkRead:
    """Read a chunk that was opened at `opened_at`. The SELECT is sent when the first batch is asked for.

    `commits` is for MySQL without GTIDs where the log reader remembers nothing. Blocks in the waits and in the socket.
    Raises `SourceUnavailableError` when the connection broke or the table was altered meanwhile, `SourceError` when O
    does not become visible.
    """
    if info.is_mariadb and _has_snapshots(connection, select.table):
        return ChunkRead(_at_snapshot(connection, info, select, opened_at))
    if info.is_mariadb or info.gtid_mode:
        commits = None
    return ChunkRead(_between_positions(connection, info, select, opened_at, commits))


def _at_snapshot(
    connection: Connection[Any], info: ServerInfo, select: ChunkSelect, opened_at: BinlogOffset
) -> Generator[pa.RecordBatch, None, ChunkEnd]:
    """MariaDB: rows as of one position of the log."""
    # Rows of a table without a key cannot be matched to later changes: it is worth waiting for.
    exactly = not select.table.primary_key
    place = open_snapshot(connection, info, opened_at, exactly=exactly, timeout_s=VISIBILITY_TIMEOUT_S)
    finished = False
    try:
        reach("before_select")
        yield from select.batches(connection)
        reach("after_select")
        query(connection, "COMMIT")
        finished = True
    finally:
        if not finished:
            # The snapshot must not outlive the chunk: it keeps the server from purging old row versions.
            close_quietly(connection)
    end = ChunkEnd(place.high, current_place(connection, info), exact=place.exact)
    reach("after_high_watermark")
    return end


def _between_positions(
    connection: Connection[Any],
    info: ServerInfo,
    select: ChunkSelect,
    opened_at: BinlogOffset,
    commits: CommitWatch | None,
) -> Generator[pa.RecordBatch, None, ChunkEnd]:
    """MySQL (and engines without snapshots): rows as of some position between O and H."""
    if info.gtid_mode and not info.is_mariadb and opened_at.gtid_set:
        wait_for_gtid_set(connection, info, opened_at.gtid_set, timeout_s=VISIBILITY_TIMEOUT_S)
    elif commits is not None:
        commits.wait(opened_at)
    reach("before_select")
    yield from select.batches(connection)
    reach("after_select")
    high = current_place(connection, info)
    if high < opened_at:
        raise SourceUnavailableError(
            f"The log of {address_of(connection)} ends at {high}, before {opened_at} where this chunk was opened. Was "
            f"it reset, or is this another server than the one whose log is being read?"
        )
    reach("after_high_watermark")
    return ChunkEnd(high, high, exact=False)


def _has_snapshots(connection: Connection[Any], table: MySqlTable) -> bool:
    """Whether the table's engine takes part in consistent snapshots."""
    rows = query(
        connection,
        "SELECT e.TRANSACTIONS FROM information_schema.TABLES t JOIN information_schema.ENGINES e "
        "ON e.ENGINE = t.ENGINE WHERE t.TABLE_SCHEMA = %s AND t.TABLE_NAME = %s",
        (table.id.db, table.id.table),
    )
    return bool(rows) and str(rows[0][0]).upper() == "YES"
