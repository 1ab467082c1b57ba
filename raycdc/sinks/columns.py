"""The effect of schema changes on a database table: its next columns and where their values come from. Pure.

Called by `sink`; the databases turn the difference into statements.

| change | lenient | evolve, try_evolve | ignore |
|---|---|---|---|
| a column is added | nullable; rows that exist get its constant default | the same | left out |
| … takes NULL, or none any more | the same (`raycdc.sinks.jdbc.demands`) | the same | the same |
| … dropped | stays, null from here on | goes, values and all | stays, null from here on |
| … renamed | the old one stays, the new one begins with nulls; refused onto one that stayed | renamed | as left out |
| … gets a wider type | the rows that exist get it | the same | refused if the types differ |
| … moves | nothing: columns of a target are found by name | nothing | nothing |
| the table is emptied or dropped | its rows go (upsert) | the same | the same |

A column that comes again under the name of one that stayed begins anew. Where the database takes names that differ in
case for one, a column is renamed to such a name in place whatever the behaviour. A table made again with another key
gets that key, as no row of the old one is left; a target that others made, or that several tables share, is refused it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from raycdc.errors import ChangeRefusedError, TargetTouchedError
from raycdc.model import Column, TableId
from raycdc.model.behavior import SchemaChangeBehavior
from raycdc.model.types import LogicalType, TypeKind, wide_decimal
from raycdc.schema.events import (
    AddColumnEvent,
    AlterColumnTypeEvent,
    CreateTableEvent,
    DropColumnEvent,
    RenameColumnEvent,
    SchemaChangeEvent,
)
from raycdc.sinks.api import TableWork
from raycdc.sinks.change_rules import ChangeRules

_IN_PLACE = frozenset({SchemaChangeBehavior.EVOLVE, SchemaChangeBehavior.TRY_EVOLVE})
_INTEGERS = (TypeKind.INT8, TypeKind.INT16, TypeKind.INT32, TypeKind.INT64)
_TEXTS = frozenset({TypeKind.STRING, TypeKind.ENUM, TypeKind.SET})


@dataclass(frozen=True, slots=True)
class Planned:
    """A column of the table as it will be; `origin` is the column whose values it has, None for a new one."""

    column: Column
    origin: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The columns to come, whether the rows that exist go, and which new columns get their default in them.

    `rekeyed` says that the primary key is another one from here on, which only an emptied target gets. `demands` are
    the columns that take no NULL from here on.
    """

    columns: tuple[Planned, ...]
    emptied: bool = False
    filled: tuple[Column, ...] = ()
    rekeyed: bool = False
    demands: tuple[str, ...] = ()


def plan(
    present: Sequence[Column],
    key: Sequence[str],
    work: TableWork,
    rules: ChangeRules,
    *,
    fold: Callable[[str], str] = str,
    may_rekey: bool = False,
) -> Plan:
    """The plan of ``work.changes`` for a target with the columns `present` and that `key`.

    Columns whose names are equal when `fold` was applied are one in the database. `may_rekey` says that the target's
    rows are this table's alone, so that the target can have another key once they are gone.
    """
    events = rules.followed(work.changes)
    emptied = rules.empties(events)
    after = partial(_after, work=work, rules=rules, emptied=emptied, fold=fold)
    planned = rules.after_all([Planned(column, column.name) for column in present], events, after)
    names = [p.column.name for p in planned]
    _check(planned, work, lacks=rules.may_lack)
    rekeyed = rules.upsert and tuple(work.schema.primary_key) != key_after(key, planned)
    if rekeyed and not (may_rekey and emptied and set(work.schema.primary_key) <= set(names)):
        raise ChangeRefusedError(
            f"{work.target}: its key is ({', '.join(key)}) and becomes ({', '.join(work.schema.primary_key)}), but the "
            "rows that exist are keyed by the old one. Drop the target and take a new snapshot of the table."
        )
    added = {e.column.name: e.column for e in events if isinstance(e, AddColumnEvent) and e.column.name in names}
    filled = tuple(c for c in added.values() if c.default is not None) if rules.upsert and not emptied else ()
    return Plan(tuple(planned), emptied, filled, rekeyed)


def key_after(key: Sequence[str], planned: Sequence[Planned]) -> tuple[str, ...]:
    """The names of the columns of a `key` after the `planned` changes."""
    names = {p.origin: p.column.name for p in planned}
    return tuple(names.get(name, name) for name in key)


