"""Runs stage tasks as one Spark job, for any number of tables (the *fused* plan).

One job per table costs seconds if there are many; one job for all of them costs as much as its slowest task. Small
tasks share a Spark task, because each of those costs about 60 ms of a worker in any case. A task is pickled by the name
of its class, and its result comes back: no rows pass through the driver and no variables are captured from it. It is an
RDD and not a DataFrame, because there is no query to plan or to optimize: measured, the first job of a session costs
the JVM 1.7 instead of 7.5 CPU-seconds, and every later one half.
"""

from __future__ import annotations

import heapq
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from raycdc.core.task_secrets import all_private, take_private
from raycdc.errors import RaycdcError, SinkError, error_by_name
from raycdc.model.engines import FROM_BYTES, EngineName
from raycdc.model.redaction import without_quotations
from raycdc.segments.tasks import ResultT, StageTask, TaskLog, ThreadTaskRunner
from raycdc.sinks import jvm_end

IN_PROCESS_THREADS = 4

#: The cost of a task besides reading its input, in bytes of input: a file is made and synced.
TASK_COST_BYTES = 1 << 20

#: Tasks that share a Spark task are together not larger than this: a retry repeats them all.
SHARED_BYTES_MAX = 64 << 20
#: Lines of a traceback of Python's: its last one, and a place.
_CLASS = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit))(?::|$)")
_FRAME = re.compile(r'File "[^"]+", line \d+, in ')
_TEXT_MAX = 1000


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task, or the named error by which it ended."""

    result: Any = None
    error: str = ""
    message: str = ""


class SparkTaskRunner:
    """A `TaskRunner` on a Spark session; callable from any thread.

    A task that fails with an error of raycdc fails permanently (the error is about the data or the sink); Spark retries
    any other failure. Raises `SparkLostError` if its JVM is gone.
    """

    def __init__(
        self, spark: Any, *, from_bytes: int = FROM_BYTES, private: Path | None = None, log: TaskLog | None = None
    ) -> None:
        """Run tasks of less than `from_bytes` of input together in this process, and also those without input.

        `private` is the folder of secret texts for tasks on other machines (`raycdc.core.task_secrets`); `log` is
        called with the engine that ran tasks.
        """
        self._spark = spark
        self._context = spark.sparkContext
        self._from_bytes = max(1, from_bytes)
        self._private = private
        self._log = TaskLog() if log is None else log

    def __call__(self, tasks: Sequence[StageTask[ResultT]]) -> list[ResultT]:
        if sum(task.input_bytes for task in tasks) < self._from_bytes:
            results = ThreadTaskRunner(IN_PROCESS_THREADS)(tasks)
            self._log.ran(EngineName.DRIVER, tasks)
            return results
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            answers = self._answers(tasks)
        except (Py4JError, PySparkException, ConnectionError, EOFError) as cause:
            if (lost := jvm_end.lost(self._spark, cause)) is not None:
                raise lost from cause
            raise SinkError(f"Staging failed in Spark: {error_summary(str(cause))}") from cause
        for answer in answers:
            if answer.error:
                raise error_by_name(answer.error)(answer.message)
        self._log.ran(EngineName.SPARK, tasks)
        return [answer.result for answer in answers]

    def warm_up(self) -> None:
        """Start a Python worker per core and load what tasks need; the first job of a session takes seconds."""
        self._run([[b""]] * int(self._context.defaultParallelism))

    def _answers(self, tasks: Sequence[StageTask[Any]]) -> list[TaskResult]:
        """Return the results in the order of the tasks."""
        groups = group_tasks([task.input_bytes for task in tasks], parallelism=int(self._context.defaultParallelism))
        found = self._run([[pickle.dumps(tasks[number]) for number in group] for group in groups])
        numbers = [number for group in groups for number in group]
        by_number = dict(zip(numbers, found, strict=True))
        return [by_number[number] for number in range(len(tasks))]

    def _run(self, groups: Sequence[Sequence[bytes]]) -> list[TaskResult]:
        """Run one Spark task for each group; return the results of all, group by group."""
        run = run_pickled if self._private is None else partial(run_elsewhere, all_private(self._private))
        answers: list[TaskResult] = self._context.parallelize(groups, len(groups)).flatMap(run).collect()
        return answers


def group_tasks(input_bytes: Sequence[int], *, parallelism: int) -> list[list[int]]:
    """Numbers of the tasks that each of Spark's tasks runs: as few groups as keep all cores busy, of like size."""
    costs = [size + TASK_COST_BYTES for size in input_bytes]
    count = min(len(costs), max(parallelism, -(-sum(costs) // SHARED_BYTES_MAX)))
    groups: list[list[int]] = [[] for _ in range(count)]
    heap = [(0, group) for group in range(count)]
    for number in sorted(range(len(costs)), key=lambda number: -costs[number]):
        cost, group = heapq.heappop(heap)
        groups[group].append(number)
        heapq.heappush(heap, (cost + costs[number], group))
    return groups


def run_pickled(tasks: Sequence[bytes]) -> list[TaskResult]:
    """The function of the job: the tasks of one group, one after the other. Pickled by its name."""
    return [_answer(task) for task in tasks]


def run_elsewhere(private: Mapping[str, str], tasks: Sequence[bytes]) -> list[TaskResult]:
    """`run_pickled` on a machine that has no private files of the driver's."""
    take_private(private)
    return run_pickled(tasks)


def _answer(pickled: bytes) -> TaskResult:
    """The answer to one task, or to nothing when it is empty."""
    if not pickled:
        return TaskResult()
    try:
        task: StageTask[Any] = pickle.loads(pickled)  # noqa: S301 - the driver made it
        return TaskResult(task.run())
    except RaycdcError as failure:
        return TaskResult(error=type(failure).__name__, message=str(failure))


def error_summary(text: str) -> str:
    """The error's class and the last place of the Python traceback inside a Java one, without its text, which may quote
    a row; of an error that is Java's own, its first line.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("at ")]
    classes = [found[1] for line in lines if (found := _CLASS.match(line))]
    classes = [name for name in classes if not name.startswith(("java.", "org.", "scala."))]
    places = [line for line in lines if _FRAME.match(line)]
    if not places:
        return without_quotations(" ".join(lines[:3]))[:_TEXT_MAX]
    return f"{classes[-1] if classes else 'an error'} ({places[-1]})"[:_TEXT_MAX]
