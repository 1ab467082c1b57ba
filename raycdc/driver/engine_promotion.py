"""Starts a run in the driver's own process, and promotes it to Ray and Spark once these are up.

Ray and Spark take seconds to start, longer than a run of a small table lasts. The source side therefore begins as
threads of the driver (`PromotableLauncher`), the driver also runs stage tasks, and both engines start in the
background.

The promotion of the source side (`EnginePromotion`) is a restart within the run. The coordinator and its readers end, a
new generation fences their remaining threads, and Ray's actors continue from the last manifest, exactly as after the
loss of a coordinator. Rows that were read and not sealed are read again. To keep these few, the promotion waits for the
end of an epoch. There is no promotion before the first manifest, because a restart without a manifest could choose a
different log position. The epoch loop keeps running. The data side needs no promotion: a task writes the same files
wherever it runs.

*What if the process dies here?* The next start continues from the last manifest. A new generation does not change that,
because it only decides which process may write. *What if Ray or Spark dies?* Before the promotion, nothing of the run
depends on them: it goes on in its own process, reports the loss, and they are started again. After the promotion, a
lost Ray is started again as in any run (`raycdc.pipeline`). *What if the run ends while the engines start?* The run
does not wait. The start is left to end in the background (`raycdc.core.background_tasks`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from threading import Event, Lock
from typing import Any, Protocol, assert_never

from raycdc.config import PipelineConfig
from raycdc.core import background_tasks
from raycdc.core.failpoints import reach
from raycdc.core.threads import THREADS, Threads
from raycdc.errors import ClusterLostError, ConfigError, EngineNotStartedError, RaycdcError
from raycdc.model.engines import EngineName
from raycdc.observe.events import EnginesAtWork, EnginesPromoted, RunEvent, Warned
from raycdc.runtime.coordinator.coordinator_host import CoordinatorStart
from raycdc.runtime.launcher import CoordinatorHandle, Launcher, ReaderHandle
from raycdc.runtime.reader.reader_worker import ReaderIdentity
from raycdc.runtime.scaling import SeenNode
from raycdc.source.protocol.api import NO_TABLES
from raycdc.source.protocol.job_status import JobStatus
from raycdc.state.store import CheckpointStore
from raycdc.transform.resolved import needs_spark

_log = logging.getLogger(__name__)

#: Ray and Spark start when a run has lasted this long. Their start uses two cores for seconds, which slows reading; a
#: run reads and commits about two million rows in this time.
START_AFTER_S = 5.0
#: If nothing was committed by then, for example because hundreds of targets are created first, the engines start at
#: most this much later.
COMMIT_S = 10.0
#: A run that ends by itself within this time, estimated from its speed so far, starts no engines.
ENDS_SOON_S = 10.0
#: The longest time that the promotion waits for the end of an epoch. A table without changes has no epochs, and loses
#: nothing.
EPOCH_S = 5.0
#: Seconds between two checks for the condition for which the thread waits.
POLL_S = 0.2
#: Seconds until engines that died or did not start are started again: the first pause, and the longest one. Each pause
#: is twice as long as the one before.
AGAIN_S, AGAIN_MAX_S = 15.0, 600.0
#: Seconds between two checks by `close` if a running promotion has finished.
CLOSING_POLL_S = 0.02
#: A part of the warning that engines were lost or did not start; tests search for it.
STAYS = "The run goes on in its own process, and starts Ray and Spark again in"


def begins_in_process(config: PipelineConfig, *, local: bool) -> bool:
    """Return True if a run with Ray and Spark may begin without them.

    That is the case if both run on this machine only, and no row needs Spark.
    """
    if local or config.pipeline.engines != "auto" or config.ray.address != "local" or not config.spark.is_here:
        return False
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        # An earlier run may still be shutting down an initialized Ray, which this run must not use.
        background_tasks.wait_for(background_tasks.now())
        if ray.is_initialized():
            return False
    return not any(map(needs_spark, config.transformed().all))


class RunBeginning(Enum):
    """The way in which a run begins."""

    #: All work is done in this process, until the end.
    LOCAL = "local"
    #: The run begins in this process, and is promoted to Ray and Spark.
    HERE = "here"
    #: The run begins when Ray and Spark are up.
    ON_ENGINES = "on engines"

    @classmethod
    def of(cls, config: PipelineConfig, *, local: bool) -> RunBeginning:
        if local:
            return cls.LOCAL
        return cls.HERE if begins_in_process(config, local=local) else cls.ON_ENGINES

    def text(self, config: PipelineConfig) -> str:
        """Return the text of the run's first step."""
        match self:
            case RunBeginning.LOCAL:
                return f"starting: {EnginesAtWork()}"
            case RunBeginning.HERE:
                return f"starting: {EnginesAtWork(due_s=START_AFTER_S)}"
            case RunBeginning.ON_ENGINES:
                on_engines = EnginesAtWork(EngineName.RAY, EngineName.SPARK, from_bytes=config.spark_from_bytes)
                return f"starting Ray and Spark: {on_engines}"
            case other:
                assert_never(other)


