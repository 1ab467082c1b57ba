"""The status of a pipeline as one document: what ``raycdc status --json`` prints and ``GET /v1/status`` answers.

Keys are in snake case with their units, times are milliseconds since 1970 in UTC. None is an unknown figure; none is
made up. `VERSION` goes up when a key changes its meaning or goes away; new keys come without. Names of tables are as
the state has them. No text holds a secret or a value of a row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from raycdc.errors import StateError
from raycdc.observe.status import Bottleneck, CommitReport, RunMessage

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic.json_schema import JsonSchemaValue

    from raycdc.source.protocol.api import BackfillProgress

VERSION = 1


@dataclass(frozen=True, slots=True)
class ParkedReport:
    """Why a table is not followed, or begins again, and where in the log it stopped."""

    reason: str
    again: Annotated[bool, Field(description="Whether it begins again with a new snapshot, by itself.")]
    at_ms: Annotated[int, Field(description="Since when.")]
    position: Annotated[str, Field(description="The position in the log, as the source writes it.")] = ""


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """The progress of a table's snapshot. Estimates are the source's own, made when the table was found."""

    chunks_done: int
    chunks_total: Annotated[int | None, Field(description="Chunks that are known so far; more may come.")]
    rows_done: Annotated[int | None, Field(description="Rows that its chunks had, in all runs.")] = None
    rows_estimated: Annotated[int | None, Field(description="Rows of the table, as the source estimates.")] = None
    bytes_done: Annotated[int | None, Field(description="As they are on their way: Arrow, without compression.")] = None
    bytes_estimated: Annotated[int | None, Field(description="By the mean of the rows so far.")] = None
    percent: Annotated[float | None, Field(description="By rows where they are known, else by chunks.")] = None
    eta_seconds: Annotated[float | None, Field(description="How long it will still take at the rate of now.")] = None


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """The progress of a table's backfill: rows that meet a predicate, or have given keys, are read again."""

    chunks_done: int
    chunks_total: Annotated[int | None, Field(description="As far as is known; null before they are planned.")]
    rows_done: Annotated[int, Field(description="Rows that were read again, in all runs.")]
    percent: Annotated[float | None, Field(description="By chunks.")] = None
    eta_seconds: Annotated[float | None, Field(description="How long it will still take at the rate of now.")] = None


@dataclass(frozen=True, slots=True)
class ResumingReport:
    """The problem that delays resumed tables: the second reader of the log failed, and is retried."""

    tries: Annotated[int, Field(description="How often it was tried since anything came.")]
    error: str
    until_ms: Annotated[int, Field(description="Until when it is tried; then the table is parked, and may go on.")]


@dataclass(frozen=True, slots=True)
class TableReport:
    """The status of one table."""

    table: str
    phase: Annotated[
        str, Field(description="pending, snapshot, stream, resuming, paused, removed, ended, parked or new")
    ]
    targets: Annotated[tuple[str, ...], Field(description="Where its rows go.")] = ()
    snapshot: Annotated[SnapshotReport | None, Field(description="None for a table without one.")] = None
    rows: Annotated[int | None, Field(description="Rows sealed in this run, of chunks and of the log.")] = None
    rows_per_second: float | None = None
    last_commit: CommitReport | None = None
    lag_ms: Annotated[
        int | None,
        Field(description="Now minus the time up to which the source is in the target; also while idle."),
    ] = None
    parked: ParkedReport | None = None
    rows_left_out: Annotated[int | None, Field(description="By pipeline.on_bad_record, in all runs.")] = None
    values_lost: Annotated[int | None, Field(description="Values that the target cannot hold, in all runs.")] = None
    asked: Annotated[str | None, Field(description="A request that acts at the next start.")] = None
    backfill: Annotated[BackfillReport | None, Field(description="None while none goes on.")] = None
    resuming: Annotated[
        ResumingReport | None, Field(description="Of a table that goes on: what holds it up, if anything does.")
    ] = None


def backfill_report(progress: BackfillProgress, *, chunks_per_s: float | None = None) -> BackfillReport:
    """Return the progress of a backfill that reads `chunks_per_s`."""
    left, percent = progress.chunks_total - progress.chunks_done, progress.percent
    return BackfillReport(
        chunks_done=progress.chunks_done,
        chunks_total=progress.chunks_total or None,
        rows_done=progress.rows,
        percent=None if percent is None else round(percent, 1),
        eta_seconds=round(left / chunks_per_s, 1) if chunks_per_s and progress.chunks_total else None,
    )


@dataclass(frozen=True, slots=True)
class ReaderReport:
    """A process (or thread, with ``--local``) that reads."""

    reader: int
    node: Annotated[str, Field(description="'state' is the node of the driver.")]
    pid: int
    reads_log: bool
    chunks: Annotated[int, Field(description="Chunks that it reads now.")]
    partitions: int
    open_bytes: Annotated[int, Field(description="Read, and not sealed yet.")]


@dataclass(frozen=True, slots=True)
class Backlog:
    """The unread part of the log, and how long the source keeps it."""

    bytes: int | None = None
    records: Annotated[int | None, Field(description="Of topics.")] = None
    seconds: Annotated[float | None, Field(description="How long it will take at the rate of now.")] = None
    retention_headroom_seconds: Annotated[
        float | None, Field(description="How long the source keeps what is not read yet, at least.")
    ] = None
    kept_until_deleted: Annotated[
        bool | None, Field(description="Whether the source keeps its log until somebody deletes it by hand.")
    ] = None


