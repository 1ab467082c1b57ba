"""`raycdc check`, `plan` and `run` into partitioned tables: rows move, DDL is followed, refusals come early."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from raycdc.sandbox.servers import MariaDbServer
from tests.epochs.sink_world import iceberg_table, lake_rows
from tests.support.forked_commands import completed
from tests.support.jobs import Job, catch_up

pytestmark = pytest.mark.server

SECTIONS = {
    "delta": """
[[transform]]
table = "parted.orders"
partition_by = ["country", "day"]
table_options = { "delta.logRetentionDuration" = "interval 7 days" }
""",
    "iceberg": """
[[transform]]
table = "parted.orders"
partition_by = ["country", "days(at)", "bucket(3, id)"]
table_options = { "history.expire.min-snapshots-to-keep" = 5 }
""",
}
DDL = {
    "delta": "PARTITIONED BY (`country`, `day`) LOCATION '{lake}/parted/orders' "
    "TBLPROPERTIES ('delta.logRetentionDuration' = 'interval 7 days')",
    "iceberg": "USING ICEBERG PARTITIONED BY (`country`, days(`at`), bucket(3, `id`)) "
    "TBLPROPERTIES ('history.expire.min-snapshots-to-keep' = '5')",
}


def fill(server: MariaDbServer) -> None:
    server.execute("DROP DATABASE IF EXISTS parted", "CREATE DATABASE parted")
    server.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, country VARCHAR(20), day DATE, at DATETIME, qty INT)",
        "INSERT INTO orders SELECT seq, ELT(1 + seq % 4, 'AT', 'a b/c', 'ü', NULL), "
        "IF(seq % 5, '2024-02-29' + INTERVAL seq % 3 DAY, NULL), '2024-02-29 23:00:00' + INTERVAL seq HOUR, seq % 9 "
        "FROM seq_1_to_300",
        database="parted",
    )


def job_of(server: MariaDbServer, folder: Path, sink: str, sections: str = "", *, local: bool = True) -> Job:
    return Job(folder, server, "parted", ("orders",), sink=sink, local=local, sections=sections or SECTIONS[sink])


def command(job: Job, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RAYCDC_TEST_PASSWORD": job.server.cdc_user}
    told = (words[0], str(job.configuration()), *words[1:])
    return completed(told, environment=environment, folder=job.folder)


def check_rows(job: Job, *more: str) -> None:
    columns = ("id", "country", "day", "at", "qty", *more)
    rows = sorted(lake_rows(job.sink, job.lake / "parted" / "orders"), key=lambda row: row["id"])
    with job.server.connect(database="parted") as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(columns)} FROM orders ORDER BY id")
        assert [tuple(row[name] for name in columns) for row in rows] == [tuple(row) for row in cursor.fetchall()]


def partitions_of(job: Job) -> Any:
    folder = job.lake / "parted" / "orders"
    if job.sink == "delta":
        return DeltaTable(str(folder)).metadata().partition_columns
    return [(field.name, str(field.transform)) for field in iceberg_table(folder).spec().fields]


@pytest.mark.parametrize("sink", ["delta", "iceberg"])
def test_partitioned_tables_follow_their_source_through_a_kill_and_ddl(
    mariadb: MariaDbServer, tmp_path: Path, sink: str
) -> None:
    fill(mariadb)
    job = job_of(mariadb, tmp_path, sink)
    planned = command(job, "plan", "--json")
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["ddl"].endswith(DDL[sink].format(lake=job.lake))
    catch_up(job)
    check_rows(job)
    mariadb.execute(
        "UPDATE orders SET country = 'AT' WHERE id % 7 = 0",
        "UPDATE orders SET country = NULL, day = '1969-12-31', at = '1969-12-31 23:59:59' WHERE id % 8 = 0",
        "ALTER TABLE orders ADD COLUMN note VARCHAR(20) NOT NULL DEFAULT 'none' FIRST",
        "ALTER TABLE orders MODIFY qty BIGINT",
        "UPDATE orders SET note = 'seen', qty = qty + 10000000000, country = 'new' WHERE id % 5 = 0",
        "DELETE FROM orders WHERE id % 11 = 0",
        "INSERT INTO orders VALUES ('n', 9001, 'DE', '2024-03-01', '2024-03-01', 1)",
        database="parted",
    )
    run = job.start("--until", "caught-up", failpoints="in_commit=kill@1")
    assert run.wait() == -9, run.story()
    catch_up(job)
    check_rows(job, "note")
    delta, iceberg = ["country", "day"], [("country", "identity"), ("at_day", "day"), ("id_bucket", "bucket[3]")]
    assert partitions_of(job) == (delta if sink == "delta" else iceberg)
    mariadb.execute("ALTER TABLE orders DROP COLUMN country", database="parted")
    run = job.start("--until", "caught-up")
    assert run.wait() == 4, run.story()
    assert "the table's transform[0] names 'country', and would mean something else" in run.story()


@pytest.mark.parametrize(
    ("sink", "keys", "text"),
    [
        ("delta", 'partition_by = ["land"]', "parted.orders: partition_by names 'land', which the projection does not"),
        ("delta", 'partition_by = ["days(at)"]', "parted.orders: partition_by: days(`at`): Delta tables are"),
        ("iceberg", 'partition_by = ["days(qty)"]', "parted.orders: partition_by: days(`qty`): column 'qty' is int"),
        ("jsonl", 'partition_by = ["country"]', 'partition_by: a target of sink.type = "jsonl" has none'),
        ("kafka", 'table_options = { a = "b" }', 'table_options: a target of sink.type = "kafka" has none'),
        ("jdbc", 'partition_by = ["country"]', 'partition_by: a target of sink.type = "jdbc" has none'),
    ],
)
def test_what_cannot_be_is_found_before_anything_is_read(
    mariadb: MariaDbServer, tmp_path: Path, sink: str, keys: str, text: str
) -> None:
    fill(mariadb)
    job = job_of(mariadb, tmp_path, sink, f'[[transform]]\ntable = "parted.orders"\n{keys}')
    if sink in ("jsonl", "kafka"):
        job.write = "changelog"
    if sink == "kafka":
        job.sink_keys = 'bootstrap_servers = "127.0.0.1:1"\ntopic = "{db}.{table}"\nformat = { type = "maxwell-json" }'
    if sink == "jdbc":
        job.sink_keys = 'url = "jdbc:postgresql://127.0.0.1:1/x"\nuser = "nobody"'
    found = command(job, "check", "--json")
    failed = [line for line in map(json.loads, found.stdout.splitlines()) if line["status"] == "failed"]
    assert found.returncode == 2, found.stdout + found.stderr
    assert any(text in line["text"] for line in failed), failed
    planned = command(job, "plan")
    assert planned.returncode == 2, planned.stdout
    assert text in planned.stderr
    assert not job.lake.exists()
