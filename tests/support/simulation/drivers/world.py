"""The story of one state under a random schedule, from one seed: drivers that die, a calm end, and the oracle.

The user of a story of drivers, who gives commands about tables whether a driver runs or not.

The faults in a story of drivers: processes end or pause, the power fails, engines and segments are lost.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from raycdc.core.failpoints import heard
from raycdc.driver.command_queue import CommandQueue, CommandState
from raycdc.errors import RaycdcError, SegmentUnavailableError, SinkLockedError
from raycdc.source.tables.parking import TableRequest
from raycdc.source.tables.table_commands import TableAction, TableCommand
from raycdc.source.tables.table_requests import ask
from raycdc.state.manifests.manifest_files import ManifestCompaction
from tests.support.simulation.drivers.coordinator import SimSourceSide
from tests.support.simulation.drivers.disk import MemoryDisk, MemoryObjects
from tests.support.simulation.drivers.fibers import Fiber, Fibers
from tests.support.simulation.drivers.life import Life, SimEnvironment
from tests.support.simulation.drivers.log import SourceLog
from tests.support.simulation.drivers.oracle import DriverOracle
from tests.support.simulation.drivers.scene import DriverSettings, Scene
from tests.support.simulation.drivers.targets import ConflictError, SimServer, SinkUnreachableError
from tests.support.simulation.network import SimulatedClock
from tests.support.simulation.world import SimulationError

#: Commands of one story; all are remembered to its end.
COMMANDS_MAX = 40


class User:
    """See the module's docstring."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._chance = scene.chance
        self._given: list[TableCommand] = []

    def give(self) -> None:
        """The user gives a command, or gives the last one again because nobody answered."""
        store = self._scene.store()
        if store is None or len(self._given) >= COMMANDS_MAX:
            return
        command = self._given[-1] if self._given and self._chance.random() < 0.2 else self._new()
        CommandQueue(store).submit(command)
        if command not in self._given:
            self._given.append(command)
        self._scene.note(f"{command.action} of {command.table} is asked for")

    def _new(self) -> TableCommand:
        names = [*map(str, self._scene.log.tables), "shop.nowhere"]
        action = self._chance.choice(
            [TableAction.PAUSE, TableAction.RESUME, TableAction.RESNAPSHOT, TableAction.REMOVE]
        )
        return TableCommand(f"{len(self._given):08d}", action, self._chance.choice(names))

    def require_answers(self) -> None:
        """Every command was answered, and what was asked for is in the sink."""
        store = self._scene.store()
        assert store is not None
        answers = {status.id: status for status in CommandQueue(store).all()}
        for command in self._given:
            status = answers.get(command.id)
            if status is None or not status.over:
                raise SimulationError(self._scene.report(f"{command} is lost: {status}"))
            if command.table == "shop.nowhere" and status.state is not CommandState.REFUSED:
                raise SimulationError(self._scene.report(f"{command} is about no table: {status}"))


