"""The events of a run: a closed set of frozen values, told by `raycdc.progress` and shown by ``raycdc run``.

`event_to_json` is their form for ``run --json``, whose keys are a promise to programs. Each line has `ts` and
`pipeline` beside them (``raycdc explain control``):

| event | when | fields |
|---|---|---|
| `starting` | before `started`, one per step | `step`: the step under way, for people (not in ``--json``) |
| `waiting` | a standby waits for the driver that has the state | `for`: that driver, `state` |
| … | another start looks whether that driver still has it | `at_most_s` beside them |
| `took_over` | a standby that waited has the state now | `reason`, `generation` |
| `started` | processes are up, and again whenever they change | `pids` |
| `handed_over` | a run that began in the driver's process reads through Ray's actors from now on | `after_s`: seconds \
since it began to read |
| `scaling` | another number of readers, or they are elsewhere | `readers`, `waiting` (for a place), `nodes` (readers \
by node), `reason` |
| `progress` | twice a second; of more than a hundred tables less often, and those that changed | tables: phase, \
chunks, rows, values lost, rows left out; \
lags; readers; `bottleneck`: `pace`, while `source.rows_per_second` or `bytes_per_second` holds the readers back |
| `commit` | an epoch is in the sink | `epoch`, `tables`, `rows`, `seconds` = `staging_s` + `commit_s` |
| `warning` | something the user should know, the job goes on | `text` |
| `standing` | a stage of a table or split has not moved for `pipeline.watchdog`; again while it lasts | `stage` \
(`raycdc.waiting.stages`), `table`, `split`, `reader`, `doing`, `note`, `seconds`, `text` |
| `moving` | it goes on | the same, as it was told of last |
| `parked` | a table is not followed (told at each start) | `table`, `phase`, `again`, `reason`, `position`, `ts_ms` |
| `table_phase` | a table is in another phase | `table`, `from`, `to` |
| `snapshot_done` | a table's snapshot is in the sink | `table`, `rows` |
| `snapshots_done` | no table is in its snapshot any more | `tables`: how many this run finished |
| `schema_changed` | an epoch with a change of a table's schema is in the sink | `table`, `target`, `epoch`, `changes` |
| `recovered` | a run goes on after one that was killed or failed, or after a loss of its own | `after`, `epoch`, \
`replayed`, `dropped`, `text` |
| `command` | a command about a table was taken, or refused | `id`, `action`, `table`, `tables`, `refused`, `text` |
| `new_table` | a table that the state did not know is followed from now on | `table`, `text` |
| `caught_up` | a bounded run reached its end | |
| `stopped` | a run that was to stop has sealed and committed what it had read | |
| `error` | the run ends with it | `error`: its class, `text` |

Light to import: it loads nothing of a source or an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, assert_never

from raycdc.config.logs import LogLevel

if TYPE_CHECKING:
    from raycdc.source.parking import Asked
    from raycdc.source.protocol.api import BackfillProgress, SnapshotAmount
    from raycdc.source.table_life import Parked


#: What a run recovers from.
After = Literal["killed", "error", "take_over", "cluster", "node"]
#: `Progress.bottleneck`: the rate at which the source is to be read at most.
PACE = "pace"


@dataclass(frozen=True, slots=True)
class Starting:
    """A step before anything is read."""

    step: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """A standby waits, because `holder` has the `state`. Another start waits `at_most_s` to see whether it has."""

    holder: str
    state: str
    at_most_s: float | None = None

    def __str__(self) -> str:
        if self.at_most_s is not None:
            return (
                f"looking for up to {self.at_most_s:.0f} s whether {self.holder}, which had the state in {self.state} "
                "last and did not say that it ended, gives a sign of life"
            )
        return f"waiting for the state in {self.state}, which {self.holder} has"


@dataclass(frozen=True, slots=True)
class TookOver:
    """A standby that waited has the state now."""

    reason: str
    generation: int

    def __str__(self) -> str:
        return f"taking over: {self.reason}"


@dataclass(frozen=True, slots=True)
class Started:
    """The processes that run now, by their ids."""

    driver: int
    enumerator: int
    readers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A run that began in the driver's process has handed its source side over to Ray, `after_s` seconds after it began
    to read; `Started` names the actors.
    """

    after_s: float

    def __str__(self) -> str:
        return f"Ray and Spark are up: what this process read is theirs from now on, after {self.after_s:.0f} s"


