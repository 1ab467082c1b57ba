"""Cuts by shard keys of several fields, cursors that are lost, and roles that are missing."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from bson import MaxKey, MinKey
from pymongo.collection import Collection

from raycdc.connectors.mongodb.plugin import MongoDbChunkStrategy, MongoDbSourceConfig
from raycdc.connectors.mongodb.server.catalog import size_of
from raycdc.connectors.mongodb.server.checks import check_source
from raycdc.connectors.mongodb.server.client import connect, probe
from raycdc.connectors.mongodb.snapshot.chunk_reader import MongoDbChunkReader
from raycdc.connectors.mongodb.snapshot.chunks import cut
from raycdc.connectors.mongodb.snapshot.keys import IdBound
from raycdc.model import TableId
from raycdc.sandbox.servers import MongoDb, MongoDbServer
from raycdc.source.split import SnapshotSplit
from tests.integration.followed import pipeline

pytestmark = pytest.mark.server

#: Most documents are of one shop, and some have an `_id` of another kind.
KEYS: list[Any] = [
    *({"shop": "large", "n": number} for number in range(900)),
    *({"shop": shop, "n": float(number)} for shop in ("a", "small", "z") for number in range(50)),
    *({"n": number} for number in range(50)),
    *range(50),
]


@pytest.fixture
def orders(mongodb: MongoDb, mongodb_database: str) -> str:
    if not isinstance(mongodb, MongoDbServer):
        pytest.skip("writes to the config database, and makes a server fail")
    with mongodb.client() as client:
        client[mongodb_database].orders.insert_many(
            {"_id": key, "n": number, "region": number % 3} for number, key in enumerate(KEYS)
        )
    return mongodb_database


def config(mongodb: MongoDb, database: str, **snapshot: Any) -> MongoDbSourceConfig:
    plain = {"type": "mongodb", "uri": mongodb.uri, "collections": [f"{database}.orders"], "startup": "snapshot"}
    return MongoDbSourceConfig.model_validate({**plain, "snapshot": {"chunk_size": "1MiB", **snapshot}})


def read(tmp_path: Path, mongodb: MongoDb, database: str, **snapshot: Any) -> Counter[int]:
    """How often each document was read, by its `n`."""
    found: Counter[int] = Counter()
    read = pipeline(tmp_path, mongodb, database, startup="snapshot", snapshot={"chunk_size": "1MiB", **snapshot})
    for epoch in read.epochs():
        for table in epoch.tables:
            for batch in epoch.batches(table):
                found.update(batch.column("n").to_pylist())
        epoch.ack()
    return found


ONCE = Counter(dict.fromkeys(range(len(KEYS)), 1))


@pytest.mark.parametrize(
    ("key", "bounds", "cuts"),
    [
        # Two bounds within one _id are one.
        (
            {"_id": 1, "region": 1},
            [(10, 1), (40, MinKey()), (40, 2), ({"shop": "large", "n": 7}, 0)],
            [10, 40, {"shop": "large", "n": 7}],
        ),
        (
            {"_id.shop": 1, "_id.n": 1.0},
            [("large", 100), ("large", 500), ("small", MinKey())],
            [{"shop": "large", "n": 100}, {"shop": "large", "n": 500}, {"shop": "small", "n": MinKey()}],
        ),
        ({"_id.shop": 1, "region": 1}, [("large", 1), ("z", 0)], [{"shop": "large"}, {"shop": "z"}]),
    ],
)
def test_a_shard_key_that_begins_with_the_key_cuts_where_that_is(
    key: dict[str, Any], bounds: list[Any], cuts: list[Any], mongodb: MongoDb, orders: str, tmp_path: Path,
) -> None:  # fmt: skip
    name = f"{orders}.orders"
    lows = [(MinKey(), MinKey()), *bounds, (MaxKey(), MaxKey())]
    with mongodb.client() as client:
        client.config.collections.insert_one({"_id": name, "key": key})
        client.config.chunks.insert_many(
            {"ns": name, "min": dict(zip(key, low, strict=True)), "max": dict(zip(key, high, strict=True))}
            for low, high in pairwise(lows)
        )
    asked = config(mongodb, orders, chunk_size="4KiB", strategy="sharded")
    with connect(asked.uri) as client:
        found = cut(client, probe(client), TableId(orders, "orders"), asked.snapshot)
    assert (found.strategy, list(found.bounds)) == (MongoDbChunkStrategy.SHARDED, [IdBound(key) for key in cuts])
    assert read(tmp_path, mongodb, orders, chunk_size="4KiB", strategy="sharded") == ONCE


def test_the_role_that_the_config_database_wants_is_named(mongodb: MongoDb, orders: str) -> None:
    assert isinstance(mongodb, MongoDbServer)
    asked = config(mongodb, orders, chunk_size="4KiB")
    with connect(asked.uri) as client:
        mongodb.fail(["find"], times=-1, errorCode=13, namespace="config.collections")
        try:
            results, _ = check_source(client, probe(client), asked)
        finally:
            mongodb.unfail()
    (warned,) = [result for result in results if not result.ok]
    assert not warned.required
    assert warned.text == (
        f'{orders}.orders is not cut by sharded: the account lacks the role "clusterMonitor", or read on '
        "config.collections and config.chunks."
    )


@pytest.mark.parametrize("lost", [{"errorCode": 43}, {"closeConnection": True}])
def test_a_chunk_whose_cursor_is_lost_is_read_again_from_its_start(
    lost: dict[str, Any], mongodb: MongoDb, orders: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after ten minutes without a word (cursorTimeoutMillis), or when the cursor's session expired."""
    monkeypatch.setattr("raycdc.connectors.mongodb.snapshot.chunk_reader._BATCH_DOCUMENTS", 100)
    assert isinstance(mongodb, MongoDbServer)
    begun: list[str] = []
    reading = MongoDbChunkReader.read

    def noted(self: MongoDbChunkReader, split: SnapshotSplit, **named: Any) -> Any:
        begun.append(f"{split.split_id} {split.lower}")
        return reading(self, split, **named)

    monkeypatch.setattr(MongoDbChunkReader, "read", noted)
    mongodb.fail(["getMore"], times=2, **lost)
    try:
        found = read(tmp_path, mongodb, orders, chunk_size="12KiB", strategy="splitVector")
    finally:
        mongodb.unfail()
    assert found == ONCE
    assert len(set(begun)) < len(begun)


