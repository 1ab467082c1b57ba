"""What can go wrong with a change stream at the server, one by one: nothing is lost, and nothing is asked for ever."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bson
import pytest

from raycdc.config import Secret
from raycdc.connectors.mongodb.large_documents import LargeDocuments
from raycdc.connectors.mongodb.server.client import connect
from raycdc.connectors.mongodb.stream.causal import Found, log_end, read_documents
from raycdc.driver.resolve import next_run
from raycdc.errors import ConfigError, LogLostError, SourceError, SourceUnavailableError
from raycdc.model import TableId
from raycdc.pipeline import Pipeline
from raycdc.sandbox.servers import MongoDb, MongoDbServer
from raycdc.source.connector import Source
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.opaque import SealedSplit
from raycdc.state.store import CheckpointStore
from tests.integration.followed import catch_up, changes, pipeline, require_collection_equal

pytestmark = pytest.mark.server


def source_of(job: Pipeline) -> Source[Any]:
    """The source of a pipeline, as its start makes it."""
    return next_run(job.config).source


@pytest.fixture
def database(mongodb: MongoDb) -> Iterator[str]:
    with mongodb.fresh_database("chg") as name:
        yield name


@pytest.mark.parametrize("images", [False, True])
def test_a_change_too_large_for_an_answer_is_read_by_its_key(
    emulated: MongoDbServer, database: str, tmp_path: Path, images: bool
) -> None:
    with emulated.client() as client:
        options: dict[str, Any] = {"changeStreamPreAndPostImages": {"enabled": True}} if images else {}
        orders = client[database].create_collection("orders", **options)
        orders.insert_many([{"_id": number, "n": number} for number in range(4)])
        catch_up(tmp_path, emulated, database)
        orders.insert_one({"_id": 4, "n": 4})
        orders.update_one({"_id": 0}, {"$set": {"n": -1}})
        orders.replace_one({"_id": 1}, {"n": -2})
        orders.update_one({"_id": 2}, {"$set": {"n": -3}})
        orders.delete_one({"_id": 2})
        # The first is met when it is tried whether the log reaches back.
        emulated.fail(["getMore"], times=2, errorCode=10334)
        catch_up(tmp_path, emulated, database)
        orders.update_one({"_id": 0}, {"$set": {"n": -9}})
    catch_up(tmp_path, emulated, database)
    rows = require_collection_equal(tmp_path, emulated, database)
    assert [(row["_op"], row["_id"]) for row in rows[4:8]] == [("+I", 4), ("+U", 0), ("+U", 1), ("-D", 2)]
    assert rows[-2]["_op"] == ("-U" if images else "-D")


@pytest.mark.parametrize("code", [260, 280, 286])
@pytest.mark.parametrize("command", ["aggregate", "getMore"])
def test_lost_history_ends_the_run_or_begins_again_wherever_the_server_says_so(
    command: str, code: int, emulated: MongoDbServer, database: str, tmp_path: Path
) -> None:
    """A server opens a stream and finds out only when the first changes are asked for."""
    with emulated.client() as client:
        orders = client[database].orders
        orders.insert_many([{"_id": number, "n": number} for number in range(5)])
        catch_up(tmp_path, emulated, database)
        orders.delete_one({"_id": 1})
        emulated.fail([command], times=1, errorCode=code)
        with pytest.raises(LogLostError, match="resnapshot"):
            catch_up(tmp_path, emulated, database)
        emulated.fail([command], times=1, errorCode=code)
        again = {"on_log_lost": "resnapshot"}
        catch_up(tmp_path, emulated, database, pipeline=again)
        orders.insert_one({"_id": 9, "n": 9})
        catch_up(tmp_path, emulated, database, pipeline=again)
    rows = require_collection_equal(tmp_path, emulated, database)
    assert [row["_op"] for row in rows].count("T") == 1


def test_a_server_that_was_set_back_is_told_by_its_time(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    with mongodb.client() as client:
        client[database].orders.insert_one({"_id": 1, "n": 1})
        catch_up(tmp_path, mongodb, database)
        client[database].orders.insert_one({"_id": 2, "n": 2})
    catch_up(tmp_path, mongodb, database)
    job = pipeline(tmp_path, mongodb, database)
    store = CheckpointStore(job.config.pipeline.state, pipeline="shop")
    last = store.last_manifest()
    assert last is not None
    (stream,) = last.to_splits.values()
    state = stream.to_json()
    source = source_of(job)
    source.preflight(last)

    def moved(**position: Any) -> Manifest:
        return replace(
            last, to_splits={"stream": SealedSplit.from_json({**state, "position": {**state["position"], **position}})}
        )

    with pytest.raises(LogLostError, match="was restored, or is another replica set of the same name"):
        source.preflight(moved(cluster_time=state["position"]["cluster_time"] + (3600 << 32)))
    for other in ("rs1", ""):
        with pytest.raises(SourceError, match="belongs to the replica set"):
            source.preflight(moved(replica_set=other))


@pytest.mark.parametrize("code", [63, 133, 222, 234, 13388])
def test_a_stream_that_cannot_be_opened_now_is_tried_again(
    code: int, emulated: MongoDbServer, database: str, tmp_path: Path
) -> None:
    with emulated.client() as client:
        client[database].orders.insert_one({"_id": 0, "n": 0})
        catch_up(tmp_path, emulated, database)
        client[database].orders.insert_one({"_id": 1, "n": 1})
    emulated.fail(["aggregate"], times=-1, errorCode=code)
    with pytest.raises(SourceUnavailableError, match=str(code)):
        source_of(pipeline(tmp_path, emulated, database)).preflight(None)
    emulated.unfail()
    catch_up(tmp_path, emulated, database)
    require_collection_equal(tmp_path, emulated, database)


def test_a_document_is_looked_up_in_its_own_collection_by_whatever_name(mongodb: MongoDb, database: str) -> None:
    with mongodb.client() as client, connect(_secret(mongodb)) as ours:
        client[database].orders.insert_one({"_id": 1, "n": 1})
        (entry,) = client[database].list_collections(filter={"name": "orders"})
        uuid = bytes(entry["info"]["uuid"]).hex()
        client[database].orders.rename("away")
        client[database].orders.insert_many([{"_id": 1, "n": 2}, {"_id": 2, "n": 2}])
        table = TableId(database, "orders")
        found = read_documents(ours, table, uuid, [1, 2], log_end(ours))
        assert found.documents == {bson.encode({"_id": 1}): bson.encode({"_id": 1, "n": 1})}
        client[database].away.drop()
        gone = read_documents(ours, table, uuid, [1, 2], log_end(ours))
        assert gone == Found({}, log_end(ours))


def test_images_that_end_while_a_stream_is_open_lose_nothing(
    mongodb: MongoDb, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mongodb.client() as client:
        orders = client[database].create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
        orders.insert_many([{"_id": number, "n": number} for number in range(4)])
        catch_up(tmp_path, mongodb, database)
        orders.update_one({"_id": 0}, {"$set": {"n": 10}})
        client[database].command("collMod", "orders", changeStreamPreAndPostImages={"enabled": False})
        orders.update_one({"_id": 0}, {"$set": {"n": 20}})
        orders.update_one({"_id": 1}, {"$set": {"n": 21}})
        orders.update_one({"_id": 2}, {"$set": {"n": 22}})
        orders.delete_one({"_id": 2})
        orders.replace_one({"_id": 3}, {"n": 23})
    # As where the stream was opened before they ended.
    monkeypatch.setattr("raycdc.connectors.mongodb.stream.raw_stream.keep_images", lambda *_: True)
    catch_up(tmp_path, mongodb, database)
    rows = require_collection_equal(tmp_path, mongodb, database)
    assert {row["_id"]: row["n"] for row in rows if row["_op"] == "+U"} == {0: 20, 1: 21, 3: 23}


def test_a_document_whose_key_gets_another_type_stays_one(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    """A replacement may write its equal key in another type, and nothing tells which one was there before."""
    with mongodb.client() as client:
        orders = client[database].orders
        orders.insert_many([{"_id": 1, "n": 1}, {"_id": 2.0, "n": 1}, {"_id": "a", "n": 1}, {"_id": 0.5, "n": 1}])
        catch_up(tmp_path, mongodb, database)
        orders.replace_one({"_id": 1}, {"_id": 1.0, "n": 2})
        orders.delete_one({"_id": 2})
        orders.insert_one({"_id": bson.Decimal128("2.0"), "n": 3})
        orders.update_one({"_id": bson.Decimal128("0.50")}, {"$set": {"n": 4}})
    catch_up(tmp_path, mongodb, database)
    there = {row["_id"]: row["n"] for row in replayed_raw(changes(tmp_path))}
    assert there == {1: 2, 2: 3, "a": 1, 0.5: 4}


def test_a_quiet_collection_keeps_its_place_while_others_fill_the_log(
    emulated: MongoDbServer, database: str, tmp_path: Path
) -> None:
    with emulated.client() as client:
        client[database].orders.insert_one({"_id": 1, "n": 1})
        catch_up(tmp_path, emulated, database)
        client[database].others.insert_many([{"n": number} for number in range(50)])
        catch_up(tmp_path, emulated, database)
        emulated.truncate_log()
        client[database].orders.insert_one({"_id": 2, "n": 2})
    catch_up(tmp_path, emulated, database)
    assert [row["_id"] for row in require_collection_equal(tmp_path, emulated, database)] == [1, 2]
    assert [row["_op"] for row in changes(tmp_path)] == ["+I", "+I"]


def replayed_raw(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last row of each key that a target has, as the target spells it."""
    there: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = f"{type(row['_id'])} {row['_id']}"
        if row["_op"] in ("-U", "-D"):
            there.pop(key, None)
        else:
            there[key] = row
    return list(there.values())


