"""Decides about commands on a pipeline's tables, from the state and before anything is changed.

| action | is refused where the table is | its request |
|---|---|---|
| `add` | in the pipeline and not removed; not selected by the configuration | a snapshot |
| `remove` | not in the pipeline; removed | left out |
| `pause` | not in the pipeline; paused, removed or ended | left out |
| `resume` | not paused, nor parked at a position that it can continue from; its log cannot be read twice at the same \
time | to continue from its position; a snapshot if the changes since then are not available |
| `resnapshot` | not in the pipeline; removed | a snapshot |
| `backfill`, and `resnapshot` of some rows | not followed, or without a primary key; its target keeps changes and no \
rows, or cannot tell its rows by key (second table); the source refuses the predicate | a backfill |

Pure. `raycdc.driver.command_queue` stores the commands, and carries them out.

A backfill replaces rows of a target one by one, by key. `RowsByKey` decides if that is possible:

| a table | has no backfill, because |
|---|---|
| whose target has rows of other tables | an inserted row must have a key that the target does not have yet |
| whose transform gives it another key | likewise: its rows may come to have the same key |
| whose transform leaves rows out | a row that it leaves out would stay in the target as it was |

In the first two cases, a row that is read again would be refused as a duplicate of its key. If the log deletes the row
in the same epoch, insert and deletion would cancel out, and the old row would stay in the target
(`raycdc.sinks.source_tables`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from raycdc.core.typed_codec import LEFT_OUT, JsonObject, stored
from raycdc.errors import ConfigError, SourceError
from raycdc.model import TableId
from raycdc.model.rules.routes import Router
from raycdc.model.rules.selector import plain_table
from raycdc.model.rules.transform import Transforms
from raycdc.plugins import did_you_mean
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.split import BackfillRows, SnapshotSplit
from raycdc.source.tables.parking import (
    CommandDecision,
    Requests,
    RowsRequest,
    TableRequest,
    can_be_resumed,
    with_refusals,
)
from raycdc.source.tables.table_life import CatchingUp, Dropped, Parked, ParkedPhase, Unknown
from raycdc.source.tables.table_requests import left_behind, merged_targets, read_together, refusals_of
from raycdc.state.store import CommitRecord

#: The type of `RowsByKey.why_not`.
WhyNotByKey = Callable[[TableId, Iterable[TableId], CommitRecord | None], str]


@dataclass(frozen=True, slots=True)
class RowsByKey:
    """Decides if rows of a table can replace rows of its target by key. The answer depends on the routes and transforms
    of the configuration.
    """

    router: Router = field(default_factory=Router)
    transforms: Transforms = field(default_factory=Transforms)

    def why_not(self, table: TableId, tables: Iterable[TableId], record: CommitRecord | None) -> str:
        """Return the reason why rows of the table cannot be replaced by key, with the solution; empty if they can.
        `tables` are all tables of the pipeline.
        """
        hint = f"For all of its rows: raycdc tables resnapshot CONFIG {table}"
        for target, other in self._shared(table, tables, record):
            return (
                f"The rows of {table} in {target} cannot be told from those of {other}, which go there too, so none "
                f"of them is read again by itself. {hint}"
            )
        found = self.transforms.of(table)
        if found is None:
            return ""
        if found.primary_keys:
            return (
                f"{self.transforms.key_path(table)}.primary_keys gives the rows of {table} a key of its own, so none "
                f"of them is read again by itself: another one may have the same. {hint}"
            )
        drops = found.filter or any(lookup.drop for lookup in found.lookups)
        if drops:
            return (
                f"{self.transforms.key_path(table)} leaves rows of {table} out (filter, or a lookup that drops), and "
                f"such a row would stay in the target as it was. {hint}"
            )
        return ""

    def targets(self, table: TableId) -> tuple[TableId, ...]:
        """Return the targets of `table`; none if a route makes an invalid name."""
        return _targets(self.router, table)

    def _shared(
        self, table: TableId, tables: Iterable[TableId], record: CommitRecord | None
    ) -> Iterator[tuple[str, str]]:
        """Yield the targets that the table shares with others, each with one of the other tables."""
        for target, sources in ({} if record is None else merged_targets(record)).items():
            if str(table) in sources:
                yield target, next(name for name in sources if name != str(table))
        if not self.router:
            return
        own = set(self.router.targets(table))
        for other in tables:
            for shared in own & set(_targets(self.router, other)) if other != table else ():
                yield str(shared), str(other)


def _targets(router: Router, table: TableId) -> tuple[TableId, ...]:
    try:
        return router.targets(table)
    except ConfigError:
        return ()  # The shared target is the reason why the table is parked.


#: The maximum number of table names in the message about an unknown table; a pipeline may have thousands.
NAMES_MAX = 20


class TableAction(StrEnum):
    """An action that a user may request for a table."""

    ADD = "add"
    REMOVE = "remove"
    PAUSE = "pause"
    RESUME = "resume"
    RESNAPSHOT = "resnapshot"
    BACKFILL = "backfill"

    @property
    def request(self) -> TableRequest:
        """Return the request of the action, unless the table is resnapshotted (`judged`)."""
        asked = {
            TableAction.REMOVE: TableRequest.REMOVE,
            TableAction.PAUSE: TableRequest.PAUSE,
            TableAction.RESUME: TableRequest.RESUME,
        }
        return asked.get(self, TableRequest.RESNAPSHOT)

    @property
    def done(self) -> str:
        """Return the effect on the table, as the end of a sentence that begins with its name."""
        return _DONE[self]


_DONE = {
    TableAction.RESNAPSHOT: "is read again",
    TableAction.BACKFILL: "has some rows read again",
    TableAction.ADD: "is added, beginning with a snapshot",
    TableAction.PAUSE: "is paused (its target keeps what it has)",
    TableAction.REMOVE: "is no longer followed (its target keeps what it has, and `add` reads it anew)",
    TableAction.RESUME: "goes on from where it was left",
}


@dataclass(frozen=True, slots=True)
class TableCommand(JsonObject):
    """A command: an action on `table`, whose name is in the form that users write. A command that is given twice with
    the same `id` takes effect once. It concerns all rows, or the rows that match the predicate `where`, or the rows
    with the keys in `keys`, each of which is a list of keys (`raycdc.source.snapshot.rereading.backfill_keys`). If
    `replaces` is True, the new snapshot replaces a parked target with any content.
    """

    id: str
    action: TableAction
    table: str
    where: str = field(default="", metadata=LEFT_OUT)
    keys: tuple[str, ...] = field(default=(), metadata=LEFT_OUT)
    #: Ignored by older versions of raycdc: with them, the target refuses the new snapshot as it did before.
    replaces: bool = field(default=False, metadata=stored("replace", left_out=True))

    @classmethod
    def new(
        cls, action: TableAction, table: str, *, where: str = "", keys: Sequence[str] = (), replaces: bool = False
    ) -> TableCommand:
        """Return a command with a new id."""
        return cls(secrets.token_hex(8), action, table, where, tuple(keys), replaces)

    @property
    def is_of_rows(self) -> bool:
        """Return True if the command is about some rows of the table."""
        return self.action is TableAction.BACKFILL or bool(self.where or self.keys)

    @property
    def rows(self) -> Sequence[BackfillRows]:
        """Return the rows that the chunks of the command read."""
        if self.keys:
            return [BackfillRows(self.id, keys=listed) for listed in self.keys]
        return [BackfillRows(self.id, where=self.where)]

    def rows_request(self, table: TableId) -> RowsRequest:
        """Return the backfill request of a command about rows of `table`."""
        if not self.keys:
            return RowsRequest(self.id, table, where=self.where)
        parts = [SnapshotSplit(table, n, None, None, None, again=again) for n, again in enumerate(self.rows)]
        return RowsRequest(self.id, table, parts=tuple(parts))

    def requests(self, asked: CommandDecision) -> dict[str, TableRequest]:
        """Return the request about each table of the command. `asked` is the decision about the command; a refused
        command makes no request.
        """
        request = TableRequest.RESNAPSHOT if asked.resnapshots else self.action.request
        return {} if asked.refused else dict.fromkeys(asked.tables, request)

    def refused(self, why: str) -> CommandDecision:
        return CommandDecision(self.id, str(self.action), self.table, (), why, refused=True)


#: Raises `ConfigError` if these rows of a table cannot be read (`raycdc.source.connector.IncrementalSource`).
RequireRows = Callable[[TableId, SchemaDocument, BackfillRows], None]


def no_rows(table: TableId, *_: object) -> None:
    """Raise `ConfigError`: the `RequireRows` for commands without access to the source."""
    raise ConfigError(
        f"Its source alone can say which rows of {table} can be read again. Name the pipeline's TOML file."
    )


@dataclass(frozen=True, slots=True)
class CommandRules:
    """The configuration's rules for commands.

    `updates_rows` is True if the sink holds one row per key. `is_selected` raises `ConfigError` for a table that is to
    be added and is not selected. `require_rows` raises it for rows that cannot be read. `why_not_by_key` returns the
    reason why rows of a table cannot replace rows of its target. `why_read_once` is the reason why the log cannot be
    read a second time in parallel (`raycdc.config.SourceConfig`). `targets` returns the targets of a table.
    """

    updates_rows: bool
    is_selected: Callable[[TableId], None]
    require_rows: RequireRows = no_rows
    why_not_by_key: WhyNotByKey = field(default_factory=lambda: RowsByKey().why_not)
    why_read_once: Callable[[], str] = str
    targets: Callable[[TableId], tuple[TableId, ...]] = field(default_factory=lambda: RowsByKey().targets)

    def why_no_rows(self, table: TableId, state: StreamState, record: CommitRecord | None) -> str:
        """Return why no rows of the table can be read again, for any source; empty if they can."""
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
    """Return the log's state that the next coordinator will begin with. In it, tables that a target refused according
    to `record` are parked.
    """
    return state if record is None else with_refusals(state, refusals_of(record.parked))


def judged(
    command: TableCommand,
    state: StreamState,
    record: CommitRecord | None,
    rules: CommandRules,
    document: Callable[[str], SchemaDocument],
) -> CommandDecision:
    """Return the decision about the command, given the log's `state` (the result of `as_it_is`).

    Raises `ConfigError` with the reason if the command is refused.

    `document` returns the description of a table by its fingerprint.
    """
    action, table = command.action, table_called(command.table, state)
    if command.is_of_rows:
        return _judged_rows(command, TableId.parse(table), state, record, rules, document)
    _require_sense(action, table, state, rules)
    why = _why_resnapshot(table, state, record, rules) if action is TableAction.RESUME else ""
    if action is TableAction.RESUME and not why and (once := rules.why_read_once()):
        raise ConfigError(
            f"{table} cannot go on from where it was left, because {once} Or read it anew with: raycdc tables "
            f"resnapshot CONFIG {table}"
        )
    hint = bool(why) or action.request is TableRequest.RESNAPSHOT
    shared = record if hint and rules.updates_rows else None
    together = read_together(shared, [table], state)
    done = f"goes on, and is read anew, because {why}" if why else action.done
    if command.replaces:
        _require_replaceable(table, action, record)
        done += ", and its target is replaced, with all that is in it"
    text = f"{table} {done}" + _said_of(together, left_behind(shared, together))
    begins = tuple(sorted(together)) if hint else ()
    return CommandDecision(
        command.id,
        str(action),
        table,
        tuple(sorted(together)),
        text,
        resnapshots=hint,
        begins=begins,
        replaces=command.replaces,
    )


def _require_replaceable(table: str, action: TableAction, record: CommitRecord | None) -> None:
    """Raise `ConfigError` unless the table is the only source of its parked target."""
    if action is not TableAction.RESNAPSHOT:
        raise ConfigError(f"--replace belongs to a new snapshot of a table, not to {action}.")
    entries = {} if record is None else {n: e for n, e in record.parked.items() if table in e.sources and not e.begun}
    if not entries:
        raise ConfigError(
            f"The target of {table} is not parked, so there is nothing to replace: without --replace a new snapshot "
            "empties an upsert target, and a changelog keeps what it has."
        )
    shared = {} if record is None else merged_targets(record)
    if both := next((name for name in entries if name in shared), None):
        raise ConfigError(
            f"{both} has rows of several tables ({', '.join(shared[both])}), which are not replaced for one of them. "
            "Move it away, and read them anew without --replace."
        )


def taken_back(
    command: TableCommand, before: StreamState, state: StreamState, requests: Requests
) -> CommandDecision | None:
    """Return the decision about a `resume` that only cancels a requested pause which has not begun; None for any other
    command. `state` is the state `before` with all requests applied.
    """
    if command.action is not TableAction.RESUME:
        return None
    table = table_called(command.table, state)
    if requests.tables.get(table) is not TableRequest.PAUSE or can_be_resumed(before.named(table)):
        return None
    text = f"{table} is not paused: that was asked for and had not begun, and is taken back"
    return CommandDecision(command.id, str(command.action), table, (table,), text)


def _why_resnapshot(table: str, state: StreamState, record: CommitRecord | None, rules: CommandRules) -> str:
    """Return why the paused table cannot continue from its position; empty if it can."""
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
    if record is not None and rules.updates_rows and (target := _emptied(table, record, rules)):
        return f"{target} was emptied for another table meanwhile"
    return ""


def _emptied(table: str, record: CommitRecord, rules: CommandRules) -> str:
    """Return a target that has no rows of the table any more, because it was emptied for other tables since the table
    was left; empty if there is none.

    The record then names the target without the table. A record of an older raycdc may not describe the target.
    """
    targets = map(str, rules.targets(TableId.parse(table)))
    lacking = (name for name in targets if name in record.routes and table not in record.routes[name].sources)
    named = any(table in route.sources for route in record.routes.values())
    return next(lacking, "" if named or not record.routes else "its target")


def _judged_rows(
    command: TableCommand,
    table: TableId,
    state: StreamState,
    record: CommitRecord | None,
    rules: CommandRules,
    document: Callable[[str], SchemaDocument],
) -> CommandDecision:
    """Return the decision about a command on some rows of a table. Raises `ConfigError` if the command is refused, or
    if the source cannot be queried.
    """
    now = state[table]
    if command.action not in (TableAction.BACKFILL, TableAction.RESNAPSHOT):
        raise ConfigError(f"{command.action} is about a whole table. Leave --where out.")
    if not (command.where or command.keys):
        raise ConfigError("A backfill needs --where, which says which rows. For all: raycdc tables resnapshot.")
    if isinstance(now, Unknown):
        _require_sense(command.action, str(table), state, rules)
        raise ConfigError(f"{table} is not one of the pipeline's tables.")
    if isinstance(now, Parked | Dropped):
        raise ConfigError(_not_followed(str(table), now))
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
    return CommandDecision(command.id, str(command.action), str(table), (), f"{table} {text}")


def _not_followed(table: str, state: Parked | Dropped) -> str:
    """Return why single rows of a table in this state are not read again, with the command that a start accepts."""
    only = "Single rows are read again of tables that are followed"
    if isinstance(state, Dropped):
        return f"{table} was dropped at the source. {only}."
    if state.word == "pending":
        return f"{table} waits to be read anew as a whole ({state.reason}) Nothing more is needed."
    if state.phase is ParkedPhase.REMOVED:
        way = "add it first, with: raycdc tables add"
    elif can_be_resumed(state):
        way = "let it go on first, with: raycdc tables resume"
    else:
        way = "read it anew as a whole, with: raycdc tables resnapshot"
    return f"{table} is {state.phase}: {state.reason} {only}: {way}."


def _require_sense(action: TableAction, table: str, state: StreamState, rules: CommandRules) -> None:
    now = state.named(table)
    parked = now if isinstance(now, Parked) else None
    known = not isinstance(now, Unknown)
    removed = parked is not None and parked.phase is ParkedPhase.REMOVED
    if action is TableAction.ADD:
        if known and not removed:
            raise ConfigError(f"{table} is one of the pipeline's tables. To read it again: raycdc tables resnapshot.")
        rules.is_selected(TableId.parse(table))
    elif not known:
        raise ConfigError(
            f"{table} is not one of the pipeline's tables "
            f"({_some(state.names)}){did_you_mean(table, state.names) or '.'} {_way_in(table, rules)}"
        )
    if removed and action in (TableAction.RESUME, TableAction.RESNAPSHOT):
        raise ConfigError(f"{table} was removed. Add it with: raycdc tables add.")
    if action is TableAction.RESUME and not can_be_resumed(now):
        raise ConfigError(f"{table} is not paused. For a new snapshot of it: raycdc tables resnapshot.")
    idle = parked is not None and parked.phase is not ParkedPhase.PARKED
    if parked is not None and ((action is TableAction.PAUSE and idle) or (action is TableAction.REMOVE and removed)):
        raise ConfigError(f"{table} is {parked.phase} already: {parked.reason}")


def _way_in(table: str, rules: CommandRules) -> str:
    """Return the advice for a table that the pipeline does not have: `add` takes only selected tables."""
    try:
        rules.is_selected(TableId.parse(table))
    except ConfigError as refused:
        return str(refused)
    except ValueError:
        return "A table is named DB.TABLE."
    return "Add it with: raycdc tables add."


def _some(names: Sequence[str]) -> str:
    """Return the names, or only the first of many."""
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def table_called(name: str, state: StreamState) -> str:
    """Return the name of the table in the state. `name` may be in the form that the configuration uses."""
    if "." not in name or not isinstance(state.named(name), Unknown):
        return name
    return str(plain_table(name) or TableId.parse(name))


def _said_of(together: Mapping[str, str], left: Sequence[str]) -> str:
    """Return a text about the other tables that are read again; empty if the table shares no target."""
    targets = ", ".join(sorted(set(together.values()) - {""}))
    if not targets:
        return ""
    those = f" and the rows of {', '.join(left)}, which nobody reads again, are removed" if left else ""
    return (
        f"\nIts rows in {targets} cannot be told from those of other tables, so {targets} is emptied{those}, and "
        f"{', '.join(sorted(together))} are read again together."
    )
