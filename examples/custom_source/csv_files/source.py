"""The source: each file ``NAME.csv`` of a folder is the table ``csv.NAME``, and each line after its first is a row.

The lines of all files are one log: a position has the number of bytes of each file that were read, and its ordinal is
their sum. That sum is enough only because tables have no snapshot: the log alone brings all rows, and no chunk has to
say which of them it saw (`raycdc.source.snapshot.reader.reading.HighWatermark`). A line counts once it ends; no value
has a line break.

A parked table that is to begin again (``raycdc tables resnapshot``) has its lines told once more, up to its position.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.csv

from csv_files.plugin import CsvFilesConfig
from raycdc.config.checks import CheckResult
from raycdc.errors import LogLostError
from raycdc.model import Column, LogicalType, RowKind, TableId, TableSchema, TypeKind, changelog_schema
from raycdc.model.evolution import CreateTableEvent
from raycdc.source.connector import IncrementalSource, SourceContext, SourceFindings, SourceTable
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.enumerator.snapshot_plan import PlanChunks, PlannedChunks, StartPoint, TablePlan
from raycdc.source.snapshot.key_intervals import ChunkKey
from raycdc.source.snapshot.log.log_rows import LogRows
from raycdc.source.snapshot.log.log_unit import (
    AlterTableUpdate,
    LogPosition,
    LogProgress,
    LogTransactions,
    LogUnit,
    ParkTableUpdate,
    SchemaChange,
    TransactionPart,
)
from raycdc.source.snapshot.log.stream_state import stream_of
from raycdc.source.split import StreamSplit
from raycdc.source.tables.resnapshots import StatementPosition, TableVersion, begin, without_chunks
from raycdc.source.tables.table_life import ParkingCause
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.opaque import PlannerState, Position

#: The number of bytes of a file that are read at once.
BYTES_AT_ONCE = 4 << 20
#: The maximum number of seconds that a call of `fetch` waits in a quiet folder.
IDLE_S = 0.1


class CsvFilesSource(IncrementalSource[CsvFilesConfig]):
    """The source; see the module's docstring."""

    @property
    def ring_s(self) -> float:
        return 0.0

    def check(self, last: Manifest | None, *, names_reported: bool) -> SourceFindings:
        files = _files(self.config)
        return SourceFindings([CheckResult("folder", f"{len(files)} files are there.", ok=True)], list(files))

    def preflight(self, last: Manifest | None) -> None:
        if (state := stream_of(last)) is not None:
            _require_kept(self.config, bytes_read(state.position))

    def tables(self) -> dict[TableId, SourceTable]:
        return {table: SourceTable(_schema(file)) for table, file in _files(self.config).items()}

    def enumerator_dialect(self) -> CsvFilesDialect:
        return CsvFilesDialect(self.config, self.context)

    def log_reader(self, split: StreamSplit) -> CsvFilesLog:
        _require_kept(self.config, bytes_read(split.state.position))
        return CsvFilesLog(self.config, self.context, split)

    def chunk_reader(self) -> NoReturn:
        raise AssertionError("no table has chunks")

    def key_order(self, split: StreamSplit) -> CsvFilesKeyOrder:
        return CsvFilesKeyOrder()


class CsvFilesDialect:
    """Finds the tables and the start of the log, as an `EnumeratorDialect`.

    See `raycdc.source.snapshot.enumerator.snapshot_plan.EnumeratorDialect`.
    """

    chunk_readers_max = 0
    failover = None

    def __init__(self, config: CsvFilesConfig, context: SourceContext) -> None:
        self._config = config
        self._rules = context.rules

    def start_point(self) -> StartPoint:
        files = _files(self._config)
        read = {file.name: _header_bytes(file) for file in files.values()}
        plans = []
        for table, file in files.items():
            document = SchemaDocument.of(_schema(file))
            refused = self._rules.refusal(table, _schema(file))
            plans.append(TablePlan(table, document.fingerprint, document, snapshot=None, refused=refused))
        return StartPoint(Position.from_json(read), sum(read.values()), tuple(plans), parks=self._rules.parks)

    def plan(self, document: SchemaDocument, table: TableId, planner: PlannerState, first_index: int) -> PlannedChunks:
        return PlannedChunks((), None, 0)

    def planning(self) -> AbstractContextManager[PlanChunks]:
        return nullcontext(self.plan)

    def current_ordinal(self) -> int:
        return sum(file.read_bytes().rfind(b"\n") + 1 for file in _files(self._config).values())

    def captures(self, table: TableId) -> bool:
        return True


