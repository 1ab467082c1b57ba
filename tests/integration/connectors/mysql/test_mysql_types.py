"""Snapshot and log give the same value for every type, and it is the value the server prints."""

from __future__ import annotations

import os
import random
import struct
from typing import Any

import pyarrow as pa
import pytest

from raycdc.clients.mysql import query
from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.connectors.mysql.values.charsets import bytes_per_character, family_of, has_table
from raycdc.connectors.mysql.values.types import MySqlTable, TypeOptions
from raycdc.errors import DataError, SchemaError
from raycdc.model import TableId
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, MySqlServer
from tests.integration.connectors.mysql.test_mysql_binlog import log_end, read_log, replay, snapshot
from tests.integration.connectors.mysql.type_cases import (
    CHARSETS,
    TypeCase,
    all_codes,
    as_printed,
    server_values,
    type_cases,
)
from tests.support.sessions import session

pytestmark = pytest.mark.server

#: Sets whose characters take two bytes or more, by tables.
MULTI_BYTE = [*(n for n in CHARSETS if has_table(family_of(n)) and bytes_per_character(n) > 1), "gb18030"]
#: Random tables per server; more for a long run.
SEEDS = int(os.environ.get("RAYCDC_TYPE_SEEDS", "2"))


@pytest.fixture(params=["mariadb", "mysql80", "mysql57", "mysql_newest"])
def server(request: pytest.FixtureRequest) -> DatabaseServer:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, DatabaseServer)
    return found


def cases_of(server: DatabaseServer) -> list[TypeCase]:
    return type_cases(mariadb=isinstance(server, MariaDbServer), mysql8="mysql" in type(server).__name__.lower())


def wrong_columns(connection: Any, table: MySqlTable, ours: pa.Table) -> list[tuple[str, Any, Any]]:
    """(type, our value, the server's) of the first difference in each column."""
    wrong = []
    for column, theirs in zip(table.columns, server_values(connection, table), strict=True):
        values = as_printed(column, ours[column.name].combine_chunks())
        differing = [(a, b) for a, b in zip(values, theirs, strict=True) if a != b]
        if differing:
            wrong.append((column.column_type, *differing[0]))
    return wrong


def check(server: DatabaseServer, connection: Any, table: MySqlTable, start: Any) -> None:
    """Replaying the log from `start` gives the snapshot, and the snapshot is what the server prints."""
    now = snapshot(connection, table)
    assert wrong_columns(connection, table, now) == []
    replayed = replay(read_log(server, [table], start, log_end(connection)), table)
    unequal = [name for name in now.column_names if not now[name].equals(replayed[name])]
    pairs = {name: zip(now[name].to_pylist(), replayed[name].to_pylist(), strict=True) for name in unequal}
    assert not unequal, {name: [(a, b) for a, b in found if a != b][:3] for name, found in pairs.items()}


def random_changes(connection: Any, name: str, cases: list[TypeCase], generator: random.Random) -> None:
    def value(case: TypeCase) -> str:
        return "NULL" if generator.random() < 0.15 else case.value(generator)

    query(connection, "SET SESSION sql_mode = 'ALLOW_INVALID_DATES'")
    for first in range(0, 24, 8):
        rows = (f"({n}, {', '.join(value(case) for case in cases)})" for n in range(first, first + 8))
        query(connection, f"INSERT INTO {name} VALUES {', '.join(rows)}")
    for _ in range(20):
        row = generator.randrange(24)
        match generator.randrange(4):
            case 0:
                query(connection, f"DELETE FROM {name} WHERE id = {row}")
            case 1:
                query(connection, f"REPLACE INTO {name} VALUES ({row}, {', '.join(value(case) for case in cases)})")
            case _:
                index = generator.randrange(len(cases))
                query(connection, f"UPDATE {name} SET c{index} = {value(cases[index])} WHERE id % 5 = {row % 5}")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_tables_and_changes(server: DatabaseServer, seed: int) -> None:
    generator = random.Random(seed)
    cases = cases_of(server)
    # The first seed has every type, later ones some of them.
    chosen = cases if seed == 0 else generator.sample(cases, generator.randint(3, 30))
    with server.fresh_database() as database, session(server, "root") as connection:
        start = log_end(connection)
        columns = ", ".join(f"c{n} {case.sql}" for n, case in enumerate(chosen))
        query(connection, f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, {columns})")
        random_changes(connection, f"`{database}`.t", chosen, generator)
        check(server, connection, load_table(connection, TableId(database, "t")), start)


