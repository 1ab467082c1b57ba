"""Reads the tables of a server from ``information_schema``: their names, columns, keys and sizes.

This takes a few queries for each database, however many tables the database has. An account sees only tables that it
may SELECT from. A table that is not listed does not exist or is not granted; the server does not report which.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pymysql.connections import Connection

from raycdc.clients.mysql import is_denied, is_of_changed_table, query, quote_name
from raycdc.connectors.mysql.ddl.logged_otherwise import MERGE_ENGINES, MERGED, misleading, names_read, tables_below
from raycdc.connectors.mysql.ddl.parse.statements import DdlDialect
from raycdc.connectors.mysql.ddl.shadows import tool_tables
from raycdc.connectors.mysql.values.types import IMPLICIT_ROW_END, MySqlColumn, MySqlTable
from raycdc.errors import SourceError, SourceUnavailableError
from raycdc.model import TableId

#: The databases of the server itself, which are never captured.
SYSTEM_DATABASES = ("information_schema", "mysql", "performance_schema", "sys")

#: The kinds of tables with rows of their own, without views and sequences.
_WITH_ROWS = ("BASE TABLE", "SYSTEM VERSIONED")

#: The allowed difference of clocks, because the log of a replica has times of a different server, in whole seconds.
CLOCKS_APART_S = 60.0
#: The notation of special characters in MariaDB's quoted texts.
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r"}
_EXPRESSION_DEFAULT = re.compile(r"^(current_timestamp|now|localtime|uuid|nextval)\b|\(", re.IGNORECASE)


class TableFilter(Protocol):
    """A function that returns True for captured tables (`raycdc.model.rules.selector`)."""

    def matches(self, table: TableId) -> bool: ...


@dataclass(frozen=True, slots=True)
class TableSize:
    """The server's estimate of a table: rows and bytes of rows; and its engine."""

    rows: int
    bytes: int
    engine: str

    @property
    def row_bytes(self) -> int:
        """Return the average bytes of a row, at least 1."""
        return max(1, self.bytes // max(1, self.rows))


def discover_tables(
    connection: Connection[Any], selector: TableFilter, *, named: Collection[TableId] = ()
) -> list[TableId]:
    """Return all base tables outside the system databases that `selector` matches, sorted.

    Tables of schema change tools are left out, unless they are `named`.
    """
    matching = [table for table in _names(connection) if selector.matches(table)]
    return selected_tables(_base_tables(connection, matching), selector, named=named)


def selected_tables(
    tables: Iterable[TableId], selector: TableFilter, *, named: Collection[TableId] = ()
) -> list[TableId]:
    """Return the base tables in `tables` that `discover_tables` would find."""
    selected = list(filter(selector.matches, tables))
    return sorted(set(selected) - (tool_tables(selected) - set(named)))


def all_tables(connection: Connection[Any]) -> list[TableId]:
    """Return all base tables outside the system databases that this account sees, sorted."""
    return sorted(_base_tables(connection, _names(connection)))


def _names(connection: Connection[Any]) -> list[TableId]:
    """Return the names of tables, views and similar objects outside the system databases.

    Only names are queried, which waits for no lock. A query for an object's kind waits on MariaDB and MySQL 5.7 for
    every session that creates or changes any table of the server.
    """
    rows = query(
        connection,
        "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA NOT IN %s",
        (SYSTEM_DATABASES,),
    )
    named = (TableId(_text(db), _text(table)) for db, table in rows)
    return [table for table in named if table.db.lower() not in SYSTEM_DATABASES]


def _base_tables(connection: Connection[Any], named: Collection[TableId]) -> list[TableId]:
    """Return the names that are names of base tables. This statement waits for no lock, either."""
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
    """Return True if `table` is one of MariaDB's sequences, which have columns and a row like tables."""
    wanted = "SELECT TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
    return [_text(row[0]) for row in query(connection, wanted, (table.db, table.table))] == ["SEQUENCE"]


def is_in_memory(connection: Connection[Any], table: TableId) -> bool:
    """Return True if the server keeps the rows of `table` in memory only, so that a restart loses them."""
    wanted = "SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
    return [_text(row[0]) for row in query(connection, wanted, (table.db, table.table))] == ["MEMORY"]


def was_there(connection: Connection[Any], table: TableId, ts_ms: int) -> bool:
    """Return True if a table of that name existed, or may have existed, before `ts_ms`, a time of the log.

    A later change may make a table look newer than it is. A table that does not exist now did not exist. A table that
    this account may not see may have existed.
    """
    wanted = (
        "SELECT UNIX_TIMESTAMP(CREATE_TIME) FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
    )
    if rows := query(connection, wanted, (table.db, table.table)):
        made_s = rows[0][0]
        return made_s is not None and (float(made_s) + CLOCKS_APART_S) * 1000 < ts_ms
    try:
        query(connection, f"SELECT 1 FROM {quote_name(table.db, table.table)} LIMIT 0")
    except SourceError as cause:
        if is_of_changed_table(cause.__cause__):
            return False
        if not is_denied(cause.__cause__):
            raise
        return True
    return False


def load_tables(connection: Connection[Any], tables: Iterable[TableId]) -> dict[TableId, MySqlTable]:
    """Return columns and primary key of each of `tables`; missing tables, invisible tables and views are left out.

    A view may have taken the name of a table: restored dumps make one for each view, and drop it. The columns, the keys
    and the table's data are not read at one instant: a reader that starts a log at a position must prove that there was
    no DDL in between (`raycdc.source`).
    """
    wanted = set(tables)
    columns: dict[TableId, list[MySqlColumn]] = defaultdict(list)
    keys: dict[TableId, list[str]] = defaultdict(list)
    collations: dict[TableId, str] = {}
    engines: dict[TableId, str] = {}
    views: set[TableId] = set()
    reads: dict[TableId, dict[str, frozenset[str]]] = defaultdict(dict)
    row_ends: dict[TableId, str] = {}
    unique_keys: dict[TableId, int] = {}
    mariadb = "mariadb" in connection.get_server_info().lower()
    for db, names in asked_together(sorted(wanted)):
        for row in _rows(connection, _COLUMNS, db, names):
            columns[TableId(db, _text(row[0]))].append(_column(row, mariadb=mariadb))
        for row in _rows(connection, _KEYS, db, names):
            keys[TableId(db, _text(row[0]))].append(_text(row[1]))
        for row in _rows(connection, _COLLATIONS, db, names):
            collations[TableId(db, _text(row[0]))] = _text(row[1])
            engines[TableId(db, _text(row[0]))] = _text(row[3])
            if _text(row[2]) == "VIEW":
                views.add(TableId(db, _text(row[0])))
            if _text(row[2]) == "SYSTEM VERSIONED":
                row_ends[TableId(db, _text(row[0]))] = IMPLICIT_ROW_END
        if any(column.is_virtual for table in columns if table.db == db for column in columns[table]):
            for row in _rows(connection, _EXPRESSIONS, db, names):
                reads[TableId(db, _text(row[0]))][_text(row[1])] = names_read(_text(row[2]))
        if mariadb:
            for row in _rows(connection, _UNIQUE_KEYS, db, names):
                unique_keys[TableId(db, _text(row[0]))] = int(row[1])
        if any(table.db == db for table in row_ends):
            row_ends |= {TableId(db, _text(row[0])): _text(row[1]) for row in _rows(connection, _ROW_ENDS, db, names)}
    # A server with case-insensitive names returns its own spelling; only requested names are returned.
    return {
        table: MySqlTable(
            table,
            tuple(described),
            tuple(name for name in keys.get(table, ()) if name != row_ends.get(table)),
            charset=collations.get(table, "").partition("_")[0],
            collation=collations.get(table, ""),
            row_end=row_ends.get(table, ""),
            unique_keys=unique_keys.get(table, 0),
            engine=engines.get(table, ""),
            misleading=misleading(described, reads.get(table, {})),
        )
        for table, described in columns.items()
        if table in wanted and table not in views
    }


def _rows(connection: Connection[Any], sql: str, db: str, names: Collection[str]) -> list[tuple[Any, ...]]:
    """Return the rows of a query about one list from `asked_together`; names are in the first column.

    Rows of other names, which the catalog's collation treats as equal, are left out.
    """
    asked = frozenset(names)
    return [row for row in query(connection, sql, (db, names)) if _text(row[0]) in asked]


def asked_together(tables: Iterable[TableId]) -> Iterator[tuple[str, list[str]]]:
    """Yield the names of tables by database, in lists for ``TABLE_NAME IN``.

    No list has two names that the catalog treats as equal. Of two such names (t1 and T1, if the server has both)
    MariaDB returns only one. Its collation equates more than case, so a name with non-ASCII letters is queried alone.
    """
    lists: dict[tuple[str, int | str], list[str]] = defaultdict(list)
    seen: dict[tuple[str, str], int] = defaultdict(int)
    for table in tables:
        folded = (table.db, table.table.lower())
        lists[table.db, seen[folded] if table.table.isascii() else table.table].append(table.table)
        seen[folded] += 1
    for (db, _), together in lists.items():
        yield db, together


def below_merged(connection: Connection[Any], tables: Mapping[TableId, MySqlTable]) -> dict[TableId, str]:
    """Return the `tables` below a MERGE table, each with the reason why it cannot be followed, and advice.

    A MERGE table that the account may not see is not found. The server is only queried if a table has the engine
    MyISAM.
    """
    if not any(table.engine.lower() == "myisam" for table in tables.values()):
        return {}
    merged = query(
        connection,
        "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE ENGINE IN %s",
        (tuple(sorted(MERGE_ENGINES)),),
    )
    found: dict[TableId, str] = {}
    for db, name in merged:
        over = TableId(_text(db), _text(name))
        try:
            statement = _text(query(connection, f"SHOW CREATE TABLE {quote_name(over.db, over.table)}")[0][1])
        except SourceError as cause:
            if isinstance(cause, SourceUnavailableError):
                raise
            if not is_of_changed_table(cause.__cause__):
                found |= _perhaps_below(connection, over, tables, cause)
            continue  # The table was dropped meanwhile, or its damage hides its rows.
        for below in tables_below(statement, over.db, DdlDialect()):
            found[below] = (
                f"Table {below} is below the MERGE table {over}: {MERGED}. Drop {over}, or leave {below} out with "
                "source.exclude."
            )
    return {table: why for table, why in found.items() if table in tables}


def _perhaps_below(
    connection: Connection[Any], over: TableId, tables: Mapping[TableId, MySqlTable], cause: SourceError
) -> dict[TableId, str]:
    """Return the `tables` that may be below a MERGE table whose definition the server does not show.

    They are the tables with the same types of columns. If a damaged table below the MERGE table is repaired, rows can
    be written through the MERGE table again, and the log does not have these rows under the names of the tables below.
    """
    merged = load_tables(connection, [over]).get(over)
    types = None if merged is None else [column.column_type for column in merged.columns]
    return {
        table.id: (
            f"Table {table.id} may be below the MERGE table {over}, which the server does not show ({cause}): "
            f"{MERGED}. Repair or drop {over}, or leave {table.id} out with source.exclude."
        )
        for table in tables.values()
        if table.engine.lower() == "myisam" and types in (None, [column.column_type for column in table.columns])
    }


def database_charsets(connection: Connection[Any]) -> dict[str, tuple[str, str]]:
    """Return the default character set and collation of each database, which new tables inherit."""
    columns = "SCHEMA_NAME, DEFAULT_CHARACTER_SET_NAME, DEFAULT_COLLATION_NAME"
    rows = query(connection, f"SELECT {columns} FROM information_schema.SCHEMATA")
    return {_text(name): (_text(charset), _text(collation)) for name, charset, collation in rows}


def collation_numbers(connection: Connection[Any]) -> dict[int, tuple[str, str]]:
    """Return the character set and name of each collation by its number in the log."""
    columns = "ID, CHARACTER_SET_NAME, COLLATION_NAME"
    rows = query(connection, f"SELECT {columns} FROM information_schema.COLLATIONS WHERE ID IS NOT NULL")
    # A collation of MariaDB that fits several sets has numbers that the catalog lists with none of them.
    return {int(number): (_text(charset), _text(name)) for number, charset, name in rows if charset is not None}


def load_table(connection: Connection[Any], table: TableId) -> MySqlTable:
    """Return one table. Raises `SourceError` if it does not exist or may not be read."""
    described = load_tables(connection, [table]).get(table)
    if described is None:
        raise SourceError(
            f"Table {table} does not exist on {connection.host}:{connection.port}, or this user may not SELECT from "
            f"it. Check source.tables, or run: GRANT SELECT ON {quote_name(table.db, table.table)} TO ...;"
        )
    return described


def table_sizes(connection: Connection[Any], tables: Iterable[TableId]) -> dict[TableId, TableSize]:
    """Return estimates of the size of each table.

    InnoDB's row count may be wrong by half. Planning needs only the magnitude.
    """
    sizes: dict[TableId, TableSize] = {}
    for db, names in asked_together(tables):
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
    "SELECT TABLE_NAME, TABLE_COLLATION, TABLE_TYPE, ENGINE FROM information_schema.TABLES "
    "WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN %s"
)

