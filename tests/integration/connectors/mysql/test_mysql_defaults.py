"""Defaults of added columns: what we say that old rows hold is what the server has in an old row, or we do not say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from raycdc.clients.mysql import query
from raycdc.connectors.mysql.binlog.session import dialect_of, dialect_of_session
from raycdc.connectors.mysql.binlog.wire.stream import BinlogStream
from raycdc.connectors.mysql.ddl.apply import apply_ddl, parse_ddl
from raycdc.connectors.mysql.ddl.defaults import catalogue_fill
from raycdc.connectors.mysql.log.startup import statements_between
from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.connectors.mysql.server.client import current_position, probe
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model import TableId
from raycdc.model.evolution import AddColumnEvent
from raycdc.model.schema import constant
from raycdc.sandbox.servers import DatabaseServer
from tests.integration.connectors.mysql.test_mysql_binlog import snapshot
from tests.support.sessions import session

pytestmark = pytest.mark.server

#: Type, and constants; a constant that is followed on every server that takes it is marked with a plus sign, one that
#: makes the table begin again everywhere with a minus sign, and one whose meaning is a server's own with a question
#: mark.
CONSTANTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("INT", ("+7", "+-7", "+'7'", "+1.6", "+-1.5", "+2.5", "-'1.6'", "+TRUE", "+FALSE", "+0x1F", "+x'41'", "-1e2")),
    ("TINYINT UNSIGNED", ("+255", "+'0'", "?256", "?-1")),
    ("BIGINT UNSIGNED", ("+18446744073709551615",)),
    ("INT ZEROFILL", ("+7",)),
    ("BOOLEAN", ("+TRUE", "+0", "+'1'")),
    ("BIT(5)", ("+b'101'", "+5", "+0x1F", "?'a'")),
    ("BIT(64)", ("+0xFFFFFFFFFFFFFFFF",)),
    ("DECIMAL(7,2)", ("+1.5", "+'1.5'", "+1.235", "+-1.235", "+'1.235'", "+-0.001", "+.5", "+'+3'", "-1e2", "?' 1'")),
    ("DECIMAL(50,3)", ("+1.5", "+'12345678901234567890123456789012345678.25'")),
    ("FLOAT", ("+0.1", "+1e10", "+16777217", "+'3.25'", "+1e-40", "?1e39")),
    ("DOUBLE", ("+0.1", "+1e100", "+'1e-300'", "+123456789.123456789", "-'-0'")),
    ("FLOAT(7,2)", ("-1.239", "+1.25", "+0.1")),
    ("DOUBLE(9,2)", ("-1.239", "+125", "?0.1")),
    ("YEAR", ("+24", "+2024", "+'24'", "+'2024'", "+0", "+'0'", "+'0000'", "+'00'", "+70", "+'69'", "?'0x20'")),
    ("DATE", ("+'2024-01-02'", "+'2024-1-2'", "+DATE '2024-1-2'", "+'1000-01-01'", "?20240102", "?'24-1-2'")),
    ("DATE", ("?'2024-01-02 10:00:00'", "?'2024.01.02'", "+'9999-12-31'", "+'0000-00-00'", "?'2024-02-31'")),
    ("DATETIME", ("+'2024-01-02 03:04:05'", "+'2024-1-2 3:4:5'", "+'2024-01-02'", "-'2024-01-02 03:04:05.6'")),
    ("DATETIME", ("+'9999-12-31 23:59:59'", "+'1000-01-01'", "+'0000-00-00 00:00:00'", "?20240102030405", "+0")),
    ("DATETIME", ("+TIMESTAMP '2024-01-02 03:04:05'", "+'2024-01-02T03:04:05'", "+'2024-01-02 03:04'")),
    ("DATETIME(3)", ("+'2024-01-02 03:04:05.6'", "+'2024-01-02 03:04:05.6780'", "-'2024-01-02 03:04:05.6789'")),
    ("TIMESTAMP NULL", ("+'2024-01-01 00:00:00'", "+'2024-7-1 1:2:3'", "+'0000-00-00 00:00:00'")),
    ("TIMESTAMP(2) NULL", ("+'2024-01-01 00:00:00.25'", "-'2024-01-01 00:00:00.255'")),
    ("TIME", ("+'01:02:03'", "+'1:2'", "+'-1:02:03'", "+'838:59:59'", "?'10'", "?1011", "?'1 10:00:00'", "-'1:2:3.6'")),
    ("TIME(2)", ("+'1:2:3.6'", "+'1:2'", "-'1:2:3.456'")),
    ("CHAR(5)", ("+'ab  '", "+'  ab'", "+''", "+7", "?1.50", "+'äö'", "-x'41'", "-0x41", "+_latin1'ab'", "?1e3")),
    ("CHAR(5)", ("+_utf8mb4'ab'", "-_ucs2'ab'", "+'a' 'b'", "+N'ab'", "+TRUE", "?DATE '2024-1-2'", "?007", "+-7")),
    ("VARCHAR(5)", ("+'ab  '", "+'it''s'", "+'a\\\\b'", "+'日本'", "+'€'", "+'a\\nb'")),
    ("VARCHAR(9) CHARACTER SET latin1", ("+'é'", "-'€'", "-_latin1 x'80'")),
    ("VARCHAR(9) CHARACTER SET utf8mb3", ("+'日本'", "?'\N{PILE OF POO}'")),
    ("CHAR(5) CHARACTER SET ucs2", ("+'ab  '", "-'ä'")),
    ("CHAR(5) CHARACTER SET binary", ("+'ab  '",)),
    ("TEXT", ("+'ab '", "+('ab ')", "-(0x41)")),
    ("BLOB", ("+'ab '", "+('ab ')")),
    ("JSON", ('?\'{"b": 1, "a":2}\'', '?(\'{"b": 1, "a":2}\')')),
    ("BINARY(5)", ("+'ab'", "+''", "-x'00ff'", "-'ä'")),
    ("VARBINARY(5)", ("+'ab '", "-'ä'")),
    ("ENUM('A','B')", ("+'a'", "+'B'", "?1", "+'b '")),
    ("ENUM('1','0')", ("?1", "+'1'", "?0")),
    ("ENUM('é','e','x') COLLATE utf8mb4_bin", ("?'e'", "+'x'")),
    ("ENUM('','x')", ("+''",)),
    ("SET('a','b','C')", ("+'b,a'", "+'c,A'", "+''", "+'a,a'", "?3")),
    ("UUID", ("?'00000000-0000-0000-0000-00000000ABCD'",)),
    ("INET6", ("?'::0001'",)),
)
#: Columns that are NOT NULL without a default.
ZEROS = (
    *("INT", "DECIMAL(7,2)", "DECIMAL(50,3)", "FLOAT", "DOUBLE", "BIT(5)", "YEAR", "TIME", "TIME(3)", "CHAR(3)"),
    *("VARCHAR(3)", "TEXT", "BINARY(3)", "VARBINARY(3)", "BLOB", "ENUM('b','a')", "SET('b','a')", "JSON", "UUID"),
    *("INET4", "INET6", "DATE", "DATETIME", "BOOLEAN", "POINT"),
)
#: Sessions that mean other things by the same words.
SESSIONS = (
    ("SET time_zone = '+00:00'",),
    ("SET time_zone = '+05:30'", "SET sql_mode = ''"),
    ("SET time_zone = 'SYSTEM'", "SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'"),
)
#: What is tried in the first of these alone means the same in all.
EVERYWHERE = re.compile(r"DATE|TIME|TINYINT|VARCHAR\(5\)|YEAR")


@pytest.fixture(params=["mariadb", "mysql80", "mysql57", "mysql_newest"])
def server(request: pytest.FixtureRequest) -> DatabaseServer:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, DatabaseServer)
    return found


@pytest.fixture
def database(server: DatabaseServer) -> Iterator[str]:
    with server.fresh_database("filled") as name:
        yield name


def definitions(settings: tuple[str, ...]) -> list[tuple[str, str]]:
    """(mark, definition) of the columns that are tried in a session."""
    constants = [(c[0], f"{sql} DEFAULT {c[1:]}") for sql, texts in CONSTANTS for c in texts]
    found = [*constants, *(("?" if sql == "POINT" else "+", f"{sql} NOT NULL") for sql in ZEROS)]
    return [one for one in found if settings == SESSIONS[0] or EVERYWHERE.match(one[1])]


def add_columns(server: DatabaseServer, table: TableId, settings: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Adds each column that the server takes to a table with a row; the mark and definition of each by its name."""
    taken: dict[str, tuple[str, str]] = {}
    with server.connect(database=table.db) as connection, connection.cursor() as cursor:
        for setting in settings:
            cursor.execute(setting)
        for number, (mark, definition) in enumerate(definitions(settings)):
            try:
                cursor.execute(f"ALTER TABLE t ADD COLUMN c{number} {definition}")
            except (cursor.connection.Error, OSError):
                continue
            taken[f"c{number}"] = (mark, definition)
    return taken


