"""Requests about a pipeline's tables while nobody reads: by ``raycdc tables``, and when its log was purged.

Everything here works on the state alone, under its lease; the coordinator that starts next carries it out
(`raycdc.source.tables.parking`): that of the next run, or that of a running driver's next generation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from raycdc.errors import SchemaError, StateError
from raycdc.model import TableId
from raycdc.source.snapshot.log.stream_state import StreamState, stream_of
from raycdc.source.snapshot.rereading.backfill import Backfill
from raycdc.source.snapshot.rereading.backfill_request import RowsRequest
from raycdc.source.split import STREAM_SPLIT_ID
from raycdc.source.tables.parking import CommandDecision, LogStart, Refusal, Requests, TableRequest
from raycdc.source.tables.table_life import (
    AsOf,
    InSnapshot,
    Parked,
    ParkedPhase,
    TableState,
    Unknown,
    incarnation_of,
    is_nothing,
)
from raycdc.state.documents import REQUESTS
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.opaque import Position
from raycdc.state.parked import ParkedTarget
from raycdc.state.store import CheckpointStore, CommitRecord

#: So many commands that are done are remembered, for whoever asks about them.
COMMANDS_KEPT = 50
#: So many parked tables are named where a run ends with some, and of so many the reasons are given: some screens,
#: however many there are.
PARKED_NAMED, PARKED_TOLD = 100, 20


def stream_state(manifest: Manifest | None) -> StreamState:
    """The log's state in `manifest`. `StateError` when there is none: nothing was read yet, or the source has none."""
    state = stream_of(manifest)
    if state is None:
        raise StateError(
            "This pipeline has no table with a log yet. Run it first; its first start reads every table anyway."
        )
    return state


def requests_of(store: CheckpointStore) -> Requests:
    """The last requests, done or not."""
    asked: Any = store.documents.read(REQUESTS)
    return Requests() if asked is None else Requests.from_json(asked)


def each_table(state: StreamState, requests: Requests) -> Iterator[tuple[str, TableState, TableRequest | None]]:
    """The tables that `state` has or that are asked about, by name, with the request that is still to do. A name that
    no table was found under is none of them, unless a command about it is remembered.
    """
    commanded = {asked.table for asked in requests.commands}
    for name in sorted({*state.names, *requests.tables}):
        table, acts = state.named(name), requests.acts_on(name, state)
        if acts or not (isinstance(table, Unknown) or (is_nothing(table) and name not in commanded)):
            yield name, table, requests.tables[name] if acts else None


def settle(store: CheckpointStore, epoch: int) -> None:
    """Forget the requests that are done as of `epoch`, which is committed."""
    with store.documents.changing:
        asked = requests_of(store)
        awaited = any(one.begins for one in asked.commands)
        if not asked.tables and asked.start is None and not asked.rows and not awaited:
            return
        manifest = store.manifest(epoch)
        stream = stream_of(manifest)
        if stream is None or manifest is None:
            return
        over = backfills_over(manifest)
        left = asked.left(stream, over)
        told = [_with_result(one, over[one.command]) if one.command in over else one for one in left.commands]
        if awaited:
            record = store.last_commit()
            told = [_with_first_epochs(one, left, stream, record) if one.begins else one for one in told]
        left = replace(left, commands=tuple(told))
        if left != asked:
            store.documents.write(REQUESTS, left.to_json())


def backfills_over(manifest: Manifest) -> dict[str, Backfill]:
    """The backfills that `manifest`, of a source with a log, says are over, by the ids of their commands."""
    every = map(Backfill.from_json, manifest.enumerator.to_json().get("backfills", ()))
    return {each.request.backfill: each for each in every if each.over is not None}


def _with_result(asked: CommandDecision, backfill: Backfill) -> CommandDecision:
    """The command with what became of its backfill."""
    return replace(asked, text=f"{asked.table} {backfill.result}", refused=bool(backfill.over))


def _with_first_epochs(
    asked: CommandDecision, left: Requests, stream: StreamState, record: CommitRecord | None
) -> CommandDecision:
    """The command once an epoch is committed that leaves the log as `stream`, as `record` says. The tables are left out
    whose first rows a target has, and the reasons are given of those that are parked instead.
    """
    begins: list[str] = []
    reasons: dict[str, str] = {}
    for name in asked.begins:
        state = stream.named(name)
        if name in left.tables:
            begins.append(name)
        elif reason := _parked_again(name, state, record):
            reasons[name] = reason
        elif not _has_begun(state):
            begins.append(name)
    if not reasons:
        return replace(asked, begins=tuple(begins))
    text = " ".join(f"{name} was read again, and is parked: {reason}" for name, reason in sorted(reasons.items()))
    return replace(asked, begins=tuple(begins), text=text, parked=True)


def _parked_again(name: str, state: TableState, record: CommitRecord | None) -> str:
    """Why the table is parked in this beginning, by its source or for a target; empty where it is not."""
    if isinstance(state, Parked) and state.phase is ParkedPhase.PARKED and not state.again:
        return state.reason
    now = incarnation_of(state)
    if record is None or now is None:
        return ""
    entries = (entry for _, entry in sorted(record.parked.items()))
    return next((entry.text for entry in entries if entry.sources.get(name, -1) >= now), "")


