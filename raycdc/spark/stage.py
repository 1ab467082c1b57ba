"""Running stage tasks as one Spark job, whatever number of tables they are for (the *fused* plan).

One job per table costs seconds when there are many; one job for all of them costs what its slowest task does. The
worker receives the name and JSON arguments of each task and returns its JSON result: no rows pass through the driver
and nothing is captured from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from raycdc.bridge.tasks import StageTask, run_in_process, run_task
from raycdc.errors import RaycdcError, SinkError, error_by_name

#: Below this much input the tasks run in the driver process: every way through a Python worker costs about 70 ms,
#: which is what writing this much costs.
IN_PROCESS_BYTES_MAX = 4 << 20

_RESULT = "index bigint, result string, error string, message string"


class SparkTaskRunner:
    """A `TaskRunner` on a Spark session; callable from any thread.

    A task that fails with an error of ours fails for good (the error is about the data or the sink); any other failure
    is Spark's to retry.
    """

    def __init__(self, spark: Any, *, in_process_bytes_max: int = IN_PROCESS_BYTES_MAX) -> None:
        self._spark = spark
        self._in_process_bytes_max = in_process_bytes_max

    def __call__(self, tasks: Sequence[StageTask]) -> list[dict[str, Any]]:
        if sum(task.input_bytes for task in tasks) <= self._in_process_bytes_max:
            return run_in_process(tasks)
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        count = len(tasks)
        numbers = self._spark.range(0, count, 1, count)
        job = numbers.mapInArrow(RunTasks([task.to_json() for task in tasks]), _RESULT)
        try:
            rows = job.collect()
        except (Py4JError, PySparkException) as cause:
            raise SinkError(f"Staging failed in Spark: {_last_lines(str(cause))}") from cause
        for row in rows:
            if row.error:
                raise error_by_name(row.error)(row.message)
        by_index = {row["index"]: json.loads(row.result) for row in rows}
        return [by_index[index] for index in range(count)]

    def warm_up(self) -> None:
        """Start the Python workers; the first job of a session takes seconds."""
        self._spark.range(0, 2, 1, 2).mapInArrow(RunTasks([]), _RESULT).collect()


class RunTasks:
    """The function of the job: each input row is the index of a task. Pickled by the name of this module."""

    def __init__(self, tasks: list[str]) -> None:
        self._tasks = tasks

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                if index < len(self._tasks):
                    yield self._run(index)

    def _run(self, index: int) -> pa.RecordBatch:
        task = StageTask(**json.loads(self._tasks[index]))
        result, error, message = None, None, None
        try:
            result = json.dumps(run_task(task))
        except RaycdcError as failure:
            error, message = type(failure).__name__, str(failure)
        texts = {"result": result, "error": error, "message": message}
        return pa.record_batch(
            {"index": pa.array([index], pa.int64()), **{k: pa.array([v], pa.string()) for k, v in texts.items()}}
        )


def _last_lines(text: str) -> str:
    """The end of a Python traceback inside a Java one: what the task itself said."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("at ")]
    python = [line for line in lines if "Error" in line or "Exception" in line]
    return " ".join((python or lines)[:3])[:1000]