def _secret(mongodb: MongoDb) -> Secret:
    return Secret(mongodb.uri)


def test_large_documents_are_counted_and_warned_of_once(
    mongodb: MongoDb, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("raycdc.connectors.mongodb.large_documents.LARGE_BYTES", 1000)
    kept: list[LargeDocuments] = []

    class Kept(LargeDocuments):
        def __init__(self) -> None:
            super().__init__()
            kept.append(self)

    monkeypatch.setattr("raycdc.connectors.mongodb.source.LargeDocuments", Kept)
    with mongodb.client() as client:
        orders = client[database].orders
        orders.insert_many([{"_id": number, "n": 0, "text": "x" * 400 * number} for number in range(6)])
        catch_up(tmp_path, mongodb, database)
        assert sum(large.counts().get(f"{database}.orders", 0) for large in kept) == 3
        orders.update_one({"_id": 5}, {"$set": {"n": 1}})
        orders.delete_one({"_id": 5})
        orders.insert_many([{"_id": number, "n": 0, "text": "x" * 300 * number} for number in range(6, 8)])
        catch_up(tmp_path, mongodb, database)
        assert sum(large.counts().get(f"{database}.orders", 0) for large in kept) == 5
    warned = [record.message for record in caplog.records if "documents of more than 8 MiB" in record.message]
    assert [text.split()[0] for text in warned] == [f"{database}.orders"] * 2


@pytest.mark.parametrize("schema", ["inferred", "document"])
def test_a_change_says_when_it_was_made_and_in_which_transaction(
    mongodb: MongoDb, database: str, tmp_path: Path, schema: str
) -> None:
    wanted = ("database", "collection", "op_time", "cluster_time", "wall_time", "txn_number")
    options: dict[str, Any] = {"schema": schema, "metadata": {name: f"m_{name}" for name in wanted}}
    with mongodb.client() as client:
        orders = client[database].orders
        orders.insert_one({"_id": 1, "n": 1, "m_txn_number": "its own"})
        catch_up(tmp_path, mongodb, database, **options)
        orders.update_one({"_id": 1}, {"$set": {"n": 2}})
        with client.start_session() as session:
            for number in (2, 3):
                with session.start_transaction():
                    orders.insert_one({"_id": number, "n": number}, session=session)
        orders.delete_one({"_id": 2})
        orders.update_one({"_id": 1}, {"$set": {"new": "a column"}})
    catch_up(tmp_path, mongodb, database, **options)
    first, *rows = changes(tmp_path)
    assert [row["m_database"] for row in (first, *rows)] == [database] * 6
    assert {row["m_collection"] for row in (first, *rows)} == {"orders"}
    assert [first[f"m_{name}"] for name in wanted[2:]] == [None] * 4
    assert [(row["_op"], row["_id"]) for row in rows] == [("+U", 1), ("+I", 2), ("+I", 3), ("-D", 2), ("+U", 1)]
    numbers = [row["m_txn_number"] for row in rows]
    assert numbers == [None, numbers[1], numbers[1] + 1, None, None]
    for row in rows:
        second, increment = map(int, row["_pos"].partition(":")[0].split("."))
        assert row["m_cluster_time"] == second << 32 | increment
        assert row["m_op_time"] == row["m_wall_time"]
        moment = datetime.fromisoformat(row["m_wall_time"]).replace(tzinfo=UTC)
        assert moment.timestamp() * 1000 == row["_ts_ms"]
    if schema == "inferred":
        assert rows[-1]["new"] == "a column"
        assert first["_rest"] == {"m_txn_number": "its own"}
    with pytest.raises(ConfigError, match="metadata"):
        catch_up(tmp_path, mongodb, database, schema=schema)


def test_patterns_in_several_databases_are_followed_in_one_stream(
    mongodb: MongoDb, database: str, tmp_path: Path
) -> None:
    with mongodb.fresh_database("chg") as other, mongodb.client() as client:
        patterns = {"collections": [rf"{database}\.order.*", rf"{other}\.user.*"]}
        client[database].orders.insert_one({"_id": 1, "n": 1})
        client[other].users.insert_one({"_id": 1, "n": 1})
        catch_up(tmp_path, mongodb, database, **patterns)
        client[database].orders.insert_one({"_id": 2, "n": 2})
        client[other].users.insert_one({"_id": 3, "n": 3})
        client[other].orders.insert_one({"_id": 4, "n": 4})
        client[other].moving.insert_one({"_id": 5, "n": 5})
        client[other].moving.rename("users_too")
        catch_up(tmp_path, mongodb, database, **patterns)
    assert [row["_id"] for row in changes(tmp_path)] == [1, 2]
    assert [row["_id"] for row in changes(tmp_path, "users_too") if row["_op"] != "T"] == [5]
    assert [row["_id"] for row in changes(tmp_path, "users") if row["_table"] == "users"] == [1, 3]
