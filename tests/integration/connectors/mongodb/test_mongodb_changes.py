"""Collections kept equal: snapshot and change stream together, restarts, what happens to collections, lost history."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bson import json_util

from raycdc.connectors.mongodb.snapshot.chunk_reader import MongoDbChunkReader
from raycdc.connectors.mongodb.snapshot.keys import key_from_json, key_to_json
from raycdc.connectors.mongodb.stream import raw_stream
from raycdc.errors import LogLostError, SourceError
from raycdc.sandbox.servers import MongoDb, MongoDbServer
from tests.integration.followed import (
    KEYS,
    at_server,
    catch_up,
    changes,
    pipeline,
    require_collection_equal,
    require_true_changelog,
    writing,
)

pytestmark = pytest.mark.server


@pytest.fixture
def database(mongodb: MongoDb) -> Iterator[str]:
    with mongodb.fresh_database("chg") as name:
        yield name


def test_collections_are_equal_whatever_is_written_while_they_are_read(
    mongodb: MongoDb, database: str, tmp_path: Path
) -> None:
    chosen = random.Random(7)
    with mongodb.client() as client:
        client[database].orders.insert_many({"_id": key, "n": 0, "text": "x" * 100} for key in KEYS)

    def write(client: Any, number: int) -> None:
        orders = client[database].orders
        key = chosen.choice(KEYS)
        match chosen.randrange(6):
            case 0:
                orders.delete_one({"_id": {"$eq": key}})
            case 1:
                orders.replace_one({"_id": {"$eq": key}}, {"_id": key, "n": number}, upsert=True)
            case 2:
                orders.insert_one({"_id": f"new {number:06d}", "n": number})
            case _:
                orders.update_one({"_id": {"$eq": key}}, {"$set": {"n": number}})

    snapshot = {"strategy": "splitVector", "chunk_size": "16KiB"}
    with writing(write, mongodb, database):
        catch_up(tmp_path, mongodb, database, snapshot=snapshot)
        catch_up(tmp_path, mongodb, database, snapshot=snapshot)
    catch_up(tmp_path, mongodb, database, snapshot=snapshot)
    rows = require_collection_equal(tmp_path, mongodb, database)
    assert {row["_op"] for row in rows} == {"+I", "+U", "-D"}
    # A key is inserted once, unless it was deleted in between.
    there: set[str] = set()
    for row in rows:
        key = key_to_json(row["_id"])
        if row["_op"] == "+I":
            assert key not in there
            there.add(key)
        elif row["_op"] == "-D":
            there.discard(key)


def test_writes_aimed_at_open_chunks_leave_a_true_changelog(
    mongodb: MongoDb, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk's keys change when it is open and not read, when it is read and not closed, and in between."""
    with mongodb.client() as client:
        orders = client[database].create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
        orders.insert_many({"_id": number, "n": number, "text": "x" * 100} for number in range(0, 3000, 3))
        read = MongoDbChunkReader._raw_batches
        aimed: list[int] = []

        def write(first: int, much: int) -> None:
            """Every kind of change, to keys of the chunk that begins with `first`."""
            orders.update_one({"_id": first}, {"$inc": {"n": much}})
            orders.replace_one({"_id": first + 3}, {"n": much}, upsert=True)
            orders.delete_one({"_id": first + 6})
            orders.insert_one({"_id": first + 6, "n": much})
            orders.delete_one({"_id": first + 9})
            orders.update_one({"_id": first + 1}, {"$set": {"n": much}}, upsert=True)

        def hunted(self: MongoDbChunkReader, split: Any, *more: Any) -> Iterator[bytes]:
            first = 0 if split.lower is None else key_from_json(split.lower)
            aimed.append(first)
            write(first, 10_000)
            yield from read(self, split, *more)
            write(first, 20_000)
            orders.update_one({"_id": first + 12}, {"$set": {"n": 1}})

        monkeypatch.setattr(MongoDbChunkReader, "_raw_batches", hunted)
        snapshot = {"strategy": "splitVector", "chunk_size": "4KiB"}
        catch_up(tmp_path, mongodb, database, snapshot=snapshot)
        assert len(aimed) > 10
        orders.update_many({}, {"$inc": {"n": 1}})
        catch_up(tmp_path, mongodb, database, snapshot=snapshot)
    require_true_changelog(require_collection_equal(tmp_path, mongodb, database))