class HasSession(Protocol):
    """Has the Spark session that is up now, if any (`raycdc.spark.lifecycle.SparkThread`)."""

    @property
    def now(self) -> Any: ...


class Engine(Protocol):
    """An engine that starts in the background of a run (`raycdc.spark.lifecycle.SparkThread`)."""

    def begin(self) -> Future[Any]:
        """Start the engine in its own thread unless it is up; return the future of its start."""

    def warm_up(self) -> None:
        """Prepare the engine, which is up, for its first work."""

    def poll(self) -> None:
        """Raise a `RaycdcError` if the engine was up and has died."""


@dataclass(frozen=True, slots=True)
class EnginesNow:
    """Returns the engines that read and write at a given time; `spark` is None without Spark."""

    config: PipelineConfig
    begins: RunBeginning
    spark: HasSession | None

    def now(self, read_by: EngineName) -> EnginesAtWork:
        """Return the engines that write now and those that are starting, given the engine that reads."""
        up = self.spark is not None and self.spark.now is not None
        due = self.begins is RunBeginning.HERE and read_by is EngineName.DRIVER
        return EnginesAtWork(
            read_by,
            EngineName.SPARK if up else EngineName.DRIVER,
            due_s=START_AFTER_S if due else None,
            from_bytes=self.config.spark_from_bytes,
        )


class PromotableSource(Protocol):
    """The source side that is promoted (`raycdc.runtime.supervisor.Supervisor`)."""

    @property
    def ending(self) -> bool: ...

    def status(self, *, tables: bool) -> JobStatus | None: ...

    def next_sealed(self, after: int, *, wait_s: float) -> tuple[int | None, int | None]: ...

    def start_over(self, recover: Callable[[], None]) -> None: ...

    def fail(self, error: BaseException) -> None: ...