def json_doubles(generator: random.Random, count: int) -> list[float]:
    """Doubles of every kind: any bits, powers of two and ten, few digits, and fractions of 16 digits and more."""
    values = [0.0, -0.0, 1e15, 1e-15, 1e-5, 5e-324, 2.0**53, 2.0**53 - 1, 1e15 + 0.125, 1e15 - 0.125, 2.0**-24]
    values += [2.0**exponent for exponent in range(-1074, 1024)]
    values += [10.0**exponent for exponent in range(-30, 31)]
    makers = (
        lambda: struct.unpack("<d", generator.randbytes(8))[0],
        lambda: generator.uniform(1e15, 2.0**53),
        lambda: float(generator.randrange(1 << 53)),
        lambda: round(generator.random() * 1e6, generator.randrange(7)),
        lambda: generator.random() * 10.0 ** generator.randint(-20, 20),
    )
    while len(values) < count:
        value = generator.choice(makers)()
        if abs(value) < 1.7e308:  # not of numbers that are none
            values.append(value if generator.random() < 0.8 else -value)
    return values


@pytest.mark.parametrize("kind", ["mysql57", "mysql80", "mysql_newest"])
def test_doubles_of_json_are_what_the_server_prints(request: pytest.FixtureRequest, kind: str) -> None:
    server = request.getfixturevalue(kind)
    generator = random.Random(5)
    values = json_doubles(generator, 5000)
    with server.fresh_database() as database, session(server, "root") as connection:
        start = log_end(connection)
        query(connection, f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, c0 JSON)")
        for first in range(0, len(values), 1000):
            rows = (f"({n}, JSON_ARRAY({v:.17e}))" for n, v in enumerate(values[first : first + 1000], first))
            query(connection, f"INSERT INTO `{database}`.t VALUES {', '.join(rows)}")
        check(server, connection, load_table(connection, TableId(database, "t")), start)


def test_every_character_of_every_set(server: DatabaseServer) -> None:
    sets = [*CHARSETS, *(["gb18030"] if isinstance(server, MySqlServer) else [])]
    with server.fresh_database() as database, session(server, "root") as connection:
        start = log_end(connection)
        for charset in sets:
            name = f"`{database}`.`{charset}`"
            query(connection, f"CREATE TABLE {name} (id INT PRIMARY KEY, c VARCHAR(300) CHARACTER SET {charset})")
            codes = all_codes(charset)
            rows = [f"({n}, _{charset} X'{b''.join(codes[n : n + 300]).hex()}')" for n in range(0, len(codes), 300)]
            query(connection, f"INSERT INTO {name} VALUES {', '.join(rows)}")
        tables = [load_table(connection, TableId(database, charset)) for charset in sets]
        items = read_log(server, tables, start, log_end(connection))
        for table in tables:
            now = snapshot(connection, table)
            assert wrong_columns(connection, table, now) == []
            assert replay([item for item in items if item.table == table.id], table).equals(now)


@pytest.mark.parametrize("charset", MULTI_BYTE)
def test_a_code_that_is_no_character_becomes_one_mark_and_nothing_else(server: DatabaseServer, charset: str) -> None:
    """Every code of two bytes that the server stores, with a letter behind it: as it prints it, but for the mark."""
    if charset == "gb18030" and isinstance(server, MariaDbServer):
        pytest.skip("MariaDB has no gb18030")
    codes = [code.to_bytes(2, "big") for code in range(0x8000, 0x10000)]
    codes += [b"\x8f" + code.to_bytes(2, "big") for code in range(0xA1A1, 0xFFFF, 7)]
    codes += [bytes([0x81 + n % 126, 0x30, 0x81 + n % 125, 0x30 + n % 10]) for n in range(0, 12600, 11)]
    with server.fresh_database() as database, session(server, "root") as connection:
        name = f"`{database}`.t"
        query(connection, f"CREATE TABLE {name} (id INT PRIMARY KEY, c VARCHAR(9) CHARACTER SET {charset})")
        for first in range(0, len(codes), 8192):
            rows = [f"({n}, _binary X'{code.hex()}5a')" for n, code in enumerate(codes[first : first + 8192], first)]
            query(connection, f"INSERT IGNORE INTO {name} VALUES {', '.join(rows)}")
        stored = query(connection, f"SELECT id, HEX(c), CONVERT(c USING utf8mb4) FROM {name} ORDER BY id")
        ours = snapshot(connection, load_table(connection, TableId(database, "t")))["c"].to_pylist()
    formed = [
        (codes[n].hex(), text, mine)
        for (n, held, text), mine in zip(stored, ours, strict=True)
        if held == f"{codes[n].hex()}5a".upper()
    ]
    assert len(formed) > 5000
    mark = str.maketrans({"\ufffd": "?"})
    assert [found for found in formed if found[1].translate(mark) != found[2].translate(mark)] == []
    assert any("\ufffd" in mine for _, _, mine in formed)


