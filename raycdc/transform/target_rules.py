"""Finds changes of a source table that its targets cannot follow, while the log is read. Pure, picklable. If the reader
of the log finds such a change, it parks the table at the statement, and the other tables go on
(`raycdc.source.tables.parking`). If the change were found only after its manifest was written, it would end the run at
every start. Without Spark, names are searched in the text of expressions. This search finds more names than an analyzer
would, for example names of functions, so a table may be parked needlessly. The parking is reported, and the table can
be resnapshotted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from raycdc.errors import ConfigError, SchemaError
from raycdc.model import LogicalType, TableId, TableSchema
from raycdc.model.column_names import spark_fold
from raycdc.model.evolution.events import (
    AddColumnEvent,
    DropColumnEvent,
    DropTableEvent,
    RenameColumnEvent,
    SchemaChangeEvent,
    TruncateTableEvent,
)
from raycdc.model.rules.mask import Masks
from raycdc.model.rules.names import NAMES, ROUTE_IT
from raycdc.model.rules.routes import Router
from raycdc.model.rules.transform import Constant, Expression, Renamed, Star, Transform, Transforms, unquoted
from raycdc.model.types import keeps_meaning
from raycdc.transform.masks import masked_schema
from raycdc.transform.naming import Names, Naming
from raycdc.transform.resolved import PlainResolver, is_plain, lookup_key_type

_TEXTS = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_NAME = re.compile(r"[^\W\d]\w*|`(?:[^`]|``)+`")


@dataclass(frozen=True, slots=True)
class TargetRules:
    """The rules by which targets follow a source table; see the module's docstring.

    `upsert` is True if targets hold one row per key. Changes whose type is in `left_out` reach no target; if `ignored`
    is True, no change of columns reaches a target. `naming` has the names that targets can hold. If `parks` is True, a
    table that targets cannot hold is parked; otherwise it ends the run. If `keeps_rows` is True, the state has a row
    store: Delta tables with the last row of each key, whose columns have the source's names. If `lost_rows_again` is
    True, a table is resnapshotted automatically if the log lacks rows of it (``pipeline.on_log_lost``). If
    `fixed_columns` is True, targets have columns of their own, which stay as they are if a change is left out.
    """

    transforms: Transforms = field(default_factory=Transforms)
    router: Router = field(default_factory=Router)
    upsert: bool = False
    left_out: frozenset[str] = frozenset()
    ignored: bool = False
    masks: Masks = field(default_factory=Masks)
    naming: Naming = field(default_factory=Naming)
    parks: bool = True
    keeps_rows: bool = False
    lost_rows_again: bool = False
    fixed_columns: bool = False

    def needs_row_before(self, table: TableId, key: Collection[str]) -> str:
        """Return why a change of the table needs more of the row before it than its key, with advice; empty if none
        does.
        """
        transform = self.transforms.of(table)
        if transform is None or self.keeps_rows:
            return ""
        why = needs_row_before(transform, key, upsert=self.upsert)
        return f"{self.transforms.key_path(table)}: {why}. {KEEP_ROWS}" if why else ""

    @property
    def gets_added(self) -> bool:
        """Return True if a column that the source adds is added to targets."""
        return not self.ignored and AddColumnEvent.type not in self.left_out

    def speaks_of(self, table: TableId, column: str) -> bool:
        """Return True if a transform or a mask of the table names the column, so that its values must stay in it."""
        transform = self.transforms.of(table)
        return self.masks.of(table, column) is not None or (
            transform is not None and spark_fold(column) in named(transform)
        )

    def shared(self, table: TableId, tables: Collection[TableId]) -> str:
        """Return the reason why `table`, one of `tables`, cannot be resnapshotted or emptied alone; empty if it can."""
        if not self.upsert:
            return ""
        for target in self.router.targets(table):
            others = sorted(str(one) for one in tables if one != table and target in self.router.targets(one))
            if others:
                more = f" and {len(others) - 3} more" if len(others) > 3 else ""
                return (
                    f"its rows in {target} cannot be told from those of {', '.join(others[:3])}{more}, which are "
                    f"merged there: read all of them anew with: raycdc tables resnapshot CONFIG {table}; or leave it "
                    "out (source.exclude)"
                )
        return ""

    def refusal(self, table: TableId, schema: TableSchema) -> str:
        """Return the reason why no target can hold the present table, with advice; empty if targets can.

        Expressions that need Spark are not checked.
        """
        for target in self.router.targets(table):
            if why := self.naming.rules.no_table(target):
                return f"{table}: {why}, or leave the table out (source.exclude)."
        if why := self.router.mixed(table):
            return f"{table}: {why}, or leave the table out (source.exclude)."
        if why := self._unhidden(table, schema):
            return why
        transform = self.transforms.of(table)
        if self.upsert and not schema.primary_key and (transform is None or not transform.primary_keys):
            return (
                f"{table} has no primary key, so an upsert target cannot tell its rows apart. Add a key to the table, "
                'leave it out (source.exclude), or set sink.write = "changelog".'
            )
        keeps = NAMES["delta"]
        if self.keeps_rows and (why := keeps.no_table(table)):
            return (
                f"{table}: {why.removesuffix(ROUTE_IT)}The rows that make a changelog full are kept in such a folder."
            )
        if self.keeps_rows and (invalid := next((c.name for c in schema.columns if keeps.no_column(c.name)), None)):
            return (
                f"{table}: column {invalid!r} {keeps.no_column(invalid)}, and the rows that make a changelog full are "
                'kept in Delta tables, which cannot hold it. Leave the column out, or use source.changelog = "upsert".'
            )
        try:
            self.names(table, schema)
        except SchemaError as cause:
            return f"{cause}, or leave the table out (source.exclude)."
        return ""

    def _unhidden(self, table: TableId, schema: TableSchema) -> str:
        """Return the reason why masks cannot hide the table's columns; empty if they can.

        Without this check, readers would fail at the first rows.
        """
        try:
            masked_schema(table, schema, self.masks)
        except ConfigError as cause:
            return (
                f"{cause} Or leave the table out (source.exclude). When it can be hidden, read it with: raycdc tables "
                f"resnapshot CONFIG {table}"
            )
        return ""

    def names(self, table: TableId, schema: TableSchema) -> Names:
        """Return the names that columns of the table's rows get in targets; none if only Spark can resolve the
        transform.

        Raises `SchemaError` if a name cannot be replaced.
        """
        transform = self.transforms.of(table)
        if transform is not None and not is_plain(transform):
            return {}
        try:
            shown = masked_schema(table, schema, self.masks)
            if transform is not None:
                shown = PlainResolver().resolve(table, transform, shown, "").schema
        except (ConfigError, SchemaError):
            return {}  # The checks of transforms and masks report the error.
        return self.naming.names(table, [column.name for column in shown.columns], shown.primary_key)

    def objection(
        self,
        table: TableId,
        before: TableSchema,
        after: TableSchema | None,
        events: Sequence[SchemaChangeEvent],
        tables: Collection[TableId],
    ) -> str:
        """Return the reason why the targets cannot follow `events`, which lead from `before` to `after`; empty if they
        can.
        """
        emptying = [event.type for event in events if isinstance(event, TruncateTableEvent | DropTableEvent)]
        if (left := [kind for kind in emptying if kind not in self.left_out]) and (why := self.shared(table, tables)):
            return f"{left[0]} of {table}: {why}"
        if after is None:
            return ""
        present = {column.name for column in after.columns}
        more = [e.column for e in events if isinstance(e, AddColumnEvent) and e.column.name not in present]
        if why := self.refusal(table, replace(after, columns=(*after.columns, *more))):
            return why
        if why := self.mixed_values(table, before, after, events):
            return why
        transform = self.transforms.of(table)
        if transform is None:
            return ""
        here = {spark_fold(column.name) for column in after.columns}
        gone = [c.name for c in before.columns if spark_fold(c.name) in named(transform) - here]
        lost = [*gone, *filter(None, (_lost(event, transform) for event in events))]
        if not lost:
            return self.new_meaning(table, before, after, events)
        return (
            f"the table's {self.transforms.key_path(table)} names {lost[0]!r}, and would mean something else from here "
            f"on. Its columns were ({_shown(before)}) and are ({_shown(after)}). Change the transform or the table, "
            f"then read it anew with: raycdc tables resnapshot CONFIG {table}"
        )

    def mixed_values(
        self, table: TableId, before: TableSchema, after: TableSchema, events: Sequence[SchemaChangeEvent]
    ) -> str:
        """Return the reason why a column of an upsert target would have values of two columns of the table after
        `events`; empty if none would.

        This happens if an event gives a column's name to another column, and the configuration leaves the event out:
        the target's rows then keep the values of the first column, and later rows bring those of the second one. A
        resnapshot of the table reads the values of the second column for all rows.
        """
        if not self.upsert or not self.fixed_columns:
            return ""
        had = {spark_fold(column.name) for column in before.columns}
        for event in events:
            match event:
                case RenameColumnEvent(_, name, new_name) if spark_fold(name) != spark_fold(new_name):
                    given = new_name
                case AddColumnEvent(_, column, _):
                    given = column.name
                case _:
                    continue
            if spark_fold(given) in had and (self.ignored or event.type in self.left_out):
                which = "schema_change" if self.ignored else "exclude_schema_changes"
                return (
                    f"another column has the name {given!r} from here on, and pipeline.{which} leaves {event.type} "
                    "out, so the target's column of this name would have values of both. Read the table anew with: "
                    f"raycdc tables resnapshot CONFIG {table}"
                )
        return ""

    def new_meaning(
        self, table: TableId, before: TableSchema, after: TableSchema, events: Sequence[SchemaChangeEvent]
    ) -> str:
        """Return the reason why the table's transform has another meaning after `events`; empty if its meaning stays
        the same.

        The meaning changes if the type of a column changes that an expression or filter uses, or that is the key of a
        lookup (`raycdc.model.types.keeps_meaning`). The row before an update would then be judged by the new meaning,
        although the target got that row by the old meaning, and updates and deletions would be lost. A resnapshot of
        the table judges all rows by the new meaning.
        """
        transform = self.transforms.of(table)
        removed = {e.type for e in events if isinstance(e, TruncateTableEvent | DropTableEvent)}
        if transform is None or removed - self.left_out:
            return ""
        was, now = ({spark_fold(c.name): c for c in self._masked(table, one).columns} for one in (before, after))
        computed, keys = computed_from(transform), {spark_fold(lookup.key): lookup for lookup in transform.lookups}
        for name, column in was.items():
            new = now.get(name)
            if new is None or keeps_meaning(column.type, new.type):
                continue
            lookup = keys.get(name)
            other_key = lookup is not None and lookup_key_type(column.type, lookup.key_type) != lookup_key_type(
                new.type, lookup.key_type
            )
            if name in computed or other_key:
                return (
                    f"the table's {self.transforms.key_path(table)} names {column.name!r}, whose type changed from "
                    f"{_spelled(column.type)} to {_spelled(new.type)}: it would mean something else from here on. Read "
                    f"the table anew with: raycdc tables resnapshot CONFIG {table}"
                )
        return ""

    def _masked(self, table: TableId, schema: TableSchema) -> TableSchema:
        """Return the columns that expressions see."""
        try:
            return masked_schema(table, schema, self.masks)
        except ConfigError:
            return schema  # `refusal` reports it.


def _spelled(logical: LogicalType) -> str:
    return logical.native or logical.spark()


def _lost(event: SchemaChangeEvent, transform: Transform) -> str:
    """Return the column that the transform names and that `event` removes or replaces; empty if there is none."""
    match event:
        case DropColumnEvent(_, name):
            return name if spark_fold(name) in named(transform) else ""
        case RenameColumnEvent(_, name, new_name):
            gone = name if spark_fold(name) in named(transform) else ""
            return gone or (new_name if spark_fold(new_name) in _taken(transform) else "")
        case AddColumnEvent(_, column, _):
            return column.name if spark_fold(column.name) in _taken(transform) else ""
        case _:
            return ""


#: The remedy for rows that changes lack.
KEEP_ROWS = 'With source.changelog = "full" the last row of each key is kept, and completes the change.'


def needs_row_before(transform: Transform, key: Collection[str], *, upsert: bool) -> str:
    """Return the part of a transform that needs the whole row before each change; empty if the key of that row is
    enough.

    A filter needs the row before a change only for a changelog, which must show if that row passed the filter. In a
    target that holds a row per key, a row that does not pass the filter simply deletes its key. A soft deletion needs
    the row, because the target keeps its values.
    """
    if transform.soft and upsert:
        return 'on_delete = "soft" keeps the deleted row, with the values of the row before the deletion'
    if transform.filter and not upsert and set(_names(transform.filter)) - {spark_fold(name) for name in key}:
        return "filter: whether a changelog has a deletion or an update depends on the row before the change"
    return ""


def named(transform: Transform) -> set[str]:
    """Return all names in the transform, in lower case: of columns, of results, and of functions."""
    keys = [lookup.key for lookup in transform.lookups]
    names = {spark_fold(name) for name in (*transform.primary_keys, *transform.layout.columns, *keys)}
    for item in transform.items:
        match item:
            case Star(left_out, _):
                names |= {spark_fold(name) for name in left_out}
            case Renamed(column, _, _):
                names.add(spark_fold(column))
            case Expression(sql, _):
                names |= set(_names(sql))
    return names | set(_names(transform.filter))


def computed_from(transform: Transform) -> set[str]:
    """Return the names in the transform's expressions and its filter, in lower case."""
    computed = (name for item in transform.items if isinstance(item, Expression) for name in _names(item.sql))
    return {*computed, *_names(transform.filter)}


def _taken(transform: Transform) -> set[str]:
    """Return, in lower case, the names that the transform gives to columns that do not come from ``*``. If the table
    had a column of such a name, the result would have two columns of that name.
    """
    stars = [item for item in transform.items if isinstance(item, Star)]
    if not stars:
        return set()
    names = {spark_fold(transform.deleted_column)} if transform.soft else set()
    names |= {spark_fold(column.name) for lookup in transform.lookups for column in lookup.columns}
    for item in transform.items:
        match item:
            case Renamed(_, name, _) | Constant(_, name, _):
                names.add(spark_fold(name))
            case Expression(sql, _):
                names |= set(_names(sql)[-1:])
    return names - {spark_fold(name) for name in stars[0].left_out}


def _names(sql: str) -> list[str]:
    return [spark_fold(unquoted(name)) for name in _NAME.findall(_TEXTS.sub(" ", sql))]


def _shown(schema: TableSchema) -> str:
    return ", ".join(column.name for column in schema.columns)
