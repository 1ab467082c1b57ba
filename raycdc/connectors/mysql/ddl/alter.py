"""Applies ALTER TABLE to a `MySqlTable`: returns the table afterwards, and the elementary events that lead there.

Columns are put in order exactly as the server does it (``mysql_prepare_alter_table``). First come the existing columns
in their order: dropped columns are left out, and changed columns stay in their place. Then, in the order of the
statement, added columns are inserted, and changed columns with a position are taken out and inserted there. Therefore
all actions of a statement refer to the columns as they were before it, and positions refer to the new names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from raycdc.connectors.mysql.ddl.conversions import equals_as_before, keeps_values, may_lose, recomputed
from raycdc.connectors.mysql.ddl.defaults import fill_of
from raycdc.connectors.mysql.ddl.parse.column import charset_of_collation
from raycdc.connectors.mysql.ddl.parse.statements import (
    AddColumn,
    AlterTable,
    ChangeColumn,
    ColumnDefinition,
    DdlDialect,
    DropColumn,
    NotNull,
    RenameColumn,
    RenameTo,
    RowsUnlogged,
    SetCharset,
    SetComment,
    SetDefault,
    SetPrimaryKey,
    SetVersioning,
    Spelled,
    UniqueKey,
)
from raycdc.connectors.mysql.ddl.parse.types import CHARACTER_BASES, WrittenType, spell
from raycdc.connectors.mysql.ddl.shape import Slot, renames, same_name, type_change
from raycdc.connectors.mysql.values.charsets import bytes_per_character
from raycdc.connectors.mysql.values.types import IMPLICIT_ROW_END, MySqlColumn, MySqlTable
from raycdc.errors import SchemaError
from raycdc.model import Column
from raycdc.model.column_names import mysql_fold
from raycdc.model.evolution import (
    AddColumnEvent,
    After,
    AlterColumnPositionEvent,
    AlterColumnTypeEvent,
    AlterPrimaryKeyEvent,
    AlterTableCommentEvent,
    DropColumnEvent,
    First,
    Last,
    RenameColumnEvent,
    RenameTableEvent,
    SchemaChangeEvent,
)

_LARGER_TEXT = {"tinytext": "text", "text": "mediumtext", "mediumtext": "longtext"}
#: Character sets in which ASCII letters have other bytes.
_WIDE = frozenset({"ucs2", "utf16", "utf16le", "utf32"})
_TEXTS = frozenset({"tinytext", "text", "mediumtext", "longtext"})


class UnknownShapeError(SchemaError):
    """The statement is understood, but does not determine the table's columns."""

    cure = "Take a new snapshot of the table: `raycdc tables resnapshot`."


def alter_table(
    table: MySqlTable, ddl: AlterTable, dialect: DdlDialect
) -> tuple[MySqlTable, tuple[SchemaChangeEvent, ...], str | None]:
    """Return the table after `ddl` (under its old name), the events, and why existing rows were rewritten, if they
    were.
    """
    table, conversion = _converted(table, ddl)
    period = {mysql_fold(n) for action in ddl.actions if isinstance(action, NotNull) for n in action.columns}
    slots = _kept(table, ddl, dialect)
    ordered, moved = _ordered(table, slots, ddl, dialect)
    for slot in ordered:
        slot.column = _convert_defined(slot, conversion, dialect)
        if mysql_fold(slot.column.name) in period:
            slot.column = replace(slot.column, nullable=False)
    columns = tuple(slot.column for slot in ordered)
    if not columns:
        raise SchemaError(f"{table.id}: ALTER TABLE leaves no column")
    row_end = _row_end(table, ordered, ddl)
    primary_key = tuple(name for name in _primary_key(table, ordered, ddl) if name != row_end)
    keys = table.unique_keys + (sum(isinstance(a, UniqueKey) for a in ddl.actions) if dialect.mariadb else 0)
    after = replace(table, columns=columns, primary_key=primary_key, row_end=row_end, unique_keys=keys)
    keyed = tuple(replace(c, nullable=False) if c.name in after.primary_key else c for c in columns)
    after = replace(after, columns=keyed)
    events = _events(table, after, ordered, moved, ddl, dialect)
    unlogged = next((action.why for action in ddl.actions if isinstance(action, RowsUnlogged)), None)
    return after, events, unlogged or _rewrites(table, ordered, ddl, dialect)


