"""Spark's part of a run: it is started in the background, runs tasks, and is ended. In runs without Spark, threads run
tasks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from raycdc.config import SparkOptions
from raycdc.core import background_tasks
from raycdc.errors import EngineNotStartedError, RaycdcError, SinkError, SparkLostError
from raycdc.model.engines import FROM_BYTES, EngineName
from raycdc.segments import TaskRunner, ThreadTaskRunner
from raycdc.segments.tasks import ResultT, StageTask, TaskLog
from raycdc.sinks import jvm_end
from raycdc.spark.jvm_start import JvmStart

#: If this many JVMs ended for lack of memory within this time, Spark is not started again, because the next JVM would
#: end in the same way.
MEMORY_ENDS_MAX, MEMORY_ENDS_S = 3, 3600.0
#: The delays before a lost Spark is started again in the background: the first one, and the longest. Each is twice the
#: previous one.
AGAIN_S, AGAIN_MAX_S = 15.0, 600.0


@dataclass(frozen=True, slots=True)
class TaskRules:
    """Rules for running tasks on Spark.

    Tasks with less than `from_bytes` of input in total run in this process. `private` is the folder with secret texts
    that tasks on other machines need. `log` records which engine ran the tasks.
    """

    from_bytes: int = FROM_BYTES
    private: Path | None = None
    log: TaskLog = field(default_factory=TaskLog)

    def on(self, session: Any) -> TaskRunner:
        """Return the task runner for a session."""
        from raycdc.spark.stage import SparkTaskRunner

        return SparkTaskRunner(session, from_bytes=self.from_bytes, private=self.private, log=self.log)


def task_runner(
    spark: SparkThread | None, rules: TaskRules, warn: Callable[[str], None] = lambda _: None
) -> tuple[TaskRunner, int]:
    """Return the runner of a sink's tasks, and its parallelism.

    If Spark is up now, tasks run on Spark; if it is lost later, the next tasks start it again. If Spark is still
    starting, threads run tasks until it is up; if it is lost later, `warn` is called and threads run tasks until it is
    up again. Without Spark, threads run all tasks.
    """
    if spark is None or spark.now is None:
        threads = os.cpu_count() or 1
        in_process = ThreadTaskRunner(threads)
        return in_process if spark is None else DeferredTaskRunner(spark, in_process, warn, rules=rules), threads
    from raycdc.spark.session import parallelism

    return RestartingTaskRunner(spark, rules), parallelism(spark.now)


class RestartingTaskRunner:
    """A `TaskRunner` on the session of `spark`, which is started again if it was lost. Callable from any thread.

    Raises `SparkLostError` if its JVM ends meanwhile: the same tasks may be run again.
    """

    def __init__(self, spark: SparkThread, rules: TaskRules) -> None:
        self._spark, self._rules = spark, rules

    def __call__(self, tasks: Sequence[StageTask[ResultT]]) -> list[ResultT]:
        return self._rules.on(self._spark.again())(tasks)


class DeferredTaskRunner:
    """A `TaskRunner` on `spark` while it is up, and on threads of this process otherwise; callable from any thread.

    Calls `warn` when Spark is lost.
    """

    def __init__(
        self,
        spark: SparkThread,
        in_process: ThreadTaskRunner,
        warn: Callable[[str], None],
        *,
        rules: TaskRules = TaskRules(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spark, self._rules = spark, rules
        self._in_process = in_process
        self._warn = warn
        self._clock = clock
        #: The session that last ran tasks.
        self._had: Any = None
        #: The time of the next start of a lost Spark, and the delay after the next loss.
        self._again_at_s: float | None = None
        self._again_s = AGAIN_S

    def __call__(self, tasks: Sequence[StageTask[ResultT]]) -> list[ResultT]:
        if (session := self._spark.now) is None:
            return self._run_here(tasks)
        self._had, self._again_at_s = session, None
        try:
            return self._rules.on(session)(tasks)
        except SinkError as cause:
            if not isinstance(cause, SparkLostError) and self._spark.now is session:
                raise
        # Tasks may be repeated, because they write the same files each time.
        return self._run_here(tasks)

    def _run_here(self, tasks: Sequence[StageTask[ResultT]]) -> list[ResultT]:
        now_s = self._clock()
        if (had := self._had) is not None:
            self._had, self._again_at_s = None, now_s + self._again_s
            self._again_s = min(2 * self._again_s, AGAIN_MAX_S)
            self._warn(f"{jvm_end.words(jvm_end.exit_code(had))} {HERE}")
        elif self._again_at_s is not None and now_s >= self._again_at_s:
            self._again_at_s = now_s + self._again_s
            # A failure is ignored: Spark is not needed now, and the run may be ending.
            with suppress(RuntimeError, SinkError):
                self._spark.begin()
        results = self._in_process(tasks)
        self._rules.log.ran(EngineName.DRIVER, tasks)
        return results


#: The end of the warning that Spark was lost.
HERE = "Tasks of the sink run in the driver's process until it is up again."


def activity(spark: SparkThread | None) -> str:
    """Return a text about the stages that Spark runs now and how many of their tasks are done; empty without Spark."""
    if spark is None or (session := spark.now) is None:
        return ""
    from py4j.protocol import Py4JError

    try:
        tracker = session.sparkContext.statusTracker()
        found = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    except (Py4JError, OSError, AttributeError):  # The session is ending.
        return ""
    stages = [stage for stage in found if stage is not None]
    done, all_tasks = sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
    return f"Spark: {done} of {all_tasks} tasks of {len(stages)} stages are done" if stages else ""


def new_session(options: SparkOptions, state: Path, sink: str, jvm: JvmStart) -> Any:
    """Start Spark with the configured options and its files next to the state, and return the session.

    `sink` is the type of the sink whose tasks it will run. The start may be cancelled through `jvm`.
    """
    from raycdc.spark.session import spark_session

    return spark_session(options.master, state / "spark", options.conf, sink=sink, jvm=jvm)


class SparkThread:
    """Starts, warms up and ends Spark in the background of a run, one step after the other on a thread of its own.

    The thread that runs the pipeline creates and ends it; the remaining methods are callable from any thread. `make`
    starts Spark and returns the session; the start may be cancelled. It is called immediately if `at_once` is True,
    otherwise at the first `begin` or `session`. `warn` is called if Spark is started again because work waits for it.
    """

    def __init__(
        self, make: Callable[[JvmStart], Any], *, at_once: bool = True, warn: Callable[[str], None] = lambda _: None
    ) -> None:
        self._make = make
        self._warn = warn
        #: The last session whose end was reported.
        self._reported: Any = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="spark")
        self._lock = Lock()
        self._starting = JvmStart()
        self._session: Future[Any] | None = None
        self._end: Future[None] | None = None
        self._memory_ends = MemoryEnds()
        if at_once:
            self.begin()

    def begin(self) -> Future[Any]:
        """Start Spark, unless it is starting or up. Returns the future of its session.

        Raises `RuntimeError` at the end of the run, and `SinkError` if Spark has repeatedly run out of memory.
        """
        with self._lock:
            if self._session is None or (self._session.done() and self._session_up is None):
                if self._end is not None:
                    raise RuntimeError("Spark is not started any more")
                self._memory_ends.require_few(_made(self._session))
                self._session = self._thread.submit(self._make_after, background_tasks.now())
            return self._session

    def _make_after(self, before: Sequence[Future[Any]]) -> Any:
        background_tasks.wait_for(before)
        return self._make(self._starting)

    def session(self) -> Any:
        """Wait for the session and return it, or raise the error of its start."""
        return self.begin().result()

    def again(self) -> Any:
        """Return the session for work that can be repeated, and start Spark again if it was lost.

        Raises `SparkLostError` if Spark does not start now.
        """
        made = _made(self._session)
        if made is not None and made is not self._reported and (code := jvm_end.exit_code(made)) is not None:
            self._reported = made
            self._warn(f"{jvm_end.words(code)} It is started anew.")
        try:
            return self.session()
        except EngineNotStartedError as cause:
            raise SparkLostError(str(cause)) from cause

    @property
    def now(self) -> Any:
        """Return the session if Spark is up, else None."""
        return self._session_up

    @property
    def _session_up(self) -> Any:
        made = _made(self._session)
        return None if made is None or jvm_end.exit_code(made) is not None else made

    def poll(self) -> None:
        """Raise `RaycdcError` if Spark was up and is lost."""
        made = _made(self._session)
        if made is not None and (code := jvm_end.exit_code(made)) is not None:
            raise RaycdcError(jvm_end.words(code))

    def warm_up(self) -> None:
        """Start Spark's Python workers in the background, after waiting for the session.

        A failure is ignored here, because the first stage job fails in the same way and reports it.
        """
        from raycdc.spark.stage import SparkTaskRunner

        self._thread.submit(SparkTaskRunner(self.session()).warm_up)

    def begin_end(self) -> None:
        """Begin to end Spark in the background. If Spark is still starting, cancel the start."""
        with self._lock:
            if self._end is not None:
                return
            coming = self._session is not None and not self._session.done()
            self._end = self._thread.submit(self._stop)
        if coming:
            self._starting.break_off()
            background_tasks.leave(self._end)

    def end(self) -> None:
        """Wait until Spark has ended. Does not wait for a cancelled start, because its process ends by itself."""
        self.begin_end()
        self._thread.shutdown(wait=False)
        assert self._end is not None
        if self._end not in background_tasks.now():
            self._end.result()

    def _stop(self) -> None:
        """Stop the session. Does nothing if Spark is lost, or if its start failed, which was reported already."""
        if (session := self._session_up) is None:
            return
        from py4j.protocol import Py4JError

        try:
            session.stop()
        except Py4JError as cause:
            if jvm_end.lost(session, cause) is None:
                raise


class MemoryEnds:
    """Counts the JVMs that ended because they had no memory left. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: Any = None
        self._at_s: list[float] = []

    def require_few(self, lost: Any) -> None:
        """Raise `SinkError` if too many JVMs ended lately. `lost` is the previous session, if there was one."""
        now_s = self._clock()
        if lost is not None and lost is not self._last and jvm_end.of_memory(jvm_end.exit_code(lost)):
            self._last = lost
            self._at_s.append(now_s)
        self._at_s = [at_s for at_s in self._at_s if now_s - at_s < MEMORY_ENDS_S]
        if len(self._at_s) >= MEMORY_ENDS_MAX:
            raise SinkError(
                f"Spark's JVM ended {len(self._at_s)} times within {now_s - self._at_s[0]:.0f} s. {jvm_end.MEMORY} "
                "Then start again; nothing is lost."
            )


def _made(session: Future[Any] | None) -> Any:
    """Return the session that was started, even if it is lost by now; None if there is none."""
    if session is None or not session.done() or session.cancelled() or session.exception() is not None:
        return None
    return session.result()
