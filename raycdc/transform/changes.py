"""A source table's schema changes as changes of the transformed rows. Pure.

| a change of the table | is for its transformed rows |
|---|---|
| a column is added, and ``*`` brings it | the same, before the columns that stand behind ``*`` |
| … and ``* EXCEPT`` leaves it out, or there is no ``*`` | nothing |
| a column is dropped, renamed, or added under a name that expressions use | refused: they would mean something else |
| … another one, which ``*`` brought | the same |
| a column's type changes | the same, and a new type of what is computed of it |
| a column moves | the same, where the one before it is there |
| the key changes | the same, under the names that the columns have; nothing with ``primary_keys`` |
| the table is emptied, dropped, renamed, commented on | the same |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from raycdc.errors import SchemaError
from raycdc.model import Column, TableSchema
from raycdc.schema.apply import find_column
from raycdc.schema.events import (
    AddColumnEvent,
    After,
    AlterColumnPositionEvent,
    AlterColumnTypeEvent,
    AlterPrimaryKeyEvent,
    ColumnPosition,
    CreateTableEvent,
    DropColumnEvent,
    First,
    Last,
    RenameColumnEvent,
    SchemaChangeEvent,
)
from raycdc.transform.resolved import ResolvedTransform


def transformed_changes(
    resolved: ResolvedTransform, before: TableSchema | None, changes: Sequence[SchemaChangeEvent]
) -> list[SchemaChangeEvent]:
    """`changes`, which led to what `resolved` is resolved with, for rows that looked like `before` (None: unknown).

    Raises `SchemaError` for a change of columns that expressions name.
    """
    made: list[SchemaChangeEvent] = []
    created = False
    for change in changes:
        match change:
            case CreateTableEvent(table, _, comment):
                # Changes after it in the same epoch are part of the shape that rows have.
                made.append(CreateTableEvent(table, resolved.schema, comment))
                created = True
            case AddColumnEvent(_, column, _):
                _check_unused(resolved, change, column.name)
                made += [] if created else _added(resolved, change)
            case DropColumnEvent(_, name):
                _check_unused(resolved, change, name)
                made += [] if created or not _has_star(resolved) else [change]
            case RenameColumnEvent(_, name, new_name):
                _check_unused(resolved, change, name, new_name)
                made += [] if created or not _has_star(resolved) else [change]
            case AlterColumnTypeEvent(_, name):
                made += [change] if _flows(resolved, name) and not created else []
            case AlterColumnPositionEvent():
                made += [] if created else _moved(resolved, change)
            case AlterPrimaryKeyEvent():
                made += (
                    []
                    if resolved.transform.primary_keys or created
                    else [replace(change, columns=resolved.schema.primary_key)]
                )
            case _:
                made.append(change)
    return made if created else [*made, *_retyped(resolved, before)]


def _has_star(resolved: ResolvedTransform) -> bool:
    return any(column.flows for column in resolved.columns)


def _flows(resolved: ResolvedTransform, name: str) -> bool:
    return any(column.flows and column.stored.casefold() == name.casefold() for column in resolved.columns)


def _check_unused(resolved: ResolvedTransform, change: SchemaChangeEvent, *names: str) -> None:
    used = [name for name in names if name.casefold() in resolved.named]
    if used:
        raise SchemaError(
            f"{change.table}: {change.type} of column {used[0]!r}, which the table's transform names: its rows would "
            "mean something else from here on. Change the transform or the table, then read it anew with: "
            f"raycdc tables resnapshot CONFIG {change.table}"
        )


def _added(resolved: ResolvedTransform, change: AddColumnEvent) -> list[SchemaChangeEvent]:
    index = next((i for i, c in enumerate(resolved.columns) if c.flows and c.stored == change.column.name), None)
    if index is None:
        return []
    column: Column = resolved.schema.columns[index]
    position: ColumnPosition = Last()
    if index + 1 < len(resolved.schema.columns):
        position = After(resolved.schema.columns[index - 1].name) if index else First()
    return [AddColumnEvent(change.table, replace(column, default=change.column.default), position)]


def _moved(resolved: ResolvedTransform, change: AlterColumnPositionEvent) -> list[SchemaChangeEvent]:
    if not _flows(resolved, change.name):
        return []
    index = find_column(resolved.schema, change.name)
    assert index is not None
    position: ColumnPosition = After(resolved.schema.columns[index - 1].name) if index else First()
    return [replace(change, position=position)]


def _retyped(resolved: ResolvedTransform, before: TableSchema | None) -> list[SchemaChangeEvent]:
    """Columns other than those of ``*`` whose type is another than before."""
    if before is None:
        return []
    changed: list[SchemaChangeEvent] = []
    for column, shown in zip(resolved.columns, resolved.schema.columns, strict=False):
        index = None if column.flows else find_column(before, column.name)
        if index is not None and before.columns[index].type.arrow() != column.type.arrow():
            changed.append(AlterColumnTypeEvent(resolved.table, column.name, column.type, shown.nullable))
    return changed
