"""The events of a run: one frozen value each, with a text (``str``) for people if it has one.

`RunProgress` combines the figures of the tables, the readers and the lags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from raycdc.config.fields import show_size
from raycdc.config.sections.observability import LogLevel
from raycdc.model.engines import NO_ENGINE_ROWS, EngineName, EngineRows

if TYPE_CHECKING:
    from raycdc.source.protocol.api import BackfillProgress, SnapshotAmount
    from raycdc.source.protocol.job_status import JobStatus
    from raycdc.source.tables.table_life import Parked

#: A value of `RunProgress.bottleneck`: the configured rate limit of the source.
RATE_LIMIT = "rate_limit"


@dataclass(frozen=True, slots=True)
class TableFigures:
    """The progress of one table, and its counts in this run; only `bad_rows` (rows left out) counts all runs.

    `source_counts` are figures of this kind of source, by their names.
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
    #: The parking that preceded the table's last resnapshot in this run.
    begun: Parked | None = None
    #: The rows and bytes of the snapshot's finished chunks, in all runs; None for a table without a snapshot.
    amount: SnapshotAmount | None = None
    #: The progress of the table's backfill, if one is running.
    backfill: BackfillProgress | None = None

    @property
    def rows_about(self) -> int | None:
        """Return the estimated number of rows of the snapshot; at least the number of rows read so far."""
        if self.amount is None or self.amount.estimate is None:
            return None
        return max(self.amount.estimate, self.amount.rows)

    @property
    def percent(self) -> float | None:
        """Return the finished part of the snapshot, in percent.

        By rows if they are known, otherwise by chunks. 100 only at its end.
        """
        if self.phase != "snapshot" and self.chunks_total and self.chunks_done >= self.chunks_total:
            return 100.0
        about = self.rows_about
        if about and self.amount is not None:
            return min(99.9, 100 * self.amount.rows / about)
        return min(99.9, 100 * self.chunks_done / self.chunks_total) if self.chunks_total else None


@dataclass(frozen=True, slots=True)
class Lags:
    """FLIP-33's lags in milliseconds; None if there is nothing to measure."""

    fetch_ms: int | None = None
    emit_ms: int | None = None
    idle_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionLags:
    """The lags of all partitions together, with the number of unread messages.

    The watermark lag is that of the slowest partition.
    """

    common: Lags
    pending_records: int | None
    watermark_ms: int | None


@dataclass(frozen=True, slots=True)
class ReaderFigures:
    """One reader: its splits, and the seconds that it spent in each stage.

    `sealing` is the progress of sealing an epoch that takes long, in files and bytes on disk. `paused` are partitions
    that wait for slower partitions. Both are None if the reader does not report them. `node` is the name of its spool:
    ``state`` on the driver's node, host name and a number on any other.
    """

    subtask: int
    pid: int
    splits: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    sealing: Mapping[str, int] | None = None
    paused: tuple[str, ...] | None = None
    node: str = ""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The progress of the run.

    `bottleneck` is the limiting stage, if it is known: ``rate_limit`` is the rate limit of the source.

    `job` is the status of the source side from which this value was made. Lines do not contain it.
    """

    tables: tuple[TableFigures, ...]
    lags: Lags | PartitionLags
    readers: tuple[ReaderFigures, ...]
    bottleneck: str = ""
    #: Now minus the time up to which the source's changes are in the sink, also while nothing changes; None if unknown.
    behind_ms: int | None = None
    job: JobStatus | None = None


if TYPE_CHECKING:
    from raycdc.source.tables.parking import CommandDecision
    from raycdc.source.tables.table_life import Parked

#: The reasons for a recovery.
After = Literal["killed", "error", "take_over", "cluster", "node"]


@dataclass(frozen=True, slots=True)
class Starting:
    """A step before anything is read."""

    step: str


@dataclass(frozen=True, slots=True)
class StandbyWaiting:
    """A standby waits, because the driver `holder` has the `state`.

    Another start waits `at_most_s` seconds to see if that driver still has the state.
    """

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
class EnginesAtWork:
    """The engines that read and write at present.

    Ray and Spark start `due_s` seconds after the run began, if it still runs, and then take over. `due_s` is None if
    they have taken over, or never will. Spark writes epochs of at least `from_bytes`, and the driver's process writes
    smaller ones.
    """

    read_by: EngineName = EngineName.DRIVER
    written_by: EngineName = EngineName.DRIVER
    due_s: float | None = None
    from_bytes: int = 0

    def __str__(self) -> str:
        if self.due_s is not None:
            return f"this process reads and writes; Ray and Spark are started after {self.due_s:.0f} s and take over"
        if {self.read_by, self.written_by} == {EngineName.DRIVER}:
            return "this process reads and writes, without Ray and Spark"
        reads = "Ray reads" if self.read_by is EngineName.RAY else "this process reads"
        if self.written_by is EngineName.DRIVER:
            return f"{reads}, this process writes"
        if not self.from_bytes:
            return f"{reads}, Spark writes every epoch"
        return f"{reads}, Spark writes epochs from {show_size(self.from_bytes)} on and this process smaller ones"


@dataclass(frozen=True, slots=True)
class Started:
    """The processes that run now, by their ids, and the engines that are at work."""

    driver: int
    enumerator: int
    readers: tuple[int, ...]
    engines: EnginesAtWork = EnginesAtWork()


@dataclass(frozen=True, slots=True)
class EnginesPromoted:
    """A run that began in the driver's process reads through Ray from now on, `after_s` seconds after it began to read.

    The event `Started` names the actors.
    """

    after_s: float

    def __str__(self) -> str:
        return f"Ray and Spark are up: what this process read is theirs from now on, after {self.after_s:.0f} s"


@dataclass(frozen=True, slots=True)
class Scaling:
    """The wanted number of `readers`, with the reason.

    `waiting` is the number of readers without a node. `nodes` has the nodes of the rest.
    """

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
class Committed:
    """An epoch is in the sink. `tables` has its rows by table, `engines` the engines that read and wrote them."""

    epoch: int
    tables: Mapping[str, int]
    rows: int
    staging_s: float
    commit_s: float
    engines: EngineRows = NO_ENGINE_ROWS

    @property
    def seconds(self) -> float:
        return self.staging_s + self.commit_s


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning to the user while the run continues."""

    text: str


