"""`raycdc run` and `check` with Iceberg tables and files on an object store: by URL, killed in a commit."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raycdc.errors import ExitCode
from raycdc.sandbox.compare import read_changelog
from raycdc.sandbox.servers import MariaDbServer, MotoServer
from raycdc.sinks.iceberg.catalog import open_catalog
from raycdc.sinks.iceberg.plugin import IcebergCatalogOptions
from raycdc.storage.object_store import ObjectStore
from raycdc.storage.url import ObjectLocation, StoreKind
from tests.support.jobs import Job, JobRun, catch_up
from tests.support.servers.store_proxy import Fault, Rule, StoreProxy

pytestmark = pytest.mark.server


@pytest.fixture
def store(moto: MotoServer) -> Iterator[StoreProxy]:
    with StoreProxy(moto) as started:
        yield started


def job_of(server: MariaDbServer, store: StoreProxy, folder: Path, *, sink: str, database: str, local: bool) -> Job:
    keys = f'path = "s3://{database.replace("_", "-")}/lake"'
    write = "upsert" if sink == "iceberg" else "changelog"
    job = Job(folder, server, database, ["orders"], sink=sink, write=write, local=local, cold=True)
    job.sink_keys, job.sections = keys, store.section
    return job


def rows_of(store: StoreProxy, sink: str, database: str) -> list[tuple[int, str]]:
    if sink == "jsonl":
        place = ObjectLocation(StoreKind.S3, database.replace("_", "-"), f"lake/{database}/orders")
        objects = ObjectStore(place, store.settings)
        files = [objects.read(name) for name in objects.list("") if name.endswith(".jsonl")]
        changes = [json.loads(line) for file in files if file is not None for line in file.data.splitlines()]
        rows = {}
        for change in sorted(changes, key=lambda change: change["_seq"]):
            rows[change["id"]] = None if change["_op"] == "-D" else change["name"]
        assert len([change for change in changes if change["_op"] == "+I"]) == 500
        return sorted((number, name) for number, name in rows.items() if name is not None)
    options = IcebergCatalogOptions(warehouse=f"s3://{database.replace('_', '-')}/lake")
    table = open_catalog(options, store.settings).load_table((database, "orders"))
    return sorted((row["id"], row["name"]) for row in table.scan().to_arrow().to_pylist())


def check(job: Job) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "raycdc.cli", "check", str(job.configuration())]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=job.folder)


@pytest.mark.parametrize(
    ("sink", "local"),
    [
        ("iceberg", True),
        pytest.param("jsonl", True, marks=pytest.mark.long(suite="stores")),
        pytest.param("iceberg", False, marks=pytest.mark.long(suite="stores")),
        pytest.param("jsonl", False, marks=pytest.mark.long(suite="stores")),
    ],
)
def test_a_run_that_is_killed_in_a_commit_goes_on_at_the_store(
    mariadb: MariaDbServer, store: StoreProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: str, local: bool
) -> None:
    database = f"s3_{sink}_{'local' if local else 'spark'}"
    mariadb.execute(f"CREATE DATABASE {database}", f"USE {database}",
                    "CREATE TABLE orders (id INT PRIMARY KEY, name VARCHAR(20))",
                    "INSERT INTO orders SELECT seq, 'read' FROM seq_1_to_500")  # fmt: skip
    monkeypatch.setenv("RAYCDC_TEST_PASSWORD", "cdc")
    job = job_of(mariadb, store, tmp_path, sink=sink, database=database, local=local)
    missing = check(job)
    assert (missing.returncode, "no such bucket" in missing.stdout + missing.stderr) == (5, True), missing
    store.create_bucket(database.replace("_", "-"))
    found = check(job)
    assert (found.returncode, "can be written" in found.stdout) == (0, True), found.stdout
    killed = job.start("--until", "caught-up", failpoints="in_commit=kill")
    assert killed.wait() == -signal.SIGKILL
    catch_up(job)
    mariadb.execute(
        "UPDATE orders SET name = 'new' WHERE id <= 3", "DELETE FROM orders WHERE id = 4", database=database
    )
    catch_up(job)
    changed = {1: "new", 2: "new", 3: "new"}
    assert rows_of(store, sink, database) == [(n, changed.get(n, "read")) for n in range(1, 501) if n != 4]
    # Nothing became a folder of this machine.
    assert {path.name for path in tmp_path.iterdir()} <= {"job.toml", "state", "failpoints", *run_logs(job)}


def test_a_driver_that_died_here_with_another_work_folder_is_not_waited_for(
    mariadb: MariaDbServer, mariadb_database: str, store: StoreProxy, tmp_path: Path
) -> None:
    mariadb.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)", database=mariadb_database)
    bucket = store.create_bucket(mariadb_database.replace("_", "-"))
    url, first = f"s3://{bucket}/state", f'work_dir = "{tmp_path / "first"}"'
    job = Job(tmp_path, mariadb, mariadb_database, ["t"], sink="jsonl", write="changelog", local=True)
    job.state_url, job.pipeline, job.sections = url, first, store.section
    killed = job.start("--until", "caught-up", failpoints="in_commit=kill")
    assert killed.wait() == -signal.SIGKILL
    job.pipeline = f'work_dir = "{tmp_path / "second"}"'
    run = job.run()
    assert run.wait() == 0, run.story()
    assert [one for one in run.events if one["event"] == "waiting"] == []
    assert len(read_changelog(job.lake / mariadb_database / "t", "jsonl")) == 2


def test_a_store_that_is_unplugged_under_a_run_is_told_and_told_again_when_it_is_back(
    mariadb: MariaDbServer, mariadb_database: str, store: StoreProxy, tmp_path: Path
) -> None:
    mariadb.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)", database=mariadb_database)
    bucket = store.create_bucket(mariadb_database.replace("_", "-"))
    job = Job(tmp_path, mariadb, mariadb_database, ["t"], sink="jsonl", write="changelog", local=True)
    job.state_url, job.pipeline = f"s3://{bucket}/state", f'work_dir = "{tmp_path / "work"}"'
    job.sections = store.section
    run = job.start()
    assert run.wait_for(lambda: any(one["event"] == "commit" for one in list(run.events))), run.story()
    unplugged = [Rule(Fault.LOST_REQUEST, method=method, times=10_000) for method in ("GET", "PUT", "DELETE")]
    with store.play(*unplugged):
        assert run.wait_for(lambda: len(warnings(run)) > 0), run.story()
        mariadb.execute("INSERT INTO t VALUES (3)", database=mariadb_database)
    assert run.wait_for(lambda: len(warnings(run)) > 1), run.story()
    assert run.interrupt() == ExitCode.INTERRUPTED, run.story()
    away, back = warnings(run)
    clock = r"\d\d:\d\d:\d\d"
    assert re.match(
        rf"s3://{bucket}/state has not answered since {clock}, for \d+ s\. It is asked again until {clock}\. See", away
    )
    assert re.fullmatch(rf"s3://{bucket}/state answers again, after \d+ s\.", back)
    catch_up(job)
    assert len(read_changelog(job.lake / mariadb_database / "t", "jsonl")) == 3


def warnings(run: JobRun) -> list[str]:
    """What was told of the store."""
    texts = [str(one["text"]) for one in list(run.events) if one["event"] == "warning"]
    return [text for text in texts if "answer" in text]


def run_logs(job: Job) -> set[str]:
    return {run.log.name for run in job.runs}
