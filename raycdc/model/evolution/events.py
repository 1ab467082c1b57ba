"""Schema-change events: each is one elementary change of a table's schema (Flink CDC's nouns).

A connector's DDL parser makes them, an epoch manifest carries them (`TableEpoch.changes`),
`raycdc.model.evolution.effects` lists how targets follow them, and a sink carries them out (`Sink.apply_schema`, Flink
CDC's MetadataApplier). They are pure values: `raycdc.model.evolution.apply` has the effect of each on a `TableSchema`.

As JSON, on the wire and in state, an event is ``{"type": "add_column", "db": …, "table": …, …}``; `event_from_json`
refuses an unknown type and names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, assert_never, get_args

from raycdc.core.typed_codec import LEFT_OUT, SPREAD, CodecError, Json, JsonObject, stored
from raycdc.errors import SchemaError
from raycdc.model import Column, LogicalType, TableId, TableSchema


@dataclass(frozen=True, slots=True)
class First:
    """The position before all columns."""


@dataclass(frozen=True, slots=True)
class After:
    """The position right after `column`."""

    column: str


@dataclass(frozen=True, slots=True)
class Last:
    """The position after all columns: the default of ADD COLUMN."""


ColumnPosition = First | After | Last


def _position_to_json(position: ColumnPosition) -> Json:
    match position:
        case First():
            return "first"
        case Last():
            return "last"
        case After(column):
            return {"after": column}
        case _:
            assert_never(position)


def _position_from_json(value: Any) -> ColumnPosition:
    match value:
        case "first":
            return First()
        case "last":
            return Last()
        case {"after": str(column)}:
            return After(column)
        case _:
            raise ValueError(f"position {value!r}")


def _table_to_json(table: TableId) -> Json:
    return {"db": table.db, "table": table.table}


def _table_from_json(value: Any) -> TableId:
    return TableId(value["db"], value["table"])


@lru_cache(maxsize=1024)
def _schema_to_json(schema: TableSchema) -> Mapping[str, Json]:
    """Return the JSON of the schema.

    All events with the schema share one object, because 100,000 tables with few different schemas may begin in one
    epoch.
    """
    return schema.to_json()


class _Change(JsonObject):
    """The base class of all events, with their common JSON form."""

    __slots__ = ()
    type: ClassVar[str]
    written_first = ("type",)
    refuses_unknown_keys = True


@dataclass(frozen=True, slots=True)
class CreateTableEvent(_Change):
    """The table exists from now on with `schema`.

    Also sent before the first row of a table found by discovery.

    `comment` is None if it is unknown.
    """

    type: ClassVar[str] = "create_table"
    table: TableId = field(metadata=SPREAD)
    schema: TableSchema = field(metadata=stored(write=_schema_to_json, read=TableSchema.from_json))
    comment: str | None = field(default="", metadata=stored(left_out=True, older=None))


@dataclass(frozen=True, slots=True)
class AddColumnEvent(_Change):
    """A column was added; existing rows have ``column.default`` (None: null) in it.

    `masked` is True if a mask applies to the column; then the default is already masked, so that no state has the
    unmasked value. `values_of` is a different column, whose values existing rows get. It is set only for a target of
    several tables, if one of the tables renamed the column.
    """

    type: ClassVar[str] = "add_column"
    table: TableId = field(metadata=SPREAD)
    column: Column
    position: ColumnPosition = field(
        default=Last(), metadata=stored(older=Last(), write=_position_to_json, read=_position_from_json)
    )
    masked: bool = field(default=False, metadata=stored("hidden", left_out=True))
    values_of: str | None = field(default=None, metadata=LEFT_OUT)


@dataclass(frozen=True, slots=True)
class DropColumnEvent(_Change):
    """A column was dropped with its values."""

    type: ClassVar[str] = "drop_column"
    table: TableId = field(metadata=SPREAD)
    name: str


@dataclass(frozen=True, slots=True)
class RenameColumnEvent(_Change):
    """A column got a new name. Its values, type and position are unchanged."""

    type: ClassVar[str] = "rename_column"
    table: TableId = field(metadata=SPREAD)
    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class AlterColumnTypeEvent(_Change):
    """The type or nullability of a column changed. The source converted its values in place.

    `was` is the type before the change; it is set if targets need it to decide if the change affects transforms.
    """

    type: ClassVar[str] = "alter_column_type"
    table: TableId = field(metadata=SPREAD)
    name: str
    new_type: LogicalType
    nullable: bool = field(default=True, metadata=stored(older=True))
    was: LogicalType | None = field(default=None, compare=False, metadata=stored(left_out=True))


@dataclass(frozen=True, slots=True)
class AlterColumnPositionEvent(_Change):
    """A column moved. Its values are unchanged."""

    type: ClassVar[str] = "alter_column_position"
    table: TableId = field(metadata=SPREAD)
    name: str
    position: ColumnPosition = field(metadata=stored(write=_position_to_json, read=_position_from_json))


@dataclass(frozen=True, slots=True)
class AlterPrimaryKeyEvent(_Change):
    """The primary key is now `columns` (empty: the table has none any more)."""

    type: ClassVar[str] = "alter_primary_key"
    table: TableId = field(metadata=SPREAD)
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AlterTableCommentEvent(_Change):
    """The table's comment changed. Its rows and columns are unchanged."""

    type: ClassVar[str] = "alter_table_comment"
    table: TableId = field(metadata=SPREAD)
    comment: str


