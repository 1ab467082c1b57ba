"""An update whose document is not found: settled by what the stream says, or read again, or told; never lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raycdc.connectors.mongodb.server.client import Client
from raycdc.connectors.mongodb.snapshot.keys import key_to_json
from raycdc.connectors.mongodb.stream.causal import Found, read_documents
from raycdc.errors import DataError, SchemaError
from raycdc.sandbox.servers import MongoDb, MongoDbServer
from raycdc.source.tables.parking import TableRequest
from raycdc.source.tables.table_requests import ask
from raycdc.state.bad_row_counts import bad_rows
from raycdc.state.store import CheckpointStore
from tests.integration.followed import (
    at_server,
    catch_up,
    changes,
    pipeline,
    replayed,
    require_collection_equal,
    require_true_changelog,
)

pytestmark = pytest.mark.server

KEEPS = {"on_bad_record": "dead-letter"}


@pytest.fixture
def database(mongodb: MongoDb) -> Iterator[str]:
    with mongodb.fresh_database("miss") as name:
        yield name


def letters(tmp_path: Path) -> list[dict[str, Any]]:
    files = sorted((tmp_path / "state" / "dead_letters").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def counted(tmp_path: Path) -> dict[str, int]:
    store = CheckpointStore(tmp_path / "state", pipeline="shop")
    record = store.last_commit()
    assert record is not None
    return bad_rows(store, record.epoch)


def absent(tmp_path: Path) -> list[Any]:
    manifest = CheckpointStore(tmp_path / "state", pipeline="shop").last_manifest()
    assert manifest is not None
    return list(manifest.to_splits["stream"].to_json().get("source", {}).get("absent", ()))


def test_what_was_updated_and_then_deleted_is_no_letter(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    with mongodb.client() as client:
        orders = client[database].orders
        orders.insert_many([{"_id": number, "n": number} for number in range(6)])
        catch_up(tmp_path, mongodb, database, pipeline=KEEPS)
        for key in (0, 1, 2):
            orders.update_one({"_id": key}, {"$set": {"n": -1}})
        orders.delete_many({"_id": {"$in": [0, 1]}})
        orders.insert_one({"_id": 1, "n": 11})
        orders.update_one({"_id": 1}, {"$set": {"n": 12}})
        orders.delete_one({"_id": 1})
        catch_up(tmp_path, mongodb, database, pipeline=KEEPS)
        # Everything in the collection was changed, and goes with it.
        orders.update_many({}, {"$set": {"n": 99}})
        orders.drop()
        catch_up(tmp_path, mongodb, database, pipeline=KEEPS)
    assert letters(tmp_path) == []
    assert counted(tmp_path) == {}
    assert absent(tmp_path) == []
    assert replayed(changes(tmp_path)) == {}


def test_a_document_that_lives_and_is_never_found_is_a_letter(
    emulated: MongoDbServer, database: str, tmp_path: Path
) -> None:
    with emulated.client() as client:
        orders = client[database].orders
        orders.insert_many([{"_id": number, "n": number} for number in range(4)])
        catch_up(tmp_path, emulated, database, pipeline=KEEPS)
        emulated.hide(f"{database}.orders", times=-1)
        orders.update_one({"_id": 1}, {"$set": {"n": -1}})
        orders.update_one({"_id": 2}, {"$set": {"n": -2}})
        orders.delete_one({"_id": 2})
        orders.insert_one({"_id": 7, "n": 7})
        catch_up(tmp_path, emulated, database, pipeline=KEEPS)
        emulated.unfail()
    (letter,) = letters(tmp_path)
    assert (letter["table"], letter["row"]) == (f"{database}.orders", {"_id": 1})
    assert "by its _id again later" in letter["reason"]
    assert counted(tmp_path) == {f"{database}.orders": 1}
    assert absent(tmp_path) == []
    there = at_server(emulated, database)
    assert {key: row["n"] for key, row in replayed(changes(tmp_path)).items()} == {
        key: n for key, n in there.items() if key != key_to_json(1)
    }
    # The next change brings the row.
    with emulated.client() as client:
        client[database].orders.update_one({"_id": 1}, {"$set": {"n": 5}})
    catch_up(tmp_path, emulated, database, pipeline=KEEPS)
    require_collection_equal(tmp_path, emulated, database)
    assert len(letters(tmp_path)) == 1


def test_a_document_that_is_found_again_is_a_row(emulated: MongoDbServer, database: str, tmp_path: Path) -> None:
    """With fields that were not there, too: the schema change ends an epoch, and comes before the row."""
    with emulated.client() as client:
        orders = client[database].orders
        orders.insert_many([{"_id": number, "n": number} for number in range(4)])
        catch_up(tmp_path, emulated, database)
        orders.update_one({"_id": 1}, {"$set": {"n": -1, "new": "field"}})
        orders.update_one({"_id": 2}, {"$set": {"n": -2}})
        emulated.hide(f"{database}.orders", times=1)
        catch_up(tmp_path, emulated, database)
    rows = require_collection_equal(tmp_path, emulated, database)
    assert [(row["_op"], row["_id"]) for row in rows[4:]] == [("+U", 2), ("+U", 1)]
    assert rows[5]["new"] == "field"
    assert letters(tmp_path) == []


def test_a_row_that_is_missing_ends_the_run_until_somebody_decides(
    emulated: MongoDbServer, database: str, tmp_path: Path
) -> None:
    def run() -> None:
        catch_up(tmp_path, emulated, database, pipeline={"on_bad_record": "fail"})

    with emulated.client() as client:
        client[database].orders.insert_many([{"_id": number, "n": number} for number in range(3)])
        run()
        emulated.hide(f"{database}.orders", times=-1)
        client[database].orders.update_one({"_id": 1}, {"$set": {"n": -1}})
        for _ in range(2):
            with pytest.raises(DataError, match=r'a row that changed at .*on_bad_record = "skip"'):
                run()
        emulated.unfail()
    assert [row["_op"] for row in changes(tmp_path)] == ["+I"] * 3
    with pytest.raises(DataError, match=r"a row that changed at"):
        run()
    catch_up(tmp_path, emulated, database, pipeline={"on_bad_record": "skip"})
    assert [(row["_op"], row["_id"]) for row in changes(tmp_path)[3:]] == [("-D", 1)]
    assert counted(tmp_path) == {f"{database}.orders": 1}
    assert letters(tmp_path) == []


def test_a_sink_of_ones_own_is_refused_a_row_that_is_missing(
    emulated: MongoDbServer, database: str, tmp_path: Path
) -> None:
    def epochs(**options: Any) -> list[tuple[str, int]]:
        found = []
        for epoch in pipeline(tmp_path, emulated, database, **options).epochs(until="caught-up"):
            for table in epoch.tables:
                for batch in epoch.batches(table):
                    found += list(zip(batch["_op"].to_pylist(), batch["_id"].to_pylist(), strict=True))
            epoch.ack()
        return found

    with emulated.client() as client:
        client[database].orders.insert_many([{"_id": number, "n": number} for number in range(3)])
        assert sorted(epochs()) == [("+I", 0), ("+I", 1), ("+I", 2)]
        emulated.hide(f"{database}.orders", times=-1)
        client[database].orders.update_one({"_id": 1}, {"$set": {"n": -1}})
        for _ in range(2):
            with pytest.raises(DataError, match=r'a row that changed at .*on_bad_record = "skip"'):
                epochs()
        emulated.unfail()
    assert epochs(pipeline={"on_bad_record": "skip"}) == [("-D", 1)]


@pytest.fixture
def others_write(emulated: MongoDbServer, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody writes elsewhere before each read of documents, which so sees a later time than that of a run's end."""

    def read_later(client: Client, *arguments: Any, **options: Any) -> Found:
        with emulated.client() as other:
            other[f"{database}_beside"].others.insert_one({})
        return read_documents(client, *arguments, **options)

    monkeypatch.setattr("raycdc.connectors.mongodb.source.read_documents", read_later)


