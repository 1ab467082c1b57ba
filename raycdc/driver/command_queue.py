"""A queue of commands about tables. The state stores a command until a driver takes it, judges it, and carries it out.

Each command is one file in the state (``commands/ID.json``), so any process with write access can give one: the CLI, or
a client of the control API. A command is *accepted* when its file is durable. The driver judges the command. In one
step and under its own generation, it writes the answer and the resulting request into the document of requests
(`raycdc.source.tables.table_requests.ask_all`). Then it deletes the file.

| a command is | because |
|---|---|
| `accepted` | its file exists, or its request is in the document; the next coordinator to start carries it out |
| `acting` | an epoch with its effect is sealed, and the sink does not hold the epoch yet |
| `done` | an epoch with its effect is in the sink; for a resnapshot, an epoch with rows of the table |
| `parked` | it was carried out, but the table was parked again at its first rows; the text has the reason |
| `refused` | the command makes no sense for the table or for this source; the answer has the reason |

A running driver carries out requests with the same code as a start: it ends the generation of coordinator and readers,
applies the requests while no reader runs, and its supervisor starts the next generation from the last sealed epoch.
Sink, Spark and the driver keep running.

*What if the process dies here?* Before the answer is written, the file remains and the next driver takes it. After the
answer is written, the request is durable, and because of its number it is carried out only once. A file that remains is
recognized by its id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from raycdc.core.failpoints import reach
from raycdc.errors import ConfigError, StateError
from raycdc.model import TableId
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.log.stream_state import stream_of
from raycdc.source.tables.parking import CommandDecision, Requests, with_requests
from raycdc.source.tables.table_commands import CommandRules, TableCommand, as_it_is, judged, taken_back
from raycdc.source.tables.table_requests import acting, ask_all, is_carried_out, judge_rows, requests_of, stream_state
from raycdc.state import codec
from raycdc.state.configured import kept_sink, read_configured
from raycdc.state.identity import read_identity
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.store import CheckpointStore

#: The refusal of a backfill if the epochs go to the user's own program.
NO_SINK = (
    "The epochs of this state are read by a program of your own, which would get rows that are read again as inserts "
    "of keys that it has already. Read the whole table anew, which empties it first: raycdc tables resnapshot, without "
    "--where."
)
_FOLDER = "commands"
_FILE = re.compile(r"([0-9a-z]{8,64})\.json")


class CommandState(StrEnum):
    """The progress of a command; see the table in the module's docstring."""

    ACCEPTED = "accepted"
    ACTING = "acting"
    DONE = "done"
    PARKED = "parked"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class CommandStatus:
    """A command and its progress. `text` is the effect on the table, or the reason of a refusal."""

    id: str
    action: str
    table: str
    state: CommandState
    text: str = ""

    @property
    def over(self) -> bool:
        return self.state in (CommandState.DONE, CommandState.PARKED, CommandState.REFUSED)


