"""Running stage tasks as one Spark job, whatever number of tables they are for (the *fused* plan).

One job per table costs seconds when there are many; one job for all of them costs what its slowest task does. A task
travels as its name and JSON arguments and comes back as its JSON result: no rows pass through the driver and nothing
is captured from it. An RDD and not a DataFrame, because there is nothing here to plan or to optimise: measured, the
first job of a session costs the JVM 1.7 instead of 7.5 CPU-seconds, and every later one half.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from raycdc.bridge.tasks import StageTask, run_in_process, run_task
from raycdc.errors import RaycdcError, SinkError, error_by_name

#: Below this much input the tasks run in the driver process: every way through a Python worker costs about 70 ms,
#: which is what writing this much costs.
IN_PROCESS_BYTES_MAX = 4 << 20


class SparkTaskRunner:
    """A `TaskRunner` on a Spark session; callable from any thread.

    A task that fails with an error of ours fails for good (the error is about the data or the sink); any other failure
    is Spark's to retry.
    """

    def __init__(self, spark: Any, *, in_process_bytes_max: int = IN_PROCESS_BYTES_MAX) -> None:
        self._context = spark.sparkContext
        self._in_process_bytes_max = in_process_bytes_max

    def __call__(self, tasks: Sequence[StageTask]) -> list[dict[str, Any]]:
        if sum(task.input_bytes for task in tasks) <= self._in_process_bytes_max:
            return run_in_process(tasks)
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            answers = [json.loads(text) for text in self._run([task.to_json() for task in tasks])]
        except (Py4JError, PySparkException) as cause:
            raise SinkError(f"Staging failed in Spark: {_last_lines(str(cause))}") from cause
        for answer in answers:
            if "error" in answer:
                raise error_by_name(answer["error"])(answer["message"])
        return [answer["result"] for answer in answers]

    def warm_up(self) -> None:
        """Start a Python worker per core and load what tasks need; the first job of a session takes seconds."""
        self._run([""] * int(self._context.defaultParallelism))

    def _run(self, texts: Sequence[str]) -> list[str]:
        answers: list[str] = self._context.parallelize(texts, len(texts)).map(run_text).collect()
        return answers


def run_text(text: str) -> str:
    """The function of the job: one task, or nothing when `text` is empty. Pickled by its name."""
    if not text:
        return "{}"
    try:
        return json.dumps({"result": run_task(StageTask(**json.loads(text)))})
    except RaycdcError as failure:
        return json.dumps({"error": type(failure).__name__, "message": str(failure)})


def _last_lines(text: str) -> str:
    """The end of a Python traceback inside a Java one: what the task itself said."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("at ")]
    python = [line for line in lines if "Error" in line or "Exception" in line]
    return " ".join((python or lines)[:3])[:1000]
