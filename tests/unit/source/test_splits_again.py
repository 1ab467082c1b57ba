"""Splits that come back, and several of one name: nothing is left out, read twice, out of order, or taken for another.

The reader of these tests stops in its fetch until the test lets it go, so that everything said meanwhile is said while
a fetch is under way.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from raycdc.errors import OutOfOrderError
from raycdc.source.reader.fetcher_manager import (
    Multiplexed,
    MultiThreaded,
    Sequential,
    SplitFetcherManager,
    ThreadingModel,
)
from raycdc.source.reader.split_reader import (
    RecordsWithSplitIds,
    SplitRecords,
    SplitsAddition,
    SplitsChange,
    SplitsPause,
    SplitsRemoval,
    check_begin,
)

PATIENCE_S = 120


@dataclass(frozen=True, slots=True)
class Range:
    """A part of the split that begins at `begin`; `unending` ones are read until they are removed."""

    split_id: str
    begin: int = 0
    unending: bool = False


class Site:
    """The readers of one manager, what they were told, and what happens before each of their fetches."""

    def __init__(self) -> None:
        self.news = threading.Semaphore(0)
        self.told: list[SplitsChange[Range]] = []
        #: How often a reader was asked to fetch while it had nothing.
        self.idle_fetches = 0
        self.before_fetch: Callable[[Range], object] = lambda _: None

    def open_reader(self) -> Reader:
        return Reader(self)


class Reader:
    """Each fetch reads one range to its end, after `Site.before_fetch` of it."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._ranges: deque[Range] = deque()

    def handle_splits_changes(self, change: SplitsChange[Range]) -> None:
        self._site.told.append(change)
        match change:
            case SplitsAddition(splits):
                self._ranges.extend(splits)
            case SplitsRemoval(split_ids):
                self._ranges = deque(part for part in self._ranges if part.split_id not in split_ids)
            case SplitsPause():
                pass

    def fetch(self) -> RecordsWithSplitIds[int] | None:
        if not self._ranges:
            self._site.idle_fetches += 1
            return None
        part = self._ranges.popleft()
        self._site.before_fetch(part)
        if part.unending:
            self._ranges.append(part)
        finished = () if part.unending else (part.split_id,)
        return RecordsWithSplitIds((SplitRecords(part.split_id, part.begin),), finished, bytes=1)

    def wake_up(self) -> None: ...

    def close(self) -> None: ...


class Gate:
    """Stops fetches of the range that begins at `begin`, and tells that one has come."""

    def __init__(self, begin: int = 0) -> None:
        self._begin = begin
        self._reached = threading.Event()
        self._open = threading.Event()

    def __call__(self, part: Range) -> None:
        if part.begin == self._begin:
            self._reached.set()
            assert self._open.wait(PATIENCE_S)

    def wait(self) -> None:
        assert self._reached.wait(PATIENCE_S)

    def open(self) -> None:
        self._open.set()


Manager = SplitFetcherManager[Range, int]


@contextmanager
def manager_of(
    site: Site, model: ThreadingModel, *, open_reader: Callable[[], Reader] | None = None
) -> Iterator[Manager]:
    manager: Manager = SplitFetcherManager(
        open_reader or site.open_reader, threading=model, name="test", notify=site.news.release
    )
    yield manager
    manager.close()


def fetched(site: Site, manager: Manager, count: int) -> list[SplitRecords[int]]:
    parts: list[SplitRecords[int]] = []
    while len(parts) < count:
        assert site.news.acquire(timeout=PATIENCE_S)
        fetch = manager.poll()
        assert fetch is not None
        parts += fetch.records
    return parts


@pytest.mark.parametrize("model", [Sequential(), Multiplexed(), MultiThreaded(2)])
@pytest.mark.parametrize("other_is_told", [False, True])
def test_a_split_that_comes_back_while_its_last_fetch_runs_is_read_again(
    model: ThreadingModel, other_is_told: bool
) -> None:
    site = Site()
    site.before_fetch = gate = Gate()
    with manager_of(site, model) as manager:
        manager.add_splits((Range("a"),), addition=1)
        gate.wait()
        manager.remove_splits(["a"])
        manager.add_splits((Range("a"),), addition=2)
        if other_is_told:
            manager.remove_splits(["b"])
            manager.pause_or_resume_splits(pause=["b"])
        gate.open()
        assert [part.addition for part in fetched(site, manager, 2)] == [1, 2]
        assert site.idle_fetches == 0


def test_the_end_of_a_split_does_not_end_the_one_of_its_name_that_came_back() -> None:
    site = Site()
    site.before_fetch = gate = Gate()
    with manager_of(site, Multiplexed()) as manager:
        manager.add_splits((Range("a"),), addition=1)
        gate.wait()
        manager.remove_splits(["a"])
        manager.add_splits((Range("a", begin=3, unending=True),), addition=2)
        manager.pause_or_resume_splits(pause=["b"])
        gate.open()
        assert [part.addition for part in fetched(site, manager, 4)] == [1, 2, 2, 2]


