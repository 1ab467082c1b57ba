"""A start that cannot know whether another driver still has the state says what it looks for, and can be stopped."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from raycdc.checkpoint.pulse import SILENT_S, Holder
from raycdc.checkpoint.store import CheckpointStore
from raycdc.driver.succession import StoppedWaitingError, take
from raycdc.progress import ProgressReporter
from raycdc.run_events import RunEvent, Waiting, event_to_json

ELSEWHERE = Holder("db7", "another kernel", 42)


def test_a_start_tells_whom_it_looks_for_and_leaves_the_state_when_it_is_stopped(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, pipeline="shop")
    store.generations.show(store.generations.next(), ELSEWHERE)
    events: list[RunEvent] = []
    with ExitStack() as stack, pytest.raises(StoppedWaitingError):
        take(stack, store, ProgressReporter(events.append, driver_pid=1), standby=False, stopped=lambda: bool(events))
    assert events == [Waiting("process 42 on db7", str(tmp_path), SILENT_S)]
    assert str(events[0]) == (
        f"looking for up to 15 s whether process 42 on db7, which had the state in {tmp_path} last and did not say "
        "that it ended, gives a sign of life"
    )
    assert event_to_json(events[0])["at_most_s"] == SILENT_S
    assert store.lock.holder() == ""
