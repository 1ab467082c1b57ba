"""The effect of masks on a table's columns and schema changes; readers write the rows (`raycdc.transform.masking`).

Manifests and schemas keep the source's columns with their types, and no default that a mask hides (`hidden_schema`,
`hidden_changes`): sources report them so. The masked columns and changes are worked out where targets are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from raycdc.errors import ConfigError, DataError, SchemaError
from raycdc.model import Column, LogicalType, TableId, TableSchema
from raycdc.model.constants import constant
from raycdc.model.mask import Mask, Masks
from raycdc.schema.events import (
    AddColumnEvent,
    AlterColumnTypeEvent,
    CreateTableEvent,
    DropColumnEvent,
    RenameColumnEvent,
    SchemaChangeEvent,
)
from raycdc.transform.masking import masked_values

#: No value of any type but text, of which all defaults can be masked.
_REFUSED = "?"


def masked_schema(table: TableId, schema: TableSchema, masks: Masks) -> TableSchema:
    """The columns that rows of `table` have in segments. `ConfigError` for masks that cannot be."""
    masks.check_key(table, schema.primary_key)
    kept = [masked for column in schema.columns if (masked := _masked(table, column, masks)) is not None]
    if not kept:
        raise ConfigError(f"mask: all columns of {table} are dropped, so that there is nothing to write.")
    return TableSchema(tuple(kept), schema.primary_key)


def hidden_schema(table: TableId, schema: TableSchema, masks: Masks) -> TableSchema:
    """The schema as the state has it."""
    return replace(schema, columns=tuple(_without_default(table, column, masks) for column in schema.columns))


def hidden_changes(table: TableId, changes: Sequence[SchemaChangeEvent], masks: Masks) -> tuple[SchemaChangeEvent, ...]:
    """The changes as the state has them. A default that the column's mask cannot hide is left to `masked_changes` to
    refuse, without its text.
    """
    return tuple(_hidden_or_refused(table, change, masks) for change in changes)


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
                        f"{table}: column {name!r} was renamed to {new_name!r}, and mask has different entries for the "
                        f"two "
                        "names, so hidden values would be shown. Rename it back, or name both in mask and take a new "
                        "snapshot of the table."
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
    hidden = _hidden(table, change, masks)
    assert isinstance(hidden, AddColumnEvent)
    return [replace(hidden, column=replace(column, default=hidden.column.default), hidden=False)]


def _hidden_or_refused(table: TableId, change: SchemaChangeEvent, masks: Masks) -> SchemaChangeEvent:
    try:
        return _hidden(table, change, masks)
    except SchemaError:
        assert isinstance(change, AddColumnEvent)
        return replace(change, column=replace(change.column, default=_REFUSED))


def _hidden(table: TableId, change: SchemaChangeEvent, masks: Masks) -> SchemaChangeEvent:
    match change:
        case CreateTableEvent(_, schema):
            return replace(change, schema=hidden_schema(table, schema, masks))
        case AddColumnEvent(_, column, _, hidden) if not hidden and (mask := masks.of(table, column.name)) is not None:
            if column.default is None:
                return change
            return replace(change, column=replace(column, default=masked_default(table, column, mask)), hidden=True)
        case _:
            return change


def masked_default(table: TableId, column: Column, mask: Mask) -> str | None:
    """The value of existing rows in the column, masked as in all other rows; None where the column is dropped.

    `SchemaError`, without the default's text, where the mask cannot hide it.
    """
    if mask.method == "drop" or column.default is None:
        return None
    try:
        value = constant(column.default, column.type.arrow())
        shown = masked_values(pa.array([value]), mask, f"{table}.{column.name}")[0].as_py()
    except (pa.ArrowException, ConfigError, DataError) as cause:
        raise SchemaError(
            f"{table}: column {column.name!r} was added with a default that cannot be masked, so the value of existing "
            "rows in it is not known. Take a new snapshot of the table, which masks them."
        ) from cause
    # As constants of binary columns are written.
    return shown.decode("utf-8", "surrogateescape") if isinstance(shown, bytes) else shown


def _without_default(table: TableId, column: Column, masks: Masks) -> Column:
    return column if masks.of(table, column.name) is None else replace(column, default=None, hidden=False)


def _masked(table: TableId, column: Column, masks: Masks) -> Column | None:
    if masks.of(table, column.name) is None:
        return column
    kind = _type(table, column, masks)
    return None if kind is None else replace(column, type=kind, default=None, hidden=False)


def _type(table: TableId, column: Column, masks: Masks) -> LogicalType | None:
    mask = masks.of(table, column.name)
    assert mask is not None
    try:
        return mask.type(column.type)
    except ValueError as cause:
        raise ConfigError(f"mask: {table}.{column.name}: {cause}") from cause