class PromotableLauncher:
    """Launches threads in this process, and after `promote` the processes of the launcher that `make` creates.

    `make` receives the number of readers. `engine` is an additional engine that must be up before the promotion. The
    launcher of `make` is created and closed on one thread, because Ray's processes die with the thread that started
    them.
    """

    def __init__(
        self, local: Launcher, make: Callable[[int], Launcher], engine: Engine, *, threads: Threads = THREADS
    ) -> None:
        self._local = self._acting = local
        self._make, self._engine = make, engine
        self._threads = threads
        self._thread = threads.pool(1, "ray")
        #: Guards `_closed` and `_made`.
        self._lock = Lock()
        self._closed = Event()
        self._made: Future[Launcher] | None = None

    @property
    def in_process(self) -> bool:
        """Return True while readers run in this process."""
        return self._acting is self._local

    @property
    def engine(self) -> EngineName:
        return self._acting.engine

    def prepare(self, readers: int) -> None:
        """Start the launcher of `make`, and the engine.

        Blocks until both are up. Raises the error of their start, and the errors of `poll_next`.
        """
        session = self._engine.begin()
        before = background_tasks.now()
        with self._lock:
            if self._closed.is_set():
                raise RuntimeError("the launcher is closed")
            self._made = made = self._thread.submit(self._make_after, before, readers)
        made.result()
        while not session.done():
            self.poll_next()
            self._threads.wait(self._closed, POLL_S)
        session.result()
        self.poll_next()
        self._engine.warm_up()

    def poll_next(self) -> None:
        """Raise a `RaycdcError` if an engine that is about to take over has died."""
        self._engine.poll()
        if self._made is not None:
            self._made.result().poll()

    def discard(self) -> None:
        """End the launcher of `make`, if it was started. Returns when it has ended."""
        with self._lock:
            made, self._made = self._made, None
            if made is None or self._closed.is_set():
                return
            ended = self._thread.submit(_close_lost, made)
        ended.result()

    def promote(self) -> None:
        """Make the launcher of `make` start all later processes. Called while no process of the job runs."""
        reach("in_hand_over")
        assert self._made is not None, "it is prepared"
        self._acting = self._made.result()

    def start_coordinator(self, start: CoordinatorStart) -> CoordinatorHandle:
        return self._acting.start_coordinator(start)

    def start_reader(self, identity: ReaderIdentity, coordinator: CoordinatorHandle, *, node: str = "") -> ReaderHandle:
        return self._acting.start_reader(identity, coordinator, node=node)

    def request_readers(self, count: int) -> None:
        self._acting.request_readers(count)

    def nodes(self) -> Sequence[SeenNode]:
        return self._acting.nodes()

    def avoid(self, node: str) -> None:
        self._acting.avoid(node)

    def poll(self, owing: Collection[str] | None = None) -> None:
        self._acting.poll(owing)

    def flights(self) -> Mapping[str, str]:
        return self._acting.flights()

    def sweep(self, needed: Collection[str]) -> None:
        self._acting.sweep(needed)

    def renew(self) -> bool:
        return self._thread.submit(self._acting.renew).result()

    def close(self) -> None:
        """End both launchers and wait for them.

        A start in progress is left to finish in the background, which takes seconds.
        """
        self._local.close()
        with self._lock:
            self._closed.set()
            # If the launcher of `make` never took over, nothing depends on it, so its errors while closing are only
            # logged.
            ends = _close_lost if self.in_process else _close
            ended = None if self._made is None else self._thread.submit(ends, self._made)
            coming = self._made is not None and not self._made.done()
        if ended is not None and coming:
            background_tasks.leave(ended)
        elif ended is not None:
            ended.result()
        self._thread.shutdown(wait=False)

    def _make_after(self, before: Sequence[Future[Any]], readers: int) -> Launcher:
        background_tasks.wait_for(before)
        return self._make(readers)


def _close_lost(made: Future[Launcher]) -> None:
    """Close the launcher and log errors. If their cause lasts, the next start fails and reports it."""
    try:
        _close(made)
    except Exception:  # noqa: BLE001
        _log.exception("engines that were about to take over did not end")


def _close(made: Future[Launcher]) -> None:
    try:
        launcher = made.result()
    except Exception:  # noqa: BLE001 - raised again where it is waited for
        return
    launcher.close()


@dataclass(frozen=True, slots=True)
class PromotionState:
    """The promotion's view of the state.

    `has_manifest` and `has_commit` say if there is a manifest to continue from, and any commit. `sweep` deletes the
    unsealed rows of earlier readers; it is called while no reader runs.
    """

    has_manifest: Callable[[], bool]
    has_commit: Callable[[], bool]
    sweep: Callable[[], object]

    @classmethod
    def of(cls, store: CheckpointStore) -> PromotionState:
        return cls(
            has_manifest=lambda: store.last_manifest() is not None,
            has_commit=lambda: store.last_commit() is not None,
            sweep=store.sweep_spool,
        )


@dataclass(frozen=True, slots=True)
class EnginesDue:
    """When engines start: `after_s` seconds after the start of the run (None: `START_AFTER_S`).

    If `ends_by_itself` is True, they start a little later if the run is about to catch up and end.
    """

    after_s: float | None = None
    ends_by_itself: bool = False


