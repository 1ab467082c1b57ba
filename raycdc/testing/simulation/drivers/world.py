"""The story of one state under a random schedule, from one seed: drivers that die, a calm end, and the oracle."""

from __future__ import annotations

import random
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from raycdc.checkpoint.manifest_files import Compaction
from raycdc.checkpoint.root import ROOT
from raycdc.checkpoint.store import CheckpointStore
from raycdc.driver.commands import CommandDesk, CommandState
from raycdc.errors import RaycdcError, SegmentUnavailableError
from raycdc.failpoints import heard
from raycdc.source.parking import TableRequest
from raycdc.source.snapshot.stream_state import stream_of
from raycdc.source.table_commands import Command, TableAction
from raycdc.source.table_life import Live
from raycdc.source.table_requests import ask, requests_of
from raycdc.testing.simulation.drivers.coordinator import SimCoordinator, SourceSide
from raycdc.testing.simulation.drivers.disk import MemoryDisk
from raycdc.testing.simulation.drivers.fibers import Fiber, Fibers
from raycdc.testing.simulation.drivers.life import Life, Surroundings
from raycdc.testing.simulation.drivers.log import SourceLog
from raycdc.testing.simulation.drivers.objects import MemoryObjects
from raycdc.testing.simulation.drivers.oracle import DriverOracle
from raycdc.testing.simulation.drivers.targets import ConflictError, SimServer, SinkAwayError
from raycdc.testing.simulation.network import Clock
from raycdc.testing.simulation.world import SimulationError

#: Steps of the calm end after which a job that has not finished counts as stuck.
CALM_STEPS_MAX = 30_000
#: Commands of one story; all are remembered to its end.
COMMANDS_MAX = 40
#: Events that a failure shows.
TRACE_LENGTH = 80
#: Ends of a driver that another start mends.
TRANSIENT = (SinkAwayError, ConflictError, SegmentUnavailableError)

#: What a driver ends with when one that was replaced got in its way, once, before it was fenced.
INTERFERENCE = ("the epoch will be kept", "epoch numbers are used once")


#: Manifests that are hardly ever whole, and a base after every other one.
CHANGES = Compaction(whole_below=0, share_max=1000.0, chain_max=2, record_share_max=0.5)


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """A run and its faults. `deaths` is per pause, and five times that at fail points; the others are per step."""

    tables: int = 2
    steps: int = 1500
    #: A process ends, is paused and wakes up later, or all end because the power fails.
    deaths: float = 0.003
    pauses: float = 0.0
    power_failures: float = 0.0
    #: Readers and coordinators end, hang, or are cut off.
    lost_processes: float = 0.002
    lost_segments: float = 0.0
    answers_lost: float = 0.0
    refusals: float = 0.0
    new_columns: float = 0.01
    #: How often the user asks for new snapshots between two drivers.
    requests: float = 0.0
    #: How often a step gives a command about a table, whether a driver runs or not.
    commands: float = 0.0
    #: Whether drivers begin by themselves and hand over to engines, and how often one of these is lost.
    hands_over: bool = False
    lost_engines: float = 0.003
    #: Whether the state is on an object store, and how often a reply of it is lost.
    on_store: bool = False
    replies_lost: float = 0.05
    #: Whether manifests are changes of the ones before, however small they are.
    changes: bool = False
    #: Whether the sink takes all verbs of an opening in one transaction.
    whole: bool = True

    @classmethod
    def of(cls, chance: random.Random) -> DriverSettings:
        return cls(
            tables=chance.choice([1, 2, 3]),
            steps=chance.choice([800, 1500, 2500]),
            deaths=chance.choice([0.001, 0.003, 0.01]),
            pauses=chance.choice([0.0, 0.001, 0.003]),
            power_failures=chance.choice([0.0, 0.0003, 0.002]),
            lost_processes=chance.choice([0.0, 0.003, 0.01]),
            lost_segments=chance.choice([0.0, 0.0, 0.003]),
            answers_lost=chance.choice([0.0, 0.02, 0.1]),
            refusals=chance.choice([0.0, 0.0, 0.01]),
            new_columns=chance.choice([0.0, 0.01, 0.03]),
            requests=chance.choice([0.0, 0.2]),
            whole=chance.random() < 0.5,
        )


