"""A whole job in one thread, on virtual time, from one seed: real protocol classes, scripted database, model sinks.

`Simulation(seed).run()` raises `SimulationError` with the seed and the last events when a promise is broken.
Connectors' authors use the parts to write simulations of their own.
"""

from __future__ import annotations

from raycdc.testing.simulation.database import SimDatabase, TableKind, Visibility
from raycdc.testing.simulation.settings import Pace, Settings
from raycdc.testing.simulation.world import Simulation, SimulationError

__all__ = ["Pace", "Settings", "SimDatabase", "Simulation", "SimulationError", "TableKind", "Visibility"]
