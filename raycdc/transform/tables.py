"""The transforms of a running pipeline: they are resolved for each table's schema, and checked against the sink.

Owned by the epoch loop (`raycdc.delivery.targets.commit_planner`) and used by `check` and `plan`. Spark resolves a
transform for a schema once; later calls return the same result.

`transformed_changes` turns schema changes of a table into changes of the transformed rows:

| a change of the table | is for its transformed rows |
|---|---|
| a column is added, and ``*`` includes it | the same, before the columns that stand behind ``*`` |
| … and ``* EXCEPT`` leaves it out, or there is no ``*`` | nothing |
| a column is dropped, renamed, or added under a name that expressions use | refused: their meaning would change |
| … another one, which ``*`` includes | the same |
| a column's type changes | the same, and a change of the type of columns that are computed from it |
| a column moves | the same, if ``*`` includes it |
| the key changes | the same, with the columns' new names; nothing with ``primary_keys`` |
| the table is emptied, dropped, renamed, commented on | the same |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from raycdc.errors import ConfigError, SchemaError
from raycdc.model import META_COLUMNS, Column, TableId, TableSchema
from raycdc.model.column_names import spark_fold
from raycdc.model.evolution.apply import find_column
from raycdc.model.evolution.events import (
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
from raycdc.model.rules.layout import ANY_LAYOUT, TableLayout
from raycdc.model.rules.mask import Masks
from raycdc.model.rules.selector import plain_name
from raycdc.model.rules.transform import UNCHANGED, Transform, Transforms
from raycdc.model.types import keeps_meaning
from raycdc.transform.masks import masked_changes, masked_schema
from raycdc.transform.naming import Names, Naming, names_of_changes, renamed, renamed_changes
from raycdc.transform.resolved import CONSTANT_META, PlainResolver, ResolvedTransform, TransformResolver, is_plain
from raycdc.transform.target_rules import KEEP_ROWS, needs_row_before


def transformed_changes(
    resolved: ResolvedTransform, before: TableSchema | None, changes: Sequence[SchemaChangeEvent]
) -> list[SchemaChangeEvent]:
    """Return `changes` of the table as changes of its transformed rows.

    `resolved` is the transform resolved for the schema after the changes. `before` is the transformed schema before the
    changes (None: unknown). Raises `SchemaError` for a change of columns that expressions name.
    """
    made: list[SchemaChangeEvent] = []
    created = False
    for change in changes:
        match change:
            case CreateTableEvent(table, _, comment):
                # The resolved schema already includes later changes of the epoch.
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
                if not created:
                    _check_means_the_same(resolved, change)
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
    return any(column.flows and spark_fold(column.stored) == spark_fold(name) for column in resolved.columns)


def _check_unused(resolved: ResolvedTransform, change: SchemaChangeEvent, *names: str) -> None:
    used = [name for name in names if spark_fold(name) in resolved.named]
    if used:
        raise SchemaError(
            f"{change.table}: {change.type} of column {used[0]!r}, which the table's transform names: its rows would "
            "mean something else from here on. Change the transform or the table, then read it anew with: "
            f"raycdc tables resnapshot CONFIG {change.table}"
        )


def _check_means_the_same(resolved: ResolvedTransform, change: AlterColumnTypeEvent) -> None:
    """Raise `SchemaError` for a new type by which an expression, or the filter, would mean something else."""
    used = spark_fold(change.name) in resolved.uses.columns
    if used and change.was is not None and not keeps_meaning(change.was, change.new_type):
        raise SchemaError(
            f"{change.table}: column {change.name!r}, which the table's transform computes with, was "
            f"{change.was.spark()} and is {change.new_type.spark()}: its rows would mean something else from here on. "
            f"Read the table anew with: raycdc tables resnapshot CONFIG {change.table}"
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
    """Return type changes for the columns whose type changed, other than those of ``*``."""
    if before is None:
        return []
    changed: list[SchemaChangeEvent] = []
    for column, shown in zip(resolved.columns, resolved.schema.columns, strict=False):
        index = None if column.flows else find_column(before, column.name)
        if index is not None and before.columns[index].type.arrow() != column.type.arrow():
            changed.append(AlterColumnTypeEvent(resolved.table, column.name, column.type, shown.nullable))
    return changed


@dataclass(frozen=True, slots=True)
class TransformUse:
    """The properties of the sink on which the checks of transforms depend.

    `upsert` is True if the sink updates rows. `no_proof` is the reason why the sink cannot detect that a key already
    exists; empty if it can. `order_by` is the column that orders the changes of a key; empty if the log does.
    `leaves_out` is True if rows on which an expression fails are left out. `no_layout` returns the reason why a target
    with the given columns cannot have the requested layout; empty if it can. `adopts` is True if targets may have rows
    of other writers. `why_key_only` is the reason why a change may have only the key of the row before it; empty if
    every change has the whole row. `settings` are the settings of the sessions that compute expressions
    (`raycdc.transform.expression_settings`); empty: the defaults.
    """

    upsert: bool = False
    no_proof: str = ""
    order_by: str = ""
    leaves_out: bool = False
    no_layout: Callable[[TableLayout, TableSchema], str] = lambda _, __: ""
    adopts: bool = False
    why_key_only: str = ""
    settings: str = ""


@dataclass(slots=True)
class TransformedTables:
    """The transforms, masks and names of all tables, with the resolved results; see the module's docstring."""

    transforms: Transforms = field(default_factory=Transforms)
    resolver: TransformResolver = field(default_factory=PlainResolver)
    use: TransformUse = field(default_factory=TransformUse)
    masks: Masks = field(default_factory=Masks)
    naming: Naming = field(default_factory=Naming)
    #: Called with the names that columns of a table get in its targets, before any row is written with them.
    on_names: Callable[[TableId, Names], None] = lambda _, __: None
    _known: dict[tuple[TableId, str], ResolvedTransform | None] = field(default_factory=dict)
    #: The last result of each table. Each epoch needs the results of all tables, and computing a fingerprint takes 100
    #: microseconds.
    _last: dict[TableId, tuple[TableSchema, ResolvedTransform | None]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.transforms or self.masks)

    def identity(self, table: TableId) -> str:
        """Return a text that changes if the table's rows would change; empty without a transform and masks."""
        transform = self.transforms.of(table)
        parts = ["" if transform is None else transform.identity().removeprefix(UNCHANGED), self.masks.identity(table)]
        if transform is not None and not is_plain(transform) and self.use.settings:
            parts[0] += f"@{self.use.settings}"
        return "+".join(parts) if parts[1] else parts[0]

    def read(
        self, table: TableId, schema: TableSchema, changes: Sequence[SchemaChangeEvent] = ()
    ) -> tuple[TableSchema, list[SchemaChangeEvent]]:
        """Return the table's schema and changes after masking. Readers wrote its rows in this form.

        Raises `ConfigError` or `SchemaError` if its masks are impossible.
        """
        if not self.masks:
            return schema, list(changes)
        return masked_schema(table, schema, self.masks), masked_changes(table, changes, self.masks)

    def resolved(self, table: TableId, schema: TableSchema) -> ResolvedTransform | None:
        """Return the transform of `table`, resolved for `schema`, with the names that its targets can hold.

        Returns None if rows stay unchanged. Raises `SchemaError` or `ConfigError`.
        """
        last = self._last.get(table)
        if last is not None and last[0] is schema:
            return last[1]
        version = (table, schema.fingerprint())
        if version not in self._known:
            self._known[version] = self._resolve(table, schema)
        self._last[table] = (schema, self._known[version])
        return self._known[version]

    def changes(
        self, table: TableId, schema: TableSchema, before: TableSchema | None, changes: Sequence[SchemaChangeEvent]
    ) -> list[SchemaChangeEvent]:
        """Return `changes` of the table as changes of its transformed rows.

        `schema` is the table's schema after the changes, and `before` the transformed schema before them (None:
        unknown). Raises the errors of `resolved`.
        """
        resolved = self.resolved(table, schema)
        made = list(changes) if resolved is None else transformed_changes(resolved, before, changes)
        return renamed_changes(made, self.naming.of(table, names_of_changes(made)))

    def _resolve(self, table: TableId, schema: TableSchema) -> ResolvedTransform | None:
        transform, resolved = self.transforms.of(table), None
        if transform is not None:
            key_path = self.transforms.key_path(table)
            resolved = self.resolver.resolve(table, transform, schema, key_path)
            self._check(resolved, key_path)
        shown = schema if resolved is None else resolved.schema
        names = self.naming.names(table, [column.name for column in shown.columns], shown.primary_key)
        if not names:
            return resolved
        self.on_names(table, names)
        everything = Transform(table=plain_name(table))
        return renamed(resolved or PlainResolver().resolve(table, everything, schema, "sink.invalid_names"), names)

    def derived(self, resolved: ResolvedTransform) -> bool:
        """Return True if rows of the table must be computed, so that a view of the stored rows is not enough."""
        return resolved.derived(upsert=self.use.upsert)

    def _check(self, resolved: ResolvedTransform, key_path: str) -> None:
        where = f"{key_path}: {resolved.table}"
        transform = resolved.transform
        if resolved.layout and (problem := self.use.no_layout(resolved.layout, resolved.schema)):
            raise ConfigError(f"{where}: {problem}")
        varying = sorted((resolved.uses.meta | resolved.uses.filter_meta) - set(CONSTANT_META))
        if not self.use.upsert and varying:
            raise SchemaError(
                f"{where}: a before-image would not equal the after-image before it with {', '.join(varying)} in a "
                'column. A changelog has the metadata columns anyway; or use sink.write = "upsert".'
            )
        if not self.use.upsert and transform.soft:
            raise ConfigError(
                f'{where}: on_delete = "soft" updates the row that is deleted, and a changelog keeps all of them, '
                'deletions as -D. Use sink.write = "upsert", or leave it out.'
            )
        if self.use.upsert and resolved.has_new_key and transform.soft:
            raise ConfigError(
                f'{where}: primary_keys with on_delete = "soft": a deleted row would keep its key, and whether the '
                "next row with it is another one cannot be told. Leave one of them out."
            )
        if self.use.upsert and resolved.has_new_key and self.use.no_proof:
            raise ConfigError(
                f"{where}: primary_keys: the sink must find out whether two rows have the same key, and "
                f"{self.use.no_proof}"
            )
        if self.use.upsert and resolved.source.primary_key and not resolved.schema.primary_key:
            missing = ", ".join(resolved.source.primary_key)
            raise SchemaError(
                f"{where}: the projection does not keep the key ({missing}) as it is, but updated rows are found by "
                f"it. "
                "Add its columns, or name other ones in primary_keys."
            )
        if self.use.leaves_out and (resolved.computed or transform.filter):
            row = "a row that pipeline.on_bad_record leaves out"
            self._check_left_out(resolved, where, row, 'Use on_bad_record = "fail"')
        key = resolved.source.primary_key
        if self.use.why_key_only and key and (why := needs_row_before(transform, key, upsert=self.use.upsert)):
            raise ConfigError(f"{where}: {why}, which a change may lack, because {self.use.why_key_only}. {KEEP_ROWS}")
        if self.use.upsert and self.use.order_by and transform.filter:
            raise ConfigError(
                f"{where}: filter: with source.order_by nothing is deleted, so a row whose newer version the filter "
                "does not want would stay in the target. Leave one of them out."
            )
        if resolved.drops:
            row = 'a row without a document, which missing = "drop" leaves out,'
            self._check_left_out(resolved, where, row, 'Use missing = "null"')
        by = find_column(resolved.source, self.use.order_by) if self.use.order_by else None
        if by is not None and self.use.order_by not in [
            c.name for c in resolved.columns if c.stored == resolved.source.columns[by].name
        ]:
            raise ConfigError(f"{where}: the projection must keep {self.use.order_by}, which source.order_by goes by.")
        assert not set(resolved.schema.primary_key) & set(META_COLUMNS), resolved

    def _check_left_out(self, resolved: ResolvedTransform, where: str, row: str, instead: str) -> None:
        """Raise `ConfigError` if leaving out a row cannot delete its key in the target.

        In the message, `row` describes the rows that are left out, and `instead` describes the solution.
        """
        why = ""
        if self.use.order_by:
            why = f"{row} would leave an older one of its key in place, as with source.order_by nothing is deleted"
        elif self.use.upsert and resolved.transform.soft:
            why = f'on_delete = "soft" keeps the row that is deleted, and {row} may never have been there to be marked'
        elif self.use.upsert and resolved.has_new_key:
            why = f"with primary_keys, which row of the target {row} would delete cannot be told"
        elif self.use.upsert and self.use.adopts:
            why = (
                f'with pipeline.on_existing = "merge" the target may have the key of {row}, and would keep its own row'
            )
        if why:
            raise ConfigError(f"{where}: {why}. {instead}.")


def layout_of(
    target: TableId, transforms: Mapping[TableId, ResolvedTransform], sources: Sequence[TableId]
) -> TableLayout:
    """Return the layout that the transforms of `sources` request.

    Raises `ConfigError` if they request different ones.
    """
    asked = {source: transforms[source].layout if source in transforms else ANY_LAYOUT for source in sources}
    first = next(iter(asked.values()), ANY_LAYOUT)
    if other := next((source for source, layout in asked.items() if layout != first), None):
        raise ConfigError(
            f"transform: {sources[0]} and {other} both go to {target}, with different partition_by or table_options. "
            "Give both the same."
        )
    return first
