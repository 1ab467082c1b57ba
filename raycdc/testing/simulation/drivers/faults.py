"""The faults in a story of drivers: processes end or pause, the power fails, engines and segments are lost."""

from __future__ import annotations

from pathlib import Path

from raycdc.testing.simulation.drivers.fibers import Fiber
from raycdc.testing.simulation.drivers.oracle import DriverOracle
from raycdc.testing.simulation.drivers.scene import Scene


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
