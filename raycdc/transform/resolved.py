"""A transform resolved for the columns of a table: the columns of the result, the origin of their values, and the
lookups.

A `TransformResolver` makes it: `PlainResolver` if columns are only chosen, renamed and added, and Spark's analyzer
otherwise (`raycdc.spark.transforms`). `finished` checks the results of both by the same rules. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, assert_never

from raycdc.errors import ConfigError, SchemaError
from raycdc.model import META_COLUMNS, Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.batch import reserved_column
from raycdc.model.column_names import find_name, spark_fold
from raycdc.model.evolution.apply import find_column
from raycdc.model.rules.layout import ANY_LAYOUT, TableLayout
from raycdc.model.rules.transform import Constant, Expression, Lookup, LookupColumn, Renamed, Star, Transform
from raycdc.model.view import Output, Projection, constant_type


@dataclass(frozen=True, slots=True)
class ResolvedColumn:
    """A column of the result.

    Its values are those of a `stored` column (of the table, of the metadata, or of a lookup), a `constant`, or computed
    by `sql`. `flows` is True if the column comes from ``*`` in the projection.
    """

    name: str
    type: LogicalType
    nullable: bool = True
    stored: str = ""
    constant: int | str | bool | None = None
    sql: str = ""
    flows: bool = False
    default: str | None = None


#: The prefix of the names of columns that a lookup adds to a segment.
LOOKED_UP = "_raycdc_looked_up_"

_WHOLE = frozenset({TypeKind.INT8, TypeKind.INT16, TypeKind.INT32, TypeKind.INT64, TypeKind.UINT64, TypeKind.YEAR})
#: The types of fields whose values a text column of a MongoDB source may hold, by native type. The text of a decimal128
#: can be compared with no field.
_OWN = {"objectId": "objectId", "binData(4)": "uuid", "decimal128": ""}
#: Native types of bytes that contain BSON of any type.
_MIXED = frozenset({"bson", "bson document"})
_TEXT = frozenset({TypeKind.STRING, TypeKind.ENUM, TypeKind.SET})


@dataclass(frozen=True, slots=True)
class ResolvedLookup:
    """A lookup for rows of one table.

    `key` is its key column in the result of the table's transform. `key_type` is the type of the field of documents
    that is compared with `key`. `first` is the index of its first column among the columns that all lookups add.
    """

    lookup: Lookup
    key: str
    key_type: str
    first: int

    def stored(self) -> Iterator[tuple[str, LookupColumn]]:
        """Yield the added columns with the names that they have in segments."""
        for number, column in enumerate(self.lookup.columns, start=self.first):
            yield f"{LOOKED_UP}{number}", column


def resolved_lookups(where: str, lookups: Sequence[Lookup], columns: Sequence[ResolvedColumn]) -> list[ResolvedLookup]:
    """Return `lookups` for rows with `columns`. Raises `SchemaError` for a lookup without a usable key column."""
    there = {spark_fold(column.name): column for column in columns}
    found: list[ResolvedLookup] = []
    first = 0
    for lookup in lookups:
        at = f"{where}: {lookup.key_path}.on"
        column = there.get(spark_fold(lookup.key))
        if column is None:
            known = ", ".join(one.name for one in columns)
            raise SchemaError(f"{at}: there is no column {lookup.key!r}. The table's rows have {known}.")
        if column.stored in META_COLUMNS or not (column.stored or column.sql):
            raise SchemaError(f"{at}: {column.name!r} is no column of the table, and nothing is looked up by it.")
        key_type = lookup_key_type(column.type, lookup.key_type)
        if not key_type:
            asked = f" as {lookup.key_type}" if lookup.key_type else ""
            raise SchemaError(
                f"{at}: {column.name!r}, a column of type {column.type.kind}, cannot be looked up by{asked}. Whole "
                "numbers, texts and bytes can; a text is a string, an objectId or a uuid (key_type)."
            )
        found.append(ResolvedLookup(lookup, column.name, key_type, first))
        first += len(lookup.columns)
    return found


def lookup_key_type(logical: LogicalType, asked: str) -> str:
    """Return the type of a documents' field that can be compared with a column of type `logical`; empty if none can."""
    if logical.kind in _WHOLE or (logical.kind is TypeKind.BIT and logical.length <= 63):
        return "long" if asked in ("", "long") else ""
    if logical.kind in _TEXT:
        known = asked or _OWN.get(logical.native, "string")
        return known if known != "long" else ""
    if logical.kind is TypeKind.BINARY and not asked and logical.native not in _MIXED:
        return logical.native if logical.native.startswith("binData(") else "binData(0)"
    return ""


