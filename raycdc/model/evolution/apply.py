"""The effect of a schema-change event on a table's schema.

Pure. Sources and sinks both use this module, so that their schemas agree.

A name in a change means the column of exactly that name. If there is none, it means the column whose name differs only
in case (`mysql_fold`), because MySQL ignores case in names of columns. The table keeps its own spelling.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from raycdc.errors import SchemaError
from raycdc.model import Column, TableSchema
from raycdc.model.column_names import find_name, mysql_fold
from raycdc.model.evolution.events import (
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
)


def apply(schema: TableSchema | None, change: SchemaChangeEvent) -> TableSchema | None:
    """Return the table's schema after `change`; None before its creation and after its drop.

    Raises `SchemaError` if the change cannot have happened to a table with this schema, for example if it adds an
    existing column or drops a missing one. The schema that raycdc has for the table is then wrong, and the correct one
    must not be guessed.
    """
    match change:
        case CreateTableEvent():
            return change.schema
        case DropTableEvent():
            return None
    if schema is None:
        raise SchemaError(f"{change.table}: {change.type} of a table that does not exist")
    return _apply(schema, change)


def apply_all(schema: TableSchema | None, changes: Iterable[SchemaChangeEvent]) -> TableSchema | None:
    """Return the table's schema after all changes, applied in order with `apply`."""
    for change in changes:
        schema = apply(schema, change)
    return schema


def find_column(schema: TableSchema, name: str) -> int | None:
    """Return the index of the column called `name`; else of a column whose name differs only in case; None if there
    is neither.
    """
    names = [column.name for column in schema.columns]
    match = find_name(name, names, mysql_fold)
    return None if match is None else names.index(match)


def _apply(schema: TableSchema, change: SchemaChangeEvent) -> TableSchema:
    match change:
        case AddColumnEvent(_, column, position):
            if find_column(schema, column.name) is not None:
                raise SchemaError(f"{change.table}: column {column.name!r} is added but exists already")
            return replace(schema, columns=_insert(schema.columns, column, position, change))
        case DropColumnEvent(_, name):
            return _drop(schema, _index(schema, name, change), change)
        case RenameColumnEvent(_, name, new_name):
            return _rename(schema, _index(schema, name, change), new_name, change)
        case AlterColumnTypeEvent(_, name, new_type, nullable):
            index = _index(schema, name, change)
            changed = replace(schema.columns[index], type=new_type, nullable=nullable)
            return replace(schema, columns=_replaced(schema.columns, index, changed))
        case AlterColumnPositionEvent(_, name, position):
            index = _index(schema, name, change)
            others = schema.columns[:index] + schema.columns[index + 1 :]
            return replace(schema, columns=_insert(others, schema.columns[index], position, change))
        case AlterPrimaryKeyEvent(_, columns):
            names = tuple(schema.columns[_index(schema, name, change)].name for name in columns)
            keyed = tuple(replace(c, nullable=False) if c.name in names else c for c in schema.columns)
            return TableSchema(keyed, names)
        case CreateTableEvent() | DropTableEvent() | TruncateTableEvent() | RenameTableEvent():
            return schema
        case AlterTableCommentEvent():
            return schema
        case _:
            assert_never(change)


def _index(schema: TableSchema, name: str, change: SchemaChangeEvent) -> int:
    index = find_column(schema, name)
    if index is None:
        columns = ", ".join(column.name for column in schema.columns)
        raise SchemaError(f"{change.table}: {change.type} names column {name!r}, but the table has {columns}")
    return index


def _insert(
    columns: tuple[Column, ...], column: Column, position: ColumnPosition, change: SchemaChangeEvent
) -> tuple[Column, ...]:
    match position:
        case First():
            at = 0
        case Last():
            at = len(columns)
        case After(name):
            at = _index(TableSchema(columns), name, change) + 1
        case _:
            assert_never(position)
    return (*columns[:at], column, *columns[at:])


def _drop(schema: TableSchema, index: int, change: SchemaChangeEvent) -> TableSchema:
    if len(schema.columns) == 1:
        raise SchemaError(f"{change.table}: the only column cannot be dropped")
    name = schema.columns[index].name
    return TableSchema(
        schema.columns[:index] + schema.columns[index + 1 :], tuple(k for k in schema.primary_key if k != name)
    )


def _rename(schema: TableSchema, index: int, new_name: str, change: SchemaChangeEvent) -> TableSchema:
    other = find_column(schema, new_name)
    if other is not None and other != index:
        raise SchemaError(f"{change.table}: column {schema.columns[index].name!r} is renamed to existing {new_name!r}")
    old = schema.columns[index].name
    return TableSchema(
        _replaced(schema.columns, index, replace(schema.columns[index], name=new_name)),
        tuple(new_name if key == old else key for key in schema.primary_key),
    )


def _replaced(columns: tuple[Column, ...], index: int, column: Column) -> tuple[Column, ...]:
    return (*columns[:index], column, *columns[index + 1 :])
