"""Inferred collections whose documents change their shape while they are followed."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from raycdc.config import config_from_dict
from raycdc.connectors.mongodb.snapshot.chunk_reader import MongoDbChunkReader
from raycdc.connectors.mongodb.snapshot.keys import key_from_json, key_to_json
from raycdc.connectors.mongodb.stream import raw_stream
from raycdc.core.failpoints import FailpointError
from raycdc.errors import SinkError
from raycdc.model.evolution.events import AddColumnEvent
from raycdc.pipeline import Pipeline
from raycdc.sandbox.servers import MongoDb
from raycdc.state.store import CheckpointStore
from tests.integration.followed import as_document, catch_up, changes

pytestmark = pytest.mark.server


@pytest.fixture
def database(mongodb: MongoDb) -> Iterator[str]:
    with mongodb.fresh_database("drift") as name:
        yield name


def require_documents(tmp_path: Path, mongodb: MongoDb, database: str) -> list[dict[str, Any]]:
    """What a reader of the changelog has is what the server has; before-images are what it had. All rows."""
    rows = changes(tmp_path)
    there: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = key_to_json(row["_id"])
        if row["_op"] in ("-U", "-D"):
            assert as_document(row) in ({}, there.pop(key))
        else:
            there[key] = as_document(row)
    with mongodb.client() as client:
        documents = list(client[database].orders.find())
    assert there == {
        key_to_json(d["_id"]): {name: value for name, value in d.items() if name != "_id" and value is not None}
        for d in documents
    }
    return rows


def into_lake(tmp_path: Path, mongodb: MongoDb, database: str, **options: Any) -> list[dict[str, Any]]:
    """Rows of a Delta table that was caught up with the collection, by key."""
    more = options.pop("pipeline", {})
    source = {"type": "mongodb", "uri": mongodb.uri, "collections": [f"{database}.orders"], **options}
    config = config_from_dict(
        {
            "pipeline": {"name": "shop", "state": str(tmp_path / "state"), "epoch_interval": "100ms", **more},
            "source": source,
            "sink": {"type": "delta", "path": str(tmp_path / "lake"), "write": "upsert"},
            "readers": {"min": 1, "max": 2},
        }
    )
    Pipeline.from_config(config).run(local=True, until="caught-up")
    table = DeltaTable(tmp_path / "lake" / database / "orders").to_pyarrow_table()
    rows: list[dict[str, Any]] = table.sort_by("_id").to_pylist()
    return rows


def told(tmp_path: Path) -> list[str]:
    """The schema changes that the epochs were sealed with, behind the first one."""
    manifests = CheckpointStore(tmp_path / "state").manifests()
    events = [change for m in manifests for table in m.tables.values() for change in table.changes]
    return [f"{e.type} {e.column.name}" if isinstance(e, AddColumnEvent) else e.type for e in events]


def test_new_fields_and_values_of_other_types_get_columns(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    with mongodb.client() as client:
        orders = client[database].orders
        orders.insert_many([{"_id": n, "n": n, "maybe": None} for n in range(3)])
        catch_up(tmp_path, mongodb, database)
        orders.insert_one({"_id": 10, "n": 10, "city": "Rome", "void": None, "MAYBE": 1, "a b": 2})
        orders.insert_one({"_id": 11, "n": "eleven", "paid": True, "N": 1})
        orders.update_one({"_id": 1}, {"$set": {"n": 0.5}})
        catch_up(tmp_path, mongodb, database)
        orders.insert_one({"_id": 12, "n": 12, "city": "Oslo", "void": None, "at": {"x": 1}})
        orders.update_one({"_id": 11}, {"$set": {"n": 11, "city": 5}, "$unset": {"N": 1}})
    catch_up(tmp_path, mongodb, database)
    rows = {row["_id"]: row for row in require_documents(tmp_path, mongodb, database)}
    assert (rows[10]["city"], rows[10]["_rest"]) == ("Rome", {"void": None, "MAYBE": 1, "a b": 2})
    assert [rows[11][name] for name in ("n", "n__other", "city", "city__other", "_rest")] == [11, None, None, 5, None]
    assert (rows[1]["n"], rows[1]["n__other"]) == (None, 0.5)
    assert (rows[12]["city"], rows[12]["at"], rows[12]["_rest"]) == ("Oslo", {"x": 1}, {"void": None})
    assert list(rows[0]) == ["_id", "n", "maybe", "_rest", "_op", "_seq", "_ts_ms", "_db", "_table", "_pos"]


def test_documents_that_change_their_shape_while_they_are_read_come_whole(
    mongodb: MongoDb, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that are open when a column comes are read again with it; what only chunks show stays in the rest."""
    with mongodb.client() as client:
        orders = client[database].create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
        orders.insert_many({"_id": number, "n": number, "text": "x" * 100} for number in range(1000))
        read = MongoDbChunkReader._raw_batches
        aimed: list[int] = []

        def hunted(self: MongoDbChunkReader, split: Any, *more: Any) -> Iterator[bytes]:
            first = 0 if split.lower is None else key_from_json(split.lower)
            aimed.append(first)
            turn = len(aimed)
            orders.update_one({"_id": first}, {"$set": {f"before{turn % 4}": turn}})
            yield from read(self, split, *more)
            orders.update_one({"_id": first + 1}, {"$set": {f"after{turn % 4}": turn, "n": f"text {turn}"}})
            orders.delete_one({"_id": first + 2})
            orders.update_one({"_id": 5}, {"$set": {f"hot{turn % 4}": turn}})

        monkeypatch.setattr(MongoDbChunkReader, "_raw_batches", hunted)
        snapshot = {"strategy": "splitVector", "chunk_size": "16KiB"}
        catch_up(tmp_path, mongodb, database, snapshot=snapshot, schema={"sample": 1})
        assert len(set(aimed)) > 5
        orders.update_many({}, {"$set": {"n": 1}})
    catch_up(tmp_path, mongodb, database, snapshot=snapshot, schema={"sample": 1})
    rows = require_documents(tmp_path, mongodb, database)
    assert {"n__other", "hot0", "hot1", "after1", "before3"} < rows[-1].keys()