#: Metadata columns with one value per table. The values of all other metadata columns differ from change to change.
CONSTANT_META = ("_db", "_table")

#: The types of the metadata columns in expressions.
META_LOGICAL: dict[str, LogicalType] = {
    name: LogicalType(TypeKind.INT64 if name in ("_seq", "_ts_ms") else TypeKind.STRING) for name in META_COLUMNS
}

#: The prefix of the names of computed columns in a derived segment.
COMPUTED = "_raycdc_computed_"


@dataclass(frozen=True, slots=True)
class Uses:
    """The columns (in lower case) that a transform uses.

    `columns` are columns of the table. `meta` are the metadata columns that the projection uses, and `filter_meta` are
    those that the filter uses.
    """

    columns: frozenset[str] = frozenset()
    meta: frozenset[str] = frozenset()
    filter_meta: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ResolvedTransform:
    """A transform resolved for one table; see the module's docstring.

    `source` is the schema of the original rows, and `schema` that of the resulting rows. `layout` is the requested
    layout of the target, in terms of columns of `schema`. `lookups` are joined with the resulting rows.
    """

    table: TableId
    transform: Transform
    source: TableSchema
    columns: tuple[ResolvedColumn, ...]
    uses: Uses
    schema: TableSchema
    layout: TableLayout = ANY_LAYOUT
    lookups: tuple[ResolvedLookup, ...] = ()

    @property
    def named(self) -> frozenset[str]:
        """Return the table's columns (in lower case) that expressions, lookups, or the target's partitions use."""
        by = {*self.layout.columns, *(lookup.key for lookup in self.lookups)}
        return self.uses.columns | {spark_fold(c.stored) for c in self.columns if c.name in by and c.stored}

    @property
    def computed(self) -> tuple[ResolvedColumn, ...]:
        return tuple(column for column in self.columns if column.sql)

    @property
    def made(self) -> frozenset[str]:
        """Return the result's columns that are not the table's own column of that name."""
        deleted = {self.transform.deleted_column} if self.transform.soft else set()
        return frozenset({column.name for column in self.columns if column.stored != column.name} | deleted)

    @property
    def drops(self) -> bool:
        """Return True if a lookup leaves out rows without a document."""
        return any(one.lookup.drop for one in self.lookups)

    @property
    def has_new_key(self) -> bool:
        """Return True if the rows' key differs from the table's."""
        return bool(self.transform.primary_keys) and self.schema.primary_key != _kept_key(self.source, self.columns)

    @property
    def owner(self) -> tuple[str, ...]:
        """Return the columns that identify a row of the table, if the transform gives rows another key: the table's
        key, or all columns if it has no key.
        """
        if not self.has_new_key:
            return ()
        return self.source.primary_key or tuple(column.name for column in self.source.columns)

    def derived(self, *, upsert: bool) -> bool:
        """Return True if rows must be computed, so that a view of the stored rows is not enough."""
        return bool(self.computed or self.transform.filter or (self.has_new_key and not upsert))

    def projection(self) -> Projection:
        """Return the projection from stored rows, with the computed columns if there are any, to rows of `schema`."""
        outputs = []
        numbers = iter(range(len(self.columns)))
        for column in self.columns:
            stored = f"{COMPUTED}{next(numbers)}" if column.sql else column.stored
            outputs.append(Output(column.name, stored, column.constant))
        return Projection(tuple(outputs), self.transform.deleted_column if self.transform.soft else "")

    def plain_view(self) -> bool:
        """Return True if the rows are the table's own, column by column."""
        names = [column.name for column in self.source.columns]
        return not self.transform.soft and [c.stored for c in self.columns] == names == [c.name for c in self.columns]