@pytest.mark.usefixtures("others_write")
def test_a_run_ends_when_no_change_before_its_end_is_unexplained(
    emulated: MongoDbServer, database: str, tmp_path: Path
) -> None:
    fails: dict[str, Any] = {"pipeline": {"on_bad_record": "fail"}}
    with emulated.client() as client:
        orders = client[database].orders
        orders.insert_many([{"_id": number, "n": number} for number in range(3)])
        catch_up(tmp_path, emulated, database, **fails)
        emulated.hide(f"{database}.orders", times=1)
        orders.update_one({"_id": 2}, {"$set": {"n": -2}})
        catch_up(tmp_path, emulated, database, **fails)
        require_collection_equal(tmp_path, emulated, database)
        assert absent(tmp_path) == []
        emulated.hide(f"{database}.orders", times=-1)
        orders.update_one({"_id": 1}, {"$set": {"n": -1}})
        with pytest.raises(DataError, match="a row that changed at"):
            catch_up(tmp_path, emulated, database, **fails)
        emulated.unfail()


def test_a_row_that_is_missing_parks_its_collection_until_it_is_read_anew(
    emulated: MongoDbServer, database: str, tmp_path: Path
) -> None:
    with emulated.client() as client:
        client[database].orders.insert_many([{"_id": number, "n": number} for number in range(3)])
        catch_up(tmp_path, emulated, database)
        emulated.hide(f"{database}.orders", times=-1)
        client[database].orders.update_one({"_id": 1}, {"$set": {"n": -1}})
        for _ in range(2):
            with pytest.raises(SchemaError, match=r"orders: parked.*\n.*a row that changed at"):
                catch_up(tmp_path, emulated, database)
        emulated.unfail()
    assert [row["_op"] for row in changes(tmp_path)] == ["+I"] * 3
    store = CheckpointStore(tmp_path / "state", pipeline="shop")
    with store.lease():
        ask(store, [f"{database}.orders"], TableRequest.RESNAPSHOT)
    catch_up(tmp_path, emulated, database)
    require_collection_equal(tmp_path, emulated, database)


def test_a_full_changelog_stays_one_without_the_row(emulated: MongoDbServer, database: str, tmp_path: Path) -> None:
    with emulated.client() as client:
        orders = client[database].orders
        orders.insert_many([{"_id": number, "n": number} for number in range(3)])
        options: dict[str, Any] = {"changelog": "full", "pipeline": KEEPS}
        catch_up(tmp_path, emulated, database, **options)
        emulated.hide(f"{database}.orders", times=-1)
        orders.update_one({"_id": 1}, {"$set": {"n": -1}})
        catch_up(tmp_path, emulated, database, **options)
        emulated.unfail()
        orders.update_one({"_id": 1}, {"$set": {"n": -2}})
        catch_up(tmp_path, emulated, database, **options)
    rows = require_collection_equal(tmp_path, emulated, database)
    require_true_changelog(rows)
    assert [(row["_op"], row["n"]) for row in rows[3:]] == [("-D", 1), ("+I", -2)]
    assert len(letters(tmp_path)) == 1
