"""The user of a story of drivers, who gives commands about tables whether a driver runs or not."""

from __future__ import annotations

from raycdc.driver.commands import CommandDesk, CommandState
from raycdc.source.table_commands import Command, TableAction
from raycdc.testing.simulation.drivers.scene import Scene
from raycdc.testing.simulation.world import SimulationError

#: Commands of one story; all are remembered to its end.
COMMANDS_MAX = 40


class User:
    """See the module's docstring."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._chance = scene.chance
        self._given: list[Command] = []

    def give(self) -> None:
        """The user gives a command, or gives the last one again because nobody answered."""
        store = self._scene.store()
        if store is None or len(self._given) >= COMMANDS_MAX:
            return
        command = self._given[-1] if self._given and self._chance.random() < 0.2 else self._new()
        CommandDesk(store).submit(command)
        if command not in self._given:
            self._given.append(command)
        self._scene.note(f"{command.action} of {command.table} is asked for")

    def _new(self) -> Command:
        names = [*map(str, self._scene.log.tables), "shop.nowhere"]
        action = self._chance.choice(
            [TableAction.PAUSE, TableAction.RESUME, TableAction.RESNAPSHOT, TableAction.REMOVE]
        )
        return Command(f"{len(self._given):08d}", action, self._chance.choice(names))

    def require_answers(self) -> None:
        """Every command was answered, and what was asked for is in the sink."""
        store = self._scene.store()
        assert store is not None
        answers = {status.id: status for status in CommandDesk(store).all()}
        for command in self._given:
            status = answers.get(command.id)
            if status is None or not status.over:
                raise SimulationError(self._scene.report(f"{command} is lost: {status}"))
            if command.table == "shop.nowhere" and status.state is not CommandState.REFUSED:
                raise SimulationError(self._scene.report(f"{command} is about no table: {status}"))
