"""Tables of a server as ``information_schema`` describes them: which exist, their columns and keys, how big they are.

A handful of queries per database however many tables it has. A user sees only tables it may SELECT from; a table
that is missing here is missing or not granted, and the server does not say which.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from pymysql.connections import Connection

from raycdc.clients.mysql import is_of_changed_table, query, quote_name
from raycdc.connectors.mysql.ddl.shadows import tool_tables
from raycdc.connectors.mysql.values.types import HIDDEN_ROW_END, MySqlColumn, MySqlTable
from raycdc.errors import SourceError
from raycdc.model import TableId

#: Databases of the server itself; never captured.
SYSTEM_DATABASES = ("information_schema", "mysql", "performance_schema", "sys")

#: Kinds of tables that have rows of their own: no views and no sequences.
_WITH_ROWS = ("BASE TABLE", "SYSTEM VERSIONED")

#: How MariaDB prints characters inside quotes.
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r"}
_EXPRESSION_DEFAULT = re.compile(r"^(current_timestamp|now|localtime|uuid|nextval)\b|\(", re.IGNORECASE)


class TableSelector(Protocol):
    """Decides which tables are captured (`raycdc.model.selector`)."""

    def matches(self, table: TableId) -> bool: ...


@dataclass(frozen=True, slots=True)
class TableSize:
    """The server's own estimate of a table: rows, bytes of rows, and whether its engine has consistent reads."""

    rows: int
    bytes: int
    engine: str

    @property
    def row_bytes(self) -> int:
        """Average bytes of a row, at least 1."""
        return max(1, self.bytes // max(1, self.rows))


def discover_tables(
    connection: Connection[Any], selector: TableSelector, *, named: Collection[TableId] = ()
) -> list[TableId]:
    """All base tables outside the system databases that `selector` matches, sorted.

    Tables that schema change tools make beside one of them are left out, unless they are `named`.
    """
    selected = _base_tables(connection, [table for table in _names(connection) if selector.matches(table)])
    return sorted(set(selected) - (tool_tables(selected) - set(named)))


def all_tables(connection: Connection[Any]) -> list[TableId]:
    """All base tables outside the system databases that this account sees, sorted."""
    return sorted(_base_tables(connection, _names(connection)))


def _names(connection: Connection[Any]) -> list[TableId]:
    """Tables and all else that has a name as tables have, outside the system databases.

    Nothing but names is asked for, which waits for no lock: for the kind of one, MariaDB and MySQL 5.7 wait for
    whoever makes or changes any table of the server.
    """
    rows = query(
        connection,
        "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA NOT IN %s",
        (SYSTEM_DATABASES,),
    )
    named = (TableId(_text(db), _text(table)) for db, table in rows)
    return [table for table in named if table.db.lower() not in SYSTEM_DATABASES]


def _base_tables(connection: Connection[Any], named: Collection[TableId]) -> list[TableId]:
    """Those that are tables with rows of their own. This statement waits for no lock, either."""
    tables = set()
    for db in sorted({table.db for table in named}):
        try:
            rows = query(connection, f"SHOW FULL TABLES FROM {quote_name(db)}")
        except SourceError as cause:
            if not is_of_changed_table(cause.__cause__):
                raise
            continue  # The database was dropped meanwhile.
        tables |= {TableId(db, _text(name)) for name, kind in rows if _text(kind) in _WITH_ROWS}
    return [table for table in named if table in tables]


def is_sequence(connection: Connection[Any], table: TableId) -> bool:
    """Whether `table` is one of MariaDB's sequences, which have columns and a row as tables have."""
    wanted = "SELECT TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
    return [_text(row[0]) for row in query(connection, wanted, (table.db, table.table))] == ["SEQUENCE"]


def load_tables(connection: Connection[Any], tables: Iterable[TableId]) -> dict[TableId, MySqlTable]:
    """Columns and primary key of each of `tables`; one that does not exist (or is hidden from us) is left out.

    The columns, the keys and the table's data are not read at one instant: a reader that starts a log at a position
    must prove that no DDL lay between (`raycdc.source`).
    """
    wanted = set(tables)
    by_db: dict[str, list[str]] = defaultdict(list)
    for table in sorted(wanted):
        by_db[table.db].append(table.table)
    columns: dict[TableId, list[MySqlColumn]] = defaultdict(list)
    keys: dict[TableId, list[str]] = defaultdict(list)
    collations: dict[TableId, str] = {}
    row_ends: dict[TableId, str] = {}
    mariadb = "mariadb" in connection.get_server_info().lower()
    for db, names in by_db.items():
        for row in query(connection, _COLUMNS, (db, names)):
            columns[TableId(db, _text(row[0]))].append(_column(row, mariadb=mariadb))
        for row in query(connection, _KEYS, (db, names)):
            keys[TableId(db, _text(row[0]))].append(_text(row[1]))
        for row in query(connection, _COLLATIONS, (db, names)):
            collations[TableId(db, _text(row[0]))] = _text(row[1])
            if _text(row[2]) == "SYSTEM VERSIONED":
                row_ends[TableId(db, _text(row[0]))] = HIDDEN_ROW_END
        if any(table.db == db for table in row_ends):
            row_ends |= {TableId(db, _text(row[0])): _text(row[1]) for row in query(connection, _ROW_ENDS, (db, names))}
    # A server with case-insensitive names answers in its own spelling; only what was asked for is returned.
    return {
        table: MySqlTable(
            table,
            tuple(described),
            tuple(name for name in keys.get(table, ()) if name != row_ends.get(table)),
            charset=collations.get(table, "").partition("_")[0],
            collation=collations.get(table, ""),
            row_end=row_ends.get(table, ""),
        )
        for table, described in columns.items()
        if table in wanted
    }


def database_charsets(connection: Connection[Any]) -> dict[str, tuple[str, str]]:
    """Default character set and collation of each database, which tables inherit that are created there."""
    columns = "SCHEMA_NAME, DEFAULT_CHARACTER_SET_NAME, DEFAULT_COLLATION_NAME"
    rows = query(connection, f"SELECT {columns} FROM information_schema.SCHEMATA")
    return {_text(name): (_text(charset), _text(collation)) for name, charset, collation in rows}


def load_table(connection: Connection[Any], table: TableId) -> MySqlTable:
    """One table; `SourceError` when it does not exist or may not be read."""
    described = load_tables(connection, [table]).get(table)
    if described is None:
        raise SourceError(
            f"Table {table} does not exist on {connection.host}:{connection.port}, or this user may not SELECT from "
            f"it. Check source.tables, or run: GRANT SELECT ON {quote_name(table.db, table.table)} TO ...;"
        )
    return described


def table_sizes(connection: Connection[Any], tables: Iterable[TableId]) -> dict[TableId, TableSize]:
    """Estimates per table. For InnoDB the row count may be off by half; planning only needs the magnitude."""
    by_db: dict[str, list[str]] = defaultdict(list)
    for table in tables:
        by_db[table.db].append(table.table)
    sizes: dict[TableId, TableSize] = {}
    for db, names in by_db.items():
        rows = query(
            connection,
            "SELECT TABLE_NAME, TABLE_ROWS, DATA_LENGTH, ENGINE FROM information_schema.TABLES "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN %s",
            (db, names),
        )
        for name, count, length, engine in rows:
            sizes[TableId(db, _text(name))] = TableSize(int(count or 0), int(length or 0), str(engine or ""))
    return sizes


_COLUMNS = (
    "SELECT TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME, COLLATION_NAME, IS_NULLABLE, COLUMN_DEFAULT, "
    "EXTRA FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN %s "
    "ORDER BY TABLE_NAME, ORDINAL_POSITION"
)

# Every collation of a table begins with the name of its character set (MySQL manual, "Collation Naming Conventions").
_COLLATIONS = (
    "SELECT TABLE_NAME, TABLE_COLLATION, TABLE_TYPE FROM information_schema.TABLES "
    "WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN %s"
)

# Where the user named it; the server puts it into every unique key, this one among them.
_ROW_ENDS = (
    "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN %s "
    "AND GENERATION_EXPRESSION = 'ROW END'"
)

# STATISTICS and not TABLE_CONSTRAINTS: the latter hides keys from users who may only SELECT.
_KEYS = (
    "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN %s "
    "AND INDEX_NAME = 'PRIMARY' ORDER BY TABLE_NAME, SEQ_IN_INDEX"
)


def _column(row: tuple[Any, ...], *, mariadb: bool) -> MySqlColumn:
    _, name, column_type, charset, collation, nullable, default, extra = row
    return MySqlColumn(
        name=_text(name),
        column_type=_text(column_type),
        charset=_text(charset),
        collation=_text(collation),
        nullable=_text(nullable) == "YES",
        default=constant_default(None if default is None else _text(default), _text(extra), quoted=mariadb),
        extra=_text(extra),
    )


def constant_default(default: str | None, extra: str, *, quoted: bool) -> str | None:
    """The constant in ``COLUMN_DEFAULT``, or None when there is none (NULL, or an expression evaluated per row).

    MySQL prints a constant bare and marks expressions in EXTRA (8.0) or prints ``CURRENT_TIMESTAMP``; MariaDB
    (`quoted`) quotes strings and prints ``NULL``, numbers and expressions bare.
    """
    if default is None or "DEFAULT_GENERATED" in extra.upper():
        return None
    if not quoted:
        return None if default.upper().startswith("CURRENT_TIMESTAMP") else default
    if len(default) >= 2 and default[0] == default[-1] == "'":
        return re.sub(r"\\(.)", _unescaped, default[1:-1].replace("''", "'"), flags=re.DOTALL)
    return None if default == "NULL" or _EXPRESSION_DEFAULT.search(default) else default


def _unescaped(escape: re.Match[str]) -> str:
    return _ESCAPES.get(escape[1], escape[1])


def _text(value: Any) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value or "")
