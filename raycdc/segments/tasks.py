"""Stage tasks: units of sink work that run wherever a runner puts them, in a Spark task or in the driver process.

A task is a frozen value that contains all its inputs. It is pickled by the name of its class, so no variable is
captured by accident. A task gives the same files wherever and however often it runs. The sink gets the runner as
`SinkContext.run_tasks`, and does not know which engine runs the tasks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

from raycdc.core.activity import moved
from raycdc.model.engines import EngineName, RowsBy
from raycdc.state.manifests.manifest import Segment

ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)


class StageTask(ABC, Generic[ResultT_co]):
    """A stage task: a frozen dataclass of its inputs. The task and its result are picklable.

    `run` must be safe to run twice, at the same time or after a failure: it writes files under its own names and
    returns their names.
    """

    __slots__ = ()

    @property
    def input_bytes(self) -> int:
        """Return how many bytes the task reads, by which a runner estimates its cost."""
        return 0

    @property
    def segments(self) -> Collection[Segment]:
        """Return the segments whose rows the task writes.

        Statistics count these rows for the engine that runs the task, and the rows of all other segments for the
        driver.
        """
        return ()

    @abstractmethod
    def run(self) -> ResultT_co:
        """Do the work in the calling thread, and return the result."""


class TaskRunner(Protocol):
    """Runs all tasks, in any order and place, and returns their results in the order of the tasks."""

    def __call__(self, tasks: Sequence[StageTask[ResultT]], /) -> list[ResultT]: ...


class TaskLog:
    """A record of the segments whose rows Spark's tasks wrote, kept until the rows are counted. Callable from any
    thread.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        #: The names of the segments whose tasks last ran in Spark.
        self._by_spark: set[str] = set()

    def __repr__(self) -> str:
        return f"TaskLog({len(self._by_spark)} segments by Spark)"

    def ran(self, engine: EngineName, tasks: Iterable[StageTask[Any]]) -> None:
        """Note that `engine` ran the `tasks` without an error."""
        names = {segment.name for task in tasks for segment in task.segments}
        with self._lock:
            if engine is EngineName.SPARK:
                self._by_spark |= names
            else:
                self._by_spark -= names

    def rows(self, segments: Iterable[Segment]) -> RowsBy:
        """Return the number of rows of `segments` that each engine wrote."""
        counts: Counter[EngineName] = Counter()
        with self._lock:
            for segment in segments:
                by_spark = segment.name in self._by_spark
                counts[EngineName.SPARK if by_spark else EngineName.DRIVER] += segment.rows
        return {engine: rows for engine, rows in counts.items() if rows}

    def forget(self, segments: Iterable[Segment]) -> None:
        """Forget the segments, because their epoch is recorded."""
        with self._lock:
            self._by_spark.difference_update(segment.name for segment in segments)


def run_in_process(tasks: Sequence[StageTask[ResultT]]) -> list[ResultT]:
    """Run the tasks one after the other on the calling thread; a `TaskRunner`."""
    return [task.run() for task in tasks]


class ThreadTaskRunner:
    """A `TaskRunner` on threads of this process, for runs without Spark.

    Threads are enough, because tasks spend their time in Arrow, which releases the GIL. If a task fails, the call waits
    for the other tasks and then raises the error.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def __call__(self, tasks: Sequence[StageTask[ResultT]]) -> list[ResultT]:
        with ThreadPoolExecutor(self._threads, thread_name_prefix="raycdc-stage") as pool:
            results = []
            for result in pool.map(lambda task: task.run(), tasks):
                results.append(result)
                moved()
            return results
