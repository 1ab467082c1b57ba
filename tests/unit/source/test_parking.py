"""Requests act once, and a table begins again only where what was seen of it holds."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from raycdc.checkpoint.opaque import NO_NOTES, LogNotes, Position
from raycdc.errors import StateError
from raycdc.model import TableId
from raycdc.source.new_beginnings import TableLooks
from raycdc.source.parking import LogStart, Refusal, Requests, TableRequest, with_refusals, with_requests
from raycdc.source.snapshot.stream_state import StreamState
from raycdc.source.table_life import Live, Phase

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


def test_a_paused_table_does_not_begin_again_by_itself() -> None:
    after = with_requests(state(orders=0), Requests(0, {"shop.orders": TableRequest.PAUSE}))
    assert (after.parked[ORDERS].again, after.parked[ORDERS].phase) == (False, Phase.PAUSED)


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
    looks = TableLooks(lambda _: Look(next(places)), [ORDERS])
    assert looks.ready(5) == []
    looks.touched(ORDERS, 15)
    assert looks.ready(15) == []
    looks.touched(ORDERS, 18)
    assert looks.ready(20) == [(ORDERS, Look(20))]
    assert looks.ready(21) == []


def test_a_table_that_is_gone_is_said_once() -> None:
    looks: TableLooks[Look] = TableLooks(lambda _: None)
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


def test_a_request_that_this_version_does_not_know_is_named_and_not_carried_out() -> None:
    asked = Requests(0, {"shop.orders": TableRequest.PAUSE}).to_json()
    assert asked["tables"] == {"shop.orders": "pause"}
    with pytest.raises(StateError, match="asks for 'rewind' of shop"):
        Requests.from_json({**asked, "tables": {"shop.orders": "rewind"}})
