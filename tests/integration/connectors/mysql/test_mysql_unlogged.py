"""What keeps rows out of a server's log is told by `check`, and parks the tables that it concerns; others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from raycdc.connectors.mysql.server.checks import check_source, require_ok
from raycdc.connectors.mysql.server.client import probe
from raycdc.connectors.mysql.server.unlogged import LoggedTables
from raycdc.model import TableId
from raycdc.sandbox.compare import read_changelog
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, MySqlServer
from tests.integration.one_table_job import Job
from tests.run_lines import known_tables
from tests.support import jobs
from tests.support.sessions import session

pytestmark = pytest.mark.server


def _mysql80(options: Mapping[str, str | None]) -> DatabaseServer:
    return MySqlServer(options, version="8.0")


MAKERS: Mapping[str, Callable[[Mapping[str, str | None]], DatabaseServer]] = {
    "mariadb": MariaDbServer,
    "mysql80": _mysql80,
}


@pytest.fixture(scope="module", params=list(MAKERS))
def filtering(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    """A server that leaves the database `hidden` out of its log."""
    with MAKERS[request.param]({"binlog-ignore-db": "hidden"}) as server:
        server.execute("CREATE DATABASE hidden", "CREATE DATABASE shown")
        yield server


@pytest.fixture
def job(filtering: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("RAYCDC_TEST_PASSWORD", "cdc")
    for database in ("hidden", "shown"):
        filtering.execute(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    return Job(filtering, "shown", tmp_path, source={"tables": [r"hidden\..*", r"shown\..*"]})


def test_tables_that_the_server_leaves_out_of_its_log_park_and_others_go_on(job: Job) -> None:
    server = job.server
    server.execute("CREATE TABLE hidden.secret (id INT PRIMARY KEY)", "INSERT INTO hidden.secret VALUES (1)")
    job.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with session(server) as connection:
        info = probe(connection)
        results = check_source(connection, info, [TableId("hidden", "secret"), TableId("shown", "t")])
        (parks,) = [result for result in results if result.parks]
        assert (parks.name, "binlog_ignore_db = hidden" in parks.text) == ("table hidden.secret", True)
        assert [result.required for result in results if result.name == "log_filter"] == [False]
        require_ok(results, info)
    assert list(job.catch_up()) == ["secret"]
    # The second statement is in the log, as the session's database is another one; no row of its table is.
    job.execute(
        "INSERT INTO hidden.secret VALUES (2)", "CREATE TABLE hidden.later (id INT PRIMARY KEY)",
        "INSERT INTO hidden.later VALUES (1)", "INSERT INTO t VALUES (2)",
    )  # fmt: skip
    parked = job.catch_up()
    assert sorted(parked) == ["later", "secret"]
    assert all("binlog_ignore_db = hidden" in told["reason"] for told in parked.values())
    assert [row["id"] for row in job.rows("t")] == [1, 2]


def test_a_followed_table_parks_at_a_start_that_finds_its_server_leaving_it_out(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.execute("CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE u (id INT PRIMARY KEY)")
    assert job.catch_up() == {}
    left_out = "is left out since the server was started anew"
    monkeypatch.setattr(LoggedTables, "why_not", lambda _, table, *more: left_out if table.table == "t" else "")
    job.execute("INSERT INTO u VALUES (1)")
    assert [told["reason"] for told in job.catch_up().values()] == [left_out]
    assert [row["id"] for row in job.rows("u")] == [1]


class JobOfTwo(jobs.Job):
    """Of `shown.u` and `hidden.t`."""

    def source_section(self) -> str:
        return super().source_section().replace('"shown.u"', '"shown.u", "hidden.t"')

    def ids(self, table: str) -> list[int]:
        """What was committed of the table."""
        return [row["id"] for row in read_changelog(self.lake.joinpath(*table.split(".")), "jsonl")]


@pytest.mark.parametrize("name", MAKERS)
def test_a_filter_of_the_log_that_begins_while_a_run_goes_on_parks_its_tables(name: str, tmp_path: Path) -> None:
    """The server is started anew with it, and the run reads on."""
    with MAKERS[name]({}) as server:
        server.execute(
            "CREATE DATABASE hidden", "CREATE DATABASE shown", "CREATE TABLE hidden.t (id INT PRIMARY KEY)",
            "CREATE TABLE shown.u (id INT PRIMARY KEY)", "INSERT INTO hidden.t VALUES (1)",
        )  # fmt: skip
        job = JobOfTwo(tmp_path, server, "shown", ["u"], sink="jsonl", write="changelog", local=True)
        run = job.start()
        run.wait_for(lambda: job.ids("hidden.t") == [1])
        server.stop()
        server.set_option("binlog-ignore-db", "hidden")
        server.start()
        server.execute("INSERT INTO hidden.t VALUES (2)", "INSERT INTO shown.u VALUES (2)")

        def is_parked() -> bool:
            told = known_tables(run.events)  # Nothing before the first figures.
            return "hidden.t" in told and told["hidden.t"]["phase"] == "parked"

        run.wait_for(lambda: is_parked() and job.ids("shown.u") == [2])

        assert run.interrupt() in (0, 130), run.story()
        assert "binlog_ignore_db = hidden" in known_tables(run.events)["hidden.t"]["parked"]["reason"]
        assert job.ids("hidden.t") == [1]


def test_a_table_of_an_engine_whose_rows_are_not_its_own_parks(job: Job) -> None:
    if job.server.flavor == "mariadb":
        pytest.skip("the engine is a package of its own there")
    job.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    job.execute("CREATE TABLE void (id INT PRIMARY KEY) ENGINE = BLACKHOLE")
    parked = job.catch_up()
    assert list(parked) == ["void"]
    assert "BLACKHOLE keeps no rows" in parked["void"]["reason"]
    job.execute(
        "INSERT INTO t VALUES (2)", "INSERT INTO void VALUES (1)",
        "CREATE TABLE later (id INT PRIMARY KEY) ENGINE = BLACKHOLE", "INSERT INTO later VALUES (1)",
    )  # fmt: skip
    assert sorted(job.catch_up()) == ["later", "void"]
    assert job.rows("later") == job.rows("void") == []
    # Its rows are gone, and no row of the log says so.
    job.execute("ALTER TABLE t ENGINE = BLACKHOLE")
    assert sorted(job.catch_up()) == ["later", "t", "void"]
    job.execute("ALTER TABLE void ENGINE = InnoDB", "INSERT INTO void VALUES (7)")
    job.ask("resnapshot", "void")
    assert sorted(job.catch_up()) == ["later", "t"]
    assert job.rows("void") == [{"id": 7}]


def test_a_replica_that_does_not_log_what_it_applies_is_refused() -> None:
    with MariaDbServer({"log-slave-updates": "OFF"}) as server, session(server, "root") as connection:
        info = probe(connection)
        asked = LoggedTables.asked(connection, info)
        assert [result.name for result in asked.results()] == ["log_gaps"]
        server.execute("CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = 1, MASTER_USER = 'root'")
        (told,) = LoggedTables.asked(connection, info).results()
        assert (told.name, told.required, told.ok) == ("replica_updates", False, False)
        server.execute("SET GLOBAL replicate_ignore_table = 'a.b'", "START SLAVE")
        refused, filters = LoggedTables.asked(connection, info).results()
        assert (refused.name, refused.required) == ("replica_updates", True)
        assert "log_slave_updates = OFF" in refused.text
        assert "Replicate_Ignore_Table = a.b" in filters.text
        with session(server) as account:  # It may not ask for more than whether anything is replicated.
            assert [result.name for result in LoggedTables.asked(account, info).results()] == ["replica_updates"]
        assert LoggedTables(info, replication=None).results()[0].required is False
        galera = replace(info, variables={**info.variables, "wsrep_on": "ON"})
        assert LoggedTables(galera).results()[0].required
        server.execute("STOP SLAVE")