def _has_begun(state: TableState) -> bool:
    """Whether epochs have rows of the table, whose first one may only make or empty its target; or no snapshot of it
    goes on: all of it was published, or it was paused, removed or dropped meanwhile.
    """
    match state:
        case Parked():
            return not state.again
        case InSnapshot(snapshot=snapshot) | AsOf(snapshot=snapshot):
            return bool(snapshot.closed) or snapshot.null_closed
        case _:
            return True


def replaced(store: CheckpointStore) -> Callable[[Sequence[TableId]], bool]:
    """Whether the first epoch of these source tables replaces their target, as somebody asked for it by command."""

    def asked_for(sources: Sequence[TableId]) -> bool:
        names = {name for one in requests_of(store).commands if one.replaces for name in one.begins}
        return any(str(source) in names for source in sources)

    return asked_for


def ask(
    store: CheckpointStore, tables: Sequence[str], request: TableRequest, *, manifest: Manifest | None = None
) -> None:
    """Make a `request` of `tables`, beside what was asked before and is still to do.

    `manifest` is where reading will go on, for a caller that commits it (default: the newest, see `ask_all`).
    """
    with store.documents.changing:
        if manifest is None:
            ask_all(store, dict.fromkeys(tables, request))
            return
        asked = requests_of(store).and_also(tables, request, stream_state(manifest))
        store.documents.write(REQUESTS, asked.to_json())


def ask_all(
    store: CheckpointStore,
    wanted: Mapping[str, TableRequest],
    commands: Sequence[CommandDecision] = (),
    rows: RowsRequest | None = None,
) -> None:
    """Make the requests that are `wanted`, and for a backfill of `rows`, and say that `commands` were judged, in one
    step, while nobody reads.

    They act on the newest epoch. It may still be dropped: a request that it has carried out, and the last commit has
    not, is kept, and acts again only then.
    """
    with store.documents.changing:
        asked = requests_of(store)
        if wanted:
            record, newest = store.last_commit(), stream_state(store.last_manifest())
            committed = None if record is None else stream_of(store.manifest(record.epoch))
            requests = asked if committed is None else asked.left(committed)
            asked = requests.beside(wanted, newest.changes)
        if rows is not None:
            asked = replace(asked, rows={**asked.rows, rows.backfill: rows})
        store.documents.write(REQUESTS, with_commands(asked, commands).to_json())


def judge_rows(store: CheckpointStore, why_not: Callable[[TableId], str]) -> None:
    """Backfills that were asked for before are refused as `why_not` says of their tables now, while nobody reads."""
    with store.documents.changing:
        asked = requests_of(store)
        rows = {name: replace(one, refused=why_not(one.table)) for name, one in asked.rows.items()}
        if rows != asked.rows:
            store.documents.write(REQUESTS, replace(asked, rows=rows).to_json())


def with_commands(requests: Requests, commands: Sequence[CommandDecision]) -> Requests:
    """`requests`, which know of `commands` too; of those that are done, the oldest are forgotten."""
    known = {asked.command: asked for asked in (*requests.commands, *commands)}
    over = [asked.command for asked in known.values() if not acting(asked, requests)]
    forgotten = set(over[:-COMMANDS_KEPT])
    return replace(requests, commands=tuple(a for a in known.values() if a.command not in forgotten))


def acting(asked: CommandDecision, requests: Requests) -> bool:
    """Whether the sink does not hold yet what the command asked for."""
    waiting = asked.command in requests.rows or any(name in requests.tables for name in asked.tables) or asked.begins
    return not asked.refused and bool(waiting)


def ask_to_begin_again(store: CheckpointStore, last: Manifest, start: LogStart, tables: Sequence[str]) -> None:
    """Ask for new snapshots of all `tables`, and of all that are known, with the log from another place on."""
    store.documents.write(REQUESTS, all_again(requests_of(store), last, start, tables).to_json())


def all_again(before: Requests, last: Manifest, start: LogStart, tables: Sequence[str]) -> Requests:
    """The requests `before`, with those of `ask_to_begin_again`."""
    state = stream_state(last)
    # Paused tables and those that have ended stay as they are.
    staying = {str(table) for table, parked in state.parked.items() if parked.phase is not ParkedPhase.PARKED}
    names = {*tables, *state.names} - staying
    asked = dict.fromkeys(sorted(names), TableRequest.RESNAPSHOT) | before.of_leaving(state)
    return Requests(state.changes, asked, start, commands=before.commands)


def ask_for_lost_rows(store: CheckpointStore, manifest: Manifest, tables: Sequence[str]) -> None:
    """Ask for new snapshots of `tables`, which lack rows of the epoch of `manifest`; those that are to leave may lack
    them, as whoever takes them up again gets a new snapshot.
    """
    leaving = requests_of(store).of_leaving(stream_state(manifest))
    ask(store, [name for name in tables if name not in leaving], TableRequest.RESNAPSHOT, manifest=manifest)