# The end column of a system-versioned table that names it. The server adds it to every unique key, even this one.
_ROW_ENDS = (
    "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN %s "
    "AND GENERATION_EXPRESSION = 'ROW END'"
)

# STATISTICS is used because TABLE_CONSTRAINTS hides keys from users who may only SELECT.
_KEYS = (
    "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN %s "
    "AND INDEX_NAME = 'PRIMARY' ORDER BY TABLE_NAME, SEQ_IN_INDEX"
)


_EXPRESSIONS = (
    "SELECT TABLE_NAME, COLUMN_NAME, GENERATION_EXPRESSION FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s "
    "AND TABLE_NAME IN %s AND GENERATION_EXPRESSION <> ''"
)

_UNIQUE_KEYS = (
    "SELECT TABLE_NAME, COUNT(DISTINCT INDEX_NAME) FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s "
    "AND TABLE_NAME IN %s AND NON_UNIQUE = 0 AND INDEX_NAME <> 'PRIMARY' GROUP BY BINARY TABLE_NAME"
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
    """Return the constant in ``COLUMN_DEFAULT``; None if there is none (NULL, or an expression evaluated per row).

    MySQL prints constants without quotes, and marks expressions in EXTRA (8.0) or prints ``CURRENT_TIMESTAMP``. MariaDB
    (`quoted`) quotes strings, and prints ``NULL``, numbers and expressions without quotes.
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
