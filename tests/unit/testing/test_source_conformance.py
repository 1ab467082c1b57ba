"""The conformance suite of sources: the connector to copy passes it, and each planted fault fails it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from raycdc.config.checks import CheckResult
from raycdc.connectors.datagen.generator import ABSENT, Generator
from raycdc.connectors.datagen.plugin import DatagenSourceConfig
from raycdc.connectors.datagen.source import (
    DatagenChunks,
    DatagenDialect,
    DatagenKeyOrder,
    DatagenLog,
    DatagenPosition,
    DatagenSource,
)
from raycdc.errors import RaycdcError
from raycdc.model import RowKind, TableId
from raycdc.source.connector import SourceContext, SourceFindings, SourceTable
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.enumerator.snapshot_plan import PlannedChunks, first_state
from raycdc.source.snapshot.log.log_rows import LogRows
from raycdc.source.snapshot.log.log_unit import AlterTableUpdate, LogTransactions, LogUnit, SchemaChange
from raycdc.source.snapshot.log.stream_state import stream_of
from raycdc.source.split import OpenedAt, SnapshotSplit, StreamSplit
from raycdc.state.manifests.manifest import STREAM_SPLIT_ID, Manifest
from raycdc.state.opaque import PlannerState, Position
from raycdc.state.store import CheckpointStore
from raycdc.testing import SourceConformance
from raycdc.testing.source_play import Row

TABLES = ["shop.orders", "shop.items"]
#: Transactions of each step; a step alters the tables, too.
STEP = 60


def events_of(folder: Path) -> int:
    """How many transactions the source has had by now."""
    path = folder / "events"
    return int(path.read_text()) if path.exists() else 40


@pytest.fixture(autouse=True)
def one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sources of a folder see the same transactions, whenever they were made, as those of one server do."""

    def end(self: Generator, began_ms: int) -> int:
        return events_of(Path(self._config.faults.acknowledged or "").parent)

    monkeypatch.setattr(Generator, "end", end)


def config_of(folder: Path) -> DatagenSourceConfig:
    return DatagenSourceConfig.model_validate(
        {
            "type": "datagen",
            "tables": TABLES,
            "rows": 200,
            "new_rows": 50,
            "events": events_of(folder),
            "per_second": 0,
            "deletes": 0.3,
            "alter_every": 70,
            "chunk_rows": 40,
            "faults": {"acknowledged": str(folder / "acknowledged.json")},
        }
    )


class DatagenConformance(SourceConformance):
    """The suite, with what it asks of a source answered for generated tables."""

    source: type[DatagenSource] = DatagenSource

    def config(self, folder: Path) -> DatagenSourceConfig:
        return config_of(folder)

    def new_source(self, folder: Path, context: SourceContext | None = None) -> DatagenSource:
        return self.source(self.config(folder), context)

    def change(self, folder: Path, step: int) -> None:
        written = folder / "events.new"
        written.write_text(str(events_of(folder) + STEP))
        written.replace(folder / "events")

    def rows(self, folder: Path, table: TableId) -> list[Row]:
        generator, end = Generator(self.config(folder)), events_of(folder)
        versions = generator.versions(table, 0, generator.keys, end)
        keys = (versions != ABSENT).nonzero()[0]
        columns = generator.columns(table, keys, versions[keys], end)
        names = generator.schema(end).arrow().names
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def acknowledged(self, folder: Path) -> int:
        path = folder / "acknowledged.json"
        return int(json.loads(path.read_text())["transactions"]) if path.exists() else 0

    def lose_log(self, folder: Path) -> bool:
        position: dict[str, Any] = {"transactions": events_of(folder), "began_ms": 0}
        (folder / "acknowledged.json").write_text(json.dumps(position))
        return True


class TestGeneratedTables(DatagenConformance):
    """The connector to copy keeps every rule."""


def test_a_paused_table_goes_on_where_the_log_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raycdc.connectors.datagen.source._require_kept", lambda *_: None)
    DatagenConformance().test_a_paused_table_holds_nobody_up_and_goes_on_where_it_was_left(tmp_path)
    state = stream_of(CheckpointStore(tmp_path / "state", create=False).last_manifest())
    assert state is not None
    assert (sorted(map(str, state.followed)), state.parked) == (sorted(TABLES), {})


def test_a_log_that_grows_while_it_is_asked_for_its_end_loses_no_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = DatagenConformance().new_source(tmp_path)
    start = source.enumerator_dialect().start_point()
    state = replace(first_state(start), position=moved(start.position, 40), ordinal=40)
    log = source.log_reader(StreamSplit(state, {plan.fingerprint: plan.document for plan in start.tables}))
    ends = iter([40, 60])
    monkeypatch.setattr(Generator, "end", lambda *_: next(ends, 60))
    units = [unit for unit in (log.fetch(), log.fetch()) if unit is not None]
    assert [(type(unit), unit.log_position.ordinal) for unit in units] == [(LogTransactions, 60)]


