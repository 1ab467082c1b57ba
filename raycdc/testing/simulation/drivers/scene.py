"""The scene of a story of drivers: one state and its surroundings, the log, and the drivers that there are now.

Played by `raycdc.testing.simulation.drivers.world`; faults and the user's commands act on the same scene.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from raycdc.checkpoint.root import ROOT
from raycdc.checkpoint.store import CheckpointStore
from raycdc.source.snapshot.stream_state import stream_of
from raycdc.source.table_life import Live
from raycdc.source.table_requests import requests_of
from raycdc.testing.simulation.drivers.coordinator import SimCoordinator
from raycdc.testing.simulation.drivers.fibers import Fibers
from raycdc.testing.simulation.drivers.life import Life, Surroundings
from raycdc.testing.simulation.drivers.log import SourceLog
from raycdc.testing.simulation.drivers.settings import DriverSettings
from raycdc.testing.simulation.network import Clock

#: Events that a failure shows.
TRACE_LENGTH = 80


@dataclass(slots=True)
class Scene:
    """See the module's docstring. `chance` decides everything, in one order, so that a seed is one story."""

    seed: int
    settings: DriverSettings
    chance: random.Random
    clock: Clock
    fibers: Fibers
    log: SourceLog
    around: Surroundings
    #: Whether anything may still go wrong.
    has_faults: bool = True
    lives: list[Life] = field(default_factory=list)
    trace: deque[str] = field(default_factory=lambda: deque(maxlen=TRACE_LENGTH))

    def coordinators(self) -> list[SimCoordinator]:
        """Those whose process lives."""
        return [c for life in self.lives for c in life.launcher.coordinators if c.process.alive]

    def store(self) -> CheckpointStore | None:
        """The state as somebody sees it who looks from outside; None before there is one."""
        if (objects := self.around.objects) is not None:
            return self.around.store() if ROOT in objects.there else None
        folder = self.around.disk.folders.get(self.around.state)
        return self.around.store() if folder is not None and "meta.json" in folder.names else None

    def caught_up(self) -> bool:
        """Whether all that the log has is in the sink, and every table is followed."""
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
        """Tables that nobody but the user can set going again."""
        last, record = store.last_manifest(), store.last_commit()
        stream = stream_of(last)
        if stream is None:
            return []
        waiting = {str(table) for table, parked in stream.parked.items() if not parked.again}
        refused = {name for entry in record.parked.values() for name in entry.sources} if record else set[str]()
        asked = requests_of(store)
        return [name for name in sorted(waiting | refused) if not asked.acts_on(name, stream)]

    def note(self, event: str) -> None:
        """Remember what happened, for who reads of a failure."""
        told = event.replace(str(self.around.state), "STATE")
        self.trace.append(f"{self.clock.now_s:8.2f} {told}")

    def report(self, what: str) -> str:
        """The text of a failure, with the seed that plays it again."""
        trace = "\n  ".join(self.trace)
        return f"seed {self.seed}: {what}\n{self.settings}\n{self.lives}\nlast events:\n  {trace}"
