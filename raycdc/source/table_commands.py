"""Commands about a pipeline's tables: judged by the state alone, and refused by name before anything is changed.

| action | is refused where the table is | its request |
|---|---|---|
| `add` | one of the pipeline's and not removed; not selected by the configuration | a snapshot |
| `remove` | none of the pipeline's; removed | left out |
| `pause` | none of the pipeline's; paused, removed or ended | left out |
| `resume` | not paused, nor parked at a place that it can go on from; its log cannot be read twice at a time | to go \
on from where it was left; a snapshot, where nobody can say what lies between |
| `resnapshot` | none of the pipeline's; removed | a snapshot |
| `backfill`, and `resnapshot` of some rows | not followed, or without a primary key; its target keeps changes and no \
rows, or cannot tell its rows by key (`raycdc.source.rows_by_key`); the source refuses the predicate | a backfill |

Pure. `raycdc.driver.commands` keeps them, and carries them out.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NotRequired, TypedDict

from raycdc.checkpoint.store import CommitRecord
from raycdc.errors import ConfigError, SourceError
from raycdc.model import TableId
from raycdc.model.selector import plain_table
from raycdc.plugins import did_you_mean
from raycdc.source.parking import Asked, Requests, TableRequest, can_be_resumed, with_refusals
from raycdc.source.rows_by_key import RowsByKey, WhyNotByKey
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.backfill_request import RowsRequest
from raycdc.source.snapshot.stream_state import StreamState
from raycdc.source.split import RowsAgain, SnapshotSplit
from raycdc.source.table_life import CatchingUp, Gone, Parked, Phase, Unknown
from raycdc.source.table_requests import left_behind, merged_targets, read_together, refusals_of

#: So many tables are named to whoever named another one; a pipeline may have thousands.
NAMES_MAX = 20


class TableAction(StrEnum):
    """What a user may ask of a table."""

    ADD = "add"
    REMOVE = "remove"
    PAUSE = "pause"
    RESUME = "resume"
    RESNAPSHOT = "resnapshot"
    BACKFILL = "backfill"

    @property
    def request(self) -> TableRequest:
        """The request that it makes, unless the table is read anew (`judged`)."""
        asked = {
            TableAction.REMOVE: TableRequest.REMOVE,
            TableAction.PAUSE: TableRequest.PAUSE,
            TableAction.RESUME: TableRequest.RESUME,
        }
        return asked.get(self, TableRequest.RESNAPSHOT)

    @property
    def done(self) -> str:
        """What becomes of the table, as the end of a sentence that begins with its name."""
        return _DONE[self]


_DONE = {
    TableAction.RESNAPSHOT: "is read again",
    TableAction.BACKFILL: "has some rows read again",
    TableAction.ADD: "is added, beginning with a snapshot",
    TableAction.PAUSE: "is paused (its target keeps what it has)",
    TableAction.REMOVE: "is no longer followed (its target keeps what it has, and `add` reads it anew)",
    TableAction.RESUME: "goes on from where it was left",
}


class CommandJson(TypedDict):
    """`Command` in a state."""

    id: str
    action: str
    table: str
    where: NotRequired[str]
    keys: NotRequired[list[str]]


@dataclass(frozen=True, slots=True)
class Command:
    """An action on the table that people call `table`. Whoever gives it twice under one `id` gives it once.

    It is about all rows, or those that meet the predicate `where`, or those of the `keys`, which are lists of keys
    (`raycdc.source.snapshot.key_list`).
    """

    id: str
    action: TableAction
    table: str
    where: str = ""
    keys: tuple[str, ...] = ()

    @classmethod
    def new(cls, action: TableAction, table: str, *, where: str = "", keys: Sequence[str] = ()) -> Command:
        """One that nobody has given before."""
        return cls(secrets.token_hex(8), action, table, where, tuple(keys))

    @property
    def is_of_rows(self) -> bool:
        """Whether it is about some rows of the table."""
        return self.action is TableAction.BACKFILL or bool(self.where or self.keys)

    @property
    def rows(self) -> Sequence[RowsAgain]:
        """What its chunks read."""
        if self.keys:
            return [RowsAgain(self.id, keys=listed) for listed in self.keys]
        return [RowsAgain(self.id, where=self.where)]

    def rows_request(self, table: TableId) -> RowsRequest:
        """The request that a command of rows makes; `table` is its table."""
        if not self.keys:
            return RowsRequest(self.id, table, where=self.where)
        parts = [SnapshotSplit(table, n, None, None, None, again=again) for n, again in enumerate(self.rows)]
        return RowsRequest(self.id, table, parts=tuple(parts))

    def to_json(self) -> CommandJson:
        command = CommandJson(id=self.id, action=str(self.action), table=self.table)
        if self.where:
            command["where"] = self.where
        if self.keys:
            command["keys"] = [*self.keys]
        return command

    @classmethod
    def from_json(cls, data: CommandJson) -> Command:
        """`ValueError` for an action that this version does not know."""
        where, keys = data.get("where", ""), tuple(data.get("keys", ()))
        return cls(data["id"], TableAction(data["action"]), data["table"], where, keys)

    def requests(self, asked: Asked) -> dict[str, TableRequest]:
        """The requests that come of the command, which was judged as `asked`."""
        request = TableRequest.RESNAPSHOT if asked.anew else self.action.request
        return {} if asked.refused else dict.fromkeys(asked.tables, request)

    def refused(self, why: str) -> Asked:
        return Asked(self.id, str(self.action), self.table, (), why, refused=True)


#: Raises `ConfigError` unless these rows of a table can be read (`raycdc.source.connector.IncrementalSource`).
RequireRows = Callable[[TableId, SchemaDocument, RowsAgain], None]


def no_rows(table: TableId, *_: object) -> None:
    """`RequireRows` where there is no source to ask."""
    raise ConfigError(
        f"Its source alone can say which rows of {table} can be read again. Name the pipeline's TOML file."
    )


@dataclass(frozen=True, slots=True)
class CommandRules:
    """What the configuration says about commands: whether the sink holds one row per key, and where a table that is to
    be added `is_selected`, which raises `ConfigError` otherwise. So does `require_rows` of rows that cannot be read.
    `why_not_by_key` says why rows of a table cannot be put over those of its target, and `why_read_once` why the log
    cannot be read a second time beside itself (`raycdc.config.SourceConfig`).
    """

    updates_rows: bool
    is_selected: Callable[[TableId], None]
    require_rows: RequireRows = no_rows
    why_not_by_key: WhyNotByKey = field(default_factory=lambda: RowsByKey().why_not)
    why_read_once: Callable[[], str] = str

    def why_no_rows(self, table: TableId, state: StreamState, record: CommitRecord | None) -> str:
        """Why no rows of the table are read again, whatever the source says; empty where they may be."""
        if not self.updates_rows:
            return (
                f"The target of {table} keeps every change of a row (sink.write), and a row that is read again is not "
                "a change. To read the whole table anew: raycdc tables resnapshot, without --where."
            )
        try:
            return self.why_not_by_key(table, state.tables, record)
        except ConfigError as error:
            return str(error)


def as_it_is(state: StreamState, record: CommitRecord | None) -> StreamState:
    """The log's state as the next coordinator finds it: with the tables parked that the record says a target
    refused.
    """
    return state if record is None else with_refusals(state, refusals_of(record.parked))


def judged(
    command: Command,
    state: StreamState,
    record: CommitRecord | None,
    rules: CommandRules,
    document: Callable[[str], SchemaDocument],
) -> Asked:
    """The command as it is carried out on a log's `state` (`as_it_is`). `ConfigError` says why it is refused.

    `document` gives the description of a table by its fingerprint.
    """
    action, table = command.action, table_called(command.table, state)
    if command.is_of_rows:
        return _judged_rows(command, TableId.parse(table), state, record, rules, document)
    _require_sense(action, table, state, rules)
    why = _why_anew(table, state, record, rules) if action is TableAction.RESUME else ""
    if action is TableAction.RESUME and not why and (once := rules.why_read_once()):
        raise ConfigError(
            f"{table} cannot go on from where it was left, because {once} Or read it anew with: raycdc tables "
            f"resnapshot CONFIG {table}"
        )
    anew = bool(why) or action.request is TableRequest.RESNAPSHOT
    shared = record if anew and rules.updates_rows else None
    together = read_together(shared, [table], state)
    done = f"goes on, and is read anew, because {why}" if why else action.done
    text = f"{table} {done}" + _said_of(together, left_behind(shared, together))
    return Asked(command.id, str(action), table, tuple(sorted(together)), text, anew=anew)


def taken_back(command: Command, before: StreamState, state: StreamState, requests: Requests) -> Asked | None:
    """The answer to who resumes a table whose pause was asked for and has not begun: it takes that back, and nothing
    else becomes of the table. None for any other command. `state` is `before` with all that was asked for.
    """
    if command.action is not TableAction.RESUME:
        return None
    table = table_called(command.table, state)
    if requests.tables.get(table) is not TableRequest.PAUSE or can_be_resumed(before.named(table)):
        return None
    text = f"{table} is not paused: that was asked for and had not begun, and is taken back"
    return Asked(command.id, str(command.action), table, (table,), text)


def _why_anew(table: str, state: StreamState, record: CommitRecord | None, rules: CommandRules) -> str:
    """Why the paused table cannot go on from where it was left; empty where it can."""
    paused = state.named(table)
    if not isinstance(paused, Parked) or paused.left is None:
        return (
            "nobody knows what happened since it was paused (its snapshot was under way, an older raycdc paused it, or "
            "another server took over since)"
        )
    if record is not None and any(table in entry.sources for entry in record.parked.values()):
        return "its target was parked before, and lacks rows"
    if record is not None and rules.updates_rows and any(table in names for names in merged_targets(record).values()):
        return "other tables share its target, which may have been emptied for them meanwhile"
    return ""


def _judged_rows(
    command: Command,
    table: TableId,
    state: StreamState,
    record: CommitRecord | None,
    rules: CommandRules,
    document: Callable[[str], SchemaDocument],
) -> Asked:
    """`judged`, of a command about some rows. `ConfigError`, also where the source could not be asked."""
    now = state[table]
    if command.action not in (TableAction.BACKFILL, TableAction.RESNAPSHOT):
        raise ConfigError(f"{command.action} is about a whole table. Leave --where out.")
    if not (command.where or command.keys):
        raise ConfigError("A backfill needs --where, which says which rows. For all: raycdc tables resnapshot.")
    if isinstance(now, Unknown):
        _require_sense(command.action, str(table), state, rules)
        raise ConfigError(f"{table} is not one of the pipeline's tables.")
    if isinstance(now, Parked | Gone):
        why = f"{now.phase}: {now.reason}" if isinstance(now, Parked) else "gone"
        raise ConfigError(f"{table} is {why} Rows are read again of tables that are followed: resume it first.")
    if isinstance(now, CatchingUp):
        raise ConfigError(f"{table} is still catching up with the log after a pause. Ask again when it has caught up.")
    if why_not := rules.why_no_rows(table, state, record):
        raise ConfigError(why_not)
    described = document(now.schema)
    if not described.primary_key:
        raise ConfigError(
            f"{table} has no primary key, by which rows that are read again are told from those of its target. For all "
            "of its rows: raycdc tables resnapshot, without --where."
        )
    for again in command.rows:
        try:
            rules.require_rows(table, described, again)
        except SourceError as cause:
            raise ConfigError(f"The source could not be asked for the rows: {cause}") from cause
    if command.keys:
        text = "has the rows of some keys read again, and keys that the source does not have deleted from its target"
    else:
        text = (
            f"has the rows that meet {command.where} read again beside its log, and put over those of its target by key"
        )
    return Asked(command.id, str(command.action), str(table), (), f"{table} {text}")


def _require_sense(action: TableAction, table: str, state: StreamState, rules: CommandRules) -> None:
    now = state.named(table)
    parked = now if isinstance(now, Parked) else None
    known = not isinstance(now, Unknown)
    removed = parked is not None and parked.phase is Phase.REMOVED
    if action is TableAction.ADD:
        if known and not removed:
            raise ConfigError(f"{table} is one of the pipeline's tables. To read it again: raycdc tables resnapshot.")
        rules.is_selected(TableId.parse(table))
    elif not known:
        raise ConfigError(
            f"{table} is not one of the pipeline's tables "
            f"({_some(state.names)}){did_you_mean(table, state.names) or '.'} Add it with: raycdc tables add."
        )
    if removed and action in (TableAction.RESUME, TableAction.RESNAPSHOT):
        raise ConfigError(f"{table} was removed. Add it with: raycdc tables add.")
    if action is TableAction.RESUME and not can_be_resumed(now):
        raise ConfigError(f"{table} is not paused. For a new snapshot of it: raycdc tables resnapshot.")
    idle = parked is not None and parked.phase is not Phase.PARKED
    if parked is not None and ((action is TableAction.PAUSE and idle) or (action is TableAction.REMOVE and removed)):
        raise ConfigError(f"{table} is {parked.phase} already: {parked.reason}")


def _some(names: Sequence[str]) -> str:
    """The names, or the first of many."""
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def table_called(name: str, state: StreamState) -> str:
    """The table's name as the state has it, where people may have written it as a plain name of the configuration."""
    if "." not in name or not isinstance(state.named(name), Unknown):
        return name
    return str(plain_table(name) or TableId.parse(name))


def _said_of(together: Mapping[str, str], left: Sequence[str]) -> str:
    """A text about the other tables that are read again; empty where the table has its targets for itself."""
    targets = ", ".join(sorted(set(together.values()) - {""}))
    if not targets:
        return ""
    those = f" and the rows of {', '.join(left)}, which nobody reads again, are removed" if left else ""
    return (
        f"\nIts rows in {targets} cannot be told from those of other tables, so {targets} is emptied{those}, and "
        f"{', '.join(sorted(together))} are read again together."
    )
