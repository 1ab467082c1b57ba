"""Requests act once, and a table begins again only where what was seen of it holds."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from raycdc.errors import StateError
from raycdc.model import TableId
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.log.log_unit import (
    AlterTableUpdate,
    BeginTableUpdate,
    LogPosition,
    SchemaChange,
    updates_of,
)
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.tables.parked_tables import ParkedTables, ParkingSetup
from raycdc.source.tables.parking import (
    LogStart,
    Refusal,
    RefusedTables,
    Requests,
    TableRequest,
    with_refusals,
    with_requests,
)
from raycdc.source.tables.resnapshots import TableProbes, without_chunks
from raycdc.source.tables.table_life import Live, ParkedPhase, ParkingCause
from raycdc.state.opaque import NO_NOTES, LogNotes, Position

ORDERS, NEW = TableId("shop", "orders"), TableId("shop", "new")


def state(**tables: int) -> StreamState:
    """A stream's state of followed tables with their incarnations."""
    followed = {TableId("shop", name): Live("f", announced=True, incarnation=n) for name, n in tables.items()}
    position = Position.from_json({"file": "binlog.000002", "pos": 4})
    return StreamState(position, 9, followed, changes=max(tables.values()), notes=LogNotes.from_json({"shadows": {}}))


def test_a_request_parks_its_table_once_and_leaves_the_others() -> None:
    before = state(orders=0, items=3)
    requests = Requests(3, {"shop.orders": TableRequest.RESNAPSHOT, "shop.new": TableRequest.RESNAPSHOT})
    after = with_requests(before, requests)
    assert list(after.followed) == [TableId("shop", "items")]
    assert [(table, parked.again, parked.announced) for table, parked in sorted(after.parked.items())] == [
        (NEW, True, False),
        (ORDERS, True, True),
    ]
    assert after.notes == before.notes
    assert with_requests(after, requests) is after


def test_a_table_that_was_made_since_is_awaited_and_a_gap_ends_that() -> None:
    after = with_requests(state(orders=0), Requests(0, {"shop.new": TableRequest.FOLLOW}))
    new = after.parked[NEW]
    assert (new.again, new.awaited, new.schema, new.phase) == (True, True, None, ParkedPhase.PARKED)
    assert StreamState.from_json(after.to_json()) == after
    assert (
        "awaited"
        not in state(orders=0).park(ORDERS, ParkingCause("why", after.position, 0), number=1).parked[ORDERS].to_json()
    )
    elsewhere = after.elsewhere(after.position, 9).parked[NEW]
    assert (elsewhere.again, elsewhere.awaited) == (True, False)


def test_a_table_that_is_known_is_read_again_whatever_made_it() -> None:
    after = with_requests(state(orders=0), Requests(0, {"shop.orders": TableRequest.FOLLOW}))
    assert (after.parked[ORDERS].again, after.parked[ORDERS].awaited) == (True, False)


def test_a_paused_table_does_not_begin_again_by_itself() -> None:
    after = with_requests(state(orders=0), Requests(0, {"shop.orders": TableRequest.PAUSE}))
    assert (after.parked[ORDERS].again, after.parked[ORDERS].phase) == (False, ParkedPhase.PAUSED)


def test_a_log_read_from_elsewhere_forgets_what_was_noted_of_it() -> None:
    start = Position.from_json({"file": "binlog.000009", "pos": 4})
    requests = Requests(0, {"shop.orders": TableRequest.RESNAPSHOT}, LogStart(start, 99))
    after = with_requests(state(orders=0), requests)
    assert (after.position, after.ordinal, after.notes) == (start, 99, NO_NOTES)
    assert with_requests(after, requests) is after


@dataclass(frozen=True, slots=True)
class Look:
    ordinal: int


def test_a_table_that_a_statement_changed_after_it_was_looked_at_is_looked_at_again() -> None:
    places = iter((10, 20))
    looks = TableProbes(lambda _: Look(next(places)), [ORDERS])
    assert looks.ready(5) == []
    looks.invalidate(ORDERS, 15)
    assert looks.ready(15) == []
    looks.invalidate(ORDERS, 18)
    assert looks.ready(20) == [(ORDERS, Look(20))]
    assert looks.ready(21) == []


def test_a_table_that_is_gone_is_said_once() -> None:
    looks: TableProbes[Look] = TableProbes(lambda _: None)
    looks.want(NEW)
    assert looks.ready(1) == [(NEW, None)]
    assert looks.ready(2) == []


def test_a_refusal_acts_on_the_beginning_that_was_refused_and_on_those_before_it() -> None:
    refusal = Refusal(ORDERS, 2, "the target says no", Position.from_json({"at": 1}), 0)
    live = [Live("f", announced=True, incarnation=number) for number in (1, 2, 3)]
    assert [refusal.acts_on(state) for state in live] == [True, True, False]
    parked = with_refusals(state(orders=2), [refusal])
    assert not refusal.acts_on(parked[ORDERS])
    assert with_refusals(parked, [refusal]) is parked


def test_a_target_that_refused_an_epoch_was_told_of_its_table_also_where_that_was_dropped_since() -> None:
    """Else a table of the name that comes later is taken for a new one, and its target is not emptied."""
    refusal = Refusal(NEW, 2, "the target says no", Position.from_json({"at": 1}), 0)
    asked = Requests(2, {"shop.new": TableRequest.RESNAPSHOT})
    refused = with_refusals(state(orders=2), [refusal])
    for after in (refused, with_requests(state(orders=2), asked, refused=[NEW])):
        parked = after.parked[NEW]
        assert (parked.schema, parked.announced) == (None, True)
        assert not ParkedTables(ParkingSetup({NEW: parked}), followed=()).awaits(NEW, certain=True)
    unknown = with_requests(state(orders=2), asked).parked[NEW]
    assert ParkedTables(ParkingSetup({NEW: unknown}), followed=()).awaits(NEW, certain=True)


def test_a_request_that_this_version_does_not_know_is_named_and_not_carried_out() -> None:
    asked = Requests(0, {"shop.orders": TableRequest.PAUSE}).to_json()
    assert asked["tables"] == {"shop.orders": "pause"}
    with pytest.raises(StateError, match="asks for 'rewind' of shop"):
        Requests.from_json({**asked, "tables": {"shop.orders": "rewind"}})


def test_a_table_that_was_refused_is_heard_of_from_where_it_begins_again() -> None:
    refused = RefusedTables()
    refused.add(ORDERS)
    place = LogPosition(Position.from_json({"at": 1}), 1)
    document = SchemaDocument.from_json({"fingerprint": "f", "columns": [], "primary_key": ["id"]})
    altered = SchemaChange(place, (AlterTableUpdate(ORDERS, (), document),))
    begun = SchemaChange(place, (BeginTableUpdate(ORDERS, (), document, without_chunks()),))
    heard = [updates_of(refused.without(unit)) for unit in (altered, begun, altered)]
    assert heard == [(), begun.updates, altered.updates]
