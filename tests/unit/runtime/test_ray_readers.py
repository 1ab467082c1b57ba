"""Ray is asked about the calls of all readers at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raycdc.runtime.ray.ray_readers import ANSWERED_S, FinishedCalls, RayReader
from raycdc.runtime.reader.reader_worker import ReaderIdentity


def test_one_question_is_for_all_readers_whoever_asks() -> None:
    asked: list[list[str]] = []
    clock = [0.0]

    def wait(calls: list[Any]) -> Iterable[Any]:
        asked.append(sorted(calls))
        return [call for call in calls if call == "where-1"]

    answered = FinishedCalls(wait=wait, clock=lambda: clock[0])
    readers = [RayReader(ReaderIdentity(n, 1, 1), None, f"where-{n}", answered) for n in range(3)]
    assert [reader.ended() for reader in readers[:1]] == [None]
    assert ["where-0" in answered, "where-1" in answered, "where-2" in answered] == [False, True, False]
    assert asked == [["where-0", "where-1", "where-2"]]

    del readers[2:]
    readers[0].begin(lambda *_: "run-0", None)
    clock[0] += ANSWERED_S
    assert readers[0].ended() is None
    assert asked[1:] == [["run-0", "where-1"]]
