"""One driver, from its start to its end: the parts of `raycdc.pipeline`, put together in the same order.

Store, term, sink's protocol, epoch loop and supervisor are the product's. Only disk, server, source side and threads
are the simulation's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from raycdc.core.retry import RetryPolicy
from raycdc.delivery.epoch_loop import EpochLoop
from raycdc.delivery.outcomes import EpochStatistics
from raycdc.delivery.ports import EpochPorts
from raycdc.delivery.targets.parked_targets import ParkingPolicy, Parks, SinkOutagePolicy
from raycdc.driver.command_queue import CommandQueue
from raycdc.driver.engine_promotion import EnginePromotion, EnginesDue, PromotableLauncher, PromotionState
from raycdc.driver.live_commands import LiveCommands
from raycdc.errors import ClusterLostError, RaycdcError, SegmentUnavailableError
from raycdc.observe.events import EnginesPromoted, RunEvent
from raycdc.runtime.coordinator.coordinator_host import CoordinatorStart
from raycdc.runtime.scaling import ReaderLimits
from raycdc.runtime.supervisor import Supervisor, SupervisorSettings
from raycdc.segments.tasks import run_in_process
from raycdc.sinks.api import CHANGELOG, SinkContext
from raycdc.source.protocol.job_status import JobStatus
from raycdc.source.tables.parking import CommandDecision
from raycdc.source.tables.table_commands import CommandRules, TableCommand
from raycdc.source.tables.table_requests import ask_for_lost_rows, complete_requests, refusals_of
from raycdc.state.drivers.driver_generation import DriverGeneration
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.manifests.manifest_files import ManifestCompaction
from raycdc.state.parked import ParkedTarget
from raycdc.state.store import CheckpointStore
from tests.support.simulation.drivers.coordinator import SimCoordinator, SimSourceSide
from tests.support.simulation.drivers.disk import PLACE, MemoryDisk, MemoryObjects, SimStateLocation
from tests.support.simulation.drivers.fibers import Fibers, FiberThreads, Process
from tests.support.simulation.drivers.launcher import SimLauncher, SimSpark
from tests.support.simulation.drivers.targets import SimServer, SimSink

READERS_MAX = 2
#: The number of engines that fail to start.
ENGINES_FAIL = 0.2
#: A sink is waited for as long as a story can wait.
WAITING = SinkOutagePolicy(policy=RetryPolicy(retry_s=1.0))
T = TypeVar("T")
#: Every table is selected, and rows of two are never in one target.
RULES = CommandRules(updates_rows=False, is_selected=lambda _: None)


@dataclass(slots=True)
class SimEnvironment:
    """The parts that outlive a driver. `problems` takes what breaks a promise."""

    state: Path
    disk: MemoryDisk
    server: SimServer
    source: SimSourceSide
    problems: list[str] = field(default_factory=list)
    #: True if the state is on an object store.
    objects: MemoryObjects | None = None
    compaction: ManifestCompaction | None = None
    #: True if drivers take commands about tables.
    commands: bool = False
    #: True if drivers begin in their own process and are promoted to engines.
    hands_over: bool = False

    def store(self) -> CheckpointStore:
        """Open the state for a process."""
        if self.objects is not None:
            place = SimStateLocation(PLACE, self.state, store=self.objects.of(self.source.fibers))
            return CheckpointStore(place, pipeline="simulated", compaction=self.compaction)
        disk = self.disk.of(self.source.fibers)
        return CheckpointStore(self.state, pipeline="simulated", disk=disk, compaction=self.compaction)


class AtomicCommandQueue(CommandQueue):
    """What the driver does with the lock of its documents is one step, in which it may die."""

    def __init__(self, store: CheckpointStore, fibers: Fibers) -> None:
        super().__init__(store)
        self._fibers = fibers

    def take(self, commands: Sequence[TableCommand], rules: CommandRules) -> list[CommandDecision]:
        with self._fibers.atomic():
            return super().take(commands, rules)


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The supervisor for commands and for the hand-over: what it does with its lock is one step, in which the driver
    may die.
    """

    supervisor: Supervisor
    fibers: Fibers

    @property
    def ending(self) -> bool:
        return self.supervisor.ending

    def status(self, *, tables: bool) -> JobStatus | None:
        return self.supervisor.status(tables=tables)

    def next_sealed(self, after: int, *, wait_s: float) -> tuple[int | None, int | None]:
        return self.supervisor.next_sealed(after, wait_s=wait_s)

    def start_over(self, recover: Callable[[], T]) -> T:
        with self.fibers.atomic():
            return self.supervisor.start_over(recover)

    def fail(self, error: BaseException) -> None:
        if isinstance(error, Exception):  # Else the process died, and has nothing more to say.
            self.supervisor.fail(error)


