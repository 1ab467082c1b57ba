"""The schemas of tables in messages: configured, embedded in messages, defined by DDL messages, or inferred from
values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from raycdc.core.typed_codec import NOWHERE, SPREAD, JsonObject, stored
from raycdc.formats.decoding.arena import WireColumn
from raycdc.formats.decoding.sql_types import same_type
from raycdc.formats.loops import code_loops as cells
from raycdc.formats.loops import row_loops as rows
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import (
    AddColumnEvent,
    AlterColumnTypeEvent,
    AlterPrimaryKeyEvent,
    CreateTableEvent,
    DropColumnEvent,
    SchemaChangeEvent,
)
from raycdc.model.evolution.events import After, First

_STRING = LogicalType(TypeKind.STRING)
_NUMBERS = rows.SEEN_SMALL | rows.SEEN_INT64 | rows.SEEN_BIG | rows.SEEN_DOUBLE | rows.SEEN_EXACT


@dataclass(slots=True)
class TableColumn(JsonObject):
    """A column and its origin.

    `mask` has the classes of the values seen; they determine the type of an `inferred` column. `had` is True if a row
    or a description had the column. In a format whose rows are complete, a later row without the column is then
    partial.
    """

    name: str
    type: LogicalType
    wire: int = cells.WIRE_PLAIN
    inferred: bool = False
    mask: int = 0
    had: bool = field(default=False, metadata=stored("had", left_out=True))
    #: The labels of an ENUM or SET column whose values may be ordinals.
    labels: tuple[str, ...] = field(default=(), metadata=stored("labels", left_out=True))
    #: The type in the last description of the table's columns, if it differs from `type`.
    described_as: LogicalType | None = field(default=None, metadata=stored("described_as", left_out=True))
    #: The kind of the column's values, if the column belongs to the key (`row_loops.KIND_…`); 0 if no value was seen.
    key_kind: int = field(default=0, metadata=stored("key_kind", left_out=True))

    @property
    def visible(self) -> bool:
        """Return False for an inferred column that was always null, and so has no type yet."""
        return not self.inferred or self.mask & ~rows.SEEN_NULL != 0


@dataclass(slots=True)
class TableState(JsonObject):
    """The known schema of a table. If `fixed` is True, the schema is configured, and all other fields are left out.

    A state belongs to one decoder. A new field adds a column, and a value that does not fit makes a type wider. Only a
    DDL message removes columns. Every change of the schema is reported as an event.
    """

    id: TableId = field(metadata=SPREAD)
    columns: list[TableColumn] = field(default_factory=list)
    primary_key: tuple[str, ...] = ()
    fixed: bool = False
    announced: bool = False
    keep_nulls: bool = field(default=False, metadata=NOWHERE)
    extended: bool = False
    #: The columns of the last description, and the time of the first message with it (as in the envelope; 0 if it is
    #: unknown).
    described: tuple[str, ...] = field(default=(), metadata=stored("described", left_out=True))
    described_since: int = field(default=0, metadata=stored("described_since", left_out=True))

    def visible(self) -> list[TableColumn]:
        return [c for c in self.columns if c.visible or self.keep_nulls]

    def schema(self, extra: Sequence[WireColumn] = ()) -> TableSchema:
        """Return the schema of the table's batches; `extra` are columns from the envelope."""
        own = [Column(c.name, c.type) for c in self.visible()]
        names = {c.name for c in own}
        key = self.primary_key if set(self.primary_key) <= names else ()
        return TableSchema((*own, *(Column(c.name, c.type) for c in extra)), key)

    def create(self, extra: Sequence[WireColumn]) -> list[SchemaChangeEvent]:
        """Return the event that creates the table, at the first call."""
        if self.announced:
            return []
        self.announced = True
        return [CreateTableEvent(self.id, self.schema(extra))]

    def repeats(self, at: int) -> bool:
        """Return True if a message of the time `at` (0: unknown) with a different description than the last one is
        older than that one.

        Producers repeat messages after a crash. Such a message shows no change.
        """
        return 0 < at < self.described_since

    def describe(
        self, columns: Sequence[WireColumn], *, at: int, whole: bool
    ) -> tuple[list[SchemaChangeEvent], list[WireColumn]]:
        """Note the description `columns` of the source's table, from a message of the time `at` (0: unknown).

        Returns the changes since the last description, and the added columns whose values in existing rows are
        unknown. A first description shows no change. If rows are always `whole`, a description without a column shows
        a partial row, and not a dropped column.
        """
        wanted = {column.name: column for column in columns}
        before, self.described = self.described, tuple(wanted)
        self.described_since = at or self.described_since
        own = {column.name: column for column in self.columns}
        changes: list[SchemaChangeEvent] = []
        unclear: list[WireColumn] = []
        for name in before:
            if name not in wanted:
                if whole:
                    self.described += (name,)
                else:
                    changes.append(DropColumnEvent(self.id, name))
            elif name in own:
                was, now = own[name].described_as or own[name].type, wanted[name].type
                if not same_type(was, now):
                    changes.append(AlterColumnTypeEvent(self.id, name, now, was=was))
        for column in columns if before else ():
            if column.name not in before and (column.name in own or not self.fixed):
                changes.append(AddColumnEvent(self.id, Column(column.name, column.type, default=column.default)))
                unclear += [column] if column.unclear else []
        return changes, unclear

    def embed(self, columns: Sequence[WireColumn], *, only_wires: bool) -> list[SchemaChangeEvent]:
        """Take over the columns that a message describes: new ones are added, changed ones altered, none dropped.

        If `only_wires` is True, the types are configured, and only the representation of values is taken over.
        """
        events: list[SchemaChangeEvent] = []
        present = {column.name: column for column in self.columns}
        for wanted in columns:
            known = present.get(wanted.name)
            if known is None:
                if not only_wires:
                    present[wanted.name] = added = TableColumn(wanted.name, wanted.type, wanted.wire, had=True)
                    added.labels = wanted.labels
                    events.append(self._add(added))
                continue
            known.had = True
            known.wire = _wire_for(known.type, wanted) if only_wires else wanted.wire
            known.labels = wanted.labels
            if only_wires or same_type(known.type, wanted.type):
                known.described_as = None if same_type(known.type, wanted.type) else wanted.type
                continue
            was, merged = known.type, _wider(known.type, wanted.type)
            known.inferred = False
            if not same_type(merged, was):
                known.type = merged
                events.append(AlterColumnTypeEvent(self.id, known.name, merged, was=was))
            known.described_as = None if same_type(merged, wanted.type) else wanted.type
        return events if self.announced else []

    def define(
        self, columns: Sequence[WireColumn], primary_key: Sequence[str], *, had: bool = False
    ) -> list[SchemaChangeEvent]:
        """Replace all columns by `columns`, which a DDL message defines or the user configures.

        After a DDL message, rows have all of these columns, so `had` is set. Configured columns may be missing in
        messages.
        """
        events: list[SchemaChangeEvent] = []
        wanted = {column.name for column in columns}
        for gone in [c for c in self.columns if c.name not in wanted]:
            if gone.visible or self.keep_nulls:
                events.append(DropColumnEvent(self.id, gone.name))
            self.columns.remove(gone)
        for index, column in enumerate(columns):
            known = self._known(column.name)
            if known is None:
                added = TableColumn(column.name, column.type, column.wire, had=had, labels=column.labels)
                self.columns.insert(index, added)
                position = After(self.columns[index - 1].name) if index else First()
                events.append(AddColumnEvent(self.id, Column(column.name, column.type), position))
                continue
            if not known.visible and not self.keep_nulls:
                events.append(
                    AddColumnEvent(self.id, Column(column.name, column.type), self._after(self.columns.index(known)))
                )
            elif not same_type(known.type, column.type):
                events.append(AlterColumnTypeEvent(self.id, column.name, column.type, was=known.type))
            known.type, known.wire, known.inferred, known.had = column.type, column.wire, False, had
            known.labels = column.labels
        self.primary_key = tuple(primary_key)
        return events if self.announced else []

    def declare(self, columns: Sequence[WireColumn], primary_key: Sequence[str]) -> list[SchemaChangeEvent]:
        """Replace all columns by `columns`, which the user declares since this start.

        Returns the changes for the rows that exist; none if these columns were declared before, too.
        """
        known = {column.name: column.type for column in self.columns}
        key = self.primary_key
        same = len(known) == len(columns) and all(
            column.name in known and same_type(known[column.name], column.type) for column in columns
        )
        if self.fixed and same and key == tuple(primary_key):
            return []
        self.fixed, self.described = True, ()
        events = self.define(columns, primary_key)
        if self.announced and key != self.primary_key:
            events.append(AlterPrimaryKeyEvent(self.id, self.primary_key))
        return events

    @property
    def had(self) -> set[str]:
        """Return the columns that a row or a description has had."""
        return {column.name for column in self.columns if column.had}

    def changed(self) -> None:
        """Note that a statement changed the table in an unknown way.

        The next description or row shows the new columns.
        """
        for column in self.columns:
            column.had = False
        self.described = ()

    def field_appeared(self, name: str) -> None:
        """Add a column for a new field. `observed` sets its type."""
        self.columns.append(TableColumn(name, _STRING, inferred=True))

    def observed(self, masks: np.ndarray) -> list[SchemaChangeEvent]:
        """Widen inferred columns to the observed values."""
        events: list[SchemaChangeEvent] = []
        for index, (column, mask) in enumerate(zip(self.columns, masks.tolist(), strict=True)):
            if not column.inferred or column.mask | mask == column.mask:
                continue
            was_visible = column.visible or (self.keep_nulls and column.mask != 0)
            column.mask |= mask
            kind = inferred_type(column.mask)
            column.wire = inferred_wire(kind)
            if not was_visible and (column.visible or self.keep_nulls):
                column.type = kind
                events.append(AddColumnEvent(self.id, Column(column.name, kind), self._after(index)))
            elif not same_type(kind, column.type):
                column.type = kind
                events.append(AlterColumnTypeEvent(self.id, column.name, kind))
        return events if self.announced else []

    @classmethod
    def restored(cls, sealed: object, *, keep_nulls: bool) -> TableState:
        """Return the state of a table that `to_json` wrote."""
        state = cls.from_json(sealed)
        state.keep_nulls = keep_nulls
        return state

    def _known(self, name: str) -> TableColumn | None:
        return next((c for c in self.columns if c.name == name), None)

    def _add(self, column: TableColumn) -> SchemaChangeEvent:
        self.columns.append(column)
        return AddColumnEvent(self.id, Column(column.name, column.type), self._after(len(self.columns) - 1))

    def _after(self, index: int) -> After | First:
        """Return the position of the column at `index` among those that have a type."""
        for before in range(index - 1, -1, -1):
            if self.columns[before].visible or self.keep_nulls:
                return After(self.columns[before].name)
        return First()


