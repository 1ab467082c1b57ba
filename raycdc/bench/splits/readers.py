"""Processes that read as the readers of a job do, each over its own connection, but drop the rows."""

from __future__ import annotations

import multiprocessing
import resource
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from raycdc.bench.splits.figures import ChunkTiming, MeasuredRun
from raycdc.errors import SourceError
from raycdc.source.connector import IncrementalSource
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.split import OpenedAt, SnapshotSplit

#: Seconds between two checks if the measurement must stop, while it waits for readers.
_TURN_S = 0.2
_ENDS_WITHIN_S = 5.0
#: ``ru_maxrss`` is in KiB, except for macOS (getrusage(2)).
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True, slots=True)
class Task:
    """A chunk to read, with its `number` in its table, and the maximum number of rows to read of it."""

    number: int
    split: SnapshotSplit
    opened_at: OpenedAt
    document: SchemaDocument
    rows_max: int


@dataclass(frozen=True, slots=True)
class _Done:
    number: int
    began_s: float
    ended_s: float
    rows: int
    size: int
    cut_off: bool


@dataclass(frozen=True, slots=True)
class _Ready:
    cpu_s: float


@dataclass(frozen=True, slots=True)
class _Ended:
    cpu_s: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class _Failed:
    text: str


class Worker(Protocol):
    """Does the work of a reader's process. For one thread."""

    def read(self, task: Any) -> Any: ...

    def close(self) -> None: ...


class Work(Protocol):
    """Makes a `Worker` in a reader's process. Picklable."""

    def open(self) -> Worker:
        """Warm up, connect, and return the worker. This time is not measured. Raises `SourceError`."""
        ...


@dataclass(frozen=True, slots=True)
class ChunkWork:
    """The work of reading `Task`s. `rows_per_s` is the rate limit of one reader; 0: none."""

    source: IncrementalSource[Any]
    rows_per_s: float = 0.0

    def open(self) -> Worker:
        self.source.warm_up()
        return _ChunkReader(self.source, self.rows_per_s)