def events_of_unknown(ddl: AlterTable, dialect: DdlDialect) -> tuple[SchemaChangeEvent, ...]:
    """Return the events that `ddl` implies by itself, for a table without a known schema. Only for display.

    A changed column is reported as altered even if its type was the same before.
    """
    nothing = MySqlTable(ddl.table, ())
    events: list[SchemaChangeEvent] = []
    for action in ddl.actions:
        match action:
            case AddColumn(definition, position):
                column = server_column(inherit(definition, nothing), dialect)
                value = fill_of(column, definition, dialect).value
                logical = Column(column.name, column.logical(), column.nullable, value)
                events.append(AddColumnEvent(ddl.table, logical, position or Last()))
            case DropColumn(name):
                events.append(DropColumnEvent(ddl.table, name))
            case RenameColumn(name, new_name):
                events.append(RenameColumnEvent(ddl.table, name, new_name))
            case ChangeColumn(name, definition, position):
                column = server_column(inherit(definition, nothing), dialect)
                if not same_name(name, column.name):
                    events.append(RenameColumnEvent(ddl.table, name, column.name))
                events.append(AlterColumnTypeEvent(ddl.table, column.name, column.logical(), column.nullable))
                if position is not None:
                    events.append(AlterColumnPositionEvent(ddl.table, column.name, position))
            case SetPrimaryKey(columns):
                events = [event for event in events if not isinstance(event, AlterPrimaryKeyEvent)]
                events.append(AlterPrimaryKeyEvent(ddl.table, columns))
            case SetComment(comment):
                events.append(AlterTableCommentEvent(ddl.table, comment))
            case RenameTo(new_table):
                events.append(RenameTableEvent(ddl.table, new_table))
            case SetDefault() | NotNull() | SetCharset() | RowsUnlogged() | UniqueKey() | SetVersioning():
                pass
            case _:
                assert_never(action)
    return tuple(events)


def inherit(definition: ColumnDefinition, table: MySqlTable) -> ColumnDefinition:
    """Return `definition` with the table's character set and collation, if its type has one and it names none."""
    base = definition.type.base
    if base not in CHARACTER_BASES:
        return replace(definition, charset="", collation="")
    if definition.charset:
        return definition
    charset, collation = table.charset, table.collation
    if not charset:
        # If the table's default is unknown, the most frequent set of its columns is the best guess.
        seen = [(c.charset, c.collation) for c in table.columns if c.charset]
        charset, collation = max(seen, key=seen.count) if seen else ("utf8mb4", "")
    if definition.binary_collation and not definition.collation:
        collation = "binary" if charset == "binary" else f"{charset}_bin"
    return replace(definition, charset=charset, collation=definition.collation or collation)


def server_column(definition: ColumnDefinition, dialect: DdlDialect) -> MySqlColumn:
    """Return the column as the server's catalogue will describe it.

    Character set and collation must be inherited already.
    """
    if definition.charset == "binary" and definition.type.labels and dialect.connection in _WIDE:
        raise UnknownShapeError(f"the labels of {definition.name!r} are bytes of the session's {dialect.connection}")
    column_type = spell(
        definition.type,
        charset=definition.charset,
        display_width=dialect.display_width,
        mysql8=dialect.geomcollection and not dialect.mariadb,
    )
    is_text = (
        definition.charset not in ("", "binary")
        and not column_type.startswith(("binary", "varbinary"))
        and "blob" not in column_type
    )
    collation = definition.collation
    if collation.startswith("uca"):
        # MariaDB's collations that fit several sets are printed with the set as a prefix.
        collation = f"{definition.charset}_{collation}"
    column = MySqlColumn(
        name=definition.name,
        column_type=column_type,
        charset=definition.charset if is_text else "",
        collation=collation if is_text else "",
        nullable=definition.nullable,
        default=definition.default,
        extra=definition.extra,
    )
    return dialect.types.treat(column)