@pytest.mark.parametrize("events_max", [0, 7])
def test_a_transaction_comes_whole_and_one_that_ended_otherwise_never(
    mongodb: MongoDb, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events_max: int
) -> None:
    """Also one that comes in many answers."""
    monkeypatch.setattr(raw_stream, "StreamOptions", partial(raw_stream.StreamOptions, events_max=events_max))
    with mongodb.client() as client:
        orders = client[database].orders
        orders.insert_one({"_id": 0, "n": 0})
        for epoch in pipeline(tmp_path, mongodb, database).epochs(until="caught-up"):
            epoch.ack()
        with client.start_session() as session:
            with session.start_transaction():
                orders.insert_many([{"_id": number, "n": number} for number in range(1, 400)], session=session)
                orders.update_one({"_id": 0}, {"$set": {"n": 7}}, session=session)
                orders.delete_one({"_id": 5}, session=session)
            session.start_transaction()
            orders.insert_one({"_id": 1000, "n": 1}, session=session)
            session.abort_transaction()
        orders.insert_one({"_id": 2000, "n": 1})
    found: list[list[int]] = []
    for epoch in pipeline(tmp_path, mongodb, database).epochs(until="caught-up"):
        for table in epoch.tables:
            batches = epoch.batches(table)
            found += [[key for batch in batches for key in batch.column("_id").to_pylist()]]
        epoch.ack()
    keys = [key for epoch_keys in found for key in epoch_keys]
    assert sorted(keys) == sorted([0, 5, *range(1, 400), 2000])
    with_parts = [epoch_keys for epoch_keys in found if set(epoch_keys) & set(range(400))]
    assert len(with_parts) == 1


def test_images_make_a_whole_changelog(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    with mongodb.client() as client:
        client[database].create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
        orders = client[database].orders
        orders.insert_one({"_id": 1, "n": 1})
        catch_up(tmp_path, mongodb, database)
        orders.update_one({"_id": 1}, {"$set": {"n": 2}})
        orders.update_one({"_id": 1}, {"$set": {"n": 3}})
        orders.replace_one({"_id": 1}, {"n": 4})
        orders.delete_one({"_id": 1})
    catch_up(tmp_path, mongodb, database)
    rows = [(row["_op"], row["n"]) for row in changes(tmp_path)]
    assert rows == [("+I", 1), ("-U", 1), ("+U", 2), ("-U", 2), ("+U", 3), ("-U", 3), ("+U", 4), ("-D", 4)]
    positions = [row["_pos"] for row in changes(tmp_path) if row["_pos"] is not None]
    assert len(positions) == len(set(positions)) == 7


def test_without_images_an_update_brings_the_document_and_a_deletion_its_key(
    mongodb: MongoDb, database: str, tmp_path: Path
) -> None:
    with mongodb.client() as client:
        orders = client[database].orders
        orders.insert_one({"_id": 1, "n": 1})
        catch_up(tmp_path, mongodb, database, schema="document")
        orders.update_one({"_id": 1}, {"$set": {"n": 2}})
        catch_up(tmp_path, mongodb, database, schema="document")
        orders.delete_one({"_id": 1})
    catch_up(tmp_path, mongodb, database, schema="document")
    rows = [(row["_op"], row["document"]) for row in changes(tmp_path)]
    assert rows == [("+I", {"_id": 1, "n": 1}), ("+U", {"_id": 1, "n": 2}), ("-D", {"_id": 1})]


@pytest.mark.parametrize("what", [{"errorCode": 222}, {"errorCode": 43}, {"errorCode": 234}, {"closeConnection": True}])
def test_a_stream_that_breaks_goes_on_where_it_was(
    what: dict[str, Any], mongodb: MongoDb, database: str, tmp_path: Path
) -> None:
    if not isinstance(mongodb, MongoDbServer):
        pytest.skip("makes a server fail")
    with mongodb.client() as client:
        orders = client[database].orders
        orders.insert_one({"_id": 0, "n": 0})
        catch_up(tmp_path, mongodb, database)
        orders.insert_many([{"_id": number, "n": number} for number in range(1, 50)])
        mongodb.fail(["getMore"], times=2, **what)
        try:
            catch_up(tmp_path, mongodb, database)
        finally:
            mongodb.unfail()
    rows = require_collection_equal(tmp_path, mongodb, database)
    assert [row["_id"] for row in rows] == list(range(50))


def test_changes_alone_begin_now_or_at_a_time(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    with mongodb.client() as client:
        orders = client[database].orders
        before = then = client.admin.command("ping")["operationTime"]
        while then.time == before.time:
            # Another test may have truncated the log in this second, of which all is asked for.
            client[database].others.insert_one({})
            then = client.admin.command("ping")["operationTime"]
        orders.insert_one({"_id": 1, "n": 1})
        catch_up(tmp_path / "latest", mongodb, database, startup="latest")
        orders.insert_one({"_id": 2, "n": 2})
        catch_up(tmp_path / "latest", mongodb, database, startup="latest")
        assert [row["_id"] for row in changes(tmp_path / "latest")] == [2]
        from_then = {"mode": "timestamp", "timestamp_ms": 1000 * then.time + 999}
        catch_up(tmp_path / "then", mongodb, database, startup=from_then)
    assert [row["_id"] for row in changes(tmp_path / "then")] == [1, 2]


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (280, LogLostError, "has not all the changes any more"),
        (260, LogLostError, "does not know the position"),
        (10334, SourceError, "an event is larger than 16 MiB"),
    ],
)
def test_a_stream_that_cannot_go_on_says_why(
    code: int, kind: type[SourceError], words: str, mongodb: MongoDb, database: str, tmp_path: Path
) -> None:
    if not isinstance(mongodb, MongoDbServer):
        pytest.skip("makes a server fail")
    with mongodb.client() as client:
        client[database].orders.insert_one({"_id": 0, "n": 0})
        catch_up(tmp_path, mongodb, database)
        client[database].orders.insert_one({"_id": 1, "n": 1})
    mongodb.fail(["getMore"], times=-1, errorCode=code)
    try:
        with pytest.raises(kind, match=words):
            catch_up(tmp_path, mongodb, database)
    finally:
        mongodb.unfail()
    catch_up(tmp_path, mongodb, database)
    require_collection_equal(tmp_path, mongodb, database)


