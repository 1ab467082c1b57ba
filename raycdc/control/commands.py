"""The commands that a running pipeline takes, as the API hands them to the job, and what became of each.

The API knows `ControlCommands` alone. A command is acknowledged with an id at once, before anything was done, and asked
about by that id; the same `request` twice is one command, so that whoever did not hear the answer may ask again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType, Protocol

#: Of one command, for the life of the run.
CommandId = NewType("CommandId", str)


class TableAction(StrEnum):
    """What can be asked of a table."""

    ADD = "add"
    REMOVE = "remove"
    PAUSE = "pause"
    RESUME = "resume"
    RESNAPSHOT = "resnapshot"
    BACKFILL = "backfill"


@dataclass(frozen=True, slots=True)
class TableCommand:
    """`where` limits the rows that are read again, in the source's own language; empty: all of them.

    `request` is the asker's own name for it; empty where it has none.
    """

    action: TableAction
    table: str
    where: str = ""
    request: str = ""


class CommandPhase(StrEnum):
    """Where a command is: heard, acting, and one of two ends."""

    ACCEPTED = "accepted"
    ACTING = "acting"
    DONE = "done"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class CommandState:
    """`text` says in words what was done, or why not and what to do."""

    id: CommandId
    command: TableCommand
    phase: CommandPhase
    text: str = ""


class ControlCommands(Protocol):
    """The job's side. Called from the door's thread; neither may take longer than a message to the coordinator."""

    def submit(self, command: TableCommand) -> CommandId:
        """Take the command. `ConfigError` says why it can never be done as asked."""

    def command(self, command_id: CommandId) -> CommandState | None:
        """What became of it; None for an id that nobody gave."""
