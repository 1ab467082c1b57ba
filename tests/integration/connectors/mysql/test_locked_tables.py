"""A table that another session has locked holds up no other: all others are read and followed while it waits."""

from __future__ import annotations

import itertools
import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from raycdc.cli.tables import change_table
from raycdc.clients.mysql import query
from raycdc.connectors.mysql import table_probe
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.plugin import MySqlSourceConfig
from raycdc.connectors.mysql.server.catalog import all_tables, discover_tables, load_table, load_tables
from raycdc.connectors.mysql.server.client import current_end
from raycdc.connectors.mysql.server.locks import locked_by, wait_for_locks
from raycdc.connectors.mysql.snapshot.rows_again import require_rows
from raycdc.connectors.mysql.table_probe import TableOptions, probe_table
from raycdc.errors import SourceUnavailableError, TableLockedError
from raycdc.model import TableId
from raycdc.model.rules.selector import TableSelector
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, MySqlServer
from raycdc.source.split import BackfillRows
from raycdc.source.tables.resnapshots import FollowableTable
from raycdc.transform.masks import Masking
from raycdc.transform.target_rules import TargetRules
from tests.support.jobs import Job, JobRun

pytestmark = pytest.mark.server


@contextmanager
def locked(server: DatabaseServer, database: str, *tables: str) -> Iterator[Callable[[], None]]:
    """Nobody reads the tables until the function is called."""
    with closing(server.connect(database=database)) as holder, holder.cursor() as cursor:
        cursor.execute("LOCK TABLES " + ", ".join(f"{table} WRITE" for table in tables))
        yield lambda: cursor.execute("UNLOCK TABLES")


@contextmanager
def being_made(server: DatabaseServer, database: str, *, seconds: int) -> Iterator[threading.Thread]:
    """Somebody makes table `u` anew for so long: not even its columns can be asked for. Inside, that has begun."""
    server.execute("CREATE TABLE u (id INT PRIMARY KEY)", "CREATE TABLE o (id INT)", "INSERT INTO o VALUES (1)",
                   database=database)  # fmt: skip
    made = f"CREATE OR REPLACE TABLE u (id INT PRIMARY KEY) AS SELECT id, SLEEP({seconds}) s FROM o"
    change = threading.Thread(target=server.execute, args=[made], kwargs={"database": database})
    change.start()
    with closing(server.connect()) as asking:
        under_way = "SELECT 1 FROM information_schema.PROCESSLIST WHERE INFO = %s AND STATE = 'User sleep'"
        while not query(asking, under_way, (made,)):
            assert change.is_alive()
    yield change
    change.join()


def job(folder: Path, server: DatabaseServer, database: str, tables: int, **options: Any) -> Job:
    """A pipeline with one reader that reads one chunk at a time."""
    names = [f"t{number:02}" for number in range(tables)]
    for name in names:
        server.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY)", f"INSERT INTO {name} VALUES (1), (2)",
                       database=database)  # fmt: skip
    options = {"sink": "jsonl", "write": "changelog", "epoch_interval": "200ms", **options}
    return Job(folder, server, database, names, local=True, readers=1, readers_keys="fetchers = 1", **options)


def ids(pipeline: Job, table: str) -> list[int]:
    """The keys that are in the target's changelog."""
    files = (pipeline.lake / pipeline.database / table).glob("*.jsonl")
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return sorted(row["id"] for row in rows if row["_op"] == "+I")


def warned(run: JobRun, table: str) -> list[str]:
    texts = [event["text"] for event in list(run.events) if event["event"] == "warning"]
    return [text for text in texts if f"{table}: It is locked" in text]


