"""`raycdc run` into databases: NOT NULL follows the source, and a row with NULL never stands still before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from raycdc.sandbox.servers import MariaDbServer, PostgresServer
from tests.e2e.test_jdbc import sink_keys
from tests.e2e.test_parked_targets import make
from tests.support.jobs import Job, catch_up

pytestmark = pytest.mark.server

DATABASE = "not_null"
ROUTE = rf"""
[[route]]
table = '{DATABASE}\.(strict|loose)'
to = "{DATABASE}.both"
"""


def test_not_null_is_the_sources(mariadb: MariaDbServer, postgres: PostgresServer, tmp_path: Path) -> None:
    make(
        mariadb,
        DATABASE,
        "CREATE TABLE t (id INT PRIMARY KEY, a INT NOT NULL, b VARCHAR(20) NOT NULL, c INT, day DATE NOT NULL)",
        "CREATE TABLE strict (id INT PRIMARY KEY, v INT NOT NULL, w INT NOT NULL)",
        "CREATE TABLE loose (id INT PRIMARY KEY, v INT, w INT NOT NULL)",
        "SET SESSION sql_mode = ''",
        "INSERT INTO t VALUES (1, 1, 'a', NULL, '0000-00-00')",
        "INSERT INTO strict VALUES (1, 1, 1)",
    )
    with postgres.fresh_database() as home:

        def demanded(table: str) -> set[str]:
            statement = (
                "SELECT column_name::text FROM information_schema.columns WHERE is_nullable = 'NO' "
                f"AND table_schema = '{DATABASE}' AND table_name = '{table}' AND column_name <> 'id'"
            )
            return {str(name) for (name,) in postgres.execute(statement, database=home)}

        def rows(table: str, columns: str) -> list[tuple[object, ...]]:
            return postgres.execute(f"SELECT {columns} FROM {DATABASE}.{table} ORDER BY id", database=home)

        keys = sink_keys(postgres, home)
        names = ("t", "strict", "loose")
        job = Job(tmp_path, mariadb, DATABASE, names, sink="jdbc", sink_keys=keys, local=True, sections=ROUTE)
        catch_up(job)
        assert (demanded("t"), demanded("both")) == ({"a", "b"}, {"w"})
        mariadb.execute(
            "INSERT INTO loose VALUES (2, NULL, 2)",
            "ALTER TABLE t MODIFY a INT NULL, ADD COLUMN d INT NOT NULL",
            "INSERT INTO t VALUES (2, NULL, 'b', 2, '2020-01-01', 7)",
            "ALTER TABLE t DROP COLUMN b",
            "INSERT INTO t VALUES (3, 3, 3, '2020-01-01', 8)",
            # From here on it takes NULL, which a target that two tables share is not told of.
            "ALTER TABLE loose MODIFY w INT NULL",
            "INSERT INTO loose VALUES (3, 3, NULL)",
            database=DATABASE,
        )
        catch_up(job)
        assert rows("t", "id, a, b, c, d") == [(1, 1, "a", None, 0), (2, None, "b", 2, 7), (3, 3, None, 3, 8)]
        assert rows("both", "id, v, w") == [(1, 1, 1), (2, None, 2), (3, 3, None)]
        assert (demanded("t"), demanded("both")) == ({"d"}, set())
        mariadb.execute("UPDATE t SET a = 2 WHERE a IS NULL", "ALTER TABLE t MODIFY a INT NOT NULL", database=DATABASE)
        catch_up(job)
        assert demanded("t") == {"a", "d"}