def test_bytes_that_the_server_does_not_tell_are_those_of_a_sample(
    mongodb: MongoDb, mongodb_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mongodb.client() as client:
        client[mongodb_database].orders.insert_many({"_id": number, "text": "x" * 2000} for number in range(2000))
    aggregate = Collection.aggregate

    def silent(self: Collection[Any], stages: Any, *more: Any, **options: Any) -> Any:
        if "$collStats" in stages[0]:
            return [{"storageStats": {"count": 2000, "size": 0}}]
        return aggregate(self, stages, *more, **options)

    monkeypatch.setattr(Collection, "aggregate", silent)
    chosen = config(mongodb, mongodb_database, strategy="sample")
    table = TableId(mongodb_database, "orders")
    with connect(chosen.uri) as client:
        size = size_of(client, table)
        assert len(cut(client, probe(client), table, chosen.snapshot).bounds) == 3
    assert size.documents == 2000
    assert 2000 * 2000 < size.bytes < 2000 * 2100


def test_the_emulation_compares_all_fields_of_bounds(mongodb: MongoDb, orders: str) -> None:
    with mongodb.client() as client:
        collection = client[orders].orders
        collection.create_index([("region", 1), ("n", 1)])
        hinted = collection.find({"n": {"$ne": 5}}, {"_id": 0, "n": 1}).hint([("region", 1), ("n", 1)])
        found = [document["n"] for document in hinted.min([("region", 1), ("n", 1100)]).max([("region", 2), ("n", 9)])]
    assert found == [*range(1102, len(KEYS), 3), 2, 8]
