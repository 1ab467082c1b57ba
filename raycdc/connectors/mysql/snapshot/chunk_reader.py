"""Reads one chunk of a table: its rows in Arrow, made inserts of the changelog. Blocks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pymysql.connections import Connection

from raycdc.clients.mysql import close_quietly, is_of_changed_table, is_of_locked_table, query
from raycdc.connectors.mysql.binlog.position import BinlogOffset, ordinal_of
from raycdc.connectors.mysql.client import ServerInfo, current_place
from raycdc.connectors.mysql.failover import require_same_server
from raycdc.connectors.mysql.locks import locked_error
from raycdc.connectors.mysql.snapshot.chunk_range import ChunkRange, range_of
from raycdc.connectors.mysql.snapshot.commits import CommitWatch
from raycdc.connectors.mysql.snapshot.key_columns import KeyColumns
from raycdc.connectors.mysql.snapshot.pace import ConnectionPace
from raycdc.connectors.mysql.snapshot.row_filter import parse_filter
from raycdc.connectors.mysql.snapshot.rows_again import READ_ONLY, is_refusal, with_rows
from raycdc.connectors.mysql.snapshot.visibility import ChunkRead, ChunkSelect, read_chunk
from raycdc.connectors.mysql.values.documents import capture_of, table_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import ConfigError, SourceError, TableChangedError
from raycdc.model import as_inserts, changelog_schema
from raycdc.model.pace import UNLIMITED, Pace
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.chunk_key import key_names
from raycdc.source.snapshot.reading import HighWatermark
from raycdc.source.split import OpenedAt, RowsAgain, SnapshotSplit
from raycdc.transform.hiding import Hiding


def _with_rows(condition: str | None, table: MySqlTable, wanted: ChunkRange, again: RowsAgain) -> str | None:
    """`with_rows`. `TableChangedError` where the table has not the key any more that the chunk was cut by, or orders it
    otherwise, or has not the keys that it is to read: its backfill is over, and nothing else.
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
            f"The chunk key of {table.id} ({names}) has another type, or is ordered otherwise, than when the backfill "
            "began. Ask for it again."
        )
    return condition


class MySqlChunkReader:
    """`raycdc.source.snapshot.reading.ChunkReader`: one chunk's rows as changelog inserts. Used by one thread."""

    def __init__(
        self,
        connection: Connection[Any],
        info: ServerInfo,
        *,
        visible_within_s: float,
        rows_per_s: float,
        hiding: Hiding,
        source_pace: Pace = UNLIMITED,
    ) -> None:
        self._source_pace = source_pace
        self._hiding = hiding
        self._connection = connection
        self._info = info
        self._pace = ConnectionPace(rows_per_s) if rows_per_s else None
        self._commits = CommitWatch(connection, timeout_s=visible_within_s)
        self._read: ChunkRead | None = None

    def read(self, split: SnapshotSplit, *, opened_at: OpenedAt, document: SchemaDocument) -> Iterator[pa.RecordBatch]:
        position = BinlogOffset.of(opened_at.position)
        require_same_server(self._connection, self._info, position)
        table = table_of(document)
        capture = capture_of(document)
        condition = None if capture.filter is None else parse_filter(table, capture.filter).sql()
        wanted = range_of(split, self._hiding)
        if split.again is not None:
            query(self._connection, READ_ONLY)
            condition = _with_rows(condition, table, wanted, split.again)
        select = ChunkSelect(table, wanted, capture.columns, condition, self._source_pace)
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
                if self._pace is not None:
                    self._pace.passed(batch.num_rows)
        except SourceError as cause:
            if is_of_locked_table(cause.__cause__):
                raise locked_error(split.table) from cause
            # A backfill is over where the server refuses it; the others end their attempt.
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
        end = ordinal_of(current_place(self._connection, self._info))
        return HighWatermark(end, exact=False, log_end=end)

    def wake_up(self) -> None:
        if self._pace is not None:
            self._pace.end()
        close_quietly(self._connection)

    def close(self) -> None:
        close_quietly(self._connection)
