"""Carries out schema changes on a Delta table according to ``pipeline.schema_change``, in one commit.

Called by `sink`. `raycdc.sinks.columns` plans the columns. New columns at the end only change metadata. Any other
change (a wider type, a new name or position, a dropped column) rewrites the table, and its rows are streamed through
this process. The alternative would be Delta's column mapping, which not every reader supports.

A change can be repeated within its epoch. A commit that rewrites the table carries the vector, so it is not repeated. A
change that adds columns needs several commits: a retry finds columns that were already added, and fills them before it
writes the vector. An exchange of names must not be repeated in another epoch; recovery prevents that
(`raycdc.state.recovery`).

The module also checks names, types and defaults; each error names a solution.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from raycdc.errors import ChangeRefusedError, TargetExistsError
from raycdc.model import Column, TableId
from raycdc.model.evolution.events import AddColumnEvent, SchemaChangeEvent
from raycdc.model.rules.names import NAMES
from raycdc.model.types import TypeKind
from raycdc.sinks.api import TableCommit
from raycdc.sinks.change_rules import ChangeRules
from raycdc.sinks.changes import check_constant, check_names
from raycdc.sinks.columns import plan_columns
from raycdc.sinks.delta.commits import DeltaCommits
from raycdc.sinks.delta.layout import unfit
from raycdc.sinks.delta.reading import RewrittenColumn
from raycdc.sinks.delta.table import DeltaTarget
from raycdc.sinks.lakes.lake_columns import LakeColumn, check_adoptable, constant_of, lake_abilities
from raycdc.sinks.lakes.ownership import new_names
from raycdc.sinks.steps import CommitMetadata
from raycdc.sinks.targets import check_names as check_names_held

DELTA = lake_abilities("Delta")

_SQL_TYPES: dict[TypeKind, str] = {
    TypeKind.BOOLEAN: "BOOLEAN",
    TypeKind.INT8: "TINYINT",
    TypeKind.INT16: "SMALLINT",
    TypeKind.INT32: "INT",
    TypeKind.INT64: "BIGINT",
    TypeKind.UINT64: "DECIMAL(20, 0)",
    TypeKind.FLOAT32: "REAL",
    TypeKind.FLOAT64: "DOUBLE",
    TypeKind.STRING: "VARCHAR",
    TypeKind.DATE: "DATE",
    TypeKind.TIME: "VARCHAR",
    TypeKind.YEAR: "SMALLINT",
    TypeKind.ENUM: "VARCHAR",
    TypeKind.SET: "VARCHAR",
    TypeKind.JSON: "VARCHAR",
}


def check_columns(work: TableCommit, wanted: pa.Schema) -> None:
    """Raise `SinkError` for column names that Delta cannot have."""
    check_names_held(NAMES["delta"], work.target, wanted.names)
    check_names(work, wanted)


def check_mergeable(target: DeltaTarget, wanted: pa.Schema) -> None:
    """Raise `SinkError` if an existing table has a column of another type, or a partition column of an unsuitable
    type.
    """
    for field in target.arrow():
        if field.name in target.partition_columns and (invalid := unfit(field.name, field.type)):
            raise TargetExistsError(
                f"{target.name}: the Delta table that is there is partitioned by a {invalid} Choose another path, or "
                'empty it with pipeline.on_existing = "replace".'
            )
    check_adoptable(DELTA, target.name, target.arrow(), wanted)


def default_sql(target: TableId, column: Column) -> str:
    """Return a constant default in delta-rs's SQL. Raises `SinkError` if it is not a value of the column's type."""
    assert column.default is not None
    check_constant(target, column)
    text = column.default.replace("'", "''")
    match column.type.kind:
        case TypeKind.DECIMAL:
            return f"CAST('{text}' AS DECIMAL({column.type.precision}, {column.type.scale}))"
        case TypeKind.BINARY:
            return f"X'{column.default.encode().hex()}'"
        case TypeKind.BIT:
            return f"CAST('{text}' AS {'BIGINT' if column.type.length <= 63 else 'DECIMAL(20, 0)'})"
        case TypeKind.DATETIME | TypeKind.TIMESTAMP as kind:
            # A CAST would use nanoseconds, whose range ends in the year 2262.
            zone = "None" if kind is TypeKind.DATETIME else 'Some("UTC")'
            return f"arrow_cast('{text}', 'Timestamp(Microsecond, {zone})')"
        case kind:
            return f"CAST('{text}' AS {_SQL_TYPES[kind]})"


def evolve(
    target: DeltaTarget, work: TableCommit, wanted: pa.Schema, commit_metadata: CommitMetadata, rules: ChangeRules
) -> None:
    """Apply ``work.changes`` to the table, and write the vector of `commit_metadata` with the last commit."""
    commits, present = DeltaCommits(target), target.arrow()
    plan = plan_columns(DELTA, list(present), work, list(wanted), rules)
    planned = plan.columns
    _check_partitions(target, planned, plan.events)
    kept = {p.name for p in planned if p.values_of == p.name}
    if not plan.emptied:
        target.ownership.require_own_names(target.location, plan.events, set(present.names) - kept)
    came = set(new_names(plan.events)) - kept
    if rules.upsert or came:
        # The note about dropped columns is written before all changes. After a crash in between, the note may name a
        # column that the source still has; such an entry has no effect.
        commits.set_options(
            target.ownership.note_after(work.changes, plan.names, work.schema.arrow().names, added=came)
        )
    added = [p for p in planned if p.values_of is None]
    if [p.values_of for p in planned[: len(present)]] == present.names and _same_fields(planned, present):
        if added:
            commits.add_columns([p.column for p in added if p.name not in present.names], commit_metadata)
    else:
        columns = [
            RewrittenColumn(p.column, p.values_of, constant_of(target.name, p) if rules.upsert else None)
            for p in planned
        ]
        commits.rewrite(columns, commit_metadata, empty=plan.emptied)
    if plan.emptied:
        commits.overwrite(target.arrow().empty_table(), commit_metadata)
    elif rules.upsert:
        _fill(commits, target.name, [p.added for p in planned if p.added is not None], commit_metadata)
    commits.mark(commit_metadata)


def _same_fields(planned: Sequence[LakeColumn], present: pa.Schema) -> bool:
    """Return True if existing columns keep name and type, and new ones have new names."""
    old, new = planned[: len(present)], planned[len(present) :]
    unchanged = all(p.name == f.name and p.column.type == f.type for p, f in zip(old, present, strict=True))
    return unchanged and all(p.values_of is None and p.name not in present.names for p in new)


def _check_partitions(target: DeltaTarget, planned: Sequence[LakeColumn], events: Sequence[SchemaChangeEvent]) -> None:
    """Raise `SinkError` if a partition column is dropped, renamed or created again, or gets an unsuitable type."""
    kept = {p.name for p in planned if p.values_of == p.name}
    added = {event.column.name for event in events if isinstance(event, AddColumnEvent)}
    for name in target.partition_columns:
        if name not in kept or name in added:
            raise ChangeRefusedError(
                f"{target.name}: column {name!r} was dropped, renamed or made anew at the source, and the Delta table "
                "is partitioned by it. Take the change back, or delete the Delta table and take a new "
                "snapshot."
            )
    for p in planned:
        if p.name in target.partition_columns and (invalid := unfit(p.name, p.column.type)):
            raise ChangeRefusedError(f"{target.name}: {invalid}")


def _fill(commits: DeltaCommits, name: TableId, added: Sequence[Column], commit_metadata: CommitMetadata) -> None:
    """Set the constant defaults of added columns in existing rows, as the source did.

    All columns that the epoch adds are filled, because an earlier attempt may have added some of them and died before
    it filled them.
    """
    values = {column.name: default_sql(name, column) for column in added if column.default is not None}
    if values:
        commits.fill(values, commit_metadata)
