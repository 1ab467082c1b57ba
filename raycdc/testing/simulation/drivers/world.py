"""The story of one state under a random schedule, from one seed: drivers that die, a calm end, and the oracle."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from raycdc.checkpoint.manifest_files import Compaction
from raycdc.errors import RaycdcError, SegmentUnavailableError, SinkLockedError
from raycdc.failpoints import heard
from raycdc.source.parking import TableRequest
from raycdc.source.table_requests import ask
from raycdc.testing.simulation.drivers.coordinator import SourceSide
from raycdc.testing.simulation.drivers.disk import MemoryDisk
from raycdc.testing.simulation.drivers.faults import Faults
from raycdc.testing.simulation.drivers.fibers import Fibers
from raycdc.testing.simulation.drivers.life import Life, Surroundings
from raycdc.testing.simulation.drivers.log import SourceLog
from raycdc.testing.simulation.drivers.objects import MemoryObjects
from raycdc.testing.simulation.drivers.oracle import DriverOracle
from raycdc.testing.simulation.drivers.scene import Scene
from raycdc.testing.simulation.drivers.settings import DriverSettings
from raycdc.testing.simulation.drivers.targets import ConflictError, SimServer, SinkAwayError
from raycdc.testing.simulation.drivers.user import User
from raycdc.testing.simulation.network import Clock
from raycdc.testing.simulation.world import SimulationError

#: Steps of the calm end after which a job that has not finished counts as stuck.
CALM_STEPS_MAX = 30_000
#: Ends of a driver that another start mends.
TRANSIENT = (SinkAwayError, ConflictError, SegmentUnavailableError)
#: What a driver ends with when one that was replaced got in its way, once, before it was fenced.
INTERFERENCE = ("the epoch will be kept", "epoch numbers are used once")
#: Manifests that are hardly ever whole, and a base after every other one.
CHANGES = Compaction(whole_below=0, share_max=1000.0, chain_max=2, record_share_max=0.5)


class DriverSimulation:
    """See the module's docstring. `run` raises `SimulationError`, whose text has the seed."""

    _scene: Scene
    _oracle: DriverOracle
    _faults: Faults
    _user: User

    def __init__(self, seed: int, *, settings: DriverSettings | None = None) -> None:
        self.seed = seed
        self._chance = random.Random(seed)
        self.settings = settings or DriverSettings.of(self._chance)
        self._started = 0

    @property
    def trace(self) -> Sequence[str]:
        """The last events of the story, once it runs."""
        return tuple(self._scene.trace)

    def run(self) -> None:
        """The whole story."""
        with tempfile.TemporaryDirectory(prefix="raycdc-sim-") as folder, heard(self._reached):
            self._begin(Path(folder) / "state")
            try:
                self._chaos()
                self._calm()
                self._oracle.final(self._scene.log)
                self._check()
            except SimulationError:
                raise
            except Exception as error:
                raise SimulationError(self._scene.report(f"{type(error).__name__}: {error}")) from error
            finally:
                self._scene.fibers.end()

    def _begin(self, state: Path) -> None:
        chance, settings, clock = self._chance, self.settings, Clock()
        fibers = Fibers(chance, clock)
        log = SourceLog(chance, settings.tables)
        server = SimServer(chance, whole=settings.whole)
        side = SourceSide(fibers, log, chance)
        around = Surroundings(
            state,
            MemoryDisk(),
            server,
            side,
            objects=MemoryObjects(chance) if settings.on_store else None,
            compaction=CHANGES if settings.changes else None,
            commands=settings.commands > 0,
            hands_over=settings.hands_over,
        )
        (state / "spool").mkdir(parents=True)
        self._scene = Scene(self.seed, settings, chance, clock, fibers, log, around)
        self._oracle = DriverOracle(around)
        self._faults = Faults(self._scene, self._oracle)
        self._user = User(self._scene)
        fibers.on_pause = self._faults.at_pause

    def _chaos(self) -> None:
        self._scene.around.server.answers_lost = self.settings.answers_lost
        if self._scene.around.objects is not None:
            self._scene.around.objects.replies_lost = self.settings.replies_lost
        for _ in range(self.settings.steps):
            if self._chance.random() < 0.08:
                self._scene.log.change()
            elif self._chance.random() < self.settings.new_columns:
                self._scene.log.add_column()
            if self.settings.commands and self._chance.random() < self.settings.commands:
                self._user.give()
            self._faults.between_steps()
            self._step()

    def _calm(self) -> None:
        """No more changes and no more faults: whatever was paused wakes up, and the job must get to the log's end."""
        self._scene.has_faults = False
        self._scene.around.server.answers_lost = 0.0
        if self._scene.around.objects is not None:
            self._scene.around.objects.replies_lost = 0.0
        self._scene.around.server.refuses.clear()
        self._scene.around.server.locked.clear()
        self._scene.around.source.until_caught_up = True
        for life in self._scene.lives:
            life.process.paused = False
        for coordinator in self._scene.coordinators():
            coordinator.stop()
        for _ in range(CALM_STEPS_MAX):
            self._step()
            if not self._scene.lives and self._scene.caught_up():
                self._user.require_answers()
                return
        raise SimulationError(self._scene.report("the job is stuck"))

    def _step(self) -> None:
        self._scene.clock.advance(self._chance.uniform(0, 0.05))
        if not any(life.process.alive and not life.process.paused for life in self._scene.lives) and (
            not self._scene.has_faults or self._chance.random() < 0.1
        ):
            self._start()
        if not self._scene.fibers.step():
            self._scene.clock.advance(0.2)
        self._judge()
        self._check()

    def _start(self) -> None:
        """Another driver, on another machine where one is paused: the lease says nothing there."""
        store = self._scene.store()
        if store is not None and not self._scene.lives:
            asked = self._scene.parked(store) if not self._scene.has_faults else []
            if self._scene.has_faults and self._chance.random() < self.settings.requests:
                asked = [str(table) for table in self._scene.log.tables if self._chance.random() < 0.5]
            if asked and store.last_manifest() is not None:
                ask(store, asked, TableRequest.RESNAPSHOT)
                self._scene.note(f"new snapshots are asked for: {asked}")
        if not self._scene.has_faults and self._scene.caught_up() and self._started:
            return
        self._started += 1
        self._scene.lives.append(Life(self._started, self._scene.around))
        self._scene.note(f"driver {self._started} starts")

    def _judge(self) -> None:
        """Forget who is dead; an error of the newest driver must be one that another start mends."""
        for life in [life for life in self._scene.lives if not life.process.alive]:
            self._scene.lives.remove(life)
            if life.finished:
                self._scene.note(f"{life.process} finished")
            if life.error is not None:
                self._scene.note(f"{life.process} ended: {type(life.error).__name__}: {life.error}")
                if not self._is_expected(life, life.error):
                    raise SimulationError(self._scene.report(f"{life}")) from life.error

    def _is_expected(self, life: Life, error: Exception) -> bool:
        if isinstance(error, TRANSIENT) or isinstance(error.__cause__, SinkLockedError):
            return True
        store = self._scene.store()
        newest = store is None or life.term is None or store.generations.newest() <= life.term.generation()
        stale = isinstance(error, RaycdcError) and not newest
        # On a store look and write are one, so a replaced driver gets in nobody's way but through the sink.
        interference = INTERFERENCE[:1] if self.settings.on_store else INTERFERENCE
        return stale or any(text in str(error) for text in interference)

    def _reached(self, name: str) -> None:
        self._scene.fibers.pause(f"fail point {name}")

    def _check(self) -> None:
        if self._scene.around.problems:
            raise SimulationError(self._scene.report("\n".join(self._scene.around.problems[:5])))
