"""What a server logs otherwise than SELECT gives it: decoded as SELECT gives it, or refused by name.

`EQUAL` are tables that are equal by snapshot and log whatever metadata the log has; `REFUSED` those that `unfit` names.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from raycdc.clients.mysql import query
from raycdc.connectors.mysql.server.catalog import below_merged, load_table
from raycdc.connectors.mysql.server.checks import unfit
from raycdc.model import TableId
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, MySqlServer
from tests.blackbox.command import Pipeline
from tests.blackbox.targets import DeltaTarget
from tests.blackbox.test_types import _configuration
from tests.integration.connectors.mysql.test_mysql_binlog import log_end, read_log, replay, snapshot
from tests.support.sessions import session

pytestmark = pytest.mark.server

NOW = "CURRENT_TIMESTAMP(6)"

#: Of every server: the columns, and the statements.
ANYWHERE: dict[str, tuple[str, ...]] = {
    "trigger_below_generated": (
        "id INT PRIMARY KEY, c INT, g INT AS (c + 1), s INT AS (c + 2) STORED",
        "CREATE TRIGGER before_it BEFORE INSERT ON {t} FOR EACH ROW SET NEW.c = NEW.c * 10",
        "INSERT INTO {t} (id, c) VALUES (1, 1), (2, 2)",
        "INSERT INTO {t} (id, c) VALUES (1, 5) ON DUPLICATE KEY UPDATE c = c + 10",
        "REPLACE INTO {t} (id, c) VALUES (2, 99)",
    ),
    "generated_of_rounded": (
        "id INT PRIMARY KEY, c DECIMAL(5,1), g DECIMAL(8,3) AS (c * 3), d CHAR(5), e VARCHAR(9) AS (CONCAT(d, ' '))",
        "INSERT INTO {t} (id, c, d) VALUES (1, 1.26, 'a '), (2, 2.249, '')",
    ),
    "now_below_generated": (
        f"id INT PRIMARY KEY, c TIMESTAMP(6) NOT NULL DEFAULT {NOW} ON UPDATE {NOW}, v INT, g CHAR(40) AS (CONCAT(c))",
        "INSERT INTO {t} (id, v) VALUES (1, 1), (2, 2)",
        "UPDATE {t} SET v = 3",
    ),
    "error_values": (
        "id INT PRIMARY KEY, c ENUM('a'), d SET('a','b'), e DATE, f TIMESTAMP NULL, g INT NOT NULL, h CHAR(2) NOT NULL",
        "SET sql_mode = ''",
        "INSERT IGNORE INTO {t} VALUES (1, 'no', 'no', 0, 0, NULL, 'long'), (2, 0, 0, '2023-02-31', NULL, 'x', NULL)",
    ),
    "displayed": (
        "id INT(5) ZEROFILL PRIMARY KEY, c FLOAT(5,2), d DOUBLE(9,3), e DECIMAL(9,2) ZEROFILL, f BIT(17), g YEAR",
        "INSERT INTO {t} VALUES (1, 1.005, 1.0005, 1, 65537, 0), (22, 123.455, 9e4, 2.255, 0, 2155)",
    ),
}
MARIADB: dict[str, tuple[str, ...]] = {
    "hashed_keys": (
        "id INT PRIMARY KEY, u TEXT UNIQUE, v VARCHAR(3000) UNIQUE",
        "INSERT INTO {t} VALUES (1, 'a', 'b'), (2, NULL, NULL)",
        "UPDATE {t} SET u = 'c' WHERE id = 1",
    ),
    "years": ("id INT PRIMARY KEY, y YEAR(2)", "INSERT INTO {t} VALUES (1, 93), (2, 1993), (3, 2000), (4, 0)"),
    "own_types": (
        "id INT PRIMARY KEY, a UUID, b INET4, c INET6, d INT INVISIBLE DEFAULT 4",
        "INSERT INTO {t} VALUES (1, UUID(), '1.2.3.4', '::1'), (2, REPEAT('0', 32), '0.0.0.0', '::')",
    ),
    "portions": (
        "id INT AUTO_INCREMENT PRIMARY KEY, c INT, s DATE, e DATE, PERIOD FOR p (s, e)",
        "INSERT INTO {t} VALUES (1, 1, '2020-01-01', '2020-12-31')",
        "UPDATE {t} FOR PORTION OF p FROM '2020-03-01' TO '2020-04-01' SET c = 5",
        "DELETE FROM {t} FOR PORTION OF p FROM '2020-05-01' TO '2020-06-01'",
    ),
}
MYSQL80: dict[str, tuple[str, ...]] = {
    "functional_index": (
        "id INT PRIMARY KEY, c INT, INDEX ((c + 1))",
        "INSERT INTO {t} VALUES (1, 1), (2, 2)",
        "UPDATE {t} SET c = 3 WHERE id = 1",
    ),
}


@pytest.mark.parametrize("level", ["FULL", "MINIMAL"])
@pytest.mark.parametrize("kind", ["mariadb", "mysql80", "mysql57"])
def test_snapshot_and_log_give_the_same(request: pytest.FixtureRequest, kind: str, level: str) -> None:
    server: DatabaseServer = request.getfixturevalue(kind)
    if kind == "mysql57" and level == "FULL":
        pytest.skip("it has no row metadata")
    cases = ANYWHERE | {"mariadb": MARIADB, "mysql80": MYSQL80}.get(kind, {})
    with server.fresh_database() as database, session(server, "root") as connection:
        query(connection, f"USE `{database}`")
        wrong: dict[tuple[str, str], tuple[list[object], list[object]]] = {}
        if kind != "mysql57":
            query(connection, f"SET GLOBAL binlog_row_metadata = '{level}'")
        try:
            for name, (columns, *statements) in cases.items():
                start = log_end(connection)
                query(connection, f"CREATE TABLE {name} ({columns})")
                for statement in statements:
                    query(connection, statement.replace("{t}", name))
                table = load_table(connection, TableId(database, name))
                assert unfit(table) == ""
                now = snapshot(connection, table)
                logged = replay(read_log(server, [table], start, log_end(connection)), table)
                wrong |= {
                    (name, c): (now[c].to_pylist(), logged[c].to_pylist())
                    for c in now.column_names
                    if not now[c].equals(logged[c])
                }
        finally:
            if kind != "mysql57":
                query(connection, "SET GLOBAL binlog_row_metadata = 'FULL'")
        assert wrong == {}


def refusals(server: DatabaseServer, tables: dict[str, str]) -> dict[str, str]:
    """By name of the table why it is refused."""
    with server.fresh_database() as database, session(server, "root") as connection:
        query(connection, f"USE `{database}`")
        for name, sql in tables.items():
            query(connection, f"CREATE TABLE {name} {sql}")
        found = {name: load_table(connection, TableId(database, name)) for name in tables}
        below = below_merged(connection, {table.id: table for table in found.values()})
        return {name: unfit(table) or below.get(table.id, "") for name, table in found.items()}


ENGINES = {
    "below": "(id INT PRIMARY KEY) ENGINE = MyISAM",
    "free": "(id INT PRIMARY KEY) ENGINE = MyISAM",
    "above": "(id INT PRIMARY KEY) ENGINE = MERGE UNION = (below) INSERT_METHOD = LAST",
    "inno": "(n BIGINT) ENGINE = InnoDB",
    # One that no server opens or shows, which could be over any table of its columns' types.
    "broken": "(n BIGINT) ENGINE = MERGE UNION = (inno)",
    "perhaps": "(n BIGINT) ENGINE = MyISAM",
    "by_default": "(id INT PRIMARY KEY, c INT DEFAULT 5, g INT AS (DEFAULT(c) + c), h INT AS (g + 1))",
    "kept": "(id INT PRIMARY KEY, c INT DEFAULT 5, g INT AS (DEFAULT(c) + c) STORED)",
    "harmless": "(id INT PRIMARY KEY, c INT, g VARCHAR(40) AS (CONCAT(c, 'default(c)')))",
}


MERGED = {"below", "above", "broken", "perhaps"}
FINE = {"free", "inno", "kept", "harmless"}


def test_mysql_refuses_what_it_logs_otherwise_by_name(mysql80: MySqlServer) -> None:
    found = refusals(mysql80, ENGINES)
    assert {name for name, why in found.items() if "MERGE" in why} == MERGED
    assert {name for name, why in found.items() if "'g'" in why} == {"by_default"}
    assert {name for name, why in found.items() if not why} == FINE


def test_mariadb_refuses_what_it_logs_otherwise_by_name(mariadb: MariaDbServer) -> None:
    tables = ENGINES | {
        "by_counter": "(ID INT AUTO_INCREMENT PRIMARY KEY, c INT, f INT AS (c + 1), g INT AS (f + id))",
        "short_key": "(y YEAR(2), n INT, PRIMARY KEY (y, n))",
    }
    found = refusals(mariadb, tables)
    assert {name for name, why in found.items() if "MERGE" in why} == MERGED
    assert {name for name, why in found.items() if "'g'" in why} == {"by_default", "by_counter"}
    assert {name for name, why in found.items() if "YEAR(2)" in why} == {"short_key"}
    assert {name for name, why in found.items() if not why} == FINE


def test_a_key_of_the_snapshot_that_is_one_text_with_another_parks_its_table_alone(
    mysql80: MySqlServer, tmp_path: Path
) -> None:
    with mysql80.fresh_database() as database:
        mysql80.execute(
            "CREATE TABLE t (k VARCHAR(4) CHARACTER SET cp932 COLLATE cp932_bin PRIMARY KEY, n INT)",
            "INSERT INTO t VALUES (0x81CA, 1), (0xEEF9, 2), (0xED40, 3), (0xFA5C, 4)",
            "CREATE TABLE other (id INT PRIMARY KEY)",
            "INSERT INTO other VALUES (1)",
            database=database,
        )
        target = DeltaTarget(tmp_path / "lake")
        pipeline = Pipeline(tmp_path, _configuration(mysql80, database, target, ""))
        assert "may be the same text" in pipeline.run().expect(4).err
        phases = {name: listed["phase"] for name, listed in pipeline.listed().items()}
        assert phases == {f"{database}.t": "parked", f"{database}.other": "stream"}
        mysql80.execute("DELETE FROM t WHERE n IN (2, 3, 4)", database=database)
        assert pipeline.tables("resnapshot", f"{database}.t").code == 0
        pipeline.run().expect(0)
        held, _ = target.read(database, "t", ("k",))
        assert held is not None
        assert [row["n"] for row in held.rows] == [1]
