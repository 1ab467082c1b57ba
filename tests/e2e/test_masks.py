"""`raycdc run` with masks: what they hide is in no target and in no file of the state, from snapshot and log alike."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from pathlib import Path
from typing import Any

import pytest

from raycdc.sandbox.compare import read_delta
from raycdc.sandbox.servers import MariaDbServer
from tests.support.jobs import Job, catch_up

pytestmark = pytest.mark.server

MASKS = r"""
[[mask]]
columns = "hidden.people.email"
method = "hash"
key = "${env:RAYCDC_TEST_PASSWORD}"

[[mask]]
columns = 'hidden\..*\.(born|salary)'
method = "mask"
length = 3

[[mask]]
columns = "hidden.people.phone"
method = "truncate"
length = 2

[[mask]]
columns = '.*\.password'
method = "drop"

[[transform]]
table = "hidden.people"
projection = "*, phone AS area"
"""


def fill(server: MariaDbServer) -> None:
    server.execute("DROP DATABASE IF EXISTS hidden", "CREATE DATABASE hidden")
    server.execute(
        "CREATE TABLE people (id INT PRIMARY KEY, email VARCHAR(60), born DATE, phone VARCHAR(20), password TEXT)",
        "INSERT INTO people SELECT seq, CONCAT('unseen-', seq, '@x.org'), '2001-02-03', CONCAT('0', seq, '-unseen'), "
        "'unseen' FROM seq_1_to_1500",
        "UPDATE people SET email = NULL, born = NULL WHERE id = 3",
        database="hidden",
    )


def expected(row: dict[str, Any], key: str) -> dict[str, Any]:
    email = row["email"]
    return {
        "id": row["id"],
        "email": email and hmac.new(key.encode(), email.encode(), hashlib.sha256).hexdigest(),
        "born": None if row["born"] is None else "***",
        "phone": row["phone"][:2],
        "area": row["phone"][:2],
    }


def source_rows(server: MariaDbServer) -> list[dict[str, Any]]:
    names = ("id", "email", "born", "phone")
    with server.connect(database="hidden") as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(names)} FROM people ORDER BY id")
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def nothing_shows(folder: Path) -> None:
    """No file of the folder has a text that is to be hidden."""
    for path in folder.rglob("*"):
        if path.is_file():
            assert b"unseen" not in path.read_bytes(), path


def test_both_phases_hide_the_same_and_keep_the_rest(mariadb: MariaDbServer, tmp_path: Path) -> None:
    fill(mariadb)
    job = Job(tmp_path, mariadb, "hidden", ("people",), local=True, cold=True, sections=MASKS)
    # Rows change while chunks are open, so that some are folded into these.
    run = job.start("--until", "caught-up", failpoints="before_commit=kill@1")
    for number in range(20):
        mariadb.execute(
            f"UPDATE people SET email = 'unseen-again-{number}', phone = '{number:02}-unseen' WHERE id % 20 = {number}",
            database="hidden",
        )
    assert run.wait() == -9, run.story()
    nothing_shows(job.state)
    catch_up(job)
    mariadb.execute(
        "ALTER TABLE people ADD COLUMN salary INT",
        "UPDATE people SET salary = 5000, email = 'unseen-last' WHERE id < 100",
        "DELETE FROM people WHERE id = 7",
        "INSERT INTO people VALUES (9000, 'unseen-new', '1999-09-09', '77', 'unseen', NULL)",
        database="hidden",
    )
    catch_up(job)
    key = os.environ.get("RAYCDC_TEST_PASSWORD") or job.server.cdc_user
    lake = read_delta(job.lake / "hidden" / "people").sort_by("id")
    assert set(lake.column_names) == {"id", "email", "born", "phone", "area", "salary"}
    got = lake.drop_columns(["salary"]).to_pylist()
    assert got == [expected(row, key) for row in source_rows(mariadb)]
    assert {row["salary"] for row in lake.to_pylist()} == {"***", None}
    nothing_shows(tmp_path)
    job.sections = MASKS.replace("length = 2", "length = 4")
    refused = job.run()
    assert refused.wait() == 6, refused.story()
    assert "transform or mask of hidden.people differs from when its rows were written" in refused.story()


def test_a_key_cannot_be_hidden(mariadb: MariaDbServer, tmp_path: Path) -> None:
    fill(mariadb)
    sections = '[[mask]]\ncolumns = "hidden.people.id"\nmethod = "mask"\n'
    job = Job(tmp_path, mariadb, "hidden", ("people",), sink="jsonl", write="changelog", local=True, sections=sections)
    run = job.run()
    assert run.wait() == 4, run.story()
    assert "mask: hidden.people.id belongs to the key" in run.story()
    lines = [json.loads(line) for path in job.lake.rglob("*.jsonl") for line in path.read_text().splitlines()]
    assert lines == []
