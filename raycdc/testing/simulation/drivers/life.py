"""One driver, from its start to its end: the parts of `raycdc.pipeline`, put together in the same order.

Store, term, sink's protocol, epoch loop and supervisor are the product's. Only disk, server, source side and threads
are the simulation's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from raycdc.bridge.tasks import run_in_process
from raycdc.checkpoint.manifest import Manifest
from raycdc.checkpoint.manifest_files import Compaction
from raycdc.checkpoint.parked import ParkedTarget
from raycdc.checkpoint.store import CheckpointStore
from raycdc.checkpoint.term import DriverTerm
from raycdc.driver.commands import CommandDesk
from raycdc.driver.live_commands import LiveCommands
from raycdc.epochs.epoch_loop import EpochLoop
from raycdc.epochs.outcomes import EpochStatistics
from raycdc.epochs.parked_targets import Parking, Parks
from raycdc.epochs.ports import EpochPorts
from raycdc.errors import SegmentUnavailableError
from raycdc.runtime.coordinator_host import CoordinatorStart
from raycdc.runtime.scaling import Limits
from raycdc.runtime.supervisor import Supervisor, SupervisorSettings
from raycdc.sinks.api import CHANGELOG, SinkContext
from raycdc.source.parking import Asked
from raycdc.source.table_commands import Command, CommandRules
from raycdc.source.table_requests import ask_for_lost_rows, refusals_of, settle
from raycdc.testing.simulation.drivers.coordinator import SimCoordinator, SourceSide
from raycdc.testing.simulation.drivers.disk import MemoryDisk
from raycdc.testing.simulation.drivers.fibers import Fibers, FiberThreads, Process
from raycdc.testing.simulation.drivers.launcher import SimLauncher
from raycdc.testing.simulation.drivers.objects import PLACE, MemoryObjects, SimulatedPlace
from raycdc.testing.simulation.drivers.targets import SimServer, SimSink

READERS_MAX = 2
#: Every table is selected, and rows of two are never in one target.
RULES = CommandRules(updates_rows=False, is_selected=lambda _: None)


@dataclass(slots=True)
class Surroundings:
    """The parts that outlive a driver. `problems` takes what breaks a promise."""

    state: Path
    disk: MemoryDisk
    server: SimServer
    source: SourceSide
    problems: list[str] = field(default_factory=list)
    #: Where the state is on an object store.
    objects: MemoryObjects | None = None
    compaction: Compaction | None = None
    #: Whether drivers take commands about tables.
    commands: bool = False

    def store(self) -> CheckpointStore:
        """The state as a process has it that opens it now."""
        if self.objects is not None:
            place = SimulatedPlace(PLACE, self.state, store=self.objects.of(self.source.fibers))
            return CheckpointStore(place, pipeline="simulated", compaction=self.compaction)
        disk = self.disk.of(self.source.fibers)
        return CheckpointStore(self.state, pipeline="simulated", disk=disk, compaction=self.compaction)


class AtomicDesk(CommandDesk):
    """What the driver does with the lock of its documents is one step, in which it may die."""

    def __init__(self, store: CheckpointStore, fibers: Fibers) -> None:
        super().__init__(store)
        self._fibers = fibers

    def take(self, commands: Sequence[Command], rules: CommandRules) -> list[Asked]:
        with self._fibers.atomic():
            return super().take(commands, rules)


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The supervisor for commands: what it does with its lock is one step, in which the driver may die."""

    supervisor: Supervisor
    fibers: Fibers

    @property
    def ending(self) -> bool:
        return self.supervisor.ending

    def start_over(self, recover: Callable[[], list[Asked]]) -> list[Asked]:
        with self.fibers.atomic():
            return self.supervisor.start_over(recover)

    def fail(self, error: BaseException) -> None:
        self.supervisor.fail(error)


class Life:
    """See the module's docstring. `run` is the driver's main thread."""

    def __init__(self, number: int, around: Surroundings) -> None:
        self.process = Process(f"driver {number}")
        self.launcher = SimLauncher(self._coordinator, around.problems)
        self.threads = FiberThreads(around.source.fibers, self.process)
        #: What the epoch loop tells of its end: an error, or that the last epoch is committed.
        self.error: Exception | None = None
        self.finished = False
        self.term: DriverTerm | None = None
        self._around = around
        self._supervisor: Supervisor | None = None
        self._commands: LiveCommands | None = None
        self.threads.start(self._run, "main")

    def __repr__(self) -> str:
        return f"Life({self.process}, {self.term}, finished={self.finished}, error={self.error!r})"

    def die(self, *, leaves: bool = False) -> None:
        """The process ends here, and its coordinators with it, unless it `leaves` them behind."""
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
        if self._commands is not None:
            self._commands.close()
            taker = next(fiber for fiber in self.threads.started if fiber.name == "commands")
            self.threads.wait_for(lambda: taker.done, float("inf"))
        if self._supervisor is not None:
            self._supervisor.close()
        self.die()

    def _work(self) -> None:
        around = self._around
        store = around.store()
        self.term = term = DriverTerm(store)
        sink = SimSink(around.server, around.source.fibers)
        sink.open(SinkContext(store.app_id, CHANGELOG, run_in_process))
        ports = EpochPorts(
            generation=term.generation,
            next_sealed=lambda after, wait_s: self._next_sealed(store, after, wait_s),
            on_committed=lambda figures: self._committed(store, figures),
            begin_again=lambda manifest, tables, _: self._lost(store, manifest, list(map(str, tables))),
            parking=Parking(Parks(), on_parked=self._parked),
            threads=self.threads,
        )
        loop = EpochLoop(store, sink, ports)
        loop.recover()
        desk = None
        if around.commands:
            desk = AtomicDesk(store, around.source.fibers)
            desk.take(desk.waiting(), RULES)
        store.sweep_spool()
        self._supervisor = self._supervise(store, term)
        if desk is not None:
            side = Interrupted(self._supervisor, around.source.fibers)
            self._commands = LiveCommands(desk, RULES, side, tell=lambda _: None, threads=self.threads)
        while True:
            try:
                loop.run()
                return
            except SegmentUnavailableError:
                # The supervisor's own thread waits for the lock that it has meanwhile.
                with self.threads.held("supervisor"), self.threads.held("commands"):
                    self._supervisor.start_over(loop.recover)

    def _supervise(self, store: CheckpointStore, term: DriverTerm) -> Supervisor:
        def next_generation() -> int:
            with self._around.source.fibers.atomic():
                return term.for_coordinator()

        def committed() -> int:
            with self._around.source.fibers.atomic():
                record = store.last_commit()
            return record.epoch if record else 0

        settings = SupervisorSettings(
            limits=Limits(1, READERS_MAX),
            next_generation=next_generation,
            committed=committed,
            on_processes=lambda *_: None,
            threads=self.threads,
        )
        return Supervisor(self.launcher, settings)

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
                settle(store, figures.epoch)
            self._supervisor.epoch_committed(figures.epoch)

    def _lost(self, store: CheckpointStore, manifest: Manifest, tables: list[str]) -> None:
        with self._around.source.fibers.atomic() if self._around.commands else nullcontext():
            ask_for_lost_rows(store, manifest, tables)

    def _parked(self, entries: Mapping[str, ParkedTarget]) -> None:
        if self._supervisor is not None:
            self._supervisor.park_tables(refusals_of(entries))
