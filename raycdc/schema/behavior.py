"""What a pipeline does with a schema change: Flink CDC's five behaviours as one pure decision.

| change | exception | evolve | try_evolve | lenient (default) | ignore |
|---|---|---|---|---|---|
| create_table | apply | apply | apply | apply | apply |
| add_column | fail | apply | try | apply, nullable, last | skip |
| drop_column | fail | apply | try | the column stays and becomes nullable | skip |
| rename_column | fail | apply | try | the old one stays, nullable; the new one is added | skip |
| alter_column_type | fail | apply | try | apply | skip |
| alter_column_position | fail | apply | try | skip | skip |
| alter_primary_key | fail | fail | fail | fail | fail |
| alter_table_comment | fail | apply | try | apply | skip |
| rename_table | fail | apply | try | fail | skip |
| truncate_table | fail | apply | try | apply | skip |
| drop_table | fail | apply | try | skip | skip |

*lenient* never removes anything a reader of the target may rely on. A primary key cannot change under any behaviour,
because the rows already written are keyed by the old one; the table needs a new snapshot.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from raycdc.errors import SchemaError
from raycdc.model import Column, TableSchema
from raycdc.schema.apply import find_column
from raycdc.schema.events import (
    AddColumnEvent,
    AlterColumnPositionEvent,
    AlterColumnTypeEvent,
    AlterPrimaryKeyEvent,
    CreateTableEvent,
    DropColumnEvent,
    DropTableEvent,
    Last,
    RenameColumnEvent,
    RenameTableEvent,
    SchemaChangeEvent,
)


class SchemaChangeBehavior(StrEnum):
    """The values of ``pipeline.schema_change``."""

    EXCEPTION = "exception"
    EVOLVE = "evolve"
    TRY_EVOLVE = "try_evolve"
    LENIENT = "lenient"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Apply:
    """Carry out `changes` on the target, in order. When `required` is False a sink that cannot may go on without."""

    changes: tuple[SchemaChangeEvent, ...]
    required: bool = True


@dataclass(frozen=True, slots=True)
class Skip:
    """The target stays as it is; columns it lacks are not written, columns the source lacks become null."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Stop before anything of the change reaches the target; `reason` is for the user."""

    reason: str

    def error(self) -> SchemaError:
        return SchemaError(self.reason)


Decision = Apply | Skip | Fail


def decide(
    behavior: SchemaChangeBehavior,
    change: SchemaChangeEvent,
    *,
    source: TableSchema | None,
    target: TableSchema | None,
    excluded: Collection[str] = (),
) -> Decision:
    """What becomes of `change` on a target that has schema `target`.

    `source` is the source table's schema *before* the change (a renamed column's type is in it); `excluded` are event
    types the user does not want (``exclude_schema_changes``), which are skipped under every behaviour.
    """
    if isinstance(change, CreateTableEvent):
        return Apply((change,)) if target is None else Skip()
    if change.type in excluded:
        return Skip()
    if isinstance(change, AlterPrimaryKeyEvent):
        return Fail(
            f"{change.table}: the primary key became ({', '.join(change.columns)}), but the rows already written are "
            "keyed by the old one. Remove the target and the table's state, and take a new snapshot."
        )
    match behavior:
        case SchemaChangeBehavior.EXCEPTION:
            return Fail(
                f'{change.table}: {change.type} at the source, and pipeline.schema_change = "exception". '
                'Set it to "lenient" or "evolve" to let the target follow.'
            )
        case SchemaChangeBehavior.EVOLVE:
            return Apply((change,))
        case SchemaChangeBehavior.TRY_EVOLVE:
            return Apply((change,), required=False)
        case SchemaChangeBehavior.LENIENT:
            return _lenient(change, source=source, target=target)
        case SchemaChangeBehavior.IGNORE:
            return Skip()
        case _:
            assert_never(behavior)


def _lenient(change: SchemaChangeEvent, *, source: TableSchema | None, target: TableSchema | None) -> Decision:
    match change:
        case AddColumnEvent(table, column, _):
            if target is not None and find_column(target, column.name) is not None:
                return Skip()
            return Apply((AddColumnEvent(table, replace(column, nullable=True), Last()),))
        case DropColumnEvent():
            return _relaxed(change, target)
        case RenameColumnEvent(table, name, new_name):
            kept = _relaxed(change, target)
            renamed = _column(source, name) or _column(target, name)
            if renamed is None or (target is not None and find_column(target, new_name) is not None):
                return kept
            added = AddColumnEvent(table, Column(new_name, renamed.type), Last())
            return Apply((*(kept.changes if isinstance(kept, Apply) else ()), added))
        case AlterColumnPositionEvent() | DropTableEvent():
            return Skip()
        case RenameTableEvent(table, new_table):
            return Fail(
                f"{table} was renamed to {new_table}, and a target is not renamed under schema_change = "
                '"lenient". Rename it back, or set pipeline.schema_change = "evolve".'
            )
        case _:
            return Apply((change,))


def _relaxed(change: DropColumnEvent | RenameColumnEvent, target: TableSchema | None) -> Apply | Skip:
    """Let the target's column hold nulls, if it does not yet: the source has no value for it any more."""
    column = _column(target, change.name)
    if column is None or column.nullable:
        return Skip()
    return Apply((AlterColumnTypeEvent(change.table, column.name, column.type, nullable=True),))


def _column(schema: TableSchema | None, name: str) -> Column | None:
    index = None if schema is None else find_column(schema, name)
    return None if schema is None or index is None else schema.columns[index]