def fits(old: LogicalType, new: LogicalType) -> bool:
    """Whether every value of type `old` is one of type `new` without a change."""
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
    """The table has a column of another type than the rows to come."""
    return ChangeRefusedError(
        f"{target}: column {column.name} is {column.type.kind} in the target and {new.kind} at the source, and rows "
        "already written cannot change their type. No row of the new type was written. Take a new snapshot of "
        "the table, which empties the target."
    )


def same_everywhere(changed: Callable[[Column, Column], bool], present: Sequence[Column], planned: Plan) -> bool:
    """Whether nothing is to be altered: no column comes, goes, or is `changed`."""
    before = {column.name: column for column in present}
    kept = [p for p in planned.columns if p.origin is not None]
    if len(kept) != len(planned.columns) or len(kept) != len(before):
        return False
    return all(p.origin == p.column.name and not changed(before[p.column.name], p.column) for p in kept)


def _after(
    planned: list[Planned],
    event: SchemaChangeEvent,
    *,
    work: TableWork,
    rules: ChangeRules,
    emptied: bool,
    fold: Callable[[str], str],
) -> list[Planned]:
    """The columns after one change."""
    match event:
        case CreateTableEvent() if not rules.ignores:
            return _with_all(planned, work, emptied=emptied, fold=fold)
        case AddColumnEvent(_, column) if not rules.ignores:
            return [*(p for p in planned if fold(p.column.name) != fold(column.name)), Planned(column, None)]
        case DropColumnEvent(_, name) if rules.in_place:
            return [p for p in planned if p.column.name != name]
        case RenameColumnEvent():
            return _after_rename(planned, event, work, rules, fold=fold)
        case AlterColumnTypeEvent(_, name, new_type) if not rules.ignores:
            return [_retyped(p, new_type, work, emptied=emptied) if p.column.name == name else p for p in planned]
        case _:
            return planned


def _after_rename(
    planned: list[Planned],
    event: RenameColumnEvent,
    work: TableWork,
    rules: ChangeRules,
    *,
    fold: Callable[[str], str],
) -> list[Planned]:
    name, new_name = event.name, event.new_name
    if rules.in_place or fold(name) == fold(new_name):
        return [replace(p, column=replace(p.column, name=new_name)) if p.column.name == name else p for p in planned]
    if new_name in work.schema.primary_key:
        raise ChangeRefusedError(
            f"{work.target}: the key column {name!r} was renamed to {new_name!r}, and the rows that exist "
            f'would lose their key. Set pipeline.schema_change = "evolve" for this change.'
        )
    wanted = {column.name: column for column in work.schema.columns}
    taken = fold(new_name) in [fold(p.column.name) for p in planned]
    if taken and rules.behavior is SchemaChangeBehavior.LENIENT:
        raise ChangeRefusedError(
            f"{work.target}: column {name!r} was renamed to {new_name!r}, and the target kept a column of that name "
            'whose values are others. Set pipeline.schema_change = "evolve" for this change, or take a new snapshot '
            "of the table."
        )
    if rules.ignores or new_name not in wanted:
        return planned
    return [*planned, Planned(replace(wanted[new_name], default=None), None)]


def _with_all(planned: list[Planned], work: TableWork, *, emptied: bool, fold: Callable[[str], str]) -> list[Planned]:
    """A table that was created again may have other columns; its rows went with the old one."""
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
    return [*kept, *(Planned(column, None) for name, column in wanted.items() if name not in here)]


def _retyped(p: Planned, new: LogicalType, work: TableWork, *, emptied: bool) -> Planned:
    if not emptied and not fits(p.column.type, new):
        raise type_error(work.target, p.column, new)
    return replace(p, column=replace(p.column, type=new))


def _check(planned: Sequence[Planned], work: TableWork, *, lacks: bool) -> None:
    """Every column that will be written must be there with its type."""
    there = {p.column.name: p.column for p in planned}
    for column in work.schema.columns:
        have = there.get(column.name)
        if have is None and not lacks:
            raise TargetTouchedError(
                f"{work.target}: the source has a column {column.name!r} that the target lacks, and no change says "
                "that it was added. Take a new snapshot of the table."
            )
        if have is not None and (have.type.arrow() != column.type.arrow() or not fits(column.type, have.type)):
            raise type_error(work.target, have, column.type)


def _digits(logical: LogicalType) -> tuple[int, int] | None:
    """Digits before and after the point of an exact number, or None."""
    match logical.kind:
        case TypeKind.DECIMAL:
            return logical.precision - logical.scale, logical.scale
        case TypeKind.UINT64:
            return 20, 0
        case TypeKind.STRING if (wide := wide_decimal(logical)) is not None:
            return wide[0] - wide[1], wide[1]
        case _:
            return None