def test_the_end_of_an_earlier_run_ends_no_later_one(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    with mongodb.client() as client:
        client[database].orders.insert_one({"_id": 0, "n": 0})
        given: list[int] = []
        # The last epoch is left as it is when the consumer ends.
        for epoch in pipeline(tmp_path, mongodb, database).epochs(until="caught-up"):
            if epoch.manifest.final:
                break
            given.append(epoch.number)
            epoch.ack()
        client[database].orders.insert_one({"_id": 1, "n": 1})
    rows: list[dict[str, Any]] = []
    for epoch in pipeline(tmp_path, mongodb, database).epochs(until="caught-up"):
        assert epoch.number not in given
        rows += [row for table in epoch.tables for batch in epoch.batches(table) for row in batch.to_pylist()]
        epoch.ack()
    assert rows[-1]["_id"] == 1


def test_runs_that_end_anywhere_go_on_without_a_gap(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    snapshot = {"strategy": "splitVector", "chunk_size": "16KiB"}
    chosen = random.Random(11)
    with mongodb.client() as client:
        client[database].orders.insert_many({"_id": key, "n": 0, "text": "x" * 100} for key in KEYS)
    there: dict[str, int] = {}

    def write(client: Any, number: int) -> None:
        key = {"_id": {"$eq": chosen.choice(KEYS)}}
        if number % 5:
            client[database].orders.update_one(key, {"$set": {"n": number}}, upsert=bool(number % 2))
        else:
            client[database].orders.delete_one(key)

    def take(epochs: int) -> None:
        until = "caught-up"
        for number, epoch in enumerate(pipeline(tmp_path, mongodb, database, snapshot=snapshot).epochs(until=until)):
            for table in epoch.tables:
                for batch in epoch.batches(table):
                    for row in batch.to_pylist():
                        if row["_op"] in ("-U", "-D"):
                            there.pop(row["_id"], None)
                        else:
                            there[row["_id"]] = row["n"]
            epoch.ack()
            if number + 1 == epochs:
                break

    with writing(write, mongodb, database):
        for epochs in (1, 2, 1, 3, 1, 2):
            take(epochs)
    take(1000)
    found = {key_to_json(json_util.loads(f'{{"_id": {key}}}')["_id"]): n for key, n in there.items()}
    assert found == at_server(mongodb, database)


def test_history_that_is_lost_ends_the_run_or_begins_again(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    if not isinstance(mongodb, MongoDbServer):
        pytest.skip("makes a server forget its log")
    with mongodb.client() as client:
        orders = client[database].orders
        orders.insert_many([{"_id": number, "n": number} for number in range(5)])
        catch_up(tmp_path, mongodb, database)
        orders.delete_one({"_id": 1})
        orders.insert_one({"_id": 7, "n": 7})
        mongodb.truncate_log()
        with pytest.raises(LogLostError, match="has not all the changes any more"):
            catch_up(tmp_path, mongodb, database)
        orders.insert_one({"_id": 8, "n": 8})
        again = {"on_log_lost": "resnapshot"}
        catch_up(tmp_path, mongodb, database, pipeline=again)
        orders.insert_one({"_id": 9, "n": 9})
        catch_up(tmp_path, mongodb, database, pipeline=again)
    rows = require_collection_equal(tmp_path, mongodb, database)
    assert [row["_op"] for row in rows].count("T") == 1