class CsvFilesKeyOrder:
    """Compares nothing, because no table has chunks; a `raycdc.source.snapshot.handoff.open_chunk.KeyOrder`."""

    def use(self, table: TableId, key: ChunkKey | None, document: SchemaDocument) -> None:
        """Do nothing: nothing is remembered about a table."""

    def forget(self, table: TableId) -> None:
        """Do nothing: nothing is remembered about a table."""

    def bound(self, table: TableId, raw: Any) -> NoReturn:
        raise AssertionError("no table has chunks")

    def classify(self, table: TableId, keys: pa.Array, bounds: Sequence[Any]) -> NoReturn:
        raise AssertionError("no table has chunks")


class CsvFilesLog:
    """Reads the log as a `raycdc.source.snapshot.reader.reading.BlockingLog`.

    A fetcher's thread calls `fetch` repeatedly, which may block.
    """

    def __init__(self, config: CsvFilesConfig, context: SourceContext, split: StreamSplit) -> None:
        self._config = config
        self._rules = context.rules
        self._read = bytes_read(split.state.position)
        self._rows = 0
        #: The tables whose lines are not emitted.
        self._parked = set(split.state.parked)
        again = [table for table, state in split.state.parked.items() if state.again]
        self._beginnings = chain.from_iterable(map(self._begin_again, again))
        #: The file that was read last; the next turn begins with the files after it.
        self._last_read = ""
        self._woken = threading.Event()

    def fetch(self) -> LogUnit | None:
        if (unit := next(self._beginnings, None)) is not None:
            return unit
        files = _files(self._config).items()
        for table, file in sorted(files, key=lambda each: (each[1].name <= self._last_read, each[1].name)):
            if file.name not in self._read:
                return self._new_table(table, file)
            if lines := _whole_lines(file, self._read[file.name]):
                self._last_read = file.name
                return self._new_rows(table, file, lines)
        self._woken.wait(IDLE_S)
        return None

    def wake_up(self) -> None:
        self._woken.set()

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _begin_again(self, table: TableId) -> Iterator[LogUnit]:
        """Empty the target of a parked table, and emit the lines up to its position again.

        That is one transaction without a position inside, so the log's position does not change.
        """
        file, log_position = _files(self._config)[table], self._log_position()
        schema, end = _schema(file), self._read[file.name]
        if why := self._rules.refusal(table, schema):
            yield self._parking(table, why)
            return
        self._parked.remove(table)
        version = TableVersion(schema, SchemaDocument.of(schema))
        here = StatementPosition(log_position.position, log_position.ordinal, log_position.fetched_ms or 0)
        begun = begin(table, version, without_chunks(), here, seq=self._rows)
        self._rows += 1
        yield SchemaChange(log_position, (begun.update,), begun.rows, in_transaction=True)
        first = _header_bytes(file)
        while first < end:
            lines = _whole_lines(file, first, end)
            rows = self._lines_as_rows(table, file, lines, first, log_position)
            first += len(lines)
            yield TransactionPart(log_position, (rows,), bytes=rows.batch.nbytes)
        yield LogTransactions(log_position)

    def _new_table(self, table: TableId, file: Path) -> LogUnit:
        self._read[file.name] = _header_bytes(file)
        schema = _schema(file)
        if why := self._rules.refusal(table, schema):
            return self._parking(table, why)
        created = AlterTableUpdate(table, (CreateTableEvent(table, schema),), SchemaDocument.of(schema))
        return SchemaChange(self._log_position(), (created,))

    def _parking(self, table: TableId, why: str) -> LogUnit:
        self._parked.add(table)
        log_position = self._log_position()
        return SchemaChange(
            log_position,
            (ParkTableUpdate(table, ParkingCause(why, log_position.position, log_position.fetched_ms or 0)),),
        )

    def _new_rows(self, table: TableId, file: Path, lines: bytes) -> LogUnit:
        first = self._read[file.name]
        self._read[file.name] += len(lines)
        log_position = self._log_position()
        if table in self._parked:
            return LogProgress(log_position)
        rows = self._lines_as_rows(table, file, lines, first, log_position)
        return LogTransactions(log_position, (rows,), bytes=rows.batch.nbytes)

    def _lines_as_rows(
        self, table: TableId, file: Path, lines: bytes, first: int, log_position: LogPosition
    ) -> LogRows:
        """Return the file's lines from its byte `first` on, as inserts at `log_position`."""
        schema = _schema(file)
        names = [column.name for column in schema.columns]
        values = pa.csv.read_csv(
            pa.BufferReader(lines),
            read_options=pa.csv.ReadOptions(column_names=names, use_threads=False),
            convert_options=pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
        ).combine_chunks()
        count = values.num_rows
        meta = [
            pa.array(np.full(count, RowKind.INSERT, np.int8)),
            pa.array(np.arange(self._rows, self._rows + count)),
            pa.array(np.full(count, log_position.fetched_ms, np.int64)),
            pa.array([f"{file.name}@{first}:{number}" for number in range(count)]),
        ]
        self._rows += count
        columns = [*(column.combine_chunks() for column in values.columns), *meta]
        batch = pa.RecordBatch.from_arrays(columns, schema=changelog_schema(schema))
        return LogRows(table, batch, np.full(count, log_position.ordinal, np.int64))

    def _log_position(self) -> LogPosition:
        now_ms = time.time_ns() // 1_000_000
        return LogPosition(Position.from_json(dict(self._read)), sum(self._read.values()), now_ms, now_ms)


