"""The processes that a driver's supervisor starts and watches, and the engines that have them once it hands over.
Ending one always works, unless it is cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future

from raycdc.errors import ClusterLostError, RaycdcError
from raycdc.model.engines import EngineName
from raycdc.runtime.coordinator.coordinator_host import CoordinatorStart
from raycdc.runtime.launcher import CoordinatorHandle, CoordinatorLostError
from raycdc.runtime.reader.reader_worker import ReaderIdentity
from raycdc.runtime.restarts import ProcessEnd
from raycdc.runtime.scaling import SeenNode
from tests.support.simulation.drivers.coordinator import SimCoordinator


class SimReaderHandle:
    """A reader as a `raycdc.runtime.launcher.ReaderHandle`; it only lives."""

    has_process = True
    node = ""

    def __init__(self, identity: ReaderIdentity, coordinator: SimCoordinator) -> None:
        self.identity = identity
        self.coordinator = coordinator
        self._end: ProcessEnd | None = None

    def __repr__(self) -> str:
        return f"SimReader({self.identity}, {self._end})"

    def ended(self) -> ProcessEnd | None:
        return self._end

    def kill(self) -> None:
        self.end("killed")

    def end(self, why: str) -> None:
        self._end = self._end or ProcessEnd(why)


class SimLauncher:
    """`raycdc.runtime.launcher.Launcher`. `start` makes the coordinator of a generation; `problems` takes what no
    supervisor may do. One that takes over from another, `before`, is an engine's, which may be lost.
    """

    engine = EngineName.RAY

    def __init__(
        self,
        start: Callable[[CoordinatorStart], SimCoordinator],
        problems: list[str],
        *,
        before: SimLauncher | None = None,
    ) -> None:
        #: The limits of both.
        self.coordinators: list[SimCoordinator] = [] if before is None else before.coordinators
        self.readers: list[SimReaderHandle] = [] if before is None else before.readers
        self._own: list[SimCoordinator] = []
        self._is_engine = before is not None
        self._lost = False
        #: The number of starts of a coordinator that fail.
        self.failing = 0
        self._start = start
        self._problems = problems

    def lose(self) -> None:
        """End the engine and all its processes."""
        self._lost = True
        for coordinator in self._own:
            coordinator.process.alive = False
        for reader in self.readers:
            if reader.coordinator in self._own:
                reader.end("Ray is gone")

    def start_coordinator(self, start: CoordinatorStart) -> SimCoordinator:
        self.poll()
        if self.failing:
            self.failing -= 1
            raise CoordinatorLostError("it does not start")
        if self.coordinators and start.generation <= self.coordinators[-1].generation:
            self._problems.append(f"a coordinator starts with the generation {start.generation}, which is in use")
        if any(c.process.alive and not c.cut_off for c in self.coordinators):
            self._problems.append(f"the coordinator of generation {start.generation} starts beside another one")
        self.coordinators.append(self._start(start))
        self._own.append(self.coordinators[-1])
        return self.coordinators[-1]

    def start_reader(
        self, identity: ReaderIdentity, coordinator: CoordinatorHandle, *, node: str = ""
    ) -> SimReaderHandle:
        assert isinstance(coordinator, SimCoordinator)
        if coordinator not in self._own:
            self._problems.append(f"{identity} starts elsewhere than its coordinator")
        for other in self.readers:
            if other.identity.subtask_id != identity.subtask_id or other.identity.generation != identity.generation:
                continue
            if other.ended() is None:
                self._problems.append(f"{identity} starts beside {other}")
            if other.identity.incarnation >= identity.incarnation:
                self._problems.append(f"{identity} starts behind {other}")
        reader = SimReaderHandle(identity, coordinator)
        self.readers.append(reader)
        coordinator.readers[identity.subtask_id] = identity.incarnation
        return reader

    def request_readers(self, count: int) -> None:
        """Do nothing: there are resources for all readers."""

    def nodes(self) -> list[SeenNode]:
        return [SeenNode("", 2.0, 2.0, own=True)]

    def avoid(self, node: str) -> None:
        """Do nothing: there is no other node."""

    def poll(self, owing: Collection[str] | None = None) -> None:
        """Check the engine; readers need nothing else."""
        if self._lost:
            raise ClusterLostError("Ray's head is gone.", "Run the pipeline again.")

    def flights(self) -> dict[str, str]:
        return {}

    def sweep(self, needed: Collection[str]) -> None:
        """Do nothing: no other node has segments."""

    def renew(self) -> bool:
        self._lost = False
        return self._is_engine

    def close(self) -> None:
        """Do nothing: nothing is left to close."""


class SimSpark:
    """Spark as a `raycdc.driver.engine_promotion.Engine` that is up immediately."""

    def __init__(self) -> None:
        self.lost = False

    def begin(self) -> Future[None]:
        self.lost = False
        up: Future[None] = Future()
        up.set_result(None)
        return up

    def warm_up(self) -> None:
        """Do nothing: there are no workers."""

    def poll(self) -> None:
        if self.lost:
            raise RaycdcError("Spark is gone.")
