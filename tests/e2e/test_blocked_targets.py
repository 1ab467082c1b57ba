"""`raycdc run` over one target that takes nothing for longer than a run waits, while the others do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raycdc.sandbox.servers import MariaDbServer, PostgresServer
from tests.e2e.short_patience import shorten_retry
from tests.e2e.test_jdbc import sink_keys
from tests.e2e.test_rotation_catalogs import RotatedCatalog, job_into
from tests.integration.sinks.iceberg_server import Server
from tests.support.jobs import Job, JobRun
from tests.support.table_commands import listed, tables_command

pytestmark = pytest.mark.server


def parked(live: JobRun) -> list[str]:
    return [str(event) for event in live.events if event["event"] == "parked"]


def wait_for(live: JobRun, condition: Callable[[], bool]) -> None:
    assert live.wait_for(condition), live.story()


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "lake")
    yield started
    started.close()


def tables(mariadb: MariaDbServer, database: str) -> None:
    for name in ("t", "u"):
        mariadb.execute(
            f"CREATE TABLE {name} (id INT PRIMARY KEY)", f"INSERT INTO {name} VALUES (1)", database=database
        )


def insert(mariadb: MariaDbServer, database: str, number: int) -> None:
    mariadb.execute(*(f"INSERT INTO {name} VALUES ({number})" for name in ("t", "u")), database=database)


def test_a_table_that_a_session_keeps_locked_is_parked_beside_a_live_run_and_comes_back(
    mariadb: MariaDbServer,
    postgres: PostgresServer,
    mariadb_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shorten_retry(tmp_path / "short", monkeypatch)
    database = mariadb_database
    tables(mariadb, database)
    with postgres.fresh_database() as home:

        def keys(name: str) -> list[object]:
            with postgres.connect(home) as connection, connection.cursor() as cursor:
                cursor.execute("SELECT to_regclass($1) IS NOT NULL", [f"{database}.{name}"])
                if not cursor.fetchall()[0][0]:
                    return []
                cursor.execute(f"SELECT id FROM {database}.{name} ORDER BY id")
                return [row[0] for row in cursor.fetchall()]

        def have(*expected: int, names: tuple[str, ...] = ("t", "u")) -> Callable[[], bool]:
            return lambda: all(keys(name) == list(expected) for name in names)

        keys_of_sink = sink_keys(postgres, home)
        job = Job(tmp_path, mariadb, database, ("t", "u"), sink="jdbc", sink_keys=keys_of_sink, local=True, cold=True)
        live = job.start()
        wait_for(live, have(1))
        with postgres.connect(home) as holder:
            with holder.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute(f"LOCK TABLE {database}.t IN ACCESS EXCLUSIVE MODE")
            insert(mariadb, database, 2)
            wait_for(live, lambda: bool(parked(live)))
            insert(mariadb, database, 3)
            wait_for(live, have(1, 2, 3, names=("u",)))
        [told] = parked(live)
        assert "other targets answer" in told
        assert "It is locked by session " in told
        assert listed(job)[f"{database}.t"]["phase"] == "parked"
        assert keys("t") == [1]
        tables_command(job, "resnapshot", f"{database}.t")
        wait_for(live, have(1, 2, 3))
        insert(mariadb, database, 4)
        wait_for(live, have(1, 2, 3, 4))
        assert live.interrupt() in (0, 130), live.story()


def test_a_table_for_which_alone_the_catalog_fails_is_parked_beside_a_live_run_and_comes_back(
    catalog: Server, mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_retry(tmp_path / "short", monkeypatch)
    database = mariadb_database
    tables(mariadb, database)
    options = {"type": "rest", "uri": catalog.uri, "properties": {}}
    world = RotatedCatalog(options, lambda _: None, lambda: catalog.guard.refused, lambda: catalog.catalog)
    job = job_into(options, mariadb, database, tmp_path, "t", "u")
    job.cold = True

    def have(*expected: int, names: tuple[str, ...] = ("t", "u")) -> Callable[[], bool]:
        return lambda: all(world.keys(database, name) == list(expected) for name in names)

    live = job.start()
    wait_for(live, have(1))
    catalog.guard.failing.add(f"{database}.t")
    insert(mariadb, database, 2)
    wait_for(live, lambda: bool(parked(live)))
    insert(mariadb, database, 3)
    wait_for(live, have(1, 2, 3, names=("u",)))
    [told] = parked(live)
    assert "other targets answer" in told
    assert "a metadata file is damaged" in told
    catalog.guard.failing.clear()
    tables_command(job, "resnapshot", f"{database}.t")
    wait_for(live, have(1, 2, 3))
    assert live.interrupt() in (0, 130), live.story()
