"""The other half of the simulation: what becomes of sealed epochs, whichever driver dies where.

`tests.support.simulation.world` plays how epochs come about, with a model for everything behind the seal. Here the
seal is the beginning: the epoch loop with its recovery, the checkpoint store with its fencing, the exactly-once
protocol of sinks and the supervisor are the product's classes, and what lies around them is scripted.

```
      SourceLog ──► SimCoordinator ──manifest──► CheckpointStore ◄── DriverGeneration, RecordKeeper     one Life: a
   driver (what happens)   (seals, is lost)              │  MemoryDisk        │
                        ▲  Supervisor ── SimLauncher                   EpochLoop ─► ExactlyOnceSink ─► SimServer
                        └────── lost? replace, next generation ──────────┘ (waits, stages, commits)     (what is there)
```

| file | concept |
|---|---|
| `fibers.py` | processes with threads, one of which runs at a time: the order is drawn from the seed |
| `disk.py` | a disk that forgets what was not synced when the power fails |
| `disk.py` | an object store whose replies are lost and whose requests arrive late, for a state on one |
| `log.py` | the source: tables with one log |
| `coordinator.py` | the source side of a generation, as a driver sees it |
| `launcher.py` | the processes that a supervisor starts and watches |
| `targets.py` | the sink's server, and the verbs that a sink supplies |
| `life.py` | one driver, put together as `raycdc.pipeline` does |
| `oracle.py` | the promises |
| `settings.py` | how large a story is, and how often each fault happens |
| `scene.py` | everything that a story is about, and what a failure prints of it |
| `world.py`, `world.py` | what goes wrong; the user's commands about tables |
| `world.py` | the story: a time of faults, and a calm end |
| `copies.py` | the story of a state that is copied, of which both then run |

A driver may end at every pause: before each call to the disk or the sink, at each fail point, and wherever it waits. It
may also be paused there, and wake up when another one has taken over; the lease does not keep two apart, as on two
machines. `DriverSimulation(seed).run()` raises `SimulationError` with the seed, and the same seed replays the same
history. Rules that are switched off one at a time are in ``tests/simulation/test_driver_rules.py``.
"""

from __future__ import annotations

from tests.support.simulation.drivers.scene import DriverSettings
from tests.support.simulation.drivers.world import DriverSimulation

__all__ = ["DriverSettings", "DriverSimulation"]
