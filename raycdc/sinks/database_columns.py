"""The plan of schema changes for a table of a database or a collection: its columns, its key, and the values of rows.

`raycdc.sinks.columns` plans the columns; the databases turn the difference into statements. Pure.

In a database, a column also becomes nullable or NOT NULL when its source column does (`raycdc.sinks.jdbc.target`). If a
source table is created again with another key, its target gets that key, because no row of the old table is left. This
is refused for a target that another writer created, and for a target of several tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from raycdc.errors import ChangeRefusedError
from raycdc.model import Column
from raycdc.model.column_names import mysql_fold
from raycdc.model.types import LogicalType, TypeKind, wide_decimal
from raycdc.sinks.api import TableCommit
from raycdc.sinks.change_rules import ChangeRules
from raycdc.sinks.columns import ColumnAbilities, TargetColumn, plan_columns

_INTEGERS = (TypeKind.INT8, TypeKind.INT16, TypeKind.INT32, TypeKind.INT64)
_TEXTS = frozenset({TypeKind.STRING, TypeKind.ENUM, TypeKind.SET})


@dataclass(frozen=True, slots=True)
class DatabasePlan:
    """The columns of the table after the changes.

    `emptied` is True if existing rows are removed. `filled` are the new columns that get their default in existing
    rows. `rekeyed` is True if the primary key changes, which is only allowed for an emptied target. `demands` are the
    columns that become NOT NULL. `copied` are pairs of names: a new column, and the column whose values are copied into
    it in existing rows. No column is the first of one pair and the second of another, so the copy may be repeated.
    """

    columns: tuple[TargetColumn[Column], ...]
    emptied: bool = False
    filled: tuple[Column, ...] = ()
    rekeyed: bool = False
    demands: tuple[str, ...] = ()
    copied: tuple[tuple[str, str], ...] = ()


def plan(
    store: ColumnAbilities[Column],
    present: Sequence[Column],
    key: Sequence[str],
    work: TableCommit,
    rules: ChangeRules,
    *,
    may_rekey: bool = False,
) -> DatabasePlan:
    """Return the plan of ``work.changes`` for a target with the columns `present` and the primary key `key`.

    `may_rekey` is True if the target has only rows of this table, so that it can get another key once they are removed.
    """
    planned = plan_columns(store, present, work, work.schema.columns, rules)
    rekeyed = rules.upsert and tuple(work.schema.primary_key) != key_after(key, planned.columns)
    if rekeyed and not (may_rekey and planned.emptied and set(work.schema.primary_key) <= set(planned.names)):
        raise ChangeRefusedError(
            f"{work.target}: its key is ({', '.join(key)}) and becomes ({', '.join(work.schema.primary_key)}), but the "
            "rows that exist are keyed by the old one. Drop the target and take a new snapshot of the table."
        )
    added = (p.added for p in planned.columns if p.added is not None and p.added.default is not None)
    filled = tuple(added) if rules.upsert and not planned.emptied else ()
    copied = tuple((p.name, p.copied) for p in planned.columns if p.copied is not None)
    return DatabasePlan(planned.columns, planned.emptied, filled, rekeyed, copied=copied)


def key_after(key: Sequence[str], planned: Sequence[TargetColumn[Column]]) -> tuple[str, ...]:
    """Return the names of the `key` columns after the `planned` changes."""
    names = {p.origin: p.name for p in planned}
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


def _holds(have: LogicalType, want: LogicalType) -> bool:
    return have.arrow() == want.arrow() and fits(want, have)


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


#: A database whose columns are told apart by every character of their names, and one that ignores case.
DATABASE: ColumnAbilities[Column] = ColumnAbilities(
    place="target",
    stored=lambda column: column,
    widens=fits,
    holds=_holds,
    type_in_target=lambda column: column.type.kind,
    type_at_source=lambda column: column.type.kind,
)
DATABASE_IGNORING_CASE = replace(DATABASE, fold=mysql_fold)


def same_everywhere(
    changed: Callable[[Column, Column], bool], present: Sequence[Column], planned: DatabasePlan
) -> bool:
    """Return True if the plan alters nothing: no column is added or dropped, and none is `changed`."""
    before = {column.name: column for column in present}
    kept = [p for p in planned.columns if p.origin is not None]
    if len(kept) != len(planned.columns) or len(kept) != len(before):
        return False
    return all(p.origin == p.name and not changed(before[p.name], p.column) for p in kept)
