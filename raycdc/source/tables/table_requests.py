"""Makes requests about tables while no reader runs: from ``raycdc tables``, and after a purged log.

Everything here works on the state alone, under its lease. The next coordinator, in the next run or in the next
generation of a running driver, carries the requests out (`raycdc.source.tables.parking`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from raycdc.errors import SchemaError, StateError
from raycdc.model import TableId
from raycdc.source.snapshot.log.stream_state import StreamState, stream_of
from raycdc.source.snapshot.rereading.backfill import Backfill
from raycdc.source.split import STREAM_SPLIT_ID
from raycdc.source.tables.parking import CommandDecision, LogStart, Refusal, Requests, RowsRequest, TableRequest
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

#: The number of finished commands whose results are kept.
COMMANDS_KEPT = 50
#: If a run ends with parked tables, the most tables that the message names, and the most tables for which it gives
#: reasons. With these limits the message has a few screens at most.
PARKED_NAMED, PARKED_SHOWN = 100, 20


def stream_state(manifest: Manifest | None) -> StreamState:
    """Return the log's state in `manifest`.

    Raises `StateError` if there is none, because nothing was read yet, or the source has no log.
    """
    state = stream_of(manifest)
    if state is None:
        raise StateError(
            "This pipeline has no table with a log yet. Run it first; its first start reads every table anyway."
        )
    return state


def requests_of(store: CheckpointStore) -> Requests:
    """Return the stored requests, whether they are done or not."""
    asked: Any = store.documents.read(REQUESTS)
    return Requests() if asked is None else Requests.from_json(asked)


def each_table(state: StreamState, requests: Requests) -> Iterator[tuple[str, TableState, TableRequest | None]]:
    """Yield the tables that `state` has or that requests name, each with its unfinished request.

    A name under which no table was found is left out, unless there is a command about it.
    """
    commanded = {asked.table for asked in requests.commands}
    for name in sorted({*state.names, *requests.tables}):
        table, acts = state.named(name), requests.acts_on(name, state)
        if acts or not (isinstance(table, Unknown) or (is_nothing(table) and name not in commanded)):
            yield name, table, requests.tables[name] if acts else None


def complete_requests(store: CheckpointStore, epoch: int) -> None:
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
        reported = [_with_result(one, over[one.command]) if one.command in over else one for one in left.commands]
        if awaited:
            record = store.last_commit()
            reported = [_with_first_epochs(one, left, stream, record) if one.begins else one for one in reported]
        left = replace(left, commands=tuple(reported))
        if left != asked:
            store.documents.write(REQUESTS, left.to_json())


def backfills_over(manifest: Manifest) -> dict[str, Backfill]:
    """Return the backfills of `manifest` that are over, by the ids of their commands. The source has a log."""
    every = map(Backfill.from_json, manifest.enumerator.to_json().get("backfills", ()))
    return {each.request.backfill: each for each in every if each.over is not None}


def _with_result(asked: CommandDecision, backfill: Backfill) -> CommandDecision:
    """Return the command with the result of its backfill."""
    return replace(asked, text=f"{asked.table} {backfill.result}", refused=bool(backfill.over))


def _with_first_epochs(
    asked: CommandDecision, left: Requests, stream: StreamState, record: CommitRecord | None
) -> CommandDecision:
    """Return the command after the commit of an epoch. `stream` is the log's state and `record` the commit record after
    that epoch. From the command's `begins`, tables are removed whose first rows have reached a target. If a table is
    parked, or the source does not have it, its reason is added to the command's text.
    """
    begins: list[str] = []
    reasons: dict[str, str] = {}
    for name in asked.begins:
        state = stream.named(name)
        if name in left.tables:
            begins.append(name)
        elif isinstance(state, Parked) and state.phase is ParkedPhase.ENDED and not state.again:
            reasons[name] = f"was not read: {state.reason}"
        elif reason := _parked_again(name, state, record):
            reasons[name] = f"was read again, and is parked: {reason}"
        elif not _has_begun(state):
            begins.append(name)
    if not reasons:
        return replace(asked, begins=tuple(begins))
    text = " ".join(f"{name} {reason}" for name, reason in sorted(reasons.items()))
    return replace(asked, begins=tuple(begins), text=text, parked=True)


def _parked_again(name: str, state: TableState, record: CommitRecord | None) -> str:
    """Return why the table is parked in this incarnation, by its source or for a target; empty if it is not."""
    if isinstance(state, Parked) and state.phase is ParkedPhase.PARKED and not state.again:
        return state.reason
    now = incarnation_of(state)
    if record is None or now is None:
        return ""
    entries = (entry for _, entry in sorted(record.parked.items()))
    return next((entry.text for entry in entries if entry.sources.get(name, -1) >= now), "")


def _has_begun(state: TableState) -> bool:
    """Return True if epochs have rows of the table, or if no snapshot of it is going on. Rows are required, because a
    table's first epoch may only create or empty its target. No snapshot is going on if all chunks are published, or if
    the table was paused, removed or dropped.
    """
    match state:
        case Parked():
            return not state.again
        case InSnapshot(snapshot=snapshot) | AsOf(snapshot=snapshot):
            return bool(snapshot.closed) or snapshot.null_closed
        case _:
            return True


def replaced(store: CheckpointStore) -> Callable[[Sequence[TableId]], bool]:
    """Return a function that returns True if a command requests that the first epoch of source tables replaces their
    target.
    """

    def asked_for(sources: Sequence[TableId]) -> bool:
        names = {name for one in requests_of(store).commands if one.replaces for name in one.begins}
        return any(str(source) in names for source in sources)

    return asked_for


def ask(
    store: CheckpointStore, tables: Sequence[str], request: TableRequest, *, manifest: Manifest | None = None
) -> None:
    """Add a `request` about `tables` to the unfinished earlier requests.

    `manifest` is the manifest from which reading will go on, if the caller is about to commit it (default: the newest
    manifest, see `ask_all`).
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
    """Store the `wanted` requests, the backfill of `rows`, and the judged `commands` in one step.

    Call it while no reader runs. The requests act on the state after the newest epoch, which may still be dropped. If
    the newest epoch has carried out a request and is not committed yet, the request is therefore kept. It takes effect
    again only if that epoch is dropped.
    """
    with store.documents.changing:
        asked = requests_of(store)
        if wanted:
            record, newest = store.last_commit(), stream_state(store.last_manifest())
            committed = None if record is None else stream_of(store.manifest(record.epoch))
            requests = asked if committed is None else asked.left(committed)
            asked = requests.merged_with(wanted, newest.changes)
        if rows is not None:
            asked = replace(asked, rows={**asked.rows, rows.backfill: rows})
        store.documents.write(REQUESTS, with_commands(asked, commands).to_json())


