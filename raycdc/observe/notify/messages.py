"""A message about a run, and its body as types, from which the JSON Schema is made (``raycdc docs webhook``).

`BODY_VERSION` is in every body. It increases when a key changes its meaning or is removed, but not for new keys and new
types. The envelope (`type`, `timestamp`, `data`) is that of Standard Webhooks 1.0.0.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

# Pydantic, which depends on this package, accepts no other TypedDict before Python 3.12.
from typing_extensions import TypedDict

from raycdc.config.sections.notifications import NotificationKind

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic.json_schema import JsonSchemaValue

BODY_VERSION = 1
#: Texts are cut after this many characters, because receivers have their own limits.
TEXT_MAX = 4000

_CLOSED = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class SnapshotDoneNotification:
    """All rows of a table's snapshot are in the target."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED
    table: str
    rows: Annotated[int | None, Field(description="Rows of the snapshot's chunks, in all runs; null if unknown.")]


@dataclass(frozen=True, slots=True)
class SnapshotsDoneNotification:
    """All snapshots of the pipeline's tables are done."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED
    tables: Annotated[int, Field(description="Tables whose snapshots this run finished.")]


@dataclass(frozen=True, slots=True)
class SchemaChangedNotification:
    """The targets of a table have followed a change of its schema."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED
    table: str
    epoch: int
    changes: Annotated[list[str], Field(description='Changes such as "add_column note"; names only.')]


@dataclass(frozen=True, slots=True)
class TableParkedNotification:
    """A table was parked; the others continue."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED
    table: str
    reason: str
    remedy: Annotated[str, Field(description="The remedy.")]
    since_ms: Annotated[int, Field(description="The commit time of the change that parked it, since 1970.")]


@dataclass(frozen=True, slots=True)
class RowsLeftOutNotification:
    """`pipeline.on_bad_record` left rows out; at most one message per table in ten minutes."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED
    table: str
    rows: Annotated[int, Field(description="Rows left out of this table, in all runs.")]


@dataclass(frozen=True, slots=True)
class RetentionAtRiskNotification:
    """The source deletes unread parts of its log soon."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED
    headroom_seconds: int


@dataclass(frozen=True, slots=True)
class RecoveredNotification:
    """The pipeline has recovered from a problem."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED
    after: Annotated[
        Literal["killed", "error", "take_over", "cluster", "node", "stalled", "parked", "retention"],
        Field(description="The problem that is over."),
    ]
    table: Annotated[str | None, Field(description="The table, if the problem concerned one table.")]


@dataclass(frozen=True, slots=True)
class EndedWithErrorNotification:
    """The run has ended with an error, and the pipeline is down until it is started again."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED
    error: Annotated[str, Field(description="The class of the error.")]
    exit_code: int


@dataclass(frozen=True, slots=True)
class TestNotification:
    """A test of the delivery (``raycdc notify test``); no event happened."""

    __pydantic_config__: ClassVar[ConfigDict] = _CLOSED


Data = (
    SnapshotDoneNotification
    | SnapshotsDoneNotification
    | SchemaChangedNotification
    | TableParkedNotification
    | RowsLeftOutNotification
    | RetentionAtRiskNotification
    | RecoveredNotification
    | EndedWithErrorNotification
    | TestNotification
)


class _Body(TypedDict):
    """The keys of every message."""

    __pydantic_config__ = _CLOSED  # type: ignore[misc]
    version: Annotated[Literal[1], Field(description="Increases when a key changes its meaning or is removed.")]
    id: Annotated[
        str, Field(description="The same id each time the same event is sent, so that a receiver can drop repeats.")
    ]
    timestamp: Annotated[str, Field(description="The time of the event: UTC, with milliseconds.")]
    pipeline: Annotated[str, Field(description="The name of the pipeline.")]
    host: Annotated[str, Field(description="The machine that runs the pipeline.")]
    text: Annotated[str, Field(description="The message for people.")]


class SnapshotDoneBody(_Body):
    """See `SnapshotDoneNotification`."""

    type: Literal["snapshot_done"]
    data: SnapshotDoneNotification


class SnapshotsDoneBody(_Body):
    """See `SnapshotsDoneNotification`."""

    type: Literal["snapshots_done"]
    data: SnapshotsDoneNotification


class SchemaChangedBody(_Body):
    """See `SchemaChangedNotification`."""

    type: Literal["schema_changed"]
    data: SchemaChangedNotification


class TableParkedBody(_Body):
    """See `TableParkedNotification`."""

    type: Literal["table_parked"]
    data: TableParkedNotification


class RowsLeftOutBody(_Body):
    """See `RowsLeftOutNotification`."""

    type: Literal["rows_left_out"]
    data: RowsLeftOutNotification


class RetentionAtRiskBody(_Body):
    """See `RetentionAtRiskNotification`."""

    type: Literal["retention_at_risk"]
    data: RetentionAtRiskNotification


class RecoveredBody(_Body):
    """See `RecoveredNotification`."""

    type: Literal["recovered"]
    data: RecoveredNotification


class EndedWithErrorBody(_Body):
    """See `EndedWithErrorNotification`."""

    type: Literal["ended_with_error"]
    data: EndedWithErrorNotification


class TestBody(_Body):
    """See `TestNotification`."""

    type: Literal["test"]
    data: TestNotification


Body = Annotated[
    SnapshotDoneBody
    | SnapshotsDoneBody
    | SchemaChangedBody
    | TableParkedBody
    | RowsLeftOutBody
    | RetentionAtRiskBody
    | RecoveredBody
    | EndedWithErrorBody
    | TestBody,
    Field(discriminator="type"),
]


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `happening` is None for a test message."""

    id: str
    happening: NotificationKind | None
    at_ms: int
    pipeline: str
    host: str
    text: str
    data: Data

    @property
    def type(self) -> str:
        return "test" if self.happening is None else str(self.happening)

    def body(self) -> bytes:
        """Return the bytes that are signed and sent: JSON in UTF-8."""
        at = datetime.fromtimestamp(self.at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        document = {
            "version": BODY_VERSION,
            "id": self.id,
            "type": self.type,
            "timestamp": at,
            "pipeline": self.pipeline,
            "host": self.host,
            "text": self.text[:TEXT_MAX],
            "data": asdict(self.data),
        }
        return json.dumps(document, ensure_ascii=True, separators=(",", ":")).encode()


def message_id(*parts: str | int) -> str:
    """Return the id of the event that `parts` identify. It is the same in every run and process."""
    return f"msg_{sha256(json.dumps(parts).encode()).hexdigest()[:32]}"


def body_schema() -> JsonSchemaValue:
    """Return the JSON Schema of a body.

    It allows further keys, because a later raycdc may write some.
    """
    schema = _adapter().json_schema()
    parts = {name: {**part} for name, part in schema["$defs"].items()}
    for part in parts.values():
        if part.get("additionalProperties") is False:
            del part["additionalProperties"]
    title = f"The body of a notification of raycdc, version {BODY_VERSION}"
    return {**schema, "$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, "$defs": parts}


def check_body(body: bytes | str) -> None:
    """Raise ValueError (`pydantic.ValidationError`) if `body` differs from the types here, or has further keys."""
    _adapter().validate_json(body, strict=True)


@cache
def _adapter() -> TypeAdapter[Body]:
    from pydantic import TypeAdapter

    return TypeAdapter(Body)
