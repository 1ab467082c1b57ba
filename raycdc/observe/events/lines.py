"""The lines of ``raycdc run --json`` as types, from which their JSON Schema is made (``raycdc docs lines``).

`LINES_VERSION` is in every line. It increases when a key changes its meaning or is removed, but not for new keys and
new events: programs ignore unknown keys, and the printed schema allows additional ones.
`raycdc.observe.events.event_to_json` writes exactly the keys described here; `check_line` checks this.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal, NotRequired

from pydantic import ConfigDict, Field

# Pydantic, which depends on this package, accepts no other TypedDict before Python 3.12.
from typing_extensions import TypedDict

from raycdc.config.sections.observability import LogLevel
from raycdc.core.terminal_text import printable_json
from raycdc.observe.events import RunEvent, event_to_json, level_of

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic.json_schema import JsonSchemaValue

LINES_VERSION = 1

_CLOSED = ConfigDict(extra="forbid")


_HOW_MUCH = Field(description="The severity.")


class _Line(TypedDict):
    """The keys of every line."""

    __pydantic_config__ = _CLOSED  # type: ignore[misc]
    version: Annotated[Literal[1], Field(description="Increases when a key changes its meaning or is removed.")]
    ts: Annotated[str, Field(description="The time of the event: UTC, with milliseconds.")]
    pipeline: Annotated[
        str | None, Field(description="The name of the pipeline; null before the configuration is read.")
    ]
    level: NotRequired[Annotated[Literal["debug", "info", "warning", "error"], Field(description="The severity.")]]


class Pids(TypedDict):
    """The processes of a run."""

    __pydantic_config__ = _CLOSED  # type: ignore[misc]
    driver: int
    enumerator: int
    readers: list[int]


class StartedLine(_Line):
    """The first line, and one for each set of processes after it."""

    event: Literal["started"]
    pids: Pids
    read_by: Annotated[Literal["driver", "ray"], Field(description="The engine that reads from now on.")]
    written_by: Annotated[Literal["driver", "spark"], Field(description="The engine that writes from now on.")]
    engines_due_s: NotRequired[
        Annotated[
            float,
            Field(description="Seconds after the start of the run at which Ray and Spark are started, to take over."),
        ]
    ]


class RowsByEngine(TypedDict):
    """Rows by the engine that read and by the engine that wrote them: `driver`, `ray` or `spark`."""

    rows_read_by: Annotated[
        dict[str, int], Field(description="Rows read in this run, without epochs that an earlier run read.")
    ]
    rows_written_by: Annotated[dict[str, int], Field(description="Rows of all targets.")]


class ParkedState(TypedDict):
    """A table that is not followed, as it is recorded in the state."""

    __pydantic_config__ = _CLOSED  # type: ignore[misc]
    schema: str | None
    announced: bool
    incarnation: int
    again: Annotated[bool, Field(description="True if the table is resnapshotted automatically.")]
    phase: Annotated[str, Field(description="parked, paused, removed or ended")]
    reason: str
    position: Annotated[object, Field(description="The position in the log, in the source's own form.")]
    ts_ms: int


class SnapshotLineKeys(TypedDict):
    """The progress of a table's snapshot, summed over all runs; empty for a table without a snapshot."""

    snapshot_rows: NotRequired[int]
    snapshot_rows_estimated: NotRequired[int | None]
    snapshot_bytes: NotRequired[int]
    snapshot_percent: NotRequired[float | None]


class BackfillLineKeys(TypedDict):
    """The progress of a table's backfill; present only while a backfill runs."""

    backfill_rows: NotRequired[Annotated[int, Field(description="Rows that were read again.")]]
    backfill_chunks_done: NotRequired[int]
    backfill_chunks_total: NotRequired[
        Annotated[int, Field(description="Chunks known so far; 0 before they are planned.")]
    ]
    backfill_percent: NotRequired[Annotated[float | None, Field(description="Percentage of finished chunks.")]]


