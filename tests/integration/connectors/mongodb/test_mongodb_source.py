"""Collections read once: every document exactly once whatever the cuts, restarts, changes meanwhile, and refusals."""

from __future__ import annotations

import logging
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import json_util
from pymongo.cursor import RawBatchCursor
from pymongo.errors import OperationFailure

from raycdc.config import config_from_dict
from raycdc.connectors.mongodb.enumerator_dialect import MongoDbEnumeratorDialect
from raycdc.connectors.mongodb.plugin import MongoDbChunkStrategy, MongoDbSourceConfig
from raycdc.connectors.mongodb.server.checks import check_source
from raycdc.connectors.mongodb.server.client import connect, probe
from raycdc.connectors.mongodb.snapshot.chunk_reader import MongoDbChunkReader
from raycdc.connectors.mongodb.snapshot.chunks import cut
from raycdc.connectors.mongodb.snapshot.keys import key_from_json, key_to_json, sort_key
from raycdc.connectors.mongodb.stream.resume_token import NoLogPosition
from raycdc.errors import ConfigError, DataError, SourceError, SourceUnavailableError
from raycdc.model import TableId
from raycdc.pipeline import Pipeline
from raycdc.sandbox.servers import MongoDb, MongoDbServer
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.split import OpenedAt
from raycdc.state.opaque import PlannerState

pytestmark = pytest.mark.server

#: Where a source without a log opens its chunks.
NOWHERE = OpenedAt(NoLogPosition("rs0").sealed())

#: Keys of many types: some are equal for Python and are not for BSON, some are near one another, most are of one type.
KEYS: list[Any] = [
    *range(3000),
    *(number + 0.5 for number in range(-200, 200)),
    *(bson.Int64(2**40 + number) for number in range(200)),
    *(f"key {number:05d}" for number in range(1500)),
    *("", "a", "A", "ä", "\U0001f600"),
    *(bson.ObjectId() for _ in range(800)),
    *(bson.Binary(uuid.uuid4().bytes, 4) for _ in range(200)),
    *({"shop": shop, "number": number} for shop in ("x", "y") for number in range(200)),
    *(bson.DatetimeMS(1_700_000_000_000 + 1000 * number) for number in range(400)),
    *(False, True, None),
]


@pytest.fixture
def database(mongodb: MongoDb) -> Iterator[str]:
    with mongodb.fresh_database("src") as name:
        yield name


def documents(keys: list[Any]) -> list[dict[str, Any]]:
    """Skewed: the first keys have large documents."""
    return [{"_id": key, "n": number, "text": "x" * (900 if number < 1000 else 20)} for number, key in enumerate(keys)]


def source(mongodb: MongoDb, database: str, **options: Any) -> MongoDbSourceConfig:
    plain = {"collections": [f"{database}.orders"], "startup": "snapshot", **options}
    return MongoDbSourceConfig.model_validate({"type": "mongodb", "uri": mongodb.uri, **plain})


def pipeline(tmp_path: Path, mongodb: MongoDb, database: str, **options: Any) -> Pipeline:
    configured = {"type": "mongodb", "uri": mongodb.uri, "collections": [f"{database}.orders"], "startup": "snapshot"}
    config = config_from_dict(
        {
            "pipeline": {"name": "shop", "state": str(tmp_path / "state"), "epoch_interval": "100ms"},
            "source": {**configured, **options},
            "sink": {"type": "jsonl", "path": str(tmp_path / "out"), "write": "changelog"},
            "readers": {"min": 1, "max": 2},
        }
    )
    return Pipeline.from_config(config)


def written(tmp_path: Path) -> list[dict[str, Any]]:
    """Rows of the target, with JSON read as MongoDB's."""
    files = sorted((tmp_path / "out").rglob("*.jsonl"))
    return [json_util.loads(line) for file in files for line in file.read_text().splitlines()]


