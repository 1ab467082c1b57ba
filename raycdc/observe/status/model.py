"""The status of a pipeline as one document, which ``raycdc status --json`` prints and ``GET /v1/status`` returns.

Keys are in snake case with their units, times are milliseconds since 1970 in UTC. None means that a figure is unknown.
`VERSION` increases when a key changes its meaning or is removed, but not for new keys. Names of tables are those in the
state. No text contains a secret or a value of a row.
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
    """The reason why a table is not followed or is resnapshotted, and the position where it stopped."""

    reason: str
    again: Annotated[bool, Field(description="True if the table is resnapshotted automatically.")]
    at_ms: Annotated[int, Field(description="The time of the parking.")]
    position: Annotated[str, Field(description="The position in the log, as the source writes it.")] = ""


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """The progress of a table's snapshot. The source made the estimates when the table was found."""

    chunks_done: int
    chunks_total: Annotated[int | None, Field(description="Chunks that are known so far; more may come.")]
    rows_done: Annotated[int | None, Field(description="Rows of the snapshot's chunks, in all runs.")] = None
    rows_estimated: Annotated[int | None, Field(description="Rows of the table, estimated by the source.")] = None
    bytes_done: Annotated[
        int | None, Field(description="Bytes of the rows in Arrow's format, without compression.")
    ] = None
    bytes_estimated: Annotated[int | None, Field(description="Estimated by the mean size of the rows so far.")] = None
    percent: Annotated[float | None, Field(description="Percentage by rows if they are known, else by chunks.")] = None
    eta_seconds: Annotated[float | None, Field(description="Remaining seconds at the present rate.")] = None


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """The progress of a table's backfill: rows that meet a predicate, or have given keys, are read again."""

    chunks_done: int
    chunks_total: Annotated[int | None, Field(description="Chunks known so far; null before they are planned.")]
    rows_done: Annotated[int, Field(description="Rows that were read again, in all runs.")]
    percent: Annotated[float | None, Field(description="Percentage of finished chunks.")] = None
    eta_seconds: Annotated[float | None, Field(description="Remaining seconds at the present rate.")] = None


@dataclass(frozen=True, slots=True)
class ResumingReport:
    """The problem that delays resumed tables: the catch-up stream, which reads the log for them, failed and is
    retried.
    """

    tries: Annotated[int, Field(description="Attempts since the last rows came.")]
    error: str
    until_ms: Annotated[
        int, Field(description="The time of the last attempt; after it the table is parked, and can be resumed again.")
    ]


@dataclass(frozen=True, slots=True)
class TableReport:
    """The status of one table."""

    table: str
    phase: Annotated[
        str, Field(description="pending, snapshot, stream, resuming, paused, removed, ended, parked or new")
    ]
    targets: Annotated[tuple[str, ...], Field(description="Targets of the table.")] = ()
    snapshot: Annotated[SnapshotReport | None, Field(description="Null for a table without a snapshot.")] = None
    rows: Annotated[int | None, Field(description="Rows sealed in this run, of chunks and of the log.")] = None
    rows_per_second: float | None = None
    last_commit: CommitReport | None = None
    lag_ms: Annotated[
        int | None, Field(description="Now minus the time up to which the source's changes are in the target.")
    ] = None
    parked: ParkedReport | None = None
    rows_left_out: Annotated[int | None, Field(description="Rows left out by pipeline.on_bad_record, in all runs.")] = (
        None
    )
    values_lost: Annotated[int | None, Field(description="Values that the target cannot hold, in all runs.")] = None
    asked: Annotated[str | None, Field(description="A request that is carried out at the next start.")] = None
    backfill: Annotated[BackfillReport | None, Field(description="Null while no backfill runs.")] = None
    resuming: Annotated[
        ResumingReport | None, Field(description="The problem that delays a resumed table, if there is one.")
    ] = None


def backfill_report(progress: BackfillProgress, *, chunks_per_s: float | None = None) -> BackfillReport:
    """Return the progress of a backfill that reads `chunks_per_s` chunks per second."""
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
    chunks: Annotated[int, Field(description="Chunks that the reader reads now.")]
    partitions: int
    open_bytes: Annotated[int, Field(description="Bytes that were read and are not sealed yet.")]


@dataclass(frozen=True, slots=True)
class Backlog:
    """The unread part of the log, and how long the source keeps it."""

    bytes: int | None = None
    records: Annotated[int | None, Field(description="Unread messages of topics.")] = None
    seconds: Annotated[float | None, Field(description="Seconds to read the unread part at the present rate.")] = None
    retention_headroom_seconds: Annotated[
        float | None, Field(description="Minimum time for which the source still keeps the unread log.")
    ] = None
    kept_until_deleted: Annotated[
        bool | None, Field(description="True if the source keeps its log until it is deleted manually.")
    ] = None


