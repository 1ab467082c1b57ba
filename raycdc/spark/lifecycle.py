"""Spark's part of a run: what runs tasks, its start beside other things, its end. Without Spark there are threads."""

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

#: So many ends for want of memory within so long are no accident: the next JVM would end in the same way.
MEMORY_ENDS_MAX, MEMORY_ENDS_S = 3, 3600.0
#: A Spark that came later and was lost is started anew after so long, then after twice as long, up to the second.
AGAIN_S, AGAIN_MAX_S = 15.0, 600.0


@dataclass(frozen=True, slots=True)
class TaskRules:
    """Where tasks run once Spark is up: those of less than `from_bytes` of input together in this process all the same.

    `private` is the folder of texts that tasks of a Spark elsewhere are sent; `log` is told who ran tasks.
    """

    from_bytes: int = FROM_BYTES
    private: Path | None = None
    log: TaskLog = field(default_factory=TaskLog)

    def on(self, session: Any) -> TaskRunner:
        """The runner on a session."""
        from raycdc.spark.stage import SparkTaskRunner

        return SparkTaskRunner(session, from_bytes=self.from_bytes, private=self.private, log=self.log)


def task_runner(
    spark: SparkThread | None, rules: TaskRules, warn: Callable[[str], None] = lambda _: None
) -> tuple[TaskRunner, int]:
    """The runner of a sink's tasks, and how many run at once: Spark, or threads where there is none, or none yet.

    `warn` hears that a Spark that came later was lost. One that is there from the beginning is started anew by whoever
    has tasks next.
    """
    if spark is None or spark.now is None:
        threads = os.cpu_count() or 1
        in_process = ThreadTaskRunner(threads)
        return in_process if spark is None else DeferredTaskRunner(spark, in_process, warn, rules=rules), threads
    from raycdc.spark.session import parallelism

    return RestartingTaskRunner(spark, rules), parallelism(spark.now)


class RestartingTaskRunner:
    """A `TaskRunner` on the session that `spark` has, or has anew; callable from any thread. `SparkLostError` where its
    JVM ends meanwhile: the same tasks may be run again.
    """

    def __init__(self, spark: SparkThread, rules: TaskRules) -> None:
        self._spark, self._rules = spark, rules

    def __call__(self, tasks: Sequence[StageTask[ResultT]]) -> list[ResultT]:
        return self._rules.on(self._spark.again())(tasks)


class DeferredTaskRunner:
    """A `TaskRunner` on `spark` once it is up, and on threads of this process before it is and when it is lost, which
    `warn` hears, until it is up again; callable from any thread.
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
        #: The session that had tasks last.
        self._had: Any = None
        #: When a lost one is started anew, and how long after the next loss.
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
        # A task gives the same files wherever it runs, and however often.
        return self._run_here(tasks)

    def _run_here(self, tasks: Sequence[StageTask[ResultT]]) -> list[ResultT]:
        now_s = self._clock()
        if (had := self._had) is not None:
            self._had, self._again_at_s = None, now_s + self._again_s
            self._again_s = min(2 * self._again_s, AGAIN_MAX_S)
            self._warn(f"{jvm_end.words(jvm_end.exit_code(had))} {HERE}")
        elif self._again_at_s is not None and now_s >= self._again_at_s:
            self._again_at_s = now_s + self._again_s
            # Nobody needs it, and the run may be ending.
            with suppress(RuntimeError, SinkError):
                self._spark.begin()
        results = self._in_process(tasks)
        self._rules.log.ran(EngineName.DRIVER, tasks)
        return results


#: Ends the warning of a run that goes on without Spark.
HERE = "Tasks of the sink run in the driver's process until it is up again."


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
    start may be broken off; it is called `at_once`, or when somebody begins it or wants the session. `warn` hears that
    one is started anew because work waits for it.
    """

    def __init__(
        self, make: Callable[[JvmStart], Any], *, at_once: bool = True, warn: Callable[[str], None] = lambda _: None
    ) -> None:
        self._make = make
        self._warn = warn
        #: The session whose end was told last.
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
        """Start Spark, if nobody has yet, or it did not start or is lost. `RuntimeError` at the end of the run, when
        nobody would end it any more; `SinkError` where it has ended for want of memory again and again.
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
        """The session, when it is there; the error of its start."""
        return self.begin().result()

    def again(self) -> Any:
        """The session, when it is there; for work that is done again: `SparkLostError` where Spark does not come up
        now.
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
        """The session if it is up, else None."""
        return self._session_up

    @property
    def _session_up(self) -> Any:
        made = _made(self._session)
        return None if made is None or jvm_end.exit_code(made) is not None else made

    def poll(self) -> None:
        """Raise `RaycdcError` where Spark was up and is lost."""
        made = _made(self._session)
        if made is not None and (code := jvm_end.exit_code(made)) is not None:
            raise RaycdcError(jvm_end.words(code))

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
            background_tasks.leave(self._end)

    def end(self) -> None:
        """Returns when Spark has ended, whoever else failed while it was being started; or at once where it was broken
        off, which ends by itself.
        """
        self.begin_end()
        self._thread.shutdown(wait=False)
        assert self._end is not None
        if self._end not in background_tasks.now():
            self._end.result()

    def _stop(self) -> None:
        """A failure of the start was told where it was waited for. One that is lost has nothing left to stop."""
        if (session := self._session_up) is None:
            return
        from py4j.protocol import Py4JError

        try:
            session.stop()
        except Py4JError as cause:
            if jvm_end.lost(session, cause) is None:
                raise


class MemoryEnds:
    """The ends of JVMs that had no memory left. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: Any = None
        self._at_s: list[float] = []

    def require_few(self, lost: Any) -> None:
        """`SinkError` where too many ended so lately; `lost` is the session before, if there was one that came up."""
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
    """The session that came up, be it lost by now or not."""
    if session is None or not session.done() or session.cancelled() or session.exception() is not None:
        return None
    return session.result()