INVALID = (
    "(1, '0000-00-00', '0000-00-00 00:00:00', '0000-00-00 00:00:00'), (2, '2024-00-10', '2024-02-31 01:02:03.5', NULL)"
)


def make_dates(connection: Any, database: str) -> MySqlTable:
    name = f"`{database}`.t"
    query(connection, "SET SESSION sql_mode = 'ALLOW_INVALID_DATES'")
    query(connection, f"CREATE TABLE {name} (id INT PRIMARY KEY, d DATE, m DATETIME(2), s TIMESTAMP NULL)")
    query(connection, f"INSERT INTO {name} VALUES {INVALID}, (3, '2024-02-29', '0001-01-01', '2024-06-01 10:00:00')")
    return load_table(connection, TableId(database, "t"))


def test_dates_of_no_calendar_are_text_as_printed_where_wanted(server: DatabaseServer) -> None:
    with server.fresh_database() as database, session(server, "root") as connection:
        start = log_end(connection)
        table = TypeOptions(invalid_dates="text").treat_table(make_dates(connection, database))
        now = snapshot(connection, table)
        printed = query(connection, f"SELECT id, CAST(d AS CHAR), CAST(m AS CHAR), CAST(s AS CHAR) FROM `{database}`.t")
        assert [tuple(row.values()) for row in now.to_pylist()] == list(printed)
        assert replay(read_log(server, [table], start, log_end(connection)), table).equals(now)


def test_dates_of_no_calendar_are_null_or_an_error(server: DatabaseServer) -> None:
    with server.fresh_database() as database, session(server, "root") as connection:
        start = log_end(connection)
        table = make_dates(connection, database)
        now = snapshot(connection, table)
        assert [now[c].null_count for c in ("d", "m", "s")] == [2, 2, 2]
        assert replay(read_log(server, [table], start, log_end(connection)), table).equals(now)
        strict = TypeOptions(invalid_dates="park").treat_table(table)
        with pytest.raises(DataError, match="invalid_dates"):
            read_log(server, [strict], start, log_end(connection))
    with server.fresh_database() as database, session(server, "root") as connection:
        strict = TypeOptions(invalid_dates="park").treat_table(make_dates(connection, database))
        with pytest.raises(DataError, match="invalid_dates"):
            snapshot(connection, strict)


def test_a_boolean_that_is_neither_0_nor_1_is_refused_and_never_changed(server: DatabaseServer) -> None:
    with server.fresh_database() as database, session(server, "root") as connection:
        start = log_end(connection)
        query(connection, f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, b BOOLEAN)")
        query(connection, f"INSERT INTO `{database}`.t VALUES (1, 0), (2, 1), (3, NULL)")
        table = TypeOptions(tinyint1="boolean").treat_table(load_table(connection, TableId(database, "t")))
        now = snapshot(connection, table)
        assert now["b"].to_pylist() == [False, True, None]
        assert replay(read_log(server, [table], start, log_end(connection)), table).equals(now)
        query(connection, f"UPDATE `{database}`.t SET b = 2 WHERE id = 2")
        with pytest.raises(DataError, match="tinyint1"):
            read_log(server, [table], start, log_end(connection))
        with pytest.raises(DataError, match="tinyint1"):
            snapshot(connection, table)