def _kept(table: MySqlTable, ddl: AlterTable, dialect: DdlDialect) -> list[Slot]:
    """Return the remaining columns, renamed and changed by the statement, in their old order."""
    names = {mysql_fold(column.name): column for column in table.columns}
    dropped: set[str] = set()
    changed: dict[str, Slot] = {}
    new = {mysql_fold(name) for name in _new_names(ddl)}
    for action in ddl.actions:
        if not isinstance(action, DropColumn | ChangeColumn | RenameColumn | SetDefault):
            continue
        key = mysql_fold(action.name)
        column = names.get(key)
        if column is None:
            if action.if_exists or (isinstance(action, SetDefault) and key in new):
                continue
            raise SchemaError(f"{table.id}: ALTER TABLE names column {action.name!r}, but the table has {_list(table)}")
        so_far = changed.get(key) or Slot(column, column)
        match action:
            case DropColumn():
                dropped.add(key)
            case ChangeColumn(_, definition, position):
                definition = inherit(definition, table)
                changed[key] = Slot(column, server_column(definition, dialect), position, definition)
            case RenameColumn(_, new_name):
                changed[key] = replace(so_far, column=replace(so_far.column, name=new_name))
            case SetDefault(default=default):
                changed[key] = replace(so_far, column=replace(so_far.column, default=default))
    kept = (column for column in table.columns if mysql_fold(column.name) not in dropped)
    return [changed.get(mysql_fold(column.name)) or Slot(column, column) for column in kept]


def _ordered(
    table: MySqlTable, slots: list[Slot], ddl: AlterTable, dialect: DdlDialect
) -> tuple[list[Slot], list[Slot]]:
    """Return all columns in their new order, and those with an explicit position in the order of their placement."""
    ordered = list(slots)
    moved: list[Slot] = []
    # `IF [NOT] EXISTS` refers to the columns before the statement, whatever other actions do to them.
    there = {mysql_fold(column.name) for column in table.columns}
    defaults = {mysql_fold(a.name): a for a in ddl.actions if isinstance(a, SetDefault) and not a.if_exists}
    for action in ddl.actions:
        match action:
            case ChangeColumn(name, _, First() | After()):
                slot = next((s for s in slots if s.before is not None and same_name(s.before.name, name)), None)
                if slot is None:
                    continue
                ordered.remove(slot)
            case AddColumn(definition, position, if_not_exists):
                key = mysql_fold(definition.name)
                if if_not_exists and (key in there or any(same_name(s.column.name, key) for s in moved)):
                    continue
                definition = inherit(definition, table)
                if key in defaults and key not in there:
                    definition = _with_default(definition, defaults[key])
                slot = Slot(None, server_column(definition, dialect), position, definition)
            case _:
                continue
        _insert(table, ordered, slot)
        moved.append(slot)
    names = [mysql_fold(slot.column.name) for slot in ordered]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SchemaError(f"{table.id}: ALTER TABLE leaves two columns called {twice!r}")
    return ordered, moved


def _new_names(ddl: AlterTable) -> list[str]:
    """Return the names that the statement gives to columns."""
    names = []
    for action in ddl.actions:
        match action:
            case AddColumn(definition) | ChangeColumn(_, definition):
                names.append(definition.name)
            case RenameColumn(_, new_name):
                names.append(new_name)
    return names


def _with_default(definition: ColumnDefinition, action: SetDefault) -> ColumnDefinition:
    """Return an added column whose default the same statement sets or removes: existing rows get the final default."""
    default, computed, spelled = action.default, action.computed, action.spelled
    if spelled is Spelled.HEXADECIMAL:
        default, computed, spelled = None, "a constant written in hexadecimal", Spelled.TEXT
    return replace(definition, default=default, computed=definition.computed or computed, spelled=spelled)


def _insert(table: MySqlTable, ordered: list[Slot], slot: Slot) -> None:
    match slot.position:
        case None:
            ordered.append(slot)
        case First():
            ordered.insert(0, slot)
        case After(name):
            index = next((i for i, s in enumerate(ordered) if same_name(s.column.name, name)), None)
            if index is None:
                raise SchemaError(
                    f"{table.id}: ALTER TABLE puts {slot.column.name!r} after {name!r}, which is no column"
                )
            ordered.insert(index + 1, slot)


def _converted(table: MySqlTable, ddl: AlterTable) -> tuple[MySqlTable, SetCharset | None]:
    """Return the table with its new default character set, and the action CONVERT TO, if there is one."""
    conversion: SetCharset | None = None
    for action in ddl.actions:
        if isinstance(action, SetCharset):
            charset = action.charset or charset_of_collation(action.collation) or table.charset
            table = replace(table, charset=charset, collation=action.collation)
            conversion = action if action.convert else conversion
    return table, conversion


