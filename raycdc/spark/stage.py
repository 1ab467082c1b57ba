"""Runs all stage tasks of an epoch as one Spark job, for any number of tables.

One job per table costs seconds if there are many; one job for all of them costs as much as its slowest task. Small
stage tasks share a Spark task, because each Spark task costs about 60 ms of a worker in any case. A stage task is
pickled by the name of its class, and only its result returns to the driver. No rows pass through the driver, and no
variables of the driver are captured. The job is an RDD and not a DataFrame, because there is no query to plan or
optimize. Measured: with an RDD, the first job of a session costs the JVM 1.7 instead of 7.5 CPU-seconds, and each later
job half as much as with a DataFrame.
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

from raycdc.core.secrets import all_private, take_private
from raycdc.errors import RaycdcError, SinkError, error_by_name
from raycdc.model.engines import FROM_BYTES, EngineName
from raycdc.model.redaction import without_quotations
from raycdc.segments.tasks import ResultT, StageTask, TaskLog, ThreadTaskRunner
from raycdc.sinks import jvm_end

IN_PROCESS_THREADS = 4

#: The cost of creating and syncing a task's file, expressed in bytes of input.
TASK_COST_BYTES = 1 << 20

#: The most input of tasks that share one Spark task, because a retry repeats all of them.
SHARED_BYTES_MAX = 64 << 20
#: Lines of a Python traceback: the last one, and one that names a file and line.
_CLASS = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit))(?::|$)")
_FRAME = re.compile(r'File "[^"]+", line \d+, in ')
_TEXT_MAX = 1000


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task, or the class name and message of the `RaycdcError` that it raised."""

    result: Any = None
    error: str = ""
    message: str = ""


class SparkTaskRunner:
    """A `TaskRunner` on a Spark session; callable from any thread.

    A task that raises an error of raycdc is not retried, because the error is about the data or the sink. Spark retries
    any other failure. Raises `SparkLostError` if Spark's JVM is gone.
    """

    def __init__(
        self, spark: Any, *, from_bytes: int = FROM_BYTES, private: Path | None = None, log: TaskLog | None = None
    ) -> None:
        """Create a runner that runs tasks in this process if their input is less than `from_bytes` in total.

        `private` is the folder of secret texts for tasks on other machines (`raycdc.core.secrets`). `log` records
        which engine ran the tasks.
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
        """Start a Python worker per core and load the modules of tasks, because the first job of a session takes
        seconds.
        """
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
    """Return groups of tasks by their numbers, one group per Spark task.

    There are as few groups as are needed to keep all cores busy, and the groups have about the same size.
    """
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
    """Run the pickled tasks of one group, one after the other. This is the function of the job, pickled by its name."""
    return [_answer(task) for task in tasks]


def run_elsewhere(private: Mapping[str, str], tasks: Sequence[bytes]) -> list[TaskResult]:
    """Call `run_pickled` on a machine that does not have the driver's private files; `private` is their content."""
    take_private(private)
    return run_pickled(tasks)


def _answer(pickled: bytes) -> TaskResult:
    """Run one pickled task and return its result. An empty text stands for no task, and has an empty result."""
    if not pickled:
        return TaskResult()
    try:
        task: StageTask[Any] = pickle.loads(pickled)  # noqa: S301 - the driver made it
        return TaskResult(task.run())
    except RaycdcError as failure:
        return TaskResult(error=type(failure).__name__, message=str(failure))


def error_summary(text: str) -> str:
    """Return the class and the last code line of the Python traceback inside a Java error.

    Leaves out the error's text, which may quote a row. For an error of Java itself, returns its first lines.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("at ")]
    classes = [found[1] for line in lines if (found := _CLASS.match(line))]
    classes = [name for name in classes if not name.startswith(("java.", "org.", "scala."))]
    places = [line for line in lines if _FRAME.match(line)]
    if not places:
        return without_quotations(" ".join(lines[:3]))[:_TEXT_MAX]
    return f"{classes[-1] if classes else 'an error'} ({places[-1]})"[:_TEXT_MAX]