@pytest.fixture
def only_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each transaction of the server inserts a row, and rows stay as they are."""

    def written(self: Generator, table: TableId, first: int, last: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        numbers = np.arange(first, last, dtype=np.int64)
        return numbers, numbers + self._config.rows, np.zeros(numbers.size, np.bool_)

    monkeypatch.setattr(Generator, "_written", written)


class AppendedConformance(DatagenConformance):
    """Tables whose rows are only appended."""

    def config(self, folder: Path) -> DatagenSourceConfig:
        return config_of(folder).model_copy(update={"new_rows": 5_000, "chunk_rows": 1_000, "alter_every": 0})


@pytest.mark.usefixtures("only_appended")
class TestAppendedRows(AppendedConformance):
    """A source that has inserts alone keeps every rule, if it says so."""

    kinds = frozenset({RowKind.INSERT})


@pytest.mark.usefixtures("only_appended")
def test_a_source_that_does_not_tell_all_its_kinds_is_found(tmp_path: Path) -> None:
    assert fails(AppendedConformance().test_a_change_of_the_log_comes_once, tmp_path)


def test_a_source_that_tells_other_kinds_than_it_has_is_found(tmp_path: Path) -> None:
    suite = type("Suite", (DatagenConformance,), {"kinds": frozenset({RowKind.INSERT})})()
    assert fails(suite.test_a_change_of_the_log_comes_once, tmp_path)


class ChangedLog:
    """A log whose units are changed on the way."""

    def __init__(self, log: DatagenLog, change: Callable[[LogUnit], LogUnit]) -> None:
        self._log = log
        self._change = change
        self.wake_up = log.wake_up
        self.close = log.close

    def fetch(self) -> LogUnit | None:
        unit = self._log.fetch()
        return None if unit is None else self._change(unit)


class FaultyLog(DatagenSource):
    """A source with a fault in `changed`."""

    def log_reader(self, split: StreamSplit) -> DatagenLog:
        return ChangedLog(super().log_reader(split), self.changed)  # type: ignore[return-value]

    def changed(self, unit: LogUnit) -> LogUnit:
        raise NotImplementedError


def each_batch(unit: LogUnit, change: Callable[[LogRows], LogRows]) -> LogUnit:
    if not isinstance(unit, LogTransactions):
        return unit
    return replace(unit, rows=tuple(filter(lambda rows: rows.ordinals.size, map(change, unit.rows))))


def only(rows: LogRows, mask: np.ndarray) -> LogRows:
    return replace(rows, batch=rows.batch.filter(pa.array(mask)), ordinals=rows.ordinals[mask])


def kinds_of(rows: LogRows) -> np.ndarray:
    kinds: np.ndarray = rows.batch.column("_op").to_numpy()
    return kinds


class WaitsAtAPausedTable(DatagenSource):
    """While a table is paused, the log tells nothing at all."""

    def log_reader(self, split: StreamSplit) -> DatagenLog:
        log = super().log_reader(split)
        if split.state.parked:
            log.fetch = lambda: None  # type: ignore[method-assign]
        return log


class NeverBeginsAgain(DatagenSource):
    """A table that is to begin again stays parked."""

    def log_reader(self, split: StreamSplit) -> DatagenLog:
        return super().log_reader(replace(split, state=replace(split.state, parked={})))


class ForgetsTombstones(FaultyLog):
    """Deletions are not told."""

    def changed(self, unit: LogUnit) -> LogUnit:
        return each_batch(unit, lambda rows: only(rows, kinds_of(rows) != RowKind.DELETE))


class MixesTwoTables(FaultyLog):
    """Rows of all tables are told as the first one's."""

    def changed(self, unit: LogUnit) -> LogUnit:
        return each_batch(unit, lambda rows: replace(rows, table=TableId.parse(TABLES[0])))


def moved(position: Position, transactions: int) -> Position:
    """The same log after another number of transactions."""
    return replace(DatagenPosition.of(position), transactions=transactions).sealed()


class RepeatsAPosition(DatagenSource):
    """A log that is opened again begins with what it told last."""

    def log_reader(self, split: StreamSplit) -> DatagenLog:
        read = DatagenPosition.of(split.state.position).transactions
        again = moved(split.state.position, max(0, read - 1))
        return super().log_reader(replace(split, state=replace(split.state, position=again)))