@dataclass(frozen=True, slots=True)
class Scaling:
    """There should be `readers`, and why; `waiting` of them have no place yet, `nodes` are those that others are on."""

    readers: int
    waiting: int
    nodes: Mapping[str, int]
    reason: str

    def __str__(self) -> str:
        where = ", ".join(f"{count} on {node}" for node, count in self.nodes.items() if node)
        text = f"{self.readers} {'reader' if self.readers == 1 else 'readers'}: {self.reason}"
        if self.waiting:
            text = f"{text}; {self.waiting} wait for a node that has room, and the run goes on without them"
        return f"{text} ({where})" if where else text


@dataclass(frozen=True, slots=True)
class TableFigures:
    """One table: how far it is, and its counts in this run (`bad_rows`, rows left out, in all runs).

    `source_counts` are figures that only this source has, by their names.
    """

    table: str
    phase: str
    chunks_done: int = 0
    chunks_total: int = 0
    rows: int = 0
    rows_per_s: int = 0
    lost_values: int = 0
    bad_rows: int | None = None
    source_counts: Mapping[str, int] = field(default_factory=dict)
    parked: Parked | None = None
    #: How much of the table its chunks have brought, in all runs; None of a table without a snapshot.
    amount: SnapshotAmount | None = None
    #: Of its rows that are read again, if some are.
    backfill: BackfillProgress | None = None

    @property
    def rows_about(self) -> int | None:
        """The rows of its snapshot, as far as they can be estimated: at least those that were read."""
        if self.amount is None or self.amount.estimate is None:
            return None
        return max(self.amount.estimate, self.amount.rows)

    @property
    def percent(self) -> float | None:
        """How much of the snapshot is done: by rows where they are known, else by chunks; 100 only at its end."""
        if self.phase != "snapshot" and self.chunks_total and self.chunks_done >= self.chunks_total:
            return 100.0
        about = self.rows_about
        if about and self.amount is not None:
            return min(99.9, 100 * self.amount.rows / about)
        return min(99.9, 100 * self.chunks_done / self.chunks_total) if self.chunks_total else None


@dataclass(frozen=True, slots=True)
class Lags:
    """FLIP-33's lags in milliseconds; None while there is nothing to measure."""

    fetch_ms: int | None = None
    emit_ms: int | None = None
    idle_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionLags:
    """The lags of all partitions together, how many messages are unread, and how far behind the slowest is."""

    common: Lags
    pending_records: int | None
    watermark_ms: int | None


@dataclass(frozen=True, slots=True)
class ReaderFigures:
    """One reader: its splits, and where its seconds went.

    `sealing` is the place of a cut that takes long, in files and bytes on disk; `paused` are partitions that wait for
    slower ones. Both are None where the reader tells nothing of the kind. `node` is its spool's name: ``state`` on the
    driver's node, host name and a number on any other.
    """

    subtask: int
    pid: int
    splits: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    sealing: Mapping[str, int] | None = None
    paused: tuple[str, ...] | None = None
    node: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the run is. `bottleneck` is what holds it back, where that is known: ``pace``, that of the source."""

    tables: tuple[TableFigures, ...]
    lags: Lags | PartitionLags
    readers: tuple[ReaderFigures, ...]
    bottleneck: str = ""
    #: Now minus the time up to which the source is in the sink, also while nothing happens; None while unknown.
    behind_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """An epoch is in the sink; `tables` are its rows by table."""

    epoch: int
    tables: Mapping[str, int]
    rows: int
    staging_s: float
    commit_s: float

    @property
    def seconds(self) -> float:
        return self.staging_s + self.commit_s


@dataclass(frozen=True, slots=True)
class Warned:
    """Something that the user should know while the run goes on."""

    text: str


@dataclass(frozen=True, slots=True)
class TableParked:
    """A table is not followed."""

    table: str
    parked: Parked


@dataclass(frozen=True, slots=True)
class Commanded:
    """A command about a table was taken, or refused."""

    asked: Asked

    def __str__(self) -> str:
        refused = f"tables {self.asked.action} {self.asked.table}: refused: " if self.asked.refused else ""
        return f"{refused}{self.asked.text}"


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table was made, or renamed so that the configuration selects it, and is followed."""

    table: str

    def __str__(self) -> str:
        return f"{self.table} is new and selected by the configuration, so it is followed"


