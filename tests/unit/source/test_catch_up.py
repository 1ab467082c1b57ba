"""The numbers of rows of two readings of one log, and the beginning that a table is while it is caught up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind, changelog_schema
from raycdc.model.evolution.events import DropTableEvent
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.chunk_events import ParkTable, StopAt
from raycdc.source.snapshot.log.log_reader import LogReader, LogReaderSettings
from raycdc.source.snapshot.log.log_rows import LogRows
from raycdc.source.snapshot.log.log_unit import (
    AlterTableUpdate,
    DropTableUpdate,
    LogPosition,
    LogProgress,
    LogTransactions,
    LogUnit,
    ParkTableUpdate,
    SchemaChange,
    TransactionPart,
    rows_of,
)
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.snapshot.rereading.catch_up import CatchUpFallback, RowNumbers
from raycdc.source.split import StreamSplit
from raycdc.source.tables.parking import Refusal, Requests, TableRequest, with_requests
from raycdc.source.tables.table_life import (
    AsOf,
    Behind,
    CatchingUp,
    InSnapshot,
    LeftAt,
    Live,
    Parked,
    ParkedPhase,
    ParkingCause,
    SnapshotState,
)
from raycdc.state.opaque import NO_NOTES, LogNotes, Position, SealedSplit
from tests.unit.source.test_log_reader import Numbers, Output

TABLE = TableId("shop", "orders")
OTHER = TableId("shop", "items")
HERE = Position.from_json({"at": 1})
SCHEMA = changelog_schema(TableSchema((Column("id", LogicalType(TypeKind.INT64)),), ("id",)))


def unit(*numbers: int) -> LogUnit:
    """A transaction whose rows have these numbers."""
    columns = [pa.array(numbers if field.name == "_seq" else [None] * len(numbers), field.type) for field in SCHEMA]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    return LogTransactions(LogPosition(HERE, 1), (LogRows(TABLE, batch, np.arange(len(numbers), dtype=np.int64)),))


def numbers_of(one: LogUnit) -> list[int]:
    return [number for rows in rows_of(one) for number in rows.batch.column("_seq").to_pylist()]


def test_a_log_that_is_opened_anew_goes_on_behind_the_numbers_of_the_one_before() -> None:
    """Rows of that may still be held for a chunk, and come before those behind them."""
    numbers = RowNumbers()
    assert numbers_of(numbers.of_log(unit(3, 4, 900))) == [3, 4, 900]
    numbers.reopen()
    assert numbers_of(numbers.of_log(unit(0, 1))) == [901, 902]
    numbers.reopen()
    assert numbers_of(numbers.of_log(unit(5))) == [908]


def test_rows_that_are_read_beside_the_log_are_numbered_near_the_logs_in_each_epoch() -> None:
    numbers = RowNumbers()
    numbers.of_log(unit(1 << 40))
    first = numbers_of(numbers.of_catch_up(unit(7, 8)))
    assert first == [(1 << 40) + 1, (1 << 40) + 2]
    assert numbers_of(numbers.of_catch_up(unit(20, 21))) == [(1 << 40) + 14, (1 << 40) + 15]
    numbers.begin_epoch()
    numbers.of_log(unit((1 << 40) + 5))
    assert numbers_of(numbers.of_catch_up(unit(9, 10))) == [(1 << 40) + 6, (1 << 40) + 7]


def test_a_reading_beside_the_log_that_is_opened_again_is_numbered_behind_the_rows_of_its_epoch() -> None:
    numbers = RowNumbers()
    numbers.of_log(unit(100))
    assert numbers_of(numbers.of_catch_up(unit(7, 20))) == [101, 114]
    numbers.read_again()
    assert numbers_of(numbers.of_catch_up(unit(0, 1))) == [115, 116]
    numbers.of_log(unit(500))
    numbers.read_again()
    assert numbers_of(numbers.of_catch_up(unit(3))) == [501]
    # The log's own numbers do not move.
    assert numbers_of(numbers.of_log(unit(502))) == [502]
    numbers.begin_epoch()
    assert numbers_of(numbers.of_catch_up(unit(4))) == [503]


def paused(state: InSnapshot | AsOf | Behind | Live | CatchingUp) -> Parked:
    """The table after a user paused it in a log at the ordinal 40."""
    notes = LogNotes({"databases": {}})
    catching_up = {TABLE: state} if isinstance(state, CatchingUp) else {}
    followed = {} if isinstance(state, CatchingUp) else {TABLE: state}
    stream = StreamState(HERE, 40, followed, changes=6, notes=notes, catching_up=catching_up)
    asked = Requests(6, {str(TABLE): TableRequest.PAUSE})
    after = with_requests(stream, asked)
    assert not asked.acts_on(str(TABLE), after)
    return after.parked[TABLE]


def test_a_paused_table_keeps_what_it_needs_to_go_on_if_all_its_chunks_are_out() -> None:
    here = LeftAt(3, 40, LogNotes({"databases": {}}))
    earlier = Position.from_json({"at": 0})
    snapshot = SnapshotState("id", foldable=True, needs_null=False)
    assert paused(Live("f", announced=True, incarnation=3)).left == here
    assert paused(Behind("f", announced=True, incarnation=3, at=40)).left == here
    assert paused(Behind("f", announced=True, incarnation=3, at=41)).left is None
    assert paused(InSnapshot("f", True, 3, snapshot)).left is None
    assert paused(AsOf("f", True, 3, snapshot, at=9)).left is None
    again = paused(CatchingUp("f", True, earlier, LeftAt(3, 11)))
    assert (again.position, again.left, again.incarnation) == (earlier, LeftAt(3, 11), 7)
    assert paused(CatchingUp("f", True, earlier, LeftAt(3, 11), dropped=True)).left is None


def test_a_resumed_table_is_the_beginning_that_it_was_and_a_request_acts_on_it_once() -> None:
    left = LeftAt(3, 11, LogNotes({"x": 1}))
    before = Parked("f", True, 7, ParkedPhase.PAUSED, "paused by the user", HERE, 0, left=left)
    stream = StreamState(HERE, 40, parked={TABLE: before}, changes=7)
    asked = Requests(7, {str(TABLE): TableRequest.RESUME})
    after = with_requests(stream, asked)
    assert after.catching_up == {TABLE: CatchingUp("f", True, HERE, left)}
    assert (after.parked, after.changes) == ({}, 8)
    assert with_requests(after, asked) is after
    assert asked.left(after).tables == {}
    # A target that is parked meanwhile is told which beginning it lacks rows of.
    assert SealedSplit.from_json(after.to_json()).incarnation(str(TABLE)) == 3
    assert SealedSplit.from_json(stream.to_json()).incarnation(str(TABLE)) is None


def test_a_table_that_is_parked_with_its_place_goes_on_from_there_when_asked_for_and_may_be_paused() -> None:
    left = LeftAt(3, 11)
    parked = Parked("f", True, 9, ParkedPhase.PARKED, "its log could not be read", HERE, 0, left=left)
    stream = StreamState(HERE, 40, parked={TABLE: parked}, changes=9)
    after = with_requests(stream, Requests(9, {str(TABLE): TableRequest.RESUME}))
    assert after.catching_up == {TABLE: CatchingUp("f", True, HERE, left)}
    # The request that it was parked after acts no more.
    assert not Requests(8, {str(TABLE): TableRequest.RESUME}).acts_on(str(TABLE), stream)
    resting = with_requests(stream, Requests(9, {str(TABLE): TableRequest.PAUSE})).parked[TABLE]
    assert (resting.phase, resting.left, resting.position) == (ParkedPhase.PAUSED, left, HERE)


def test_a_table_whose_place_nobody_knows_is_read_anew() -> None:
    before = Parked("f", True, 7, ParkedPhase.PAUSED, "paused by the user", HERE, 0)
    stream = StreamState(HERE, 40, parked={TABLE: before}, changes=7)
    after = with_requests(stream, Requests(7, {str(TABLE): TableRequest.RESUME}))
    assert (after.parked[TABLE].again, after.parked[TABLE].phase) == (True, ParkedPhase.PARKED)


def test_behind_a_gap_or_at_another_server_no_place_is_of_use() -> None:
    left = LeftAt(3, 11)
    there = Position.from_json({"at": 9})
    before = Parked("f", True, 7, ParkedPhase.PAUSED, "paused by the user", HERE, 0, left=left)
    third = TableId("shop", "third")
    kept = Parked("f", True, 6, ParkedPhase.PARKED, "let it go on", HERE, 0, left=left)
    stream = StreamState(
        HERE, 40, parked={OTHER: before, third: kept}, changes=7, catching_up={TABLE: CatchingUp("f", True, HERE, left)}
    )
    after = stream.elsewhere(there, 5)
    assert (after.parked[third].left, after.parked[OTHER].reason) == (None, "paused by the user")
    assert after.parked[third].reason.endswith(f"raycdc tables resnapshot CONFIG {third}")
    assert (after.position, after.ordinal, after.changes) == (there, 5, 8)
    assert (after.parked[OTHER].left, after.parked[OTHER].phase) == (None, ParkedPhase.PAUSED)
    assert (after.parked[TABLE].phase, after.parked[TABLE].again, after.catching_up) == (ParkedPhase.PARKED, False, {})
    assert after.parked[TABLE].reason.endswith(f"raycdc tables resnapshot CONFIG {TABLE}")


WAITING = LogNotes({"absent": [1]})
DOCUMENT = SchemaDocument.from_json({"fingerprint": "f", "columns": [], "primary_key": ["id"]})
BESIDE = Position.from_json({"at": 0})


class Resumed:
    """A log at 40, and tables that are caught up from 10 on. With `WAITING` a log is settled up to 34 alone."""

    def __init__(
        self, *tables: TableId, notes: LogNotes = NO_NOTES, left: LogNotes = NO_NOTES, parks: bool = True
    ) -> None:
        going_on = {table: CatchingUp("f", True, BESIDE, LeftAt(3, 10, left)) for table in tables}
        state = StreamState(HERE, 40, changes=7, notes=notes, catching_up=going_on)
        self.output = Output()
        self.log = LogReader(
            StreamSplit(state, {"f": DOCUMENT}),
            key_order=Numbers(),
            output=self.output,
            send_event=lambda _: None,
            settings=LogReaderSettings(
                1000, parks=parks, is_complete=lambda notes, up_to: notes != WAITING or up_to < 35
            ),
            now_s=0.0,
        )

    def beside(self, unit: LogUnit) -> None:
        """The reading beside the log has a unit."""
        assert self.log.at_boundary
        assert self.log.catch_up.ready
        self.log.on_catch_up_unit(unit, now_s=0.0)

    def moved_to(self, ordinal: int, notes: LogNotes | None = None) -> None:
        """The log goes on."""
        self.log.on_unit(LogProgress(LogPosition(HERE, ordinal, notes=notes)), now_s=0.0)
        self.log.catch_up.meet(now_s=0.0)


def rows_at(*ordinals: int, table: TableId = TABLE) -> LogRows:
    """Rows whose ids are their ordinals."""
    columns = [
        pa.array(ordinals if field.name in ("_seq", "id") else [None] * len(ordinals), field.type) for field in SCHEMA
    ]
    return LogRows(table, pa.RecordBatch.from_arrays(columns, schema=SCHEMA), np.array(ordinals, np.int64))


def whole(*ordinals: int, notes: LogNotes | None = None) -> LogTransactions:
    return LogTransactions(LogPosition(BESIDE, ordinals[-1], notes=notes), (rows_at(*ordinals),))


def test_tables_do_not_join_a_log_whose_ordinal_is_before_its_position() -> None:
    """It would be opened anew behind rows that are left to it."""
    resumed = Resumed(TABLE, notes=WAITING)
    resumed.beside(whole(30, 50))
    assert not resumed.log.catch_up.ready
    assert (resumed.output.epoch, resumed.log.catch_up.reopens) == ([], False)
    resumed.moved_to(60, NO_NOTES)
    assert (resumed.output.epoch, resumed.log.catch_up.reopens) == ([30, 50], False)
    resumed.beside(whole(60, 70))
    assert (resumed.output.epoch, resumed.log.catch_up.reopens) == ([30, 50, 60], True)
    assert TABLE in resumed.log.state().followed


def test_tables_do_not_join_while_the_reading_beside_the_log_has_something_to_settle() -> None:
    """That goes with the reading, and so would a row."""
    resumed = Resumed(TABLE, left=WAITING)
    resumed.moved_to(41)
    resumed.beside(whole(30, 50))
    assert resumed.output.epoch == []
    resumed.moved_to(50)
    assert (resumed.output.epoch, resumed.log.catch_up.reopens) == ([30, 50], False)
    resumed.beside(whole(51, notes=NO_NOTES))
    assert not resumed.log.catch_up.reopens
    resumed.moved_to(51)
    assert (resumed.output.epoch, resumed.log.catch_up.reopens) == ([30, 50, 51], True)


def test_tables_do_not_join_where_the_two_readings_are_at_one_place_and_something_is_to_be_settled() -> None:
    resumed = Resumed(TABLE)
    resumed.beside(whole(40, notes=WAITING))
    assert (resumed.output.epoch, resumed.log.catch_up.reopens) == ([40], False)
    resumed.beside(LogProgress(LogPosition(BESIDE, 40, notes=NO_NOTES)))
    assert resumed.log.catch_up.reopens


def test_input_ends_when_all_before_its_end_is_settled() -> None:
    """The log may be where it ends, and a change before that still be unexplained."""
    resumed = Resumed(notes=WAITING)
    resumed.log.on_event(StopAt(40, changes=7), now_s=0.0)
    ended = [resumed.log.end_of_input]
    resumed.moved_to(50)
    ended.append(resumed.log.end_of_input)
    resumed.moved_to(50, NO_NOTES)
    ended.append(resumed.log.end_of_input)
    assert ended == [False, False, True]


def test_input_ends_whatever_is_to_be_settled_behind_its_end() -> None:
    """Else a run would never end beside somebody who goes on to change and delete."""
    resumed = Resumed(notes=WAITING)
    resumed.log.on_event(StopAt(34, changes=7), now_s=0.0)
    assert resumed.log.end_of_input


def filled(document: SchemaDocument, at: int) -> SchemaChange:
    """A statement that begins a transaction with rows, as CREATE TABLE … SELECT does."""
    return SchemaChange(LogPosition(BESIDE, 10), (AlterTableUpdate(TABLE, (), document),), in_transaction=True, at=at)


def test_a_statement_that_begins_a_transaction_before_the_logs_place_is_passed_on_before_tables_join() -> None:
    """The next unit may have the rest of that transaction, and others behind the log's place."""
    other = SchemaDocument.from_json({**DOCUMENT.to_json(), "fingerprint": "g"})
    resumed = Resumed(TABLE)
    resumed.beside(filled(other, at=20))
    resumed.beside(whole(21, 50))
    assert (resumed.output.epoch, resumed.log.catch_up.reopens) == ([21], True)
    assert resumed.log.state().followed[TABLE].schema == "g"


