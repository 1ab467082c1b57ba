"""Fetchers: the threads that block on a source, so that readers never do.

A `SplitFetcher` owns one `SplitReader` and one thread. What it fetches waits in a queue bounded by bytes; a full
queue stops the thread, which stops reading its socket, which is how back-pressure reaches the source. An error in the
thread surfaces once, from `poll`, in the reader's thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

#: Bytes fetched ahead of the reader: enough to keep the decoder busy while a batch is written, no more.
QUEUE_BYTES_MAX = 64 << 20


class SplitReader(Protocol[T_co]):
    """Blocking reads of one split. `fetch` and `close` run in the fetcher's thread, `wake_up` in any."""

    def fetch(self) -> T_co | None:
        """Block until something arrived, or for a moment (None). Raises what ends the fetcher."""

    def wake_up(self) -> None:
        """Make a blocked `fetch` return soon."""

    def close(self) -> None: ...


class SplitFetcher(Generic[T]):
    """See the module's docstring. `size` tells the bytes of an item, `notify` is called when `poll` has news."""

    def __init__(
        self,
        open_reader: Callable[[], SplitReader[T]],
        *,
        name: str,
        size: Callable[[T], int],
        notify: Callable[[], None],
        queue_bytes_max: int = QUEUE_BYTES_MAX,
    ) -> None:
        self._open_reader = open_reader
        self._size = size
        self._notify = notify
        self._queue_bytes_max = queue_bytes_max
        self._condition = threading.Condition()
        self._queue: deque[T] = deque()
        self._queue_bytes = 0
        self._error: BaseException | None = None
        self._closed = False
        self._reader: SplitReader[T] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"SplitFetcher({self._thread.name}, queued={len(self._queue)}, bytes={self._queue_bytes})"

    def poll(self) -> T | None:
        """The next item, or None. Raises the thread's error once everything before it was taken."""
        with self._condition:
            if self._queue:
                item = self._queue.popleft()
                self._queue_bytes -= self._size(item)
                self._condition.notify_all()
                return item
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            return None

    def close(self) -> None:
        """Stop the thread; what it has queued is forgotten. Waits for it, as it closes its connection itself."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
            reader = self._reader
        if reader is not None:
            reader.wake_up()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        try:
            reader = self._open_reader()
            with self._condition:
                self._reader = reader
            try:
                self._loop(reader)
            finally:
                reader.close()
        except BaseException as error:  # noqa: BLE001 - it is raised again where it can be handled, in `poll`
            with self._condition:
                self._error = None if self._closed else error
            self._notify()

    def _loop(self, reader: SplitReader[T]) -> None:
        while True:
            with self._condition:
                while self._queue_bytes >= self._queue_bytes_max and not self._closed:
                    self._condition.wait()
                if self._closed:
                    return
            item = reader.fetch()
            if item is not None:
                with self._condition:
                    self._queue.append(item)
                    self._queue_bytes += self._size(item)
                self._notify()