def _convert_defined(slot: Slot, conversion: SetCharset | None, dialect: DdlDialect) -> MySqlColumn:
    """Convert the character set of a column that the same statement may also redefine, like `_convert`.

    A TEXT(n) then has room for n of the new characters. A TEXT without a length becomes larger on some servers only.
    """
    definition = slot.definition
    if conversion is None or definition is None or slot.column.shape.base not in _TEXTS:
        return _convert(slot.column, conversion)
    if not definition.type.numbers:
        raise UnknownShapeError(
            f"column {slot.column.name!r} is defined and converted to another character set at once"
        )
    charset = conversion.charset or charset_of_collation(conversion.collation) or definition.charset
    return server_column(replace(definition, charset=charset, collation=conversion.collation), dialect)


def _convert(column: MySqlColumn, conversion: SetCharset | None) -> MySqlColumn:
    # Binary columns and JSON have no character set that could be converted.
    if conversion is None or not column.charset or column.charset == "binary":
        return column
    charset = conversion.charset or charset_of_collation(conversion.collation) or column.charset
    if charset != column.charset and column.labels and not _ascii_labels(column, charset):
        raise UnknownShapeError(
            f"the labels of {column.name!r} were converted to {charset}, which servers print differently"
        )
    if charset == "binary":
        raise SchemaError(f"column {column.name!r} became binary by CONVERT TO CHARACTER SET, which cannot be followed")
    column_type = column.column_type
    # A text column that may need more bytes becomes the next larger type, so that it can hold as many characters as
    # before (manual, "ALTER TABLE", Changing the Character Set).
    if column_type in _LARGER_TEXT and bytes_per_character(charset) > bytes_per_character(column.charset):
        column_type = _LARGER_TEXT[column_type]
    shape = column.shape
    if shape.base == "varchar":
        # Without strict mode, a VARCHAR that no longer fits becomes a TEXT, like one that is defined too long.
        fitting = spell(WrittenType("varchar", (shape.length,)), charset=charset, display_width=False)
        column_type = column_type if fitting.startswith("varchar") else fitting
    return replace(column, column_type=column_type, charset=charset, collation=conversion.collation)


def _ascii_labels(column: MySqlColumn, charset: str) -> bool:
    return all(label.isascii() for label in column.labels) and _WIDE.isdisjoint({charset, column.charset})


def _primary_key(table: MySqlTable, ordered: Sequence[Slot], ddl: AlterTable) -> tuple[str, ...]:
    new_names = {mysql_fold(s.before.name): s.column.name for s in ordered if s.before is not None}
    columns = tuple(new_names[mysql_fold(key)] for key in table.primary_key if mysql_fold(key) in new_names)
    spelling = {mysql_fold(slot.column.name): slot.column.name for slot in ordered}
    for action in ddl.actions:
        if isinstance(action, SetPrimaryKey):
            missing = next((name for name in action.columns if mysql_fold(name) not in spelling), None)
            if missing is not None:
                raise SchemaError(f"{table.id}: ALTER TABLE puts {missing!r} into the primary key, but it is no column")
            columns = tuple(spelling[mysql_fold(name)] for name in action.columns)
        elif isinstance(action, ChangeColumn) and action.definition.primary_key:
            columns = (spelling[mysql_fold(action.definition.name)],)
    return columns


def _row_end(table: MySqlTable, ordered: Sequence[Slot], ddl: AlterTable) -> str:
    """Return `MySqlTable.row_end` after the statement: existing rows become current, or only current rows remain."""
    named = next((s.column.name for s in ordered if s.definition is not None and s.definition.period == "END"), "")
    renamed = {s.before.name: s.column.name for s in ordered if s.before is not None}
    row_end = renamed.get(table.row_end, table.row_end)
    for action in ddl.actions:
        if isinstance(action, SetVersioning):
            row_end = (named or IMPLICIT_ROW_END) if action.on else ""
    lost = row_end == table.row_end and row_end not in renamed and row_end in (c.name for c in table.columns)
    if lost or (named and named != row_end):
        raise UnknownShapeError(f"{table.id}: it is unknown how old versions of rows differ from current ones")
    return row_end