def judge_rows(store: CheckpointStore, why_not: Callable[[TableId], str]) -> None:
    """Refuse requested backfills for whose tables `why_not` returns a reason. Call it while no reader runs."""
    with store.documents.changing:
        asked = requests_of(store)
        rows = {name: replace(one, refused=why_not(one.table)) for name, one in asked.rows.items()}
        if rows != asked.rows:
            store.documents.write(REQUESTS, replace(asked, rows=rows).to_json())


def with_commands(requests: Requests, commands: Sequence[CommandDecision]) -> Requests:
    """Return `requests` with `commands` added. If there are too many finished commands, the oldest of them are
    forgotten.
    """
    known = {asked.command: asked for asked in (*requests.commands, *commands)}
    over = [asked.command for asked in known.values() if not acting(asked, requests)]
    forgotten = set(over[:-COMMANDS_KEPT])
    return replace(requests, commands=tuple(a for a in known.values() if a.command not in forgotten))


def acting(asked: CommandDecision, requests: Requests) -> bool:
    """Return True if the sink does not hold yet what the command requested."""
    waiting = asked.command in requests.rows or any(name in requests.tables for name in asked.tables) or asked.begins
    return not asked.refused and bool(waiting)


def is_carried_out(asked: CommandDecision, requests: Requests, newest: Manifest) -> bool:
    """Return True if a coordinator has carried out what the command requested, as the `newest` epoch shows. The source
    has a log.
    """
    if asked.command in requests.rows:
        every = map(Backfill.from_json, newest.enumerator.to_json().get("backfills", ()))
        return any(each.request.backfill == asked.command for each in every)
    return not any(requests.acts_on(name, stream_state(newest)) for name in asked.tables)


def request_resnapshots(store: CheckpointStore, last: Manifest, start: LogStart, tables: Sequence[str]) -> None:
    """Request new snapshots of all `tables`, and of all known ones, with the log read from another position."""
    store.documents.write(REQUESTS, all_again(requests_of(store), last, start, tables).to_json())