class Life:
    """One driver; see the module's docstring. `run` is its main thread."""

    def __init__(self, number: int, around: SimEnvironment) -> None:
        self.process = Process(f"driver {number}")
        self.launcher = SimLauncher(self._coordinator, around.problems)
        self.threads = FiberThreads(around.source.fibers, self.process)
        #: What the epoch loop tells of its end: an error, or that the last epoch is committed.
        self.error: Exception | None = None
        self.finished = False
        self.term: DriverGeneration | None = None
        self._around = around
        self._supervisor: Supervisor | None = None
        self._commands: LiveCommands | None = None
        #: The engines that were started.
        self.engines: list[SimLauncher] = []
        self.spark = SimSpark()
        self._handed: PromotableLauncher | None = None
        self._promote: EnginePromotion | None = None
        if around.hands_over:
            self._handed = PromotableLauncher(self.launcher, self._engine, self.spark, threads=self.threads)
        self.threads.start(self._run, "main")

    def __repr__(self) -> str:
        return f"Life({self.process}, {self.term}, finished={self.finished}, error={self.error!r})"

    def die(self, *, leaves: bool = False) -> None:
        """End the process and its coordinators, unless it `leaves` these behind."""
        self.process.alive = False
        for coordinator in self.launcher.coordinators:
            if leaves:
                coordinator.cut_off = True
            else:
                coordinator.process.alive = False

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - the world judges
            self.error = error
        else:
            self.finished = True
        self._end_following()
        self.die()
        if any(coordinator.process.alive for coordinator in self.launcher.coordinators):
            self._around.problems.append(f"{self.process} ended, and left a coordinator")

    def _end_following(self) -> None:
        """Undo the start in the order of `raycdc.pipeline`."""
        if self._promote is not None:
            self._promote.close()
        if self._commands is not None:
            self._commands.close()
            takers = [fiber for fiber in self.threads.started if fiber.name == "commands"]
            self.threads.wait_for(lambda: all(output_mode.done for output_mode in takers), float("inf"))
        if self._supervisor is not None:
            before = len(self.launcher.coordinators)
            with self.threads.held("hand-over"):
                self._supervisor.close()
            if len(self.launcher.coordinators) != before:
                self._around.problems.append("a coordinator was started while the run ended")
        self._promote = self._commands = self._supervisor = None

    def _work(self) -> None:
        around = self._around
        store = around.store()
        self.term = term = DriverGeneration(store)
        sink = SimSink(around.server, around.source.fibers)
        sink.open(SinkContext(store.app_id, CHANGELOG, run_in_process))
        ports = EpochPorts(
            generation=term.generation,
            next_sealed=lambda after, wait_s: self._next_sealed(store, after, wait_s),
            on_committed=lambda figures: self._committed(store, figures),
            request_resnapshot=lambda manifest, tables, _: self._lost(store, manifest, list(map(str, tables))),
            parking=ParkingPolicy(Parks(), on_parked=self._parked, waiting=WAITING),
            threads=self.threads,
        )
        loop = EpochLoop(store, sink, ports)
        loop.recover()
        desk = None
        if around.commands:
            desk = AtomicCommandQueue(store, around.source.fibers)
            desk.take(desk.waiting(), RULES)
        while True:
            try:
                self._follow(store, term, loop, desk)
                return
            except ClusterLostError:
                self._end_following()
                if self._handed is None or not self._handed.renew():
                    raise
            self.threads.wait(threading.Event(), 1.0)
            loop.recover()

    def _follow(
        self, store: CheckpointStore, term: DriverGeneration, loop: EpochLoop, desk: CommandQueue | None
    ) -> None:
        fibers = self._around.source.fibers
        store.sweep_spool()
        supervisor = self._supervisor = self._supervise(store, term)
        side = Interrupted(supervisor, fibers)
        if desk is not None:
            self._commands = LiveCommands(desk, RULES, side, notify=lambda _: None, threads=self.threads)
        if self._handed is not None and self._handed.in_process:
            self._promote = EnginePromotion(
                self._handed,
                side,
                PromotionState.of(store),
                notify=partial(self._told, store),
                due=EnginesDue(self._around.source.chance.uniform(0.0, 2.0)),
                threads=self.threads,
            )
        while True:
            try:
                loop.run()
                return
            except SegmentUnavailableError:
                # Other threads wait for the lock of the supervisor meanwhile.
                with self.threads.held("supervisor"), self.threads.held("commands"), self.threads.held("hand-over"):
                    supervisor.start_over(loop.recover)

    def _engine(self, _: int) -> SimLauncher:
        """Start an engine, which takes time and may fail."""
        chance = self._around.source.chance
        self.threads.wait(threading.Event(), chance.uniform(0.0, 4.0))
        if chance.random() < ENGINES_FAIL:
            raise RaycdcError("Ray did not start.")
        self.engines.append(SimLauncher(self._coordinator, self._around.problems, before=self.launcher))
        return self.engines[-1]

    def _told(self, store: CheckpointStore, event: RunEvent) -> None:
        """Who hands over has a place to go on from: a start from "now" would be another one."""
        if isinstance(event, EnginesPromoted):
            with self._around.source.fibers.atomic():
                if store.last_manifest() is None:
                    self._around.problems.append(f"{self.process} hands over without a manifest")

    def _supervise(self, store: CheckpointStore, term: DriverGeneration) -> Supervisor:
        def next_generation() -> int:
            with self._around.source.fibers.atomic():
                return term.for_coordinator()

        def committed() -> int:
            with self._around.source.fibers.atomic():
                record = store.last_commit()
            return record.epoch if record else 0

        settings = SupervisorSettings(
            limits=ReaderLimits(1, READERS_MAX),
            next_generation=next_generation,
            committed=committed,
            on_processes=lambda *_: None,
            threads=self.threads,
        )
        return Supervisor(self._handed or self.launcher, settings)

    def _coordinator(self, start: CoordinatorStart) -> SimCoordinator:
        process = Process(f"coordinator {start.generation}")
        with self._around.source.fibers.atomic():
            return SimCoordinator(process, self._around.source, self._around.store(), start)

    def _next_sealed(self, store: CheckpointStore, after: int, wait_s: float) -> Manifest | None:
        assert self._supervisor is not None
        epoch, _ = self._supervisor.next_sealed(after, wait_s=wait_s)
        return None if epoch is None else store.manifest(epoch)

    def _committed(self, store: CheckpointStore, figures: EpochStatistics) -> None:
        if self._supervisor is not None:
            with self._around.source.fibers.atomic() if self._around.commands else nullcontext():
                complete_requests(store, figures.epoch)
            self._supervisor.epoch_committed(figures.epoch)

    def _lost(self, store: CheckpointStore, manifest: Manifest, tables: list[str]) -> None:
        with self._around.source.fibers.atomic() if self._around.commands else nullcontext():
            ask_for_lost_rows(store, manifest, tables)

    def _parked(self, entries: Mapping[str, ParkedTarget]) -> None:
        if self._supervisor is not None:
            self._supervisor.park_tables(refusals_of(entries))