def by_key(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(key_to_json(row["_id"]) for row in rows)


@pytest.mark.parametrize("strategy", ["sharded", "splitVector", "sample", "single"])
def test_every_strategy_reads_each_document_once_while_others_write(
    strategy: str, mongodb: MongoDb, database: str, tmp_path: Path
) -> None:
    name = f"{database}.orders"
    with mongodb.client() as client:
        client[database].orders.insert_many(documents(KEYS))
        if strategy == "sharded":
            if not mongodb.private:
                pytest.skip("needs a cluster whose config database a test may write")
            bounds = [bson.MinKey(), *KEYS[500:3000:500], "key 00700", bson.MaxKey()]
            client.config.collections.replace_one(
                {"_id": name}, {"_id": name, "key": {"_id": 1}, "dropped": False}, upsert=True
            )
            client.config.chunks.insert_many(
                {"ns": name, "min": {"_id": low}, "max": {"_id": high}} for low, high in pairwise(bounds)
            )
    config = source(mongodb, database, snapshot={"strategy": strategy, "chunk_size": "64KiB"})
    with connect(config.uri) as client:
        cuts = cut(client, probe(client), TableId(database, "orders"), config.snapshot)
    if cuts.strategy != strategy and not mongodb.private:
        pytest.skip("; ".join(cuts.passed_over))
    assert cuts.strategy == strategy
    assert (len(cuts.bounds) == 0) if strategy == "single" else (len(cuts.bounds) > 4)
    stop = threading.Event()

    def write() -> None:
        with mongodb.client() as client:
            number = 0
            while not stop.is_set():
                number += 1
                client[database].orders.update_one({"_id": number % 3000}, {"$set": {"n": -number}})
                client[database].orders.insert_one({"_id": f"new {number}", "n": number})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        snapshot = {"strategy": strategy, "chunk_size": "64KiB"}
        pipeline(tmp_path, mongodb, database, snapshot=snapshot).run(local=True)
    finally:
        stop.set()
        writer.join()
    rows = written(tmp_path)
    assert set(by_key(rows).values()) == {1}
    old = [row for row in rows if not (isinstance(row["_id"], str) and row["_id"].startswith("new "))]
    assert by_key(old) == by_key([{"_id": key} for key in KEYS])


def test_bounds_are_in_the_order_of_the_server(mongodb: MongoDb, database: str) -> None:
    with mongodb.client() as client:
        client[database].orders.insert_many(documents(KEYS))
        codec: bson.CodecOptions[dict[str, Any]] = bson.CodecOptions(
            datetime_conversion=bson.codec_options.DatetimeConversion.DATETIME_MS
        )
        orders = client[database].get_collection("orders", codec_options=codec)
        theirs = [document["_id"] for document in orders.find({}, {"_id": 1}).sort("_id", 1)]
    ours = sorted(theirs, key=sort_key)
    assert [key_to_json(key) for key in ours] == [key_to_json(key) for key in theirs]


def test_a_key_written_to_state_is_read_back_as_the_same() -> None:
    for key in [*KEYS, 1, 1.0, bson.Int64(1), bson.Decimal128("1.0"), bson.MinKey(), {"a": {"b": [1, 2.0]}}, -0.0]:
        back = key_from_json(key_to_json(key))
        assert bson.encode({"_id": back}) == bson.encode({"_id": key})
        assert sort_key(back) == sort_key(key)


def test_a_strategy_that_does_not_do_falls_back_and_says_why(
    mongodb: MongoDb, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    if not isinstance(mongodb, MongoDbServer):
        pytest.skip("makes a server refuse a command")
    with mongodb.client() as client:
        client[database].orders.insert_many(documents(KEYS))
    config = source(mongodb, database, snapshot={"strategy": "auto", "chunk_size": "64KiB"})
    caplog.set_level(logging.INFO, "raycdc.connectors.mongodb.snapshot.chunks")
    with connect(config.uri) as client:
        info = probe(client)
        mongodb.fail(["splitVector"], times=-1, errorCode=13)
        try:
            cuts = cut(client, info, TableId(database, "orders"), config.snapshot)
            results, tables = check_source(client, info, config)
        finally:
            mongodb.unfail()
    assert (cuts.strategy, tables) == (MongoDbChunkStrategy.SAMPLE, [TableId(database, "orders")])
    assert cuts.passed_over == (
        "sharded: the server is no mongos of a cluster",
        "splitVector: the account lacks the action splitVector on the collection (role clusterManager)",
    )
    assert all(reason.split(": ")[1] in caplog.text for reason in cuts.passed_over)
    warned = [result.text for result in results if not result.ok]
    assert warned == [f"{database}.orders is not cut by {cuts.passed_over[1]}."]
    assert not any(result.required for result in results if not result.ok)


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (
            {"shop": 1, "_id": 1},
            "{shop: 1, _id: 1}, and there is no index that begins with it and has all documents in order",
        ),
        ({"_id": "hashed"}, "{_id: hashed}, and documents cannot be read in the order of hashes"),
    ],
)
def test_a_shard_key_that_may_change_and_has_no_index_cuts_nothing(
    key: dict[str, Any], told: str, mongodb: MongoDb, database: str
) -> None:
    if not mongodb.private:
        pytest.skip("writes to the config database")
    with mongodb.client() as client:
        client[database].orders.insert_many(documents(KEYS))
        client.config.collections.insert_one({"_id": f"{database}.orders", "key": key})
    config = source(mongodb, database, snapshot={"strategy": "sharded", "chunk_size": "64KiB"})
    with connect(config.uri) as client:
        cuts = cut(client, probe(client), TableId(database, "orders"), config.snapshot)
    assert cuts.strategy is MongoDbChunkStrategy.SPLIT_VECTOR
    assert cuts.passed_over == (f"sharded: its shard key is {told}",)