@dataclass(frozen=True, slots=True)
class TableParked:
    """A table is not followed."""

    table: str
    parked: Parked


@dataclass(frozen=True, slots=True)
class Commanded:
    """A command about a table was taken, or refused."""

    asked: CommandDecision

    def __str__(self) -> str:
        refused = f"tables {self.asked.action} {self.asked.table}: refused: " if self.asked.refused else ""
        return f"{refused}{self.asked.text}"


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table that is followed from now on, because it was created, or renamed so that the configuration selects it."""

    table: str

    def __str__(self) -> str:
        return f"{self.table} is new and selected by the configuration, so it is followed"


@dataclass(frozen=True, slots=True)
class TablePhaseChanged:
    """A table entered another phase."""

    table: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.table}: {self.before} → {self.after}"


@dataclass(frozen=True, slots=True)
class SnapshotDone:
    """All rows of a table's snapshot are in the sink. `rows` is their number, over all runs."""

    table: str
    rows: int | None

    def __str__(self) -> str:
        rows = "" if self.rows is None else f" ({self.rows:,} rows)"
        return f"the snapshot of {self.table} is in the target{rows}"


@dataclass(frozen=True, slots=True)
class SnapshotsDone:
    """All snapshots of tables are done; this run finished `tables` of them."""

    tables: int

    def __str__(self) -> str:
        return f"no table is in its snapshot any more; this run finished {self.tables}"


@dataclass(frozen=True, slots=True)
class SchemaChanged:
    """An epoch with changes of a table's schema is in the sink.

    The target follows the changes by ``pipeline.schema_change``. Only names of columns are reported.
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
    """Sink and record agree again, and reading continues after `epoch`.

    `after` names the end of the previous run, or the loss in this run. `why` describes it.
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
    """A bounded run reached its end; `engines` has the engines of all its epochs."""

    engines: EngineRows = NO_ENGINE_ROWS


@dataclass(frozen=True, slots=True)
class Stopped:
    """A run that was asked to stop has committed its rows and ended; `engines` has the engines of all its epochs."""

    engines: EngineRows = NO_ENGINE_ROWS


@dataclass(frozen=True, slots=True)
class Failed:
    """The run ends with an error of the class `error`."""

    error: str
    text: str

    @classmethod
    def of(cls, error: Exception) -> Failed:
        from raycdc.runtime.unexpected import error_text  # The import is here, because it loads Arrow.

        return cls(type(error).__name__, error_text(error))


@dataclass(frozen=True, slots=True)
class StageStalled:
    """A stage of a table or split has not moved for `seconds`.

    Names that do not apply are empty, and `reader` is None. `doing` describes the stage, and `note` is the statement or
    problem.
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
        """Return the table and chunk of the stage, for people."""
        parts = [self.table, f"chunk {self.split}" if self.split else ""]
        named = ", ".join(part for part in parts if part) or ("" if self.stage == "seal" else f"the {self.stage}")
        return named if self.reader is None else f"{named} on reader {self.reader}"

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        return f"{where}{self.doing} since {self.seconds:.0f} s{self.note and f' ({self.note})'}"


@dataclass(frozen=True, slots=True)
class StageResumed:
    """A stalled stage moves again, or has ended."""

    stood: StageStalled

    def __str__(self) -> str:
        where = f"{self.stood.where}: " if self.stood.where else ""
        return f"{where}goes on after {self.stood.seconds:.0f} s ({self.stood.doing})"


RunEvent = (
    Starting
    | StandbyWaiting
    | TookOver
    | Started
    | EnginesPromoted
    | Scaling
    | RunProgress
    | Committed
    | Warned
    | StageStalled
    | StageResumed
    | TableParked
    | Commanded
    | NewTable
    | TablePhaseChanged
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
    """Return the log level of an event."""
    match event:
        case Starting() | RunProgress():
            return LogLevel.DEBUG
        case Warned() | StageStalled():
            return LogLevel.WARNING
        case TableParked(parked=parked):
            return LogLevel.WARNING if str(parked.phase) == "parked" else LogLevel.INFO
        case Commanded(asked):
            return LogLevel.WARNING if asked.refused else LogLevel.INFO
        case Failed():
            return LogLevel.ERROR
        case _:
            return LogLevel.INFO
