"""What of a collection is read: filters and projections of the server, and limits that count exactly."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from raycdc.connectors.mongodb.plugin import MongoDbSourceConfig
from raycdc.connectors.mongodb.server.catalog import require_selectable
from raycdc.connectors.mongodb.server.checks import check_source
from raycdc.connectors.mongodb.server.client import Client, connect, probe
from raycdc.connectors.mongodb.snapshot.selection import CollectionSelection
from raycdc.connectors.mongodb.source import MongoDbSource
from raycdc.errors import ConfigError
from raycdc.model import TableId
from raycdc.sandbox.servers import MongoDb
from tests.integration.followed import changes, pipeline

pytestmark = pytest.mark.server

AT = datetime(2024, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


def read(tmp_path: Path, mongodb: MongoDb, database: str, **snapshot: Any) -> list[dict[str, Any]]:
    named = {option: {f"{database}.orders": value} for option, value in snapshot.items()}
    cuts = {"strategy": "splitVector", "chunk_size": "16KiB", **named}
    pipeline(tmp_path, mongodb, database, startup="snapshot", snapshot=cuts).run(local=True)
    return changes(tmp_path)


@pytest.fixture
def orders(mongodb: MongoDb, mongodb_database: str) -> str:
    keys: list[Any] = [*range(1500), *(f"key {number}" for number in range(500))]
    with mongodb.client() as client:
        client[mongodb_database].orders.insert_many(
            {"_id": key, "n": number, "at": AT, "text": "x" * 50, "address": {"city": "C", "street": "S"}}
            for number, key in enumerate(keys)
        )
    return mongodb_database


def test_a_filter_and_a_projection_are_the_servers(mongodb: MongoDb, orders: str, tmp_path: Path) -> None:
    wanted = json.dumps({"n": {"$gte": 1400}, "at": {"$date": "2024-01-02T03:04:05.678Z"}, "_id": {"$ne": "key 7"}})
    rows = read(tmp_path, mongodb, orders, filter=wanted, fields=["n", "address.city"])
    assert sorted(row["n"] for row in rows) == [number for number in range(1400, 2000) if number != 1507]
    assert {json.dumps(row["address"]) for row in rows} == {'{"city": "C"}'}
    assert {(name, row["_rest"]) for row in rows for name in row if not name.startswith("_")} == {
        ("n", None),
        ("address", None),
    }


def test_a_limit_counts_documents_of_the_collection_and_not_of_its_chunks(
    mongodb: MongoDb, orders: str, tmp_path: Path
) -> None:
    rows = read(tmp_path, mongodb, orders, filter='{"n": {"$gte": 100}}', limit=777)
    assert len({row["_id"] for row in rows}) == len(rows) == 777
    assert min(row["n"] for row in rows) >= 100


@pytest.mark.parametrize(
    ("text", "why"),
    [('{"n": {"$gt ": 1}}', "unknown operator"), ('{"at": {"$date": "yesterday"}}', "no Extended JSON")],
)
def test_a_filter_that_the_server_does_not_understand_is_refused_before_anything_starts(
    text: str, why: str, mongodb: MongoDb, orders: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"source\.snapshot\.filter.*{orders}\.orders.*{why}"):
        read(tmp_path, mongodb, orders, filter=text)
    plain = {"type": "mongodb", "uri": mongodb.uri, "collections": [f"{orders}.orders"], "startup": "snapshot"}
    config = MongoDbSourceConfig.model_validate({**plain, "snapshot": {"filter": {f"{orders}.orders": text}}})
    with connect(config.uri) as client:
        results, _ = check_source(client, probe(client), config)
    (told,) = [result.text for result in results if not result.ok]
    assert why in told


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (
            {"snapshot": {"filter": {"d.c": '{"a": 1}'}}},
            r'snapshot\.filter is for startup = "snapshot".*\[\[transform\]\]',
        ),
        ({"startup": "snapshot", "snapshot": {"filter": {"d.c": "a = 1"}}}, "d.c: 'a = 1' is no JSON"),
        ({"startup": "snapshot", "snapshot": {"filter": {"d.c": '{"$or": [{"$where": "1"}]}'}}}, r"\$where"),
        ({"startup": "snapshot", "snapshot": {"fields": {"d.c": ["a", "a.b"]}}}, "'a.b' is a part of 'a'"),
        ({"startup": "snapshot", "snapshot": {"fields": {"d.c": ["_id.a"]}}}, "'_id.a' is a part of the key"),
        (
            {"startup": "snapshot", "snapshot": {"filter": {"d.c": '{"n": {"$gt": 1}, "n": {"$lt": 5}}'}}},
            'd.c: .* has n twice in one document.*"\\$and"',
        ),
        ({"startup": "snapshot", "snapshot": {"limit": {"d.c": 0}}}, "a limit is 1 or more"),
        ({"startup": "snapshot", "snapshot": {"limit": {"d.x": 1}}}, "d.x is not one of the captured collections"),
        (
            {
                "startup": "snapshot",
                "snapshot": {"fields": {"d.c": ["a"]}},
                "columns": {"d.c": {"_id": "int", "b": "int"}},
            },
            "d.c has the column b, which is not read then",
        ),
    ],
)
def test_what_cannot_be_selected_is_told_with_the_configuration(source: dict[str, Any], why: str) -> None:
    plain = {"type": "mongodb", "uri": "mongodb://h/", "collections": ["d.c"]}
    with pytest.raises(ValueError, match=why):
        MongoDbSourceConfig.model_validate({**plain, **source})


@pytest.mark.parametrize("number", ['{"$numberDecimal": "x"}', "99999999999999999999", '{"$numberLong": "1e99"}'])
def test_a_number_that_no_type_has_is_refused_by_the_collections_name(number: str) -> None:
    with pytest.raises(ConfigError, match=r"source\.snapshot\.filter.*: d\.c: .* is no Extended JSON"):
        require_selectable(
            cast("Client", None), TableId("d", "c"), CollectionSelection(f'{{"n": {{"$gt": {number}}}}}')
        )


def test_a_state_is_finished_with_the_selection_that_it_was_begun_with(mongodb: MongoDb, orders: str) -> None:
    plain = {"type": "mongodb", "uri": mongodb.uri, "collections": [f"{orders}.orders"], "startup": "snapshot"}
    config = MongoDbSourceConfig.model_validate({**plain, "snapshot": {"limit": {f"{orders}.orders": 3}}})
    assert config.asked_of(TableId(orders, "orders")) == "mode inferred, relaxed JSON; limit 3"
    MongoDbSource(config).preflight(None)