def inferred_type(mask: int) -> LogicalType:
    """Return the narrowest type that holds every value of the classes in `mask` exactly."""
    seen = mask & ~rows.SEEN_NULL
    if seen == rows.SEEN_BOOL:
        return LogicalType(TypeKind.BOOLEAN)
    if seen == rows.SEEN_NESTED:
        return LogicalType(TypeKind.JSON)
    if seen == rows.SEEN_DATE:
        return LogicalType(TypeKind.TIMESTAMP, fsp=3)
    if seen == rows.SEEN_BYTES:
        return LogicalType(TypeKind.BINARY)
    if seen and not seen & ~_NUMBERS:
        if not seen & ~(rows.SEEN_SMALL | rows.SEEN_INT64):
            return LogicalType(TypeKind.INT64)
        if not seen & ~(rows.SEEN_SMALL | rows.SEEN_INT64 | rows.SEEN_BIG):
            return LogicalType(TypeKind.DECIMAL, precision=38)
        if not seen & ~(rows.SEEN_SMALL | rows.SEEN_DOUBLE):
            return LogicalType(TypeKind.FLOAT64)
    return _STRING


def inferred_wire(kind: LogicalType) -> int:
    """Return the representation of an inferred type: milliseconds for MongoDB's dates, and the plain one for others."""
    return cells.WIRE_MILLIS if kind.kind is TypeKind.TIMESTAMP else cells.WIRE_PLAIN


