"""Spark's part of a run: what runs tasks, its start beside other things, its end. Without Spark there are threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from raycdc.bridge import TaskRunner, ThreadTaskRunner
from raycdc.config import SparkOptions


def task_runner(session: Any, private: Path | None = None) -> tuple[TaskRunner, int]:
    """The runner of a sink's tasks, and how many run at once: Spark, or threads where there is none.

    Tasks of a Spark elsewhere are sent the texts of the folder `private`.
    """
    if session is None:
        threads = os.cpu_count() or 1
        return ThreadTaskRunner(threads), threads
    from raycdc.spark.session import parallelism
    from raycdc.spark.stage import SparkTaskRunner

    return SparkTaskRunner(session, private=private), parallelism(session)


def activity(session: Any) -> str:
    """The stages that Spark runs now and how many of their tasks are done, in words; empty without Spark."""
    if session is None:
        return ""
    from py4j.protocol import Py4JError

    try:
        tracker = session.sparkContext.statusTracker()
        found = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    except (Py4JError, OSError, AttributeError):  # a session that ends just now
        return ""
    stages = [stage for stage in found if stage is not None]
    done, all_tasks = sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
    return f"Spark: {done} of {all_tasks} tasks of {len(stages)} stages are done" if stages else ""


def new_session(options: SparkOptions, state: Path, sink: str) -> Any:
    """A Spark session as the configuration has it, with its own files beside the state, for tasks of a sink of the type
    `sink`.
    """
    from raycdc.spark.session import spark_session

    return spark_session(options.master, state / "spark", options.conf, sink=sink)


class SparkThread:
    """Spark's life beside the rest of a run: start, warm-up and end, one after the other on a thread of its own.

    Made by the thread that runs the pipeline, which calls all methods. `make` returns the session.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="spark")
        self._session: Future[Any] = self._thread.submit(make)
        self._end: Future[None] | None = None

    def session(self) -> Any:
        """The session, when it is there; the error of its start."""
        return self._session.result()

    def warm_up(self) -> None:
        """Start Spark's Python workers while readers start and read.

        A failure is not lost: the first stage job meets the same one, and tells it in its own words.
        """
        from raycdc.spark.stage import SparkTaskRunner

        self._thread.submit(SparkTaskRunner(self.session()).warm_up)

    def begin_end(self) -> None:
        """Let Spark end while other things do."""
        if self._end is None:
            self._end = self._thread.submit(self._stop)

    def end(self) -> None:
        """Returns when Spark has ended, whoever else failed while it was being started."""
        self.begin_end()
        self._thread.shutdown()
        assert self._end is not None
        self._end.result()

    def _stop(self) -> None:
        """A failure of the start was told where it was waited for."""
        if self._session.exception() is None:
            self._session.result().stop()
