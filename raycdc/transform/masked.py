"""What masks make of a table's columns and schema changes; readers write its rows so (`raycdc.bridge.masking`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from raycdc.errors import ConfigError, SchemaError
from raycdc.model import Column, LogicalType, TableId, TableSchema
from raycdc.model.mask import Masks
from raycdc.schema.events import (
    AddColumnEvent,
    AlterColumnTypeEvent,
    CreateTableEvent,
    DropColumnEvent,
    RenameColumnEvent,
    SchemaChangeEvent,
)


def masked_schema(table: TableId, schema: TableSchema, masks: Masks) -> TableSchema:
    """The columns that rows of `table` have in segments. `ConfigError` for masks that cannot be."""
    masks.check_key(table, schema.primary_key)
    kept = [found for column in schema.columns if (found := _masked(table, column, masks)) is not None]
    if not kept:
        raise ConfigError(f"mask: all columns of {table} are dropped. Exclude the table instead.")
    return TableSchema(tuple(kept), schema.primary_key)


def masked_changes(table: TableId, changes: Sequence[SchemaChangeEvent], masks: Masks) -> list[SchemaChangeEvent]:
    """The changes as segments show them. Raises `SchemaError` for a column that would be masked otherwise."""
    made: list[SchemaChangeEvent] = []
    for change in changes:
        match change:
            case CreateTableEvent(_, schema):
                made.append(replace(change, schema=masked_schema(table, schema, masks)))
            case AddColumnEvent(_, column) if masks.of(table, column.name) is not None:
                made += _added(table, change, masks)
            case RenameColumnEvent(_, name, new_name):
                if masks.of(table, name) != masks.of(table, new_name):
                    raise SchemaError(
                        f"{table}: column {name!r} was renamed to {new_name!r}, and mask has another entry for one "
                        "than for the other: what was hidden would be shown. Rename it back, or begin with masks for "
                        "both, another pipeline.state and a new snapshot."
                    )
                made.append(change)
            case DropColumnEvent(_, name) if (mask := masks.of(table, name)) is not None and mask.method == "drop":
                continue
            case AlterColumnTypeEvent(_, name, new_type) if (mask := masks.of(table, name)) is not None:
                masked = _type(table, Column(name, new_type), masks)
                # A text remains one whatever it was made of.
                made += [] if masked is None or masked.arrow() != new_type.arrow() else [change]
            case _:
                made.append(change)
    return made


def _added(table: TableId, change: AddColumnEvent, masks: Masks) -> list[SchemaChangeEvent]:
    column = _masked(table, change.column, masks)
    if column is None:
        return []
    if change.column.default is not None:
        raise SchemaError(
            f"{table}: column {column.name!r} was added with a default, and rows that are there have it unmasked in no "
            "target. Add it without one, or begin with another pipeline.state and a new snapshot."
        )
    return [replace(change, column=column)]


def _masked(table: TableId, column: Column, masks: Masks) -> Column | None:
    if masks.of(table, column.name) is None:
        return column
    kind = _type(table, column, masks)
    return None if kind is None else replace(column, type=kind)


def _type(table: TableId, column: Column, masks: Masks) -> LogicalType | None:
    mask = masks.of(table, column.name)
    assert mask is not None
    try:
        return mask.type(column.type)
    except ValueError as cause:
        raise ConfigError(f"mask: {table}.{column.name}: {cause}") from cause
