"""Schema changes carried out on a Delta table: what ``pipeline.schema_change`` makes of them, in one commit.

Called by `sink`. `raycdc.sinks.lake_columns` plans the columns. New columns at the end are
added as metadata, anything else (a wider type, a new name, place or absence of a column) writes the table anew,
streamed through this process: Delta without column mapping knows no other way that every reader understands.

Within its epoch a change is done once: a rewriting commit carries the vector, an added column that is there already
begins anew, and its values are set before the vector says so. Names that were exchanged under one epoch must not come
again under another, which recovery sees to (`raycdc.checkpoint.recovery`).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from raycdc.errors import ChangeRefusedError
from raycdc.model import Column, TableId
from raycdc.schema.events import AddColumnEvent, SchemaChangeEvent
from raycdc.sinks.api import TableWork
from raycdc.sinks.change_rules import ChangeRules
from raycdc.sinks.delta.columns import FORMAT, default_sql
from raycdc.sinks.delta.commits import DeltaCommits
from raycdc.sinks.delta.layout import unfit
from raycdc.sinks.delta.reading import Rewritten
from raycdc.sinks.delta.table import DeltaTarget
from raycdc.sinks.lake_columns import LakeColumn, constant_of, plan_columns
from raycdc.sinks.steps import Stamp


def evolve(target: DeltaTarget, work: TableWork, wanted: pa.Schema, stamp: Stamp, rules: ChangeRules) -> None:
    """Carry ``work.changes`` out on the table, and write the vector of `stamp` with them."""
    commits, present = DeltaCommits(target), target.arrow()
    plan = plan_columns(FORMAT, present, work, wanted, rules)
    planned = plan.columns
    _check_partitions(target, planned, plan.events)
    if rules.upsert:
        # Before all that the changes take: whoever dies in between leaves a note on a column that the source may have
        # still, of which it says nothing.
        commits.set_options(target.ownership.note_after(work.changes, plan.names, work.schema.arrow().names))
    added = [p for p in planned if p.origin is None]
    if [p.origin for p in planned[: len(present)]] == present.names and _same_fields(planned, present):
        if added:
            commits.add_columns([p.field for p in added if p.field.name not in present.names], stamp)
    else:
        columns = [Rewritten(p.field, p.origin, constant_of(target.name, p) if rules.upsert else None) for p in planned]
        commits.rewrite(columns, stamp, empty=plan.emptied)
    if plan.emptied:
        commits.overwrite(target.arrow().empty_table(), stamp)
    elif rules.upsert:
        added_columns = [event.column for event in plan.events if isinstance(event, AddColumnEvent)]
        _fill(commits, target.name, [column for column in added_columns if column.name in plan.names], stamp)
    commits.mark(stamp)


def _same_fields(planned: Sequence[LakeColumn], present: pa.Schema) -> bool:
    """Whether the columns that were there keep name and type, and new ones have new names."""
    old, new = planned[: len(present)], planned[len(present) :]
    unchanged = all(p.field.name == f.name and p.field.type == f.type for p, f in zip(old, present, strict=True))
    return unchanged and all(p.origin is None and p.field.name not in present.names for p in new)


def _check_partitions(target: DeltaTarget, planned: Sequence[LakeColumn], events: Sequence[SchemaChangeEvent]) -> None:
    """Columns that the table is partitioned by stay what they are, but for a wider type."""
    kept = {p.field.name for p in planned if p.origin == p.field.name}
    added = {event.column.name for event in events if isinstance(event, AddColumnEvent)}
    for name in target.partition_columns:
        if name not in kept or name in added:
            raise ChangeRefusedError(
                f"{target.name}: column {name!r} was dropped, renamed or made anew at the source, and the Delta table "
                "is partitioned by it. Take the change back, or delete the Delta table and take a new "
                "snapshot."
            )
    for p in planned:
        if p.field.name in target.partition_columns and (odd := unfit(p.field.name, p.field.type)):
            raise ChangeRefusedError(f"{target.name}: {odd}")


def _fill(commits: DeltaCommits, name: TableId, added: Sequence[Column], stamp: Stamp) -> None:
    """Give the rows that exist what the source's have: the constant default of an added column.

    Judged by the changes and not by what was missing: an earlier try may have added the column and died before this.
    """
    values = {column.name: default_sql(name, column) for column in added if column.default is not None}
    if values:
        commits.fill(values, stamp)