@dataclass(frozen=True, slots=True)
class LagReport:
    """FLIP-33's lags of the source, in milliseconds; None if there is nothing to measure."""

    current_fetch_event_time_lag_ms: Annotated[
        int | None, Field(description="From the time of a change until a reader received it.")
    ] = None
    current_emit_event_time_lag_ms: Annotated[
        int | None, Field(description="From the time of a change until it was in the sink.")
    ] = None
    source_idle_time_ms: Annotated[int | None, Field(description="Time since the last change.")] = None
    pending_records: Annotated[int | None, Field(description="Unread messages of topics.")] = None
    watermark_lag_ms: Annotated[int | None, Field(description="The lag of the slowest partition of topics.")] = None


@dataclass(frozen=True, slots=True)
class RunCounts:
    """The counts of this run so far. `tables` is the number of its tables in each phase."""

    commits: int = 0
    rows_committed: int = 0
    warnings: int = 0
    errors: int = 0
    rows_left_out: Annotated[int, Field(description="Rows left out by pipeline.on_bad_record, in all runs.")] = 0
    values_lost: Annotated[int, Field(description="Values that targets cannot hold, in all runs.")] = 0
    tables: Annotated[Mapping[str, int], Field(description="Tables by phase.")] = field(default_factory=dict)
    rows_read_by: Annotated[
        Mapping[str, int], Field(description="Committed rows of this run by the engine that read them: driver or ray.")
    ] = field(default_factory=dict)
    rows_written_by: Annotated[
        Mapping[str, int], Field(description="Rows of all targets by the engine that wrote them: driver or spark.")
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunReport:
    """The process that runs the pipeline."""

    host: str
    pid: int
    started_ms: int
    step: Annotated[str, Field(description="starting, waiting, running, stopping or ended; or a step of the start.")]
    local: bool | None = None
    read_by: Annotated[
        str | None,
        Field(description="The engine that reads now: driver (this process, without Ray or until Ray is up) or ray."),
    ] = None
    written_by: Annotated[
        str | None,
        Field(description="The engine that writes now: driver, or spark (epochs of at least spark.from_bytes)."),
    ] = None


@dataclass(frozen=True, slots=True)
class EndReport:
    """The end of the last run of a state that is not in use.

    All fields are null if the end is unknown, for example because the run was killed.
    """

    at_ms: int | None = None
    exit_code: Annotated[int | None, Field(description="The exit code of the process; 0 after an orderly end.")] = None
    error: Annotated[str | None, Field(description="The class of the error that ended the run.")] = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class JobReport:
    """The status of the pipeline as a whole."""

    readers: tuple[ReaderReport, ...] = ()
    nodes: Annotated[Mapping[str, int], Field(description="Readers by node.")] = field(default_factory=dict)
    chunks_waiting: Annotated[int | None, Field(description="Minimum number of chunks that no reader has yet.")] = None
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
    """The tables to include in a status: all tables, or those with a name or in a phase.

    They are in the order of their names, at most `limit` of them, and begin after the name `after`. If `first` is set,
    tables in this phase come before all others; the answer then has no name from which the next request could continue.
    """

    table: str = ""
    phase: str = ""
    after: str = ""
    limit: int | None = None
    first: str = ""


EVERY_TABLE = Chosen()


@dataclass(frozen=True, slots=True)
class Status:
    """The status document."""

    version: int
    at_ms: Annotated[int, Field(description="The time of this status.")]
    pipeline: str
    running: Annotated[
        bool, Field(description="True if the status comes from a run, false if it comes from the state.")
    ]
    said: Annotated[str, Field(description="The origin of the status, for people.")]
    sink: Annotated[
        str | None, Field(description="Type and location of the sink; null if the status comes from the state.")
    ]
    run: RunReport | None
    job: JobReport
    tables: tuple[TableReport, ...]
    next_after: Annotated[
        str | None, Field(description="With limit: the value of after= for the next page; null if no tables are left.")
    ] = None
    last_end: Annotated[
        EndReport | None, Field(description="The end of the last run; only if the pipeline is not running.")
    ] = None

    def to_json(self) -> bytes:
        """Return the document as UTF-8."""
        return _adapter().dump_json(self)

    @classmethod
    def from_json(cls, data: bytes) -> Status:
        """Parse a document. Raises `StateError` if a newer raycdc wrote it."""
        version = json.loads(data).get("version", 0)
        if version > VERSION:
            raise StateError(
                f"The run reports its status in version {version}, and this raycdc reads {VERSION}: ask with the "
                "raycdc that runs the pipeline, or a newer one."
            )
        return _adapter().validate_json(data)


def schema() -> JsonSchemaValue:
    """Return the JSON Schema of `Status`; references to its parts have the form that OpenAPI needs."""
    return _adapter().json_schema(ref_template="#/components/schemas/{model}", mode="serialization")


@cache
def _adapter() -> TypeAdapter[Status]:
    from pydantic import TypeAdapter

    return TypeAdapter(Status)