@pytest.mark.parametrize("point", ["before_seal", "after_seal", "before_manifest", "after_manifest", "after_stage"])
def test_a_run_that_ends_around_the_epoch_of_a_new_column_comes_to_it_again(
    mongodb: MongoDb, database: str, tmp_path: Path, fail_at: Any, point: str
) -> None:
    with mongodb.client() as client:
        orders = client[database].orders
        orders.insert_many([{"_id": n, "n": n} for n in range(3)])
        catch_up(tmp_path, mongodb, database)
        orders.insert_one({"_id": 10, "n": 10})
        orders.insert_one({"_id": 11, "n": "x", "city": "Rome"})
        orders.insert_one({"_id": 12, "n": 12, "city": "Oslo"})
        for count in (1, 2):
            fail_at(point, count)
            try:
                catch_up(tmp_path, mongodb, database)
            except FailpointError:
                continue
    fail_at(point, 10_000)
    catch_up(tmp_path, mongodb, database)
    rows = require_documents(tmp_path, mongodb, database)
    assert [row["_id"] for row in rows] == [0, 1, 2, 10, 11, 12]
    added = [change for change in told(tmp_path) if change != "create_table"]
    assert added == ["add_column n__other", "add_column city"]


def test_what_comes_within_a_long_transaction_gets_its_columns_behind_it(
    mongodb: MongoDb, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_stream, "StreamOptions", partial(raw_stream.StreamOptions, events_max=7))
    with mongodb.client() as client:
        orders = client[database].orders
        orders.insert_one({"_id": 0, "n": 0})
        catch_up(tmp_path, mongodb, database)
        with client.start_session() as session, session.start_transaction():
            many = [{"_id": n, "n": n, "first" if n < 10 else "later": n} for n in range(1, 30)]
            orders.insert_many(many, session=session)
        orders.insert_one({"_id": 50, "n": 1, "later": 2})
    catch_up(tmp_path, mongodb, database)
    rows = {row["_id"]: row for row in require_documents(tmp_path, mongodb, database)}
    assert (rows[1]["first"], rows[29]["_rest"], rows[50]["later"]) == (1, {"later": 29}, 2)