@dataclass(frozen=True, slots=True)
class LagReport:
    """FLIP-33's lags of the source, in milliseconds; None while there is nothing to measure."""

    current_fetch_event_time_lag_ms: Annotated[
        int | None, Field(description="From a change's own time until a reader had it.")
    ] = None
    current_emit_event_time_lag_ms: Annotated[
        int | None, Field(description="From a change's own time until it was in the sink.")
    ] = None
    source_idle_time_ms: Annotated[int | None, Field(description="How long nothing has come.")] = None
    pending_records: Annotated[int | None, Field(description="Unread messages of topics.")] = None
    watermark_lag_ms: Annotated[int | None, Field(description="Of the slowest partition of topics.")] = None


@dataclass(frozen=True, slots=True)
class RunCounts:
    """The counts of this run so far. `tables` are its tables by phase."""

    commits: int = 0
    rows_committed: int = 0
    warnings: int = 0
    errors: int = 0
    rows_left_out: Annotated[int, Field(description="By pipeline.on_bad_record, in all runs.")] = 0
    values_lost: Annotated[int, Field(description="Values that targets cannot hold, in all runs.")] = 0
    tables: Annotated[Mapping[str, int], Field(description="Tables by phase.")] = field(default_factory=dict)
    rows_read_by: Annotated[
        Mapping[str, int], Field(description="Committed rows by who read them in this run: driver or ray.")
    ] = field(default_factory=dict)
    rows_written_by: Annotated[
        Mapping[str, int], Field(description="Rows of all targets by who wrote them: driver or spark.")
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunReport:
    """The process that runs the pipeline."""

    host: str
    pid: int
    started_ms: int
    step: Annotated[str, Field(description="starting, waiting, running, stopping or ended; or the step of its start.")]
    local: bool | None = None
    read_by: Annotated[
        str | None, Field(description="Who reads now: driver (this process: without Ray, or until it is up) or ray.")
    ] = None
    written_by: Annotated[
        str | None, Field(description="Who writes now: driver, or spark (epochs of spark.from_bytes and more).")
    ] = None


@dataclass(frozen=True, slots=True)
class EndReport:
    """The end of the last run of a state that is not in use.

    All null if it is unknown, because of a kill or a lost machine.
    """

    at_ms: int | None = None
    exit_code: Annotated[int | None, Field(description="The process's: 0 where it ended in order.")] = None
    error: Annotated[str | None, Field(description="The class of the error that ended it.")] = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class JobReport:
    """The pipeline as a whole."""

    readers: tuple[ReaderReport, ...] = ()
    nodes: Annotated[Mapping[str, int], Field(description="Readers by node.")] = field(default_factory=dict)
    chunks_waiting: Annotated[int | None, Field(description="That no reader has yet; at least so many.")] = None
    rows_per_second: float | None = None
    last_commit: CommitReport | None = None
    lag_ms: int | None = None
    lag: LagReport | None = None
    backlog: Backlog = field(default_factory=Backlog)
    counts: RunCounts | None = None
    bottleneck: Bottleneck | None = None
    warnings: tuple[RunMessage, ...] = ()
    errors: tuple[RunMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class Chosen:
    """The tables to include in a status, in the order of their names: all, or those of a name or phase.

    At most `limit` tables after the name `after`. Tables in the phase `first` come before all others, and then the
    answer does not say which tables follow.
    """

    table: str = ""
    phase: str = ""
    after: str = ""
    limit: int | None = None
    first: str = ""


EVERY_TABLE = Chosen()


@dataclass(frozen=True, slots=True)
class Status:
    """See the module's docstring."""

    version: int
    at_ms: Annotated[int, Field(description="When it was so.")]
    pipeline: str
    running: Annotated[bool, Field(description="Whether a run told it; otherwise the state did.")]
    said: Annotated[str, Field(description="Who told it, in words.")]
    sink: Annotated[str | None, Field(description="Type and location; None where the state alone answers.")]
    run: RunReport | None
    job: JobReport
    tables: tuple[TableReport, ...]
    next_after: Annotated[
        str | None, Field(description="With limit: the after= of the next page; null where no table is left.")
    ] = None
    last_end: Annotated[EndReport | None, Field(description="Of a state at rest: how its last run ended.")] = None

    def to_json(self) -> bytes:
        """The document, in UTF-8."""
        return _adapter().dump_json(self)

    @classmethod
    def from_json(cls, data: bytes) -> Status:
        """Raise `StateError` if a newer raycdc wrote it."""
        version = json.loads(data).get("version", 0)
        if version > VERSION:
            raise StateError(
                f"The run tells its status in version {version}, and this raycdc reads {VERSION}: ask with the raycdc "
                "that runs the pipeline, or a newer one."
            )
        return _adapter().validate_json(data)


def schema() -> JsonSchemaValue:
    """The JSON Schema of `Status`; its parts are referred to as OpenAPI wants it."""
    return _adapter().json_schema(ref_template="#/components/schemas/{model}", mode="serialization")


@cache
def _adapter() -> TypeAdapter[Status]:
    from pydantic import TypeAdapter

    return TypeAdapter(Status)
