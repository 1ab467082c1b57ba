"""Requests beside the state: what is asked for automatically does not undo what the user asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from raycdc.errors import SchemaError
from raycdc.model import TableId
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.split import STREAM_SPLIT_ID
from raycdc.source.tables.parking import CommandDecision, LogStart, Requests, TableRequest, with_requests
from raycdc.source.tables.table_commands import TableAction
from raycdc.source.tables.table_life import Live, Parked, ParkedPhase
from raycdc.source.tables.table_requests import (
    PARKED_NAMED,
    PARKED_SHOWN,
    ask,
    ask_for_lost_rows,
    complain_of_parked,
    complete_requests,
    each_table,
    request_resnapshots,
    requests_of,
    stream_state,
)
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.opaque import EnumeratorState, Position
from raycdc.state.store import CheckpointStore, CommitRecord

NO_STATE = EnumeratorState.from_json({})
A, B, C = "shop.a", "shop.b", "shop.c"


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """A pipeline that follows three tables and stands still."""
    store = CheckpointStore(tmp_path, pipeline="shop")
    followed = {TableId.parse(name): Live("x", announced=True, incarnation=0) for name in (A, B, C)}
    stream = StreamState(Position.unknown(), 9, followed, changes=4).sealed()
    generation = store.generations.next()
    store.write_manifest(
        Manifest(1, generation, 0, from_splits={}, to_splits={STREAM_SPLIT_ID: stream}, enumerator=NO_STATE)
    )
    return store


def last(store: CheckpointStore) -> Manifest:
    found = store.last_manifest()
    assert found is not None
    return found


def test_a_table_that_is_to_leave_is_not_read_again_as_its_log_was_purged(store: CheckpointStore) -> None:
    ask(store, [A], TableRequest.REMOVE)
    ask(store, [B], TableRequest.PAUSE)
    start = LogStart(Position.from_json({"place": 1}), 77)
    request_resnapshots(store, last(store), start, [A, B, C])
    asked = requests_of(store)
    assert asked.tables == {A: TableRequest.REMOVE, B: TableRequest.PAUSE, C: TableRequest.RESNAPSHOT}
    assert asked.start == start


def test_a_table_that_is_to_leave_is_not_read_again_as_its_rows_are_lost(store: CheckpointStore) -> None:
    ask(store, [A], TableRequest.REMOVE)
    ask_for_lost_rows(store, last(store), [A, B])
    assert requests_of(store).tables == {A: TableRequest.REMOVE, B: TableRequest.RESNAPSHOT}


def test_the_user_may_change_their_mind(store: CheckpointStore) -> None:
    ask(store, [A], TableRequest.REMOVE)
    ask(store, [A], TableRequest.RESNAPSHOT)
    assert requests_of(store).tables == {A: TableRequest.RESNAPSHOT}


def test_a_request_that_is_done_does_not_act_on_a_table_that_is_dropped_and_made_again(store: CheckpointStore) -> None:
    ask(store, [A, B], TableRequest.RESNAPSHOT)
    before = stream_state(last(store))
    complete_requests(store, 1)
    assert requests_of(store).tables == {A: TableRequest.RESNAPSHOT, B: TableRequest.RESNAPSHOT}
    # The first one has begun again, the second is still to.
    stream = with_requests(before, replace(requests_of(store), tables={A: TableRequest.RESNAPSHOT}))
    seal(store, stream)
    assert requests_of(store).acts_on(B, stream)
    complete_requests(store, 2)
    assert requests_of(store).tables == {B: TableRequest.RESNAPSHOT}
    # As a source knows one of a later CREATE TABLE.
    made_again = {TableId.parse(A): Live("f", announced=False, incarnation=0)}
    seal(store, replace(stream, followed={**stream.followed, **made_again}, parked={}))
    assert not requests_of(store).acts_on(A, stream_state(last(store)))


def seal(store: CheckpointStore, stream: StreamState) -> None:
    before, after = last(store), {STREAM_SPLIT_ID: stream.sealed()}
    store.write_manifest(Manifest(before.epoch + 1, before.generation, 0, before.to_splits, after, enumerator=NO_STATE))


def test_a_request_that_no_committed_epoch_has_carried_out_is_kept_beside_a_later_one(store: CheckpointStore) -> None:
    """The sealed epoch in which its table began again may lose its segments and be dropped."""
    store.write_commit(CommitRecord(1, store.generations.newest(), 0, {}))
    ask(store, [A], TableRequest.RESNAPSHOT)
    seal(store, with_requests(stream_state(last(store)), requests_of(store)))
    ask(store, [B], TableRequest.RESNAPSHOT)
    store.drop_after(1)
    requests, state = requests_of(store), stream_state(last(store))
    assert [name for name in (A, B, C) if requests.acts_on(name, state)] == [A, B]


def test_a_name_that_no_table_was_found_under_is_listed_only_while_a_command_about_it_is_remembered() -> None:
    """A statement may rename what is not there; a table that had rows is listed for as long as the state knows it."""
    nothing = Parked(None, False, 1, ParkedPhase.ENDED, "there is no table", Position.unknown(), 0)
    states = {A: nothing, B: replace(nothing, schema="x"), C: replace(nothing, again=True)}
    parked = {TableId.parse(name): state for name, state in states.items()}
    state = StreamState(Position.unknown(), 9, {}, parked=parked, changes=4)

    def listed(requests: Requests) -> list[str]:
        return [name for name, _, _ in each_table(state, requests)]

    assert listed(Requests()) == [B, C]
    asked = CommandDecision("1", TableAction.ADD, A, (A,), "it is looked for")
    assert listed(Requests(commands=(asked,))) == [A, B, C]


@pytest.mark.parametrize("count", [1, 2, PARKED_SHOWN, PARKED_SHOWN + 1, PARKED_NAMED + 3])
def test_the_end_of_a_run_names_all_parked_tables_up_to_some_screens_of_them(count: int) -> None:
    names = [f"shop.t{number:04}" for number in range(count)]
    parked = {
        TableId.parse(name): Parked("x", True, 1, ParkedPhase.PARKED, f"why {name}", Position(1), 0) for name in names
    }
    stream = StreamState(Position.unknown(), 9, parked=parked, changes=4).sealed()
    manifest = Manifest(1, 1, 0, from_splits={}, to_splits={STREAM_SPLIT_ID: stream}, enumerator=NO_STATE)
    with pytest.raises(SchemaError) as raised:
        complain_of_parked(manifest)
    first, *reasons, last = str(raised.value).splitlines()
    assert [name for name in names if name in first] == names[:PARKED_NAMED]
    assert (" and 3 more: parked" in first) == (count > PARKED_NAMED)
    told = [f"{name}: why {name}" for name in names[:PARKED_SHOWN]]
    more = [f"… `raycdc tables list CONFIG` has the reasons of the other {count - PARKED_SHOWN}, too."]
    assert reasons == told + (more if count > PARKED_SHOWN else [])
    assert f"raycdc tables resnapshot CONFIG {names[0] if count == 1 else 'TABLE, once for each'};" in last