def test_what_a_split_grows_by_after_it_came_back_does_not_replace_what_waits() -> None:
    site = Site()
    site.before_fetch = gate = Gate()
    with manager_of(site, Sequential()) as manager:
        manager.add_splits((Range("a", 0),), addition=1)
        gate.wait()
        manager.remove_splits(["a"])
        manager.add_splits((Range("a", 0),), addition=2)
        manager.remove_splits(["b"])
        manager.add_splits((Range("a", 10),), addition=2)
        gate.open()
        parts = fetched(site, manager, 3)
        assert [(part.addition, part.batch) for part in parts] == [(1, 0), (2, 0), (2, 10)]


@pytest.mark.parametrize("model", [Sequential(), Multiplexed(), MultiThreaded(2)])
def test_ranges_of_one_split_are_read_one_after_the_other(model: ThreadingModel) -> None:
    site = Site()
    site.before_fetch = gate = Gate(begin=0)
    with manager_of(site, model) as manager:
        manager.add_splits((Range("a", 0),))
        manager.add_splits((Range("a", 10), Range("b", 5)))
        gate.wait()
        if isinstance(model, MultiThreaded):
            # Another split is read meanwhile, by the other fetcher, and the second range is not.
            assert [part.batch for part in fetched(site, manager, 1)] == [5]
            gate.open()
            assert [part.batch for part in fetched(site, manager, 2)] == [0, 10]
        else:
            gate.open()
            batches = [part.batch for part in fetched(site, manager, 3) if part.split_id == "a"]
            assert batches == [0, 10]


def test_no_thread_starts_for_a_second_range_of_a_split() -> None:
    site = Site()
    site.before_fetch = gate = Gate()
    with manager_of(site, MultiThreaded(2)) as manager:
        manager.add_splits((Range("a", 0),))
        manager.add_splits((Range("a", 10),))
        assert manager.fetchers == 1
        gate.open()


def test_a_pause_of_a_split_that_came_back_is_told_behind_its_addition() -> None:
    site = Site()
    site.before_fetch = gate = Gate()
    with manager_of(site, Multiplexed()) as manager:
        manager.add_splits((Range("a", unending=True),), addition=1)
        gate.wait()
        manager.remove_splits(["a"])
        manager.add_splits((Range("a", begin=3),), addition=2)
        manager.pause_or_resume_splits(pause=["a"])
        gate.open()
        assert [part.addition for part in fetched(site, manager, 2)] == [1, 2]
        assert [type(change) for change in site.told] == [SplitsAddition, SplitsRemoval, SplitsAddition, SplitsPause]


class ReadAhead(Reader):
    """A faulty one: the fetch after the removal of `a` still gives a batch of it."""

    def fetch(self) -> RecordsWithSplitIds[int] | None:
        fetch = super().fetch()
        if fetch is None or not any(isinstance(change, SplitsRemoval) for change in self._site.told):
            return fetch
        return RecordsWithSplitIds((SplitRecords("a", -1), *fetch.records), fetch.finished_splits, bytes=1)


def test_what_a_reader_gives_of_a_removed_split_is_dropped_before_the_split_is_added_again() -> None:
    site = Site()
    site.before_fetch = gate = Gate(begin=5)
    others = [Range("b", begin=5), Range("b", begin=6)]
    with manager_of(site, Multiplexed(), open_reader=lambda: ReadAhead(site)) as manager:
        manager.add_splits((Range("a", begin=1, unending=True),), addition=1)
        manager.add_splits(others[:1], addition=2)
        gate.wait()
        manager.add_splits((Range("c", begin=7, unending=True),), addition=3)
        manager.remove_splits(["a"])
        manager.add_splits((Range("a", begin=8),), addition=4)
        seen: list[tuple[str, int]] = []
        site.before_fetch = lambda part: seen.append((part.split_id, part.begin))
        gate.open()
        parts: list[SplitRecords[int]] = []
        while not any(part.batch == 8 for part in parts):
            parts += fetched(site, manager, 1)
        # The other splits are read once between the removal and the addition, and what comes of `a` then is dropped.
        assert seen[0] == ("c", 7)
        last_before = [part.split_id for part in parts].index("b")
        assert parts[last_before + 1] == SplitRecords("c", 7, 3)


def test_a_batch_that_does_not_begin_where_the_rows_before_it_end_is_refused() -> None:
    check_begin("a", begin=10, position=10)
    for begin in (9, 11):
        with pytest.raises(OutOfOrderError, match=f"A batch of a begins at {begin}, .* end at 10"):
            check_begin("a", begin=begin, position=10)
