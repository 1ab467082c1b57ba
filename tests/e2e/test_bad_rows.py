"""`raycdc run` with rows that a merged target cannot have: it ends and says which, or goes on without them, counted."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from raycdc.sandbox.compare import read_delta
from raycdc.sandbox.servers import MariaDbServer
from tests.run_lines import known_tables
from tests.support.forked_commands import completed
from tests.support.jobs import Job, catch_up

pytestmark = pytest.mark.server

ROUTES = r"""
[[route]]
table = 'odd\..*'
to = "lake.notes"
"""


def fill(server: MariaDbServer) -> None:
    server.execute("DROP DATABASE IF EXISTS odd", "CREATE DATABASE odd")
    server.execute(
        "CREATE TABLE texts (id INT PRIMARY KEY, note TEXT)",
        "CREATE TABLE raws (id INT PRIMARY KEY, note BLOB)",
        "INSERT INTO texts SELECT seq, CONCAT('text ', seq) FROM seq_1_to_40",
        "INSERT INTO raws SELECT seq, IF(seq % 10, CONCAT('raw ', seq), x'FF00') FROM seq_101_to_140",
        database="odd",
    )


def command(job: Job, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RAYCDC_TEST_PASSWORD": job.server.cdc_user}
    return completed(words, environment=environment, folder=job.folder)


def held(job: Job) -> dict[int, Any]:
    return {row["id"]: row["note"] for row in read_delta(job.lake / "lake" / "notes").to_pylist()}


def test_rows_are_left_out_counted_and_kept_after_a_run_that_ended_with_the_first(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    fill(mariadb)
    job = Job(tmp_path, mariadb, "odd", ("texts", "raws"), local=True, sections=ROUTES)
    job.pipeline = 'on_bad_record = "fail"'
    ended = job.run()
    assert ended.wait() == 4, ended.story()
    assert "odd.raws: a value of column 'note' (binary) is no string" in ended.story()
    assert "with its key in (id). Route the table" in ended.story()
    job.pipeline = 'on_bad_record = "dead-letter"'
    catch_up(job)
    expected = {n: f"text {n}" for n in range(1, 41)} | {n: f"raw {n}" for n in range(101, 141) if n % 10}
    assert held(job) == expected
    mariadb.execute(
        "UPDATE raws SET note = 'whole' WHERE id IN (110, 120)",
        "UPDATE raws SET note = x'80' WHERE id IN (101, 102)",
        "DELETE FROM raws WHERE id IN (103, 130)",
        database="odd",
    )
    killed = job.start("--until", "caught-up", failpoints="after_last_commit=kill@1")
    assert killed.wait() == -9, killed.story()
    run = job.run()
    assert run.wait() == 0, run.story()
    gone = {101, 102, 103}
    assert held(job) == {n: t for n, t in expected.items() if n not in gone} | {110: "whole", 120: "whole"}
    assert {name: table.get("bad_rows") for name, table in known_tables(run.events).items()} == {
        "odd.raws": 6,
        "odd.texts": None,
    }
    listed = command(job, "tables", "list", str(job.configuration()), "--json")
    assert {t["table"]: t.get("bad_rows") for t in map(json.loads, listed.stdout.splitlines())} == {
        "odd.raws": 6,
        "odd.texts": None,
    }
    letters = sorted((job.state / "dead_letters").glob("*.jsonl"))
    rows = [json.loads(line) for path in letters for line in path.read_text().splitlines()]
    assert sorted(row["row"]["id"] for row in rows) == [101, 102, 110, 120, 130, 140]
    assert [row["row"]["note"] for row in rows if row["row"]["id"] == 110] == [{"$binary": "/wA="}]


SHARES = """
[[transform]]
table = "odd.orders"
projection = "*, 100 div qty AS share"
"""


@pytest.mark.long(suite="stories")
@pytest.mark.spark
def test_rows_on_which_an_expression_fails_are_left_out(mariadb: MariaDbServer, ray: str, tmp_path: Path) -> None:
    mariadb.execute("DROP DATABASE IF EXISTS odd", "CREATE DATABASE odd")
    mariadb.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, qty INT)",
        "INSERT INTO orders SELECT seq, seq % 10 FROM seq_1_to_1000",
        database="odd",
    )
    job = Job(tmp_path, mariadb, "odd", ("orders",), readers=1, sections=SHARES + ray)
    job.pipeline = 'on_bad_record = "fail"'
    ended = job.run()
    assert ended.wait() == 4, ended.story()
    said = "odd.orders: its transform failed on a value: column 'share' (100 div qty AS share) cannot be computed"
    assert said in ended.story()
    assert "DIVIDE_BY_ZERO" in ended.story()
    job.pipeline = 'on_bad_record = "skip"'
    run = job.start()

    def shares() -> list[dict[str, Any]]:
        lake = read_delta(job.lake / "odd" / "orders")
        return lake.sort_by("id").to_pylist() if lake.num_columns else []

    run.wait_for_rows(lambda: len(shares()) == 900)
    mariadb.execute("UPDATE orders SET qty = 10 - qty WHERE id <= 20", database="odd")
    run.wait_for_rows(lambda: len(shares()) == 902)
    assert run.interrupt() == 130, run.story()
    expected = {n: 10 - n % 10 if n <= 20 else n % 10 for n in range(1, 1001)}
    assert shares() == [{"id": n, "qty": qty, "share": 100 // qty} for n, qty in expected.items() if qty]
    assert [table["bad_rows"] for table in known_tables(run.events).values()] == [100]
    assert not (job.state / "dead_letters").exists()
