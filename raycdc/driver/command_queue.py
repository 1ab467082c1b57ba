"""Commands about tables: kept in the state until a driver takes them, judged there, and carried out while it runs.

A command is a file of its own in the state (``commands/ID.json``), so anybody who may write there gives one: the CLI,
or whoever speaks to a running driver. It is *accepted* when the file is durable. The driver judges it and writes its
answer into the document of requests, together with the request that it makes
(`raycdc.source.tables.table_requests.ask_all`), in one step and under its own generation; then the file goes.

| a command is | because |
|---|---|
| `accepted` | its file is there, and no driver has answered |
| `acting` | its request is in the document; the coordinator that starts next carries it out |
| `done` | an epoch that the sink holds has it; of a table that is read anew, one with rows |
| `parked` | it was carried out, and its table was parked again by its first rows; the text has the reason |
| `refused` | it makes no sense for the table, or for this source; the answer says why |

A running driver carries out requests by the code of a start: it ends the generation of coordinator and readers, makes
the requests while nobody reads, and its supervisor starts the next generation from the last sealed epoch. Sink, Spark
and the driver itself go on meanwhile.

*What if the process dies here?* Before the answer the file is there, and the next driver takes it; after it the request
is durable, acts once by its number, and a file that was left is known by its id.
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
from raycdc.source.tables.parking import CommandDecision, with_requests
from raycdc.source.tables.table_commands import CommandRules, TableCommand, as_it_is, judged, taken_back
from raycdc.source.tables.table_requests import acting, ask_all, judge_rows, requests_of, stream_state
from raycdc.state import codec
from raycdc.state.configured import kept_sink, read_configured
from raycdc.state.identity import read_identity
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.store import CheckpointStore

#: Why no rows are read again for a sink of one's own.
NO_SINK = (
    "The epochs of this state are read by a program of your own, which would get rows that are read again as inserts "
    "of keys that it has already. Read the whole table anew, which empties it first: raycdc tables resnapshot, without "
    "--where."
)
_FOLDER = "commands"
_FILE = re.compile(r"([0-9a-z]{8,64})\.json")


class CommandState(StrEnum):
    """How far a command is; see the module's table."""

    ACCEPTED = "accepted"
    ACTING = "acting"
    DONE = "done"
    PARKED = "parked"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class CommandStatus:
    """A command and how far it is. `text` says what becomes of the table, or why the command was refused."""

    id: str
    action: str
    table: str
    state: CommandState
    text: str = ""

    @property
    def over(self) -> bool:
        return self.state in (CommandState.DONE, CommandState.PARKED, CommandState.REFUSED)


