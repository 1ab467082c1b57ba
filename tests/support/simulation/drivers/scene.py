"""The scene of a story of drivers: one state and its surroundings, the log, and the drivers that there are now.

Played by `tests.support.simulation.drivers.world`; faults and the user's commands act on the same scene.

How large a story of drivers is, and how often each fault happens in it.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from raycdc.source.snapshot.log.stream_state import stream_of
from raycdc.source.tables.table_life import Live
from raycdc.source.tables.table_requests import requests_of
from raycdc.state.files.rooted import ROOT
from raycdc.state.store import CheckpointStore
from tests.support.simulation.drivers.coordinator import SimCoordinator
from tests.support.simulation.drivers.fibers import Fibers
from tests.support.simulation.drivers.life import Life, SimEnvironment
from tests.support.simulation.drivers.log import SourceLog
from tests.support.simulation.network import SimulatedClock


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
    #: How often somebody locks a target, or lets go of one, for longer than drivers wait.
    locks: float = 0.0
    new_columns: float = 0.01
    #: How often the user asks for new snapshots between two drivers.
    requests: float = 0.0
    #: How often a step gives a command about a table, whether a driver runs or not.
    commands: float = 0.0
    #: True if drivers begin in their own process and are promoted to engines; how often an engine is lost.
    hands_over: bool = False
    lost_engines: float = 0.003
    #: True if the state is on an object store; how often a reply of it is lost.
    on_store: bool = False
    replies_lost: float = 0.05
    #: True if manifests are always changes of the previous ones, however small they are.
    changes: bool = False
    #: True if the sink applies all verbs of an opening in one transaction.
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


#: The number of events that a failure shows.
TRACE_LENGTH = 80


@dataclass(slots=True)
class Scene:
    """See the module's docstring. `chance` decides everything, in one order, so that a seed is one story."""

    seed: int
    settings: DriverSettings
    chance: random.Random
    clock: SimulatedClock
    fibers: Fibers
    log: SourceLog
    around: SimEnvironment
    #: True while faults may happen.
    has_faults: bool = True
    lives: list[Life] = field(default_factory=list)
    trace: deque[str] = field(default_factory=lambda: deque(maxlen=TRACE_LENGTH))

    def coordinators(self) -> list[SimCoordinator]:
        """Return the coordinators whose process lives."""
        return [c for life in self.lives for c in life.launcher.coordinators if c.process.alive]

    def store(self) -> CheckpointStore | None:
        """Return the state as seen from outside; None before there is one."""
        if (objects := self.around.objects) is not None:
            return self.around.store() if ROOT in objects.there else None
        folder = self.around.disk.folders.get(self.around.state)
        return self.around.store() if folder is not None and "meta.json" in folder.names else None

    def caught_up(self) -> bool:
        """Return True if everything in the log is in the sink, and every table is followed."""
        store = self.store()
        record = None if store is None else store.last_commit()
        if store is None or record is None or record.parked:
            return False
        last = store.last_manifest()
        stream = stream_of(last)
        if last is None or stream is None or last.epoch != record.epoch or stream.ordinal != self.log.end:
            return False
        return all(isinstance(stream[table], Live) for table in self.log.tables)

    def parked(self, store: CheckpointStore) -> list[str]:
        """Return the tables that only the user can resume."""
        last, record = store.last_manifest(), store.last_commit()
        stream = stream_of(last)
        if stream is None:
            return []
        waiting = {str(table) for table, parked in stream.parked.items() if not parked.again}
        refused = {name for entry in record.parked.values() for name in entry.sources} if record else set[str]()
        asked = requests_of(store)
        return [name for name in sorted(waiting | refused) if not asked.acts_on(name, stream)]

    def note(self, event: str) -> None:
        """Remember an event for the report of a failure."""
        told = event.replace(str(self.around.state), "STATE")
        self.trace.append(f"{self.clock.now_s:8.2f} {told}")

    def report(self, what: str) -> str:
        """Return the text of a failure, with the seed that repeats it."""
        trace = "\n  ".join(self.trace)
        return f"seed {self.seed}: {what}\n{self.settings}\n{self.lives}\nlast events:\n  {trace}"