class EnginePromotion:
    """Promotes one `side` in a thread; see the module's docstring.

    It starts the engines of `launcher` when they are `due`. `notify` is called from that thread when the promotion is
    done, and for warnings.
    """

    def __init__(
        self,
        launcher: PromotableLauncher,
        side: PromotableSource,
        state: PromotionState,
        *,
        notify: Callable[[RunEvent], None],
        due: EnginesDue = EnginesDue(),
        threads: Threads = THREADS,
    ) -> None:
        self._launcher, self._side, self._state = launcher, side, state
        self._due = due
        self._notify = notify
        self._threads = threads
        self._begun_s = threads.now_s()
        self._closed = Event()
        #: True while the processes of the source side are being ended.
        self._handing = False
        threads.start(self._run, "hand-over")

    def close(self) -> None:
        """Prevent any further promotion. Waits for a promotion in progress, but not for an engine that starts."""
        self._closed.set()
        while self._handing:
            self._threads.wait(Event(), CLOSING_POLL_S)

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - ends the run, raised to every caller
            if not self._closed.is_set():
                self._side.fail(error)

    def _work(self) -> None:
        if self._threads.wait(self._closed, START_AFTER_S if self._due.after_s is None else self._due.after_s):
            return
        self._wait_until(self._state.has_commit, at_most_s=COMMIT_S)
        if self._due.ends_by_itself:
            self._wait_until(lambda: not self._ends_soon(), at_most_s=ENDS_SOON_S)
        pause_s = AGAIN_S
        while not (self._closed.is_set() or self._side.ending):
            try:
                self._prepare()
            except Exception as error:
                if isinstance(error, ConfigError) and not isinstance(error, EngineNotStartedError):
                    raise  # The same error would be raised at every start.
                if self._closed.is_set() or self._side.ending:
                    return
                self._launcher.discard()
                self._notify(Warned(f"{_first_line(error)} {STAYS} {pause_s:.0f} s."))
                if self._threads.wait(self._closed, pause_s):
                    return
                pause_s = min(2 * pause_s, AGAIN_MAX_S)
            else:
                self._promote()
                return

    def _wait_until(self, condition: Callable[[], bool], *, at_most_s: float) -> None:
        """Return when `condition` holds, after `at_most_s`, or immediately when the promotion is closed."""
        until_s = self._threads.now_s() + at_most_s
        while not (self._closed.is_set() or condition()) and self._threads.now_s() < until_s:
            self._threads.wait(self._closed, POLL_S)

    def _ends_soon(self) -> bool:
        """Return True if the snapshots are complete, or will be within `ENDS_SOON_S` at their speed so far."""
        status = self._side.status(tables=False)
        counts = NO_TABLES if status is None else status.counts
        if not counts.chunks_done:
            return False
        chunks = counts.chunks_done / (counts.chunks_done + counts.chunks_left)
        done = min(chunks, 1 - counts.in_snapshot / counts.tables)
        lasted_s = self._threads.now_s() - self._begun_s
        return lasted_s * (1 - done) <= ENDS_SOON_S * done

    def _prepare(self) -> None:
        """Start the engines, and wait for the end of an epoch.

        Raises the error that keeps the engines from taking over.
        """
        status = self._side.status(tables=False)
        self._launcher.prepare(max(1, len(status.readers) if status else 0))
        reach("before_hand_over")
        self._wait_for_epoch()
        self._launcher.poll_next()

    def _promote(self) -> None:
        self._handing = True
        try:
            # This order matters: `close` sets `_closed` first and then reads `_handing`.
            if self._closed.is_set() or self._side.ending:
                return
            self._side.start_over(self._recover)
        finally:
            self._handing = False
        self._notify(EnginesPromoted(round(self._threads.now_s() - self._begun_s, 1)))
        reach("after_hand_over")

    def _recover(self) -> None:
        """Sweep the state and switch the launcher. Called while no process of the job runs."""
        self._state.sweep()
        self._launcher.promote()

    def _wait_for_epoch(self) -> None:
        """Return right after an epoch was sealed; after `EPOCH_S` if none was; or when the run ends.

        Raises the errors of `PromotableLauncher.poll_next`.
        """
        newest = 0
        while (epoch := self._side.next_sealed(newest, wait_s=0)[0]) is not None:
            newest = epoch
        has_manifest = self._state.has_manifest()
        until_s = self._threads.now_s() + EPOCH_S
        while not self._closed.is_set():
            self._launcher.poll_next()
            epoch, final = self._side.next_sealed(newest, wait_s=POLL_S)
            # Only this run seals, so the state need not be read again.
            has_manifest = has_manifest or epoch is not None
            waited = epoch is not None or self._threads.now_s() >= until_s
            if final is not None or (waited and has_manifest):
                return
            if epoch is not None:
                newest = epoch


def _first_line(error: Exception) -> str:
    """Return the error's first line, without advice that applies only to a run that ends."""
    if isinstance(error, ClusterLostError):
        return error.what
    text = str(error).strip().partition("\n")[0]
    return (
        text if isinstance(error, RaycdcError) else f"Ray and Spark did not come up ({type(error).__name__}: {text})."
    )