def test_a_statement_that_begins_a_transaction_behind_the_logs_place_is_the_logs_to_tell() -> None:
    other = SchemaDocument.from_json({**DOCUMENT.to_json(), "fingerprint": "g"})
    resumed = Resumed(TABLE)
    resumed.beside(filled(other, at=41))
    assert (resumed.output.epoch, resumed.log.catch_up.reopens) == ([], True)
    assert resumed.log.state().followed[TABLE].schema == "f"


def test_a_statement_that_does_not_say_where_in_its_transaction_it_is_is_refused() -> None:
    with pytest.raises(AssertionError, match="nobody knows where"):
        SchemaChange(LogPosition(BESIDE, 10), (AlterTableUpdate(TABLE, (), DOCUMENT),), in_transaction=True)


def test_a_table_that_was_renamed_away_is_looked_at_by_the_log() -> None:
    """Another one may have taken the name while this one was paused."""
    resumed = Resumed(TABLE)
    ended = ParkingCause("renamed", BESIDE, 0, phase=ParkedPhase.ENDED)
    resumed.beside(SchemaChange(LogPosition(BESIDE, 20), (ParkTableUpdate(TABLE, ended),)))
    parked = resumed.log.state().parked[TABLE]
    assert (parked.again, parked.phase, parked.reason) == (True, ParkedPhase.PARKED, "renamed")
    assert resumed.log.catch_up.reopens


