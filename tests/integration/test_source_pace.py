"""A source is read at no more than its pace, the log included, whoever reads it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from raycdc.model.pace import FETCH_S
from raycdc.source.reader.pace import SLACK_S
from raycdc.testing.jobs import Job
from raycdc.testing.servers import MariaDbServer

pytestmark = pytest.mark.server

RATE = 400
#: What a lane may read ahead of its time: a fetch, and a little.
CREDIT = RATE * (FETCH_S + SLACK_S)


def rows_of(lake: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in lake.rglob("*.jsonl") for line in path.read_text().splitlines()]


def test_two_readers_keep_to_one_pace_in_the_snapshot_and_in_the_log(
    mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    fill = "INSERT INTO t SELECT seq, REPEAT('x', 40) FROM {}"
    mariadb.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, note VARCHAR(50))", fill.format("seq_1_to_800"), database=mariadb_database
    )
    job = Job(
        tmp_path,
        mariadb,
        mariadb_database,
        ["t"],
        sink="jsonl",
        write="changelog",
        local=True,
        readers=2,
        chunk_rows=100,
        source=f"rows_per_second = {RATE}",
    )
    run = job.start()
    run.wait_for_rows(lambda: len(rows_of(job.lake)) == 800)
    read_ms = sorted(row["_ts_ms"] for row in rows_of(job.lake))
    # Each chunk says when it began to be read: all before the last one were read since the first.
    before = sum(ms < read_ms[-1] for ms in read_ms)
    assert before <= RATE * (read_ms[-1] - read_ms[0]) / 1000 + 2 * CREDIT
    began_s = time.monotonic()
    mariadb.execute(fill.format("seq_2001_to_4000"), database=mariadb_database)
    run.wait_for_rows(lambda: len(rows_of(job.lake)) == 2800)
    assert time.monotonic() - began_s >= (2000 - CREDIT) / RATE
    assert run.interrupt() in (0, 130), run.story()
    progress = [event for event in run.events if event["event"] == "progress"]
    assert any(event.get("bottleneck") == "pace" for event in progress)
    assert {reader["subtask"] for event in progress for reader in event["readers"]} >= {0, 1}