class CommandQueue:
    """The commands of a state. Giving one and asking about one is for any process; `take` is the driver's, or of
    whoever has the lease. Errors of the storage are `StateError`.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._folder = store.documents.folder

    def __repr__(self) -> str:
        return f"CommandQueue({str(self._store.place)!r})"

    def submit(self, command: TableCommand) -> str:
        """Accept a command, durably, and return its id. One that was given under this id before is not given again."""
        name = f"{command.id}.json"
        if _FILE.fullmatch(name) is None:
            raise ConfigError(f"A command's id has 8 to 64 digits and small letters, not {command.id!r}.")
        if self._answer(command.id) is None:
            self._folder.create(_FOLDER)
            # A raycdc that knows no commands about some rows would read the whole table.
            version = codec.EXTENDED_VERSION if command.is_of_rows else codec.DOCUMENT_VERSION
            data = codec.encode({"version": version, **command.to_json()})
            self._folder.create_once(f"{_FOLDER}/{name}", data)
            self._require_here(f"{_FOLDER}/{name}")
        return command.id

    def _require_here(self, name: str) -> None:
        """`StateError` where the state was moved while the command in the file `name` was given: the move takes along
        what it finds behind its bar.
        """
        identity = read_identity(self._folder)
        if identity is not None and identity.moved_to:
            self._folder.delete(name)
            raise StateError(
                f"{identity.bar(self._folder.where)} Give the command there, unless it was moved with the state: "
                "raycdc tables commands shows it."
            )

    def state(self, command: str) -> CommandStatus | None:
        """How far the command with this id is; None for one that nobody gave, or that is forgotten."""
        return next((status for status in self.all() if status.id == command), None)

    def all(self) -> list[CommandStatus]:
        """The commands that are remembered, oldest first."""
        # A file goes when its answer is there, so the files are looked at first.
        waiting = self.waiting()
        requests = requests_of(self._store)
        answered = [_status(asked, acting=acting(asked, requests)) for asked in requests.commands]
        known = {status.id for status in answered}
        return answered + [
            CommandStatus(one.id, str(one.action), one.table, CommandState.ACCEPTED)
            for one in waiting
            if one.id not in known
        ]

    def waiting(self) -> list[TableCommand]:
        """The commands that no driver has answered, and those whose file was left behind."""
        found = (self._read(name) for name in sorted(self._folder.list(_FOLDER)))
        return [command for command in found if command is not None]

    def looked_at(self, command: TableCommand, rules: CommandRules) -> CommandDecision:
        """The answer that `take` would give now; nothing is changed. `StateError` before the first epoch."""
        manifest = self._store.last_manifest()
        stream_state(manifest)
        assert manifest is not None
        return self._judged(command, rules, manifest)

    def sorted_out(
        self, commands: Sequence[TableCommand], rules: CommandRules
    ) -> tuple[list[TableCommand], list[TableCommand]]:
        """Those of `commands` that `take` would refuse now, and the others; none before the first epoch."""
        manifest = self._store.last_manifest()
        if manifest is None:
            return [], []
        refused = [command for command in commands if self._judged(command, rules, manifest).refused]
        return refused, [command for command in commands if command not in refused]

    def begin(self, rules: CommandRules) -> list[CommandDecision]:
        """`judge_rows`, and `take` all that are waiting: what a driver begins with."""
        self.judge_rows(rules)
        return self.take(self.waiting(), rules)

    def take(self, commands: Sequence[TableCommand], rules: CommandRules) -> list[CommandDecision]:
        """Judge `commands` and make their requests durable, while nobody reads. Those that a driver has answered are
        left as they are, and so are all before the first epoch, which reads every table anyway. Where there are no
        commands, nothing is read.
        """
        manifest = self._store.last_manifest() if commands else None
        if manifest is None:
            return []
        answers: list[CommandDecision] = []
        with self._store.documents.changing:
            for command in commands:
                if self._answer(command.id) is None:
                    # One after another, because each is judged by what those before it ask for.
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
        """Have backfills that were asked for before end where the configuration refuses them by now; while nobody
        reads.
        """
        asked = requests_of(self._store)
        # Most states have none, and a manifest of many tables takes a while to read.
        stream = stream_of(self._store.last_manifest()) if asked.rows else None
        if stream is not None:
            # With the tables that are to be added, of which some may share a target.
            state, record, by_hand = with_requests(stream, asked), self._store.last_commit(), self._is_by_hand
            judge_rows(self._store, lambda table: NO_SINK if by_hand else rules.why_no_rows(table, state, record))

    @property
    def _is_by_hand(self) -> bool:
        """Whether the state's epochs are for whoever takes them, and no sink of ours."""
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

    def _document(self, fingerprint: str) -> SchemaDocument:
        return SchemaDocument.from_json(self._store.document(fingerprint))

    def _answer(self, command: str) -> CommandDecision | None:
        return next((asked for asked in requests_of(self._store).commands if asked.command == command), None)

    def _read(self, name: str) -> TableCommand | None:
        """The command in a file; None for what none of ours wrote, or what a driver has just taken."""
        if _FILE.fullmatch(name) is None:
            return None
        document: Any = codec.read_current(self._folder, f"{_FOLDER}/{name}")
        with suppress(KeyError, ValueError):
            return None if document is None else TableCommand.from_json(document)
        return None


def _status(asked: CommandDecision, *, acting: bool) -> CommandStatus:
    over = CommandState.PARKED if asked.parked else CommandState.DONE
    state = CommandState.REFUSED if asked.refused else CommandState.ACTING if acting else over
    return CommandStatus(asked.command, asked.action, asked.table, state, asked.text)