class SkipsAPosition(DatagenSource):
    """A log that is opened again leaves out what it had not told yet."""

    def log_reader(self, split: StreamSplit) -> DatagenLog:
        read = DatagenPosition.of(split.state.position).transactions
        beyond = moved(split.state.position, read + bool(read))
        return super().log_reader(replace(split, state=replace(split.state, position=beyond)))


class GoesBack(FaultyLog):
    """Units have the place where the log was opened."""

    def changed(self, unit: LogUnit) -> LogUnit:
        return replace(unit, log_position=replace(unit.log_position, ordinal=0))


class TellsRowsEarly(FaultyLog):
    """Rows have a place before that of their unit's predecessor."""

    def changed(self, unit: LogUnit) -> LogUnit:
        return each_batch(unit, lambda rows: replace(rows, ordinals=rows.ordinals - 1))


class KeepsItsOldColumns(FaultyLog):
    """An alteration is told without its new schema document."""

    def changed(self, unit: LogUnit) -> LogUnit:
        old = self.tables()[TableId.parse(TABLES[0])].schema
        document = SchemaDocument.of(old)
        if not isinstance(unit, SchemaChange):
            return unit
        altered = [one for one in unit.updates if isinstance(one, AlterTableUpdate)]
        return replace(unit, updates=tuple(replace(one, document=document) for one in altered))


class TellsAfterBeforeBefore(FaultyLog):
    """The row before an update comes behind the row after it."""

    def changed(self, unit: LogUnit) -> LogUnit:
        return each_batch(unit, self._turned)

    def _turned(self, rows: LogRows) -> LogRows:
        order = np.arange(rows.ordinals.size)
        before = np.flatnonzero(kinds_of(rows) == RowKind.UPDATE_BEFORE)
        order[before], order[before + 1] = before + 1, before
        return replace(rows, batch=rows.batch.take(pa.array(order)))


class AcknowledgesEarly(FaultyLog):
    """The source is told that all is safe as soon as it is read."""

    def changed(self, unit: LogUnit) -> LogUnit:
        self.acknowledge({STREAM_SPLIT_ID: unit.log_position.position})
        return unit


class AcknowledgesNothing(DatagenSource):
    """The log is kept for ever."""

    def acknowledge(self, positions: Mapping[str, Any]) -> None:
        """Forgotten."""


class KeepsALostLogToItself(DatagenSource):
    """A log that does not reach back is found out by whoever reads it."""

    def preflight(self, last: Manifest | None) -> None:
        """Nothing is asked."""


class ChecksWhatItCannotDo(DatagenSource):
    """`check` finds a fault that no run has."""

    def check(self, last: Manifest | None, *, names_reported: bool) -> SourceFindings:
        found = super().check(last, names_reported=names_reported)
        return SourceFindings([CheckResult("connection", "Nobody answers.")], found.tables)


class PlansOtherColumns(DatagenSource):
    """`plan` shows columns that no run has."""

    def tables(self) -> dict[TableId, SourceTable]:
        told = super().tables()
        return {
            table: replace(one, schema=replace(one.schema, columns=one.schema.columns[:-1]))
            for table, one in told.items()
        }


