"""Tables whose chunks are all read as of one place: what the log reader drops, keeps waiting and puts in its state."""

from __future__ import annotations

from typing import Any

import pytest

from raycdc.errors import ProtocolError
from raycdc.model import TableId
from raycdc.source.protocol.source_event import AddSplits, decode, encode
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.chunk_events import ChunkOpened, ChunkVoided, Fate
from raycdc.source.snapshot.handoff.as_of import AssignedChunk, Turns
from raycdc.source.snapshot.log.log_reader import LogReader, LogReaderSettings
from raycdc.source.snapshot.log.log_unit import DropTableUpdate, LogPosition, SchemaChange, TransactionPart
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.split import OpenedAt, SnapshotSplit, StreamSplit
from raycdc.state.opaque import Position
from tests.unit.source.test_log_reader import TABLE, Numbers, Reader

FIRST = SnapshotSplit(TABLE, 0, "id", None, 10, as_of=90)
LAST = SnapshotSplit(TABLE, 1, "id", 10, None, as_of=90)


def begun(*, ahead: int = 0) -> Reader:
    """A reader at 100 that has opened the first chunk, as of there or as of a place `ahead`."""
    reader = Reader()
    reader.open(SnapshotSplit(TABLE, 0, "id", None, 10, as_of=100 + ahead))
    (opened,) = reader.said
    assert isinstance(opened, ChunkOpened)
    assert opened.opened_at.as_of == 100 + ahead
    reader.said.clear()
    return reader


def restored(state: dict[str, Any]) -> Reader:
    reader = Reader()
    document = SchemaDocument.from_json({"fingerprint": "f1", "columns": [], "primary_key": ["id"]})
    reader.log = LogReader(
        StreamSplit(StreamState.from_json({**state, "parked": {}}), {"f1": document}),
        key_order=Numbers(),
        output=reader.output,
        send_event=reader.said.append,
        settings=LogReaderSettings(1000),
        now_s=0.0,
    )
    return reader


def test_the_place_is_that_of_the_log_reader_where_it_is_further() -> None:
    reader = Reader()
    reader.open(FIRST)
    (opened,) = reader.said
    assert isinstance(opened, ChunkOpened)
    assert opened.opened_at == OpenedAt(Position.from_json({"at": 100}), as_of=100)


def test_the_log_stands_before_what_comes_later_until_all_chunks_are_out() -> None:
    reader = begun(ahead=10)
    reader.rows(1, 20, at=105)
    reader.open(LAST)
    assert (reader.log.ready, reader.log.state().ordinal) == (True, 105)
    reader.rows(2, 21, at=111)
    assert (reader.log.ready, reader.log.state().ordinal, reader.output.epoch) == (False, 105, [])
    reader.close(FIRST, high=110)
    assert reader.output.epoch == ["chunk 0"]
    assert (reader.log.ready, reader.log.state().ordinal) == (False, 105)
    reader.close(LAST, high=110)
    # Whatever chunk their keys are in.
    assert reader.output.epoch == ["chunk 0", "chunk 1", 2, 21]
    assert (reader.log.state().ordinal, reader.log.ready) == (111, True)


def test_changes_up_to_the_place_are_in_the_chunks_though_these_came_first() -> None:
    reader = begun(ahead=10)
    reader.open(LAST)
    for chunk in (FIRST, LAST):
        reader.close(chunk, high=100)
    assert reader.output.epoch == ["chunk 0", "chunk 1"]
    state = reader.cut().state
    assert (state["version"], state["tables"][str(TABLE)]["passed"]) == (2, 110)
    for after in (reader, restored(state)):
        after.rows(1, at=108)
        after.rows(2, at=110)
        after.rows(3, at=111)
        assert after.output.epoch == [3]
        assert after.log.state().to_json()["version"] == 1


def test_a_unit_with_rows_behind_the_place_waits_as_a_whole() -> None:
    reader = begun()
    reader.rows(1, at=101, in_transaction=True)
    assert (reader.log.ready, reader.log.can_cut) == (False, True)
    reader.open(LAST)
    for chunk in (FIRST, LAST):
        reader.close(chunk, high=100)
    assert reader.output.epoch == ["chunk 0", "chunk 1", 1]
    assert not reader.log.can_cut


def test_a_transaction_that_begins_with_rows_of_nobody_waits_as_well() -> None:
    reader = begun()
    reader.log.on_unit(TransactionPart(LogPosition(Position.from_json({"at": 100}), 100)), now_s=0.0)
    assert (reader.log.ready, reader.log.can_cut) == (True, True)
    reader.rows(1, at=101, in_transaction=True)
    assert (reader.log.ready, reader.log.can_cut) == (False, True)