def read_together(record: CommitRecord | None, tables: Sequence[str], state: StreamState) -> dict[str, str]:
    """`tables` and all that begin again with them, each with the target that they share ("": none): rows of several
    tables in a target with one row per key cannot be told apart, so it is emptied for all of them.

    Tables that are paused, removed or ended stay as they are, and their rows leave the target.
    """
    reasons = dict.fromkeys(tables, "")
    shared = {} if record is None else merged_targets(record)
    pending = list(tables)
    while pending:
        name = pending.pop()
        for target, sources in shared.items():
            if name in sources:
                reasons[name] = target
                new = [one for one in sources if one not in reasons and goes_on(one, state)]
                reasons.update(dict.fromkeys(new, target))
                pending += new
    return reasons


def merged_targets(record: CommitRecord) -> dict[str, tuple[str, ...]]:
    """The targets that rows of several source tables went to, or were to go to when they were parked."""
    found = {name: set(route.sources) for name, route in record.routes.items()}
    for name, entry in record.parked.items():
        found.setdefault(name, set()).update(entry.sources)
    return {name: tuple(sorted(sources)) for name, sources in found.items() if len(sources) > 1}


def begins_again(name: str, requests: Requests, state: StreamState) -> bool:
    """Whether a new snapshot of the table is asked for, and not under way."""
    return requests.tables.get(name) is TableRequest.RESNAPSHOT and requests.acts_on(name, state)


def goes_on(name: str, state: StreamState) -> bool:
    """Whether rows of the table are still to come."""
    table = state.named(name)
    return table.phase is ParkedPhase.PARKED if isinstance(table, Parked) else not isinstance(table, Unknown)


def left_behind(record: CommitRecord | None, together: Mapping[str, str]) -> list[str]:
    """Tables whose rows leave the targets of those that are `read_together`, as nobody reads them again."""
    shared = {} if record is None else merged_targets(record)
    return sorted({s for target in set(together.values()) & shared.keys() for s in shared[target]} - together.keys())


def refusals_of(parked: Mapping[str, ParkedTarget]) -> list[Refusal]:
    """The refusals that the source is told of, for the targets that a commit record says are parked."""
    told = []
    for _, entry in sorted(parked.items()):
        position = entry.positions.get(STREAM_SPLIT_ID) or Position.unknown()
        for name, number in sorted(entry.sources.items()):
            told.append(Refusal(TableId.parse(name), number, entry.text, position, entry.since_ms))
    return told


def parked_at_sink(manifest: Manifest | None, record: CommitRecord | None) -> dict[str, ParkedTarget]:
    """Source tables that the newest manifest still follows, or that nothing but the record can tell of, with the
    parked target that they cannot reach.
    """
    if record is None or manifest is None:
        return {}
    stream = stream_of(manifest)
    parked = {}
    for _, entry in sorted(record.parked.items()):
        for name, number in entry.sources.items():
            followed = None if stream is None else stream.followed.get(TableId.parse(name))
            if stream is None or (followed is not None and followed.incarnation <= number):
                parked[name] = entry
    return parked


def complain_of_parked(
    manifest: Manifest | None,
    record: CommitRecord | None = None,
    *,
    selects: Callable[[TableId], bool] = lambda _: True,
) -> None:
    """Raise `SchemaError` for tables that a run which has read everything else leaves behind. Those of topics
    that the configuration `selects` no more owe nothing; where there is a log, a start has ended them.
    """
    stream = stream_of(manifest)
    parked = {} if stream is None else stream.parked
    left = {str(t): p.reason for t, p in parked.items() if p.phase is ParkedPhase.PARKED and not p.again}
    left |= {name: entry.text for name, entry in parked_at_sink(manifest, record).items()}
    if stream is None:
        left = {name: reason for name, reason in left.items() if selects(TableId.parse(name))}
    if not left:
        return
    every = sorted(left)
    reasons = "\n".join(f"{name}: {left[name]}" for name in every[:PARKED_TOLD])
    if len(every) > PARKED_TOLD:
        reasons += f"\n… `raycdc tables list CONFIG` has the reasons of the other {len(every) - PARKED_TOLD}, too."
    names = ", ".join(every[:PARKED_NAMED])
    if len(every) > PARKED_NAMED:
        names += f" and {len(every) - PARKED_NAMED} more"
    it, each = ("it", every[0]) if len(every) == 1 else ("them", "TABLE, once for each")
    anew = (
        f" Do what is said above, or take a new snapshot of {it} at the next start with: raycdc tables resnapshot "
        f"CONFIG {each}; or leave {it} out (source.exclude)."
        if stream is not None
        else f" To go on without {it}, leave {it} out (source.format.exclude)."
    )
    raise SchemaError(
        f"Everything is committed except {names}: parked, because of changes that cannot be followed or written.\n"
        f"{reasons}\nNothing of {it} after that place was passed on.{anew}"
    )
