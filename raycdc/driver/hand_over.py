"""A run that begins in the driver's own process, and its hand-over to Ray and Spark once these are up.

Ray and Spark take seconds to start, which a run of a small table does not last. So the source side begins as threads of
the driver (`HandedLauncher`), stage tasks run there too, and both engines start later, beside that work.

The hand-over of the source side (`HandOver`) is a restart of it within the run, nothing else: the coordinator and its
readers end, a new generation fences whatever of them may be left, and the actors go on from the last manifest. That is
what happens when a coordinator is lost. Rows that were read and not sealed are read again, so the hand-over waits for
the end of an epoch; without a manifest there is none, because a start from "now" would be another one. The epoch loop
goes on meanwhile. The data side needs no hand-over: a task gives the same files wherever it runs.

*What if the process dies here?* Before the new generation: the next start goes on from the last manifest, as ever.
After it: the same, because the generation says nothing but who may write.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event, Lock
from typing import Protocol

from raycdc.config import PipelineConfig
from raycdc.failpoints import reach
from raycdc.runtime.coordinator_host import CoordinatorStart
from raycdc.runtime.launcher import CoordinatorHandle, Launcher, ReaderHandle
from raycdc.runtime.reader_worker import ReaderIdentity
from raycdc.runtime.scaling import SeenNode
from raycdc.source.protocol.job_status import JobStatus
from raycdc.threads import THREADS, Threads
from raycdc.transform.plain import needs_spark

#: Ray and Spark start when a run has lasted so long. Their start takes two cores for seconds, from the reading as well:
#: two million rows are in a lake by then.
START_AFTER_S = 5.0
#: Where nothing is committed by then (hundreds of tables are made first), they start this much later at most.
COMMIT_S = 10.0
#: Longest the hand-over waits for the end of an epoch. A table at rest has none, and loses nothing.
EPOCH_S = 5.0
#: How often it looks whether it has to wait any longer.
LOOK_S = 0.2


def begins_in_process(config: PipelineConfig, *, local: bool) -> bool:
    """Whether a run on Ray and Spark may begin without them: both are this machine's alone, and no row needs Spark."""
    if local or not config.pipeline.start_in_process or config.ray.address != "local" or not config.spark.is_here:
        return False
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        return False
    return not any(map(needs_spark, config.transformed().all))


class Engine(Protocol):
    """Something that starts beside the run (`raycdc.spark.lifecycle.SparkThread`)."""

    def begin(self) -> object:
        """Start it, in a thread of its own."""

    def warm_up(self) -> None:
        """Wait until it is up, or raise the error of its start; then let it get ready for its first work."""


class Side(Protocol):
    """The source side that is handed over (`raycdc.runtime.supervisor.Supervisor`)."""

    @property
    def ending(self) -> bool: ...

    def status(self, *, tables: bool) -> JobStatus | None: ...

    def next_sealed(self, after: int, *, wait_s: float) -> tuple[int | None, int | None]: ...

    def start_over(self, recover: Callable[[], None]) -> None: ...

    def fail(self, error: BaseException) -> None: ...


