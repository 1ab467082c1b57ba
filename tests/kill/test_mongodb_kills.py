"""Kill it, anywhere, while collections are copied: afterwards the target has every document once."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raycdc.testing.jobs import CollectionJob, catch_up, run_through
from raycdc.testing.servers import MongoDb

pytestmark = [pytest.mark.server, pytest.mark.kill]

SEEDS = range(int(os.environ.get("RAYCDC_KILL_SEEDS", "1")))
Recorder = Callable[[str, object], None]
#: Several chunks are over before the process dies at these.
CHUNK_POINTS = ("after_open", "after_close")
EPOCH_POINTS = ("before_seal", "after_seal", "before_manifest", "after_manifest", "in_commit", "after_record")
DOCUMENTS = 12_000


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy_of_a_collection_survives_a_kill_of_the_whole_process_at_every_step(
    mongodb: MongoDb, tmp_path: Path, record_property: Recorder, seed: int
) -> None:
    with mongodb.fresh_database("kill") as database, mongodb.client() as client:
        keys: list[Any] = [number if number % 3 else f"key {number}" for number in range(DOCUMENTS)]
        client[database].orders.insert_many({"_id": key, "text": "x" * 1500} for key in keys)
        nobody: Any = None
        job = CollectionJob(
            tmp_path,
            nobody,
            database,
            ("orders",),
            sink="jsonl",
            write="changelog",
            local=True,
            readers=2,
            epoch_interval="50ms",
            source='snapshot = { strategy = "splitVector", chunk_mb = 1 }',
            uri=mongodb.uri,
        )
        points = [f"{point}=kill@{2 + seed % 3}" for point in CHUNK_POINTS] + [f"{p}=kill@1" for p in EPOCH_POINTS]
        expected = {*CHUNK_POINTS, *EPOCH_POINTS}
        deaths = run_through(job, failpoints=",".join(points), busy=lambda: not expected <= job.hit())
        catch_up(job)
    record_property("kills", len(deaths))
    assert deaths == [-signal.SIGKILL] * len(expected)
    lines = [line for file in (tmp_path / "lake").rglob("*.jsonl") for line in file.read_text().splitlines()]
    found = Counter(json.dumps(json.loads(line)["_id"]) for line in lines)
    assert found == Counter(map(json.dumps, keys))