class CommandQueue:
    """The commands of a state. Errors of the storage are raised as `StateError`.

    Any process may submit commands and read their states. Only the driver, or another holder of the lease, calls
    `take`.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._folder = store.documents.folder

    def __repr__(self) -> str:
        return f"CommandQueue({str(self._store.location)!r})"

    def submit(self, command: TableCommand) -> str:
        """Store the command durably and return its id. An id that was used before is not accepted a second time."""
        name = f"{command.id}.json"
        if _FILE.fullmatch(name) is None:
            raise ConfigError(f"A command's id has 8 to 64 digits and small letters, not {command.id!r}.")
        if self._answer(command.id) is None:
            self._folder.create(_FOLDER)
            # An older raycdc that knows no commands about single rows would read the whole table.
            version = codec.EXTENDED_VERSION if command.is_of_rows else codec.DOCUMENT_VERSION
            data = codec.encode({"version": version, **command.to_json()})
            self._folder.create_once(f"{_FOLDER}/{name}", data)
            self._require_here(f"{_FOLDER}/{name}")
        return command.id

    def _require_here(self, name: str) -> None:
        """Raise `StateError` if the state was moved while the command was being given.

        A move copies the commands that it finds after it has barred the old location. A command that is written later
        would be lost.
        """
        identity = read_identity(self._folder)
        if identity is not None and identity.moved_to:
            self._folder.delete(name)
            raise StateError(
                f"{identity.bar(self._folder.where)} Give the command there, unless it was moved with the state: "
                "raycdc tables commands shows it."
            )

    def state(self, command: str) -> CommandStatus | None:
        """Return the state of the command with this id; None if the id is unknown or was forgotten."""
        return next((status for status in self.all() if status.id == command), None)

    def all(self) -> list[CommandStatus]:
        """Return the remembered commands, oldest first."""
        # Read the files before the answers: a driver deletes a file only after it wrote the answer.
        waiting = self.waiting()
        requests = requests_of(self._store)
        answered = [self._status(asked, requests) for asked in requests.commands]
        known = {status.id for status in answered}
        return answered + [
            CommandStatus(one.id, str(one.action), one.table, CommandState.ACCEPTED)
            for one in waiting
            if one.id not in known
        ]

    def waiting(self) -> list[TableCommand]:
        """Return the commands whose files remain. Some of them may already have an answer."""
        found = (self._read(name) for name in sorted(self._folder.list(_FOLDER)))
        return [command for command in found if command is not None]

    def preview(self, command: TableCommand, rules: CommandRules) -> CommandDecision:
        """Return the answer that `take` would give now, without changing anything.

        Raises `StateError` before the first epoch.
        """
        manifest = self._store.last_manifest()
        stream_state(manifest)
        assert manifest is not None
        return self._judged(command, rules, manifest)

    def sorted_out(
        self, commands: Sequence[TableCommand], rules: CommandRules
    ) -> tuple[list[TableCommand], list[TableCommand]]:
        """Divide `commands` into those that `take` would refuse now, and the rest.

        Both are empty before the first epoch.
        """
        manifest = self._store.last_manifest()
        if manifest is None:
            return [], []
        refused = [command for command in commands if self._judged(command, rules, manifest).refused]
        return refused, [command for command in commands if command not in refused]

    def begin(self, rules: CommandRules) -> list[CommandDecision]:
        """Call `judge_rows`, then `take` all waiting commands. A driver calls this when it starts."""
        self.judge_rows(rules)
        return self.take(self.waiting(), rules)

    def take(self, commands: Sequence[TableCommand], rules: CommandRules) -> list[CommandDecision]:
        """Judge `commands` and make their requests durable. Called while no reader runs.

        Commands with an answer are not changed. Before the first epoch, all commands are left waiting, because that
        epoch reads every table anyway. Nothing is read from the state if there are no commands.
        """
        manifest = self._store.last_manifest() if commands else None
        if manifest is None:
            return []
        answers: list[CommandDecision] = []
        with self._store.documents.changing:
            for command in commands:
                if self._answer(command.id) is None:
                    # One by one, because the requests of earlier commands influence the judgement of later ones.
                    answer = self._judged(command, rules, manifest)
                    of_rows = command.is_of_rows and not answer.refused
                    rows = command.rows_request(TableId.parse(answer.table)) if of_rows else None
                    ask_all(self._store, command.requests(answer), [answer], rows)
                    answers.append(answer)
            self.judge_rows(rules)
        reach("after_command")
        for command in commands:
            self._folder.delete(f"{_FOLDER}/{command.id}.json")
        return answers

    def judge_rows(self, rules: CommandRules) -> None:
        """End requested backfills that the present configuration does not allow. Called while no reader runs."""
        asked = requests_of(self._store)
        # Most states have none, and a manifest of many tables takes a while to read.
        stream = stream_of(self._store.last_manifest()) if asked.rows else None
        if stream is not None:
            # Tables that are to be added count, too, because they may share a target.
            state, record, by_hand = with_requests(stream, asked), self._store.last_commit(), self._is_by_hand
            judge_rows(self._store, lambda table: NO_SINK if by_hand else rules.why_no_rows(table, state, record))

    @property
    def _is_by_hand(self) -> bool:
        """Return True if the state's epochs are consumed by a Python caller and not by a configured sink."""
        keys = read_configured(self._store)
        return keys is not None and kept_sink(keys) is None

    def _judged(self, command: TableCommand, rules: CommandRules, manifest: Manifest) -> CommandDecision:
        stream = stream_of(manifest)
        if stream is None:
            return command.refused(
                "This source has no log of tables, so a command about one of them means nothing to it."
            )
        if command.is_of_rows and self._is_by_hand:
            return command.refused(NO_SINK)
        record = self._store.last_commit()
        requests = requests_of(self._store)
        state = as_it_is(with_requests(stream, requests), record)
        try:
            if (answer := taken_back(command, as_it_is(stream, record), state, requests)) is not None:
                return answer
            return judged(command, state, record, rules, self._document)
        except ConfigError as error:
            return command.refused(str(error))

    def _status(self, asked: CommandDecision, requests: Requests) -> CommandStatus:
        if asked.refused:
            state = CommandState.REFUSED
        elif not acting(asked, requests):
            state = CommandState.PARKED if asked.parked else CommandState.DONE
        else:
            newest = self._store.last_manifest()
            began = newest is not None and is_carried_out(asked, requests, newest)
            state = CommandState.ACTING if began else CommandState.ACCEPTED
        return CommandStatus(asked.command, asked.action, asked.table, state, asked.text)

    def _document(self, fingerprint: str) -> SchemaDocument:
        return SchemaDocument.from_json(self._store.document(fingerprint))

    def _answer(self, command: str) -> CommandDecision | None:
        return next((asked for asked in requests_of(self._store).commands if asked.command == command), None)

    def _read(self, name: str) -> TableCommand | None:
        """Return the command in a file; None if the file is no command, or a driver has just taken it."""
        if _FILE.fullmatch(name) is None:
            return None
        document: Any = codec.read_current(self._folder, f"{_FOLDER}/{name}")
        with suppress(KeyError, ValueError):
            return None if document is None else TableCommand.from_json(document)
        return None
