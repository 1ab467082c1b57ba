"""Collections cut by a shard key that changes while they are read: all chunks are read as of one cluster time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import MaxKey, MinKey

from raycdc.connectors.mongodb.plugin import MongoDbChunkStrategy, MongoDbSourceConfig
from raycdc.connectors.mongodb.server.client import connect, probe
from raycdc.connectors.mongodb.snapshot.chunk_reader import MongoDbChunkReader
from raycdc.connectors.mongodb.snapshot.chunks import Cuts, cut
from raycdc.connectors.mongodb.snapshot.keys import IndexBound
from raycdc.connectors.mongodb.stream.causal import AtClusterTimeReadConcern
from raycdc.core.failpoints import FailpointError
from raycdc.errors import SourceError
from raycdc.model import TableId
from raycdc.sandbox.servers import MongoDb, MongoDbServer
from raycdc.sandbox.servers.private import ServerError, wait_until
from raycdc.source.split import SnapshotSplit
from raycdc.source.tables.parking import TableRequest
from raycdc.source.tables.table_requests import ask
from raycdc.state.store import CheckpointStore
from tests.integration.followed import (
    at_server,
    catch_up,
    changes,
    pipeline,
    replayed,
    require_collection_equal,
    writing,
)

pytestmark = pytest.mark.server

DOCUMENTS = 2000
KEY = {"customer": 1, "order": 1}
INDEX = (("customer", 1), ("order", 1))
#: Values of the key's first field in the server's order, across types; None is also where it is missing.
CUSTOMERS: list[Any] = [None, 3, 5.5, 7, "a", "b", {"name": "x"}, bson.ObjectId(), True, bson.DatetimeMS(10**12)]
BOUNDS: list[tuple[Any, Any]] = [(None, 500), (3, MinKey()), (7, 100), ("a", "z"), ("b", 50), (True, 0)]


def document(number: int, customer: Any) -> dict[str, Any]:
    key = {"customer": customer, "order": str(number) if number % 7 == 0 else number}
    if customer is None and number % 2:
        del key["customer"]
    return {"_id": number, "n": number, **key}


@pytest.fixture
def orders(mongodb: MongoDb, mongodb_database: str) -> Iterator[str]:
    if not isinstance(mongodb, MongoDbServer):
        pytest.skip("writes to the config database")
    name = f"{mongodb_database}.orders"
    with mongodb.client() as client:
        collection = client[mongodb_database].orders
        collection.insert_many(document(n, CUSTOMERS[n % len(CUSTOMERS)]) for n in range(DOCUMENTS))
        collection.create_index(list(KEY.items()))
        shard(client, name, KEY, BOUNDS)
    yield mongodb_database
    mongodb.keep_history(300)


def shard(client: Any, name: str, key: dict[str, Any], bounds: list[tuple[Any, ...]]) -> None:
    """As the cluster's own metadata have it since 5.0."""
    uuid = bson.Binary(random.randbytes(16), 4)
    lows = [(MinKey(),) * len(key), *bounds, (MaxKey(),) * len(key)]
    client.config.collections.insert_one({"_id": name, "key": key, "uuid": uuid})
    client.config.chunks.insert_many(
        {"uuid": uuid, "min": dict(zip(key, low, strict=True)), "max": dict(zip(key, high, strict=True))}
        for low, high in pairwise(lows)
    )


def cuts(mongodb: MongoDb, database: str, strategy: str = "sharded") -> Cuts:
    source = {"type": "mongodb", "uri": mongodb.uri, "collections": [f"{database}.orders"]}
    config = MongoDbSourceConfig.model_validate({**source, "snapshot": {"strategy": strategy, "chunk_size": "4KiB"}})
    with connect(config.uri) as client:
        return cut(client, probe(client), TableId(database, "orders"), config.snapshot)


SHARDED = {"snapshot": {"strategy": "sharded", "chunk_size": "4KiB"}}


def moves(client: Any, database: str, dice: random.Random) -> None:
    """A document goes to another chunk, or two go at once in opposite directions; some are deleted and come again."""
    collection = client[database].orders
    number = dice.randrange(DOCUMENTS)
    match dice.randrange(8):
        case 0:
            collection.delete_one({"_id": number})
        case 1:
            new = document(number, dice.choice(CUSTOMERS))
            collection.replace_one({"_id": number}, new, upsert=True)
        case 2:
            with client.start_session() as session, session.start_transaction():
                for one, customer in ((number, dice.choice(CUSTOMERS)), (DOCUMENTS - number, None)):
                    collection.update_one({"_id": one}, {"$set": {"customer": customer}}, session=session)
        case 3:
            collection.update_one({"_id": number}, {"$unset": {"customer": ""}, "$set": {"n": -number}})
        case _:
            to = {"customer": dice.choice(CUSTOMERS), "order": dice.randrange(DOCUMENTS), "n": dice.randrange(10**6)}
            collection.update_one({"_id": number}, {"$set": to})


@contextmanager
def documents_that_move(mongodb: MongoDb, database: str) -> Iterator[None]:
    dice = random.Random(7)
    with writing(lambda client, _: moves(client, database, dice), mongodb, database):
        yield