def test_fields_without_end_do_not_become_columns_without_end(
    mongodb: MongoDb, database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limited = {"fields_max": 6}
    with mongodb.client() as client:
        orders = client[database].orders
        orders.insert_one({"_id": 0, "n": 0})
        catch_up(tmp_path, mongodb, database, schema=limited)
        orders.insert_many([{"_id": n, "n": n, **{f"user{n}_{k}": k for k in range(100)}} for n in range(1, 30)])
        orders.insert_one({"_id": 40, "n": "forty"})
    with caplog.at_level(logging.WARNING):
        catch_up(tmp_path, mongodb, database, schema=limited)
    rows = require_documents(tmp_path, mongodb, database)
    assert len([name for name in rows[-1] if not name.startswith("_")]) == 5
    said = [record.getMessage() for record in caplog.records if "_rest" in record.getMessage()]
    assert len(said) == 1
    assert "'user1_4'" in said[0]


@pytest.mark.parametrize(
    "options",
    [
        {"pipeline": {"schema_change": "ignore"}},
        {"pipeline": {"exclude_schema_changes": ["add_column"]}},
        {"columns": {"DB.orders": {"_id": "long", "n": "long"}}, "on_type_mismatch": "rest"},
    ],
)
def test_where_columns_do_not_come_nothing_goes(
    mongodb: MongoDb, database: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    if "columns" in options:
        options = {**options, "columns": {f"{database}.orders": options["columns"]["DB.orders"]}}
    with mongodb.client() as client:
        orders = client[database].orders
        orders.insert_one({"_id": 0, "n": 0})
        into_lake(tmp_path, mongodb, database, **options)
        orders.insert_one({"_id": 1, "n": "one", "city": "Rome"})
    rows = into_lake(tmp_path, mongodb, database, **options)
    assert rows[1] == {"_id": 1, "n": None, "_rest": '{"n":"one","city":"Rome"}'}
    assert told(tmp_path)[1:] == []


def test_a_conflict_is_kept_in_the_rest_where_that_is_asked_for(
    mongodb: MongoDb, database: str, tmp_path: Path
) -> None:
    resting = {"on_conflict": "rest"}
    with mongodb.client() as client:
        client[database].orders.insert_one({"_id": 0, "n": 0})
        catch_up(tmp_path, mongodb, database, schema=resting)
        client[database].orders.insert_one({"_id": 1, "n": "one", "city": "Rome"})
    catch_up(tmp_path, mongodb, database, schema=resting)
    assert require_documents(tmp_path, mongodb, database)[-1]["_rest"] == {"n": "one"}
    assert told(tmp_path)[1:] == ["add_column city"]


def test_exception_refuses_a_new_field_by_name(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    strict = {"schema_change": "fail"}
    with mongodb.client() as client:
        client[database].orders.insert_one({"_id": 0, "n": 0})
        catch_up(tmp_path, mongodb, database, pipeline=strict)
        client[database].orders.insert_one({"_id": 1, "n": 1, "city": "Rome"})
    with pytest.raises(SinkError, match=r"orders: add_column at the source"):
        catch_up(tmp_path, mongodb, database, pipeline=strict)
    assert [row["_id"] for row in changes(tmp_path)] == [0]


def test_a_column_that_becomes_text_has_its_collection_read_again(
    mongodb: MongoDb, database: str, tmp_path: Path
) -> None:
    with mongodb.client() as client:
        orders = client[database].orders
        orders.insert_many([{"_id": n, "n": n} for n in range(5)])
        into_lake(tmp_path, mongodb, database, schema={"on_conflict": "text"})
        orders.insert_one({"_id": 5, "n": "five", "city": "Rome"})
        orders.insert_one({"_id": 6, "n": 6.5})
        orders.delete_one({"_id": 4})
    rows = into_lake(tmp_path, mongodb, database, schema={"on_conflict": "text"})
    assert [row["n"] for row in rows] == ["0", "1", "2", "3", '"five"', "6.5"]
    assert rows[4] == {"_id": 5, "n": '"five"', "_rest": None, "city": "Rome"}
    assert told(tmp_path)[1:] == ["truncate_table", "create_table"]


def test_a_column_becomes_text_while_its_collection_is_read(
    mongodb: MongoDb, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {
        "snapshot": {"strategy": "splitVector", "chunk_size": "16KiB"},
        "schema": {"on_conflict": "text", "sample": 10},
    }
    with mongodb.client() as client:
        orders = client[database].orders
        orders.insert_many({"_id": number, "n": number, "m": 1, "text": "x" * 100} for number in range(1000))
        read = MongoDbChunkReader._raw_batches
        turns: list[int] = []

        def hunted(self: MongoDbChunkReader, split: Any, *more: Any) -> Iterator[bytes]:
            turns.append(turn := len(turns))
            yield from read(self, split, *more)
            if turn in (2, 7):
                orders.update_one({"_id": 7 * turn}, {"$set": {"n" if turn == 2 else "m": "a text"}})
            orders.update_one({"_id": 10 * turn}, {"$set": {"n": -1}})

        monkeypatch.setattr(MongoDbChunkReader, "_raw_batches", hunted)
        into_lake(tmp_path, mongodb, database, **options)
        rows = into_lake(tmp_path, mongodb, database, **options)
        assert len(turns) > 10
        documents = orders.find().sort("_id")
        expected = [(d["_id"], json.dumps(d["n"]), json.dumps(d["m"])) for d in documents]
    assert [(row["_id"], row["n"], row["m"]) for row in rows] == expected
    assert all(row["_rest"] is None for row in rows)


@pytest.mark.parametrize("images", [True, False])
def test_a_full_changelog_says_what_was_written_before(
    mongodb: MongoDb, database: str, tmp_path: Path, images: bool
) -> None:
    full = {"changelog": "full", "schema": {"sample": 1}}
    with mongodb.client() as client:
        orders = client[database].create_collection("orders", changeStreamPreAndPostImages={"enabled": images})
        orders.insert_many([{"_id": 1, "n": 1}, {"_id": 2, "n": 2, "was": "here"}, {"_id": 3, "was": "too"}])
        catch_up(tmp_path, mongodb, database, **full)
        orders.update_one({"_id": 2}, {"$set": {"n": "two", "new": 1}})
        orders.update_one({"_id": 1}, {"$set": {"n": 10}})
        orders.delete_one({"_id": 3})
        catch_up(tmp_path, mongodb, database, **full)
        orders.update_one({"_id": 2}, {"$set": {"new": 2}})
    catch_up(tmp_path, mongodb, database, **full)
    rows = require_documents(tmp_path, mongodb, database)
    there: dict[int, dict[str, Any]] = {}
    for row in rows:
        values = {n: v for n, v in row.items() if v is not None and (n == "_rest" or not n.startswith("_"))}
        if row["_op"] in ("-U", "-D"):
            assert values == there.pop(row["_id"])
        else:
            there[row["_id"]] = values
    assert ("new" in rows[-1]) is not images


@pytest.mark.parametrize(("what", "name"), [("drop", "N"), ("dropDatabase", "n"), ("rename to it", "n")])
def test_a_collection_made_anew_has_the_columns_that_it_has_now(
    mongodb: MongoDb, database: str, tmp_path: Path, what: str, name: str
) -> None:
    with mongodb.client() as client:
        orders = client[database].orders
        orders.insert_many([{"_id": 1, "n": 1}, {"_id": 2, "n": 2}])
        into_lake(tmp_path, mongodb, database)
        if what == "rename to it":
            client[database].other.insert_one({"_id": "a", name: "text"})
            client[database].other.rename("orders", dropTarget=True)
        else:
            orders.drop() if what == "drop" else client.drop_database(database)
            orders.insert_one({"_id": "a", name: "text"})
        orders.insert_one({"_id": "b", name: "more"})
        rows = into_lake(tmp_path, mongodb, database)
    assert [(row["_id"], row[name]) for row in rows] == [("a", "text"), ("b", "more")]
