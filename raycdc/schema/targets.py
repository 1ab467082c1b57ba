"""The share of each target table in an epoch of the source tables that are routed to it. Pure.

Called by the epoch loop for each manifest, in order. A target that one source table goes to has that table's schema
and takes its changes as they are, under its own name.

A target of several tables has the merge of their schemas (`raycdc.schema.merge`), which only grows:

| a merged table | its target |
|---|---|
| comes, or gets a column that no other has | gets the columns it lacks, at the end, nullable |
| has a column of a wider type | gets the type that holds both |
| lacks a column of the others | its rows are null there |
| drops or renames a column | keeps it; rows written before keep their values, later ones have null |
| adds a column, with a constant default | gets the column with that default, in all rows that have no value |
| … that the target has with the same default, or both without one | has it already |
| … with another default, or that a table dropped before | refused, in upsert targets: whose rows get which value? |
| is emptied, dropped or begins again | refused, in upsert targets: its rows are among the others' |
| has another primary key | refused |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from raycdc.errors import RoutesRefusedError, RulesRefusedError
from raycdc.model import Column, LogicalType, TableId, TableSchema
from raycdc.model.routes import Router
from raycdc.model.types import wide_decimal
from raycdc.schema.apply import find_column
from raycdc.schema.events import (
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
from raycdc.schema.merge import merge_schemas

#: The tables of an epoch: their schema in it, and the changes that led to that schema.
Tables = Mapping[TableId, tuple[TableSchema, Sequence[SchemaChangeEvent]]]


@dataclass(frozen=True, slots=True)
class Target:
    """A target table as it is after some epoch.

    `sources` went into it so far. `schema` has its columns, each with the default it was added with, if any; None is
    for a table of a state that knew no routes. `dropped` are the columns (in lower case) that a source, by its name,
    does not have any more while the target keeps their values.
    """

    sources: tuple[TableId, ...]
    schema: TableSchema | None
    dropped: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def dropped_by(self, source: TableId) -> frozenset[str]:
        """The columns that rows of `source` had once, and have no more."""
        return self.dropped.get(str(source), frozenset())


@dataclass(frozen=True, slots=True)
class TargetEpoch:
    """One target's share of an epoch: the tables it comes from, the schema in force, and what leads to that.

    `beginning` are those of the tables that had nothing in the target before.
    """

    name: TableId
    sources: tuple[TableId, ...]
    schema: TableSchema
    changes: tuple[SchemaChangeEvent, ...]
    beginning: tuple[TableId, ...] = ()


def target_of(
    name: TableId, sources: Sequence[TableId], tables: Tables, before: Target | None, *, upsert: bool
) -> tuple[TargetEpoch, Target]:
    """The share of the target `name` in an epoch in which `sources` of its `tables` go there, and the target after
    the epoch. Raises `RulesRefusedError` for what a merged target cannot follow; `upsert` ones cannot follow all.
    """
    every = tuple(dict.fromkeys([*(before.sources if before else ()), *sources]))
    if len(every) == 1:
        return _alone(name, every[0], tables, before)
    return _merged(name, sources, tables, before, upsert=upsert)


def targets_of(
    tables: Tables, known: Mapping[TableId, Target], router: Router, *, upsert: bool
) -> list[tuple[TargetEpoch, Target]]:
    """`target_of` for all targets of the `tables` of one epoch; they were `known` before."""
    routed = routed_to(tables, router)
    return [target_of(name, sources, tables, known.get(name), upsert=upsert) for name, sources in routed.items()]


def routed_to(tables: Iterable[TableId], router: Router) -> dict[TableId, list[TableId]]:
    """The targets of `tables`, each with those that go there."""
    found: dict[TableId, list[TableId]] = {}
    for source in tables:
        for name in router.targets(source):
            found.setdefault(name, []).append(source)
    return found


def emptied(share: TargetEpoch) -> TargetEpoch:
    """`share`, and nothing of what is in its target already."""
    first = TruncateTableEvent(share.name), CreateTableEvent(share.name, share.schema)
    begins = CreateTableEvent, TruncateTableEvent, DropTableEvent
    return replace(share, changes=(*first, *(change for change in share.changes if not isinstance(change, begins))))


def changed_routes(known: Mapping[TableId, Collection[TableId]], router: Router) -> list[str]:
    """Sentences on source tables that went elsewhere than `router` says; `known` has the sources of each target.

    A target that a table's rows go to only from now on would lack all earlier ones.
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


def _alone(name: TableId, source: TableId, tables: Tables, before: Target | None) -> tuple[TargetEpoch, Target]:
    schema, changes = tables[source]
    defaults = {c.name: c.default for c in before.schema.columns} if before and before.schema else {}
    for event in changes:
        match event:
            case CreateTableEvent():
                defaults = {}
            case AddColumnEvent(_, column, _):
                defaults[column.name] = column.default
    share = TargetEpoch(name, (source,), schema, tuple(replace(change, table=name) for change in changes))
    columns = tuple(replace(column, default=defaults.get(column.name)) for column in schema.columns)
    return share, Target((source,), TableSchema(columns, schema.primary_key))