class HoldsALock(DatagenSource):
    """It cannot be sent to another process."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._lock = threading.Lock()


class SleepsThroughTheCall(DatagenSource):
    """A read that waits is not woken."""

    def log_reader(self, split: StreamSplit) -> DatagenLog:
        log, never = super().log_reader(split), threading.Event()
        log.fetch = never.wait  # type: ignore[method-assign,assignment]
        return log


class FaultyChunks(DatagenChunks):
    """Chunks whose batches are changed on the way."""

    def read(self, split: SnapshotSplit, *, opened_at: OpenedAt, document: SchemaDocument) -> Iterator[pa.RecordBatch]:
        for batch in super().read(split, opened_at=opened_at, document=document):
            yield self.changed(batch)

    def changed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


class LosesTheLastRow(DatagenSource):
    """A chunk ends one row before its bound."""

    class Chunks(FaultyChunks):
        def changed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            return batch.slice(0, batch.num_rows - 1)

    def chunk_reader(self) -> DatagenChunks:
        return self.Chunks(self.config)


class Stale(Generator):
    """A server in whose log nothing ever happens."""

    def end(self, began_ms: int) -> int:
        return 0


class ReadsWhatWas(DatagenSource):
    """A chunk sees the table as it was a while before it was opened."""

    class Chunks(FaultyChunks):
        def read(
            self, split: SnapshotSplit, *, opened_at: OpenedAt, document: SchemaDocument
        ) -> Iterator[pa.RecordBatch]:
            before = moved(opened_at.position, DatagenPosition.of(opened_at.position).transactions - 20)
            self._generator = Stale(self._config)
            yield from super().read(split, opened_at=replace(opened_at, position=before), document=document)

    def chunk_reader(self) -> DatagenChunks:
        return self.Chunks(self.config)


class FaultyPlan(DatagenDialect):
    """Chunks that are changed after they were planned."""

    def plan(self, document: SchemaDocument, table: TableId, planner: PlannerState, first_index: int) -> PlannedChunks:
        planned = super().plan(document, table, planner, first_index)
        return replace(planned, splits=tuple(map(self.changed, planned.splits)))

    def changed(self, split: SnapshotSplit) -> SnapshotSplit:
        raise NotImplementedError


class OverlappingChunks(DatagenSource):
    """The first row of each chunk is the last one of the chunk before, too."""

    class Plan(FaultyPlan):
        def changed(self, split: SnapshotSplit) -> SnapshotSplit:
            return split if split.upper is None else replace(split, upper=split.upper + 1)

    def enumerator_dialect(self) -> DatagenDialect:
        return self.Plan(self.config, self.context, 0)


class LeavesAGap(DatagenSource):
    """The last chunk ends where nobody knows whether more rows come."""

    class Plan(FaultyPlan):
        def changed(self, split: SnapshotSplit) -> SnapshotSplit:
            return split if split.upper is not None else replace(split, upper=self._generator.keys - 1)

    def enumerator_dialect(self) -> DatagenDialect:
        return self.Plan(self.config, self.context, 0)


class ComparesBackwards(DatagenSource):
    """Keys of the log are compared with bounds of chunks in another order than chunks are read in."""

    class Order(DatagenKeyOrder):
        def classify(self, table: TableId, keys: pa.Array, bounds: Any) -> np.ndarray:
            return super().classify(table, pc.negate(keys), bounds)

    def key_order(self, split: StreamSplit) -> DatagenKeyOrder:
        return self.Order()


#: Each fault, and the story that is there to find it.
FAULTS: dict[type[DatagenSource], str] = {
    ForgetsTombstones: "the_target_equals_the_source_after_every_run",
    WaitsAtAPausedTable: "a_paused_table_holds_nobody_up_and_goes_on_where_it_was_left",
    NeverBeginsAgain: "a_table_is_read_again_on_request",
    MixesTwoTables: "the_target_equals_the_source_after_every_run",
    RepeatsAPosition: "a_change_of_the_log_comes_once",
    SkipsAPosition: "the_log_resumes_from_every_position",
    GoesBack: "log_positions_ascend",
    TellsRowsEarly: "log_positions_ascend",
    KeepsItsOldColumns: "rows_are_as_their_schema_says",
    TellsAfterBeforeBefore: "an_update_is_a_row_before_and_a_row_after",
    AcknowledgesEarly: "nothing_is_acknowledged_before_it_is_committed",
    AcknowledgesNothing: "nothing_is_acknowledged_before_it_is_committed",
    KeepsALostLogToItself: "a_lost_log_is_reported",
    ChecksWhatItCannotDo: "check_and_plan_agree_with_a_run",
    PlansOtherColumns: "check_and_plan_agree_with_a_run",
    HoldsALock: "it_can_be_sent_to_other_processes",
    SleepsThroughTheCall: "a_waiting_read_can_be_woken",
    LosesTheLastRow: "every_row_is_in_one_chunk",
    ReadsWhatWas: "a_chunk_sees_what_the_log_had_when_it_was_opened",
    OverlappingChunks: "bounds_of_chunks_ascend_without_gaps",
    LeavesAGap: "bounds_of_chunks_ascend_without_gaps",
    ComparesBackwards: "every_row_is_in_one_chunk",
}


@pytest.mark.parametrize("faulty", FAULTS, ids=lambda faulty: faulty.__name__)
def test_a_planted_fault_is_found(faulty: type[DatagenSource], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raycdc.testing.source_conformance.TIMEOUT_S", 0.5)
    monkeypatch.setattr("raycdc.testing.source_conformance.RUN_TIMEOUT_S", 5.0)
    suite = type("Suite", (DatagenConformance,), {"source": faulty})()
    story = getattr(suite, f"test_{FAULTS[faulty]}")
    assert fails(story, tmp_path), f"{faulty.__name__}: {faulty.__doc__}"


def fails(story: Callable[[Path], None], folder: Path) -> bool:
    """Whether the story says that a rule is broken; an accident of the fault says nothing."""
    try:
        story(folder)
    except (AssertionError, RaycdcError, TypeError):  # A lock is refused by pickle with a TypeError.
        return True
    return False
