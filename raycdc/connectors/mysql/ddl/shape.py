"""Finds the elementary events that lead from one schema of a table to another.

`alter` gets these events from a statement. `reshape` finds the events between a table and its replacement (`shadows`),
or the server's description (`log_server`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from raycdc.connectors.mysql.ddl.conversions import equals_as_before, keeps_values, may_lose, recomputed
from raycdc.connectors.mysql.ddl.parse.statements import ColumnDefinition
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.model import Column
from raycdc.model.column_names import mysql_fold
from raycdc.model.evolution import (
    AddColumnEvent,
    After,
    AlterColumnPositionEvent,
    AlterColumnTypeEvent,
    AlterPrimaryKeyEvent,
    DropColumnEvent,
    First,
    Last,
    RenameColumnEvent,
    SchemaChangeEvent,
)

#: The suffix of a column's temporary name while two columns exchange their names.
EXCHANGED = "\N{NORTH EAST ARROW}"


@dataclass(slots=True)
class Slot:
    """A column during a change: its state before (None: it is added), its present one, and its requested position."""

    before: MySqlColumn | None
    column: MySqlColumn
    position: First | After | None = None
    definition: ColumnDefinition | None = None


@dataclass(frozen=True, slots=True)
class ColumnLineage:
    """The known facts about a new schema's columns, by their new names.

    `renamed` has the old name of a renamed column. `filled` has the value of existing rows in an added column (None:
    null); the values of an added column that is missing there are unknown. `computed` has the origin of existing rows'
    values that are not constant.
    """

    renamed: Mapping[str, str]
    filled: Mapping[str, str | None]
    computed: Mapping[str, str]


def reshape(
    before: MySqlTable, after: MySqlTable, lineage: ColumnLineage, *, forgiving: bool = True
) -> tuple[tuple[SchemaChangeEvent, ...], str | None]:
    """Return the events from `before` to `after`, and why existing rows may have other values than the events imply.

    Columns are matched by name, unless `lineage` says otherwise. `forgiving`: the rows of `after` were written by a
    statement that cuts values that do not fit, such as the ``INSERT IGNORE`` with which tools copy them.
    """
    slots = _matched(before, after, lineage)
    kept = {slot.before.name for slot in slots if slot.before is not None}
    events: list[SchemaChangeEvent] = [DropColumnEvent(before.id, c.name) for c in before.columns if c.name not in kept]
    events += renames(before, slots)
    for slot in slots:
        if slot.before is not None:
            events += type_change(before, slot.before, slot.column)
    events += _placements(before, slots, lineage)
    new_names = {slot.before.name: slot.column.name for slot in slots if slot.before is not None}
    if tuple(new_names[key] for key in before.primary_key if key in new_names) != after.primary_key:
        events.append(AlterPrimaryKeyEvent(before.id, after.primary_key))
    if before.row_end or after.row_end:
        # Tools that read the log copy the end of a row as an update without a change.
        return tuple(events), "rows of a system-versioned table may be current in only one of the two tables"
    return tuple(events), _doubt(after, slots, lineage, forgiving=forgiving)


def renames(table: MySqlTable, placed: Sequence[Slot]) -> list[SchemaChangeEvent]:
    """Return renames in an order in which no name is used twice; exchanged columns use a temporary name."""
    waiting = {s.before.name: s.column.name for s in placed if s.before is not None and s.before.name != s.column.name}
    present = {mysql_fold(s.before.name) for s in placed if s.before is not None}
    events: list[SchemaChangeEvent] = []
    while waiting:
        for name, new_name in waiting.items():
            if same_name(name, new_name) or mysql_fold(new_name) not in present:
                break
        else:
            name = next(iter(waiting))
            new_name, final = f"{name}{EXCHANGED}", waiting[name]
            waiting = {new_name if old == name else old: new for old, new in waiting.items()}
            events.append(RenameColumnEvent(table.id, name, new_name))
            present = present - {mysql_fold(name)} | {mysql_fold(new_name)}
            assert waiting[new_name] == final
            continue
        events.append(RenameColumnEvent(table.id, name, new_name))
        present = present - {mysql_fold(name)} | {mysql_fold(new_name)}
        del waiting[name]
    return events


def type_change(table: MySqlTable, before: MySqlColumn, after: MySqlColumn) -> list[SchemaChangeEvent]:
    """Return the event for a changed type or nullability of a column, under its new name."""
    old, new = before.logical(), after.logical()
    if old != new or before.nullable != after.nullable:
        return [AlterColumnTypeEvent(table.id, after.name, new, after.nullable)]
    return []


def same_name(one: str, other: str) -> bool:
    """Return True if two column names are equal without regard to case."""
    return mysql_fold(one) == mysql_fold(other)


def reassigned_names(events: Iterable[SchemaChangeEvent]) -> frozenset[str]:
    """Return the names, as `mysql_fold` returns them, that `events` take from a column or give to another one.

    A column of such a name after the events is not the column of that name before them, even if its type is equal:
    after ``DROP COLUMN a, ADD COLUMN a INT``, or after two columns exchange their names.
    """
    names: set[str] = set()
    for event in events:
        match event:
            case DropColumnEvent(_, name):
                names.add(mysql_fold(name))
            case RenameColumnEvent(_, name, new_name) if not same_name(name, new_name):
                names |= {mysql_fold(name), mysql_fold(new_name)}
            case _:
                pass
    return frozenset(names)


def _matched(before: MySqlTable, after: MySqlTable, lineage: ColumnLineage) -> list[Slot]:
    columns = {mysql_fold(column.name): column for column in before.columns}
    explicit = {name: columns.get(mysql_fold(old)) for name, old in lineage.renamed.items()}
    claimed = {column.name for column in explicit.values() if column is not None}
    slots = []
    for column in after.columns:
        found = explicit.get(column.name)
        if found is None:
            by_name = columns.get(mysql_fold(column.name))
            found = by_name if by_name is not None and by_name.name not in claimed else None
        slots.append(Slot(found, column))
    return slots


def _placements(before: MySqlTable, slots: Sequence[Slot], lineage: ColumnLineage) -> list[SchemaChangeEvent]:
    """Return the additions of columns, and the fewest moves that put all columns in the new order."""
    places = {column.name: index for index, column in enumerate(before.columns)}
    stays = _longest_rising([places[slot.before.name] for slot in slots if slot.before is not None])
    last_kept = max((i for i, slot in enumerate(slots) if slot.before is not None), default=-1)
    events: list[SchemaChangeEvent] = []
    for index, slot in enumerate(slots):
        position = After(slots[index - 1].column.name) if index else First()
        if slot.before is None:
            column = slot.column
            added = Column(column.name, column.logical(), column.nullable, lineage.filled.get(column.name))
            events.append(AddColumnEvent(before.id, added, Last() if index > last_kept else position))
        elif places[slot.before.name] not in stays:
            events.append(AlterColumnPositionEvent(before.id, slot.column.name, position))
    return events


def _longest_rising(numbers: Sequence[int]) -> set[int]:
    """Return a longest rising subsequence of distinct numbers."""
    ends: list[int] = []
    previous: dict[int, int | None] = {}
    for number in numbers:
        at = bisect_left(ends, number)
        previous[number] = ends[at - 1] if at else None
        ends[at : at + 1] = [number]
    rising: set[int] = set()
    number_at = ends[-1] if ends else None
    while number_at is not None:
        rising.add(number_at)
        number_at = previous[number_at]
    return rising


def _doubt(after: MySqlTable, slots: Sequence[Slot], lineage: ColumnLineage, *, forgiving: bool) -> str | None:
    for slot in slots:
        name = slot.column.name
        if name in lineage.computed:
            return f"the column {name!r} holds {lineage.computed[name]} in the existing rows"
        if slot.before is None:
            if name not in lineage.filled:
                return f"the existing rows' value in the new column {name!r} is not known"
            continue
        if not keeps_values(slot.before, slot.column):
            return f"the column {name!r} was converted from {slot.before.column_type} to {slot.column.column_type}"
        lost = may_lose(slot.before, slot.column, forgiving=forgiving)
        if lost:
            return f"in the column {name!r}, now {slot.column.column_type}, it may be that {lost}"
        if forgiving and not equals_as_before(slot.before, slot.column):
            return f"the column {name!r} is compared differently now, so that rows with equal keys may be missing"
    return recomputed(((slot.before, slot.column) for slot in slots), row_end=after.row_end) or None
