"""Reads one chunk of a table as changelog inserts in Arrow, consistently with the log. Blocks.

The log reader holds a chunk's events from position O (`opened_at`) on. The SELECT must see everything before O, and H
(`ChunkEnd.high_watermark`) must be after everything that the SELECT saw. The held events up to H are then applied to
the rows of the SELECT. `ConnectionRateLimiter` slows a chunk reader down, so that a snapshot leaves the source capacity
for its own work.

`ChunkEnd.log_end` (D) is the log's end after the SELECT, on every server. It is needed because MariaDB's snapshot is
older than its SELECT, so H does not show which table the SELECT found under the name
(`raycdc.source.snapshot.handoff.hand_off`). MariaDB reports a table that was rebuilt between the two (error 1412). It
does not report a table that was renamed to the name, nor partitions that were dropped, exchanged or converted: the
SELECT then returns the rows of the new table as of the snapshot.

| server | before the SELECT | H: end of the log |
|---|---|---|
| MariaDB | until O is visible, then a consistent snapshot (argument in `consistent`) | when it was opened |
| MySQL with GTIDs | ``WAIT_FOR_EXECUTED_GTID_SET(O)``: executed means visible | after the SELECT |
| MySQL without GTIDs, PROCESS granted | until sessions that committed at O have finished (argument in `commits`) | \
the same |
| MySQL without GTIDs, otherwise | nothing: the log reader's ring reaches back `visible_within` before O | the same |

The *ring* is the log reader's buffer of the changes before O. When a chunk is opened, the log reader reports whether it
has the ring. If it has none, and the account may not see sessions, the chunk itself waits for `visible_within`.

A server writes a transaction to the log before SELECTs see it, so the end of the log, read after the SELECT, is after
everything that the SELECT saw. ``gtid_executed`` might not be. No statement here takes a lock on rows or tables of a
transactional engine. Other engines (Aria, MyISAM) have no snapshot and show rows before they log them: `checks` warns
about their tables.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pymysql.connections import Connection

from raycdc.clients.mysql import address_of, close_quietly, is_of_changed_table, is_of_locked_table, query, quote_name
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset, ordinal_of
from raycdc.connectors.mysql.server.client import MySqlServerInfo, current_end, wait_for_gtid_set
from raycdc.connectors.mysql.server.failover import require_same_server
from raycdc.connectors.mysql.server.locks import locked_error
from raycdc.connectors.mysql.snapshot.commits import CHUNK_MARK, CommitWatch
from raycdc.connectors.mysql.snapshot.consistent import open_snapshot
from raycdc.connectors.mysql.snapshot.planning.chunk_keys import KeyColumns
from raycdc.connectors.mysql.snapshot.planning.chunk_plan import ChunkRange, range_of
from raycdc.connectors.mysql.snapshot.resultset import arena_for, stream_query
from raycdc.connectors.mysql.snapshot.row_filter import parse_filter
from raycdc.connectors.mysql.snapshot.rows_again import READ_ONLY, is_refusal, with_rows
from raycdc.connectors.mysql.values.documents import capture_of, table_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.core.activity import resting
from raycdc.core.failpoints import reach
from raycdc.errors import ConfigError, SourceError, SourceUnavailableError, TableChangedError
from raycdc.model import as_inserts, changelog_schema
from raycdc.model.batch import BATCH_BYTES_MAX, BATCH_ROWS_MAX
from raycdc.model.rules.rate_limit import UNLIMITED, RateLimit
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.key_intervals import key_names
from raycdc.source.snapshot.reader.reading import HighWatermark
from raycdc.source.split import BackfillRows, OpenedAt, SnapshotSplit
from raycdc.transform.masks import Masking


class ConnectionRateLimiter:
    """A limit of `rows_per_s` on average. `passed` waits; `end` may come from another thread, and ends all waiting.

    Unused time is not saved up: after a pause, reading goes on at the same rate. The wait comes after a batch was read.
    Meanwhile the server does nothing, because it waits for us to read more of the result.
    """

    def __init__(self, rows_per_s: float, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._rows_per_s = rows_per_s
        self._now_s = now_s
        self._free_at_s = 0.0
        self._ended = threading.Event()

    def passed(self, rows: int) -> float:
        """Count `rows`, and wait until their time has passed. Returns the seconds of the wait."""
        now = self._now_s()
        self._free_at_s = max(self._free_at_s, now) + rows / self._rows_per_s
        waiting = self._free_at_s - now
        with resting():
            self._ended.wait(waiting)
        return waiting

    def end(self) -> None:
        """End all waits."""
        self._ended.set()


#: The longest wait of a chunk until everything that the log reader has read is visible. Normally this takes
#: milliseconds. For a replica whose commits hang, a longer wait is useless.
VISIBILITY_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class ChunkSelect:
    """The selected rows and columns of one table: the rows of `chunk` that meet the SQL condition `row_filter`.

    `columns` limits the columns, in the table's order; None: all. A batch has at most as many rows as `rate_limit`
    permits per fetch.
    """

    table: MySqlTable
    chunk: ChunkRange
    columns: Sequence[str] | None = None
    row_filter: str | None = None
    rate_limit: RateLimit = UNLIMITED

    @property
    def selected(self) -> MySqlTable:
        """Return the table with the selected columns only."""
        if self.columns is None:
            return self.table
        return replace(self.table, columns=tuple(c for c in self.table.columns if c.name in self.columns))

    def batches(self, connection: Connection[Any]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches. Blocks in the socket."""
        rate_limit, table = self.rate_limit, self.selected
        rows_max, bytes_max = rate_limit.rows_at_once(BATCH_ROWS_MAX), rate_limit.bytes_at_once(BATCH_BYTES_MAX)
        arena = arena_for(table, rows_max=rows_max, bytes_max=bytes_max)
        return stream_query(connection, self.sql(), table, arena=arena)

    def sql(self) -> str:
        names = ", ".join(quote_name(column.name) for column in self.selected.columns)
        # The condition uses the whole table, because the chunk key need not be among the selected columns.
        condition = self.chunk.condition(self.table)
        if self.row_filter:
            condition = f"({condition}) AND ({self.row_filter})"
        source = quote_name(self.table.id.db, self.table.id.table)
        return f"SELECT {CHUNK_MARK} {names} FROM {source}" + ("" if condition == "1 = 1" else f" WHERE {condition}")


