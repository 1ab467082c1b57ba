"""Refusals of epochs in which leaving bad rows out would make a target wrong in silence, before a row is written.

That a bad row is one that its target does not have (`raycdc.bridge.bad_rows`) holds for as long as the same row is
judged alike. A changed type may change what the server has in rows that are there, and how they are judged:

| target | a changed type of a column |
|---|---|
| of one table, rows are updated | followed: a bad row that goes is always the deletion of its key |
| of one table, a changelog | refused where expressions use the column |
| of several tables | refused where values may be none of the target's type, and where rows were left out before |

Where no row is left out such a change is followed, and remembered (``retyped.json``): leaving rows out may not begin
after it.

Where rows are updated, a deletion of a key might take the row of another table, so several tables whose expressions may
fail are refused altogether.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pyarrow.types import is_floating

from raycdc.bridge.bad_rows import BadRecords
from raycdc.checkpoint.bad_rows import bad_rows
from raycdc.checkpoint.manifest import Manifest
from raycdc.checkpoint.store import CheckpointStore
from raycdc.epochs.sieve import may_fail
from raycdc.errors import RoutesRefusedError, RulesRefusedError
from raycdc.model import TableId, TableSchema
from raycdc.schema.apply import find_column
from raycdc.schema.events import AlterColumnTypeEvent
from raycdc.schema.targets import Tables, Target, TargetEpoch
from raycdc.transform import ResolvedTransform

_NAME = "retyped.json"
_ANEW = "Read its tables anew (raycdc tables resnapshot), which empties the target"


@dataclass(slots=True)
class LeftOut:
    """See the module's docstring. Asked by the epoch loop for each epoch, in order, when those before are staged."""

    store: CheckpointStore
    records: BadRecords
    upsert: bool
    _lost: set[TableId] = field(default_factory=set)
    _retyped: set[str] | None = None

    def add(self, tables: Collection[TableId]) -> None:
        """Rows of `tables` are left out by an epoch that is staged."""
        self._lost.update(tables)

    def check(
        self,
        manifest: Manifest,
        tables: Tables,
        share: TargetEpoch,
        before: Target | None,
        after: Target,
        transforms: Mapping[TableId, ResolvedTransform],
    ) -> None:
        """`share` is a target's part of `manifest`, whose `tables` have `transforms`, where they have any.
        `SchemaError` or `ConfigError` for what is refused.
        """
        if before is None:
            self._forget(share.name)
        if self._leaves and str(share.name) in self._followed():
            raise RulesRefusedError(
                f'{share.name}: pipeline.on_bad_record = "{self.records.action}", and the type of a column changed '
                f'while it was "fail": a row that was good when it was written may be bad now. Use "fail". Or: {_ANEW}.'
            )
        known = before.sources if before is not None else ()
        retyped = {table: _retyped(manifest, table) for table in share.sources if table in known}
        if len(after.sources) == 1:
            for table, names in retyped.items():
                if not self.upsert:
                    self._check_changelog(share, table, names, transforms.get(table), manifest.epoch)
            return
        if self._leaves and self.upsert:
            self._check_merged_upsert(share, tables, transforms)
        lost = next((table for table in after.sources if self._has_lost(table, manifest.epoch)), None)
        for table, names in retyped.items():
            if names and (table == lost or self._has_lost(table, manifest.epoch)):
                raise self._refused(share, f"the type of column {names[0]!r} of {table} changed", table)
            self._check_source(share, table, tables[table][0], names, transforms.get(table))
        if before is not None and before.schema is not None:
            self._check_target(share, before.schema, lost)

    @property
    def _leaves(self) -> bool:
        return self.records.leaves_out

    def _has_lost(self, table: TableId, epoch: int) -> bool:
        return table in self._lost or str(table) in bad_rows(self.store, epoch - 1)

    def _followed(self) -> set[str]:
        """Targets whose types changed while no row was left out."""
        if self._retyped is None:
            self._retyped = set((self.store.documents.read(_NAME) or {}).get("targets", ()))
        return self._retyped

    def _follow(self, target: TableId) -> None:
        """Remember the target before the epoch that changes the type is staged; harmless if that is never committed."""
        if str(target) not in self._followed():
            self._followed().add(str(target))
            self.store.documents.write(_NAME, {"targets": sorted(self._followed())})

    def _forget(self, target: TableId) -> None:
        """A target that is new, or that was parked and begins again, has no row from before a change of types."""
        if str(target) in self._followed():
            self._followed().discard(str(target))
            self.store.documents.write(_NAME, {"targets": sorted(self._followed())})

    def _check_changelog(
        self,
        share: TargetEpoch,
        table: TableId,
        names: Collection[str],
        resolved: ResolvedTransform | None,
        epoch: int,
    ) -> None:
        used = [name for name in names if resolved is not None and name.casefold() in resolved.uses.columns]
        lost = self._has_lost(table, epoch)
        if used and (self._leaves or lost):
            why = "rows of it were left out" if lost else f'pipeline.on_bad_record is "{self.records.action}"'
            raise RulesRefusedError(
                f"{table}: the type of column {used[0]!r}, which the table's transform uses, changed, and {why}. So "
                f"nobody can tell any more which earlier rows the changelog has, and which it lacks as bad. {_ANEW}."
            )
        if used:
            self._follow(share.name)

    def _check_merged_upsert(
        self, share: TargetEpoch, tables: Tables, transforms: Mapping[TableId, ResolvedTransform]
    ) -> None:
        policy = f'pipeline.on_bad_record = "{self.records.action}"'
        for table in share.sources:
            if table in transforms and (transforms[table].computed or transforms[table].transform.filter):
                raise RoutesRefusedError(
                    f"{policy}: {table}, whose transform computes or filters, is merged with other tables into "
                    f"{share.name}, where a bad row might delete the row of another table. Route it elsewhere, or use "
                    '"fail".'
                )
            if self.records.partial and (name := _may_be_bad(tables[table][0], share.schema)):
                raise RoutesRefusedError(
                    f"{policy}: {table} is merged with other tables into {share.name}, where values of its column "
                    f"{name!r} may have no place, and its source does not say whether a bad row replaces one that is "
                    'there. Route it elsewhere, or use "fail".'
                )

    def _check_source(
        self,
        share: TargetEpoch,
        table: TableId,
        schema: TableSchema,
        names: Collection[str],
        resolved: ResolvedTransform | None,
    ) -> None:
        used = [name for name in names if resolved is not None and name.casefold() in resolved.uses.columns]
        if names and (used or _may_be_bad(schema, share.schema)):
            if self._leaves:
                name = next(iter(used or names))
                raise self._refused(share, f"the type of column {name!r} of {table} changed")
            self._follow(share.name)

    def _check_target(self, share: TargetEpoch, before: TableSchema, lost: TableId | None) -> None:
        for column in before.columns:
            index = find_column(share.schema, column.name)
            want = column.type if index is None else share.schema.columns[index].type
            if column.type.arrow() == want.arrow():
                continue
            # Of the types that become others, rows are bad under one alone.
            came = lost is not None and is_floating(column.type.arrow())
            if came or (self._leaves and may_fail(column.type, want)):
                change = f"the merged type of column {column.name!r} becomes {want.arrow()}"
                raise self._refused(share, change, lost if came else None)
            if may_fail(column.type, want):
                self._follow(share.name)

    def _refused(self, share: TargetEpoch, change: str, lost: TableId | None = None) -> RulesRefusedError:
        why = f'pipeline.on_bad_record is "{self.records.action}"' if lost is None else f"rows of {lost} were left out"
        return RulesRefusedError(
            f"{share.name}: {change}, and {why}. So nobody can tell any more which earlier rows the target has, and "
            f"which it lacks as bad. {_ANEW}, or route tables of other types elsewhere."
        )


def _retyped(manifest: Manifest, table: TableId) -> list[str]:
    """Columns of `table` whose type changed, as the source says it: expressions may hide that."""
    return [event.name for event in manifest.tables[table].changes if isinstance(event, AlterColumnTypeEvent)]


def _may_be_bad(schema: TableSchema, merged: TableSchema) -> str:
    """A column of rows with `schema` of which some values may be none of the merged type; empty without."""
    for column in schema.columns:
        index = find_column(merged, column.name)
        if index is not None and may_fail(column.type, merged.columns[index].type):
            return column.name
    return ""