def _events(
    before: MySqlTable,
    after: MySqlTable,
    ordered: Sequence[Slot],
    moved: Sequence[Slot],
    ddl: AlterTable,
    dialect: DdlDialect,
) -> tuple[SchemaChangeEvent, ...]:
    """Return elementary events in an order in which each can be applied after the previous one."""
    stays = {slot.before.name for slot in ordered if slot.before is not None}
    events: list[SchemaChangeEvent] = [
        DropColumnEvent(before.id, c.name) for c in before.columns if c.name not in stays
    ]
    final = {column.name: column for column in after.columns}
    spelled = {mysql_fold(name): name for name in final}
    events += renames(before, ordered)
    for slot in ordered:
        if slot.before is not None:
            events += type_change(before, slot.before, final[slot.column.name])
    for slot in moved:
        column, position = final[slot.column.name], slot.position
        if isinstance(position, After):
            # This is the column's own spelling; a statement may use another case.
            position = After(spelled[mysql_fold(position.column)])
        if slot.before is None:
            value = None if slot.definition is None else fill_of(column, slot.definition, dialect).value
            logical = Column(column.name, column.logical(), column.nullable, value)
            events.append(AddColumnEvent(before.id, logical, position or Last()))
        elif position is not None:
            events.append(AlterColumnPositionEvent(before.id, column.name, position))
    renamed = {slot.before.name: slot.column.name for slot in ordered if slot.before is not None}
    if tuple(renamed[key] for key in before.primary_key if key in renamed) != after.primary_key:
        events.append(AlterPrimaryKeyEvent(before.id, after.primary_key))
    events += [AlterTableCommentEvent(before.id, a.comment) for a in ddl.actions if isinstance(a, SetComment)]
    return tuple(events)


def _rewrites(table: MySqlTable, ordered: Sequence[Slot], ddl: AlterTable, dialect: DdlDialect) -> str | None:
    # Without IGNORE and in strict mode, the statement fails if it would have to cut a value or leave out a row.
    forgiving = ddl.ignore or not dialect.strict
    if ddl.ignore and any(
        isinstance(a, UniqueKey) or (isinstance(a, SetPrimaryKey) and a.columns) for a in ddl.actions
    ):
        return "ALTER IGNORE drops rows that violate a new key"
    for slot in ordered:
        name, definition = slot.column.name, slot.definition
        if slot.before is None:
            if definition is not None and definition.computed:
                return f"the new column {name!r} holds {definition.computed} in the existing rows"
            unsure = "" if definition is None else fill_of(slot.column, definition, dialect).unsure
            if unsure:
                return f"the new column {name!r} holds {unsure} in the existing rows"
            continue
        if slot.column.is_counter and not slot.before.is_counter and any(s.column.is_virtual for s in ordered):
            return f"the column {name!r} became a counter, which VIRTUAL columns may read"
        if definition is not None and (slot.before.is_generated or slot.column.is_generated):
            return f"the column {name!r} is computed again in the existing rows"
        if why := _converted_otherwise(slot.before, slot.column, dialect):
            return why
        lost = may_lose(slot.before, slot.column, forgiving=forgiving)
        if lost:
            return f"in the column {name!r}, now {slot.column.column_type}, it may be that {lost} without an error"
        if ddl.ignore and not equals_as_before(slot.before, slot.column):
            return f"the column {name!r} is compared differently now, and ALTER IGNORE drops rows that violate a key"
    return recomputed(((slot.before, slot.column) for slot in ordered), row_end=table.row_end) or None


def _converted_otherwise(before: MySqlColumn, after: MySqlColumn, dialect: DdlDialect) -> str:
    """Return why values of `before` differ in `after` although they were not cut; empty if they are equal."""
    if not keeps_values(before, after):
        return f"the column {after.name!r} was converted from {before.column_type} to {after.column_type}"
    if after.is_counter and not before.is_counter and (before.nullable or not dialect.zero_is_value):
        return f"the column {after.name!r} became a counter, which puts its next numbers in place of zeros and nulls"
    if dialect.pads_char and before.shape.base == "char" and after.shape.base != "char":
        return f"the values of {after.name!r} got spaces at their end (sql_mode has PAD_CHAR_TO_FULL_LENGTH)"
    return ""


def _list(table: MySqlTable) -> str:
    return ", ".join(column.name for column in table.columns)
