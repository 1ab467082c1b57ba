"""Kill it, anywhere, while collections are copied: afterwards the target has every document once."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raycdc.sandbox.servers import MongoDb, MongoDbServer
from raycdc.state.bad_row_counts import bad_rows
from raycdc.state.store import CheckpointStore
from tests.integration.followed import as_document
from tests.support.jobs import CollectionJob, catch_up, run_through

pytestmark = [pytest.mark.server, pytest.mark.kill]

SEEDS = range(int(os.environ.get("RAYCDC_KILL_SEEDS", "1")))
Recorder = Callable[[str, object], None]
#: Several chunks are over before the process dies at these.
CHUNK_POINTS = ("after_open", "after_close")
EPOCH_POINTS = ("before_seal", "after_seal", "before_manifest", "after_manifest", "in_commit", "after_record")
DOCUMENTS = 12_000


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy_of_a_collection_survives_a_kill_of_the_whole_process_at_every_step(
    mongodb: MongoDb, tmp_path: Path, record_property: Recorder, seed: int
) -> None:
    with mongodb.fresh_database("kill") as database, mongodb.client() as client:
        keys: list[Any] = [number if number % 3 else f"key {number}" for number in range(DOCUMENTS)]
        client[database].orders.insert_many({"_id": key, "text": "x" * 1500} for key in keys)
        job = _job(tmp_path, mongodb, database)
        points = [f"{point}=kill@{2 + seed % 3}" for point in CHUNK_POINTS] + [f"{p}=kill@1" for p in EPOCH_POINTS]
        expected = {*CHUNK_POINTS, *EPOCH_POINTS}
        deaths = run_through(job, failpoints=",".join(points), busy=lambda: not expected <= job.hit())
        catch_up(job)
    record_property("kills", len(deaths))
    assert deaths == [-signal.SIGKILL] * len(expected)
    lines = [line for file in (tmp_path / "lake").rglob("*.jsonl") for line in file.read_text().splitlines()]
    found = Counter(json.dumps(json.loads(line)["_id"]) for line in lines)
    assert found == Counter(map(json.dumps, keys))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_collection_that_is_followed_survives_a_kill_of_the_whole_process_at_every_step(
    mongodb: MongoDb, tmp_path: Path, record_property: Recorder, seed: int
) -> None:
    """Others write all the time, and new fields. The changelog must be a true one, nothing lost, nothing twice: by
    images, or, with every other seed, by known rows, where the fields get columns.
    """
    images = seed % 2 == 0
    epoch_points = EPOCH_POINTS if images else (*EPOCH_POINTS, "after_last_commit", "after_known")
    with mongodb.fresh_database("kill") as database, mongodb.client() as client:
        orders = client[database].create_collection("orders", changeStreamPreAndPostImages={"enabled": images})
        orders.insert_many({"_id": number, "n": 0, "text": "x" * 1500} for number in range(DOCUMENTS))
        job = _job(tmp_path, mongodb, database, 'changelog = "full"', startup="initial")
        points = [f"{point}=kill@{2 + seed % 3}" for point in CHUNK_POINTS] + [f"{p}=kill@2" for p in epoch_points]
        expected = {*CHUNK_POINTS, *epoch_points}
        with _writing(orders, seed):
            deaths = run_through(job, failpoints=",".join(points), busy=lambda: not expected <= job.hit())
        catch_up(job)
        there = {document.pop("_id"): document for document in orders.find()}
    record_property("kills", len(deaths))
    assert deaths == [-signal.SIGKILL] * len(expected)
    lines = [line for file in (tmp_path / "lake").rglob("*.jsonl") for line in file.read_text().splitlines()]
    found: dict[int, dict[str, Any]] = {}
    for row in sorted(map(json.loads, lines), key=lambda row: int(row["_seq"])):
        if row["_op"] in ("-U", "-D"):
            assert found.pop(row["_id"]) == as_document(row)
        else:
            assert row["_id"] not in found
            found[row["_id"]] = as_document(row)
    assert found == there
    shapes = {tuple(json.loads(line)) for line in lines}
    assert (len(shapes) == 1) is images


@pytest.mark.timeout(1800)
def test_a_change_whose_document_was_not_found_survives_a_kill(mongodb: MongoDb, tmp_path: Path) -> None:
    """What became of it is an answer later in the stream: a deletion, or nothing, where the server hid it."""
    if not isinstance(mongodb, MongoDbServer):
        pytest.skip("makes a server hide documents")
    with mongodb.fresh_database("kill") as database, mongodb.client() as client:
        orders = client[database].orders
        orders.insert_many({"_id": number, "n": 0} for number in range(10))
        keeps = 'on_bad_record = "dead-letter"\nepoch_bytes_max = "1KB"'
        job = _job(tmp_path, mongodb, database, startup="initial", pipeline=keeps)
        catch_up(job)
        mongodb.hide(f"{database}.orders", times=-1)
        orders.update_many({"_id": {"$lt": 5}}, {"$set": {"n": 1}})
        # More than one answer of the server has.
        orders.insert_many({"_id": number, "n": 0} for number in range(10, 21_000))
        orders.delete_many({"_id": {"$lt": 4}})
        absent: list[int] = []

        def busy() -> bool:
            absent.append(_absent(job))
            return not {"after_manifest", "in_commit"} <= job.hit()

        deaths = run_through(job, failpoints="after_manifest=kill@1,in_commit=kill@2", busy=busy)
        catch_up(job)
        there = {document["_id"]: document["n"] for document in orders.find({})}
        mongodb.unfail()
    assert deaths == [-signal.SIGKILL] * 2
    assert 5 in absent
    lines = [line for file in (tmp_path / "lake").rglob("*.jsonl") for line in file.read_text().splitlines()]
    rows = Counter((row["_op"], row["_id"]) for row in map(json.loads, lines))
    assert rows == Counter([*(("+I", key) for key in range(21_000)), *(("-D", key) for key in range(5))])
    assert {*range(4, 21_000)} == there.keys()
    told = [line for file in (job.state / "dead_letters").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert [json.loads(line)["row"] for line in told] == [{"_id": 4}]
    store = CheckpointStore(job.state, pipeline="killed")
    record = store.last_commit()
    assert record is not None
    assert bad_rows(store, record.epoch) == {f"{database}.orders": 1}
    assert _absent(job) == 0


def _absent(job: CollectionJob) -> int:
    """How many changes wait in the newest manifest."""
    manifest = CheckpointStore(job.state, pipeline="killed").last_manifest()
    stream = manifest.to_splits["stream"].to_json() if manifest else {}
    return len(stream.get("source", {}).get("absent", ()))


def _job(tmp_path: Path, mongodb: MongoDb, database: str, source: str = "", **options: Any) -> CollectionJob:
    """Collection `orders` in chunks of a megabyte into a changelog; `source` are more lines of that section."""
    nobody: Any = None
    return CollectionJob(
        tmp_path,
        nobody,
        database,
        ("orders",),
        sink="jsonl",
        write="changelog",
        local=True,
        readers=2,
        epoch_interval="50ms",
        source=f'snapshot = {{ strategy = "splitVector", chunk_size = "1MiB" }}\n{source}',
        uri=mongodb.uri,
        **options,
    )


@contextmanager
def _writing(orders: Any, seed: int) -> Iterator[None]:
    """Changes of all kinds, in a thread, as long as the block runs."""
    stop = threading.Event()
    chosen = random.Random(seed)

    def write() -> None:
        number = 0
        while not stop.wait(0.001):
            number += 1
            key = {"_id": chosen.randrange(DOCUMENTS)}
            match number % 4:
                case 0:
                    orders.delete_one(key)
                case 1:
                    orders.replace_one(key, {"n": number}, upsert=True)
                case _:
                    n = number if number % 100 else f"text {number}"
                    orders.update_one(key, {"$set": {"n": n, f"late{number // 300}": number}})

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