def test_a_table_that_its_target_refuses_is_not_read_on_and_the_others_are_to_the_end_of_their_transaction() -> None:
    resumed = Resumed(TABLE, OTHER)
    place = LogPosition(BESIDE, 10)
    resumed.beside(TransactionPart(place, (rows_at(20), rows_at(21, table=OTHER))))
    refusal = Refusal(TABLE, 3, "refused", BESIDE, 0)
    resumed.log.on_event(ParkTable(refusal), now_s=0.0)
    assert resumed.log.state().parked[TABLE].reason == "refused"
    assert not resumed.log.can_cut
    resumed.beside(TransactionPart(place, (rows_at(22), rows_at(23, table=OTHER))))
    assert not resumed.log.can_cut
    resumed.beside(LogTransactions(LogPosition(BESIDE, 24), (rows_at(24, table=OTHER),)))
    assert resumed.output.epoch == [20, 21, 23, 24]
    assert (resumed.log.can_cut, resumed.log.wants_seal, resumed.log.catch_up.reopens) == (True, True, True)
    resumed.log.report()
    assert resumed.log.state().catching_up[OTHER].ordinal == 24


def test_a_unit_that_waits_for_a_table_does_not_begin_a_transaction_inside_one_beside_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing would be sealed any more: no cut is inside either."""
    resumed = Resumed(TABLE)
    hand_off = resumed.log._hand_off
    monkeypatch.setattr(hand_off, "bars", lambda ordinal: True)
    resumed.log.on_unit(TransactionPart(LogPosition(HERE, 40), (rows_at(50),)), now_s=0.0)
    resumed.beside(TransactionPart(LogPosition(BESIDE, 10), (rows_at(20),)))
    monkeypatch.setattr(hand_off, "bars", lambda ordinal: False)
    resumed.log.on_event(ParkTable(Refusal(TABLE, 2, "of an earlier beginning", BESIDE, 0)), now_s=0.0)
    assert resumed.log.at_boundary
    resumed.beside(LogTransactions(LogPosition(BESIDE, 21), (rows_at(21),)))
    assert not resumed.log.at_boundary


def test_tables_whose_reading_is_given_up_keep_the_place_up_to_which_they_were_passed_on() -> None:
    resumed = Resumed(TABLE)
    resumed.beside(whole(20, 30))
    resumed.log.catch_up.give_up("a test says so.", CatchUpFallback.RESUME, now_s=0.0)
    parked = resumed.log.state().parked[TABLE]
    assert (parked.phase, parked.left, parked.incarnation) == (ParkedPhase.PARKED, LeftAt(3, 30), 8)
    assert f"Let it go on with: raycdc tables resume CONFIG {TABLE}" in parked.reason
    assert resumed.log.catch_up.reopens


def test_tables_of_which_an_epoch_has_a_part_of_a_transaction_do_not_go_on_from_before_it() -> None:
    resumed = Resumed(TABLE)
    resumed.beside(TransactionPart(LogPosition(BESIDE, 10), (rows_at(20),)))
    resumed.log.catch_up.give_up("a test says so.", CatchUpFallback.RESUME, now_s=0.0)
    parked = resumed.log.state().parked[TABLE]
    assert parked.left is None
    assert parked.reason.endswith(f"Read it anew with: raycdc tables resnapshot CONFIG {TABLE}")
    assert resumed.log.can_cut


def test_tables_whose_log_is_purged_begin_again_by_themselves_also_where_none_is_parked() -> None:
    resumed = Resumed(TABLE, parks=False)
    resumed.log.catch_up.give_up("it is purged.", CatchUpFallback.BY_ITSELF, now_s=0.0)
    parked = resumed.log.state().parked[TABLE]
    assert (parked.again, parked.left, parked.phase) == (True, None, ParkedPhase.PARKED)


def test_tables_do_not_join_by_a_unit_that_has_something_to_settle_itself() -> None:
    resumed = Resumed(TABLE)
    resumed.beside(whole(30, 50, notes=WAITING))
    assert (resumed.output.epoch, resumed.log.catch_up.reopens) == ([], False)


def test_the_log_goes_no_further_inside_a_transaction_beside_it_nor_before_tables_that_join_are_sealed() -> None:
    resumed = Resumed(TABLE)
    ready = [resumed.log.ready]
    for unit in (TransactionPart(LogPosition(BESIDE, 10), (rows_at(20),)), whole(21), whole(60)):
        resumed.beside(unit)
        ready.append(resumed.log.ready)
    assert ready == [True, False, True, False]
    assert resumed.log.catch_up.reopens


def test_a_transaction_that_nobody_waits_for_does_not_keep_the_epoch_open() -> None:
    resumed = Resumed(TABLE)
    resumed.beside(TransactionPart(LogPosition(BESIDE, 10), (rows_at(20),)))
    resumed.log.on_event(ParkTable(Refusal(TABLE, 3, "refused", BESIDE, 0)), now_s=0.0)
    assert (resumed.log.can_cut, resumed.log.catch_up.reopens) == (True, True)


def seal(resumed: Resumed) -> None:
    """The epoch is cut, and what waited for that is passed on."""
    resumed.log.report()
    resumed.output.cut(1)
    resumed.log.after_cut(now_s=0.0)


def dropped_at(ordinal: int) -> SchemaChange:
    return SchemaChange(LogPosition(BESIDE, ordinal), (DropTableUpdate(TABLE, (DropTableEvent(TABLE),)),))


def test_a_table_that_was_dropped_while_it_was_paused_ends_where_it_meets_the_log() -> None:
    """The log has passed over whatever took its name since."""
    resumed = Resumed(TABLE)
    resumed.beside(dropped_at(20))
    seal(resumed)
    resumed.beside(LogProgress(LogPosition(BESIDE, 60)))
    parked = resumed.log.state().parked[TABLE]
    assert (parked.phase, parked.again, parked.left) == (ParkedPhase.ENDED, False, None)


def test_a_table_that_was_dropped_and_made_again_while_it_was_paused_joins_the_log() -> None:
    resumed = Resumed(TABLE)
    resumed.beside(dropped_at(20))
    seal(resumed)
    resumed.beside(SchemaChange(LogPosition(BESIDE, 25), (AlterTableUpdate(TABLE, (), DOCUMENT),)))
    seal(resumed)
    resumed.beside(whole(30, 60))
    assert resumed.output.epoch == [30]
    assert TABLE in resumed.log.state().followed


def test_what_the_log_had_waiting_is_read_again_where_a_statement_behind_a_cut_ends_a_reading() -> None:
    """Both readings are opened anew at once then, and the log's own says again what waited for another table."""
    resumed = Resumed(TABLE)
    reading = AsOf("f", True, 2, SnapshotState("id", foldable=True, needs_null=False), at=40)
    state = replace(resumed.log.state(), followed={OTHER: reading})
    resumed.log = LogReader(
        StreamSplit(state, {"f": DOCUMENT}),
        key_order=Numbers(),
        output=resumed.output,
        send_event=lambda _: None,
        settings=LogReaderSettings(1000),
        now_s=0.0,
    )
    resumed.log.on_unit(LogTransactions(LogPosition(HERE, 60), (rows_at(60, table=OTHER),)), now_s=0.0)
    resumed.beside(whole(20, 20))
    gone = ParkingCause("renamed away", BESIDE, 0, phase=ParkedPhase.ENDED)
    resumed.beside(SchemaChange(LogPosition(BESIDE, 25), (ParkTableUpdate(TABLE, gone),)))
    seal(resumed)
    assert resumed.log.catch_up.reopens
    resumed.log.catch_up.begin()
    assert resumed.log.ready


def test_a_table_is_parked_while_a_statement_of_another_one_waits_for_the_cut() -> None:
    """The reading is opened anew behind that, and has the statement again."""
    resumed = Resumed(TABLE, OTHER)
    resumed.beside(whole(20, 20))
    resumed.beside(dropped_at(25))
    assert resumed.log.catch_up.awaits_cut
    resumed.log.on_event(ParkTable(Refusal(OTHER, 3, "refused", HERE, 0)), now_s=0.0)
    seal(resumed)
    assert resumed.log.catch_up.reopens
    assert isinstance(resumed.log.state().catching_up[TABLE], CatchingUp)