def all_again(before: Requests, last: Manifest, start: LogStart, tables: Sequence[str]) -> Requests:
    """Return the requests `before` together with those that `request_resnapshots` makes."""
    state = stream_state(last)
    # Paused and ended tables stay as they are.
    staying = {str(table) for table, parked in state.parked.items() if parked.phase is not ParkedPhase.PARKED}
    names = {*tables, *state.names} - staying
    asked = dict.fromkeys(sorted(names), TableRequest.RESNAPSHOT) | before.of_leaving(state)
    return Requests(state.changes, asked, start, commands=before.commands)


def ask_for_lost_rows(store: CheckpointStore, manifest: Manifest, tables: Sequence[str]) -> None:
    """Request new snapshots of `tables`, which lack rows of the epoch of `manifest`.

    Tables that are to be paused or removed are left out. If such a table is resumed later, it gets a new snapshot.
    """
    leaving = requests_of(store).of_leaving(stream_state(manifest))
    ask(store, [name for name in tables if name not in leaving], TableRequest.RESNAPSHOT, manifest=manifest)


def read_together(record: CommitRecord | None, tables: Sequence[str], state: StreamState) -> dict[str, str]:
    """Return `tables` and all further tables that must be resnapshotted with them. Each comes with the target that it
    shares with others ("": none).

    A target with one row per key is emptied as a whole, because the rows of its source tables cannot be distinguished.
    Paused, removed and ended tables are not resnapshotted, so their rows are gone from the target afterwards.
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
    """Return the targets that get, or got, rows of several source tables, including parked ones."""
    found = {name: set(route.sources) for name, route in record.routes.items()}
    for name, entry in record.parked.items():
        found.setdefault(name, set()).update(entry.sources)
    return {name: tuple(sorted(sources)) for name, sources in found.items() if len(sources) > 1}


def resnapshot_requested(name: str, requests: Requests, state: StreamState) -> bool:
    """Return True if a new snapshot of the table is requested and has not begun."""
    return requests.tables.get(name) is TableRequest.RESNAPSHOT and requests.acts_on(name, state)


def goes_on(name: str, state: StreamState) -> bool:
    """Return True if rows of the table are still to come."""
    table = state.named(name)
    return table.phase is ParkedPhase.PARKED if isinstance(table, Parked) else not isinstance(table, Unknown)


def left_behind(record: CommitRecord | None, together: Mapping[str, str]) -> list[str]:
    """Return the tables whose rows leave the targets of those that are `read_together`, and are not read again."""
    shared = {} if record is None else merged_targets(record)
    return sorted({s for target in set(together.values()) & shared.keys() for s in shared[target]} - together.keys())


def refusals_of(parked: Mapping[str, ParkedTarget]) -> list[Refusal]:
    """Return the refusals to send to the source, for the parked targets of a commit record."""
    reported = []
    for _, entry in sorted(parked.items()):
        position = entry.positions.get(STREAM_SPLIT_ID) or Position.unknown()
        for name, number in sorted(entry.sources.items()):
            reported.append(Refusal(TableId.parse(name), number, entry.text, position, entry.since_ms))
    return reported


def parked_at_sink(manifest: Manifest | None, record: CommitRecord | None) -> dict[str, ParkedTarget]:
    """Return source tables with the parked target that they cannot reach. The newest manifest still follows these
    tables, or only the commit record has them.
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
    """Raise `SchemaError` for parked tables at the end of a run that has read everything else. Tables of topics that
    the configuration does not select any more (`selects`) are ignored. In a log, such tables were already ended at the
    start of the run.
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
    reasons = "\n".join(f"{name}: {left[name]}" for name in every[:PARKED_SHOWN])
    if len(every) > PARKED_SHOWN:
        reasons += f"\n… `raycdc tables list CONFIG` has the reasons of the other {len(every) - PARKED_SHOWN}, too."
    names = ", ".join(every[:PARKED_NAMED])
    if len(every) > PARKED_NAMED:
        names += f" and {len(every) - PARKED_NAMED} more"
    it, each = ("it", every[0]) if len(every) == 1 else ("them", "TABLE, once for each")
    hint = (
        f" Do what is said above, or take a new snapshot of {it} at the next start with: raycdc tables resnapshot "
        f"CONFIG {each}; or leave {it} out (source.exclude)."
        if stream is not None
        else f" To go on without {it}, leave {it} out (source.format.exclude)."
    )
    raise SchemaError(
        f"Everything is committed except {names}: parked, because of changes that cannot be followed or written.\n"
        f"{reasons}\nNothing of {it} after that position was passed on.{hint}"
    )