def test_a_state_has_the_place_and_no_position_behind_it() -> None:
    reader = begun(ahead=10)
    reader.rows(1, at=111)
    reader.close(FIRST, high=110)
    state = reader.cut().state
    snapshot = state["tables"][str(TABLE)]["snapshot"]
    assert (state["version"], state["ordinal"]) == (2, 100)
    assert (snapshot["closed"], snapshot["as_of"]) == ([[None, 10]], {"at": 110, "lost": None})
    again = restored(state)
    again.rows(5, at=109)
    again.rows(6, at=112)
    # Planned anew, it would be another place.
    again.open(SnapshotSplit(TABLE, 1, "id", 10, None, as_of=500))
    (opened,) = again.said
    assert isinstance(opened, ChunkOpened)
    assert opened.opened_at.as_of == 110
    again.close(LAST, high=110)
    assert again.output.epoch == ["chunk 1", 6]


def test_a_schema_change_before_the_place_comes_before_the_chunks() -> None:
    reader = begun(ahead=10)
    reader.open(LAST)
    reader.close(LAST, high=110)
    assert reader.output.epoch == []
    reader.kinds()
    reader.alter(at=105)
    reader.cut()
    assert reader.kinds() == [ChunkVoided, ChunkVoided]


def test_a_table_that_is_another_one_is_left_to_the_log() -> None:
    reader = begun()
    reader.open(LAST)
    reader.rows(1, at=101)
    reader.said.clear()
    reader.misfit(FIRST, high=120, reason="dropped")
    reader.close(LAST, high=100)
    assert [type(event) for event in reader.said] == [ChunkVoided, ChunkVoided]
    reader.said.clear()
    # The log goes on without its rows; a chunk waits for what it says.
    assert (reader.log.state().ordinal, reader.output.epoch) == (101, [])
    assert reader.log.state().to_json()["tables"][str(TABLE)]["snapshot"]["as_of"] == {"at": 100, "lost": 120}
    again = SnapshotSplit(TABLE, 0, "id", None, 10, attempt=1, as_of=90)
    reader.open(again)
    reader.rows(2, at=119)
    reader.log.on_time(now_s=1.0)
    assert reader.said == []
    reader.cut()
    reader.log.on_unit(
        SchemaChange(LogPosition(Position.from_json({"at": 120}), 120), (DropTableUpdate(TABLE),)), now_s=1.0
    )
    reader.log.on_time(now_s=1.0)
    (voided,) = reader.said
    assert isinstance(voided, ChunkVoided)
    assert voided.fate is Fate.TABLE_DROPPED


def test_a_table_that_the_log_says_nothing_of_is_parked() -> None:
    reader = begun()
    reader.misfit(FIRST, high=120, reason="dropped")
    reader.rows(2, at=120)
    reader.said.clear()
    reader.open(SnapshotSplit(TABLE, 0, "id", None, 10, attempt=1, as_of=90))
    (voided,) = reader.said
    assert isinstance(voided, ChunkVoided)
    assert voided.fate is Fate.NEXT_MANIFEST
    assert f"tables resnapshot CONFIG {TABLE}" in reader.log.state().to_json()["parked"][str(TABLE)]["reason"]


def test_a_reader_that_does_not_know_such_tables_refuses_the_state() -> None:
    with pytest.raises(ProtocolError, match="version 3, this reader knows 1 and 2"):
        restored({"version": 3})


def test_a_split_keeps_its_place_on_the_wire() -> None:
    assert decode(encode(AddSplits((FIRST,)))) == AddSplits((FIRST,))
    assert "as_of" not in SnapshotSplit(TABLE, 0, "id", None, 10).to_json()


OTHER = TableId("shop", "other")
PLAIN = [SnapshotSplit(OTHER, number, "id", None, None) for number in range(2)]


def unpublished(out: list[AssignedChunk]) -> set[TableId]:
    return {chunk.split.table for chunk in out if not chunk.published}


def test_chunks_of_such_a_table_are_given_out_alone_and_all_of_them() -> None:
    turns = Turns()
    out = [AssignedChunk(PLAIN[0], 1)]
    pending = [PLAIN[1], FIRST, LAST]
    # What is out already must be published first: it might wait for a log that stands.
    assert turns.next_of(pending, unpublished(out), ()) is None
    out[0].published = True
    assert turns.next_of(pending, unpublished(out), ()) is FIRST
    out.append(AssignedChunk(FIRST, 1))
    assert turns.next_of([PLAIN[1], LAST], unpublished(out), ()) is LAST
    out.append(AssignedChunk(LAST, 1))
    assert turns.next_of([PLAIN[1]], unpublished(out), ()) is None
    out[1].published = out[2].published = True
    assert turns.next_of([PLAIN[1]], unpublished(out), ()) is PLAIN[1]


def test_one_that_was_begun_comes_before_another_and_one_that_is_over_is_in_nobodys_way() -> None:
    turns = Turns()
    other = SnapshotSplit(OTHER, 0, "id", None, None, as_of=90)
    assert turns.next_of([FIRST], [], ()) is FIRST
    assert turns.next_of([other, LAST], [], ()) is LAST
    assert turns.next_of([other, LAST], [TABLE], {TABLE}) is None
    assert turns.next_of([other, LAST], [], {TABLE}) is other
    assert turns.next_of([LAST], [], {TABLE}) is None
