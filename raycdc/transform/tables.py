"""The transforms of a running pipeline: each table's transform, its present meaning, and whether the sink can take it.

Owned by the epoch loop (`raycdc.epochs.works`) and asked by `check` and `plan`; resolving a schema for the first time
asks Spark, afterwards the answer is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from raycdc.errors import ConfigError, SchemaError
from raycdc.model import META_COLUMNS, TableId, TableSchema
from raycdc.model.layout import ANY_LAYOUT, TableLayout
from raycdc.model.mask import Masks
from raycdc.model.selector import plain_name
from raycdc.model.transform import UNCHANGED, Transform, Transforms
from raycdc.schema.apply import find_column
from raycdc.schema.events import SchemaChangeEvent
from raycdc.transform.changes import transformed_changes
from raycdc.transform.masked import masked_changes, masked_schema
from raycdc.transform.naming import Names, Naming, names_of_changes, renamed, renamed_changes
from raycdc.transform.plain import PlainResolver
from raycdc.transform.resolved import CONSTANT_META, ResolvedTransform, Resolver


@dataclass(frozen=True, slots=True)
class TransformUse:
    """The facts about the sink that transforms depend on.

    `upsert`: the sink updates rows. `no_proof`: the reason why it cannot find out that a key is there already; empty
    where it can. `order_by`: the column that orders the changes of a key, if any. `leaves_out`: rows on which an
    expression fails are left out. `no_layout`: the reason why a target with some columns cannot have the layout that is
    asked for; empty where it can. `adopts`: targets may have had rows of somebody else.
    """

    upsert: bool = False
    no_proof: str = ""
    order_by: str = ""
    leaves_out: bool = False
    no_layout: Callable[[TableLayout, TableSchema], str] = lambda _, __: ""
    adopts: bool = False


@dataclass(slots=True)
class TransformedTables:
    """See the module's docstring."""

    transforms: Transforms = field(default_factory=Transforms)
    resolver: Resolver = field(default_factory=PlainResolver)
    use: TransformUse = field(default_factory=TransformUse)
    masks: Masks = field(default_factory=Masks)
    naming: Naming = field(default_factory=Naming)
    #: Called with the columns of a table that have another name in its targets, before any row is written under it.
    on_names: Callable[[TableId, Names], None] = lambda _, __: None
    _known: dict[tuple[TableId, str], ResolvedTransform | None] = field(default_factory=dict)
    #: The earlier answers, because every epoch asks for every table, and a fingerprint costs some 100 microseconds.
    _last: dict[TableId, tuple[TableSchema, ResolvedTransform | None]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.transforms or self.masks)

    def identity(self, table: TableId) -> str:
        """A text that differs if the table's rows would differ; empty without a transform and masks."""
        transform = self.transforms.of(table)
        parts = ["" if transform is None else transform.identity().removeprefix(UNCHANGED), self.masks.identity(table)]
        return "+".join(parts) if parts[1] else parts[0]

    def read(
        self, table: TableId, schema: TableSchema, changes: Sequence[SchemaChangeEvent] = ()
    ) -> tuple[TableSchema, list[SchemaChangeEvent]]:
        """The table as readers wrote its rows: masked. `ConfigError` or `SchemaError` where its
        masks are impossible.
        """
        if not self.masks:
            return schema, list(changes)
        return masked_schema(table, schema, self.masks), masked_changes(table, changes, self.masks)

    def resolved(self, table: TableId, schema: TableSchema) -> ResolvedTransform | None:
        """The transform of `table`, read with `schema`, and with the names that its targets can hold; None where rows
        are as they were read. Raises `SchemaError` or `ConfigError`.
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
        """`changes` of the table, which led to `schema`, for its transformed rows, which looked like `before` (None:
        unknown). Raises what `resolved` does.
        """
        resolved = self.resolved(table, schema)
        made = list(changes) if resolved is None else transformed_changes(resolved, before, changes)
        return renamed_changes(made, self.naming.of(table, names_of_changes(made)))

    def _resolve(self, table: TableId, schema: TableSchema) -> ResolvedTransform | None:
        transform, resolved = self.transforms.of(table), None
        if transform is not None:
            place = self.transforms.place(table)
            resolved = self.resolver.resolve(table, transform, schema, place)
            self._check(resolved, place)
        shown = schema if resolved is None else resolved.schema
        names = self.naming.names(table, [column.name for column in shown.columns], shown.primary_key)
        if not names:
            return resolved
        self.on_names(table, names)
        everything = Transform(table=plain_name(table))
        return renamed(resolved or PlainResolver().resolve(table, everything, schema, "sink.invalid_names"), names)

    def derived(self, resolved: ResolvedTransform) -> bool:
        """Whether rows of the table have to be computed, and not only viewed."""
        return resolved.derived(upsert=self.use.upsert)

    def _check(self, resolved: ResolvedTransform, place: str) -> None:
        where = f"{place}: {resolved.table}"
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
        if self.use.upsert and resolved.keyed_anew and transform.soft:
            raise ConfigError(
                f'{where}: primary_keys with on_delete = "soft": a deleted row would keep its key, and whether the '
                "next row with it is another one cannot be told. Leave one of them out."
            )
        if self.use.upsert and resolved.keyed_anew and self.use.no_proof:
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
        """`ConfigError` where a row that is left out cannot be the deletion of its key. `row` says which ones are."""
        why = ""
        if self.use.order_by:
            why = f"{row} would leave an older one of its key in place, as with source.order_by nothing is deleted"
        elif self.use.upsert and resolved.transform.soft:
            why = f'on_delete = "soft" keeps the row that is deleted, and {row} may never have been there to be marked'
        elif self.use.upsert and resolved.keyed_anew:
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
    """The layout that the transforms of `sources` ask for. `ConfigError` if they do not ask for the same."""
    asked = {source: transforms[source].layout if source in transforms else ANY_LAYOUT for source in sources}
    first = next(iter(asked.values()), ANY_LAYOUT)
    if other := next((source for source, layout in asked.items() if layout != first), None):
        raise ConfigError(
            f"transform: {sources[0]} and {other} both go to {target}, with different partition_by or table_options. "
            "Give both the same."
        )
    return first
