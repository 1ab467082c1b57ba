"""200,000 documents of skewed, mixed and compound keys, read by every strategy while others write next to cuts.

Only in the suite ``races``; RAYCDC_SPLIT_DOCUMENTS makes it another number of documents.
"""

from __future__ import annotations

import os
import random
import threading
import uuid
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import bson
import pytest
from pymongo.errors import DuplicateKeyError

from raycdc.connectors.mongodb.plugin import MongoDbSourceConfig
from raycdc.connectors.mongodb.server.client import connect, probe
from raycdc.connectors.mongodb.snapshot.chunks import cut
from raycdc.connectors.mongodb.snapshot.keys import sort_key
from raycdc.model import TableId
from raycdc.sandbox.servers import MongoDb, MongoDbServer
from tests.integration.followed import pipeline
from tests.support.servers.secantusdb import mongodb_for_tests

pytestmark = [pytest.mark.server, pytest.mark.long(suite="races"), pytest.mark.timeout(1800)]

DOCUMENTS = int(os.environ.get("RAYCDC_SPLIT_DOCUMENTS", "200000"))
TABLE = "orders"
STRATEGIES = ("sharded", "splitVector", "sample", "single")
#: By a shard key that documents change, so that they go from chunk to chunk.
MOVED = "sharded by a key that changes"
MOVED_KEY = {"customer": 1, "order": 1}
#: Of the `_id` as text, which number a document has for its life, and what writers change.
COLUMNS = {"_id": "json", "u": "long", "n": "long"}


