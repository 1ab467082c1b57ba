"""Collections whose changes become a full changelog: by images, or by the last row of each document."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from raycdc.cli.planning.check import check_config
from raycdc.cli.planning.plan import plan_config
from raycdc.config import config_from_dict
from raycdc.core.failpoints import FailpointError
from raycdc.errors import ConfigError, RaycdcError, SchemaError
from raycdc.pipeline import Pipeline
from raycdc.sandbox.servers import MongoDb
from raycdc.source.tables.parking import TableRequest
from raycdc.source.tables.table_requests import ask
from raycdc.state.store import CheckpointStore
from tests.integration.followed import (
    KEYS,
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
    with mongodb.fresh_database("full") as name:
        yield name


def follow(tmp_path: Path, mongodb: MongoDb, database: str, **options: Any) -> None:
    catch_up(tmp_path, mongodb, database, changelog="full", **options)


def told(tmp_path: Path) -> list[tuple[Any, ...]]:
    return [(row["_op"], row["_id"], row["n"]) for row in changes(tmp_path)]


def test_without_images_each_change_says_what_was_there(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    with mongodb.client() as client:
        orders = client[database].orders
        orders.insert_many([{"_id": 1, "n": 1}, {"_id": 2, "n": 2}])
        follow(tmp_path, mongodb, database)
        orders.update_one({"_id": 1}, {"$set": {"n": 10}})
        orders.insert_one({"_id": 3, "n": 3})
        orders.delete_one({"_id": 2})
        follow(tmp_path, mongodb, database)
        orders.replace_one({"_id": 3}, {"n": 3})
        orders.delete_one({"_id": 1})
        orders.insert_one({"_id": 1, "n": 7})
        follow(tmp_path, mongodb, database)
    assert told(tmp_path)[2:] == [
        ("-U", 1, 1),
        ("+U", 1, 10),
        ("+I", 3, 3),
        ("-D", 2, 2),
        ("-D", 1, 10),
        ("+I", 1, 7),
    ]
    require_true_changelog(require_collection_equal(tmp_path, mongodb, database))


def test_the_changelog_is_exact_whatever_is_written_and_wherever_runs_end(
    mongodb: MongoDb, database: str, tmp_path: Path, fail_at: Any
) -> None:
    chosen = random.Random(5)
    with mongodb.client() as client:
        client[database].orders.insert_many({"_id": key, "n": 0, "text": "x" * 100} for key in KEYS)

    def write(client: Any, number: int) -> None:
        key = {"_id": {"$eq": chosen.choice(KEYS)}}
        match number % 4:
            case 0:
                client[database].orders.delete_one(key)
            case 1:
                client[database].orders.replace_one(key, {"n": number}, upsert=True)
            case _:
                client[database].orders.update_one(key, {"$inc": {"n": 1}}, upsert=bool(number % 2))

    snapshot = {"strategy": "splitVector", "chunk_size": "16KiB"}
    with writing(write, mongodb, database):
        for point in ("after_last_commit", "after_known", "in_commit"):
            fail_at(point, 1)
            with pytest.raises(FailpointError):
                follow(tmp_path, mongodb, database, snapshot=snapshot)
    with mongodb.client() as client:
        # However slow the server was, every kind of change is there.
        for number in range(100):
            write(client, number)
    follow(tmp_path, mongodb, database, snapshot=snapshot)
    rows = require_collection_equal(tmp_path, mongodb, database)
    require_true_changelog(rows)
    assert {row["_op"] for row in rows} == {"+I", "-U", "+U", "-D"}


def test_a_collection_that_was_dropped_begins_anew(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    with mongodb.client() as client:
        orders = client[database].orders
        orders.insert_many([{"_id": 1, "n": 1}, {"_id": 2, "n": 2}])
        follow(tmp_path, mongodb, database)
        orders.update_one({"_id": 1}, {"$set": {"n": 3}})
        orders.drop()
        orders.insert_one({"_id": 1, "n": 5})
        follow(tmp_path, mongodb, database)
        orders.update_one({"_id": 1}, {"$set": {"n": 6}})
        follow(tmp_path, mongodb, database)
    rows = changes(tmp_path)
    there: dict[int, int] = {}
    for row in rows:
        match row["_op"]:
            case "T":
                there.clear()
            case "-U" | "-D":
                assert there.pop(row["_id"]) == row["n"]
            case _:
                assert row["_id"] not in there
                there[row["_id"]] = row["n"]
    assert there == {1: 6}


@pytest.mark.parametrize("what", ["drop", "rename to it"])
def test_one_of_merged_collections_that_is_to_be_emptied_waits_and_others_go_on(
    mongodb: MongoDb, database: str, tmp_path: Path, what: str
) -> None:
    pattern = rf"{database}\.shop_.*"
    parts: dict[str, Any] = {
        "pipeline": {"name": "merged", "state": str(tmp_path / "state"), "epoch_interval": "100ms"},
        "source": {"type": "mongodb", "uri": mongodb.uri, "collections": [pattern], "changelog": "full"},
        "route": [{"table": pattern, "to": "lake.orders"}],
        "sink": {"type": "delta", "path": str(tmp_path / "lake"), "write": "upsert"},
    }
    run = partial(Pipeline.from_config(config_from_dict(parts)).run, local=True, until="caught-up")

    def held() -> list[int]:
        table = DeltaTable(tmp_path / "lake" / "lake" / "orders").to_pyarrow_table()
        return sorted(table.column("n").to_pylist())

    with mongodb.client() as client:
        first, second = client[database].shop_1, client[database].shop_2
        first.insert_one({"_id": 1, "n": 1})
        second.insert_one({"_id": 2, "n": 2})
        run()
        client[database].shop_3.insert_one({"_id": 3, "n": 3})
        run()
        assert held() == [1, 2, 3]
        if what == "drop":
            first.drop()
            first.insert_one({"_id": 10, "n": 10})
        else:
            client[database].other.insert_one({"_id": 10, "n": 10})
            client[database].other.rename("shop_1", dropTarget=True)
        for number in (4, 5):
            second.insert_one({"_id": number, "n": number})
            with pytest.raises(SchemaError, match="cannot be told from those of"):
                run()
            assert held() == [1, 2, 3, *range(4, number + 1)]


def test_a_collection_that_is_read_anew_on_request_leaves_an_exact_changelog(
    mongodb: MongoDb, database: str, tmp_path: Path
) -> None:
    with mongodb.client() as client:
        orders = client[database].orders
        orders.insert_many({"_id": number, "n": number} for number in range(3))
        follow(tmp_path, mongodb, database)
        orders.update_many({}, {"$inc": {"n": 10}})
        ask(CheckpointStore(tmp_path / "state"), [f"{database}.orders"], TableRequest.RESNAPSHOT)
        orders.delete_one({"_id": 1})
        follow(tmp_path, mongodb, database)
        orders.update_one({"_id": 2}, {"$set": {"n": 7}})
        follow(tmp_path, mongodb, database)
    found = told(tmp_path)[3:]
    assert [op for op, *_ in found] == ["T", "+I", "+I", "-U", "+U"]
    assert set(found[1:3]) == {("+I", 0, 10), ("+I", 2, 12)}
    assert found[3:] == [("-U", 2, 12), ("+U", 2, 7)]


def test_columns_that_appear_are_known_too(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    with mongodb.client() as client:
        orders = client[database].orders
        orders.insert_many([{"_id": 1, "n": 1}, {"_id": 2, "n": 2}])
        follow(tmp_path, mongodb, database)
        orders.insert_one({"_id": 3, "n": 3, "more": "m"})
        follow(tmp_path, mongodb, database)
        orders.update_one({"_id": 3}, {"$set": {"more": "mm"}})
        orders.update_one({"_id": 2}, {"$set": {"more": "x"}})
        orders.delete_one({"_id": 1})
        follow(tmp_path, mongodb, database)
    rows = [(row["_op"], row["_id"], row["n"], row["more"]) for row in changes(tmp_path)[3:]]
    assert rows == [
        ("-U", 3, 3, "m"),
        ("+U", 3, 3, "mm"),
        ("-U", 2, 2, None),
        ("+U", 2, 2, "x"),
        ("-D", 1, 1, None),
    ]


def test_images_need_no_state_and_a_change_without_them_parks_its_collection(
    mongodb: MongoDb, database: str, tmp_path: Path
) -> None:
    with mongodb.client() as client:
        orders = client[database].create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
        orders.insert_one({"_id": 1, "n": 1})
        follow(tmp_path, mongodb, database)
        orders.update_one({"_id": 1}, {"$set": {"n": 2}})
        follow(tmp_path, mongodb, database)
        assert told(tmp_path) == [("+I", 1, 1), ("-U", 1, 1), ("+U", 1, 2)]
        assert not (tmp_path / "state" / "known").exists()
        client[database].command("collMod", "orders", changeStreamPreAndPostImages={"enabled": False})
        orders.update_one({"_id": 1}, {"$set": {"n": 3}})
    with pytest.raises(RaycdcError, match="came without the documents before and after it"):
        follow(tmp_path, mongodb, database)
    assert len(changes(tmp_path)) == 3


def test_check_and_plan_say_what_it_costs(
    mongodb: MongoDb, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "full.toml"
    config.write_text(f"""
