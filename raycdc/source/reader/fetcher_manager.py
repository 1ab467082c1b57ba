"""Starts the threads that read a reader's splits: FLIP-27's `SplitFetcherManager`.

| threading model | fetchers | splits at a time | used for |
|---|---|---|---|
| `Sequential` | one | one after the other | the log of a database, the chunks of `connectors/datagen` |
| `Multiplexed` | one | all of them | the partitions of `connectors/kafka`, over one consumer |
| `MultiThreaded` | up to ``readers.fetchers`` | one each | the chunks of a database |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar, assert_never

from raycdc.source.reader.backlog import SplitBacklog
from raycdc.source.reader.fetcher import CLOSE_TIMEOUT_S, QUEUE_BYTES_MAX, ElementsQueue, SplitFetcher
from raycdc.source.reader.split_reader import FetchedSplit, RecordsWithSplitIds, SplitReader

ItemT = TypeVar("ItemT")
ItemT_co = TypeVar("ItemT_co", covariant=True)
SplitT = TypeVar("SplitT", bound=FetchedSplit)
SplitT_contra = TypeVar("SplitT_contra", bound=FetchedSplit, contravariant=True)


@dataclass(frozen=True, slots=True)
class Sequential:
    """One fetcher that reads one split after the other."""

    fetchers: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Multiplexed:
    """One fetcher that reads all splits together."""

    fetchers: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class MultiThreaded:
    """Up to `fetchers` fetchers that read one split each."""

    fetchers: int


ThreadingModel = Sequential | Multiplexed | MultiThreaded


class FetcherManager(Protocol[SplitT_contra, ItemT_co]):
    """The interface of a reader's fetchers. The reader's own thread calls all methods, and only `close` blocks.
    `SplitFetcherManager` implements it with threads; a simulation or a test may use no threads.
    """

    def add_splits(self, splits: Sequence[SplitT_contra], *, addition: int = 0) -> None:
        """Read these splits; their batches will have the number `addition`."""

    def remove_splits(self, split_ids: Sequence[str]) -> None:
        """Stop reading these splits. Batches that were fetched before may still come."""

    def pause_or_resume_splits(self, *, pause: Sequence[str] = (), resume: Sequence[str] = ()) -> None:
        """Pause reading some splits, and resume others."""

    def poll(self) -> RecordsWithSplitIds[ItemT_co] | None:
        """Return the next fetch, or None if there is none now. Raises the error of a fetcher's thread."""

    def close(self) -> None: ...


class SplitFetcherManager(Generic[SplitT, ItemT]):
    """The manager of a reader's fetchers; see the module's docstring.

    A thread starts when a split has no fetcher. `name` names the threads in figures and stack traces. The threads call
    `notify` when `poll` has something to return. All fetchers share a queue of `queue_bytes_max`.
    """

    def __init__(
        self,
        open_reader: Callable[[], SplitReader[SplitT, ItemT]],
        *,
        threading: ThreadingModel,
        name: str,
        notify: Callable[[], None],
        queue_bytes_max: int = QUEUE_BYTES_MAX,
    ) -> None:
        match threading:
            case Sequential() | MultiThreaded():
                at_once: int | None = 1
            case Multiplexed():
                at_once = None
            case _:
                assert_never(threading)
        self._fetchers_max = threading.fetchers
        self._open_reader = open_reader
        self._name = name
        self._backlog: SplitBacklog[SplitT] = SplitBacklog(at_once=at_once)
        self._queue: ElementsQueue[ItemT] = ElementsQueue(bytes_max=queue_bytes_max, notify=notify)
        self._fetchers: list[SplitFetcher[SplitT, ItemT]] = []

    def __repr__(self) -> str:
        return f"SplitFetcherManager({self._name}, {self._fetchers}, {self._queue!r})"

    @property
    def fetchers(self) -> int:
        """Return the number of fetchers whose threads were started."""
        return len(self._fetchers)

    def add_splits(self, splits: Sequence[SplitT], *, addition: int = 0) -> None:
        self._backlog.add(splits, addition=addition)
        while len(self._fetchers) < min(self._fetchers_max, len(self._backlog)):
            name = f"{self._name}-{len(self._fetchers)}" if self._fetchers else self._name
            fetcher = SplitFetcher(self._open_reader, backlog=self._backlog, queue=self._queue, name=name)
            self._fetchers.append(fetcher)

    def remove_splits(self, split_ids: Sequence[str]) -> None:
        self._backlog.remove(split_ids)

    def pause_or_resume_splits(self, *, pause: Sequence[str] = (), resume: Sequence[str] = ()) -> None:
        self._backlog.pause(pause)
        self._backlog.resume(resume)

    def poll(self) -> RecordsWithSplitIds[ItemT] | None:
        return self._queue.poll()

    def close(self) -> None:
        """Stop the threads and drop what they have read ahead. Waits for all of them together."""
        self._backlog.close()
        self._queue.close()
        for fetcher in self._fetchers:
            fetcher.wake_up()
        until_s = time.monotonic() + CLOSE_TIMEOUT_S
        for fetcher in self._fetchers:
            fetcher.join(until_s=until_s)