class DriverSimulation:
    """See the module's docstring. `run` raises `SimulationError`, whose text has the seed."""

    def __init__(self, seed: int, *, settings: DriverSettings | None = None) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.settings = settings or DriverSettings.of(self.random)
        self.trace: deque[str] = deque(maxlen=TRACE_LENGTH)
        self.clock = Clock()
        self.fibers = Fibers(self.random, self.clock)
        self.log = SourceLog(self.random, self.settings.tables)
        self.lives: list[Life] = []
        self._started = 0
        self._given: list[Command] = []
        self._faults = True

    def run(self) -> None:
        """The whole story."""
        with tempfile.TemporaryDirectory(prefix="raycdc-sim-") as folder, heard(self._reached):
            server = SimServer(self.random, whole=self.settings.whole)
            side = SourceSide(self.fibers, self.log, self.random)
            objects = MemoryObjects(self.random) if self.settings.on_store else None
            self._around = Surroundings(
                Path(folder) / "state",
                MemoryDisk(),
                server,
                side,
                objects=objects,
                compaction=CHANGES if self.settings.changes else None,
                commands=self.settings.commands > 0,
                hands_over=self.settings.hands_over,
            )
            (self._around.state / "spool").mkdir(parents=True)
            self._oracle = DriverOracle(self._around)
            self.fibers.on_pause = self._may_end
            try:
                self._chaos()
                self._calm()
                self._oracle.final(self.log)
                self._check()
            except SimulationError:
                raise
            except Exception as error:
                raise SimulationError(self._report(f"{type(error).__name__}: {error}")) from error
            finally:
                self.fibers.end()

    # -- phases -----------------------------------------------------------------------------------------------------

    def _chaos(self) -> None:
        self._around.server.answers_lost = self.settings.answers_lost
        if self._around.objects is not None:
            self._around.objects.replies_lost = self.settings.replies_lost
        for _ in range(self.settings.steps):
            if self.random.random() < 0.08:
                self.log.change()
            elif self.random.random() < self.settings.new_columns:
                self.log.add_column()
            if self.settings.commands and self.random.random() < self.settings.commands:
                self._command()
            self._fault()
            self._step()

    def _calm(self) -> None:
        """No more changes and no more faults: whatever was paused wakes up, and the job must get to the log's end."""
        self._faults = False
        self._around.server.answers_lost = 0.0
        if self._around.objects is not None:
            self._around.objects.replies_lost = 0.0
        self._around.server.refuses.clear()
        self._around.source.until_caught_up = True
        for life in self.lives:
            life.process.paused = False
        for coordinator in self._coordinators():
            coordinator.stop()
        for _ in range(CALM_STEPS_MAX):
            self._step()
            if not self.lives and self._caught_up():
                self._require_answers()
                return
        raise SimulationError(self._report("the job is stuck"))

    def _step(self) -> None:
        self.clock.advance(self.random.uniform(0, 0.05))
        if not any(life.process.alive and not life.process.paused for life in self.lives) and (
            not self._faults or self.random.random() < 0.1
        ):
            self._start()
        if not self.fibers.step():
            self.clock.advance(0.2)
        self._judge()
        self._check()

    def _start(self) -> None:
        """Another driver, on another machine where one is paused: the lease says nothing there."""
        store = self._store()
        if store is not None and not self.lives:
            asked = self._parked(store) if not self._faults else []
            if self._faults and self.random.random() < self.settings.requests:
                asked = [str(table) for table in self.log.tables if self.random.random() < 0.5]
            if asked and store.last_manifest() is not None:
                ask(store, asked, TableRequest.RESNAPSHOT)
                self._note(f"new snapshots are asked for: {asked}")
        if not self._faults and self._caught_up() and self._started:
            return
        self._started += 1
        self.lives.append(Life(self._started, self._around))
        self._note(f"driver {self._started} starts")

    def _judge(self) -> None:
        """Forget who is dead; an error of the newest driver must be one that another start mends."""
        for life in [life for life in self.lives if not life.process.alive]:
            self.lives.remove(life)
            if life.finished:
                self._note(f"{life.process} finished")
            if life.error is not None:
                self._note(f"{life.process} ended: {type(life.error).__name__}: {life.error}")
                if not self._is_expected(life, life.error):
                    raise SimulationError(self._report(f"{life}")) from life.error

    def _is_expected(self, life: Life, error: Exception) -> bool:
        if isinstance(error, TRANSIENT):
            return True
        store = self._store()
        newest = store is None or life.term is None or store.generations.newest() <= life.term.generation()
        stale = isinstance(error, RaycdcError) and not newest
        # On a store look and write are one, so a replaced driver gets in nobody's way but through the sink.
        interference = INTERFERENCE[:1] if self.settings.on_store else INTERFERENCE
        return stale or any(text in str(error) for text in interference)

    # -- commands ---------------------------------------------------------------------------------------------------

    def _command(self) -> None:
        """The user gives a command, or gives the last one again because nobody answered."""
        store = self._store()
        if store is None or len(self._given) >= COMMANDS_MAX:
            return
        command = self._given[-1] if self._given and self.random.random() < 0.2 else self._new_command()
        CommandDesk(store).submit(command)
        if command not in self._given:
            self._given.append(command)
        self._note(f"{command.action} of {command.table} is asked for")

    def _new_command(self) -> Command:
        names = [*map(str, self.log.tables), "shop.nowhere"]
        action = self.random.choice([TableAction.PAUSE, TableAction.RESUME, TableAction.RESNAPSHOT, TableAction.REMOVE])
        return Command(f"{len(self._given):08d}", action, self.random.choice(names))

    def _require_answers(self) -> None:
        """Every command was answered, and what was asked for is in the sink."""
        store = self._store()
        assert store is not None
        found = {status.id: status for status in CommandDesk(store).all()}
        for command in self._given:
            status = found.get(command.id)
            if status is None or not status.over:
                raise SimulationError(self._report(f"{command} is lost: {status}"))
            if command.table == "shop.nowhere" and status.state is not CommandState.REFUSED:
                raise SimulationError(self._report(f"{command} is about no table: {status}"))

    # -- faults -----------------------------------------------------------------------------------------------------

    def _may_end(self, fiber: Fiber, place: str) -> None:
        """At each pause somebody may end."""
        if not self._faults:
            return
        factor = 5 if place.startswith("fail point") else 1
        settings, dice = self.settings, self.random.random()
        life = next((life for life in self.lives if life.process is fiber.process), None)
        if dice < settings.power_failures * factor:
            self._note(f"the power fails: {fiber} at {place}")
            self.fibers.kill()
            self._oracle.power_fails(self.random)
        elif dice < (settings.power_failures + settings.pauses) * factor and life is not None and not fiber.atomic:
            self._note(f"{fiber} pauses at {place}")
            life.process.paused = True
        elif dice < (settings.power_failures + settings.pauses + settings.deaths) * factor:
            self._note(f"{fiber} dies at {place}")
            if life is not None:
                life.die(leaves=self.random.random() < 0.3)
            else:
                fiber.process.alive = False

    def _fault(self) -> None:
        """Something happens to what the newest driver depends on, or who was paused wakes up."""
        paused = [life for life in self.lives if life.process.paused]
        if paused and self.random.random() < 0.02:
            self.random.choice(paused).process.paused = False
            self._note("a paused driver wakes up")
        if self.random.random() < self.settings.lost_segments:
            self._lose_a_segment()
        if self.random.random() < self.settings.refusals:
            table = self.random.choice(self.log.tables)
            self._around.server.refuses[table] = self.random.choice([0.0, 0.5])
        if self.random.random() < self.settings.lost_processes:
            self._lose_a_process()
        if self.settings.hands_over and self.random.random() < self.settings.lost_engines:
            self._lose_an_engine()

    def _lose_a_process(self) -> None:
        coordinators = [c for c in self._coordinators() if not c.cut_off]
        readers = [r for life in self.lives for r in life.launcher.readers if r.ended() is None]
        dice = self.random.random()
        if readers and dice < 0.6:
            reader = self.random.choice(readers)
            if dice < 0.4:
                reader.end("crashed")
            else:
                identity = reader.identity
                reader.coordinator.lost.append((identity.subtask_id, identity.incarnation, "silent"))
            self._note(f"{reader} is lost")
        elif coordinators:
            coordinator = self.random.choice(coordinators)
            self._note(f"{coordinator} is lost")
            if dice < 0.8:
                coordinator.process.alive = False
            else:
                coordinator.cut_off = True
            for life in self.lives:
                life.launcher.failing = self.random.choice([0, 0, 1])

    def _lose_an_engine(self) -> None:
        lives = [life for life in self.lives if life.process.alive and life.engines]
        if lives:
            life = self.random.choice(lives)
            if self.random.random() < 0.3:
                life.spark.lost = True
            else:
                life.engines[-1].lose()
            self._note(f"{life.process} loses an engine")

    def _lose_a_segment(self) -> None:
        """A segment of an epoch that is not recorded is gone, or damaged."""
        store = self._store()
        if store is None:
            return
        segments = [s for manifest in store.manifests(self._oracle.recorded) for s in manifest.segments]
        paths = [Path(segment.path) for segment in segments if Path(segment.path).exists()]
        if paths:
            path = self.random.choice(paths)
            self._note(f"segment {path.name} is lost")
            if self.random.random() < 0.5:
                path.unlink()
            else:
                path.write_bytes(path.read_bytes()[:-1] + b"!")

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _coordinators(self) -> list[SimCoordinator]:
        return [c for life in self.lives for c in life.launcher.coordinators if c.process.alive]

    def _store(self) -> CheckpointStore | None:
        """The state as who looks from outside; None before there is one."""
        if (objects := self._around.objects) is not None:
            return self._around.store() if ROOT in objects.there else None
        folder = self._around.disk.folders.get(self._around.state)
        return self._around.store() if folder is not None and "meta.json" in folder.names else None

    def _caught_up(self) -> bool:
        store = self._store()
        record = None if store is None else store.last_commit()
        if store is None or record is None or record.parked:
            return False
        last = store.last_manifest()
        stream = stream_of(last)
        if last is None or stream is None or last.epoch != record.epoch or stream.ordinal != self.log.end:
            return False
        return all(isinstance(stream[table], Live) for table in self.log.tables)

    def _parked(self, store: CheckpointStore) -> list[str]:
        """Tables that nobody but the user can set going again."""
        last, record = store.last_manifest(), store.last_commit()
        stream = stream_of(last)
        if stream is None:
            return []
        waiting = {str(table) for table, parked in stream.parked.items() if not parked.again}
        refused = {name for entry in record.parked.values() for name in entry.sources} if record else set[str]()
        asked = requests_of(store)
        return [name for name in sorted(waiting | refused) if not asked.acts_on(name, stream)]

    def _reached(self, name: str) -> None:
        self.fibers.pause(f"fail point {name}")

    def _note(self, event: str) -> None:
        told = event.replace(str(self._around.state), "STATE")
        self.trace.append(f"{self.clock.now_s:8.2f} {told}")

    def _check(self) -> None:
        if self._around.problems:
            raise SimulationError(self._report("\n".join(self._around.problems[:5])))

    def _report(self, what: str) -> str:
        trace = "\n  ".join(self.trace)
        return f"seed {self.seed}: {what}\n{self.settings}\n{self.lives}\nlast events:\n  {trace}"
