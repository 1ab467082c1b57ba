"""DDL messages of topics: the effect of each, or the reason why it cannot be followed. Pure.

A format detects such messages, and returns their explicit events (`ChangeItem.events`) and their statement, which is
parsed by a function of `raycdc.source.connector.SourceContext`. If messages describe their columns, a format returns
the changes between two descriptions (`ChangeItem.described`), to which the same rules apply.

| the statement | becomes |
|---|---|
| CREATE TABLE | the table's schema, before its first row |
| ADD COLUMN with a constant default | a column with that default in existing rows; nothing if columns are configured |
| other new columns, DROP COLUMN, a wider type | nothing, because rows show them; a dropped column is remembered |
| ADD COLUMN with the name of a dropped one | refused: existing rows lost the value that the target has |
| a description without one column and with a new one | refused: it may have been renamed |
| TRUNCATE, DROP or CREATE OR REPLACE TABLE | a ``T`` row and the event, if all its rows are in this partition |
| any other change of existing rows | refused; ``format.ddl = "ignore"`` skips all statements |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from raycdc.connectors.kafka.enumeration.schemas import wider
from raycdc.errors import SchemaError, StatementError
from raycdc.formats.api import ChangeItem
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.column_names import mysql_fold
from raycdc.model.evolution import (
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
from raycdc.model.evolution.events import named_change
from raycdc.model.redaction import without_literals, without_values
from raycdc.model.rules.mask import Masks
from raycdc.transform.masks import masked_default

Emptied = TruncateTableEvent | DropTableEvent
Events = tuple[SchemaChangeEvent, ...]
#: The function that parses a statement with a default database. Raises `StatementError` with the reason if it cannot.
ReadStatement = Callable[[str, str], Events]
Known = Callable[[TableId], TableSchema | None]
#: The columns that statements dropped, by table, in lower case. Some rows of the target still have a value there.
Dropped = Mapping[str, Collection[str]]

_INTEGERS = frozenset({TypeKind.INT8, TypeKind.INT16, TypeKind.INT32, TypeKind.INT64, TypeKind.UINT64})
_EXACT = _INTEGERS | {TypeKind.DECIMAL}


@dataclass(frozen=True, slots=True)
class StatementEffects:
    """The schemas in force after the message, and the tables whose rows it removes.

    `defaults` are columns whose default existing rows get; `dropped` are columns to remember from now on.
    """

    schemas: Mapping[TableId, TableSchema] = field(default_factory=dict)
    emptied: tuple[Emptied, ...] = ()
    defaults: tuple[tuple[TableId, Column], ...] = ()
    dropped: Dropped = field(default_factory=dict)


class DdlMessages:
    """The interpreter of DDL messages.

    `given` returns True if a table's columns are configured. `left_out` are types of events that are ignored. `ours`
    are tables that raycdc itself writes, which no statement concerns. Defaults of columns with `masks` are masked, and
    then no error contains values of a statement.
    """

    def __init__(
        self,
        read: ReadStatement | None = None,
        *,
        given: Callable[[TableId], bool] = lambda _: False,
        left_out: frozenset[str] = frozenset(),
        follow: bool = True,
        masks: Masks | None = None,
        ours: Collection[TableId] = (),
    ) -> None:
        self._ours = frozenset(ours)
        self._masks = masks or Masks()
        self._read = read
        self._given = given
        self._left_out = left_out
        self._follow = follow

    def followed(
        self, item: ChangeItem, known: Known, tables: Collection[TableId] = (), *, dropped: Dropped | None = None
    ) -> StatementEffects:
        """Return the effects of `item` on the tables as `known` describes them; `tables` are all known ones.

        `known` and `dropped` describe the state after the previous messages. Raises `SchemaError` for an impossible
        change.
        """
        if not self._follow:
            return StatementEffects()
        shown = self.shown(item)
        dropped_names = {table: set(names) for table, names in (dropped or {}).items()}
        schemas: dict[TableId, TableSchema] = {}
        emptied: dict[TableId, Emptied] = {}
        defaults: list[tuple[TableId, Column]] = []
        if known(item.table) is not None:
            _check_described(shown)
        for event in (*item.events, *item.described, *self._events(item, known, tables)):
            table, now = event.table, known(event.table)
            if table in self._ours:
                continue
            match event:
                case TruncateTableEvent() | DropTableEvent():
                    if now is not None and event.type not in self._left_out:
                        emptied.setdefault(table, event)
                        dropped_names.pop(str(table), None)
                case CreateTableEvent(_, schema) if item.statement and now is None and table == item.table:
                    if not self._given(table):
                        columns = tuple(self._redacted(shown, table, column) for column in schema.columns)
                        schemas.setdefault(table, replace(schema, columns=columns))
                case DropColumnEvent(_, name) if now is not None:
                    if mysql_fold(name) in (mysql_fold(column.name) for column in now.columns):
                        dropped_names.setdefault(str(table), set()).add(mysql_fold(name))
                case AddColumnEvent(_, column) if mysql_fold(column.name) in dropped_names.get(str(table), ()):
                    raise refusal(shown, f"rows that exist lost their value in {column.name!r} when it was dropped")
                case AddColumnEvent(_, column) if now is not None and column.default is not None:
                    if column.type.kind is TypeKind.TIMESTAMP:
                        raise refusal(
                            shown,
                            f"the default in {column.name!r} of the rows that exist is a time in the time zone of the "
                            f"session that added it, which no message has",
                        )
                    if self._given(table) and _column(now, column.name) is None:
                        # No row is decoded with this column, so a default would be a value that rows do not have.
                        continue
                    typed = self._redacted(shown, table, _as_decoded(column, item))
                    schemas[table] = _with_default(shown, schemas.get(table, now), typed)
                    defaults.append((table, typed))
                case RenameColumnEvent() | RenameTableEvent() | AlterPrimaryKeyEvent() | AlterColumnTypeEvent():
                    _check(shown, event, now)
        remembered = {table: sorted(names) for table, names in dropped_names.items()}
        return StatementEffects(schemas, tuple(emptied.values()), tuple(defaults), remembered)

    def shown(self, item: ChangeItem) -> ChangeItem:
        """Return the item for errors, which quote its statement: without values if there are masks."""
        return replace(item, statement=without_values(item.statement, item.statement)) if self._masks else item

    def _redacted(self, shown: ChangeItem, table: TableId, column: Column) -> Column:
        """Return the column as states may hold it: with its default masked."""
        mask = self._masks.of(table, column.name)
        if mask is None or column.default is None:
            return column
        try:
            default = masked_default(table, column, mask)
        except SchemaError as cause:
            raise refusal(shown, str(cause)) from None
        return replace(column, default=default, masked=default is not None)

    def _events(self, item: ChangeItem, known: Known, tables: Collection[TableId]) -> Events:
        """Return the statement's events; none if an unsupported statement concerns no rows."""
        if not item.statement or self._read is None:
            return ()
        try:
            return self._read(item.statement, item.table.db)
        except StatementError as cause:
            concerned = {item.table, *(TableId(*name) for name in cause.tables)} - self._ours
            rows = any(known(table) is not None for table in concerned)
            if not (rows or any(table.db in cause.databases for table in set(tables) - self._ours)):
                return ()  # No emitted row is concerned, and later rows show their columns.
            if self._masks:
                raise refusal(self.shown(item), without_values(str(cause), item.statement)) from None
            raise refusal(item, str(cause)) from cause