@dataclass(frozen=True, slots=True)
class ChunkEnd:
    """The limits of a chunk after it was read: no row that the SELECT saw is after H, the `high_watermark`.

    If `exact`, the rows are those at H and at no other position. Any statement that determined which table the SELECT
    saw is before D, the `log_end`.
    """

    high_watermark: BinlogOffset
    log_end: BinlogOffset
    exact: bool


class ChunkRows:
    """The rows of one chunk. Iterate over all of them once, then call `end`.

    Leaving the iteration early closes the connection.
    """

    def __init__(self, batches: Generator[pa.RecordBatch, None, ChunkEnd]) -> None:
        self._batches = batches
        self._end: ChunkEnd | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        self._end = yield from self._batches

    @property
    def end(self) -> ChunkEnd:
        """Return the limits of the chunk. Call it after the last batch."""
        assert self._end is not None, "the chunk was not read to its end"
        return self._end


def read_chunk(
    connection: Connection[Any],
    info: MySqlServerInfo,
    select: ChunkSelect,
    opened_at: BinlogOffset,
    *,
    commits: CommitWatch | None = None,
) -> ChunkRows:
    """Read a chunk that was opened at `opened_at`. The SELECT is sent when the first batch is requested.

    `commits` is for MySQL without GTIDs if the log reader has no ring. Blocks in the waits and in the socket. Raises
    `SourceUnavailableError` when the connection broke or the table was altered meanwhile, `SourceError` when O does not
    become visible.
    """
    if info.is_mariadb and _has_snapshots(connection, select.table):
        return ChunkRows(_at_snapshot(connection, info, select, opened_at))
    if info.is_mariadb or info.gtid_mode:
        commits = None
    return ChunkRows(_between_positions(connection, info, select, opened_at, commits))


def _at_snapshot(
    connection: Connection[Any], info: MySqlServerInfo, select: ChunkSelect, opened_at: BinlogOffset
) -> Generator[pa.RecordBatch, None, ChunkEnd]:
    """Yield the rows on MariaDB, as of one position of the log."""
    # Rows of a table without a key cannot be matched with later changes, so an exact position is worth a wait.
    exactly = not select.table.primary_key
    position = open_snapshot(connection, info, opened_at, exactly=exactly, timeout_s=VISIBILITY_TIMEOUT_S)
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
    end = ChunkEnd(position.high, current_end(connection, info), exact=position.exact)
    reach("after_high_watermark")
    return end


def _between_positions(
    connection: Connection[Any],
    info: MySqlServerInfo,
    select: ChunkSelect,
    opened_at: BinlogOffset,
    commits: CommitWatch | None,
) -> Generator[pa.RecordBatch, None, ChunkEnd]:
    """Yield the rows on MySQL (and of engines without snapshots), as of some position between O and H."""
    if info.gtid_mode and not info.is_mariadb and opened_at.gtid_set:
        wait_for_gtid_set(connection, info, opened_at.gtid_set, timeout_s=VISIBILITY_TIMEOUT_S)
    elif commits is not None:
        commits.wait(opened_at)
    reach("before_select")
    yield from select.batches(connection)
    reach("after_select")
    high = current_end(connection, info)
    if high < opened_at:
        raise SourceUnavailableError(
            f"The log of {address_of(connection)} ends at {high}, before {opened_at} where this chunk was opened. Was "
            f"it reset, or is this another server than the one whose log is being read?"
        )
    reach("after_high_watermark")
    return ChunkEnd(high, high, exact=False)