class TableLine(SnapshotLineKeys, BackfillLineKeys):
    """The figures of one table. Further keys are figures of its source, such as `large_documents`."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    table: str
    phase: Annotated[str, Field(description="snapshot, stream, resuming, parked, paused, removed or ended")]
    chunks_done: int
    chunks_total: Annotated[int, Field(description="Chunks that are known so far.")]
    parked: NotRequired[ParkedState]
    rows: Annotated[int, Field(description="Rows that this run sealed; an update is two.")]
    lost_values: Annotated[int, Field(description="Values that the target cannot hold, in all runs.")]
    rows_per_s: Annotated[int, Field(description="The rate since the previous line.")]
    bad_rows: NotRequired[Annotated[int, Field(description="Rows left out by pipeline.on_bad_record, in all runs.")]]


class LagLine(TypedDict):
    """Flink's lags, in milliseconds. The keys in camel case are removed in the next release."""

    __pydantic_config__ = _CLOSED  # type: ignore[misc]
    current_fetch_event_time_lag_ms: int | None
    current_emit_event_time_lag_ms: int | None
    source_idle_time_ms: int | None
    pending_records: NotRequired[Annotated[int | None, Field(description="Only for topics.")]]
    watermark_lag_ms: NotRequired[Annotated[int | None, Field(description="Only for topics.")]]
    currentFetchEventTimeLag: Annotated[int | None, Field(deprecated=True)]
    currentEmitEventTimeLag: Annotated[int | None, Field(deprecated=True)]
    sourceIdleTime: Annotated[int | None, Field(deprecated=True)]
    pendingRecords: NotRequired[Annotated[int | None, Field(deprecated=True)]]
    watermarkLag: NotRequired[Annotated[int | None, Field(deprecated=True)]]


class ReaderLine(TypedDict):
    """One reader of the run."""

    __pydantic_config__ = _CLOSED  # type: ignore[misc]
    subtask: int
    pid: int
    splits: list[str]
    seconds: Annotated[dict[str, float], Field(description="Seconds in each activity, since the reader began.")]
    node: NotRequired[Annotated[str, Field(description="'state' is the node of the driver.")]]
    sealing: NotRequired[
        Annotated[dict[str, int], Field(description="The progress of a seal that takes long: files and bytes.")]
    ]
    paused: NotRequired[Annotated[list[str], Field(description="Partitions that wait for slower ones.")]]


class ProgressLine(_Line):
    """The progress of the run; `tables` has the tables whose figures changed."""

    event: Literal["progress"]
    tables: list[TableLine]
    lag_ms: Annotated[
        int | None, Field(description="Now minus the time up to which the source's changes are in the sink.")
    ]
    lag: LagLine
    readers: list[ReaderLine]
    bottleneck: NotRequired[
        Annotated[str, Field(description="rate_limit: source.rows_per_second or bytes_per_second.")]
    ]


class CommitLine(_Line, RowsByEngine):
    """An epoch is in the sink."""

    event: Literal["commit"]
    epoch: int
    tables: Annotated[dict[str, int], Field(description="Rows by table.")]
    rows: int
    seconds: float
    staging_s: float
    commit_s: float


class ParkedLine(_Line):
    """A table was parked."""

    event: Literal["parked"]
    table: str
    phase: str
    again: bool
    reason: str
    position: object
    ts_ms: int


class StalledLine(_Line):
    """A stage has not moved for long (`stalled`), or moves again (`resumed`)."""

    event: Literal["stalled", "resumed"]
    stage: str
    table: str
    split: str
    reader: int | None
    doing: str
    note: str
    seconds: float
    text: str


class WarningLine(_Line):
    """A problem that the user should know; the run continues."""

    event: Literal["warning"]
    text: str


class CommandLine(_Line):
    """A command about a table was carried out, or refused."""

    event: Literal["command"]
    id: str
    action: str
    table: str
    tables: list[str]
    refused: bool
    text: str


class NewTableLine(_Line):
    """A table that is followed although the state did not know it: it was created or renamed."""

    event: Literal["new_table"]
    table: str
    text: str


#: The key `from` is a keyword of Python.
_From = TypedDict("_From", {"from": Annotated[str, Field(description="The previous phase.")]})


class TablePhaseLine(_Line, _From):
    """A table entered another phase; `to` is one of the phases of `progress`."""

    event: Literal["table_phase"]
    table: str
    to: str


class SnapshotDoneLine(_Line):
    """All rows of a table's snapshot are in the sink."""

    event: Literal["snapshot_done"]
    table: str
    rows: Annotated[int | None, Field(description="Rows of the snapshot's chunks, in all runs.")]


class SnapshotsDoneLine(_Line):
    """All snapshots of tables are done."""

    event: Literal["snapshots_done"]
    tables: Annotated[int, Field(description="Tables whose snapshots this run finished.")]