class TransformResolver(Protocol):
    """Resolves a transform for a table's columns. May block."""

    def resolve(self, table: TableId, transform: Transform, schema: TableSchema, key_path: str) -> ResolvedTransform:
        """Return the transform resolved for `schema`.

        Raises a `SchemaError` with `key_path`, table, column and position if `schema` does not allow the transform.
        """


def finished(
    table: TableId,
    transform: Transform,
    schema: TableSchema,
    columns: Sequence[ResolvedColumn],
    *,
    uses: Uses,
    key_path: str,
) -> ResolvedTransform:
    """Return the transform with the resolved `columns` and its lookups.

    Raises `SchemaError` if no target can hold the result.
    """
    where = f"{key_path}: {table}"
    lookups = resolved_lookups(where, transform.lookups, columns)
    columns = [*columns, *(ResolvedColumn(c.name, c.type, stored=n) for one in lookups for n, c in one.stored())]
    names = [column.name for column in columns]
    if transform.soft:
        names.append(transform.deleted_column)
    seen: set[str] = set()
    for name in names:
        if spark_fold(name) in META_COLUMNS:
            raise SchemaError(f"{where}: {name} needs a name of its own: {name} AS …")
        if spark_fold(name) in seen:
            raise SchemaError(f"{where}: the column {name!r} is in the result twice. Give one another name with AS.")
        seen.add(spark_fold(name))
    if own := next((c.name for c in schema.columns if spark_fold(c.name).startswith((COMPUTED, LOOKED_UP))), ""):
        raise SchemaError(f"{where}: a table with a column {own!r} cannot be transformed: the name is used within.")
    if reserved := reserved_column(name for name in names if name != transform.deleted_column):
        raise SchemaError(f"{where}: {reserved}")
    found = [Column(c.name, c.type, c.nullable, c.default) for c in columns]
    if transform.soft:
        found.append(Column(transform.deleted_column, LogicalType(TypeKind.BOOLEAN)))
    key = _override(where, transform, columns) if transform.primary_keys else _kept_key(schema, columns)
    if invalid := sorted(uses.filter_meta - set(CONSTANT_META)):
        raise SchemaError(
            f"{where}: the filter cannot use {', '.join(invalid)}, because a row's next change has another value in "
            f"it: the "
            "row could pass the filter once and never leave the target again."
        )
    keyed = tuple(Column(c.name, c.type, c.nullable and c.name not in key, c.default) for c in found)
    result = TableSchema(keyed, key)
    layout = _layout(where, transform.layout, result)
    return ResolvedTransform(table, transform, schema, tuple(columns), uses, result, layout, tuple(lookups))


def star_columns(where: str, star: Star, schema: TableSchema) -> list[ResolvedColumn]:
    """Return the columns for which ``*`` stands."""
    there = [column.name for column in schema.columns]
    left_out = {name: find_name(name, there, spark_fold) for name in star.left_out}
    if unknown := next((name for name, match in left_out.items() if match is None), None):
        raise unknown_column(where, unknown, star.at, schema)
    kept = [column for column in schema.columns if column.name not in left_out.values()]
    return [ResolvedColumn(c.name, c.type, c.nullable, stored=c.name, flows=True, default=c.default) for c in kept]


def unknown_column(where: str, name: str, at: int, schema: TableSchema) -> SchemaError:
    """Return the error for a column that is named and does not exist."""
    known = ", ".join(column.name for column in schema.columns)
    return SchemaError(f"{where}: projection, character {at + 1}: there is no column {name!r}. The table has {known}.")


