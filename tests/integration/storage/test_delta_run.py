"""``raycdc run`` into a Delta lake in an object store: killed, with lost replies, and equal at the end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raycdc.sandbox.servers import MariaDbServer, MotoServer
from raycdc.sinks.delta.reading import table_at
from raycdc.storage.files import Access, StorePath, any_path
from tests.support.forked_commands import completed
from tests.support.jobs import Job
from tests.support.servers.store_proxy import Fault, Rule, StoreProxy

pytestmark = pytest.mark.server

CHANGES = (
    "UPDATE goods SET name = 'changed' WHERE id % 3 = 0",
    "DELETE FROM goods WHERE id % 7 = 0",
    "INSERT INTO goods VALUES (1000, 'new'), (1001, NULL)",
)


@pytest.fixture
def store(moto: MotoServer) -> Iterator[StoreProxy]:
    with StoreProxy(moto) as proxy:
        yield proxy


@pytest.fixture
def job(tmp_path: Path, mariadb: MariaDbServer, mariadb_database: str, moto: MotoServer, store: StoreProxy) -> Job:
    """A table of a hundred rows, on its way into a bucket of its own."""
    bucket = moto.create_bucket(mariadb_database.replace("_", "-"))
    with mariadb.connect(database=mariadb_database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE goods (id INT PRIMARY KEY, name VARCHAR(20))")
        cursor.executemany("INSERT INTO goods VALUES (%s, %s)", [(key, f"name {key}") for key in range(100)])
        connection.commit()
    keys = f'path = "s3://{bucket}/lake"'
    return Job(tmp_path, mariadb, mariadb_database, ["goods"], local=True, sink_keys=keys, sections=store.section)


def change(job: Job) -> None:
    with job.server.connect(database=job.database) as connection, connection.cursor() as cursor:
        for statement in CHANGES:
            cursor.execute(statement)
        connection.commit()


def require_goods_equal(job: Job, store: StoreProxy) -> None:
    with job.server.connect(database=job.database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id, name FROM goods ORDER BY id")
        expected = [*cursor.fetchall()]
    root = any_path(job.sink_keys.split('"')[1], Access(store.settings))
    assert isinstance(root, StorePath)
    rows = table_at(root / job.database / "goods").to_pyarrow_table().sort_by("id").to_pylist()
    assert [(row["id"], row["name"]) for row in rows] == expected


def test_a_killed_run_goes_on_and_the_lake_is_equal(job: Job, store: StoreProxy) -> None:
    died = job.start("--until", "caught-up", failpoints="in_commit=kill@1")
    assert died.wait() == -signal.SIGKILL
    change(job)
    died = job.start("--until", "caught-up", failpoints="after_commit=kill@2")
    assert died.wait() == -signal.SIGKILL
    assert job.start("--until", "caught-up").wait() == 0
    require_goods_equal(job, store)


@pytest.mark.parametrize(
    "fault",
    [
        Fault.LOST_REPLY,
        *(
            pytest.param(fault, marks=pytest.mark.long(suite="stores"))
            for fault in (Fault.LOST_REQUEST, Fault.DONE_BUT_FAILED, Fault.CONFLICT, Fault.LOST_RACE)
        ),
    ],
    ids=lambda fault: fault.name.lower(),
)
@pytest.mark.parametrize("skip", [0, pytest.param(1, marks=pytest.mark.long(suite="stores"))], ids=["creation", "rows"])
def test_a_commit_whose_reply_says_too_little_is_there_once(
    job: Job, store: StoreProxy, fault: Fault, skip: int
) -> None:
    with store.play(Rule(fault, path=r"_delta_log/\d+\.json", conditional=True, skip=skip, times=1)) as (rule,):
        assert job.start("--until", "caught-up").wait() == 0
        change(job)
        assert job.start("--until", "caught-up").wait() == 0
        assert rule.played == 1
    require_goods_equal(job, store)


def test_a_store_that_refuses_a_commit_ends_the_run_and_the_next_one_goes_on(job: Job, store: StoreProxy) -> None:
    with store.play(Rule(Fault.DENIED, path=r"_delta_log/\d+\.json", conditional=True)):
        refused = job.run()
        assert refused.wait() == 5
    assert "privileges" in refused.log.read_text()
    assert job.start("--until", "caught-up").wait() == 0
    require_goods_equal(job, store)


def test_check_and_run_refuse_a_store_that_overwrites_what_was_to_be_new(job: Job, store: StoreProxy) -> None:
    with store.play(Rule(Fault.OVERWRITES, conditional=True, times=100)):
        refused = job.run()
        assert refused.wait() == 5
        assert "overwrites an object where it was asked to make a new one" in refused.log.read_text()
        checked = check(job)
    assert checked.returncode == 5
    assert "Use a newer version of that server" in " ".join(checked.stdout.split())


@pytest.mark.long(suite="stores")
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ('optimize = { z_order = ["id"] }', "sink.optimize.z_order: Spark does that"),
        ("", "Everything needed is there"),
    ],
    ids=["order of rows", "plain"],
)
def test_check_refuses_what_only_spark_could_do_there(job: Job, keys: str, expected: str) -> None:
    assert expected in " ".join(check(replace(job, sink_keys=f"{job.sink_keys}\n{keys}")).stdout.split())


def check(job: Job) -> subprocess.CompletedProcess[str]:
    """``raycdc check`` of a job that runs without Spark."""
    environment = {**os.environ, "RAYCDC_TEST_PASSWORD": job.server.cdc_user}
    return completed(["check", str(job.configuration()), "--local"], environment=environment, folder=job.folder)
