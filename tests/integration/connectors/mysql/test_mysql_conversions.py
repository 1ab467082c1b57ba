"""Columns of one type made another while they are followed: the target has what the source has, whatever the server
did to the rows that were there, or the table was parked or has begun again.

A server that converts a column logs the statement and none of the rows. So each pair of types is played with values at
the extremes of the first, in a table of its own: the rows that the server would not convert are deleted, then all that
came of it is compared with another pipeline that reads the same tables for the first time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pymysql
import pytest

from raycdc.config import config_from_dict
from raycdc.connectors.mysql.ddl.apply import AppliedDdl, DdlDialect, RefusedStatement, apply_ddl, parse_ddl
from raycdc.observe.events import RunEvent, RunProgress
from raycdc.pipeline import Pipeline
from raycdc.sandbox.servers import DatabaseServer

pytestmark = pytest.mark.server

#: Statements in which values are cut, rounded or replaced instead of refused.
FORGIVING = "SET SESSION sql_mode = ''"
STRICT = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE'"

NUMBERS = ("0", "1", "-1", "127", "-128", "255", "32767", "65535", "2147483647", "-2147483648", "4294967295")
LARGE = ("9223372036854775807", "-9223372036854775808", "18446744073709551615")
FRACTIONS = ("0.1", "-1.5", "2.345", "99.99", "-0.004", "0", "1e-3", "NULL")
TEXTS = ("''", "'a'", "'A '", "'b  '", "'x,y'", "'7'", "'-1.50'", "'é'", "'2024-02-03'", "'12:30:00'", "NULL")
MOMENTS = ("'2024-02-03 04:05:06.789123'", "'1999-12-31 23:59:59.999999'", "'1970-01-02 00:00:00'", "NULL")
#: Types, and values of which those that fit are tried.
TYPES: dict[str, Sequence[str]] = {
    "TINYINT": NUMBERS,
    "TINYINT UNSIGNED": NUMBERS,
    "SMALLINT": NUMBERS,
    "MEDIUMINT UNSIGNED ZEROFILL": NUMBERS,
    "INT": NUMBERS,
    "INT UNSIGNED": NUMBERS,
    "BIGINT": (*NUMBERS, *LARGE),
    "BIGINT UNSIGNED": (*NUMBERS, *LARGE),
    "DECIMAL(5,2)": FRACTIONS,
    "DECIMAL(7,4)": FRACTIONS,
    "DECIMAL(5,4) UNSIGNED": FRACTIONS,
    "DECIMAL(45,3)": (*FRACTIONS, "123456789012345678901234567890123456789012.345"),
    "FLOAT": FRACTIONS,
    "FLOAT(7,1)": FRACTIONS,
    "FLOAT(7,3) UNSIGNED": FRACTIONS,
    "DOUBLE": (*FRACTIONS, "1e300", "0.30000000000000004"),
    "DOUBLE(10,2)": FRACTIONS,
    "DOUBLE(12,3) ZEROFILL": FRACTIONS,
    "BIT(1)": ("b'0'", "b'1'", "NULL"),
    "BIT(9)": ("b'0'", "b'1'", "b'111111111'", "b'100000001'"),
    "BIT(64)": ("b'1'", "18446744073709551615"),
    "YEAR": ("1901", "2024", "2155", "0", "NULL"),
    "DATE": ("'2024-02-29'", "'1000-01-01'", "'9999-12-31'", "NULL"),
    "TIME": ("'-838:59:59'", "'838:59:59'", "'10:00:00'", "'00:00:00'"),
    "TIME(3)": ("'-838:59:59'", "'10:00:00.123'", "'23:59:59.999'"),
    "DATETIME": MOMENTS,
    "DATETIME(3)": MOMENTS,
    "DATETIME(6)": MOMENTS,
    "TIMESTAMP NULL": MOMENTS,
    "TIMESTAMP(6) NULL": MOMENTS,
    "TIMESTAMP NOT NULL DEFAULT '2001-01-01 00:00:00'": MOMENTS,
    "CHAR(3)": TEXTS,
    "CHAR(12)": TEXTS,
    "VARCHAR(2)": TEXTS,
    "VARCHAR(12)": TEXTS,
    "VARCHAR(12) NOT NULL": TEXTS,
    "VARCHAR(12) CHARACTER SET latin1": TEXTS,
    "VARCHAR(12) CHARACTER SET greek": ("_greek X'61'", "_greek X'E1'", "_greek X'D2'", "''"),
    "VARCHAR(12) CHARACTER SET sjis": ("_sjis X'8140'", "_sjis X'5C'", "_sjis X'A1'", "'a'"),
    "VARCHAR(12) CHARACTER SET ucs2": TEXTS,
    "VARCHAR(12) COLLATE utf8mb4_bin": TEXTS,
    "VARCHAR(12) CHARACTER SET binary": (*TEXTS, "X'00FF'"),
    "TINYTEXT": TEXTS,
    "TEXT": TEXTS,
    "LONGTEXT CHARACTER SET latin1": TEXTS,
    "BINARY(2)": ("''", "'a'", "X'00'", "X'FF00'", "X'FFFF'"),
    "BINARY(12)": TEXTS,
    "VARBINARY(2)": ("''", "'a'", "X'00'", "X'FF00'", "X'6120'"),
    "VARBINARY(12)": TEXTS,
    "BLOB": TEXTS,
    "ENUM('a','b','c')": ("'a'", "'b'", "'c'", "NULL"),
    "ENUM('c','a','b')": ("'a'", "'b'", "'c'", "NULL"),
    "ENUM('a','x','b','c')": ("'a'", "'b'", "'c'", "'x'"),
    "ENUM('A','B','C')": ("'a'", "'b'", "'c'"),
    "ENUM('1','2','3')": ("'1'", "'2'", "'3'"),
    "ENUM('3','2','1') CHARACTER SET latin1": ("'1'", "'2'", "'3'"),
    "ENUM('a ','b') CHARACTER SET binary": ("1", "2"),
    "SET('x','y')": ("''", "'x'", "'y'", "'x,y'", "NULL"),
    "SET('y','x')": ("''", "'x'", "'y'", "'x,y'", "NULL"),
    "SET('x','z','y')": ("''", "'x'", "'y'", "'x,y'", "'x,z,y'"),
    "SET('x','y','z') CHARACTER SET latin1": ("''", "'x'", "'y,z'", "'x,y'", "'x,y,z'"),
    "SET('X','Y')": ("''", "'x'", "'x,y'"),
    "JSON": ("""'{"b": 1, "a": 1.50}'""", "'[1, 2]'", "'null'", "NULL"),
    "GEOMETRY": ("ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('LINESTRING(0 0, 1 2)')", "NULL"),
    "POINT": ("ST_GeomFromText('POINT(1 2)')", "NULL"),
}
MARIADB_TYPES: dict[str, Sequence[str]] = {
    "UUID": ("'123e4567-e89b-12d3-a456-426655440000'", "NULL"),
    "INET4": ("'1.2.3.4'", "NULL"),
    "INET6": ("'::'", "'2001:db8::ff00:42:8329'", "'::ffff:1.2.3.4'"),
    "VARCHAR(40)": (*TEXTS, "'123E4567-e89b-12d3-a456-426655440000'", "'1.2.3.4'", "'2001:DB8::1'"),
}


@dataclass(frozen=True, slots=True)
class Conversion:
    """Statements that make a table ``{t}`` (with key `id`) and its rows, and those that are to be followed."""

    made: Sequence[str]
    changed: Sequence[str]
    name: str
    mode: str = STRICT


def pair(types: dict[str, Sequence[str]], before: str, after: str, mode: str) -> Conversion:
    inserts = [f"INSERT IGNORE INTO {{t}} VALUES ({i + 1}, {value})" for i, value in enumerate(types[before])]
    made = [f"CREATE TABLE {{t}} (id INT PRIMARY KEY, v {before})", *inserts]
    name = f"{before} -> {after}{', forgiving' if mode == FORGIVING else ''}"
    return Conversion(made, [f"ALTER TABLE {{t}} MODIFY v {after}"], name, mode)


#: Neighbours, of which each is tried with each.
FAMILIES = (
    ("TINYINT", "TINYINT UNSIGNED", "INT"),
    ("DECIMAL(5,2)", "DECIMAL(7,4)", "DECIMAL(45,3)"),
    ("FLOAT", "FLOAT(7,1)", "DOUBLE", "DOUBLE(10,2)"),
    ("BIT(1)", "BIT(9)"),
    ("TIME", "TIME(3)"),
    ("DATETIME", "DATETIME(6)", "TIMESTAMP NULL", "TIMESTAMP NOT NULL DEFAULT '2001-01-01 00:00:00'"),
    ("CHAR(12)", "VARCHAR(12)", "VARCHAR(12) CHARACTER SET greek", "TEXT"),
    ("BINARY(2)", "VARBINARY(2)", "VARBINARY(12)"),
    ("ENUM('a','b','c')", "ENUM('c','a','b')", "ENUM('a','x','b','c')", "ENUM('A','B','C')"),
    ("SET('x','y')", "SET('y','x')", "SET('x','z','y')", "SET('X','Y')"),
)
#: Of which only a few pairs are tried, in the mode that refuses.
STRANGERS = (
    ("ENUM('1','2','3')", "INT"),
    ("ENUM('1','2','3')", "VARCHAR(12)"),
    ("SET('x','y')", "VARCHAR(12)"),
    ("JSON", "TEXT"),
    ("TEXT", "JSON"),
    ("YEAR", "INT"),
    ("BIT(9)", "INT"),
    ("VARCHAR(12)", "VARBINARY(12)"),
)


def short_list() -> list[Conversion]:
    alike = [
        pair(TYPES, old, new, mode)
        for family in FAMILIES
        for old in family
        for new in family
        for mode in (STRICT, FORGIVING)
        # What is cut in one mode is refused in the other; half of each will do here.
        if old != new and (mode == STRICT) == (len(old + new) % 3 != 0)
    ]
    return alike + [pair(TYPES, old, new, STRICT) for old, new in STRANGERS]


ROWS = "INSERT INTO {t} VALUES (1, 'a'), (2, 'A'), (3, 'é')"
#: What a conversion does beside the value it converts.
STORIES = (
    Conversion(
        ["CREATE TABLE {t} (id INT PRIMARY KEY, v VARCHAR(9) COLLATE utf8mb4_bin, g INT AS (v = 'A') STORED)",
         "INSERT INTO {t} (id, v) VALUES (1, 'a'), (2, 'A')"],
        ["ALTER TABLE {t} MODIFY v VARCHAR(9) COLLATE utf8mb4_general_ci"],
        "a generated column compares by another collation",
    ),
    Conversion(
        ["CREATE TABLE {t} (id INT PRIMARY KEY, v VARCHAR(9) COLLATE utf8mb4_bin, g INT AS (v = 'A') VIRTUAL)",
         "INSERT INTO {t} (id, v) VALUES (1, 'a'), (2, 'A')"],
        ["ALTER TABLE {t} MODIFY v VARCHAR(9) COLLATE utf8mb4_general_ci"],
        "a virtual column compares by another collation",
    ),
    Conversion(
        ["CREATE TABLE {t} (id INT PRIMARY KEY, v VARCHAR(9), g INT AS (LENGTH(v)) STORED) CHARACTER SET latin1",
         "INSERT INTO {t} (id, v) VALUES (1, 'a'), (2, 'é')"],
        ["ALTER TABLE {t} CONVERT TO CHARACTER SET utf8mb4"],
        "a generated column counts bytes of a converted text",
    ),
    Conversion(
        ["CREATE TABLE {t} (id INT PRIMARY KEY, v INT, g INT AS (v + 1) STORED)",
         "INSERT INTO {t} (id, v) VALUES (1, 7)"],
        ["ALTER TABLE {t} MODIFY g INT AS (v + 2) STORED"],
        "another expression, stored",
    ),
    Conversion(
        ["CREATE TABLE {t} (id INT PRIMARY KEY, v INT, g INT AS (v + 1) VIRTUAL)",
         "INSERT INTO {t} (id, v) VALUES (1, 7)"],
        ["ALTER TABLE {t} MODIFY g INT AS (v + 2) VIRTUAL"],
        "another expression, virtual",
    ),
    Conversion(
        ["CREATE TABLE {t} (id INT PRIMARY KEY, v INT)", "INSERT INTO {t} VALUES (0, 1), (5, 2)"],
        ["ALTER TABLE {t} MODIFY id INT AUTO_INCREMENT"],
        "a zero becomes the counter's next",
    ),
    Conversion(
        ["CREATE TABLE {t} (id INT PRIMARY KEY, v INT UNIQUE)", "INSERT INTO {t} VALUES (1, NULL), (2, NULL), (3, 8)"],
        ["ALTER TABLE {t} MODIFY v INT AUTO_INCREMENT"],
        "nulls become the counter's next",
        FORGIVING,
    ),
    Conversion(
        ["CREATE TABLE {t} (id INT AUTO_INCREMENT PRIMARY KEY, v INT)",
         "SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO'", "INSERT INTO {t} VALUES (0, 1), (5, 2)"],
        ["ALTER TABLE {t} MODIFY id BIGINT AUTO_INCREMENT"],
        "a zero of a counter stays",
    ),
    Conversion(
        ["CREATE TABLE {t} (id INT PRIMARY KEY, v VARCHAR(9))", ROWS],
        ["ALTER TABLE {t} ALTER v SET DEFAULT 'z'",
         "ALTER TABLE {t} MODIFY v VARCHAR(20) DEFAULT 'y'", "INSERT INTO {t} (id) VALUES (9)"],
        "another default",
    ),
    Conversion(
        ["CREATE TABLE {t} (id INT PRIMARY KEY, v CHAR(5))", ROWS],
        ["SET sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'", "ALTER TABLE {t} MODIFY v VARCHAR(9)"],
        "CHAR is padded when it is read",
    ),
    Conversion(
        ["CREATE TABLE {t} (id VARCHAR(9) COLLATE utf8mb4_bin PRIMARY KEY, v INT)",
         "INSERT INTO {t} VALUES ('a', 1), ('A', 2), ('é', 3)"],
        ["ALTER IGNORE TABLE {t} MODIFY id VARCHAR(9) COLLATE utf8mb4_general_ci"],
        "a key that compares otherwise, where rows may be left out",
    ),
    Conversion(
        ["CREATE TABLE {t} (id VARCHAR(9) COLLATE utf8mb4_bin PRIMARY KEY, v INT)",
         "INSERT INTO {t} VALUES ('a', 1), ('B', 2), ('é', 3)"],
        ["ALTER TABLE {t} MODIFY id VARCHAR(9) COLLATE utf8mb4_general_ci", "UPDATE {t} SET id = 'A' WHERE id = 'a'"],
        "a key that compares otherwise",
    ),
    Conversion(
        ["CREATE TABLE {t} (id VARCHAR(9) PRIMARY KEY, v VARCHAR(9) UNIQUE) CHARACTER SET latin1 COLLATE latin1_bin",
         "INSERT INTO {t} VALUES ('a', 'a'), ('A', 'b'), ('é', NULL)"],
        ["ALTER IGNORE TABLE {t} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"],
        "all keys of a table are converted, where rows may be left out",
    ),
    Conversion(
        ["CREATE TABLE {t} (id INT PRIMARY KEY, v VARCHAR(9) COLLATE utf8mb4_bin, UNIQUE KEY (v))",
         "INSERT INTO {t} VALUES (1, 'a'), (2, 'A')"],
        ["ALTER IGNORE TABLE {t} MODIFY v VARCHAR(9) COLLATE utf8mb4_general_ci"],
        "a unique key that compares otherwise, where rows may be left out",
    ),
    Conversion(
        ["CREATE TABLE {t} (id VARCHAR(9) CHARACTER SET latin1 PRIMARY KEY, v TEXT CHARACTER SET latin1)",
         "INSERT INTO {t} VALUES ('a', 'é'), ('é', 'a')"],
        ["ALTER TABLE {t} CONVERT TO CHARACTER SET utf8mb4", "UPDATE {t} SET v = 'é' WHERE id = 'é'"],
        "all texts are converted",
    ),
    *(
        Conversion(
            [f"CREATE TABLE {{t}} (id INT PRIMARY KEY, v {old})", "SET time_zone = '+00:00'",
             "INSERT INTO {t} VALUES (1, '2024-07-01 12:00:00'), (2, '1999-01-01 00:00:00')"],
            [f"SET time_zone = '{zone}'", f"ALTER TABLE {{t}} MODIFY v {new}",
             "INSERT INTO {t} VALUES (3, '2024-07-01 12:00:00')"],
            f"{old} becomes {new} at {zone}",
        )
        for zone in ("+00:00", "+05:30")
        for old, new in (
            ("TIMESTAMP NULL", "DATETIME"),
            ("DATETIME", "TIMESTAMP NULL"),
            ("TIMESTAMP NULL", "TIMESTAMP(3) NULL"),
        )
    ),
    Conversion(
        ["CREATE TABLE {t} (id INT PRIMARY KEY, v TIMESTAMP NULL)", "INSERT INTO {t} VALUES (1, NULL)"],
        ["ALTER TABLE {t} MODIFY v TIMESTAMP NOT NULL"],
        "a null becomes the time of the statement",
        FORGIVING,
    ),
)  # fmt: skip


def catch_up(server: DatabaseServer, database: str, folder: Path) -> dict[str, str]:
    """Run to the log's end; the phase of each table then."""
    source = {"type": "mysql", "port": server.port, "user": "cdc", "password": "${env:RAYCDC_TEST_PASSWORD}"}
    events: list[RunEvent] = []
    config = config_from_dict(
        {
            "pipeline": {"name": "types", "state": str(folder / "state"), "epoch_interval": "1s"},
            "source": {**source, "tables": [rf"{database}\..*"]},
            "readers": {"max": 1},
            "sink": {"type": "jsonl", "path": str(folder / "lake"), "write": "changelog"},
        }
    )
    Pipeline.from_config(config).run(until="caught-up", local=True, listener=events.append)
    last = [event for event in events if isinstance(event, RunProgress)][-1]
    return {table.table.partition(".")[2]: table.phase for table in last.tables}