def _override(where: str, transform: Transform, columns: Sequence[ResolvedColumn]) -> tuple[str, ...]:
    there = {spark_fold(column.name): column for column in columns}
    key = []
    for name in transform.primary_keys:
        column = there.get(spark_fold(name))
        if column is None:
            raise SchemaError(
                f"{where}: primary_keys names {name!r}, which the projection does not give. Add it there."
            )
        if column.stored in META_COLUMNS and column.stored not in CONSTANT_META:
            raise SchemaError(
                f"{where}: primary_keys names {name!r}, which is {column.stored}: any two changes differ in it."
            )
        if column.stored.startswith(LOOKED_UP):
            raise SchemaError(
                f"{where}: primary_keys names {name!r}, which is looked up, and may be another value next time."
            )
        key.append(column.name)
    return tuple(key)


def _layout(where: str, asked: TableLayout, result: TableSchema) -> TableLayout:
    """Return the `asked` layout with its columns spelled as in `result`."""
    there = {spark_fold(column.name): column.name for column in result.columns}
    for field in asked.partitions:
        if spark_fold(field.column) not in there:
            known = ", ".join(there.values())
            raise SchemaError(
                f"{where}: partition_by names {field.column!r}, which the projection does not give. It gives {known}."
            )
    fields = (replace(field, column=there[spark_fold(field.column)]) for field in asked.partitions)
    return replace(asked, partitions=tuple(fields))


def _kept_key(schema: TableSchema, columns: Sequence[ResolvedColumn]) -> tuple[str, ...]:
    """Return the table's key under the names that its columns have in the result; empty if one of them is not kept."""
    names: dict[str, str] = {}
    for column in columns:
        if column.stored:
            names.setdefault(column.stored, column.name)
    return tuple(names[name] for name in schema.primary_key) if set(schema.primary_key) <= names.keys() else ()


def is_plain(transform: Transform) -> bool:
    """Return True if the transform can be resolved and applied without Spark."""
    return not transform.filter and not any(isinstance(item, Expression) for item in transform.items)


def needs_spark(transform: Transform) -> bool:
    """Return True if a run needs Spark to apply the transform."""
    return not is_plain(transform) or bool(transform.udfs)


class PlainResolver:
    """A `TransformResolver` for transforms that need no Spark. Raises `ConfigError` with advice for others."""

    def resolve(self, table: TableId, transform: Transform, schema: TableSchema, key_path: str) -> ResolvedTransform:
        if not is_plain(transform):
            raise ConfigError(
                f"{key_path}: Spark computes its columns and filters, and --local runs without it. Run it without "
                "--local."
            )
        where = f"{key_path}: {table}"
        columns: list[ResolvedColumn] = []
        used: set[str] = set()
        for item in transform.items:
            assert not isinstance(item, Expression), item
            if isinstance(item, Star):
                columns += star_columns(where, item, schema)
                used |= {spark_fold(name) for name in item.left_out}
            else:
                columns.append(plain_column(where, item, schema))
                used.add(spark_fold(columns[-1].stored))
        uses = Uses(frozenset(used - META_LOGICAL.keys() - {""}), frozenset(used & META_LOGICAL.keys()))
        return finished(table, transform, schema, columns, uses=uses, key_path=key_path)


def plain_column(where: str, item: Renamed | Constant, schema: TableSchema) -> ResolvedColumn:
    """Return the column for `item`. Raises `SchemaError` if the table lacks it."""
    match item:
        case Constant(value, name):
            return ResolvedColumn(name, constant_type(value), nullable=False, constant=value)
        case Renamed(column, name) if spark_fold(column) in META_LOGICAL:
            there = spark_fold(column)
            return ResolvedColumn(name, META_LOGICAL[there], stored=there)
        case Renamed(column, name, at):
            index = find_column(schema, column)
            if index is None:
                raise unknown_column(where, column, at, schema)
            found = schema.columns[index]
            # A column without AS keeps the table's spelling.
            return ResolvedColumn(found.name if name == column else name, found.type, found.nullable, found.name)
        case _:
            assert_never(item)
