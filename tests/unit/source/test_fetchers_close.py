"""Closing fetchers: nothing is fetched behind it, a log that connects meanwhile hears of it, and nobody waits twice."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest

from raycdc.source.reader import fetcher_manager
from raycdc.source.reader.fetcher_manager import MultiThreaded, Sequential, SplitFetcherManager
from raycdc.source.reader.split_reader import RecordsWithSplitIds, SplitsAddition, SplitsChange
from raycdc.source.snapshot.log.fetched_log import StreamSplitReader

PATIENCE_S = 120


@dataclass(frozen=True, slots=True)
class Split:
    split_id: str


class Log:
    """A log of which nothing ever comes."""

    def __init__(self) -> None:
        self.woken = threading.Event()
        self.fetches = 0
        self.is_closed = False

    def fetch(self) -> None:
        self.fetches += 1
        self.woken.wait(PATIENCE_S)

    def wake_up(self) -> None:
        self.woken.set()

    def close(self) -> None:
        self.is_closed = True


def test_a_log_that_connects_while_its_reader_is_woken_is_woken_once_it_is_there() -> None:
    log: Any = Log()
    split: Any = Split("stream")

    def open_log(_: object) -> Any:
        reader.wake_up()
        return log

    reader = StreamSplitReader(open_log)
    reader.handle_splits_changes(SplitsAddition((split,)))
    assert log.woken.is_set()


def test_nothing_is_fetched_of_a_log_that_connects_while_it_is_closed() -> None:
    log: Any = Log()
    split: Any = Split("stream")
    connecting, woken = threading.Event(), threading.Event()

    class Reader(StreamSplitReader):
        def wake_up(self) -> None:
            super().wake_up()
            woken.set()

    def open_log(_: object) -> Any:
        connecting.set()
        assert woken.wait(PATIENCE_S)  # Closing wakes, and the connection is there only then.
        return log

    manager: SplitFetcherManager[Any, Any] = SplitFetcherManager(
        lambda: Reader(open_log), threading=Sequential(), name="log", notify=lambda: None
    )
    manager.add_splits((split,))
    assert connecting.wait(PATIENCE_S)
    manager.close()
    assert log.is_closed
    assert log.fetches == 0


class Stubborn:
    """Its fetch ends only once `Site.readers` of them were woken."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def handle_splits_changes(self, change: SplitsChange[Split]) -> None: ...

    def fetch(self) -> RecordsWithSplitIds[bytes] | None:
        self._site.blocked.release()
        assert self._site.all_woken.wait(PATIENCE_S)
        return None

    def wake_up(self) -> None:
        self._site.woken.append(self)
        if len(self._site.woken) == self._site.readers:
            self._site.all_woken.set()

    def close(self) -> None:
        self._site.closed.append(self)


class Site:
    def __init__(self, readers: int) -> None:
        self.readers = readers
        self.blocked = threading.Semaphore(0)
        self.all_woken = threading.Event()
        self.woken: list[Stubborn] = []
        self.closed: list[Stubborn] = []

    def manager(self) -> SplitFetcherManager[Split, bytes]:
        manager: SplitFetcherManager[Split, bytes] = SplitFetcherManager(
            lambda: Stubborn(self), threading=MultiThreaded(3), name="test", notify=lambda: None
        )
        manager.add_splits(tuple(map(Split, "abc")))
        for _ in range(3):
            assert self.blocked.acquire(timeout=PATIENCE_S)
        return manager


def test_all_fetchers_are_woken_before_one_is_waited_for() -> None:
    site = Site(readers=3)
    site.manager().close()
    # With one woken and waited for after the other, the first would have waited for its time limit.
    assert len(site.closed) == 3


def test_fetchers_that_do_not_end_have_one_time_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(readers=4)  # One more than there are, so none ends by being woken.
    manager = site.manager()
    limits: list[float] = []
    monkeypatch.setattr(fetcher_manager, "CLOSE_TIMEOUT_S", 0.1)
    for fetcher in manager._fetchers:
        monkeypatch.setattr(fetcher, "join", lambda *, until_s: limits.append(until_s))
    manager.close()
    assert len(limits) == 3
    assert len(set(limits)) == 1
    site.all_woken.set()
