"""Plans the effect of schema changes on a database table: its next columns and the origin of their values. Pure.
`raycdc.sinks.jdbc.target` calls it, and each database turns the difference into statements.

| change | lenient | evolve, try_evolve | ignore |
|---|---|---|---|
| a column is added | nullable; existing rows get its constant default | the same | left out |
| … becomes nullable or NOT NULL | the same (`raycdc.sinks.jdbc.target`) | the same | the same |
| … dropped | stays, null from here on | is dropped with its values | stays, null from here on |
| … renamed | the old one stays, null from here on; the new one gets its values in existing rows (*) | renamed | left \
out |
| … gets a wider type | existing rows get it | the same | refused if the types differ |
| … moves | nothing: columns of a target are found by name | nothing | nothing |
| the table is truncated or dropped | its rows are removed (upsert) | the same | the same |

(*) The second table has the details. If the source uses a dropped name again, for an added or renamed column, the name
belongs to that column from then on. If the database treats names that differ in case as equal, a column is renamed to
such a name in place under every setting. A table created again with another key gets that key, because no row of the
old one is left; this is refused for a target that others created, or that several tables share.

With ``schema_change = "lenient"``, a target keeps every column while its source renames some. This part is also used
for MongoDB, and by `raycdc.sinks.lakes` for Delta and Iceberg. It starts from the columns that the target would have if
it followed in place, each with the present column whose values it would have. A present column that is missing there
under its own name is treated as follows:

| its values are | its name is | the column |
|---|---|---|
| the source's under another name | unused | stays, and the other column is a new one with a copy of its values |
| | another column's | is renamed, because its values cannot be kept twice |
| unused | unused | stays |
| | another column's | is dropped, because that column starts under its name |

A copied column therefore never receives values itself, and the copy may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from raycdc.errors import ChangeRefusedError, TargetModifiedError
from raycdc.model import Column, TableId
from raycdc.model.evolution.effects import SchemaChangeBehavior
from raycdc.model.evolution.events import (
    AddColumnEvent,
    AlterColumnTypeEvent,
    CreateTableEvent,
    DropColumnEvent,
    RenameColumnEvent,
    SchemaChangeEvent,
)
from raycdc.model.types import LogicalType, TypeKind, wide_decimal
from raycdc.sinks.api import TableCommit
from raycdc.sinks.change_rules import ChangeRules


@dataclass(frozen=True, slots=True)
class RenamedColumns:
    """The column names of a target after renames at the source.

    `names` are all names in their order. `copied` maps the name of a new column to the present column whose values it
    gets.
    """

    names: tuple[str, ...]
    copied: dict[str, str]


def added_columns(
    present: Sequence[str],
    planned: Mapping[str, str | None],
    target: TableId,
    key: Collection[str],
    *,
    fold: Callable[[str], str],
) -> RenamedColumns:
    """Return the columns of a target that keeps every present column while its source renames some.

    `present` are the target's columns. `planned` are the columns that it would have if it followed in place, each with
    the present column whose values it would have (None: a new column). Two names are the same column if `fold` makes
    them equal.

    Raises `ChangeRefusedError` if a column of the `key` is renamed, because existing rows would lose their key.
    """
    taken = {fold(name) for name in planned}
    copied: dict[str, str] = {}
    for name, origin in planned.items():
        if origin is None or fold(origin) == fold(name):
            continue
        if name in key:
            raise ChangeRefusedError(
                f"{target}: the key column {origin!r} was renamed to {name!r}, and the rows that exist "
                f'would lose their key. Set pipeline.schema_change = "evolve" for this change.'
            )
        if fold(origin) not in taken:
            copied[name] = origin
    by_origin = {origin: name for name, origin in planned.items() if origin is not None and name not in copied}
    names: list[str] = []
    for name in present:
        if name in by_origin:
            names.append(by_origin[name])
        elif fold(name) not in taken:
            names.append(name)
    return RenamedColumns((*names, *(name for name in planned if name not in names)), copied)


_IN_PLACE = frozenset({SchemaChangeBehavior.EVOLVE, SchemaChangeBehavior.TRY_EVOLVE})
_INTEGERS = (TypeKind.INT8, TypeKind.INT16, TypeKind.INT32, TypeKind.INT64)
_TEXTS = frozenset({TypeKind.STRING, TypeKind.ENUM, TypeKind.SET})


@dataclass(frozen=True, slots=True)
class TargetColumnPlan:
    """A column of the table after the changes.

    `origin` is the present column whose values it keeps; None for a new column. `default` is the constant with which
    the source added a new column, under whatever name; existing rows get it. `copied` is a remaining column whose
    values a new column gets in existing rows.
    """

    column: Column
    origin: str | None
    default: str | None = None
    copied: str | None = None


@dataclass(frozen=True, slots=True)
class ColumnsPlan:
    """The columns of the table after the changes.

    `emptied` says that existing rows are removed, and `filled` are the new columns that get their default in existing
    rows. `rekeyed` says that the primary key changes, which is only allowed for an emptied target. `demands` are the
    columns that become NOT NULL. `copied` are pairs of names: a new column, and the remaining column whose values it
    gets in existing rows. No column is in both places, so the copy may be repeated.
    """

    columns: tuple[TargetColumnPlan, ...]
    emptied: bool = False
    filled: tuple[Column, ...] = ()
    rekeyed: bool = False
    demands: tuple[str, ...] = ()
    copied: tuple[tuple[str, str], ...] = ()


def plan(
    present: Sequence[Column],
    key: Sequence[str],
    work: TableCommit,
    rules: ChangeRules,
    *,
    fold: Callable[[str], str] = str,
    may_rekey: bool = False,
) -> ColumnsPlan:
    """Return the plan of ``work.changes`` for a target with the columns `present` and the primary key `key`.

    Columns whose names are equal after `fold` are the same column in the database. `may_rekey` says that the target has
    only rows of this table, so that it can get another key once they are removed.
    """
    events = rules.followed(work.changes)
    emptied = rules.empties(events)
    after = partial(_after, work=work, rules=rules, emptied=emptied, fold=fold)
    began = [TargetColumnPlan(column, column.name) for column in present]
    planned = rules.after_all(began, events, after)
    copies: dict[str, str] = {}
    if rules.behavior is SchemaChangeBehavior.LENIENT:
        planned, copies = _with_those_that_stay(began, planned, work, fold=fold)
    there = {column.name for column in present}
    copies |= {p.column.name: p.copied for p in planned if p.copied in there}
    names = [p.column.name for p in planned]
    _check(planned, work, lacks=rules.may_lack)
    rekeyed = rules.upsert and tuple(work.schema.primary_key) != key_after(key, planned)
    if rekeyed and not (may_rekey and emptied and set(work.schema.primary_key) <= set(names)):
        raise ChangeRefusedError(
            f"{work.target}: its key is ({', '.join(key)}) and becomes ({', '.join(work.schema.primary_key)}), but the "
            "rows that exist are keyed by the old one. Drop the target and take a new snapshot of the table."
        )
    added = (replace(p.column, default=p.default) for p in planned if p.default is not None)
    filled = tuple(added) if rules.upsert and not emptied else ()
    copied = tuple(copies.items()) if rules.upsert and not emptied else ()
    return ColumnsPlan(tuple(planned), emptied, filled, rekeyed, copied=copied)


def _with_those_that_stay(
    present: Sequence[TargetColumnPlan],
    planned: Sequence[TargetColumnPlan],
    work: TableCommit,
    *,
    fold: Callable[[str], str],
) -> tuple[list[TargetColumnPlan], dict[str, str]]:
    """Return the columns of a target that drops none, if its source's columns are `planned`.

    Also return the names of new columns, each with the column whose values it gets.
    """
    after = {p.column.name: p.origin for p in planned}
    reported = added_columns([p.column.name for p in present], after, work.target, work.schema.primary_key, fold=fold)
    by_name = {p.column.name: p for p in planned}
    stays = {p.column.name: p for p in present}
    columns = []
    for name in reported.names:
        p = by_name.get(name) or stays[name]
        columns.append(replace(p, origin=None) if name in reported.copied else p)
    return columns, reported.copied


def key_after(key: Sequence[str], planned: Sequence[TargetColumnPlan]) -> tuple[str, ...]:
    """Return the names of the `key` columns after the `planned` changes."""
    names = {p.origin: p.column.name for p in planned}
    return tuple(names.get(name, name) for name in key)


def fits(old: LogicalType, new: LogicalType) -> bool:
    """Return True if every value of type `old` is a value of type `new` without conversion."""
    digits, new_digits = _digits(old), _digits(new)
    if old.kind in _INTEGERS and new.kind in _INTEGERS:
        return _INTEGERS.index(old.kind) <= _INTEGERS.index(new.kind)
    if digits is not None and new_digits is not None:
        return new_digits[0] >= digits[0] and new_digits[1] >= digits[1]
    if old.kind is TypeKind.FLOAT32 and new.kind is TypeKind.FLOAT64:
        return True
    if old.kind in _TEXTS and new.kind in _TEXTS:
        return wide_decimal(old) is None and wide_decimal(new) is None
    return old.kind is new.kind and old.arrow() == new.arrow()


def type_error(target: TableId, column: Column, new: LogicalType) -> ChangeRefusedError:
    """Return the error for a column whose type differs from that of new rows."""
    return ChangeRefusedError(
        f"{target}: column {column.name} is {column.type.kind} in the target and {new.kind} at the source, and rows "
        "already written cannot change their type. No row of the new type was written. Take a new snapshot of "
        "the table, which empties the target."
    )


def same_everywhere(changed: Callable[[Column, Column], bool], present: Sequence[Column], planned: ColumnsPlan) -> bool:
    """Return True if the plan alters nothing: no column is added or dropped, and none is `changed`."""
    before = {column.name: column for column in present}
    kept = [p for p in planned.columns if p.origin is not None]
    if len(kept) != len(planned.columns) or len(kept) != len(before):
        return False
    return all(p.origin == p.column.name and not changed(before[p.column.name], p.column) for p in kept)


def _after(
    planned: list[TargetColumnPlan],
    event: SchemaChangeEvent,
    *,
    work: TableCommit,
    rules: ChangeRules,
    emptied: bool,
    fold: Callable[[str], str],
) -> list[TargetColumnPlan]:
    """Return the columns after one change."""
    match event:
        case CreateTableEvent() if not rules.ignores:
            return _with_all(planned, work, emptied=emptied, fold=fold)
        case AddColumnEvent(_, column) if not rules.ignores:
            others = (p for p in planned if fold(p.column.name) != fold(column.name))
            return [*others, TargetColumnPlan(column, None, column.default, event.values_of)]
        case DropColumnEvent(_, name) if not rules.ignores:
            return [p for p in planned if p.column.name != name]
        case RenameColumnEvent(_, name, new_name) if not rules.ignores or fold(name) == fold(new_name):
            return _after_rename(planned, name, new_name, fold=fold)
        case AlterColumnTypeEvent(_, name, new_type) if not rules.ignores:
            return [_retyped(p, new_type, work, emptied=emptied) if p.column.name == name else p for p in planned]
        case _:
            return planned


def _after_rename(
    planned: list[TargetColumnPlan], name: str, new_name: str, *, fold: Callable[[str], str]
) -> list[TargetColumnPlan]:
    """Return the columns with one renamed, and without another column that had the new name."""
    renamed = next((p for p in planned if p.column.name == name), None)
    if renamed is None:
        return planned
    others = (p for p in planned if p is renamed or fold(p.column.name) != fold(new_name))
    return [replace(p, column=replace(p.column, name=new_name)) if p is renamed else p for p in others]


def _with_all(
    planned: list[TargetColumnPlan], work: TableCommit, *, emptied: bool, fold: Callable[[str], str]
) -> list[TargetColumnPlan]:
    """Return the columns of a table that was created again, whose columns may differ; its old rows are gone."""
    wanted = {fold(column.name): column for column in work.schema.columns}
    here = {fold(p.column.name) for p in planned}
    kept = []
    for p in planned:
        column = wanted.get(fold(p.column.name))
        if column is None:
            kept.append(p)
        else:
            named = replace(p, column=replace(p.column, name=column.name))
            kept.append(_retyped(named, column.type, work, emptied=emptied))
    return [*kept, *(TargetColumnPlan(column, None) for name, column in wanted.items() if name not in here)]


def _retyped(p: TargetColumnPlan, new: LogicalType, work: TableCommit, *, emptied: bool) -> TargetColumnPlan:
    if not emptied and not fits(p.column.type, new):
        raise type_error(work.target, p.column, new)
    return replace(p, column=replace(p.column, type=new))


def _check(planned: Sequence[TargetColumnPlan], work: TableCommit, *, lacks: bool) -> None:
    """Raise `ChangeRefusedError` or `TargetModifiedError` if a column that will be written is missing or has another
    type.

    With `lacks`, columns may be missing.
    """
    there = {p.column.name: p.column for p in planned}
    for column in work.schema.columns:
        have = there.get(column.name)
        if have is None and not lacks:
            raise TargetModifiedError(
                f"{work.target}: the source has a column {column.name!r} that the target lacks, and no change says "
                "that it was added. Take a new snapshot of the table."
            )
        if have is not None and (have.type.arrow() != column.type.arrow() or not fits(column.type, have.type)):
            raise type_error(work.target, have, column.type)


def _digits(logical: LogicalType) -> tuple[int, int] | None:
    """Return the number of digits before and after the point of an exact number; None for other types."""
    match logical.kind:
        case TypeKind.DECIMAL:
            return logical.precision - logical.scale, logical.scale
        case TypeKind.UINT64:
            return 20, 0
        case TypeKind.STRING if (wide := wide_decimal(logical)) is not None:
            return wide[0] - wide[1], wide[1]
        case _:
            return None