class SchemaChangedLine(_Line):
    """An epoch with changes of a table's schema is in the sink.

    The target follows the changes by pipeline.schema_change.
    """

    event: Literal["schema_changed"]
    table: str
    target: str
    epoch: int
    changes: Annotated[list[str], Field(description='Changes such as "add_column note"; names only.')]


class RecoveredLine(_Line):
    """The run has recovered: sink and commit record agree again, and reading continues."""

    event: Literal["recovered"]
    after: Annotated[str, Field(description="killed, error, take_over, cluster or node.")]
    epoch: Annotated[int, Field(description="The last epoch that the sink holds; 0: none.")]
    replayed: Annotated[list[int], Field(description="Epochs that had been sealed, and are committed now.")]
    dropped: Annotated[list[int], Field(description="Epochs whose rows were lost, and are read again.")]
    text: str


class EnginesPromotedLine(_Line):
    """From now on Ray's actors read, and no longer the driver's process."""

    event: Literal["engines_promoted"]
    after_s: Annotated[float, Field(description="Seconds since the run began to read.")]


class ScalingLine(_Line):
    """The number of readers changes."""

    event: Literal["scaling"]
    readers: int
    waiting: int
    nodes: dict[str, int]
    reason: str


#: The key `for` is a keyword of Python.
_Waiting = TypedDict("_Waiting", {"for": Annotated[str, Field(description="The driver that has the pipeline.")]})


class WaitingLine(_Line, _Waiting):
    """A standby waits until the other driver ends."""

    event: Literal["waiting"]
    state: str
    at_most_s: NotRequired[float]


class TookOverLine(_Line):
    """A standby has taken over the pipeline."""

    event: Literal["took_over"]
    reason: str
    generation: int


class EndLine(_Line, RowsByEngine):
    """The last line of a run that ended without an error; the rows are those of all its epochs."""

    event: Literal["caught_up", "stopped"]


class LogLine(_Line):
    """A message of a library; only in a log file ([logging])."""

    event: Literal["log"]
    logger: str
    text: str


class StepLine(_Line):
    """A step before `started`; only in a log file ([logging])."""

    event: Literal["starting"]
    step: str


class ErrorLine(_Line):
    """The last line of a run that failed."""

    event: Literal["error"]
    error: Annotated[str, Field(description="The class of the error.")]
    text: str


Line = Annotated[
    StartedLine
    | ProgressLine
    | CommitLine
    | ParkedLine
    | StalledLine
    | WarningLine
    | CommandLine
    | NewTableLine
    | TablePhaseLine
    | SnapshotDoneLine
    | SnapshotsDoneLine
    | SchemaChangedLine
    | RecoveredLine
    | EnginesPromotedLine
    | ScalingLine
    | WaitingLine
    | TookOverLine
    | EndLine
    | ErrorLine
    | LogLine
    | StepLine,
    Field(discriminator="event"),
]


def line_of(event: RunEvent, pipeline: str | None) -> str:
    """Return the JSON text of an event, without a line break."""
    return _line({**_head(level_of(event), pipeline), **event_to_json(event)})


def log_line(level: LogLevel, pipeline: str, logger: str, text: str) -> str:
    """Return the line for a message that a library logged."""
    return _line({**_head(level, pipeline), "event": "log", "logger": logger, "text": text})


def _head(level: LogLevel, pipeline: str | None) -> dict[str, str | int | None]:
    return {"version": LINES_VERSION, "ts": now_text(), "pipeline": pipeline, "level": str(level)}


def _line(document: JsonSchemaValue) -> str:
    return printable_json(json.dumps(document, ensure_ascii=False, separators=(",", ":"), default=str))


def now_text() -> str:
    """Return the present time in the format of the lines."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def lines_schema() -> JsonSchemaValue:
    """Return the JSON Schema of one line.

    It allows further keys, because a later raycdc may write some.
    """
    title = f"A line of raycdc run --json, version {LINES_VERSION}"
    schema = _opened(_adapter().json_schema())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **schema}


def _opened(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema with further keys allowed in its objects."""
    parts = {name: {**part} for name, part in schema["$defs"].items()}
    for part in parts.values():
        if part.get("additionalProperties") is False:
            del part["additionalProperties"]
    return {**schema, "$defs": parts}


def check_line(line: bytes | str) -> None:
    """Raise ValueError (`pydantic.ValidationError`) if `line` differs from the types here, or has further keys."""
    _adapter().validate_json(line, strict=True)


@cache
def _adapter() -> TypeAdapter[Line]:
    from pydantic import TypeAdapter

    return TypeAdapter(Line)
