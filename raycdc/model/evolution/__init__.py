"""Schema evolution: change events, their effect on a schema, and the behaviours of a pipeline. Pure."""

from __future__ import annotations

from raycdc.model.evolution.apply import apply, apply_all, find_column
from raycdc.model.evolution.effects import SchemaChangeBehavior
from raycdc.model.evolution.events import (
    EVENT_TYPES,
    AddColumnEvent,
    After,
    AlterColumnPositionEvent,
    AlterColumnTypeEvent,
    AlterPrimaryKeyEvent,
    AlterTableCommentEvent,
    ColumnPosition,
    CreateTableEvent,
    DropColumnEvent,
    DropTableEvent,
    First,
    Last,
    RenameColumnEvent,
    RenameTableEvent,
    SchemaChangeEvent,
    TruncateTableEvent,
    event_from_json,
    event_to_json,
)

__all__ = [
    "EVENT_TYPES",
    "AddColumnEvent",
    "After",
    "AlterColumnPositionEvent",
    "AlterColumnTypeEvent",
    "AlterPrimaryKeyEvent",
    "AlterTableCommentEvent",
    "ColumnPosition",
    "CreateTableEvent",
    "DropColumnEvent",
    "DropTableEvent",
    "First",
    "Last",
    "RenameColumnEvent",
    "RenameTableEvent",
    "SchemaChangeBehavior",
    "SchemaChangeEvent",
    "TruncateTableEvent",
    "apply",
    "apply_all",
    "event_from_json",
    "event_to_json",
    "find_column",
]
