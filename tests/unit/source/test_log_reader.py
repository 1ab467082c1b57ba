"""The log reader between transactions: what opens, publishes, ends an epoch, and what is in its state."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from raycdc.model import Column, LogicalType, RowKind, TableId, TypeKind
from raycdc.model.evolution.events import AddColumnEvent, DropTableEvent
from raycdc.source.protocol.source_event import SourceEvent
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.chunk_events import (
    ChunkDelta,
    ChunkOpened,
    ChunkPublished,
    ChunkSchemaMismatch,
    ChunkVoided,
    CloseChunkRequest,
    Fate,
    OpenChunkRequest,
    StopAt,
    VoidChunkRequest,
)
from raycdc.source.snapshot.handoff import open_chunk
from raycdc.source.snapshot.handoff.hand_off import LogRows
from raycdc.source.snapshot.key_intervals import ChunkKey
from raycdc.source.snapshot.log.log_reader import LogReader, LogReaderSettings, LogReport
from raycdc.source.snapshot.log.log_rows import SpilledRows
from raycdc.source.snapshot.log.log_unit import (
    AlterTableUpdate,
    BeginTableUpdate,
    DropTableUpdate,
    LogPosition,
    LogTransactions,
    ParkTableUpdate,
    SchemaChange,
    TransactionPart,
)
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.split import OpenedAt, SnapshotSplit, StreamSplit
from raycdc.source.tables.resnapshots import without_chunks
from raycdc.source.tables.table_life import ParkingCause, SnapshotState
from raycdc.state.manifests.manifest import Manifest, Segment, TableEpoch
from raycdc.state.missing import MissingRow, missing_rows
from raycdc.state.opaque import EnumeratorState, Position
from tests.protocol.pair import segment

TABLE = TableId("shop", "orders")
SCHEMA = pa.schema([("id", pa.int64()), ("_op", pa.int8())])
CHUNK = SnapshotSplit(TABLE, 0, "id", None, 10)
REST = SnapshotSplit(TABLE, 1, "id", 10, None)


class Numbers:
    def use(self, table: TableId, key: ChunkKey | None, document: SchemaDocument) -> None: ...

    def forget(self, table: TableId) -> None: ...

    def bound(self, table: TableId, raw: Any) -> int:
        return int(raw)

    def classify(self, table: TableId, keys: pa.Array, bounds: Sequence[int]) -> np.ndarray:
        return np.array([sum(b <= k for b in bounds) for k in keys.to_pylist()], np.int64)


class Output:
    """Notes what the open epoch gets."""

    def __init__(self) -> None:
        self.open_bytes = 0
        self.epoch: list[Any] = []
        #: The numbers of the rows of the log in it.
        self.numbers: list[int] = []

    def collect(self, table: TableId, *, batch: pa.RecordBatch, **_: Any) -> None:
        self.epoch.extend(batch.column("id").to_pylist())
        if "_seq" in batch.schema.names:
            self.numbers.extend(batch.column("_seq").to_pylist())

    def publish(self, segments: Sequence[Segment]) -> None:
        self.epoch.extend(segment.path for segment in segments)

    def spill(self, rows: Sequence[LogRows]) -> SpilledRows:
        raise AssertionError("there is room in memory")

    def write_delta(self, rows: Iterable[LogRows], *, fingerprint: str, split_id: str) -> tuple[Segment, ...]:
        return (segment(f"delta {[i for part in rows for i in part.batch.column('id').to_pylist()]}"),)

    def cut(self, epoch: int) -> tuple[Segment, ...]:
        self.epoch.clear()
        self.numbers.clear()
        return ()

    def release(self, paths: Sequence[str]) -> None: ...

    def discard(self, segments: Sequence[Segment]) -> None: ...

    def close(self) -> None: ...


class Cut(NamedTuple):
    """What the log reader said of an epoch, and its state then."""

    report: LogReport
    state: dict[str, Any]


def altered(at: int) -> AddColumnEvent:
    """The schema change at a place of the log."""
    return AddColumnEvent(TABLE, Column(f"at{at}", LogicalType(TypeKind.INT64)))


def place_at(at: int, event_ms: int | None = None) -> LogPosition:
    return LogPosition(Position.from_json({"at": at}), at, event_ms)


class Reader:
    """A log reader of one table in snapshot, and what it said."""

    def __init__(self, *, ring_s: float = 0.0, announced: bool = True, foldable: bool = True) -> None:
        snapshot: dict[str, Any] = {
            "key": "id" if foldable else None,
            "foldable": foldable,
            "needs_null": False,
            "null_closed": False,
            "closed": [],
        }
        table = {"schema": "f1", "announced": announced, "snapshot": snapshot}
        document = SchemaDocument.from_json(
            {"fingerprint": "f1", "columns": [], "primary_key": ["id"] if foldable else []}
        )
        state: dict[str, Any] = {"version": 1, "position": {"at": 100}, "ordinal": 100, "tables": {str(TABLE): table}}
        self.output = Output()
        self.said: list[SourceEvent] = []
        self.log = LogReader(
            StreamSplit(StreamState.from_json(state), {"f1": document}),
            key_order=Numbers(),
            output=self.output,
            send_event=self.said.append,
            settings=LogReaderSettings(1000, ring_s),
            now_s=0.0,
        )

    def rows(self, *ids: int, at: int, in_transaction: bool = False, now_s: float = 0.0) -> None:
        batch = pa.record_batch([pa.array(ids, pa.int64()), pa.array([RowKind.INSERT] * len(ids), pa.int8())], SCHEMA)
        rows = LogRows(TABLE, batch, np.full(len(ids), at, np.int64))
        ordinal = self.log.state().ordinal if in_transaction else at
        place = place_at(ordinal, event_ms=at)
        self.log.on_unit(
            TransactionPart(place, (rows,)) if in_transaction else LogTransactions(place, (rows,)), now_s=now_s
        )

    def missing(self, *ids: int, at: int) -> None:
        """Rows that the source cannot give, as their deletions."""
        batch = pa.record_batch([pa.array(ids, pa.int64()), pa.array([RowKind.DELETE] * len(ids), pa.int8())], SCHEMA)
        rows = LogRows(TABLE, batch, np.full(len(ids), at, np.int64))
        told = tuple(MissingRow(TABLE, f'{{"id": {number}}}', "not found", 0, str(at)) for number in ids)
        self.log.on_unit(LogTransactions(place_at(at), (rows,), missing=told), now_s=0.0)

    def alter(self, at: int) -> None:
        document = SchemaDocument.from_json({"fingerprint": f"f{at}", "columns": [], "primary_key": ["id"]})
        change = altered(at)
        self.log.on_unit(
            SchemaChange(place_at(at), (AlterTableUpdate(TABLE, (change,), document),)),
            now_s=0.0,
        )

    def open(self, split: SnapshotSplit, *, now_s: float = 0.0) -> None:
        self.log.on_event(OpenChunkRequest(split), now_s=now_s)

    def close(self, split: SnapshotSplit, *, high: int, log_end: int = 0) -> None:
        segments = (segment(f"chunk {split.index}"),)
        closed = CloseChunkRequest(split.chunk_id, high, max(high, log_end), exact=False, segments=segments)
        self.log.on_event(closed, now_s=0.0)

    def misfit(self, split: SnapshotSplit, *, high: int, reason: str) -> None:
        self.log.on_event(ChunkSchemaMismatch(split.chunk_id, high, reason), now_s=0.0)

    def void(self, split: SnapshotSplit) -> None:
        self.log.on_event(VoidChunkRequest(split.chunk_id), now_s=0.0)

    def cut(self) -> Cut:
        report = self.log.report()
        self.output.cut(1)
        state = self.log.state().to_json()
        self.log.after_cut(now_s=0.0)
        return Cut(report, state)

    def kinds(self) -> list[type[SourceEvent]]:
        kinds = [type(event) for event in self.said]
        self.said.clear()
        return kinds


def test_a_chunk_is_opened_at_the_position_of_the_log() -> None:
    reader = Reader()
    reader.rows(1, at=110)
    reader.open(CHUNK)
    (answer,) = reader.said
    document = SchemaDocument.from_json({"fingerprint": "f1", "columns": [], "primary_key": ["id"]})
    assert answer == ChunkOpened(CHUNK.chunk_id, OpenedAt(Position.from_json({"at": 110})), document)


def test_events_wait_for_the_end_of_a_transaction() -> None:
    reader = Reader()
    reader.rows(1, at=105, in_transaction=True)
    reader.open(CHUNK)
    assert reader.kinds() == []
    assert not reader.log.can_cut
    reader.rows(2, at=110)
    (answer,) = reader.said
    assert isinstance(answer, ChunkOpened)
    assert answer.opened_at == OpenedAt(Position.from_json({"at": 110}))


def test_a_chunk_and_what_follows_it_enter_the_epoch_together() -> None:
    reader = Reader()
    reader.open(CHUNK)
    reader.rows(5, at=120)
    reader.rows(20, at=121)
    assert reader.output.epoch == []
    reader.close(CHUNK, high=110)
    assert reader.output.epoch == ["chunk 0", 5]
    assert reader.kinds() == [ChunkOpened, ChunkPublished]
    assert reader.cut().report.finished == (CHUNK.split_id,)


def test_a_chunk_with_changes_is_folded_by_its_reader_first() -> None:
    reader = Reader()
    reader.open(CHUNK)
    reader.rows(5, at=105)
    reader.close(CHUNK, high=105)
    assert reader.said[-1] == ChunkDelta(CHUNK.chunk_id, (segment("delta [5]"),))
    assert reader.output.epoch == []
    reader.close(CHUNK, high=105)
    assert reader.output.epoch == ["chunk 0"]


def test_a_full_epoch_takes_no_chunk_and_the_next_one_does_although_the_log_is_silent() -> None:
    reader = Reader()
    reader.open(CHUNK)
    reader.output.open_bytes = 1000
    reader.close(CHUNK, high=100)
    assert reader.output.epoch == []
    assert reader.log.wants_seal
    reader.output.open_bytes = 0
    reader.cut()
    assert reader.output.epoch == ["chunk 0"]


def test_a_table_goes_live_when_its_last_chunk_is_out() -> None:
    reader = Reader()
    for split in (CHUNK, REST):
        reader.open(split)
        reader.close(split, high=100)
    report, state = reader.cut()
    assert report.tables[str(TABLE)].snapshot is False
    assert state["tables"][str(TABLE)]["snapshot"] is None
    reader.rows(5, 50, at=130)
    assert reader.output.epoch == [5, 50]


def test_void_is_answered_for_open_unknown_and_published_chunks_alike() -> None:
    reader = Reader()
    reader.void(REST)
    reader.open(CHUNK)
    reader.void(CHUNK)
    assert reader.kinds() == [ChunkVoided, ChunkOpened, ChunkVoided]
    reader.close(CHUNK, high=100)
    assert reader.output.epoch == []


def test_a_table_that_is_read_for_nothing_again_and_again_is_parked_with_all_its_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_chunk, "RETRIES_MAX", 2)
    reader = Reader()
    for attempt in range(3):
        split = replace(CHUNK, attempt=attempt)
        reader.open(split)
        if attempt == 2:
            # Of the same table, and decided about in the same step.
            reader.open(REST)
            reader.log.on_unit(TransactionPart(place_at(150)), now_s=0.0)
            reader.close(REST, high=100)
        reader.misfit(split, high=100, reason="no b")
    reader.said.clear()
    reader.rows(5, at=160)
    voided = [event for event in reader.said if isinstance(event, ChunkVoided)]
    assert len(voided) == len(reader.said)
    assert {(event.chunk.split_id, event.fate) for event in voided} == {
        (split.split_id, Fate.NEXT_MANIFEST) for split in (CHUNK, REST)
    }
    assert reader.output.epoch == []
    entry = reader.cut().state["parked"][str(TABLE)]
    assert "read 2 times and not once usable: no b" in entry["reason"]
    # Its log goes on, as nobody told it.
    reader.rows(5, at=170)
    assert reader.output.epoch == []


def test_nothing_held_is_state_and_a_cut_leaves_open_chunks_open() -> None:
    reader = Reader()
    reader.open(CHUNK)
    reader.rows(5, at=120)
    state = reader.cut().state
    assert state["ordinal"] == 120
    assert state["tables"][str(TABLE)]["snapshot"]["closed"] == []
    reader.close(CHUNK, high=110)
    assert reader.output.epoch == ["chunk 0", 5]


def test_a_schema_change_ends_the_epoch_voids_chunks_and_begins_the_next_one() -> None:
    reader = Reader()
    reader.open(CHUNK)
    reader.rows(5, at=110)
    reader.alter(at=120)
    assert (reader.log.ready, reader.log.wants_seal) == (False, True)
    assert reader.kinds() == [ChunkOpened]
    _, state = reader.cut()
    assert state["ordinal"] == 110
    assert state["tables"][str(TABLE)]["schema"] == "f1"
    assert reader.kinds() == [ChunkVoided]
    report, _ = reader.cut()
    assert report.tables[str(TABLE)] == TableEpoch("f120", snapshot=True, changes=(altered(120),))
    assert list(report.schemas) == ["f120"]


def test_two_schema_changes_in_a_row_are_two_epochs() -> None:
    reader = Reader()
    reader.alter(at=120)
    reader.alter(at=130)
    assert reader.cut().report.tables[str(TABLE)].changes == (altered(120),)
    assert reader.cut().report.tables[str(TABLE)].changes == (altered(130),)


def test_the_first_epoch_creates_every_table_and_no_other_does() -> None:
    reader = Reader(announced=False)
    assert [c.type for c in reader.cut().report.tables[str(TABLE)].changes] == ["create_table"]
    assert reader.cut().report.tables == {}


def test_a_chunk_of_a_table_that_was_dropped_is_gone() -> None:
    reader = Reader()
    update = DropTableUpdate(TABLE)
    reader.log.on_unit(SchemaChange(place_at(120), (update,)), now_s=0.0)
    reader.open(CHUNK)
    assert reader.said == [ChunkVoided(CHUNK.chunk_id, "the table was dropped", Fate.TABLE_DROPPED)]


def test_a_chunk_of_a_table_is_gone_when_another_table_has_its_name() -> None:
    """That one is in the log from its first row on, and nothing says later what becomes of chunks of the other."""
    reader = Reader()
    reader.log.on_unit(SchemaChange(place_at(120), (DropTableUpdate(TABLE),)), now_s=0.0)
    reader.cut()
    reader.alter(at=130)
    chunk = replace(CHUNK, incarnation=5)
    reader.open(chunk)
    assert reader.said == [
        ChunkVoided(chunk.chunk_id, "the table was dropped, and another one has its name", Fate.TABLE_DROPPED)
    ]


def test_input_ends_at_the_stop_position_between_transactions() -> None:
    reader = Reader()
    reader.log.on_event(StopAt(120), now_s=0.0)
    ended = [reader.log.end_of_input]
    reader.rows(1, at=119, in_transaction=True)
    ended.append(reader.log.end_of_input)
    reader.rows(1, at=119)
    ended.append(reader.log.end_of_input)
    reader.rows(1, at=121)
    ended.append(reader.log.end_of_input)
    assert ended == [False, False, False, True]
    assert reader.cut().report.end_of_input


def test_where_visibility_is_unknown_chunks_open_once_the_log_was_passed_for_long_enough() -> None:
    reader = Reader(ring_s=10)
    reader.open(CHUNK, now_s=3)
    assert reader.log.on_time(now_s=9.9) == 10
    assert reader.kinds() == []
    assert reader.log.on_time(now_s=10) is None
    assert reader.kinds() == [ChunkOpened]


def test_a_waiting_chunk_whose_reader_died_is_not_opened() -> None:
    reader = Reader(ring_s=10)
    reader.open(CHUNK, now_s=3)
    reader.void(CHUNK)
    reader.log.on_time(now_s=10)
    assert reader.kinds() == [ChunkVoided]


def test_a_chunk_that_cannot_be_folded_waits_for_a_quiet_table_but_not_for_ever() -> None:
    whole = SnapshotSplit(TABLE, 0, None, None, None, includes_null=True)
    quiet, busy = Reader(ring_s=10, foldable=False), Reader(ring_s=10, foldable=False)
    for reader, times in ((quiet, [5]), (busy, [5, 9, 13, 17, 21])):
        for number, now_s in enumerate(times):
            reader.rows(1, at=110 + number, now_s=now_s)
        reader.open(whole, now_s=12)
        assert reader.log.on_time(now_s=14) == 22
        assert reader.kinds() == []
    quiet.log.on_time(now_s=16)
    assert quiet.kinds() == [ChunkOpened]
    busy.log.on_time(now_s=21.9)
    assert busy.kinds() == []
    busy.log.on_time(now_s=22)
    assert busy.kinds() == [ChunkOpened]


def test_missing_rows_are_told_once_and_not_of_chunks_that_are_still_to_be_read() -> None:
    reader = Reader()
    before = reader.log.state().sealed()
    reader.open(CHUNK)
    reader.missing(3, 15, at=101)
    reader.close(CHUNK, high=102)
    reader.rows(20, at=103)
    states = [before]
    for at in (104, 105):
        states.append(reader.log.state().sealed())
        reader.cut()
        reader.missing(4, at=at)
    # A state that comes again without news, as where nobody reads for an epoch.
    states += [reader.log.state().sealed()] * 2
    told = []
    for epoch, (first, last) in enumerate(itertools.pairwise(states), start=1):
        manifest = Manifest(epoch, 1, 0, {"stream": first}, {"stream": last}, EnumeratorState.from_json({}))
        told.append([row.key for row in missing_rows(manifest)])
    assert told == [['{"id": 3}'], ['{"id": 4}'], ['{"id": 4}'], []]


def park(reader: Reader, at: int) -> None:
    why = ParkingCause("a test says so", Position.from_json({"at": at}), 0)
    reader.log.on_unit(SchemaChange(place_at(at), (ParkTableUpdate(TABLE, why),)), now_s=0.0)


def test_a_stop_of_somebody_who_does_not_know_of_a_parking_does_not_count() -> None:
    reader = Reader()
    park(reader, at=110)
    reader.log.on_event(StopAt(105, changes=0), now_s=0.0)
    assert not reader.log.end_of_input
    reader.log.on_event(StopAt(105, changes=1), now_s=0.0)
    assert reader.log.end_of_input


def test_a_chunk_of_an_earlier_beginning_is_not_opened() -> None:
    reader = Reader()
    park(reader, at=110)
    reader.open(CHUNK)
    document = SchemaDocument.from_json({"fingerprint": "f1", "columns": [], "primary_key": ["id"]})
    begun = BeginTableUpdate(TABLE, (), document, SnapshotState("id", foldable=True, needs_null=False))
    reader.cut()
    reader.log.on_unit(SchemaChange(place_at(120), (begun,)), now_s=0.0)
    reader.open(CHUNK)
    fates = [event.fate for event in reader.said if isinstance(event, ChunkVoided)]
    assert fates == [Fate.NEXT_MANIFEST, Fate.NEXT_MANIFEST]
    reader.said.clear()
    reader.open(replace(CHUNK, incarnation=2))
    assert reader.kinds() == [ChunkOpened]


def test_a_statement_about_a_parked_table_leaves_it_parked() -> None:
    reader = Reader()
    park(reader, at=110)
    reader.cut()
    before = reader.log.state()
    reader.alter(at=120)
    after = reader.log.state()
    assert (after.parked, after.followed, after.ordinal) == (before.parked, {}, 120)
    assert reader.cut().report.tables == {}


def test_a_table_without_chunks_is_live_however_many_rows_its_transaction_has() -> None:
    """A manifest that had it in its snapshot would have its chunks planned, and its rows would come twice."""
    reader = Reader()
    document = SchemaDocument.from_json({"fingerprint": "f2", "columns": [], "primary_key": ["id"]})
    made = TableId("shop", "made")
    begun = BeginTableUpdate(made, (), document, without_chunks())
    reader.log.on_unit(SchemaChange(place_at(100), (begun,), in_transaction=True, at=101), now_s=0.0)
    reader.output.open_bytes = 10_000
    reader.log.on_unit(LogTransactions(place_at(110)), now_s=0.0)
    report, state = reader.cut()
    assert state["tables"][str(made)] == {"incarnation": 1, "schema": "f2", "announced": True, "snapshot": None}
    assert [change.type for change in report.tables[str(made)].changes] == ["create_table"]
    assert not report.tables[str(made)].snapshot


def test_a_table_that_was_dropped_is_told_of_once_and_known_to_nobody_behind_the_cut() -> None:
    """One that takes the name is another table: it is announced anew."""
    reader = Reader()
    dropped = DropTableUpdate(TABLE, (DropTableEvent(TABLE),))
    reader.log.on_unit(SchemaChange(place_at(110), (dropped,)), now_s=0.0)
    first = reader.cut()
    assert [change.type for change in first.report.tables[str(TABLE)].changes] == ["drop_table"]
    assert first.state["tables"] == {}
    document = SchemaDocument.from_json({"fingerprint": "f1", "columns": [], "primary_key": ["id"]})
    reader.log.on_unit(SchemaChange(place_at(120), (AlterTableUpdate(TABLE, (), document),)), now_s=0.0)
    second = reader.cut()
    assert [change.type for change in second.report.tables[str(TABLE)].changes] == ["create_table"]
    assert second.state["tables"][str(TABLE)] == {
        "incarnation": 0,
        "schema": "f1",
        "announced": True,
        "snapshot": None,
    }