def keys(count: int) -> list[Any]:
    """Half of them whole numbers, of which most are near one another; most compound ones are of one shop."""
    share = count // 20
    return [
        *range(8 * share),
        *(bson.Int64(2**40 + 7 * number) for number in range(2 * share)),
        *(f"key {number:07d}" for number in range(4 * share)),
        *({"shop": "large", "n": number} for number in range(2 * share)),
        *({"shop": f"shop {number % 50}", "n": number} for number in range(share)),
        *(bson.ObjectId() for _ in range(2 * share)),
        *(bson.DatetimeMS(1_700_000_000_000 + 1000 * number) for number in range(share // 2)),
        *(bson.Binary(uuid.uuid4().bytes, 4) for _ in range(share // 2)),
        *(False, True, None),
    ]


def moved(number: int) -> dict[str, Any]:
    """A shard key that changes: of several types, and one in ten without its first field."""
    customer = (number % 1000, f"customer {number % 77}", float(number % 50), None)[number % 4]
    return {"order": number % 1009, **({} if number % 10 == 0 else {"customer": customer})}


@dataclass
class Orders:
    """One collection for all tests; each finds it as the one before left it."""

    server: MongoDb
    database: str
    #: In the server's order.
    keys: list[Any]
    next_u: int
    lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> dict[int, int]:
        """`n` by `u` of all documents."""
        with self.server.client() as client:
            found = client[self.database][TABLE].find({}, {"_id": 0, "u": 1, "n": 1})
            return {document["u"]: document["n"] for document in found}

    def numbers(self, count: int) -> range:
        with self.lock:
            self.next_u += count
            return range(self.next_u - count, self.next_u)


@pytest.fixture(scope="module")
def orders() -> Iterator[Orders]:
    made = keys(DOCUMENTS)
    # One more than the other tests have: its log, and what it has in memory, go with it.
    with mongodb_for_tests() as server, server.fresh_database("races") as database, server.client() as client:
        for first in range(0, len(made), 20_000):
            client[database][TABLE].insert_many(
                {"_id": key, "u": u, "n": u, **moved(u), **({"text": "x" * 2000} if u < 1000 else {})}
                for u, key in enumerate(made[first : first + 20_000], first)
            )
        client[database][TABLE].create_index(list(MOVED_KEY.items()))
        if isinstance(server, MongoDbServer):
            server.truncate_log()
        made.sort(key=sort_key)
        yield Orders(server, database, made, len(made))


def source(orders: Orders, strategy: str) -> dict[str, Any]:
    return {
        "columns": {f"{orders.database}.{TABLE}": COLUMNS},
        "schema": {"mode": "declared", "json": "canonical"},
        "snapshot": {
            "strategy": "sharded" if strategy == MOVED else strategy,
            "chunk_size": (90 * DOCUMENTS + 2_000_000) // 12,
        },
    }


@pytest.fixture(params=[*STRATEGIES, MOVED])
def strategy(request: pytest.FixtureRequest, orders: Orders) -> str:
    """A strategy that the server has for the collection."""
    name = f"{orders.database}.{TABLE}"
    if request.param in ("sharded", MOVED):
        if not orders.server.private:
            pytest.skip("needs a cluster whose config database a test may write")
        step = len(orders.keys) // 12
        key: dict[str, int] = {"_id": 1} if request.param == "sharded" else MOVED_KEY
        places: list[tuple[Any, ...]] = [(key,) for key in orders.keys]
        if request.param == MOVED:
            keys = [moved(number) for number in range(len(orders.keys))]
            places = sorted(
                ((key.get("customer"), key["order"]) for key in keys), key=lambda key: [*map(sort_key, key)]
            )
        lows = [(bson.MinKey(),) * len(key), *places[step::step], (bson.MaxKey(),) * len(key)]
        with orders.server.client() as client:
            client.config.collections.replace_one({"_id": name}, {"_id": name, "key": key}, upsert=True)
            client.config.chunks.delete_many({})
            client.config.chunks.insert_many(
                {"ns": name, "min": dict(zip(key, low, strict=True)), "max": dict(zip(key, high, strict=True))}
                for low, high in pairwise(lows)
            )
    return str(request.param)


def cuts_of(orders: Orders, strategy: str) -> tuple[Any, ...]:
    """Bounds as they will be, or (sampled ones) about where they will be."""
    plain = {"type": "mongodb", "uri": orders.server.uri, "collections": [f"{orders.database}.{TABLE}"]}
    config = MongoDbSourceConfig.model_validate({**plain, **source(orders, strategy)})
    with connect(config.uri) as client:
        found = cut(client, probe(client), TableId(orders.database, TABLE), config.snapshot)
    asked = "sharded" if strategy == MOVED else strategy
    if found.strategy != asked and not orders.server.private:
        pytest.skip("; ".join(found.passed_over))
    assert found.strategy == asked
    assert (len(found.bounds) == 0) if strategy == "single" else (len(found.bounds) >= 5)
    return found.bounds


@dataclass
class Writes:
    """What writers did: numbers of documents that they added and took away, and how often they wrote."""

    inserted: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    count: int = 0


@contextmanager
def writing(orders: Orders, strategy: str, *, threads: int = 2) -> Iterator[Writes]:
    """Inserts, updates and deletions at the cuts, and anywhere, until the block ends."""
    order = [sort_key(key) for key in orders.keys]
    cuts = cuts_of(orders, strategy)
    places = [] if strategy == MOVED else [bisect_left(order, sort_key(bound)) for bound in cuts]
    writes = Writes()
    stop = threading.Event()
    failed: list[BaseException] = []

    def write(seed: int) -> None:
        dice = random.Random(orders.next_u + seed)
        try:
            with orders.server.client() as client:
                while not stop.wait(0.002):
                    _write(orders, client[orders.database][TABLE], places, dice, writes)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failed.append(error)

    started = [threading.Thread(target=write, args=(seed,)) for seed in range(threads)]
    for thread in started:
        thread.start()
    try:
        yield writes
    finally:
        stop.set()
        for thread in started:
            thread.join()
    assert not failed
    assert writes.count > 20


def _write(orders: Orders, collection: Any, places: list[int], dice: random.Random, writes: Writes) -> None:
    near = dice.choice(places) + dice.randrange(-3, 4) if places and dice.random() < 0.8 else None
    at = dice.randrange(len(orders.keys)) if near is None else min(max(near, 0), len(orders.keys) - 1)
    key = orders.keys[at]
    (number,) = orders.numbers(1)
    match dice.randrange(4):
        case 0:
            found = collection.find_one_and_delete({"_id": key}, projection={"u": 1})
            if found is not None:
                with orders.lock:
                    writes.deleted.add(found["u"])
        case 1 if (new := _next_to(key, dice)) is not None:
            with orders.lock:
                writes.inserted.add(number)
            with suppress(DuplicateKeyError):
                collection.insert_one({"_id": new, "u": number, "n": number, **moved(number)})
        case _:
            collection.update_one({"_id": key}, {"$set": {"n": number, **moved(dice.randrange(10**6))}})
    with orders.lock:
        writes.count += 1


def _next_to(key: Any, dice: random.Random) -> Any:
    """A key that nobody has, just above this one."""
    match key:
        case bool():
            return None
        case int():
            return key + dice.random()
        case str():
            return f"{key} {dice.random()}"
        case {"shop": shop, "n": number}:
            return {"shop": shop, "n": number + dice.random()}
        case _:
            return None


def test_each_document_is_read_once_while_others_write(orders: Orders, strategy: str, tmp_path: Path) -> None:
    before = orders.now()
    found: list[int] = []
    texts: list[str] = []
    with writing(orders, strategy) as writes:
        read = pipeline(tmp_path, orders.server, orders.database, startup="snapshot", **source(orders, strategy))
        for epoch in read.epochs():
            for table in epoch.tables:
                for batch in epoch.batches(table):
                    found += batch.column("u").to_pylist()
                    texts += batch.column("_id").to_pylist()
            epoch.ack()
    there = set(found)
    assert len(there) == len(found) == len(set(texts))
    assert before.keys() - writes.deleted <= there
    assert there <= before.keys() | writes.inserted


def test_a_changelog_ends_as_the_collection_does(orders: Orders, strategy: str, tmp_path: Path) -> None:
    there: dict[str, tuple[int, int]] = {}
    chunks_rows = 0

    def follow() -> None:
        nonlocal chunks_rows
        read = pipeline(tmp_path, orders.server, orders.database, **source(orders, strategy))
        for epoch in read.epochs(until="caught-up"):
            chunks_rows += sum(segment.rows for segment in epoch.manifest.segments if segment.kind == "snapshot")
            for table in epoch.tables:
                for batch in epoch.batches(table):
                    columns = [batch.column(name).to_pylist() for name in ("_op", "_id", "u", "n")]
                    for op, key, u, n in zip(*columns, strict=True):
                        if op in ("-D", "-U"):
                            there.pop(key, None)
                        else:
                            there[key] = (u, n)
            epoch.ack()

    with writing(orders, strategy):
        follow()
    follow()
    assert dict(there.values()) == orders.now()
    assert len(there) == len(dict(there.values()))
    assert chunks_rows > DOCUMENTS * 0.9
