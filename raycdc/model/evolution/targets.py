"""The share of each target table in an epoch, from the source tables that are routed to it.

Pure. Called by the epoch loop for each manifest, in order. A target of one source table has that table's schema, and
takes its changes unchanged, under the target's own name. If the table is resnapshotted with different columns, the
columns that the table does not have any more are dropped first, as an ALTER TABLE would.

A target of several tables has the merge of their schemas (`raycdc.model.evolution.merge`), which only grows:

| a merged table | its target |
|---|---|
| is new, or gets a column that no other table has | gets the columns that it lacks, at the end, nullable |
| has a column of a wider type | gets the type that holds the values of both |
| lacks a column of the others | has null in this column, in the rows of this table |
| drops a column | keeps it; rows written before keep their values, later ones have null |
| renames a column | keeps it, and, if an upsert target, gets the new one with its values; tables with the old name \
write their values under both names, so that no value is missing when they rename it later |
| … to a column that the target has with different values | refuses it if it is an upsert target, because the tables' \
rows need different values |
| adds a column, with a constant default | gets the column with that default, in all rows that have no value |
| … that the target has with the same default, or both without a default | has it already |
| … with a different default, or that a table dropped before | refuses it if it is an upsert target, because the \
tables' rows need different values |
| is truncated, dropped or resnapshotted | refuses it if it is an upsert target, because the table's rows cannot be \
distinguished from those of the other tables |
| has a different primary key | refuses it |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from raycdc.errors import RoutesRefusedError, RulesRefusedError
from raycdc.model import Column, LogicalType, TableId, TableSchema
from raycdc.model.column_names import mysql_fold
from raycdc.model.evolution.apply import find_column
from raycdc.model.evolution.events import (
    AddColumnEvent,
    AlterColumnTypeEvent,
    AlterPrimaryKeyEvent,
    CreateTableEvent,
    DropColumnEvent,
    DropTableEvent,
    RenameColumnEvent,
    RenameTableEvent,
    SchemaChangeEvent,
    TruncateTableEvent,
)
from raycdc.model.evolution.merge import merge_schemas, merge_types
from raycdc.model.rules.routes import Router
from raycdc.model.types import wide_decimal

#: The tables of an epoch: the schema of each in it, and the changes that led to that schema.
Tables = Mapping[TableId, tuple[TableSchema, Sequence[SchemaChangeEvent]]]


@dataclass(frozen=True, slots=True)
class TargetSchema:
    """A target table after an epoch.

    `sources` are the tables whose rows the target has so far. `schema` has the target's columns, each with the default
    with which it was added, if any; it is None for a table of a state without routes. `dropped` has, by the name of the
    source, the columns (in lower case) that the source dropped while the target keeps their values. `named` maps a
    column to the column from which it got its first values, because a source renamed that one (both names in lower
    case).
    """

    sources: tuple[TableId, ...]
    schema: TableSchema | None
    dropped: Mapping[str, frozenset[str]] = field(default_factory=dict)
    named: Mapping[str, str] = field(default_factory=dict)

    def seen(self, source: TableId, own: TableSchema) -> tuple[TableSchema, TableSchema, Mapping[str, str]]:
        """Return the conversion of rows of `source`, which have the columns `own`, to the target's columns.

        The result has three parts: the rows' columns, including columns repeated under a second name; the target's
        columns, with the defaults for these rows; and a mapping from each second name to the original column.
        """
        assert self.schema is not None
        dropped = set(self.dropped_by(source))
        for _ in self.named:
            dropped |= {new for new, old in self.named.items() if old in dropped}
        columns = (replace(c, default=None) if mysql_fold(c.name) in dropped else c for c in self.schema.columns)
        both, names = _with_names(own, self.named)
        return both, replace(self.schema, columns=tuple(columns)), names

    def dropped_by(self, source: TableId) -> frozenset[str]:
        """Return the columns that rows of `source` had earlier, and do not have any more."""
        return self.dropped.get(str(source), frozenset())


@dataclass(frozen=True, slots=True)
class TargetEpoch:
    """The share of one target in an epoch: its source tables, its schema after the epoch, and the changes that lead to
    this schema.

    `beginning` are the source tables that had no rows in the target before the epoch.
    """

    name: TableId
    sources: tuple[TableId, ...]
    schema: TableSchema
    changes: tuple[SchemaChangeEvent, ...]
    beginning: tuple[TableId, ...] = ()


def target_of(
    name: TableId,
    sources: Sequence[TableId],
    tables: Tables,
    before: TargetSchema | None,
    *,
    upsert: bool,
    had: Collection[str] = (),
) -> tuple[TargetEpoch, TargetSchema]:
    """Return the share of the target `name` in an epoch with changes of `sources`, and the target after the epoch.

    `sources` are the tables that are routed to this target; `tables` has all tables of the epoch. Raises
    `RulesRefusedError` for changes that a merged target cannot follow; an `upsert` target cannot follow all changes.
    `before` is the target before the epoch (None: a new one). `had` are the columns that the target may have, even if
    `before` lacks them. They are used only when a table begins in the target.
    """
    every = tuple(dict.fromkeys([*(before.sources if before else ()), *sources]))
    if len(every) == 1:
        return _alone(name, every[0], tables, before, had)
    return _merged(name, sources, tables, before, upsert=upsert)


def targets_of(
    tables: Tables, known: Mapping[TableId, TargetSchema], router: Router, *, upsert: bool
) -> list[tuple[TargetEpoch, TargetSchema]]:
    """Return `target_of` for all targets of the `tables` of one epoch. `known` are the targets before the epoch."""
    routed = routed_to(tables, router)
    return [target_of(name, sources, tables, known.get(name), upsert=upsert) for name, sources in routed.items()]


def routed_to(tables: Iterable[TableId], router: Router) -> dict[TableId, list[TableId]]:
    """Return the targets of `tables`, each with the tables that go there."""
    found: dict[TableId, list[TableId]] = {}
    for source in tables:
        for name in router.targets(source):
            found.setdefault(name, []).append(source)
    return found


def emptied(target_epoch: TargetEpoch) -> TargetEpoch:
    """Return `target_epoch` with a truncation of the target first."""
    first = TruncateTableEvent(target_epoch.name), CreateTableEvent(target_epoch.name, target_epoch.schema)
    begins = CreateTableEvent, TruncateTableEvent, DropTableEvent
    return replace(
        target_epoch, changes=(*first, *(change for change in target_epoch.changes if not isinstance(change, begins)))
    )


def changed_routes(known: Mapping[TableId, Collection[TableId]], router: Router) -> list[str]:
    """Return a sentence for each source table whose rows went to different targets so far.

    `known` has each target's sources. Such a change is not supported, because a new target of a table would lack all
    its earlier rows.
    """
    before: dict[TableId, set[TableId]] = {}
    for target, sources in known.items():
        for source in sources:
            before.setdefault(source, set()).add(target)
    return [
        f"{source} went to {_names(before[source])} so far, and would go to {_names(now)} from now on"
        for source in sorted(before)
        if (now := set(router.targets(source))) != before[source]
    ]


def _alone(
    name: TableId, source: TableId, tables: Tables, before: TargetSchema | None, had: Collection[str]
) -> tuple[TargetEpoch, TargetSchema]:
    schema, changes = tables[source]
    defaults = {c.name: c.default for c in before.schema.columns} if before and before.schema else {}
    for event in changes:
        match event:
            case CreateTableEvent():
                defaults = {}
            case AddColumnEvent(_, column, _):
                defaults[column.name] = column.default
    changes = _losing(had, changes)
    target_epoch = TargetEpoch(name, (source,), schema, tuple(replace(change, table=name) for change in changes))
    if any(column.default != defaults.get(column.name) for column in schema.columns):
        columns = tuple(replace(column, default=defaults.get(column.name)) for column in schema.columns)
        return target_epoch, TargetSchema((source,), TableSchema(columns, schema.primary_key))
    return target_epoch, TargetSchema((source,), schema)


def _losing(had: Collection[str], changes: Sequence[SchemaChangeEvent]) -> list[SchemaChangeEvent]:
    """Return `changes`, with a drop of each column that the target `had` and that a resnapshotted table does not have
    any more.

    A truncation right before the table's CreateTableEvent stays right before it.
    """
    names = list(had)
    reported: list[SchemaChangeEvent] = []
    for event in changes:
        match event:
            case AddColumnEvent(_, column, _):
                names.append(column.name)
            case DropColumnEvent(_, name):
                names = [other for other in names if mysql_fold(other) != mysql_fold(name)]
            case RenameColumnEvent(_, name, new_name):
                names = [new_name if mysql_fold(other) == mysql_fold(name) else other for other in names]
            case CreateTableEvent(table, schema):
                lost = [DropColumnEvent(table, name) for name in names if find_column(schema, name) is None]
                at = len(reported) - 1 if reported and isinstance(reported[-1], TruncateTableEvent) else len(reported)
                reported[at:at] = lost
                names = [column.name for column in schema.columns]
        reported.append(event)
    return reported


def _merged(
    name: TableId, sources: Sequence[TableId], tables: Tables, before: TargetSchema | None, *, upsert: bool
) -> tuple[TargetEpoch, TargetSchema]:
    if before is not None and before.schema is None:
        raise RoutesRefusedError(
            f"route: {_names([*before.sources, *sources])} would all go to {name}, but the state does not say what "
            f"columns that has. Read all of them anew with: raycdc tables resnapshot CONFIG {sources[0]}"
        )
    merger = _Merger(
        name,
        before.schema if before else None,
        before.dropped if before else {},
        before.named if before else {},
        upsert,
    )
    known = before.sources if before else ()
    for source in sources:
        schema, changes = tables[source]
        # Changes of a table before its first row in this target concern no row of the target.
        merger.add(source, schema, changes if source in known else ())
    assert merger.schema is not None
    every = tuple(dict.fromkeys([*known, *sources]))
    changes = (*merger.passed_on, *_steps(name, before, merger.schema, merger.named))
    beginning = tuple(source for source in sources if source not in known)
    target_epoch = TargetEpoch(name, tuple(sources), merger.schema, changes, beginning)
    return target_epoch, TargetSchema(every, merger.schema, merger.dropped, merger.named)


@dataclass(slots=True)
class _Merger:
    """A merged target to which the tables of one epoch are added."""

    name: TableId
    schema: TableSchema | None
    dropped: Mapping[str, frozenset[str]]
    named: Mapping[str, str]
    upsert: bool
    passed_on: tuple[SchemaChangeEvent, ...] = ()

    def add(self, source: TableId, schema: TableSchema, changes: Sequence[SchemaChangeEvent]) -> None:
        added: dict[str, str | None] = {}
        for event in changes:
            match event:
                case TruncateTableEvent() | DropTableEvent() if self.upsert:
                    raise self._emptied(source)
                case AlterPrimaryKeyEvent() | RenameTableEvent():
                    # No sink supports these changes, and each refuses them with its own message.
                    self.passed_on += (replace(event, table=self.name),)
                case AddColumnEvent(_, column, _):
                    self._check_added(source, column)
                    added[mysql_fold(column.name)] = column.default
                case DropColumnEvent(_, dropped):
                    self._drop(source, dropped)
                case RenameColumnEvent(_, dropped, new) if mysql_fold(dropped) != mysql_fold(new):
                    self._rename(source, mysql_fold(dropped), mysql_fold(new), added)
                    self._drop(source, dropped)
        if self.schema is None:
            plain = tuple(replace(column, default=None) for column in schema.columns)
            self.schema = TableSchema(plain, schema.primary_key)
        else:
            begun = {column for column in added if find_column(self.schema, column) is None}
            before = self.schema
            both, _ = _with_names(schema, self.named)
            merged = merge_schemas(self.name, before, source, both)
            names = [mysql_fold(column.name) for column in merged.columns]
            columns = (
                replace(column, default=added[name]) if name in begun else self._as_named(source, before, column)
                for name, column in zip(names, merged.columns, strict=True)
            )
            self.schema = TableSchema(tuple(columns), merged.primary_key)

    def _rename(self, source: TableId, dropped: str, new: str, added: dict[str, str | None]) -> None:
        """Note that the column `dropped` is now called `new`.

        The target gets the new column with the same values, unless it has it.
        """
        if self.schema is None or not self.upsert:
            return
        if dropped in added and find_column(self.schema, dropped) is None:
            added[new] = added.pop(dropped)
        elif find_column(self.schema, new) is None:
            named = dict(self.named)
            # A name that the column had only between two changes of this epoch is no column of the target.
            old = named.pop(dropped, dropped) if find_column(self.schema, dropped) is None else dropped
            self.named = {**named, new: old}
        elif self.named.get(new) != dropped:
            raise RulesRefusedError(
                f"{source}: column {dropped} was renamed to {new}, but {self.name}, where other tables are merged with "
                f"it, has a column of that name with other values for the rows of {source.table}. Read all of them "
                f"anew, which empties the target, with: raycdc tables resnapshot CONFIG {source}"
            )

    def _as_named(self, source: TableId, before: TableSchema, column: Column) -> Column:
        """Return a new column that gets the values of an existing column, with the type and default of that column.

        Return any other column unchanged.
        """
        name = mysql_fold(column.name)
        old = _first_name(name, self.named, before)
        if old is None or find_column(before, name) is not None:
            return column
        if _stored_as(merge_types(old.type, column.type)) != _stored_as(old.type):
            raise RulesRefusedError(
                f"{source}: column {old.name} was renamed to {column.name} and got another type, and rows of "
                f"{self.name}, where other tables are merged with it, cannot have their values under both. Read all of "
                f"them anew, which empties the target, with: raycdc tables resnapshot CONFIG {source}"
            )
        return replace(column, type=old.type, default=old.default)

    def _drop(self, source: TableId, column: str) -> None:
        known = self.dropped.get(str(source), frozenset())
        self.dropped = {**self.dropped, str(source): known | {mysql_fold(column)}}

    def _check_added(self, source: TableId, column: Column) -> None:
        """Check an added column that exists in the target.

        Rows of `source` must have the same values there as at the source.
        """
        index = None if self.schema is None else find_column(self.schema, column.name)
        if not self.upsert or self.schema is None or index is None:
            return
        known = self.schema.columns[index]
        dropped: frozenset[str] = frozenset().union(*self.dropped.values(), self.named)
        if known.default == column.default and mysql_fold(column.name) not in dropped:
            return
        raise RulesRefusedError(
            f"{source}: column {column.name} was added, but {self.name}, where other tables are merged with it, has a "
            f"column of that name with other values for the rows of {source.table} (default {known.default}, here "
            f"{column.default}, or dropped or renamed before). Read all of them anew, which empties the target, with: "
            f"raycdc tables resnapshot CONFIG {source}"
        )

    def _emptied(self, source: TableId) -> RulesRefusedError:
        return RulesRefusedError(
            f"{source} was emptied, dropped or begins again, and its rows cannot be told from those of the other "
            f"tables merged into {self.name}. Read all of them anew with: raycdc tables resnapshot CONFIG {source}"
        )


def _with_names(schema: TableSchema, named: Mapping[str, str]) -> tuple[TableSchema, Mapping[str, str]]:
    """Return `schema` with the columns that `named` repeats under a second name, and the original column of each
    second name.
    """
    own = {mysql_fold(column.name): column for column in schema.columns}
    there = dict(own)
    for _ in named:
        there |= {new: there[old] for new, old in named.items() if new not in there and old in there}
    names = {new: column.name for new, column in there.items() if new not in own}
    more = (Column(new, there[new].type) for new in names)
    return replace(schema, columns=(*schema.columns, *more)), names


def _first_name(name: str, named: Mapping[str, str], before: TableSchema) -> Column | None:
    """Return the column of the target `before` whose values the new column `name` begins with."""
    for _ in named:
        name = named.get(name, name)
        if (index := find_column(before, name)) is not None:
            return before.columns[index]
    return None


def _steps(
    name: TableId, before: TargetSchema | None, schema: TableSchema, named: Mapping[str, str]
) -> list[SchemaChangeEvent]:
    """Return the changes that lead from the earlier target to `schema`."""
    if before is None or before.schema is None:
        return [CreateTableEvent(name, schema)]
    steps: list[SchemaChangeEvent] = []
    known = {column.name: column for column in before.schema.columns}
    for column in schema.columns:
        if column.name not in known:
            old = _first_name(mysql_fold(column.name), named, before.schema)
            if old is None:
                steps.append(AddColumnEvent(name, column))
            else:
                steps.append(AddColumnEvent(name, replace(column, default=None), values_of=old.name))
        elif _stored_as(known[column.name].type) != _stored_as(column.type):
            steps.append(AlterColumnTypeEvent(name, column.name, column.type, column.nullable))
    return steps


def _stored_as(logical: LogicalType) -> tuple[pa.DataType, tuple[int, int] | None]:
    """Return the type as a target stores it. A database has decimal columns for values that are text here."""
    return logical.arrow(), wide_decimal(logical)


def _names(tables: Collection[TableId]) -> str:
    return " and ".join(map(str, sorted(tables)))