class HandedLauncher:
    """`Launcher` of this process's threads (`local`), and from `hand_over` on of what `make` starts for so many
    readers, with `beside`.

    All that `make` starts lives and ends on one thread, because Ray's processes die with the thread that started them.
    """

    def __init__(self, local: Launcher, make: Callable[[int], Launcher], beside: Engine) -> None:
        self._local = self._now = local
        self._make, self._beside = make, beside
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ray")
        self._made: Future[Launcher] | None = None

    @property
    def in_process(self) -> bool:
        """Whether this process still reads."""
        return self._now is self._local

    def prepare(self, readers: int) -> None:
        """Start what takes over. Blocks until it is up; raises the error of its start."""
        self._beside.begin()
        self._made = self._thread.submit(self._make, readers)
        self._made.result()
        self._beside.warm_up()

    def hand_over(self) -> None:
        """Whatever is started from now on is the other launcher's; called when nothing of the job runs."""
        reach("in_hand_over")
        assert self._made is not None, "it is prepared"
        self._now = self._made.result()

    def start_coordinator(self, start: CoordinatorStart) -> CoordinatorHandle:
        return self._now.start_coordinator(start)

    def start_reader(
        self, identity: ReaderIdentity, coordinator: CoordinatorHandle, *, place: str = ""
    ) -> ReaderHandle:
        return self._now.start_reader(identity, coordinator, place=place)

    def request_readers(self, count: int) -> None:
        self._now.request_readers(count)

    def nodes(self) -> Sequence[SeenNode]:
        return self._now.nodes()

    def avoid(self, node: str) -> None:
        self._now.avoid(node)

    def look(self, owing: Collection[str] | None = None) -> None:
        self._now.look(owing)

    def flights(self) -> Mapping[str, str]:
        return self._now.flights()

    def sweep(self, needed: Collection[str]) -> None:
        self._now.sweep(needed)

    def renew(self) -> bool:
        return self._thread.submit(self._now.renew).result()

    def close(self) -> None:
        """Returns when all has ended, also what was being started."""
        self._local.close()
        self._thread.submit(self._close_made)
        self._thread.shutdown()

    def _close_made(self) -> None:
        """A failure of the start was told where it was waited for."""
        if self._made is not None and self._made.exception() is None:
            self._made.result().close()


class HandOver:
    """See the module's docstring: a thread beside one `side`, which starts the other half of `launcher`.

    `has_manifest` says whether there is a place to go on from, `has_commit` whether anything was committed. `sweep`
    deletes what the readers before had not sealed; it is called while there are none.
    """

    def __init__(
        self,
        launcher: HandedLauncher,
        side: Side,
        *,
        has_manifest: Callable[[], bool],
        has_commit: Callable[[], bool],
        sweep: Callable[[], object],
        threads: Threads = THREADS,
    ) -> None:
        self._launcher, self._side = launcher, side
        self._has_manifest, self._has_commit, self._sweep = has_manifest, has_commit, sweep
        self._threads = threads
        self._closed = Event()
        #: Whoever has it may end the source side's processes.
        self._lock = Lock()
        threads.start(self._run, "hand-over")

    def close(self) -> None:
        """Nothing is handed over from now on. Returns when a hand-over under way is done."""
        self._closed.set()
        with self._lock:
            return

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - ends the run, told to every caller
            if not self._closed.is_set():
                self._side.fail(error)

    def _work(self) -> None:
        if self._threads.wait(self._closed, START_AFTER_S):
            return
        until_s = self._threads.now_s() + COMMIT_S
        while not self._has_commit() and self._threads.now_s() < until_s:
            if self._threads.wait(self._closed, LOOK_S):
                return
        if self._side.ending:
            return
        status = self._side.status(tables=False)
        self._launcher.prepare(max(1, len(status.readers) if status else 0))
        reach("before_hand_over")
        self._wait_for_epoch()
        with self._lock:
            if self._closed.is_set() or self._side.ending:
                return
            self._side.start_over(self._recover)
        reach("after_hand_over")

    def _recover(self) -> None:
        """Nothing of the job runs now."""
        self._sweep()
        self._launcher.hand_over()

    def _wait_for_epoch(self) -> None:
        """Return right after an epoch was sealed; after `EPOCH_S` without one; when the run ends."""
        newest = 0
        while (epoch := self._side.next_sealed(newest, wait_s=0)[0]) is not None:
            newest = epoch
        has_manifest = self._has_manifest()
        until_s = self._threads.now_s() + EPOCH_S
        while not self._closed.is_set():
            epoch, final = self._side.next_sealed(newest, wait_s=LOOK_S)
            # Nobody else seals, so that the state need not be asked again.
            has_manifest = has_manifest or epoch is not None
            waited = epoch is not None or self._threads.now_s() >= until_s
            if final is not None or (waited and has_manifest):
                return
            if epoch is not None:
                newest = epoch
