"""A story of two states: one is copied while no driver runs, and drivers of the original and of the copy run at once.

The copy is a second folder of the simulated disk. Drivers of both states write to the same targets and read the same
log, under faults. The state that commits to a target first may go on there; the other one must be refused. Each target
must then have every change of its table exactly once, in order, up to the last one that it has, whichever state wrote
which of its epochs.
"""

from __future__ import annotations

import shutil
from copy import deepcopy
from dataclasses import replace

from raycdc.errors import RaycdcError
from tests.support.simulation.drivers.life import Life, SimEnvironment
from tests.support.simulation.drivers.world import DriverSimulation
from tests.support.simulation.world import SimulationError


class CopiedStateSimulation(DriverSimulation):
    """See the module's docstring. `refused` are the errors with which drivers ended after the copy was made."""

    refused: list[Exception]

    def _play(self) -> None:
        self._chaos()
        self.refused = []
        original = self._scene.around
        copy = self._copied(original)
        lives: list[tuple[SimEnvironment, Life]] = []
        for _ in range(self.settings.steps):
            if self._chance.random() < 0.08:
                self._scene.log.change()
            self._scene.clock.advance(self._chance.uniform(0, 0.05))
            for around in (original, copy):
                running = any(of is around and life.process.alive for of, life in lives)
                if not running and self._chance.random() < 0.1:
                    self._started += 1
                    life = Life(self._started, around)
                    lives.append((around, life))
                    self._scene.lives.append(life)
                    self._scene.note(
                        f"driver {self._started} of {'the copy' if around is copy else 'the original'} starts"
                    )
            if not self._scene.fibers.step():
                self._scene.clock.advance(0.2)
            for entry in [entry for entry in lives if not entry[1].process.alive]:
                lives.remove(entry)
                self._scene.lives.remove(entry[1])
                if (error := entry[1].error) is not None:
                    self._scene.note(f"{entry[1].process} ended: {type(error).__name__}: {error}")
                    self.refused.append(error)
                    if not isinstance(error, RaycdcError):
                        raise SimulationError(self._scene.report(f"{entry[1]}")) from error
            self._check()
        self._oracle.prefixes(self._scene.log)
        self._check()

    def _copied(self, around: SimEnvironment) -> SimEnvironment:
        """Let all drivers end, and copy the state."""
        self._scene.fibers.kill()
        self._scene.lives.clear()
        state = around.state.with_name("copy")
        for path, folder in list(around.disk.folders.items()):
            if path.is_relative_to(around.state):
                around.disk.folders[state / path.relative_to(around.state)] = deepcopy(folder)
        shutil.copytree(around.state / "spool", state / "spool")
        # Either state may be the first one that writes an epoch of some number to a target.
        around.server.on_write = lambda *_: None
        self._scene.note("the state is copied")
        return replace(around, state=state)
