"""Fetchers keep the reader's thread free, hold back at their limit, and surface errors where they can be handled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from raycdc.errors import SourceUnavailableError
from raycdc.source.reader.fetcher_manager import Sequential, SplitFetcherManager
from raycdc.source.reader.split_reader import RecordsWithSplitIds, SplitRecords, SplitsChange

PATIENCE_S = 120


@dataclass(frozen=True, slots=True)
class Split:
    split_id: str


class ScriptedReader:
    """Hands out items and raises errors as told; blocks when there is nothing to say."""

    def __init__(self, script: list[bytes | Exception]) -> None:
        self.script = script
        self.fetched = 0
        self.closed = threading.Event()
        self.woken = threading.Event()

    def handle_splits_changes(self, change: SplitsChange[Split]) -> None: ...

    def fetch(self) -> RecordsWithSplitIds[bytes] | None:
        if not self.script:
            self.woken.wait(PATIENCE_S)
            return None
        item = self.script.pop(0)
        self.fetched += 1
        if isinstance(item, Exception):
            raise item
        return RecordsWithSplitIds((SplitRecords("split", item),), bytes=len(item))

    def wake_up(self) -> None:
        self.woken.set()

    def close(self) -> None:
        self.closed.set()


class Harness:
    def __init__(self, script: list[bytes | Exception], *, queue_bytes_max: int = 100) -> None:
        self.reader = ScriptedReader(script)
        self.news = threading.Semaphore(0)
        self.fetcher: SplitFetcherManager[Split, bytes] = SplitFetcherManager(
            lambda: self.reader,
            threading=Sequential(),
            name="test",
            notify=self.news.release,
            queue_bytes_max=queue_bytes_max,
        )
        self.fetcher.add_splits((Split("split"),))

    def poll(self) -> bytes | None:
        fetch = self.fetcher.poll()
        return None if fetch is None else fetch.records[0].batch

    def wait(self) -> None:
        assert self.news.acquire(timeout=PATIENCE_S)


@pytest.fixture
def harnesses() -> Iterator[list[Harness]]:
    made: list[Harness] = []
    yield made
    for harness in made:
        harness.fetcher.close()
        assert harness.reader.closed.is_set()


def test_items_come_in_order_and_poll_never_blocks(harnesses: list[Harness]) -> None:
    harness = Harness([b"a", b"b"])
    harnesses.append(harness)
    harness.wait()
    harness.wait()
    assert [harness.poll() for _ in range(3)] == [b"a", b"b", None]


def test_a_full_queue_stops_fetching_until_something_was_taken(harnesses: list[Harness]) -> None:
    harness = Harness([b"x" * 60] * 5, queue_bytes_max=100)
    harnesses.append(harness)
    harness.wait()
    harness.wait()
    assert not harness.news.acquire(timeout=0.05)
    assert harness.reader.fetched == 2
    assert harness.poll() == b"x" * 60
    harness.wait()
    assert harness.reader.fetched == 3


def test_an_item_larger_than_the_limit_passes_alone(harnesses: list[Harness]) -> None:
    harness = Harness([b"x" * 500, b"y"], queue_bytes_max=100)
    harnesses.append(harness)
    harness.wait()
    assert harness.poll() == b"x" * 500
    harness.wait()
    assert harness.poll() == b"y"


def test_an_error_surfaces_after_everything_read_before_it(harnesses: list[Harness]) -> None:
    harness = Harness([b"a", SourceUnavailableError("gone")])
    harnesses.append(harness)
    harness.wait()
    harness.wait()
    assert harness.poll() == b"a"
    with pytest.raises(SourceUnavailableError, match="gone"):
        harness.poll()


def test_an_error_while_opening_surfaces_too() -> None:
    news = threading.Event()

    def refuse() -> ScriptedReader:
        raise SourceUnavailableError("refused")

    fetcher: SplitFetcherManager[Split, bytes] = SplitFetcherManager(
        refuse, threading=Sequential(), name="test", notify=news.set
    )
    fetcher.add_splits((Split("split"),))
    assert news.wait(PATIENCE_S)
    with pytest.raises(SourceUnavailableError, match="refused"):
        fetcher.poll()
    fetcher.close()


def test_closing_wakes_a_blocked_read_and_one_that_waits_for_room() -> None:
    blocked, full = Harness([]), Harness([b"x" * 200] * 2, queue_bytes_max=100)
    full.wait()
    for harness in (blocked, full):
        harness.fetcher.close()
        assert harness.reader.closed.is_set()