def _has_snapshots(connection: Connection[Any], table: MySqlTable) -> bool:
    """Return True if the table's engine takes part in consistent snapshots."""
    rows = query(
        connection,
        "SELECT e.TRANSACTIONS FROM information_schema.TABLES t JOIN information_schema.ENGINES e "
        "ON e.ENGINE = t.ENGINE WHERE t.TABLE_SCHEMA = %s AND t.TABLE_NAME = %s",
        (table.id.db, table.id.table),
    )
    return bool(rows) and str(rows[0][0]).upper() == "YES"


def _with_rows(condition: str | None, table: MySqlTable, wanted: ChunkRange, again: BackfillRows) -> str | None:
    """Return `condition` with that of the backfill, like `with_rows`.

    Raises `TableChangedError`, which ends only the backfill, if the table lost the chunk key, orders it differently, or
    lacks the key columns for reading.
    """
    try:
        wanted.condition(table)
        cut = again.order and not wanted.is_whole_table
        ordered = not cut or wanted.key is None or KeyColumns.named(table, wanted.key).ordering == again.order
        condition = with_rows(condition, table, again)
    except (ConfigError, ValueError, AssertionError, ArithmeticError, pa.ArrowException) as cause:
        raise TableChangedError(f"{table.id} has other key columns than when the backfill began: {cause}") from cause
    if not ordered:
        names = ", ".join(key_names(wanted.key))
        raise TableChangedError(
            f"The chunk key of {table.id} ({names}) has another type, or another order, than when the backfill began. "
            f"Request it again."
        )
    return condition


class MySqlChunkReader:
    """The reader of one chunk's rows as inserts, a `raycdc.source.snapshot.reader.reading.ChunkReader`.

    Used by one thread.
    """

    def __init__(
        self,
        connection: Connection[Any],
        info: MySqlServerInfo,
        *,
        visible_within_s: float,
        rows_per_s: float,
        masking: Masking,
        source_rate_limit: RateLimit = UNLIMITED,
    ) -> None:
        self._source_rate_limit = source_rate_limit
        self._masking = masking
        self._connection = connection
        self._info = info
        self._rate_limit = ConnectionRateLimiter(rows_per_s) if rows_per_s else None
        self._commits = CommitWatch(connection, timeout_s=visible_within_s)
        self._read: ChunkRows | None = None

    def read(self, split: SnapshotSplit, *, opened_at: OpenedAt, document: SchemaDocument) -> Iterator[pa.RecordBatch]:
        position = BinlogOffset.of(opened_at.position)
        require_same_server(self._connection, self._info, position)
        table = table_of(document)
        capture = capture_of(document)
        condition = None if capture.filter is None else parse_filter(table, capture.filter).sql()
        wanted = range_of(split, self._masking)
        if split.again is not None:
            query(self._connection, READ_ONLY)
            condition = _with_rows(condition, table, wanted, split.again)
        select = ChunkSelect(table, wanted, capture.columns, condition, self._source_rate_limit)
        remembered = opened_at.ring_s > 0
        commits = None if remembered else self._commits
        schema = changelog_schema(capture.narrowed(table).schema())
        read_ms = time.time_ns() // 1_000_000
        rows = 0
        try:
            self._read = read_chunk(self._connection, self._info, select, position, commits=commits)
            for batch in self._read:
                yield as_inserts(batch, schema, first=rows, read_ms=read_ms)
                rows += batch.num_rows
                if self._rate_limit is not None:
                    self._rate_limit.passed(batch.num_rows)
        except SourceError as cause:
            if is_of_locked_table(cause.__cause__):
                raise locked_error(split.table) from cause
            # If the server refuses the statement of a backfill, this ends the backfill. For other chunks, this attempt
            # ends.
            refused = split.again is not None and is_refusal(cause)
            if not refused and not is_of_changed_table(cause.__cause__):
                raise
            raise TableChangedError(str(cause)) from cause

    def high_watermark(self) -> HighWatermark:
        assert self._read is not None
        end = self._read.end
        return HighWatermark(ordinal_of(end.high_watermark), exact=end.exact, log_end=ordinal_of(end.log_end))

    def log_end(self, opened_at: OpenedAt) -> HighWatermark:
        require_same_server(self._connection, self._info, BinlogOffset.of(opened_at.position))
        end = ordinal_of(current_end(self._connection, self._info))
        return HighWatermark(end, exact=False, log_end=end)

    def wake_up(self) -> None:
        if self._rate_limit is not None:
            self._rate_limit.end()
        close_quietly(self._connection)

    def close(self) -> None:
        close_quietly(self._connection)
