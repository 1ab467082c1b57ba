"""A whole job in one thread, on virtual time, from one seed: real protocol classes, scripted database, model sinks.

`Simulation(seed).run()` raises `SimulationError` with the seed and the last events when a promise is broken.
Connectors' authors use the parts to write simulations of their own.
"""

from __future__ import annotations

from tests.support.simulation.database import SimDatabase, TableKind, Visibility
from tests.support.simulation.settings import Settings, SimSpeeds
from tests.support.simulation.world import Simulation, SimulationError

__all__ = ["Settings", "SimDatabase", "SimSpeeds", "Simulation", "SimulationError", "TableKind", "Visibility"]
