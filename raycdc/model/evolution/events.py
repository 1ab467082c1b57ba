"""Schema-change events: one elementary change of a table's shape each (Flink CDC's nouns).

A connector's DDL parser makes them, an epoch manifest carries them (`TableEpoch.changes`), `model.behavior`
decides how targets follow them, and a sink carries them out (`Sink.apply_schema`, Flink CDC's MetadataApplier). They
are pure values: `schema.apply` has the effect of each on a `TableSchema`.

As JSON, on the wire and in state, an event is ``{"type": "add_column", "db": …, "table": …, …}``;
`event_from_json` refuses a type it does not know by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, get_args

from raycdc.errors import SchemaError
from raycdc.model import Column, LogicalType, TableId, TableSchema
from raycdc.model.schema import SchemaJson


@dataclass(frozen=True, slots=True)
class First:
    """Before all columns."""


@dataclass(frozen=True, slots=True)
class After:
    """Right after `column`."""

    column: str


@dataclass(frozen=True, slots=True)
class Last:
    """After all columns; where ADD COLUMN puts a column when nothing else is said."""


ColumnPosition = First | After | Last


@dataclass(frozen=True, slots=True)
class CreateTableEvent:
    """The table exists from now on with `schema`; also sent before the first row of a table found by discovery.

    `comment` is None where nobody looked for one.
    """

    type: ClassVar[str] = "create_table"
    table: TableId
    schema: TableSchema
    comment: str | None = ""


@dataclass(frozen=True, slots=True)
class AddColumnEvent:
    """A column was added; rows that existed before hold ``column.default`` (None: null) in it.

    `hidden`: a mask is about the column, and the default is masked already. No state has such a default unmasked.
    `values_of` is another column, whose values the rows have that existed before: of a target of several tables, one of
    which renamed it. No source says so.
    """

    type: ClassVar[str] = "add_column"
    table: TableId
    column: Column
    position: ColumnPosition = Last()
    hidden: bool = False
    values_of: str | None = None


@dataclass(frozen=True, slots=True)
class DropColumnEvent:
    """A column and its values are gone."""

    type: ClassVar[str] = "drop_column"
    table: TableId
    name: str


@dataclass(frozen=True, slots=True)
class RenameColumnEvent:
    """A column kept its values, type and place, and got a new name."""

    type: ClassVar[str] = "rename_column"
    table: TableId
    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class AlterColumnTypeEvent:
    """A column's type or nullability changed; the source converted its values in place."""

    type: ClassVar[str] = "alter_column_type"
    table: TableId
    name: str
    new_type: LogicalType
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class AlterColumnPositionEvent:
    """A column moved; its values are untouched."""

    type: ClassVar[str] = "alter_column_position"
    table: TableId
    name: str
    position: ColumnPosition


@dataclass(frozen=True, slots=True)
class AlterPrimaryKeyEvent:
    """The primary key is now `columns` (empty: the table has none any more)."""

    type: ClassVar[str] = "alter_primary_key"
    table: TableId
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AlterTableCommentEvent:
    """The table's comment changed; its rows and columns did not."""

    type: ClassVar[str] = "alter_table_comment"
    table: TableId
    comment: str


@dataclass(frozen=True, slots=True)
class RenameTableEvent:
    """The table is called `new_table` from now on; its rows are untouched."""

    type: ClassVar[str] = "rename_table"
    table: TableId
    new_table: TableId


@dataclass(frozen=True, slots=True)
class TruncateTableEvent:
    """All rows are gone, the table remains."""

    type: ClassVar[str] = "truncate_table"
    table: TableId


@dataclass(frozen=True, slots=True)
class DropTableEvent:
    """The table and its rows are gone."""

    type: ClassVar[str] = "drop_table"
    table: TableId


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

#: Every event type by its JSON name, for configuration (`include_schema_changes`) and documentation.
EVENT_TYPES: tuple[str, ...] = tuple(_BY_TYPE)


def named_change(event: SchemaChangeEvent) -> str:
    """The change with the names that it is about, and nothing of what stands in columns or comments."""
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
    """The event as JSON-able values; `event_from_json` is the inverse."""
    out: dict[str, Any] = {"type": event.type, "db": event.table.db, "table": event.table.table}
    for name in type(event).__dataclass_fields__:
        value = getattr(event, name)
        if name not in ("type", "table") and value is not None and (name != "hidden" or value):
            out[name] = _value_to_json(value)
    return out


def event_from_json(data: Mapping[str, Any]) -> SchemaChangeEvent:
    """Inverse of `event_to_json`. Raises `SchemaError` naming an unknown type or a field that is missing or odd."""
    cls = _BY_TYPE.get(data.get("type", ""))
    if cls is None:
        raise SchemaError(f"Unknown schema change {data.get('type')!r}; known are {', '.join(EVENT_TYPES)}")
    try:
        fields = {k: _FIELD_DECODERS.get(k, _same)(v) for k, v in data.items() if k not in ("type", "db", "table")}
        if cls is CreateTableEvent:
            fields.setdefault("comment", None)
        event: SchemaChangeEvent = cls(table=TableId(data["db"], data["table"]), **fields)
    except (KeyError, TypeError, ValueError) as cause:
        raise SchemaError(f"Malformed schema change {data['type']}: {type(cause).__name__}") from None
    return event


def _value_to_json(value: Any) -> Any:
    match value:
        case First():
            return "first"
        case Last():
            return "last"
        case After(column):
            return {"after": column}
        case TableId():
            return {"db": value.db, "table": value.table}
        case TableSchema():
            return _schema_json(value)
        case Column() | LogicalType():
            return value.to_json()
        case tuple():
            return list(value)
        case _:
            return value


@lru_cache(maxsize=1024)
def _schema_json(schema: TableSchema) -> SchemaJson:
    """One object for all events of a schema, which nobody changes: an epoch may begin 100,000 tables of few schemas."""
    return schema.to_json()


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


def _table_from_json(value: Any) -> TableId:
    return TableId(value["db"], value["table"])


def _same(value: Any) -> Any:
    return value


_FIELD_DECODERS: dict[str, Callable[[Any], Any]] = {
    "column": Column.from_json,
    "schema": TableSchema.from_json,
    "new_type": LogicalType.from_json,
    "new_table": _table_from_json,
    "position": _position_from_json,
    "columns": tuple,
}
