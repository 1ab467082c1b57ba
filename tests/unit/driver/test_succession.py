"""A start, and a standby, that wait for a state say for whom or what, and can be stopped."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from raycdc.core.stopping import StoppedWaitingError, StopRequest
from raycdc.driver.leadership import take
from raycdc.errors import StateError
from raycdc.observe.events import RunEvent, StandbyWaiting, Warned, event_to_json
from raycdc.observe.status.progress import ProgressReporter
from raycdc.state.drivers.heartbeat import SILENT_S
from raycdc.state.drivers.holder import Holder
from raycdc.state.store import CheckpointStore
from raycdc.storage.api import StoreError

ELSEWHERE = Holder("db7", "another kernel", 42)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """A state whose driver, elsewhere, gave one sign of life."""
    store = CheckpointStore(tmp_path, pipeline="shop")
    store.generations.show(store.generations.next(), ELSEWHERE)
    return store


def heard(store: CheckpointStore, *, standby: bool) -> list[RunEvent]:
    """The events of a start that is stopped when it waits for the driver that it found."""
    events: list[RunEvent] = []
    stopping = StopRequest()

    def hear(event: RunEvent) -> None:
        events.append(event)
        if isinstance(event, StandbyWaiting):
            stopping.ask()

    with ExitStack() as stack, pytest.raises(StoppedWaitingError):
        take(stack, store, ProgressReporter({"test": hear}), standby=standby, stopping=stopping)
    return events


def test_a_start_tells_whom_it_looks_for_and_leaves_the_state_when_it_is_stopped(store: CheckpointStore) -> None:
    events = heard(store, standby=False)
    assert events == [StandbyWaiting("process 42 on db7", str(store.location), SILENT_S)]
    assert str(events[0]) == (
        f"looking for up to 15 s whether process 42 on db7, which had the state in {store.location} last and did not "
        "say that it ended, gives a sign of life"
    )
    assert event_to_json(events[0])["at_most_s"] == SILENT_S
    assert store.lock.holder() == ""


def test_a_standby_waits_for_a_store_that_is_away(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = store.generations.newest

    def away() -> int:
        monkeypatch.setattr(store.generations, "newest", newest)
        raise StateError("s3://shop/state cannot be read: timed out") from StoreError("timed out")

    monkeypatch.setattr(store.generations, "newest", away)
    assert heard(store, standby=True) == [
        Warned(
            "Waiting for the state: s3://shop/state cannot be read: timed out. It is tried again for 5 minutes; "
            "check that the storage answers."
        ),
        StandbyWaiting("process 42 on db7", str(store.location)),
    ]
