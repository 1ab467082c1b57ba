"""Requests beside the state: what is asked for automatically does not undo what the user asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raycdc.checkpoint.manifest import Manifest
from raycdc.checkpoint.store import CheckpointStore
from raycdc.source.parking import PAUSE, REMOVE, RESNAPSHOT
from raycdc.source.split import STREAM_SPLIT_ID
from raycdc.source.table_requests import ask, ask_for_lost_rows, ask_to_begin_again, requests_of

A, B, C = "shop.a", "shop.b", "shop.c"


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """A pipeline that follows three tables and stands still."""
    store = CheckpointStore(tmp_path, pipeline="shop")
    tables: dict[str, Any] = {name: {"incarnation": 0} for name in (A, B, C)}
    stream = {"position": {}, "ordinal": 9, "changes": 4, "tables": tables, "parked": {}}
    generation = store.next_generation()
    store.write_manifest(Manifest(1, generation, 0, from_splits={}, to_splits={STREAM_SPLIT_ID: stream}, enumerator={}))
    return store


def last(store: CheckpointStore) -> Manifest:
    found = store.last_manifest()
    assert found is not None
    return found


def test_a_table_that_is_to_leave_is_not_read_again_as_its_log_was_purged(store: CheckpointStore) -> None:
    ask(store, [A], REMOVE)
    ask(store, [B], PAUSE)
    ask_to_begin_again(store, last(store), {"place": 1}, 77, [A, B, C])
    asked = requests_of(store)
    assert asked.tables == {A: REMOVE, B: PAUSE, C: RESNAPSHOT}
    assert asked.start == ({"place": 1}, 77)


def test_a_table_that_is_to_leave_is_not_read_again_as_its_rows_are_lost(store: CheckpointStore) -> None:
    ask(store, [A], REMOVE)
    ask_for_lost_rows(store, last(store), [A, B])
    assert requests_of(store).tables == {A: REMOVE, B: RESNAPSHOT}


def test_the_user_may_change_their_mind(store: CheckpointStore) -> None:
    ask(store, [A], REMOVE)
    ask(store, [A], RESNAPSHOT)
    assert requests_of(store).tables == {A: RESNAPSHOT}
