"""The three ways in which fetchers share a reader's splits, each seen from the outside: who reads what, and when."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

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
)

PATIENCE_S = 120


@dataclass(frozen=True, slots=True)
class Split:
    split_id: str


class Site:
    """What the readers of one manager do, and what they wait for before each fetch."""

    def __init__(self) -> None:
        self.readers: list[Reader] = []
        self.changes: list[SplitsChange[Split]] = []
        self.news = threading.Semaphore(0)
        #: Called in the fetcher's thread with the splits that its reader has.
        self.before_fetch: Callable[[tuple[str, ...]], object] = lambda _: None

    def open_reader(self) -> Reader:
        self.readers.append(reader := Reader(self))
        return reader


class Reader:
    """Each fetch brings one batch of its first split, which ends with it unless its name says that it goes on."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._splits: deque[str] = deque()
        self._woken = threading.Event()
        self.closed = False

    def handle_splits_changes(self, change: SplitsChange[Split]) -> None:
        self._site.changes.append(change)
        match change:
            case SplitsAddition(splits):
                self._splits.extend(split.split_id for split in splits)
            case SplitsRemoval(split_ids):
                self._splits = deque(name for name in self._splits if name not in split_ids)
            case SplitsPause():
                pass

    def fetch(self) -> RecordsWithSplitIds[str]:
        self._site.before_fetch(tuple(self._splits))
        name = self._splits.popleft()
        unending = name.startswith("unending")
        if unending:
            self._splits.append(name)
        finished = () if unending else (name,)
        return RecordsWithSplitIds((SplitRecords(name, f"rows of {name}"),), finished, bytes=1)

    def wake_up(self) -> None:
        self._woken.set()

    def close(self) -> None:
        self.closed = True


Manager = SplitFetcherManager[Split, str]


@contextmanager
def manager_of(site: Site, model: ThreadingModel, *, queue_bytes_max: int = 1_000) -> Iterator[Manager]:
    manager: Manager = SplitFetcherManager(
        site.open_reader,
        threading=model,
        name="test",
        notify=site.news.release,
        queue_bytes_max=queue_bytes_max,
    )
    yield manager
    manager.close()
    assert all(reader.closed for reader in site.readers)


def splits(*names: str) -> tuple[Split, ...]:
    return tuple(map(Split, names))


def next_of(site: Site, manager: Manager) -> SplitRecords[str]:
    assert site.news.acquire(timeout=PATIENCE_S)
    fetch = manager.poll()
    assert fetch is not None
    return fetch.records[0]


def test_a_sequential_fetcher_reads_split_after_split_over_one_connection() -> None:
    site = Site()
    seen: list[tuple[str, ...]] = []
    site.before_fetch = seen.append
    with manager_of(site, Sequential()) as manager:
        manager.add_splits(splits("a", "b", "c"))
        assert [next_of(site, manager).split_id for _ in range(3)] == ["a", "b", "c"]
        assert seen == [("a",), ("b",), ("c",)]
        assert len(site.readers) == manager.fetchers == 1


def test_a_multiplexed_fetcher_has_all_splits_at_once() -> None:
    site = Site()
    seen: list[tuple[str, ...]] = []
    site.before_fetch = seen.append
    with manager_of(site, Multiplexed()) as manager:
        manager.add_splits(splits("unending a", "unending b"))
        assert {next_of(site, manager).split_id for _ in range(4)} == {"unending a", "unending b"}
        assert set(seen[0]) == {"unending a", "unending b"}
        assert len(site.readers) == 1


def test_multi_threaded_fetchers_read_a_split_each_at_the_same_time() -> None:
    site = Site()
    # Nobody goes on before two are there: with one thread the second would never come.
    together = threading.Barrier(2, timeout=PATIENCE_S)
    site.before_fetch = lambda _: together.wait()
    with manager_of(site, MultiThreaded(2)) as manager:
        manager.add_splits(splits("a", "b"))
        assert {next_of(site, manager).split_id for _ in range(2)} == {"a", "b"}
        assert len(site.readers) == 2


def test_there_are_no_more_threads_than_splits_nor_than_allowed() -> None:
    site = Site()
    with manager_of(site, MultiThreaded(3)) as manager:
        manager.add_splits(splits("a"))
        assert manager.fetchers == 1
        assert next_of(site, manager).split_id == "a"
        goes_on = threading.Event()
        site.before_fetch = lambda _: goes_on.wait(PATIENCE_S)
        manager.add_splits(splits(*"bcdefg"))
        assert manager.fetchers == 3
        goes_on.set()
        assert {next_of(site, manager).split_id for _ in range(6)} == set("bcdefg")


def test_batches_have_the_number_of_the_addition_that_they_were_fetched_for() -> None:
    site = Site()
    with manager_of(site, Multiplexed(), queue_bytes_max=1) as manager:
        manager.add_splits(splits("unending"), addition=7)
        assert next_of(site, manager).addition == 7
        manager.remove_splits(["unending"])
        manager.add_splits(splits("unending"), addition=8)
        additions = [next_of(site, manager).addition for _ in range(4)]
        # What was read ahead is of the addition before; from some fetch on it is the new one's.
        assert additions == sorted(additions)
        assert additions[-1] == 8


def test_a_split_that_waits_for_a_fetcher_can_be_removed() -> None:
    site = Site()
    goes_on = threading.Event()
    site.before_fetch = lambda _: goes_on.wait(PATIENCE_S)
    with manager_of(site, Sequential()) as manager:
        manager.add_splits(splits("a", "b", "c"))
        manager.remove_splits(["b"])
        goes_on.set()
        assert [next_of(site, manager).split_id for _ in range(2)] == ["a", "c"]


def test_a_reader_of_many_splits_is_told_which_of_them_pause() -> None:
    site = Site()
    with manager_of(site, Multiplexed(), queue_bytes_max=1) as manager:
        manager.add_splits(splits("unending a", "unending b"))
        manager.pause_or_resume_splits(pause=["unending a", "of another reader"])
        manager.pause_or_resume_splits(resume=["unending a"])
        while len(site.changes) < 4:
            next_of(site, manager)
        told = [change for change in site.changes if isinstance(change, SplitsPause)]
        assert told == [SplitsPause(paused=("unending a",)), SplitsPause(resumed=("unending a",))]


@pytest.mark.parametrize("model", [Sequential(), Multiplexed(), MultiThreaded(2)])
def test_a_fetcher_without_splits_is_not_asked_to_fetch_and_closes(model: ThreadingModel) -> None:
    site = Site()
    with manager_of(site, model) as manager:
        manager.add_splits(splits("a"))
        next_of(site, manager)
        assert manager.poll() is None