_ORDER = (TypeKind.INT8, TypeKind.INT16, TypeKind.INT32, TypeKind.INT64)
_SIZED = {TypeKind.DECIMAL, TypeKind.BIT, TypeKind.DATETIME, TypeKind.TIMESTAMP, TypeKind.TIME}
_EXACT = {TypeKind.DECIMAL, TypeKind.UINT64}


def _wider(old: LogicalType, new: LogicalType) -> LogicalType:
    """Return the type of a column whose description changed: the wider of the two types if both are of one family,
    else the new type.
    """
    if old.kind in _ORDER and new.kind in _ORDER:
        return max(old, new, key=lambda t: _ORDER.index(t.kind))
    if old.kind is new.kind and old.kind in _SIZED:
        scale = max(old.scale, new.scale)
        whole = max(old.precision - old.scale, new.precision - new.scale)
        if whole + scale <= 38:
            return LogicalType(
                new.kind,
                precision=whole + scale,
                scale=scale,
                fsp=max(old.fsp, new.fsp),
                length=max(old.length, new.length),
                native=new.native,
            )
    if (old.kind, new.kind) == (TypeKind.FLOAT64, TypeKind.FLOAT32):
        return old
    return new


_MOMENTS = {TypeKind.DATE, TypeKind.DATETIME, TypeKind.TIMESTAMP, TypeKind.TIME}
_LABELS = {TypeKind.ENUM, TypeKind.SET, TypeKind.STRING}
_EXACT = {TypeKind.DECIMAL, TypeKind.UINT64}


def _wire_for(given: LogicalType, described: WireColumn) -> int:
    """Return the representation of a value described as `described` in a column with another configured type."""
    if given.kind in _MOMENTS and described.wire in (cells.WIRE_NANO_MOMENT, cells.WIRE_NANO_TIME):
        return cells.WIRE_NANOS
    if described.type.kind is given.kind:
        return described.wire
    if any(given.kind in family and described.type.kind in family for family in (_MOMENTS, _EXACT, _LABELS)):
        return described.wire
    if described.type.kind is TypeKind.DECIMAL and given.kind is TypeKind.STRING:
        raise _unfit(given, described)
    return cells.WIRE_PLAIN


def _unfit(given: LogicalType, described: WireColumn) -> Exception:
    from raycdc.errors import SchemaError

    return SchemaError(
        f"Column {described.name!r} is given as {given.kind.value}, but the messages hold {described.type.kind.value}. "
        f"Give it as DECIMAL({described.type.precision}, {described.type.scale})."
    )