def test_geojson_is_what_the_server_makes_of_a_geometry(mysql80: MySqlServer) -> None:
    shapes = next(case for case in type_cases(mariadb=False, mysql8=True) if case.sql == "GEOMETRY")
    generator = random.Random(1)
    with mysql80.fresh_database() as database, session(mysql80, "root") as connection:
        start = log_end(connection)
        query(connection, f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, g GEOMETRY)")
        for n in range(40):
            query(connection, f"INSERT INTO `{database}`.t VALUES ({n}, {shapes.value(generator)})")
        table = TypeOptions(geometry="geojson").treat_table(load_table(connection, TableId(database, "t")))
        now = snapshot(connection, table)
        theirs = query(connection, f"SELECT CAST(ST_AsGeoJSON(g) AS CHAR) FROM `{database}`.t ORDER BY id")
        assert now["g"].to_pylist() == [text for (text,) in theirs]
        assert replay(read_log(mysql80, [table], start, log_end(connection)), table).equals(now)


def test_generated_and_invisible_columns_are_columns_like_others(server: DatabaseServer) -> None:
    hidden = "h INT INVISIBLE" if isinstance(server, MariaDbServer) else "h INT"
    with server.fresh_database() as database, session(server, "root") as connection:
        start = log_end(connection)
        name = f"`{database}`.t"
        query(
            connection,
            f"CREATE TABLE {name} (id INT PRIMARY KEY, a INT, v INT GENERATED ALWAYS AS (a + 1) VIRTUAL, "
            f"s VARCHAR(20) GENERATED ALWAYS AS (CONCAT('s', a)) STORED, {hidden}, KEY (v))",
        )
        query(connection, f"INSERT INTO {name} (id, a, h) VALUES (1, 5, 7), (2, NULL, NULL)")
        query(connection, f"UPDATE {name} SET a = 9")
        query(connection, f"DELETE FROM {name} WHERE id = 2")
        check(server, connection, load_table(connection, TableId(database, "t")), start)


def test_a_functional_index_does_not_disturb_its_table(mysql80: MySqlServer) -> None:
    with mysql80.fresh_database() as database, session(mysql80, "root") as connection:
        start = log_end(connection)
        query(connection, f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, a INT, KEY ((a * 2)))")
        query(connection, f"INSERT INTO `{database}`.t VALUES (1, 5), (2, NULL)")
        query(connection, f"UPDATE `{database}`.t SET a = 6 WHERE id = 2")
        check(mysql80, connection, load_table(connection, TableId(database, "t")), start)


def test_labels_beyond_the_catalogues_characters_come_from_the_log_or_are_refused(
    mariadb: MariaDbServer, mysql57: MySqlServer
) -> None:
    for server in (mariadb, mysql57):
        with server.fresh_database() as database, session(server, "root") as connection:
            start = log_end(connection)
            columns = "e ENUM('a','€😀'), s SET('?','😀')"
            query(connection, f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, {columns}) CHARACTER SET utf8mb4")
            query(connection, f"INSERT INTO `{database}`.t VALUES (1, '€😀', '?,😀'), (2, 'a', '')")
            table = load_table(connection, TableId(database, "t"))
            if server is mysql57:
                with pytest.raises(SchemaError, match="binlog_row_metadata"):
                    read_log(server, [table], start, log_end(connection))
            else:
                check(server, connection, table, start)


def test_a_thousand_columns(server: DatabaseServer) -> None:
    with server.fresh_database() as database, session(server, "root") as connection:
        start = log_end(connection)
        columns = ", ".join(f"c{n} {('INT', 'VARCHAR(3) CHARACTER SET ascii', 'SMALLINT')[n % 3]}" for n in range(999))
        query(connection, f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, {columns})")
        for n in range(6):
            values = ", ".join("NULL" if (c + n) % 4 == 0 else str(c) for c in range(999))
            query(connection, f"INSERT INTO `{database}`.t VALUES ({n}, {values})")
        query(connection, f"UPDATE `{database}`.t SET c500 = 1, c998 = NULL")
        check(server, connection, load_table(connection, TableId(database, "t")), start)


def test_a_value_of_64_megabytes(mysql80: MySqlServer) -> None:
    with mysql80.fresh_database() as database, session(mysql80, "root") as connection:
        query(connection, "SET GLOBAL max_allowed_packet = 268435456")
        with session(mysql80, "root") as large:
            start = log_end(large)
            query(large, f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, b LONGBLOB)")
            query(large, f"INSERT INTO `{database}`.t VALUES (1, REPEAT('abcdefgh', 8388608)), (2, 'x')")
            table = load_table(large, TableId(database, "t"))
            now = snapshot(large, table)
            assert [len(value) for value in now["b"].to_pylist()] == [64 << 20, 1]
            assert replay(read_log(mysql80, [table], start, log_end(large)), table).equals(now)