def test_a_run_that_was_interrupted_goes_on_where_its_last_epoch_ended(
    mongodb: MongoDb, database: str, tmp_path: Path
) -> None:
    with mongodb.client() as client:
        client[database].orders.insert_many(documents(KEYS))
    snapshot = {"strategy": "splitVector", "chunk_size": "32KiB"}
    found: list[str] = []
    ends = []
    for most in (1, 2, 1000):
        stopping = pipeline(tmp_path, mongodb, database, snapshot=snapshot)
        for number, epoch in enumerate(stopping.epochs()):
            for table in epoch.tables:
                found += [key for batch in epoch.batches(table) for key in batch.column("_id").to_pylist()]
            epoch.ack()
            if number + 1 == most:
                break
        ends.append(len(found))
    assert ends[0] < ends[1] < ends[2], "a run read all that there is before it was interrupted"
    assert len(found) == len(set(found)) == len(KEYS)


def test_a_server_that_is_away_for_a_moment_is_waited_for(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    if not isinstance(mongodb, MongoDbServer):
        pytest.skip("makes a server close connections")
    with mongodb.client() as client:
        client[database].orders.insert_many(documents(KEYS))
    # The driver itself tries a read twice.
    mongodb.fail(["find"], times=3, closeConnection=True)
    try:
        pipeline(tmp_path, mongodb, database, snapshot={"strategy": "splitVector", "chunk_size": "64KiB"}).run(
            local=True
        )
    finally:
        mongodb.unfail()
    assert by_key(written(tmp_path)) == by_key([{"_id": key} for key in KEYS])


@contextmanager
def first_chunk(config: MongoDbSourceConfig) -> Iterator[tuple[MongoDbChunkReader, Any, SchemaDocument]]:
    dialect = MongoDbEnumeratorDialect(config)
    (plan,) = dialect.start_point().tables
    chunk = dialect.plan(plan.document, plan.table, PlannerState.from_json({"key": "_id"}), 0).splits[0]
    reader = MongoDbChunkReader(connect(config.uri))
    try:
        yield reader, chunk, plan.document
    finally:
        reader.close()


@pytest.mark.parametrize("what", ["dropped or renamed", "created again"])
def test_a_collection_that_is_another_one_by_now_ends_the_run(what: str, mongodb: MongoDb, database: str) -> None:
    """An empty answer would be an empty target, and a chunk of a new collection a mixture of two."""
    with mongodb.client() as client:
        client[database].orders.insert_one({"_id": 1})
        with first_chunk(source(mongodb, database)) as (reader, chunk, document):
            assert [batch.num_rows for batch in reader.read(chunk, opened_at=NOWHERE, document=document)] == [1]
            client[database].orders.drop()
            if what == "created again":
                client[database].orders.insert_one({"_id": 1})
            with pytest.raises(SourceError, match=what):
                list(reader.read(chunk, opened_at=NOWHERE, document=document))


def test_an_inferred_collection_loses_nothing_that_its_sample_did_not_show(
    mongodb: MongoDb, database: str, tmp_path: Path
) -> None:
    late = {"_id": 7, "n": "text", "new": {"a": [1.5]}}
    with mongodb.client() as client:
        client[database].orders.insert_many({"_id": number, "n": number, "f": 0.5} for number in range(5))
        config = source(mongodb, database)
        with first_chunk(config) as (reader, chunk, document):
            client[database].orders.insert_one(dict(late))
            (batch,) = reader.read(chunk, opened_at=NOWHERE, document=document)
    rows = batch.to_pylist()
    assert [row["n"] for row in rows] == [0, 1, 2, 3, 4, None]
    assert json_util.loads(rows[-1]["_rest"]) == {"n": "text", "new": {"a": [1.5]}}
    assert {row["_rest"] for row in rows[:-1]} == {None}


def test_a_value_that_does_not_fit_a_declared_column_ends_the_run_by_name(
    mongodb: MongoDb, database: str, tmp_path: Path
) -> None:
    with mongodb.client() as client:
        client[database].orders.insert_many([{"_id": 1, "n": 1}, {"_id": 2, "n": "two"}])
    columns = {f"{database}.orders": {"_id": "long", "n": "int"}}
    with pytest.raises(DataError, match=r"a document: n, a column of type int, is of type string"):
        pipeline(tmp_path, mongodb, database, columns=columns).run(local=True)
    assert written(tmp_path) == []
    # From the beginning: whether the first run's state has the collection already is a matter of moments.
    again = tmp_path / "again"
    pipeline(again, mongodb, database, columns=columns, on_type_mismatch="rest").run(local=True)
    rows = [(row["_id"], row["n"], row["_rest"]) for row in written(again)]
    assert rows == [(1, 1, None), (2, None, {"n": "two"})]


def test_a_snapshot_is_finished_as_it_was_begun(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    with mongodb.client() as client:
        client[database].orders.insert_many(documents(KEYS))
    snapshot = {"strategy": "splitVector", "chunk_size": "32KiB"}
    for epoch in pipeline(tmp_path, mongodb, database, snapshot=snapshot).epochs():
        epoch.ack()
        break
    other = pipeline(tmp_path, mongodb, database, snapshot=snapshot, schema="document")
    with pytest.raises(ConfigError, match=r'source\.schema\.mode is "document", and was "inferred".*resnapshot'):
        list(other.epochs())


def test_an_empty_collection_has_an_empty_target(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    with mongodb.client() as client:
        client[database].create_collection("orders")
    pipeline(tmp_path, mongodb, database).run(local=True)
    assert written(tmp_path) == []


def test_what_cannot_be_read_is_refused_before_anything_starts(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=rf"there is no collection {database}\.orders"):
        pipeline(tmp_path, mongodb, database).run(local=True)
    away = source(mongodb, database, uri="mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=200")
    with connect(away.uri) as client, pytest.raises(SourceUnavailableError, match=r"127\.0\.0\.1:1"):
        probe(client)


def test_collections_of_the_same_columns_are_told_apart(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    with mongodb.client() as client:
        client[database].orders.insert_one({"_id": 1, "n": 1})
        client[database].returns.insert_one({"_id": 2, "n": 2})
    both = [f"{database}.orders", f"{database}.returns"]
    pipeline(tmp_path, mongodb, database, collections=both).run(local=True)
    assert sorted(row["_id"] for row in written(tmp_path)) == [1, 2]


def test_a_document_that_goes_and_comes_again_is_read_once(
    mongodb: MongoDb, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hinted: list[Any] = []
    hint = RawBatchCursor.hint

    def noted(self: Any, index: Any) -> Any:
        hinted.append(index)
        return hint(self, index)

    monkeypatch.setattr(RawBatchCursor, "hint", noted)
    with mongodb.client() as client:
        client[database].orders.insert_many({"_id": number} for number in range(6))
    # What a scan gives twice an emulation cannot show; an index gives each key once.
    with first_chunk(source(mongodb, database, snapshot="single")) as (reader, chunk, document):
        rows = [row for batch in reader.read(chunk, opened_at=NOWHERE, document=document) for row in batch.to_pylist()]
    assert [row["_id"] for row in rows] == list(range(6))
    assert hinted == [[("_id", 1)]]


def test_a_collection_with_a_collation_is_one_chunk(mongodb: MongoDb, database: str) -> None:
    with mongodb.client() as client:
        try:
            client[database].create_collection("orders", collation={"locale": "en", "strength": 2})
        except OperationFailure:
            pytest.skip("the emulation knows no collations")
        client[database].orders.insert_many(
            {"_id": f"{letter}{number}", "text": "x" * 3000} for number in range(300) for letter in "aBcD"
        )
    for strategy in ("splitVector", "sample", "auto"):
        config = source(mongodb, database, snapshot={"strategy": strategy, "chunk_size": "1MiB"})
        with connect(config.uri) as client:
            cuts = cut(client, probe(client), TableId(database, "orders"), config.snapshot)
        assert (cuts.bounds, cuts.strategy) == ((), MongoDbChunkStrategy.SINGLE)
        assert "has a collation" in cuts.passed_over[0]


@pytest.mark.parametrize(
    ("source_options", "column"), [({}, "_rest"), ({"schema": "document"}, "document")], ids=["inferred", "document"]
)
def test_a_masked_field_stands_in_the_clear_nowhere(
    mongodb: MongoDb, database: str, tmp_path: Path, source_options: dict[str, Any], column: str
) -> None:
    with mongodb.client() as client:
        client[database].orders.insert_many([{"_id": 1, "email": "a@b"}, {"_id": 2, "email": ["other@type"]}])

    def masked(*columns: str) -> Pipeline:
        source = {"type": "mongodb", "uri": mongodb.uri, "collections": [f"{database}.orders"], "startup": "snapshot"}
        return Pipeline.from_config(
            config_from_dict(
                {
                    "pipeline": {"name": "shop", "state": str(tmp_path / "state")},
                    "source": {**source, **source_options},
                    "mask": [{"columns": columns_, "method": "drop"} for columns_ in columns],
                    "sink": {"type": "jsonl", "path": str(tmp_path / "out"), "write": "changelog"},
                }
            )
        )

    for named in (f"{database}.orders.email", rf"{database}\.orders\.(email|phone)"):
        with pytest.raises(
            ConfigError, match=rf"email of {database}\.orders would be masked as a column only.*column {column}\."
        ):
            masked(named).run(local=True)
        assert not (tmp_path / "out").exists()
    # What documents are sharded by is in every position of the stream.
    with mongodb.client() as client:
        client.config.collections.insert_one(
            {"_id": f"{database}.orders", "key": {"region": 1, "email.x": 1, "_id": 1}}
        )
    with pytest.raises(ConfigError, match=rf"mask: email of {database}\.orders belongs to the shard key"):
        masked(f"{database}.orders.email", f"{database}.orders.{column}").run(local=True)
    with mongodb.client() as client:
        client.config.collections.delete_one({"_id": f"{database}.orders"})
    masked(f"{database}.orders.email", f"{database}.orders.{column}").run(local=True)
    assert "@" not in "".join(path.read_text() for path in (tmp_path / "out").rglob("*.jsonl"))