def rows_of(folder: Path) -> dict[str, dict[Any, dict[str, Any]]]:
    """What a reader of each table's changelog has at its end, by the key `id`."""
    found: dict[str, list[dict[str, Any]]] = {}
    for file in (folder / "lake").rglob("*.jsonl"):
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found.setdefault(row["_table"], []).append(row)
    return {table: _replayed(rows) for table, rows in found.items()}


def _replayed(rows: list[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    there: dict[Any, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: int(row["_seq"])):
        match row["_op"]:
            case "T":
                there.clear()
            case "-D" | "-U":
                there.pop(row["id"], None)
            case _:
                there[row["id"]] = {name: value for name, value in row.items() if not name.startswith("_")}
    return there


def require_as_read_anew(story: Conversion, followed: dict[Any, Any], anew: dict[Any, Any]) -> str:
    """What of a table is bent; empty where nothing is. Numbers and times are compared as such where a type grew."""
    # A changelog keeps the names that columns had.
    if followed.keys() != anew.keys():
        return f"{story.name}: keys {sorted(followed)} instead of {sorted(anew)}"
    for key, row in anew.items():
        for name, value in row.items():
            had = followed[key].get(name)
            if not _equal(had, value, single="FLOAT" in str(story.made)):
                return f"{story.name}: {name} of {key} is {had!r} and read anew {value!r}"
    return ""


_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ][\d:]+(\.\d+)?Z?")


def _equal(one: Any, other: Any, *, single: bool) -> bool:
    if one == other and isinstance(one, bool) == isinstance(other, bool):
        return True
    if isinstance(one, str) and isinstance(other, str):
        if _MOMENT.fullmatch(one) and _MOMENT.fullmatch(other):
            return _whole(one) == _whole(other)
        try:
            return Decimal(one) == Decimal(other)
        except ArithmeticError:
            return False
    if single and isinstance(one, int | float) and isinstance(other, int | float):
        return float(np.float32(one)) == float(np.float32(other))
    return False


def _whole(moment: str) -> str:
    zone = "Z" if moment.endswith("Z") else ""
    return moment.removesuffix("Z").rstrip("0").rstrip(".") + zone if "." in moment else moment


def execute(cursor: Any, statements: Sequence[str], table: str) -> None:
    for statement in statements:
        cursor.execute(statement.replace("{t}", table))


def change(cursor: Any, story: Conversion, table: str) -> bool:
    """Run what is to be followed, without the rows that the server would not convert. False where it never would."""
    cursor.execute(story.mode)
    for statement in story.changed:
        text = statement.replace("{t}", table)
        while True:
            try:
                cursor.execute(text)
                break
            except pymysql.MySQLError as error:
                cursor.execute(f"SELECT COUNT(*), MIN(id) FROM {table}")
                count, first = cursor.fetchone()
                at = re.search(r"at row (\d+)", str(error))
                if not count or (at is None and not story.name.startswith(tuple(TYPES))):
                    return False
                number = int(at[1]) - 1 if at and 0 < int(at[1]) <= count else 0
                cursor.execute(f"SELECT id FROM {table} ORDER BY id LIMIT {number}, 1")
                cursor.execute(f"DELETE FROM {table} WHERE id = %s", cursor.fetchone() or (first,))
    return True


def play(server: DatabaseServer, database: str, folder: Path, stories: Sequence[Conversion]) -> dict[str, list[str]]:
    """All `stories` in one pipeline; the names of those that were followed, have begun again, and were parked."""
    tables = {f"t{number}": story for number, story in enumerate(stories)}
    with server.connect(database=database) as connection, connection.cursor() as cursor:
        connection.autocommit(True)
        usable = {}
        for table, story in tables.items():
            try:
                cursor.execute(FORGIVING)
                execute(cursor, story.made, table)
                usable[table] = story
            except pymysql.MySQLError:
                # Some types are one server's alone.
                continue
        catch_up(server, database, folder / "followed")
        rejected = []
        for table, story in usable.items():
            if not change(cursor, story, table):
                rejected.append(story.name)
            elif story.name.startswith(tuple(TYPES)):
                cursor.execute(f"INSERT IGNORE INTO {table} SELECT id + 100, v FROM {table}")
    phases = catch_up(server, database, folder / "followed")
    catch_up(server, database, folder / "anew")
    followed, anew = rows_of(folder / "followed"), rows_of(folder / "anew")
    text = "".join(f.read_text() for f in (folder / "followed" / "lake").rglob("*.jsonl"))
    began = set(re.findall(r'"_op":"T".*?"_table":"(\w+)"', text))
    found: dict[str, list[str]] = {"followed": [], "again": [], "parked": [], "rejected": rejected, "bent": []}
    for table, story in usable.items():
        if story.name in rejected:
            continue
        if phases.get(table) == "parked":
            found["parked"].append(story.name)
            continue
        bent = require_as_read_anew(story, followed.get(table, {}), anew.get(table, {}))
        found["again" if table in began else "followed"].append(story.name)
        found["bent"] += [bent] if bent else []
    return found


@pytest.mark.long_variants("mysql80", suite="servers")
def test_neighbouring_types_are_followed_or_read_again(server: DatabaseServer, database: str, tmp_path: Path) -> None:
    found = play(server, database, tmp_path, short_list())
    assert found["bent"] == []
    assert found["parked"] == []
    assert len(found["followed"]) > 25, {what: len(names) for what, names in found.items()}


def test_what_a_conversion_does_beside_the_values(server: DatabaseServer, database: str, tmp_path: Path) -> None:
    found = play(server, database, tmp_path, STORIES)
    assert found["bent"] == []
    assert found["parked"] == []


def is_followed(story: Conversion, *, mariadb: bool) -> bool:
    """Whether the conversion is taken for one that keeps values: what begins again is read as it is."""
    dialect = DdlDialect(mariadb=mariadb, strict=story.mode == STRICT)
    tables: list[AppliedDdl] = []
    for statement in (story.made[0], *story.changed):
        parsed = parse_ddl(statement.replace("{t}", "t"), "d", dialect=dialect)
        assert not isinstance(parsed, RefusedStatement), (statement, parsed)
        tables.append(apply_ddl(tables[-1].table if tables else None, parsed[0], dialect=dialect))
    return tables[-1].rewrites is None


@pytest.mark.long(suite="races")
@pytest.mark.parametrize("mode", [STRICT, FORGIVING], ids=["strict", "forgiving"])
def test_every_type_becomes_every_other_that_keeps_its_values(
    server: DatabaseServer, database: str, tmp_path: Path, mode: str
) -> None:
    mariadb = server.flavor == "mariadb"
    types = {**TYPES, **(MARIADB_TYPES if mariadb else {})}
    pairs = [pair(types, old, new, mode) for old in types for new in types if old != new]
    found = play(server, database, tmp_path, [story for story in pairs if is_followed(story, mariadb=mariadb)])
    assert found["bent"] == []
    assert found["parked"] == []
    assert len(found["followed"]) > 150