def _merged(
    name: TableId, sources: Sequence[TableId], tables: Tables, before: Target | None, *, upsert: bool
) -> tuple[TargetEpoch, Target]:
    if before is not None and before.schema is None:
        raise RoutesRefusedError(
            f"route: {_names([*before.sources, *sources])} would all go to {name}, but the state does not say what "
            f"columns that has. Read all of them anew with: raycdc tables resnapshot CONFIG {sources[0]}"
        )
    merger = _Merger(name, before.schema if before else None, before.dropped if before else {}, upsert)
    known = before.sources if before else ()
    for source in sources:
        schema, changes = tables[source]
        # Changes of a table before its first row here concern no row that is here.
        merger.add(source, schema, changes if source in known else ())
    assert merger.schema is not None
    every = tuple(dict.fromkeys([*known, *sources]))
    changes = (*merger.passed_on, *_steps(name, before, merger.schema))
    beginning = tuple(source for source in sources if source not in known)
    share = TargetEpoch(name, tuple(sources), merger.schema, changes, beginning)
    return share, Target(every, merger.schema, merger.dropped)


@dataclass(slots=True)
class _Merger:
    """A merged target while the tables of one epoch are added to it."""

    name: TableId
    schema: TableSchema | None
    dropped: Mapping[str, frozenset[str]]
    upsert: bool
    passed_on: tuple[SchemaChangeEvent, ...] = ()

    def add(self, source: TableId, schema: TableSchema, changes: Sequence[SchemaChangeEvent]) -> None:
        added: dict[str, str | None] = {}
        for event in changes:
            match event:
                case TruncateTableEvent() | DropTableEvent() if self.upsert:
                    raise self._emptied(source)
                case AlterPrimaryKeyEvent() | RenameTableEvent():
                    # No sink follows these, and each says so in its own words.
                    self.passed_on += (replace(event, table=self.name),)
                case AddColumnEvent(_, column, _):
                    self._check_added(source, column)
                    added[column.name.casefold()] = column.default
                case DropColumnEvent(_, gone):
                    self._drop(source, gone)
                case RenameColumnEvent(_, gone, new):
                    self._check_added(source, Column(new, schema.columns[0].type))
                    self._drop(source, gone)
        if self.schema is None:
            plain = tuple(replace(column, default=None) for column in schema.columns)
            self.schema = TableSchema(plain, schema.primary_key)
        else:
            begun = {column for column in added if find_column(self.schema, column) is None}
            merged = merge_schemas(self.name, self.schema, source, schema)
            names = [column.name.casefold() for column in merged.columns]
            columns = (
                replace(column, default=added[name]) if name in begun else column
                for name, column in zip(names, merged.columns, strict=True)
            )
            self.schema = TableSchema(tuple(columns), merged.primary_key)

    def _drop(self, source: TableId, column: str) -> None:
        known = self.dropped.get(str(source), frozenset())
        self.dropped = {**self.dropped, str(source): known | {column.casefold()}}

    def _check_added(self, source: TableId, column: Column) -> None:
        """An added column that is there: rows of `source` must have in the target what they have at the source now."""
        index = None if self.schema is None else find_column(self.schema, column.name)
        if not self.upsert or self.schema is None or index is None:
            return
        known = self.schema.columns[index]
        gone: frozenset[str] = frozenset().union(*self.dropped.values())
        if known.default == column.default and column.name.casefold() not in gone:
            return
        raise RulesRefusedError(
            f"{source}: column {column.name} was added, but {self.name}, where other tables are merged with it, has a "
            f"column of that name with other values for the rows of {source.table} (default {known.default}, here "
            f"{column.default}, or "
            "dropped before). Read all of them anew, which empties the target, with: raycdc tables resnapshot CONFIG "
            f"{source}"
        )

    def _emptied(self, source: TableId) -> RulesRefusedError:
        return RulesRefusedError(
            f"{source} was emptied, dropped or begins again, and its rows cannot be told from those of the other "
            f"tables merged into {self.name}. Read all of them anew with: raycdc tables resnapshot CONFIG {source}"
        )


def _steps(name: TableId, before: Target | None, schema: TableSchema) -> list[SchemaChangeEvent]:
    """The changes that lead from the earlier target to `schema`."""
    if before is None or before.schema is None:
        return [CreateTableEvent(name, schema)]
    steps: list[SchemaChangeEvent] = []
    known = {column.name: column for column in before.schema.columns}
    for column in schema.columns:
        if column.name not in known:
            steps.append(AddColumnEvent(name, column))
        elif _stored_as(known[column.name].type) != _stored_as(column.type):
            steps.append(AlterColumnTypeEvent(name, column.name, column.type, column.nullable))
    return steps


def _stored_as(logical: LogicalType) -> tuple[pa.DataType, tuple[int, int] | None]:
    """The type as a target stores it: a database has columns for decimals that are text here."""
    return logical.arrow(), wide_decimal(logical)


def _names(tables: Collection[TableId]) -> str:
    return " and ".join(map(str, sorted(tables)))
