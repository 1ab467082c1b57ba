"""Values that only one phase would get right: lost ones are counted once, labels and time zones change under way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raycdc.clients.mysql import query
from raycdc.config import config_from_dict
from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.connectors.mysql.snapshot.chunk_reader import ConnectionRateLimiter
from raycdc.connectors.mysql.values.types import TypeOptions
from raycdc.errors import DataError
from raycdc.model import TableId
from raycdc.observe.events import RunEvent, RunProgress
from raycdc.pipeline import Pipeline
from raycdc.sandbox.servers import DatabaseServer, MySqlNewestServer
from tests.integration.connectors.mysql.test_mysql_binlog import log_end, read_log, replay, snapshot
from tests.support.sessions import session

pytestmark = pytest.mark.server


def pipeline(server: DatabaseServer, database: str, folder: Path, **snapshot: Any) -> Pipeline:
    source = {"type": "mysql", "port": server.port, "user": "cdc", "password": "${env:RAYCDC_TEST_PASSWORD}"}
    return Pipeline.from_config(
        config_from_dict(
            {
                "pipeline": {"name": "under-way", "state": str(folder / "state"), "epoch_interval": "200ms"},
                "source": {**source, "tables": [rf"{database}\..*"], "snapshot": snapshot},
                "readers": {"min": 3, "max": 3},
                "sink": {"type": "jsonl", "path": str(folder / "lake"), "write": "changelog"},
            }
        )
    )


def catch_up(server: DatabaseServer, database: str, folder: Path) -> int:
    """Run to the log's end; how many values were lost then, as progress says."""
    events: list[RunEvent] = []
    pipeline(server, database, folder).run(until="caught-up", local=True, listener=events.append)
    last = [event for event in events if isinstance(event, RunProgress)][-1]
    return sum(table.lost_values for table in last.tables)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """What the target has, in the order of the changes."""
    lines = [line for file in (folder / "lake").rglob("*.jsonl") for line in file.read_text().splitlines()]
    return sorted((json.loads(line) for line in lines), key=lambda row: int(row["_seq"]))