class Faults:
    """See the module's docstring. How often each happens is in the scene's settings."""

    def __init__(self, scene: Scene, oracle: DriverOracle) -> None:
        self._scene = scene
        self._chance, self._settings = scene.chance, scene.settings
        self._oracle = oracle

    def at_pause(self, fiber: Fiber, place: str) -> None:
        """At each pause somebody may end."""
        if not self._scene.has_faults:
            return
        factor = 5 if place.startswith("fail point") else 1
        settings, dice = self._settings, self._chance.random()
        life = next((life for life in self._scene.lives if life.process is fiber.process), None)
        if dice < settings.power_failures * factor:
            self._scene.note(f"the power fails: {fiber} at {place}")
            self._scene.fibers.kill()
            self._oracle.power_fails(self._chance)
        elif dice < (settings.power_failures + settings.pauses) * factor and life is not None and not fiber.atomic:
            self._scene.note(f"{fiber} pauses at {place}")
            life.process.paused = True
        elif dice < (settings.power_failures + settings.pauses + settings.deaths) * factor:
            self._scene.note(f"{fiber} dies at {place}")
            if life is not None:
                life.die(leaves=self._chance.random() < 0.3)
            else:
                fiber.process.alive = False

    def between_steps(self) -> None:
        """Something happens to what the newest driver depends on, or who was paused wakes up."""
        paused = [life for life in self._scene.lives if life.process.paused]
        if paused and self._chance.random() < 0.02:
            self._chance.choice(paused).process.paused = False
            self._scene.note("a paused driver wakes up")
        if self._chance.random() < self._settings.lost_segments:
            self._lose_a_segment()
        if self._chance.random() < self._settings.refusals:
            table = self._chance.choice(self._scene.log.tables)
            self._scene.around.server.refuses[table] = self._chance.choice([0.0, 0.5])
        if self._settings.locks and self._chance.random() < self._settings.locks:
            locked = self._scene.around.server.locked
            locked ^= {self._chance.choice(self._scene.log.tables)}
            self._scene.note(f"locked targets: {sorted(map(str, locked))}")
        if self._chance.random() < self._settings.lost_processes:
            self._lose_a_process()
        if self._settings.hands_over and self._chance.random() < self._settings.lost_engines:
            self._lose_an_engine()

    def _lose_a_process(self) -> None:
        coordinators = [c for c in self._scene.coordinators() if not c.cut_off]
        readers = [r for life in self._scene.lives for r in life.launcher.readers if r.ended() is None]
        dice = self._chance.random()
        if readers and dice < 0.6:
            reader = self._chance.choice(readers)
            if dice < 0.4:
                reader.end("crashed")
            else:
                identity = reader.identity
                reader.coordinator.lost.append((identity.subtask_id, identity.incarnation, "silent"))
            self._scene.note(f"{reader} is lost")
        elif coordinators:
            coordinator = self._chance.choice(coordinators)
            self._scene.note(f"{coordinator} is lost")
            if dice < 0.8:
                coordinator.process.alive = False
            else:
                coordinator.cut_off = True
            for life in self._scene.lives:
                life.launcher.failing = self._chance.choice([0, 0, 1])

    def _lose_an_engine(self) -> None:
        lives = [life for life in self._scene.lives if life.process.alive and life.engines]
        if lives:
            life = self._chance.choice(lives)
            if self._chance.random() < 0.3:
                life.spark.lost = True
            else:
                life.engines[-1].lose()
            self._scene.note(f"{life.process} loses an engine")

    def _lose_a_segment(self) -> None:
        """A segment of an epoch that is not recorded is gone, or damaged."""
        store = self._scene.store()
        if store is None:
            return
        segments = [s for manifest in store.manifests(self._oracle.recorded) for s in manifest.segments]
        paths = [Path(segment.path) for segment in segments if Path(segment.path).exists()]
        if paths:
            path = self._chance.choice(paths)
            self._scene.note(f"segment {path.name} is lost")
            if self._chance.random() < 0.5:
                path.unlink()
            else:
                path.write_bytes(path.read_bytes()[:-1] + b"!")


#: Steps of the calm end after which a job that has not finished counts as stuck.
CALM_STEPS_MAX = 30_000
#: Ends of a driver that another start mends.
TRANSIENT = (SinkUnreachableError, ConflictError, SegmentUnavailableError)
#: What a driver ends with when one that was replaced got in its way, once, before it was fenced.
INTERFERENCE = ("the epoch will be kept", "epoch numbers are used once")
#: Manifests that are hardly ever whole, and a base after every other one.
CHANGES = ManifestCompaction(whole_below=0, fraction_max=1000.0, chain_max=2, record_fraction_max=0.5)


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
                self._play()
            except SimulationError:
                raise
            except Exception as error:
                raise SimulationError(self._scene.report(f"{type(error).__name__}: {error}")) from error
            finally:
                self._scene.fibers.end()

    def _play(self) -> None:
        self._chaos()
        self._calm()
        self._oracle.final(self._scene.log)
        self._check()

    def _begin(self, state: Path) -> None:
        chance, settings, clock = self._chance, self.settings, SimulatedClock()
        fibers = Fibers(chance, clock)
        log = SourceLog(chance, settings.tables)
        server = SimServer(chance, whole=settings.whole)
        side = SimSourceSide(fibers, log, chance)
        around = SimEnvironment(
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
