"""Checks of schema changes that all sinks share, and functions for targets that lack some columns of the source."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa

from raycdc.errors import (
    ChangeRefusedError,
    ColumnsRefusedError,
    KeyRefusedError,
    TargetExistsError,
)
from raycdc.model import META_COLUMNS, Column, TableId, TableSchema
from raycdc.model.column_names import spark_fold
from raycdc.model.evolution.effects import SchemaChangeBehavior
from raycdc.model.evolution.events import (
    AlterPrimaryKeyEvent,
    CreateTableEvent,
    DropTableEvent,
    RenameTableEvent,
    TruncateTableEvent,
)
from raycdc.model.schema import constant
from raycdc.sinks.api import SinkContext, TableCommit
from raycdc.sinks.change_rules import ChangeRules


def check_changes(work: TableCommit, rules: ChangeRules) -> None:
    """Raise `SinkError` for a change that no target can follow, or that ``pipeline.schema_change`` forbids."""
    for event in work.changes:
        match event:
            case AlterPrimaryKeyEvent():
                raise ChangeRefusedError(
                    f"{work.target}: the primary key changed to ({', '.join(event.columns)}), but its rows are keyed "
                    "by the old one. Delete the target, and read the table anew."
                )
            case RenameTableEvent():
                raise ChangeRefusedError(
                    f"{work.target}: the source table was renamed to {event.new_table}, and a target keeps its "
                    f"name. Rename it back, or read it under its new name with: raycdc tables add"
                )
            case CreateTableEvent():
                continue
            case _ if event.type in rules.left_out:
                continue
            case _ if rules.behavior is SchemaChangeBehavior.FAIL:
                raise ChangeRefusedError(
                    f'{work.target}: {event.type} at the source, and pipeline.schema_change = "fail". '
                    'Set it to "lenient" or "evolve" to let the target follow.'
                )
            case _:
                continue


def creates(work: TableCommit) -> bool:
    """Return True if the table begins with this epoch, for the first time or again: a missing target is created."""
    return any(isinstance(change, CreateTableEvent) for change in work.changes)


def replaces_all_rows(work: TableCommit, rules: ChangeRules) -> bool:
    """Return True if no row of earlier epochs may remain in the target after this one.

    There are two cases: the table is resnapshotted, or the target is an upsert target and its rows were removed at the
    source. A changelog keeps its rows when the source table is dropped and created again. Any target keeps its rows
    then if the configuration leaves out the drop.
    """
    if not creates(work):
        return False
    # A truncation right before a creation marks a resnapshot (`raycdc.source.tables.resnapshots`). If the source itself
    # truncates a table and creates it again, there is a DROP in between.
    if any(isinstance(a, TruncateTableEvent) and isinstance(b, CreateTableEvent) for a, b in pairwise(work.changes)):
        return True
    if not rules.upsert:
        return False
    # A table that is created again was dropped before, possibly in an earlier epoch.
    return DropTableEvent.type not in rules.left_out or rules.empties(rules.followed(work.changes))


def check_key(work: TableCommit) -> None:
    """Raise `SinkError` for a table whose rows an upsert target cannot tell apart."""
    if not work.schema.primary_key:
        raise KeyRefusedError(
            f"{work.source} has no primary key, so an upsert target cannot tell its rows apart. "
            f'Add a key to the table, exclude it, or set sink.write = "changelog".'
        )


def fitted(schema: TableSchema, names: Collection[str]) -> TableSchema:
    """Return `schema` with only those columns that a target with the columns `names` has."""
    return replace(schema, columns=tuple(c for c in schema.columns if c.name in names))


def fitted_to(work: TableCommit, context: SinkContext, names: Collection[str]) -> TableCommit:
    """Return `work` with only those columns that a target with the columns `names` has.

    If the configuration leaves out no changes, `work` is returned unchanged, because then the target lacks no column.
    """
    if not context.rules.may_lack:
        return work
    return replace(work, schema=fitted(work.schema, names))


def check_constant(target: TableId, column: Column) -> pa.Scalar:
    """Return the constant default of an added column as a value of its type.

    Raises `SinkError` if the default is not a value of that type.
    """
    assert column.default is not None
    try:
        return constant(column.default, column.type.arrow())
    except pa.ArrowException:
        raise ChangeRefusedError(
            f"{target}: column {column.name} was added with a default that is not a value of type {column.type.kind}. "
            "Take a new snapshot of the table."
        ) from None


def check_names(work: TableCommit, wanted: pa.Schema) -> None:
    """Raise `SinkError` if a column has the name of a metadata column of the changelog.

    `wanted` are all columns of the target, including the additional columns of a changelog.
    """
    clashes = {spark_fold(c.name) for c in work.schema.columns} & {spark_fold(n) for n in META_COLUMNS}
    if clashes and len(wanted) > len(work.schema.columns):
        raise ColumnsRefusedError(
            f"{work.target}: column {min(clashes)} has the name of a metadata column of the changelog."
        )


def check_unmerged(work: TableCommit, on_existing: str, *, rows: str = "row") -> None:
    """Raise `SinkError` if a target that keeps rows of other writers would get rows of several tables, or a key that is
    not the source's.

    `rows` is the word for a row of the target in the message.
    """
    if work.merged and on_existing == "merge":
        raise TargetExistsError(
            f"{work.target}: {', '.join(map(str, work.merged))} cannot be merged, or given another key, with "
            f'pipeline.on_existing = "merge", because nobody knows whether a {rows} that is there already is one of '
            'theirs. Use "fail" or "replace".'
        )
