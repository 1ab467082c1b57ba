"""Spark's part of a run: what runs tasks, its start beside other things, its end. Without Spark there are threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from subprocess import Popen
from threading import Lock
from typing import Any

from raycdc.bridge import TaskRunner, ThreadTaskRunner
from raycdc.bridge.tasks import ResultT, StageTask
from raycdc.config import SparkOptions
from raycdc.errors import RaycdcError, SinkError
from raycdc.spark.jvm_start import JvmStart
from raycdc.waiting import left_work

#: Begins the warning of a run that goes on without Spark.
LOST = "Spark is gone: its JVM ended."


def task_runner(
    spark: SparkThread | None, private: Path | None = None, warn: Callable[[str], None] = lambda _: None
) -> tuple[TaskRunner, int]:
    """The runner of a sink's tasks, and how many run at once: Spark, or threads where there is none, or none yet.

    Tasks of a Spark elsewhere are sent the texts of the folder `private`. `warn` hears that a Spark that came later was
    lost.
    """
    if spark is None or spark.now is None:
        threads = os.cpu_count() or 1
        in_process = ThreadTaskRunner(threads)
        return in_process if spark is None else LaterTaskRunner(spark, in_process, warn), threads
    from raycdc.spark.session import parallelism
    from raycdc.spark.stage import SparkTaskRunner

    return SparkTaskRunner(spark.now, private=private), parallelism(spark.now)


class LaterTaskRunner:
    """A `TaskRunner` on `spark` once it is up, and on threads of this process before it is and when it is lost, which
    `warn` hears; callable from any thread.
    """

    def __init__(self, spark: SparkThread, in_process: ThreadTaskRunner, warn: Callable[[str], None]) -> None:
        self._spark = spark
        self._in_process = in_process
        self._warn = warn
        #: The session that had tasks last.
        self._had: Any = None

    def __call__(self, tasks: Sequence[StageTask[ResultT]]) -> list[ResultT]:
        if (session := self._spark.now) is None:
            return self._run_here(tasks)
        from raycdc.spark.stage import SparkTaskRunner

        self._had = session
        try:
            return SparkTaskRunner(session)(tasks)
        except SinkError:
            if self._spark.now is session:
                raise
        # A task gives the same files wherever it runs, and however often.
        return self._run_here(tasks)

    def _run_here(self, tasks: Sequence[StageTask[ResultT]]) -> list[ResultT]:
        if self._had is not None:
            self._had = None
            self._warn(f"{LOST} Tasks of the sink run in the driver's process instead.")
        return self._in_process(tasks)


def activity(spark: SparkThread | None) -> str:
    """The stages that Spark runs now and how many of their tasks are done, in words; empty without Spark."""
    if spark is None or (session := spark.now) is None:
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


def new_session(options: SparkOptions, state: Path, sink: str, jvm: JvmStart) -> Any:
    """A Spark session as the configuration has it, with its own files beside the state, for tasks of a sink of the type
    `sink`. Its start may be broken off at `jvm`.
    """
    from raycdc.spark.session import spark_session

    return spark_session(options.master, state / "spark", options.conf, sink=sink, jvm=jvm)


class SparkThread:
    """Spark's life beside the rest of a run: start, warm-up and end, one after the other on a thread of its own.

    Made and ended by the thread that runs the pipeline; the rest is for any thread. `make` returns the session, whose
    start may be broken off; it is called `at_once`, or when somebody begins it or wants the session.
    """

    def __init__(self, make: Callable[[JvmStart], Any], *, at_once: bool = True) -> None:
        self._make = make
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="spark")
        self._lock = Lock()
        self._starting = JvmStart()
        self._session: Future[Any] | None = None
        self._end: Future[None] | None = None
        if at_once:
            self.begin()

    def begin(self) -> Future[Any]:
        """Start Spark, if nobody has yet, or it did not start or is lost. `RuntimeError` at the end of the run, when
        nobody would end it any more.
        """
        with self._lock:
            if self._session is None or (self._session.done() and self._session_up is None):
                if self._end is not None:
                    raise RuntimeError("Spark is not started any more")
                self._session = self._thread.submit(self._make_after, left_work.now())
            return self._session

    def _make_after(self, before: Sequence[Future[Any]]) -> Any:
        left_work.wait_for(before)
        return self._make(self._starting)

    def session(self) -> Any:
        """The session, when it is there; the error of its start."""
        return self.begin().result()

    @property
    def now(self) -> Any:
        """The session if it is up, else None."""
        return self._session_up

    @property
    def _session_up(self) -> Any:
        made = self._session
        if made is None or not made.done() or made.exception() is not None:
            return None
        return None if _is_lost(made.result()) else made.result()

    def look(self) -> None:
        """Raise `RaycdcError` where Spark was up and is lost."""
        made = self._session
        if made is not None and made.done() and made.exception() is None and _is_lost(made.result()):
            raise RaycdcError(LOST)

    def warm_up(self) -> None:
        """Start Spark's Python workers while readers start and read. Waits for the session.

        A failure is not lost: the first stage job meets the same one, and tells it in its own words.
        """
        from raycdc.spark.stage import SparkTaskRunner

        self._thread.submit(SparkTaskRunner(self.session()).warm_up)

    def begin_end(self) -> None:
        """Let Spark end while other things do. One that is not up yet is broken off."""
        with self._lock:
            if self._end is not None:
                return
            coming = self._session is not None and not self._session.done()
            self._end = self._thread.submit(self._stop)
        if coming:
            self._starting.break_off()
            left_work.leave(self._end)

    def end(self) -> None:
        """Returns when Spark has ended, whoever else failed while it was being started; or at once where it was broken
        off, which ends by itself.
        """
        self.begin_end()
        self._thread.shutdown(wait=False)
        assert self._end is not None
        if self._end not in left_work.now():
            self._end.result()

    def _stop(self) -> None:
        """A failure of the start was told where it was waited for. One that is lost has nothing left to stop."""
        if (session := self._session_up) is None:
            return
        from py4j.protocol import Py4JError

        try:
            session.stop()
        except Py4JError:
            if not _is_lost(session):
                raise


def _is_lost(session: Any) -> bool:
    """Whether the JVM of a session that was up has ended."""
    gateway = getattr(session.sparkContext, "_gateway", None)
    process: Popen[Any] | None = getattr(gateway, "proc", None)
    return process is not None and process.poll() is not None
