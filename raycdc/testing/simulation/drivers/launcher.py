"""The processes that a driver's supervisor starts and watches. Ending one always works, unless it is cut off."""

from __future__ import annotations

from collections.abc import Callable, Collection

from raycdc.runtime.coordinator_host import CoordinatorStart
from raycdc.runtime.launcher import CoordinatorHandle, CoordinatorLostError
from raycdc.runtime.reader_worker import ReaderIdentity
from raycdc.runtime.restarts import ProcessEnd
from raycdc.runtime.scaling import SeenNode
from raycdc.testing.simulation.drivers.coordinator import SimCoordinator


class SimReader:
    """`raycdc.runtime.launcher.ReaderHandle`: it does nothing but live."""

    placed = True
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
    supervisor may do.
    """

    def __init__(self, start: Callable[[CoordinatorStart], SimCoordinator], problems: list[str]) -> None:
        self.coordinators: list[SimCoordinator] = []
        self.readers: list[SimReader] = []
        #: How many starts of a coordinator fail.
        self.failing = 0
        self._start = start
        self._problems = problems

    def start_coordinator(self, start: CoordinatorStart) -> SimCoordinator:
        if self.failing:
            self.failing -= 1
            raise CoordinatorLostError("it does not start")
        if self.coordinators and start.generation <= self.coordinators[-1].generation:
            self._problems.append(f"a coordinator starts with the generation {start.generation}, which is in use")
        if any(c.process.alive and not c.cut_off for c in self.coordinators):
            self._problems.append(f"the coordinator of generation {start.generation} starts beside another one")
        self.coordinators.append(self._start(start))
        return self.coordinators[-1]

    def start_reader(self, identity: ReaderIdentity, coordinator: CoordinatorHandle, *, place: str = "") -> SimReader:
        assert isinstance(coordinator, SimCoordinator)
        for other in self.readers:
            if other.identity.subtask_id != identity.subtask_id or other.identity.generation != identity.generation:
                continue
            if other.ended() is None:
                self._problems.append(f"{identity} starts beside {other}")
            if other.identity.incarnation >= identity.incarnation:
                self._problems.append(f"{identity} starts behind {other}")
        reader = SimReader(identity, coordinator)
        self.readers.append(reader)
        coordinator.readers[identity.subtask_id] = identity.incarnation
        return reader

    def request_readers(self, count: int) -> None:
        """There is room for all."""

    def nodes(self) -> list[SeenNode]:
        return [SeenNode("", 2.0, 2.0, own=True)]

    def avoid(self, node: str) -> None:
        """There is no other."""

    def look(self, owing: Collection[str] | None = None) -> None:
        """Readers need nothing beside them."""

    def flights(self) -> dict[str, str]:
        return {}

    def sweep(self, needed: Collection[str]) -> None:
        """No other node has segments."""

    def renew(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing is left to close."""