def bytes_read(position: Position) -> dict[str, int]:
    """Return the number of bytes of each file that were read."""
    return dict(position.to_json())


def _files(config: CsvFilesConfig) -> dict[TableId, Path]:
    """Return the files whose first line is complete, by their tables."""
    files = sorted(Path(config.path).glob("*.csv"))
    return {TableId("csv", file.stem): file for file in files if _header_bytes(file)}


def _header_bytes(file: Path) -> int:
    with file.open("rb") as lines:
        header = lines.readline()
    return len(header) if header.endswith(b"\n") else 0


def _schema(file: Path) -> TableSchema:
    with file.open(encoding="utf-8") as lines:
        names = lines.readline().strip().split(",")
    return TableSchema(tuple(Column(name, LogicalType(TypeKind.STRING), nullable=True) for name in names), ())


def _whole_lines(file: Path, begin: int, end: int | None = None) -> bytes:
    """Return complete lines from the byte `begin` on, up to `end`; empty if there is none."""
    size = BYTES_AT_ONCE
    with file.open("rb") as content:
        while True:
            content.seek(begin)
            data = content.read(size if end is None else min(size, end - begin))
            lines = data[: data.rfind(b"\n") + 1]
            if lines or len(data) < size:
                return lines
            size *= 2


def _require_kept(config: CsvFilesConfig, bytes_read: Mapping[str, int]) -> None:
    """Raise `LogLostError` if a file lacks bytes that were read."""
    for name, read in bytes_read.items():
        file = Path(config.path) / name
        size = file.stat().st_size if file.exists() else 0
        if size < read:
            raise LogLostError(
                f"{file} has {size} bytes, and {read} were read already: it was cut off or deleted. Put it back, or "
                "begin with another pipeline.state."
            )