class Reads:
    """Notes which chunks are read, as of which time; `before` is called before each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, int | None]] = []
        self.before: Any = lambda number: None
        reading = MongoDbChunkReader.read
        lock = threading.Lock()

        def noted(reader: MongoDbChunkReader, split: SnapshotSplit, **named: Any) -> Any:
            with lock:
                self.made.append((split.split_id, named["opened_at"].as_of))
                number = len(self.made)
            self.before(number)
            return reading(reader, split, **named)

        monkeypatch.setattr(MongoDbChunkReader, "read", noted)

    @property
    def times(self) -> set[int | None]:
        return {time for _, time in self.made}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def pause(tmp_path: Path) -> None:
    """Until one more epoch is sealed, if there is something to seal: so that not all chunks are in the same one."""
    store = CheckpointStore(tmp_path / "state", pipeline="shop", create=False)
    before = store.next_epoch()
    with suppress(ServerError):
        wait_until(lambda: store.next_epoch() > before, timeout_s=0.3, what="an epoch")


def as_it_was(mongodb: MongoDb, database: str, time: int) -> dict[int, int]:
    with mongodb.client() as client:
        collection = client[database].get_collection("orders", read_concern=AtClusterTimeReadConcern(time))
        return {one["_id"]: one["n"] for one in collection.find().hint([("_id", 1)])}


def test_all_fields_of_the_shard_key_cut(mongodb: MongoDb, orders: str) -> None:
    found = cuts(mongodb, orders)
    assert found.strategy is MongoDbChunkStrategy.SHARDED
    assert list(found.bounds) == [IndexBound(INDEX, bound) for bound in BOUNDS]
    (why, *_) = cuts(mongodb, orders, "auto").passed_over
    assert "its shard key is {customer: 1, order: 1} and" in why
    assert 'strategy = "sharded"' in why


def test_a_bounded_read_is_what_there_was_at_one_time(
    mongodb: MongoDb, orders: str, tmp_path: Path, reads: Reads
) -> None:
    found: list[tuple[int, int]] = []
    with documents_that_move(mongodb, orders):
        for epoch in pipeline(tmp_path, mongodb, orders, startup="snapshot", **SHARDED).epochs():
            for table in epoch.tables:
                for batch in epoch.batches(table):
                    found += zip(batch.column("_id").to_pylist(), batch.column("n").to_pylist(), strict=True)
            epoch.ack()
    (as_of,) = reads.times
    assert as_of is not None
    assert len(reads.made) == len(BOUNDS) + 1
    assert len(dict(found)) == len(found)
    assert dict(found) == as_it_was(mongodb, orders, as_of)


def test_what_is_followed_ends_as_the_collection_does(
    mongodb: MongoDb, orders: str, tmp_path: Path, reads: Reads
) -> None:
    with documents_that_move(mongodb, orders):
        catch_up(tmp_path, mongodb, orders, **SHARDED)
        (as_of,) = reads.times
        assert as_of is not None
        there = as_it_was(mongodb, orders, as_of)
    rows = [row for row in changes(tmp_path) if row["_pos"] is None]
    assert len(rows) == len({row["_id"] for row in rows})
    assert {row["_id"]: row["n"] for row in rows} == there
    catch_up(tmp_path, mongodb, orders, **SHARDED)
    assert len(require_collection_equal(tmp_path, mongodb, orders)) > len(rows)


@pytest.mark.parametrize(
    ("point", "count", "options"),
    [("before_seal", 3, {}), ("after_commit", 2, {}), ("after_commit", 2, {"startup": "snapshot"})],
)
def test_a_restart_reads_what_is_left_as_of_the_same_time(
    point: str,
    count: int,
    options: dict[str, Any],
    mongodb: MongoDb,
    orders: str,
    tmp_path: Path,
    reads: Reads,
    fail_at: Callable[[str, int], None],
) -> None:
    reads.before = lambda number: pause(tmp_path)
    fail_at(point, count)
    with documents_that_move(mongodb, orders):
        with suppress(FailpointError):
            catch_up(tmp_path, mongodb, orders, **SHARDED, **options)
        before = len(reads.made)
        fail_at(point, 10_000)
        reads.before = lambda number: None
        catch_up(tmp_path, mongodb, orders, **SHARDED, **options)
        times = reads.times
    # A reader that dies has a successor in the same run; what it had under way is read again, and no more.
    chunks = len(BOUNDS) + 1
    assert before >= 2
    assert chunks < len(reads.made) < 2 * chunks
    assert len(times) == 1
    rows = [row for row in changes(tmp_path) if row["_pos"] is None]
    (as_of,) = times
    assert as_of is not None
    assert len(rows) == len({row["_id"] for row in rows})
    assert {row["_id"]: row["n"] for row in rows} == as_it_was(mongodb, orders, as_of)
    if not options:
        catch_up(tmp_path, mongodb, orders, **SHARDED)
        require_collection_equal(tmp_path, mongodb, orders)


@pytest.mark.parametrize(
    ("options", "then"), [({}, "sharded"), ({"startup": "snapshot"}, "sample")], ids=["followed", "bounded"]
)
def test_a_time_that_the_server_has_no_more_is_refused_until_it_is_read_anew(
    options: dict[str, Any], then: str, mongodb: MongoDb, orders: str, tmp_path: Path, reads: Reads
) -> None:
    assert isinstance(mongodb, MongoDbServer)
    server = mongodb

    def forget(number: int) -> None:
        pause(tmp_path)
        if number == 4:
            server.keep_history(-1)

    reads.before = forget
    for _ in range(2):
        with pytest.raises(
            SourceError, match=f'minSnapshotHistory.*"sample".*tables resnapshot CONFIG {orders}.orders'
        ):
            catch_up(tmp_path, mongodb, orders, **SHARDED, **options)
    store = CheckpointStore(str(tmp_path / "state"), pipeline="shop")
    with store.lease():
        ask(store, [f"{orders}.orders"], TableRequest.RESNAPSHOT)
    before = reads.times
    server.keep_history(300)
    with mongodb.client() as client:
        client[orders].orders.update_one({"_id": 1}, {"$set": {"n": -1}})
    reads.before = lambda number: None
    catch_up(tmp_path, mongodb, orders, snapshot={"strategy": then, "chunk_size": "4KiB"}, **options)
    assert len(reads.times - before) == 1
    assert (reads.made[-1][1] is None) == (then == "sample")
    require_collection_equal(tmp_path, mongodb, orders)


@pytest.mark.parametrize("becomes", ["dropped", "made anew"])
def test_a_collection_that_is_no_more_while_it_is_read_is_left_to_the_log(
    becomes: str, mongodb: MongoDb, orders: str, tmp_path: Path, reads: Reads
) -> None:
    def away(number: int) -> None:
        pause(tmp_path)
        if number != 4:
            return
        with mongodb.client() as client:
            client[orders].orders.drop()
            if becomes == "made anew":
                client[orders].orders.insert_many(document(n, "new") for n in range(10))

    reads.before = away
    catch_up(tmp_path, mongodb, orders, **SHARDED)
    require_collection_equal(tmp_path, mongodb, orders)


def test_collections_beside_it_are_read_and_followed_as_ever(
    mongodb: MongoDb, orders: str, tmp_path: Path, reads: Reads
) -> None:
    """The log stands while such a collection is read; chunks that wait for it must not be in the way."""
    others = ("a_beside", "lines", "z_beside")
    with mongodb.client() as client:
        for name in others:
            client[orders][name].insert_many(document(n, n) for n in range(300))
        client[orders].lines.create_index(list(KEY.items()))
        shard(client, f"{orders}.lines", KEY, [(50, 0), (100, 0), (200, 0)])
    strategies = {f"{orders}.{name}": "sample" for name in others if name != "lines"}
    options = {
        "collections": [rf"{orders}\.(orders|{'|'.join(others)})"],
        "snapshot": {"strategy": "sharded", "chunk_size": "4KiB", "per_collection": strategies},
    }

    def write(client: Any, number: int) -> None:
        for name in others:
            client[orders][name].update_one({"_id": number % 300}, {"$set": {"n": number, "customer": number % 299}})

    with writing(write, mongodb, orders), documents_that_move(mongodb, orders):
        catch_up(tmp_path, mongodb, orders, **options)
    catch_up(tmp_path, mongodb, orders, **options)
    for name in ("orders", *others):
        rows = replayed(changes(tmp_path, name))
        assert {key: row["n"] for key, row in rows.items()} == at_server(mongodb, orders, name)
    times = {table: {at for split, at in reads.made if f".{table}#" in split} for table in ("orders", *others)}
    assert times["a_beside"] == times["z_beside"] == {None}
    assert None not in times["orders"] | times["lines"]
    assert len(times["orders"]) == len(times["lines"]) == 1


def test_what_cannot_be_read_so_is_cut_by_the_next_strategy(mongodb: MongoDb, orders: str) -> None:
    source = {"type": "mongodb", "uri": mongodb.uri, "collections": [f"{orders}.orders"]}
    config = MongoDbSourceConfig.model_validate({**source, "snapshot": {"strategy": "sharded"}})
    table = TableId(orders, "orders")

    def reason(client: Any, info: Any) -> str:
        found = cut(client, info, table, config.snapshot)
        assert not found.as_of_one_time
        return found.passed_over[0]

    with connect(config.uri) as client, mongodb.client() as admin:
        info = probe(client)
        assert "4.4.29 has no such reads" in reason(client, replace(info, version=(4, 4, 29)))
        collection = admin[orders].orders
        collection.drop_index("customer_1_order_1")
        assert "there is no index that begins with it" in reason(client, info)
        collection.create_index([*KEY.items(), ("n", -1)])
        found = cut(client, info, table, config.snapshot)
        assert found.bounds[0] == IndexBound((*INDEX, ("n", -1)), (None, 500, MaxKey()))
        admin.config.collections.update_one({"_id": str(table)}, {"$set": {"key": {"customer": "hashed"}}})
        assert "in the order of hashes" in reason(client, info)
