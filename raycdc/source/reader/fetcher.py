"""Fetchers: threads that block on a source, so that the readers' own threads never block.

A `SplitFetcher` owns one `SplitReader` and one thread. The `SplitBacklog` of its manager
(`raycdc.source.reader.fetcher_manager`) gives it splits to read. Fetches wait in the manager's `ElementsQueue`, whose
size in bytes is limited. While the queue is full, the threads do not read from their sockets, so back-pressure reaches
the source. An error in a thread is raised once, by `ElementsQueue.poll`, in the reader's thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from raycdc.source.reader.backlog import SplitBacklog
from raycdc.source.reader.split_reader import (
    FetchedSplit,
    RecordsWithSplitIds,
    SplitReader,
    SplitsAddition,
    SplitsRemoval,
)

ItemT = TypeVar("ItemT")
SplitT = TypeVar("SplitT", bound=FetchedSplit)

#: The bytes fetched ahead of the reader: enough to keep the decoder busy while a batch is written.
QUEUE_BYTES_MAX = 64 << 20
#: The longest time that closing waits for threads to close their connections.
CLOSE_TIMEOUT_S = 10


class ElementsQueue(Generic[ItemT]):
    """Fetches that were read ahead of the reader (FLIP-27's elements queue).

    `notify` is called when `poll` has something to return.

    Thread-safe. The queue is full at `bytes_max`. A fetch that is larger than that is accepted if the queue is empty.
    """

    def __init__(self, *, bytes_max: int, notify: Callable[[], None]) -> None:
        self._bytes_max = bytes_max
        self._notify = notify
        self._condition = threading.Condition()
        self._elements: deque[RecordsWithSplitIds[ItemT]] = deque()
        self._bytes = 0
        self._error: BaseException | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"ElementsQueue({len(self._elements)} fetches, {self._bytes} bytes)"

    def poll(self) -> RecordsWithSplitIds[ItemT] | None:
        """Return the next fetch, or None. If a thread has failed, its error is raised after all earlier fetches were
        returned. Never blocks.
        """
        with self._condition:
            if self._elements:
                element = self._elements.popleft()
                self._bytes -= element.bytes
                self._condition.notify_all()
                return element
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            return None

    def wait_for_room(self) -> bool:
        """Block a fetcher's thread while the queue is full. Returns False if the queue was closed."""
        with self._condition:
            while self._bytes >= self._bytes_max and not self._closed:
                self._condition.wait()
            return not self._closed

    def put(self, element: RecordsWithSplitIds[ItemT]) -> None:
        with self._condition:
            self._elements.append(element)
            self._bytes += element.bytes
        self._notify()

    def fail(self, error: BaseException) -> None:
        """Record that a fetcher ended with `error`. Only the first error is reported."""
        with self._condition:
            if not self._closed:
                self._error = self._error or error
        self._notify()

    def close(self) -> None:
        """Close the queue; threads that wait for room return."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()


class SplitFetcher(Generic[SplitT, ItemT]):
    """A thread that reads splits; see the module's docstring. The thread starts immediately."""

    def __init__(
        self,
        open_reader: Callable[[], SplitReader[SplitT, ItemT]],
        *,
        backlog: SplitBacklog[SplitT],
        queue: ElementsQueue[ItemT],
        name: str,
    ) -> None:
        self._open_reader = open_reader
        self._splits = backlog.add_fetcher(self.wake_up)
        self._queue = queue
        self._reader: SplitReader[SplitT, ItemT] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"SplitFetcher({self._thread.name}, {self._splits!r})"

    def join(self, *, until_s: float) -> None:
        """Wait until the monotonic time `until_s` for the thread to close its connection and end.

        The backlog and the queue are closed before, and the fetcher was woken.
        """
        self._thread.join(timeout=max(0.0, until_s - time.monotonic()))

    def wake_up(self) -> None:
        """End a blocked fetch, so that the thread checks the backlog again. Never blocks."""
        if (reader := self._reader) is not None:
            reader.wake_up()

    def _run(self) -> None:
        try:
            self._reader = reader = self._open_reader()
            try:
                self._loop(reader)
            finally:
                reader.close()
        except BaseException as error:  # noqa: BLE001 - it is raised again where it can be handled, in `poll`
            self._queue.fail(error)

    def _loop(self, reader: SplitReader[SplitT, ItemT]) -> None:
        # The splits of the reader, each with the number of its addition.
        additions: dict[str, int] = {}
        while self._queue.wait_for_room():
            changes = self._splits.take()
            if changes is None:
                return
            for change, addition in changes:
                reader.handle_splits_changes(change)
                match change:
                    case SplitsAddition(splits):
                        additions.update({split.split_id: addition for split in splits})
                    case SplitsRemoval(split_ids):
                        _forget(additions, split_ids)
            if not additions or self._splits.closed:
                continue
            element = reader.fetch()
            if element is not None:
                self._splits.finished(element.finished_splits)
                self._queue.put(element.for_additions(additions))
                _forget(additions, element.finished_splits)


def _forget(additions: dict[str, int], split_ids: Sequence[str]) -> None:
    for split_id in split_ids:
        additions.pop(split_id, None)