@dataclass(frozen=True, slots=True)
class TableMoved:
    """A table is in another phase than before."""

    table: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.table}: {self.before} → {self.after}"


@dataclass(frozen=True, slots=True)
class SnapshotDone:
    """All rows of a table's snapshot are in the sink: `rows`, as its chunks had them in all runs."""

    table: str
    rows: int | None

    def __str__(self) -> str:
        rows = "" if self.rows is None else f" ({self.rows:,} rows)"
        return f"the snapshot of {self.table} is in the target{rows}"


@dataclass(frozen=True, slots=True)
class SnapshotsDone:
    """No table is in its snapshot any more; this run finished those of so many `tables`."""

    tables: int

    def __str__(self) -> str:
        return f"no table is in its snapshot any more; this run finished {self.tables}"


@dataclass(frozen=True, slots=True)
class SchemaChanged:
    """An epoch is in the sink that brought changes of a table's schema, which its target follows as
    ``pipeline.schema_change`` says. Names only.
    """

    table: str
    target: str
    epoch: int
    changes: tuple[str, ...]

    def __str__(self) -> str:
        target = "" if self.target == self.table else f" for {self.target}"
        return f"{self.table} changed its schema in epoch {self.epoch}{target}: {', '.join(self.changes)}"


@dataclass(frozen=True, slots=True)
class Recovered:
    """The sink and the record are equal again, and reading goes on behind `epoch`. `after` is what ended the run
    before, or this one's work; `why` has its words.
    """

    after: After
    epoch: int
    replayed: tuple[int, ...]
    dropped: tuple[int, ...]
    why: str

    def __str__(self) -> str:
        both = (("replayed", self.replayed), ("dropped", self.dropped))
        done = [f"{name} {_numbers(epochs)}" for name, epochs in both if epochs]
        return f"{self.why}; going on behind epoch {self.epoch}" + (f" ({', '.join(done)})" if done else "")


