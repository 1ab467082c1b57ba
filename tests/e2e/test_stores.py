"""`raycdc run` and `check` with Iceberg tables and files on an object store: by URL, killed in a commit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raycdc.sinks.iceberg.catalog import open_catalog
from raycdc.sinks.iceberg.plugin import IcebergCatalogOptions
from raycdc.stores.object_store import ObjectStore
from raycdc.stores.url import ObjectPlace, StoreKind
from raycdc.testing.jobs import Job, catch_up
from raycdc.testing.servers import MariaDbServer, MotoServer, StoreProxy

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
        place = ObjectPlace(StoreKind.S3, database.replace("_", "-"), f"lake/{database}/orders")
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
        pytest.param("jsonl", True, marks=pytest.mark.long),
        pytest.param("iceberg", False, marks=pytest.mark.long),
        pytest.param("jsonl", False, marks=pytest.mark.long),
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


def run_logs(job: Job) -> set[str]:
    return {run.log.name for run in job.runs}