[pipeline]
name = "full"
[source]
type = "mongodb"
uri = "{mongodb.uri}"
collections = ["{database}.orders"]
changelog = "full"
[sink]
type = "jsonl"
path = "{tmp_path}/out"
write = "changelog"
""")
    with mongodb.client() as client:
        client[database].orders.insert_one({"_id": 1})
        check_config(config, as_json=False)
        assert "one row per key" in capsys.readouterr().out
        plan_config(config, as_json=False)
        assert "one row per key" in capsys.readouterr().err
        client[database].command("collMod", "orders", changeStreamPreAndPostImages={"enabled": True})
        check_config(config, as_json=False)
        assert "no rows are kept" in capsys.readouterr().out


def test_what_a_pipeline_was_begun_with_holds(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    with mongodb.client() as client:
        client[database].orders.insert_one({"_id": 1, "n": 1})
    catch_up(tmp_path / "upsert", mongodb, database)
    with pytest.raises(ConfigError, match='begun with "upsert"'):
        follow(tmp_path / "upsert", mongodb, database)
    follow(tmp_path / "full", mongodb, database)
    with pytest.raises(ConfigError, match='begun with "full"'):
        catch_up(tmp_path / "full", mongodb, database)
    with pytest.raises(ConfigError, match="a sink of raycdc's"):
        next(pipeline(tmp_path / "own", mongodb, database, changelog="full").epochs())
