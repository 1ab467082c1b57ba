"""Columns whose names a server tells apart, and those that it takes for one."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any

import pymysql
import pytest
from deltalake import DeltaTable

from raycdc.config import config_from_dict
from raycdc.model.column_names import mysql_fold
from raycdc.pipeline import Pipeline
from raycdc.sandbox.servers import DatabaseServer, PostgresServer

DUPLICATE_COLUMN = 1060


@pytest.mark.parametrize("name", ["mariadb", "mysql80", "mysql57", "mysql_newest"])
def test_every_letter_is_folded_as_the_server_folds_it(name: str, request: pytest.FixtureRequest) -> None:
    equal: dict[str, set[str]] = defaultdict(set)
    for letter in map(chr, [*range(1, 0xD800), *range(0xE000, 0x10000)]):
        plain = unicodedata.normalize("NFKD", letter)[:1]
        for key in {letter.casefold(), letter.lower(), letter.upper(), letter.upper().lower(), plain.lower()}:
            if len(key) == 1 and letter != "`":
                equal[key].add(letter)
    pairs = {pair for letters in equal.values() for pair in combinations(sorted(letters)[:40], 2)}
    wrong = []
    with request.getfixturevalue(name).connect() as connection, connection.cursor() as cursor:
        for one, other in sorted(pairs):
            is_one_name = False
            try:
                cursor.execute(f"SELECT 1 FROM (SELECT 1 AS `x{one}x`, 2 AS `x{other}x`) AS pair")
                cursor.fetchall()
            except pymysql.Error as error:
                if error.args[0] != DUPLICATE_COLUMN:
                    raise
                is_one_name = True
            if is_one_name is not (mysql_fold(one) == mysql_fold(other)):
                wrong.append((one, other, is_one_name))
    assert not wrong


@pytest.fixture(params=["postgres", "mysql", "delta"])
def sink(
    request: pytest.FixtureRequest, server: DatabaseServer, database: str, postgres: PostgresServer, tmp_path: Path
) -> Any:
    """The options of a sink, and a function that returns the rows of its table ``b``."""
    kind = request.param
    if kind == "delta":
        folder = tmp_path / "lake"

        def lines() -> list[dict[str, Any]]:
            table = DeltaTable(str(folder / database / "b")).to_pyarrow_table()
            return list(table.to_pylist())

        yield {"type": "delta", "path": str(folder)}, lines
    elif kind == "postgres":
        with postgres.fresh_database() as name:

            def tuples() -> list[dict[str, Any]]:
                with postgres.connect(name) as connection, connection.cursor() as cursor:
                    cursor.execute(f'SELECT * FROM "{database}"."b"')
                    return _rows(cursor)

            url = f"jdbc:{postgres.url(name)}"
            yield {"type": "jdbc", "url": url, "user": postgres.user, "password": postgres.password}, tuples
    else:
        with server.fresh_database() as home:

            def rows() -> list[dict[str, Any]]:
                with server.connect() as connection, connection.cursor() as cursor:
                    cursor.execute(f"SELECT * FROM `{database}_out`.b")
                    return _rows(cursor)

            url = f"jdbc:mysql://{server.host}:{server.port}/{home}"
            yield {"type": "jdbc", "url": url, "user": "root", "password": "root"}, rows
            server.execute(f"DROP DATABASE IF EXISTS `{database}_out`")


def _rows(cursor: Any) -> list[dict[str, Any]]:
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def test_a_column_stays_when_one_is_dropped_whose_name_differs_in_letters(
    server: DatabaseServer, database: str, sink: Any, tmp_path: Path
) -> None:
    options, rows = sink
    more = {"route": [{"table": rf"{database}\.b", "to": f"{database}_out.b"}]} if "mysql" in str(options) else {}
    config: dict[str, Any] = {
        "pipeline": {
            "name": "n",
            "state": str(tmp_path / "state"),
            "epoch_interval": "200ms",
            "schema_change": "evolve",
        },
        "source": {
            "type": "mysql",
            "port": server.port,
            "user": "cdc",
            "password": "${env:RAYCDC_TEST_PASSWORD}",
            "tables": [rf"{database}\.b"],
        },
        "readers": {"max": 1},
        "sink": {**options, "write": "upsert"},
        **more,
    }

    def followed(*statements: str) -> None:
        server.execute(*statements, database=database)
        Pipeline.from_config(config_from_dict(config)).run(until="caught-up", local=True)
        with server.connect(database=database) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT * FROM b ORDER BY id")
            source = _rows(cursor)
        assert sorted(rows(), key=lambda row: row["id"]) == source

    followed(
        "CREATE TABLE b (id INT PRIMARY KEY, `Straße` INT, `STRASSE` INT, z INT) CHARACTER SET utf8mb4",
        "INSERT INTO b VALUES (1, 1, 2, 3)",
    )
    followed("ALTER TABLE b DROP COLUMN `STRASSE`", "INSERT INTO b VALUES (2, 5, 6)")
    followed("ALTER TABLE b CHANGE z `STRASSE` INT", "INSERT INTO b VALUES (3, 7, 8)")
    followed("ALTER TABLE b ADD COLUMN `ſtrasse` INT DEFAULT 5", "UPDATE b SET `STRASSE` = 0 WHERE id = 1")
    followed("ALTER TABLE b CHANGE `strasse` `Strasse` INT", "INSERT INTO b VALUES (4, 1, 2, 3)")