def check_default(item: ChangeItem, column: Column, in_force: TableSchema | None) -> None:
    """Raise `SchemaError` if existing rows did not get a default, because another partition's rows had the column
    before.
    """
    there = None if in_force is None else _column(in_force, column.name)
    if there is None or there.default != column.default:
        raise _too_late(item, column)


def refusal(item: ChangeItem, why: str) -> SchemaError:
    """Return the error for a statement that cannot be followed."""
    if item.statement:
        told, ignored = f"the messages say {without_literals(item.statement):.500}", "DDL messages"
    else:
        changes = dict.fromkeys(named_change(event) for event in (*item.described, *item.events))
        told, ignored = f"its columns changed ({', '.join(changes):.500})", "such changes"
    return SchemaError(
        f"{item.table}: {told}, which cannot be followed: {why}. Ignore {ignored} "
        f'with source.format.ddl = "ignore" if the target shall keep the rows as they are, or '
        "leave the table out with source.format.exclude."
    )


def _as_decoded(column: Column, item: ChangeItem) -> Column:
    """Return the column with the type that the format gives it, if the message names that type."""
    for event in item.events:
        if isinstance(event, AddColumnEvent) and event.column.name == column.name:
            return replace(column, type=event.column.type)
    return column


def _with_default(item: ChangeItem, schema: TableSchema, column: Column) -> TableSchema:
    there = next((c for c in schema.columns if c.name == column.name), None)
    if there is None:
        return replace(schema, columns=(*schema.columns, replace(column, nullable=True)))
    if there.default != column.default:
        raise _too_late(item, column)
    return schema


def _too_late(item: ChangeItem, column: Column) -> SchemaError:
    return refusal(
        item, f"rows with {column.name!r} came before it, so that the rows that exist did not get its default"
    )


def _check(item: ChangeItem, event: SchemaChangeEvent, now: TableSchema | None) -> None:
    """Raise `SchemaError` for a change of existing rows that no message shows."""
    match event:
        case RenameTableEvent(_, new_table):
            raise refusal(item, f"the rows that {new_table} has from before are in no message of that name")
        case RenameColumnEvent(_, name, new_name) if now is not None and _column(now, name) is not None:
            raise refusal(item, f"rows that exist have their value in {name!r}, not in {new_name!r}")
        case AlterPrimaryKeyEvent(_, columns) if now is not None and columns != now.primary_key:
            raise refusal(item, f"the primary key was ({', '.join(now.primary_key)})")
        case AlterColumnTypeEvent(_, name, new_type) if now is not None:
            column = _column(now, name)
            if column is not None and not keeps_values(event.was or column.type, new_type):
                raise refusal(item, f"the values of {name!r} in rows that exist were converted")


def _check_described(item: ChangeItem) -> None:
    """Raise `SchemaError` if a new description of a table does not tell the values that existing rows have now."""
    if item.unclear:
        raise refusal(item, item.unclear)
    gone = [e.name for e in item.described if isinstance(e, DropColumnEvent)]
    added = [e.column.name for e in item.described if isinstance(e, AddColumnEvent)]
    if gone and added:
        raise refusal(
            item,
            f"if {gone[0]!r} was renamed to {added[0]!r}, rows that exist have their value in {gone[0]!r}",
        )


def _column(schema: TableSchema, name: str) -> Column | None:
    return next((column for column in schema.columns if column.name == name), None)


def keeps_values(old: LogicalType, new: LogicalType) -> bool:
    """Return True if values of `old` that fit `new` are unchanged in it; a strict server allows no others."""
    if old.arrow() == new.arrow():
        # As text, more digits after the point are a different value.
        is_text = pa.types.is_string(old.arrow())
        return (new.fsp, new.scale) == (old.fsp, old.scale) if is_text else new.fsp >= old.fsp
    if old.kind in _INTEGERS and new.kind in _INTEGERS:
        return True
    return old.kind in _EXACT and wider(old, new).arrow() == new.arrow()