@pytest.mark.long_variants("mysql80", suite="servers")
def test_a_table_that_is_locked_before_its_snapshot_holds_up_no_other(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    pipeline = job(tmp_path, server, database, 12, pipeline='watchdog = "1s"')
    others = [table for table in pipeline.tables if table not in ("t00", "t05")]
    with locked(server, database, "t00", "t05") as unlock:
        run = pipeline.start()
        run.wait_for_rows(lambda: all(ids(pipeline, table) == [1, 2] for table in others))
        server.execute(*(f"INSERT INTO {table} VALUES (3)" for table in others), database=database)
        run.wait_for_rows(lambda: all(ids(pipeline, table) == [1, 2, 3] for table in others))
        assert not ids(pipeline, "t00")
        run.wait_for(lambda: bool(warned(run, "t00") and warned(run, "t05")))
        unlock()
    server.execute("INSERT INTO t00 VALUES (3)", database=database)
    run.wait_for_rows(lambda: ids(pipeline, "t00") == [1, 2, 3] and ids(pipeline, "t05") == [1, 2])
    assert run.interrupt() in (0, 130), run.story()
    assert [len(warned(run, table)) for table in ("t00", "t05")] == [1, 1]
    stood = [event for event in run.events if event["event"] == "stalled" and event["stage"] == "chunk"]
    assert {event["table"] for event in stood} == {f"{database}.t00", f"{database}.t05"}


def test_a_table_that_is_locked_while_it_is_read_holds_up_no_other(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    pipeline = job(tmp_path, server, database, 4, chunk_rows=100)
    server.execute(
        "INSERT INTO t00 SELECT 10 + a.n + 10 * b.n + 100 * c.n FROM"
        + ", ".join(f" (SELECT 0 n{''.join(f' UNION SELECT {n}' for n in range(1, 10))}) {name}" for name in "abc"),
        "ANALYZE TABLE t00",
        database=database,
    )
    run = pipeline.start(failpoints="before_select=stop@2")
    run.wait_for(lambda: pipeline.stopped_at("before_select"))
    with locked(server, database, "t00") as unlock:
        run.process.send_signal(signal.SIGCONT)
        run.wait_for_rows(lambda: all(ids(pipeline, table) == [1, 2] for table in ("t01", "t02", "t03")))
        server.execute("INSERT INTO t01 VALUES (3)", database=database)
        run.wait_for_rows(lambda: ids(pipeline, "t01") == [1, 2, 3])
        assert len(ids(pipeline, "t00")) < 1002
        unlock()
    run.wait_for_rows(lambda: ids(pipeline, "t00") == [1, 2, *range(10, 1010)])
    assert run.interrupt() in (0, 130), run.story()


@pytest.mark.long_variants("mysql80", suite="servers")
def test_a_locked_table_that_begins_again_holds_up_no_other(
    server: DatabaseServer, database: str, tmp_path: Path
) -> None:
    pipeline = job(tmp_path, server, database, 2)
    assert pipeline.start("--until", "caught-up").wait() == 0
    with locked(server, database, "t00") as unlock:
        assert change_table(pipeline.state, f"{database}.t00", "resnapshot") == 0
        run = pipeline.start()
        server.execute("INSERT INTO t01 VALUES (3)", database=database)
        run.wait_for_rows(lambda: ids(pipeline, "t01") == [1, 2, 3])
        run.wait_for(lambda: bool(warned(run, "t00")))
        unlock()
    run.wait_for_rows(lambda: ids(pipeline, "t00") == [1, 1, 2, 2])
    assert run.interrupt() in (0, 130), run.story()


def test_rows_of_a_locked_table_are_refused_to_be_read_again_instead_of_being_waited_for(
    server: DatabaseServer, database: str
) -> None:
    server.execute("CREATE TABLE t (id INT PRIMARY KEY)", database=database)
    with closing(server.connect()) as connection:
        table = load_table(connection, TableId(database, "t"))
    with locked(server, database, "t"), pytest.raises(TableLockedError, match=rf"has {database}\.t locked"):
        require_rows(server.connect, table, BackfillRows("c", "id = 1"), Masking())


@pytest.mark.parametrize("kind", [MySqlServer, MariaDbServer])
def test_the_warning_names_the_session_where_the_server_says_it(kind: type[DatabaseServer]) -> None:
    with kind({"performance_schema": "ON"}) as server, server.fresh_database() as database:
        table = TableId(database, "t")
        server.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)", database=database)
        with closing(server.connect()) as asking, closing(server.connect(database=database)) as holder:
            wait_for_locks(asking, 1)
            assert locked_by(asking, [table]) == {table: ""}
            with holder.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute("SELECT * FROM t")
            change = threading.Thread(
                target=server.execute, args=["ALTER TABLE t ADD COLUMN s VARCHAR(9) DEFAULT 'hush'"],
                kwargs={"database": database},
            )  # fmt: skip
            change.start()
            while not (said := locked_by(asking, [table])[table]):
                continue
            holder.rollback()
            change.join()
        assert "root: ALTER TABLE t ADD COLUMN s" in said
        assert "hush" not in said
        if kind is MySqlServer:
            assert f"session {holder.thread_id()} of root, session" in said


def test_a_table_that_is_being_made_anew_is_locked_and_not_gone(mariadb: MariaDbServer, mariadb_database: str) -> None:
    """The catalog leaves it out meanwhile, with a warning."""
    mariadb.execute("CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE o (id INT)", "INSERT INTO o VALUES (1), (2)",
                    database=mariadb_database)  # fmt: skip
    table, options = (
        TableId(mariadb_database, "t"),
        TableOptions(MySqlSourceConfig(type="mysql", user="cdc", tables=("x.y",))),
    )
    made = "CREATE OR REPLACE TABLE t (id INT PRIMARY KEY) AS SELECT id, SLEEP(2) s FROM o"
    change = threading.Thread(target=mariadb.execute, args=[made], kwargs={"database": mariadb_database})
    change.start()
    told = ""
    while change.is_alive() and not told:
        try:
            assert probe_table(mariadb.connect, table, options, TargetRules()) is not None
        except TableLockedError as locked:
            told = str(locked)
    change.join()
    assert "locked" in told
    look = probe_table(mariadb.connect, table, options, TargetRules())
    assert isinstance(look, FollowableTable)
    assert [column.name for column in look.described.columns] == ["id", "s"]


def test_a_table_that_changes_its_shape_all_the_time_is_looked_at_again_later(
    mariadb: MariaDbServer, mariadb_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mariadb.execute("CREATE TABLE t (id INT PRIMARY KEY)", database=mariadb_database)
    numbers = itertools.count()

    def change_and_tell(*arguments: Any) -> BinlogOffset:
        mariadb.execute(f"ALTER TABLE t ADD COLUMN c{next(numbers)} INT", database=mariadb_database)
        return current_end(*arguments)

    monkeypatch.setattr(table_probe, "current_end", change_and_tell)
    options = TableOptions(MySqlSourceConfig(type="mysql", user="cdc", tables=("x.y",)))
    with pytest.raises(TableLockedError, match="changed its schema at each probe"):
        probe_table(mariadb.connect, TableId(mariadb_database, "t"), options, TargetRules())


def test_a_table_that_nobody_asks_for_is_no_error_where_the_server_waits_shortly_for_locks(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    every = "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s"
    with being_made(mariadb, mariadb_database, seconds=8) as change, closing(mariadb.connect()) as connection:
        query(connection, "SET SESSION lock_wait_timeout = 1")
        assert "o" in [row[0] for row in query(connection, every, (mariadb_database,))]
        wait_for_locks(connection, 1)
        with pytest.raises(SourceUnavailableError, match=rf"has a table locked; .* about {mariadb_database}, u"):
            load_tables(connection, [TableId(mariadb_database, "u")])
        assert change.is_alive()


def test_a_table_of_another_database_that_is_being_made_keeps_no_tables_from_being_found(
    mariadb: MariaDbServer, mariadb_database: str
) -> None:
    mariadb.execute(
        "CREATE TABLE t (id INT)",
        "CREATE VIEW v AS SELECT * FROM t",
        "CREATE SEQUENCE s",
        "CREATE TABLE kept (id INT) WITH SYSTEM VERSIONING",
        database=mariadb_database,
    )
    selector = TableSelector([f"{mariadb_database}.*"])
    with (
        mariadb.fresh_database() as other,
        being_made(mariadb, other, seconds=6) as change,
        closing(mariadb.connect()) as connection,
    ):
        found = discover_tables(connection, selector)
        every = all_tables(connection)
        assert change.is_alive()
        assert [table.table for table in found] == ["kept", "t"]
        assert {*found, TableId(other, "u")} <= set(every)