def followed(
    server: DatabaseServer, connection: Any, table: MySqlTable, start: Any
) -> dict[str, tuple[str | None, str | None]]:
    """The default that each logged statement's event has, and why the table had to be read again instead."""
    info = probe(connection)

    def open_log(place: Any) -> BinlogStream:
        return BinlogStream(server.connect(), server_id=7302, offset=place, heartbeat_s=5.0)

    found: dict[str, tuple[str | None, str | None]] = {}
    for item in statements_between(info, start, current_position(connection, info), open_log):
        if item.db != table.id.db:
            continue
        dialect = dialect_of_session(dialect_of(info), item.session)
        parsed = parse_ddl(item.statement, item.db, dialect=dialect)
        assert isinstance(parsed, tuple), parsed
        (ddl,) = parsed
        applied = apply_ddl(table, ddl, dialect=dialect)
        (event,) = applied.events
        assert isinstance(event, AddColumnEvent)
        assert applied.table is not None
        table = applied.table
        found[event.column.name] = (event.column.default, applied.rewrites)
    return found


@pytest.mark.parametrize("settings", SESSIONS, ids=lambda settings: settings[0].split("'")[1])
def test_old_rows_hold_what_the_change_says(server: DatabaseServer, database: str, settings: tuple[str, ...]) -> None:
    name = TableId(database, "t")
    server.execute("CREATE TABLE t (id INT PRIMARY KEY) CHARACTER SET utf8mb4", database=database)
    server.execute("INSERT INTO t VALUES (1)", database=database)
    with session(server, "root") as connection:
        before = load_table(connection, name)
        start = current_position(connection, probe(connection))
        taken = add_columns(server, name, settings)
        said = followed(server, connection, before, start)
        assert list(said) == list(taken)
        table = load_table(connection, name)
        query(connection, "SET time_zone = '+00:00'")
        (row,) = snapshot(connection, table).to_pylist()
        wrong, unsure, guessed = [], [], []
        for column in table.columns[1:]:
            mark, definition = taken[column.name]
            default, rewrites = said[column.name]
            logical = column.logical().arrow()
            if rewrites is None:
                ours = None if default is None else constant(default, logical).as_py()
                if repr(ours) != repr(row[column.name]):
                    wrong.append((definition, ours, row[column.name]))
                guessed += [definition] if mark == "-" else []
            elif mark == "+" and not (settings[0].endswith("'SYSTEM'") and definition.startswith("TIMESTAMP")):
                unsure.append((definition, rewrites))
            filled = catalogue_fill(column)
            ours = None if filled.value is None else constant(filled.value, logical).as_py()
            if not filled.unsure and "DEFAULT (" not in definition and repr(ours) != repr(row[column.name]):
                wrong.append((f"catalogue: {definition}", ours, row[column.name]))
    assert (wrong, unsure, guessed) == ([], [], [])
    assert len(taken) > (100 if settings == SESSIONS[0] else 25)