@dataclass(frozen=True, slots=True)
class RenameTableEvent(_Change):
    """The table is called `new_table` from now on. Its rows are unchanged."""

    type: ClassVar[str] = "rename_table"
    table: TableId = field(metadata=SPREAD)
    new_table: TableId = field(metadata=stored(write=_table_to_json, read=_table_from_json))


@dataclass(frozen=True, slots=True)
class TruncateTableEvent(_Change):
    """All rows were deleted; the table remains."""

    type: ClassVar[str] = "truncate_table"
    table: TableId = field(metadata=SPREAD)


@dataclass(frozen=True, slots=True)
class DropTableEvent(_Change):
    """The table was dropped with its rows."""

    type: ClassVar[str] = "drop_table"
    table: TableId = field(metadata=SPREAD)


SchemaChangeEvent = (
    CreateTableEvent
    | AddColumnEvent
    | DropColumnEvent
    | RenameColumnEvent
    | AlterColumnTypeEvent
    | AlterColumnPositionEvent
    | AlterPrimaryKeyEvent
    | AlterTableCommentEvent
    | RenameTableEvent
    | TruncateTableEvent
    | DropTableEvent
)

_BY_TYPE: dict[str, type[Any]] = {cls.type: cls for cls in get_args(SchemaChangeEvent)}

#: Every event type by its JSON name, for the configuration (`include_schema_changes`) and the manual.
EVENT_TYPES: tuple[str, ...] = tuple(_BY_TYPE)


def named_change(event: SchemaChangeEvent) -> str:
    """Return a text for the change: its kind, and the names that it concerns, without defaults or comments."""
    match event:
        case AddColumnEvent(column=column):
            return f"{event.type} {column.name}"
        case RenameColumnEvent(name=name, new_name=new_name):
            return f"{event.type} {name} to {new_name}"
        case DropColumnEvent(name=name) | AlterColumnTypeEvent(name=name) | AlterColumnPositionEvent(name=name):
            return f"{event.type} {name}"
        case AlterPrimaryKeyEvent(columns=columns):
            return f"{event.type} {', '.join(columns)}"
        case RenameTableEvent(new_table=new_table):
            return f"{event.type} to {new_table}"
        case _:
            return event.type


def event_to_json(event: SchemaChangeEvent) -> dict[str, Any]:
    """Return the event as JSON-able values; `event_from_json` is the inverse."""
    return event.to_json()


def event_from_json(data: Mapping[str, Any]) -> SchemaChangeEvent:
    """Return the inverse of `event_to_json`.

    Raises `SchemaError` for an unknown type, or for a field that is missing or invalid.
    """
    kind = data.get("type")
    cls = _BY_TYPE.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise SchemaError(f"Unknown schema change {kind!r}; known are {', '.join(EVENT_TYPES)}")
    try:
        event: SchemaChangeEvent = cls.from_json(data)
    except CodecError as cause:
        raise SchemaError(f"Malformed schema change {kind}: {cause}") from None
    return event
