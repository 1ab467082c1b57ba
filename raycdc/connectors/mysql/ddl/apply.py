"""Interprets DDL of the log: which tables a statement affects, what it means, and its effect on a table.

The log reader calls `affected_tables` for every statement (cheap), parses only those that affect a captured table
(`parse_ddl`), and applies each result in order to its table (`apply_ddl`): the new `MySqlTable` decodes the rows that
follow, and the events inform the sink. A statement that cannot be followed exactly is never guessed at: parsing returns
a `RefusedStatement`, and applying raises a `SchemaError` if the statement contradicts our model of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import assert_never

from raycdc.connectors.mysql.ddl.alter import UnknownShapeError, alter_table, inherit, server_column
from raycdc.connectors.mysql.ddl.logged_otherwise import definitions_mislead
from raycdc.connectors.mysql.ddl.parse.parser import StatementParser
from raycdc.connectors.mysql.ddl.parse.statements import (
    AlterTable,
    CreateOrAlterDatabase,
    CreateTable,
    DdlDialect,
    DropDatabase,
    DropTable,
    RefusedStatement,
    RenameTable,
    RenameTo,
    TableDdl,
    TemporaryTable,
    TruncateTable,
)
from raycdc.connectors.mysql.ddl.parse.token_cursor import DdlCursor, FilledByQuery, Unparsable
from raycdc.connectors.mysql.ddl.parse.tokens import LexError, first_word
from raycdc.connectors.mysql.ddl.parse.types import CHARACTER_BASES
from raycdc.connectors.mysql.values.types import IMPLICIT_ROW_END, MySqlTable
from raycdc.errors import SchemaError
from raycdc.model import TableId
from raycdc.model.column_names import mysql_fold
from raycdc.model.evolution import (
    AlterPrimaryKeyEvent,
    CreateTableEvent,
    DropTableEvent,
    RenameTableEvent,
    SchemaChangeEvent,
    TruncateTableEvent,
)

__all__ = [
    "AffectedTables",
    "AppliedDdl",
    "DdlDialect",
    "RefusedStatement",
    "TableDdl",
    "affected_tables",
    "apply_ddl",
    "parse_ddl",
]

_DEFAULT_DIALECT = DdlDialect()

#: The first word is enough for nearly every statement of a log.
_DDL_WORDS = frozenset({"CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE", "REPAIR", "SET"})


@dataclass(frozen=True, slots=True)
class AffectedTables:
    """The tables that a statement changes, by name, and the databases that it drops with all their tables."""

    tables: tuple[TableId, ...] = ()
    databases: tuple[str, ...] = ()
    #: True if the statement sets a database's defaults, which concern only tables that are created later.
    defaults: bool = False
    #: The temporary tables that the statement creates, and the temporary tables that it drops.
    made_temporary: tuple[TableId, ...] = ()
    dropped_temporary: tuple[TableId, ...] = ()
    #: The sequences of MariaDB that the statement creates, and the sequences that it drops.
    made_sequences: tuple[TableId, ...] = ()
    dropped_sequences: tuple[TableId, ...] = ()
    #: The statement's first word. It is ALTER for DROP INDEX, which has the same effect.
    verb: str = field(default="", compare=False)
    #: The reason why the statement's names cannot be read, so that it may concern any table in its text; empty if they
    #: can.
    unread: str = ""

    def __bool__(self) -> bool:
        return bool(self.tables or self.databases)


@dataclass(frozen=True, slots=True)
class AppliedDdl:
    """The effect of a statement on one table.

    `table` is the table afterwards (None: it is dropped), `events` lead from the old schema to the new one, in order.
    `rewrites` says why existing rows changed in a way that the log does not show (a converted column, a computed
    default), so that only a new snapshot gives their values; None if they did not.
    """

    table: MySqlTable | None
    events: tuple[SchemaChangeEvent, ...] = ()
    rewrites: str | None = None

    @property
    def not_followed(self) -> str | None:
        """Return the type of the first event that sinks cannot apply: a new primary key, or a new name of the table."""
        return next((e.type for e in self.events if isinstance(e, AlterPrimaryKeyEvent | RenameTableEvent)), None)


def affected_tables(statement: str, default_db: str, *, dialect: DdlDialect = _DEFAULT_DIALECT) -> AffectedTables:
    """Return the tables that `statement` creates, changes, renames (both names), empties or drops.

    It reads only names, so that a statement about other tables is never parsed further, whatever its content.
    """
    verb = first_word(statement)
    if verb not in _DDL_WORDS:
        return AffectedTables()
    try:
        return _affected(DdlCursor(statement, default_db, dialect))
    except (Unparsable, LexError) as reason:
        return AffectedTables(unread=str(reason), verb=verb)


def parse_ddl(
    statement: str, default_db: str, *, dialect: DdlDialect = _DEFAULT_DIALECT
) -> tuple[TableDdl, ...] | RefusedStatement:
    """Return the effects of `statement` on tables, in order; empty for statements without effect (views, users,
    indexes).

    `default_db` is the session's database. Never raises: a statement that is not understood is a `RefusedStatement`,
    with the reason.
    """
    try:
        return tuple(StatementParser(statement, default_db, dialect).parse())
    except FilledByQuery as reason:
        return RefusedStatement(statement, str(reason), filled=True)
    except (Unparsable, LexError) as reason:
        return RefusedStatement(statement, str(reason))
    except RecursionError:
        return RefusedStatement(statement, "parentheses are nested too deeply")


def apply_ddl(
    table: MySqlTable | None,
    ddl: TableDdl,
    *,
    find_table: Callable[[TableId], MySqlTable | None] | None = None,
    dialect: DdlDialect = _DEFAULT_DIALECT,
    default_charset: tuple[str, str] = ("utf8mb4", ""),
) -> AppliedDdl:
    """Return the result of `ddl` for `table`, which is None if the table does not exist before the statement.

    `find_table` finds the other table of CREATE TABLE … LIKE. `default_charset` is the database's character set and
    collation, for a CREATE TABLE that names none. Raises `SchemaError` if the statement cannot have succeeded on this
    table.
    """
    match ddl:
        case CreateTable():
            return _create(table, ddl, find_table=find_table, dialect=dialect, default_charset=default_charset)
        case AlterTable():
            if table is None and ddl.if_exists:
                return AppliedDdl(None)
            return _alter(_existing(table, ddl.table, "altered"), ddl, dialect)
        case RenameTable(old, new):
            if table is None and ddl.if_exists:
                return AppliedDdl(None)
            renamed = replace(_existing(table, old, "renamed"), id=new)
            return AppliedDdl(renamed, (RenameTableEvent(old, new),))
        case TruncateTable():
            return AppliedDdl(_existing(table, ddl.table, "truncated"), (TruncateTableEvent(ddl.table),))
        case DropTable():
            if table is None and ddl.if_exists:
                return AppliedDdl(None)
            _existing(table, ddl.table, "dropped")
            return AppliedDdl(None, (DropTableEvent(ddl.table),))
        case DropDatabase():
            return AppliedDdl(None, (DropTableEvent(table.id),) if table is not None else ())
        case CreateOrAlterDatabase() | TemporaryTable():
            return AppliedDdl(table)
        case _:
            assert_never(ddl)


def _create(
    table: MySqlTable | None,
    ddl: CreateTable,
    *,
    find_table: Callable[[TableId], MySqlTable | None] | None,
    dialect: DdlDialect,
    default_charset: tuple[str, str],
) -> AppliedDdl:
    if table is not None and ddl.if_not_exists:
        return AppliedDdl(table)
    if table is not None and not ddl.or_replace:
        raise SchemaError(f"{ddl.table} is created, but exists already")
    dropped: tuple[SchemaChangeEvent, ...] = () if table is None else (DropTableEvent(ddl.table),)
    if ddl.like is not None:
        other = find_table(ddl.like) if find_table is not None else None
        if other is None:
            raise UnknownShapeError(f"{ddl.table} is created like {ddl.like}, whose columns are not known here")
        created = replace(other, id=ddl.table)
    else:
        created = _created(ddl, dialect, default_charset)
    return AppliedDdl(created, (*dropped, CreateTableEvent(ddl.table, created.schema(), ddl.comment)))


def _created(ddl: CreateTable, dialect: DdlDialect, default_charset: tuple[str, str]) -> MySqlTable:
    charset, collation = default_charset
    if ddl.charset or ddl.collation:
        charset, collation = ddl.charset or charset, ddl.collation
    empty = MySqlTable(ddl.table, (), charset=charset, collation=collation)
    if not charset and any(d.type.base in CHARACTER_BASES and not d.charset for d in ddl.columns):
        raise UnknownShapeError(f"the default character set of {ddl.table.db} is not known")
    columns = tuple(server_column(inherit(definition, empty), dialect) for definition in ddl.columns)
    by_name = {mysql_fold(column.name): column.name for column in columns}
    if len(by_name) != len(columns) or not columns:
        raise SchemaError(f"{ddl.table} is created with {'the same column twice' if columns else 'no columns'}")
    missing = [name for name in ddl.primary_key if mysql_fold(name) not in by_name]
    if missing:
        raise SchemaError(f"{ddl.table} is created with a primary key over {missing[0]!r}, which is no column of it")
    named = next((definition.name for definition in ddl.columns if definition.period == "END"), IMPLICIT_ROW_END)
    row_end = named if ddl.versioned else ""
    primary_key = tuple(name for key in ddl.primary_key if (name := by_name[mysql_fold(key)]) != row_end)
    keyed = tuple(replace(c, nullable=False) if c.name in primary_key else c for c in columns)
    unique_keys = ddl.unique_keys if dialect.mariadb else 0
    return replace(
        empty,
        columns=keyed,
        primary_key=primary_key,
        row_end=row_end,
        unique_keys=unique_keys,
        misleading=definitions_mislead(ddl.columns, keyed),
    )


def _alter(table: MySqlTable, ddl: AlterTable, dialect: DdlDialect) -> AppliedDdl:
    after, events, rewrites = alter_table(table, ddl, dialect)
    for action in ddl.actions:
        if isinstance(action, RenameTo) and action.table != after.id:
            after = replace(after, id=action.table)
            events = (*(e for e in events if e.type != "rename_table"), RenameTableEvent(table.id, action.table))
    return AppliedDdl(after, events, rewrites)


def _existing(table: MySqlTable | None, name: TableId, what: str) -> MySqlTable:
    if table is None:
        raise SchemaError(f"{name} is {what}, but no such table is known here")
    return table


def _affected(cursor: DdlCursor) -> AffectedTables:
    if cursor.accept("SET"):
        # This is MariaDB's SET STATEMENT … FOR statement; a plain SET has no FOR.
        while not cursor.at_end() and not cursor.accept("FOR"):
            cursor.skip()
    verb = cursor.word()
    affected = _affected_by(verb, cursor)
    return replace(affected, verb=affected.verb or verb)


def _affected_by(verb: str, cursor: DdlCursor) -> AffectedTables:
    match verb:
        case "CREATE":
            cursor.skip()
            replaces = cursor.accept("OR", "REPLACE")
            if cursor.accept("DATABASE") or cursor.accept("SCHEMA"):
                cursor.accept("IF", "NOT", "EXISTS")
                return AffectedTables(databases=(cursor.database(),) if replaces else (), defaults=True)
            if cursor.accept("UNIQUE"):
                return AffectedTables((cursor.indexed_table(),))
            temporary = cursor.accept("TEMPORARY")
            sequence = cursor.accept("SEQUENCE")
            if not (sequence or cursor.accept("TABLE")):
                return AffectedTables()
            cursor.accept("IF", "NOT", "EXISTS")
            made = (cursor.table(),)
            if temporary:
                return AffectedTables(made_temporary=made)
            return AffectedTables(made_sequences=made) if sequence else AffectedTables(made)
        case "TRUNCATE":
            cursor.skip()
            cursor.accept("TABLE")
            return AffectedTables((cursor.table(),))
        case "ALTER":
            return _affected_by_alter(cursor)
        case "DROP":
            return _affected_by_drop(cursor)
        case "RENAME":
            cursor.skip()
            return (
                AffectedTables(_name_list(cursor))
                if cursor.accept("TABLE") or cursor.accept("TABLES")
                else AffectedTables()
            )
        case "REPAIR":
            cursor.skip()
            return (
                AffectedTables(_name_list(cursor))
                if cursor.accept("TABLE") or cursor.accept("TABLES")
                else AffectedTables()
            )
        case _:
            return AffectedTables()


def _affected_by_alter(cursor: DdlCursor) -> AffectedTables:
    cursor.skip()
    if cursor.word() in ("DATABASE", "SCHEMA"):
        return AffectedTables(defaults=True)
    cursor.accept("ONLINE")
    cursor.accept("IGNORE")
    if not cursor.accept("TABLE"):
        return AffectedTables()
    cursor.accept("IF", "EXISTS")
    tables = [cursor.table()]
    while not cursor.at_end():
        # EXCHANGE PARTITION … WITH TABLE name swaps rows with the other table. CONVERT makes a table of a partition, or
        # a partition of a table. RENAME [TO] name replaces the table's name.
        if cursor.accept("WITH", "TABLE") or cursor.accept("TO", "TABLE") or cursor.accept("CONVERT", "TABLE"):
            tables.append(cursor.table())
        elif cursor.accept("RENAME"):
            if cursor.word() in ("COLUMN", "INDEX", "KEY"):
                continue
            if not (cursor.accept("TO") or cursor.accept("AS")):
                cursor.accept_symbol("=")
            tables.append(cursor.table())
        else:
            cursor.skip()
    return AffectedTables(tuple(tables))


def _affected_by_drop(cursor: DdlCursor) -> AffectedTables:
    cursor.skip()
    if cursor.accept("DATABASE") or cursor.accept("SCHEMA"):
        cursor.accept("IF", "EXISTS")
        return AffectedTables(databases=(cursor.database(),))
    if cursor.accept("TEMPORARY"):
        of_tables = cursor.accept("TABLE") or cursor.accept("TABLES") or cursor.accept("SEQUENCE")
        return AffectedTables(dropped_temporary=_name_list(cursor)) if of_tables else AffectedTables()
    if cursor.accept("TABLE") or cursor.accept("TABLES"):
        return AffectedTables(_name_list(cursor))
    if cursor.accept("SEQUENCE"):
        return AffectedTables(dropped_sequences=_name_list(cursor))
    # DROP INDEX `PRIMARY` ON a table drops its primary key.
    if cursor.accept("INDEX"):
        cursor.accept("IF", "EXISTS")
        if cursor.identifier().upper() == "PRIMARY" and cursor.accept("ON"):
            return AffectedTables((cursor.table(),), verb="ALTER")
    return AffectedTables()


def _name_list(cursor: DdlCursor) -> tuple[TableId, ...]:
    """Read the names in DROP TABLE and RENAME TABLE, which are separated by commas or TO."""
    cursor.accept("IF", "EXISTS")
    cursor.wait_clause()
    names = [cursor.table()]
    while not cursor.at_end():
        cursor.wait_clause()
        if cursor.accept_symbol(",") or cursor.accept("TO"):
            names.append(cursor.table())
        else:
            cursor.skip()
    return tuple(names)