def test_lost_values_are_counted_in_both_phases_and_once_over_restarts(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    def execute(*statements: str) -> None:
        server.execute("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'", *statements, database=database)

    execute(
        "CREATE TABLE t (id INT PRIMARY KEY, d DATE, c VARCHAR(9) CHARACTER SET greek)",
        "INSERT INTO t VALUES (1, '0000-00-00', 'a'), (2, NULL, _greek X'61D2'), (3, '2024-01-01', 'b')",
    )
    assert catch_up(server, database, tmp_path) == 2
    assert catch_up(server, database, tmp_path) == 2
    execute("INSERT INTO t VALUES (4, '2024-02-31', _greek X'D2')", "INSERT INTO t VALUES (5, NULL, NULL)")
    assert catch_up(server, database, tmp_path) == 4
    assert catch_up(server, database, tmp_path) == 4
    found = [(row["id"], row["d"], row["c"]) for row in rows_of(tmp_path)]
    assert found == [
        (1, None, "a"),
        (2, None, "a\ufffd"),
        (3, "2024-01-01", "b"),
        (4, None, "\ufffd"),
        (5, None, None),
    ]


def test_text_that_is_none_is_an_error_where_wanted(server: DatabaseServer, database: str) -> None:
    with session(server, "root") as connection:
        start = log_end(connection)
        query(connection, f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, c VARCHAR(9) CHARACTER SET greek)")
        query(connection, f"INSERT INTO `{database}`.t VALUES (1, _greek X'61'), (2, _greek X'D2')")
        table = TypeOptions(invalid_text="park").treat_table(load_table(connection, TableId(database, "t")))
        end = log_end(connection)
        with pytest.raises(DataError, match=r"t\.c: .*invalid_text"):
            snapshot(connection, table)
        with pytest.raises(DataError, match=r"t\.c: .*invalid_text"):
            read_log(server, [table], start, end)


def test_labels_and_the_servers_time_zone_change_in_mid_stream(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    instants = [f"2024-0{month}-01 12:00:00" for month in range(1, 6)]

    def insert(number: int, label: str, zone: str) -> None:
        """The same instant in any zone, and the same words of a clock."""
        here = f"CONVERT_TZ('{instants[number]}', '+00:00', '{zone}')"
        values = f"{number}, '{label}', {here}, '{instants[number]}'"
        # A new session takes the server's zone.
        server.execute("SET time_zone = @@GLOBAL.time_zone", f"INSERT INTO t VALUES ({values})", database=database)

    zone_before = server.execute("SELECT @@GLOBAL.time_zone", database=database)[0][0]
    try:
        server.execute("SET GLOBAL time_zone = '+05:30'", database=database)
        server.execute(
            "CREATE TABLE t (id INT PRIMARY KEY, e ENUM('b','a'), s TIMESTAMP NULL, m DATETIME)", database=database
        )
        insert(0, "a", "+05:30")
        catch_up(server, database, tmp_path)
        insert(1, "b", "+05:30")
        server.execute("SET GLOBAL time_zone = '-08:00'", database=database)
        insert(2, "a", "-08:00")
        server.execute("ALTER TABLE t MODIFY e ENUM('b','a','c')", database=database)
        insert(3, "c", "-08:00")
        insert(4, "a", "-08:00")
        catch_up(server, database, tmp_path)
        server.execute(
            "ALTER TABLE t MODIFY e ENUM('b','a','c','é')", "UPDATE t SET e = 'é' WHERE id = 2", database=database
        )
        catch_up(server, database, tmp_path)
    finally:
        server.execute(f"SET GLOBAL time_zone = '{zone_before}'", database=database)
    found = {row["id"]: row for row in rows_of(tmp_path) if row["_op"] in ("+I", "+U")}
    assert [found[n]["e"] for n in range(5)] == ["a", "b", "é", "c", "a"]
    assert [found[n]["m"] for n in range(5)] == instants
    assert [str(found[n]["s"])[:19].replace("T", " ") for n in range(5)] == instants


def test_a_new_table_has_its_databases_character_set_of_that_time_whatever_it_is_at_a_restart(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    """The job is down while tables are created and the default changes between them, twice."""
    server.execute(
        f"ALTER DATABASE `{database}` CHARACTER SET latin1",
        *(f"CREATE TABLE {name} (id INT PRIMARY KEY, c VARCHAR(9))" for name in "abc"),
        database=database,
    )
    catch_up(server, database, tmp_path)
    for name, following in (("a", "cp1251"), ("b", "utf8mb4"), ("c", "koi8r")):
        text = "ж" if name != "a" else "é"
        server.execute(
            f"DROP TABLE {name}",
            f"CREATE TABLE {name} (id INT PRIMARY KEY, c VARCHAR(9))",
            f"INSERT INTO {name} VALUES (1, '{text}')",
            f"ALTER DATABASE `{database}` CHARACTER SET {following}",
            database=database,
        )
        if name == "b":
            catch_up(server, database, tmp_path)
    catch_up(server, database, tmp_path)
    found = {row["_table"]: row for row in rows_of(tmp_path) if row["_op"] == "+I"}
    assert {name: row["c"] for name, row in found.items()} == {"a": "é", "b": "ж", "c": "ж"}
    # The log alone tells of the first one; the others have another character set than before and are read anew.
    assert [name for name, row in found.items() if row["_pos"] is not None] == ["a"]


def test_a_snapshot_keeps_to_its_pace_and_its_connections(
    server: DatabaseServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection has a clock of its own, which moves by nothing but what its pace waits."""
    passed: dict[ConnectionRateLimiter, list[tuple[float, int]]] = {}

    class SimulatedPace(ConnectionRateLimiter):
        def __init__(self, rows_per_s: float) -> None:
            assert rows_per_s == 500 / 2
            super().__init__(rows_per_s, now_s=lambda: self.clock_s)
            self.clock_s = 0.0
            self.end()  # It does not really wait.
            passed[self] = []

        def passed(self, rows: int) -> float:
            self.clock_s += super().passed(rows)
            passed[self].append((self.clock_s, rows))
            return 0.0

    monkeypatch.setattr("raycdc.connectors.mysql.snapshot.chunk_reader.ConnectionRateLimiter", SimulatedPace)
    values = ", ".join(f"({n})" for n in range(400))
    server.execute("CREATE TABLE t (id INT PRIMARY KEY)", f"INSERT INTO t VALUES {values}", database=database)
    paced = pipeline(server, database, tmp_path, chunk_rows=20, rows_per_second=500, connections=2)
    paced.run(until="caught-up", local=True)
    assert 1 <= len(passed) <= 2
    assert sum(rows for batches in passed.values() for _, rows in batches) >= 400
    for batches in passed.values():
        read = 0
        for at_s, rows in batches:
            read += rows
            assert read <= at_s * 250 + 1e-6
    assert len(rows_of(tmp_path)) == 400


def test_vectors_and_invisible_columns_are_the_same_in_both_phases(mysql_newest: MySqlNewestServer) -> None:
    with mysql_newest.fresh_database() as database, session(mysql_newest, "root") as connection:
        start = log_end(connection)
        name = f"`{database}`.t"
        query(connection, f"CREATE TABLE {name} (id INT PRIMARY KEY, v VECTOR(3), h INT INVISIBLE, n VECTOR NOT NULL)")
        vectors = "STRING_TO_VECTOR('[1, -2.5, 3e38]'), 7, STRING_TO_VECTOR('[0]')"
        query(connection, f"INSERT INTO {name} (id, v, h, n) VALUES (1, {vectors}), (2, NULL, NULL, X'00000000')")
        query(connection, f"UPDATE {name} SET n = STRING_TO_VECTOR('[0.5, 0.25]') WHERE id = 2")
        table = load_table(connection, TableId(database, "t"))
        now = snapshot(connection, table)
        printed = query(connection, f"SELECT id, HEX(v), h, HEX(n) FROM {name} ORDER BY id")
        ours = [
            (row["id"], None if row["v"] is None else row["v"].hex().upper(), row["h"], row["n"].hex().upper())
            for row in now.to_pylist()
        ]
        assert ours == list(printed)
        assert replay(read_log(mysql_newest, [table], start, log_end(connection)), table).equals(now)