class ReaderProcesses:
    """A group of `count` reader processes, connected before the first work is assigned. For one thread.

    `close` ends them in any case. `module` is imported before they are forked. Raises `SourceError` if one cannot
    connect.
    """

    def __init__(self, work: Work, count: int, *, module: str) -> None:
        # The processes are not forks of this one, because a fork copies locks of Arrow and drivers without the threads
        # that hold them. They are forks of a process that has only imported modules, so they start quickly.
        spawning = multiprocessing.get_context("forkserver")
        spawning.set_forkserver_preload([__name__, module])
        self._processes = []
        self._links: list[Connection] = []
        for number in range(count):
            here, there = spawning.Pipe()
            process = spawning.Process(target=_serve, args=(there, work), name=f"raycdc-bench-{number}", daemon=True)
            process.start()
            there.close()
            self._processes.append(process)
            self._links.append(here)
        try:
            self._cpu_s = sum(self._answer(link, _Ready).cpu_s for link in self._links)
        except BaseException:
            self.close()
            raise

    def read(self, tasks: Sequence[Task], on_chunk: Callable[[ChunkTiming], None]) -> MeasuredRun:
        """Read all tasks in their order; each free reader takes the next one. Blocks; called once."""
        waiting = deque(tasks)
        found: list[ChunkTiming] = []
        began_s = time.monotonic()
        busy = [self._give(link, waiting) for link in self._links]
        for reader, done in self._answers(busy):
            chunk = ChunkTiming(
                done.number,
                reader,
                done.began_s - began_s,
                done.ended_s - done.began_s,
                done.rows,
                done.size,
                done.cut_off,
            )
            found.append(chunk)
            on_chunk(chunk)
            busy[reader] = self._give(self._links[reader], waiting)
        seconds = max((chunk.began_s + chunk.seconds for chunk in found), default=0.0)
        return MeasuredRun(len(self._links), seconds, found, *self._end())

    def distribute(self, tasks: Sequence[Any], kind: type[Any]) -> tuple[list[Any], float, int]:
        """Give each reader one of the tasks, all at the same time.

        Returns the readers' answers, which are of type `kind`, the CPU seconds of all readers, and the memory of the
        largest reader in bytes. Blocks; called once.
        """
        for link, task in zip(self._links, tasks, strict=True):
            link.send(task)
        left = dict(enumerate(self._links))
        answers: dict[int, Any] = {}
        while left:
            # The wait is divided, so that it can be interrupted and the first error ends it.
            at_work = {id(link): reader for reader, link in left.items()}
            for ready in wait([*left.values()], _TURN_S):
                assert isinstance(ready, Connection)
                answers[at_work[id(ready)]] = self._answer(ready, kind)
                del left[at_work[id(ready)]]
        return [answers[reader] for reader in range(len(self._links))], *self._end()

    def _end(self) -> tuple[float, int]:
        """End the readers; return their CPU seconds for the work, and the memory of the largest."""
        for link in self._links:
            link.send(None)
        ended = [self._answer(link, _Ended) for link in self._links]
        return sum(each.cpu_s for each in ended) - self._cpu_s, max(each.peak_bytes for each in ended)

    def close(self) -> None:
        for link in self._links:
            link.close()
        for process in self._processes:
            # The reader may be in the middle of a chunk, and holds nothing that others need.
            process.terminate()
        for process in self._processes:
            process.join(_ENDS_WITHIN_S)

    @staticmethod
    def _give(link: Connection, waiting: deque[Task]) -> bool:
        if not waiting:
            return False
        link.send(waiting.popleft())
        return True

    def _answers(self, busy: list[bool]) -> Iterator[tuple[int, _Done]]:
        """Yield the answers of the `busy` readers as they arrive; the caller updates `busy`."""
        while any(busy):
            at_work = {id(link): reader for reader, link in enumerate(self._links) if busy[reader]}
            for link in wait([self._links[reader] for reader in at_work.values()], _TURN_S):
                assert isinstance(link, Connection)
                yield at_work[id(link)], self._answer(link, _Done)

    @staticmethod
    def _answer(link: Connection, kind: type[Any]) -> Any:
        try:
            answer = link.recv()
        except EOFError:
            raise SourceError("A process that reads chunks ended by itself. Is there enough memory?") from None
        if isinstance(answer, _Failed):
            raise SourceError(answer.text)
        assert isinstance(answer, kind), answer
        return answer


def _serve(link: Connection, work: Work) -> None:
    """Run a reader's process."""
    # The parent process handles Ctrl-C, and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, BrokenPipeError):
        try:
            reader = work.open()
            link.send(_Ready(time.process_time()))
            while (task := link.recv()) is not None:
                link.send(reader.read(task))
            reader.close()
        except (EOFError, BrokenPipeError):
            raise
        except Exception as error:  # noqa: BLE001 - sent to the parent process, as text
            link.send(_Failed(str(error) or type(error).__name__))
            return
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT
        link.send(_Ended(time.process_time(), peak))


class _ChunkReader:
    def __init__(self, source: IncrementalSource[Any], rows_per_s: float) -> None:
        self._source = source
        self._rows_per_s = rows_per_s
        self._chunks = source.chunk_reader()

    def read(self, task: Task) -> _Done:
        rows = size = 0
        cut_off = False
        began_s = time.monotonic()
        for batch in self._chunks.read(task.split, opened_at=task.opened_at, document=task.document):
            rows += batch.num_rows
            size += batch.nbytes
            if self._rows_per_s:
                time.sleep(max(0.0, began_s + rows / self._rows_per_s - time.monotonic()))
            if rows > task.rows_max:
                cut_off = True
                break
        ended_s = time.monotonic()
        if cut_off:
            # The rest of the answer is still arriving on the old connection.
            self._chunks.close()
            self._chunks = self._source.chunk_reader()
        return _Done(task.number, began_s, ended_s, rows, size, cut_off)

    def close(self) -> None:
        self._chunks.close()