def _numbers(epochs: tuple[int, ...]) -> str:
    return "epoch " + ", ".join(map(str, epochs)) if len(epochs) == 1 else "epochs " + ", ".join(map(str, epochs))


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A bounded run reached its end."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A run that was to stop has ended: what it had read is committed."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The run ends with an error of the class `error`."""

    error: str
    text: str

    @classmethod
    def of(cls, error: Exception) -> Failed:
        from raycdc.runtime.unexpected import told_text  # Only here, because it loads Arrow.

        return cls(type(error).__name__, told_text(error))


@dataclass(frozen=True, slots=True)
class StoodStill:
    """A stage of a table or split has not moved for `seconds`; names are empty, and `reader` None, where it has none.
    `doing` are its words, and `note` is the statement or trouble.
    """

    stage: str
    table: str
    split: str
    reader: int | None
    doing: str
    note: str
    seconds: float

    @property
    def where(self) -> str:
        """Its place, for people."""
        parts = [self.table, f"chunk {self.split}" if self.split else ""]
        named = ", ".join(part for part in parts if part) or ("" if self.stage == "seal" else f"the {self.stage}")
        return named if self.reader is None else f"{named} on reader {self.reader}"

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        return f"{where}{self.doing} since {self.seconds:.0f} s{self.note and f' ({self.note})'}"


@dataclass(frozen=True, slots=True)
class WentOn:
    """What stood still goes on, or is over."""

    stood: StoodStill

    def __str__(self) -> str:
        where = f"{self.stood.where}: " if self.stood.where else ""
        return f"{where}goes on after {self.stood.seconds:.0f} s ({self.stood.doing})"


RunEvent = (
    Starting
    | Waiting
    | TookOver
    | Started
    | HandedOver
    | Scaling
    | Progress
    | Committed
    | Warned
    | StoodStill
    | WentOn
    | TableParked
    | Commanded
    | NewTable
    | TableMoved
    | SnapshotDone
    | SnapshotsDone
    | SchemaChanged
    | Recovered
    | CaughtUp
    | Stopped
    | Failed
)

Listener = Callable[[RunEvent], None]


def level_of(event: RunEvent) -> LogLevel:
    """How much an event matters to whoever reads a log."""
    match event:
        case Starting() | Progress():
            return LogLevel.DEBUG
        case Warned() | StoodStill():
            return LogLevel.WARNING
        case TableParked(parked=parked):
            return LogLevel.WARNING if str(parked.phase) == "parked" else LogLevel.INFO
        case Commanded(asked):
            return LogLevel.WARNING if asked.refused else LogLevel.INFO
        case Failed():
            return LogLevel.ERROR
        case _:
            return LogLevel.INFO


def event_to_json(event: RunEvent) -> dict[str, Any]:
    """One line of ``run --json``."""
    match event:
        case Starting(step):
            return {"event": "starting", "step": step}
        case Waiting(holder, state, at_most_s):
            limit = {} if at_most_s is None else {"at_most_s": at_most_s}
            return {"event": "waiting", "for": holder, "state": state, **limit}
        case TookOver(reason, generation):
            return {"event": "took_over", "reason": reason, "generation": generation}
        case Started(driver, enumerator, readers):
            return {"event": "started", "pids": {"driver": driver, "enumerator": enumerator, "readers": [*readers]}}
        case Scaling():
            return {"event": "scaling", **asdict(event)}
        case Progress(tables, lags, readers_of_run, bottleneck, behind_ms):
            return {
                "event": "progress",
                "tables": [_table(table) for table in tables],
                "lag_ms": behind_ms,
                "lag": _lags(lags),
                "readers": [_reader(reader) for reader in readers_of_run],
                **({"bottleneck": bottleneck} if bottleneck else {}),
            }
        case Committed(epoch, by_table, rows, staging_s, commit_s):
            return {
                "event": "commit",
                "epoch": epoch,
                "tables": dict(by_table),
                "rows": rows,
                "seconds": round(event.seconds, 3),
                "staging_s": round(staging_s, 3),
                "commit_s": round(commit_s, 3),
            }
        case Warned() | Commanded() | NewTable() | HandedOver():
            return _told(event)
        case StoodStill() | WentOn():
            name, stood = ("moving", event.stood) if isinstance(event, WentOn) else ("standing", event)
            return {"event": name, **asdict(stood), "text": str(event)}
        case TableParked(table_name, parked):
            return {
                "event": "parked",
                "table": table_name,
                "phase": str(parked.phase),
                "again": parked.again,
                "reason": parked.reason,
                "position": parked.position.to_json(),
                "ts_ms": parked.ts_ms,
            }
        case TableMoved() | SnapshotDone() | SnapshotsDone() | SchemaChanged() | Recovered():
            return _turned(event)
        case CaughtUp() | Stopped() | Failed():
            return _ended(event)
        case other:
            assert_never(other)


def _ended(event: CaughtUp | Stopped | Failed) -> dict[str, str]:
    if isinstance(event, Failed):
        return {"event": "error", "error": event.error, "text": event.text}
    return {"event": "stopped" if isinstance(event, Stopped) else "caught_up"}


def _told(event: Warned | Commanded | NewTable | HandedOver) -> dict[str, str | bool | float | list[str]]:
    if isinstance(event, HandedOver):
        return {"event": "handed_over", "after_s": event.after_s}
    if isinstance(event, Warned):
        return {"event": "warning", "text": event.text}
    if isinstance(event, NewTable):
        return {"event": "new_table", "table": event.table, "text": str(event)}
    told = event.asked
    return {
        "event": "command",
        "id": told.command,
        "action": told.action,
        "table": told.table,
        "tables": [*told.tables],
        "refused": told.refused,
        "text": told.text,
    }


def _turned(
    event: TableMoved | SnapshotDone | SnapshotsDone | SchemaChanged | Recovered,
) -> dict[str, str | int | list[str] | list[int] | None]:
    match event:
        case TableMoved(name, before, after):
            return {"event": "table_phase", "table": name, "from": before, "to": after}
        case SnapshotDone(name, rows):
            return {"event": "snapshot_done", "table": name, "rows": rows}
        case SnapshotsDone(tables):
            return {"event": "snapshots_done", "tables": tables}
        case SchemaChanged(name, target, epoch, changes):
            return {"event": "schema_changed", "table": name, "target": target, "epoch": epoch, "changes": [*changes]}
        case Recovered(after, epoch, replayed, dropped):
            done = {"replayed": [*replayed], "dropped": [*dropped]}
            return {"event": "recovered", "after": after, "epoch": epoch, **done, "text": str(event)}


def _snapshot(table: TableFigures) -> dict[str, float | None]:
    """How far the snapshot is; nothing of a table without one."""
    if table.amount is None:
        return {}
    return {
        "snapshot_rows": table.amount.rows,
        "snapshot_rows_estimated": table.rows_about,
        "snapshot_bytes": table.amount.bytes,
        "snapshot_percent": None if table.percent is None else round(table.percent, 1),
    }


def _backfill(table: TableFigures) -> dict[str, float | None]:
    """How far its backfill is; nothing of a table without one."""
    if (backfill := table.backfill) is None:
        return {}
    return {
        "backfill_rows": backfill.rows,
        "backfill_chunks_done": backfill.chunks_done,
        "backfill_chunks_total": backfill.chunks_total,
        "backfill_percent": None if backfill.percent is None else round(backfill.percent, 1),
    }


_OLD_LAGS = {
    "currentFetchEventTimeLag": "current_fetch_event_time_lag_ms",
    "currentEmitEventTimeLag": "current_emit_event_time_lag_ms",
    "sourceIdleTime": "source_idle_time_ms",
    "pendingRecords": "pending_records",
    "watermarkLag": "watermark_lag_ms",
}


def _table(table: TableFigures) -> dict[str, Any]:
    return {
        "table": table.table,
        "phase": table.phase,
        "chunks_done": table.chunks_done,
        "chunks_total": table.chunks_total,
        # What a paused table goes on from is for the connector alone.
        **({} if table.parked is None else {"parked": replace(table.parked, left=None).to_json()}),
        "rows": table.rows,
        "lost_values": table.lost_values,
        "rows_per_s": table.rows_per_s,
        **_snapshot(table),
        **_backfill(table),
        **({} if table.bad_rows is None else {"bad_rows": table.bad_rows}),
        **table.source_counts,
    }


def _lags(lags: Lags | PartitionLags) -> dict[str, int | None]:
    common = lags if isinstance(lags, Lags) else lags.common
    shown = {
        "current_fetch_event_time_lag_ms": common.fetch_ms,
        "current_emit_event_time_lag_ms": common.emit_ms,
        "source_idle_time_ms": common.idle_ms,
    }
    if isinstance(lags, PartitionLags):
        shown |= {"pending_records": lags.pending_records, "watermark_lag_ms": lags.watermark_ms}
    # The names without units go with the next release.
    return shown | {old: shown[new] for old, new in _OLD_LAGS.items() if new in shown}


def _reader(reader: ReaderFigures) -> dict[str, Any]:
    return {
        "subtask": reader.subtask,
        "pid": reader.pid,
        "splits": [*reader.splits],
        "seconds": dict(reader.seconds),
        **({"node": reader.node} if reader.node else {}),
        **({} if reader.sealing is None else {"sealing": dict(reader.sealing)}),
        **({} if reader.paused is None else {"paused": [*reader.paused]}),
    }
