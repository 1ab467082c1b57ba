"""What happens to collections that are followed: dropped, renamed, new, of documents that do not fit, refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raycdc.connectors.mongodb.plugin import MongoDbSourceConfig
from raycdc.connectors.mongodb.server.checks import check_source
from raycdc.connectors.mongodb.server.client import connect, probe
from raycdc.errors import ConfigError, SchemaError, SourceError
from raycdc.sandbox.servers import MongoDb, MongoDbServer
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
)

pytestmark = pytest.mark.server


@pytest.fixture
def database(mongodb: MongoDb) -> Iterator[str]:
    with mongodb.fresh_database("chg") as name:
        yield name


def test_a_dropped_collection_empties_its_target_and_one_made_anew_is_read_again(
    mongodb: MongoDb, database: str, tmp_path: Path
) -> None:
    with mongodb.client() as client:
        orders = client[database].orders
        orders.insert_many([{"_id": 1, "n": 1}, {"_id": 2, "n": 2}])
        catch_up(tmp_path, mongodb, database)
        orders.insert_one({"_id": 3, "n": 3})
        orders.drop()
        catch_up(tmp_path, mongodb, database)
        assert [row["_op"] for row in changes(tmp_path)] == ["+I", "+I", "+I", "T"]
        orders.insert_one({"_id": 4, "n": 4})
        orders.drop()
        orders.insert_many([{"_id": 5, "n": 5}, {"_id": 6, "n": 6}])
        catch_up(tmp_path, mongodb, database)
        orders.update_one({"_id": 5}, {"$set": {"n": 50}})
    catch_up(tmp_path, mongodb, database)
    require_collection_equal(tmp_path, mongodb, database)


def test_a_drop_that_is_left_out_leaves_the_target_as_it_is(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    spared = {"exclude_schema_changes": ["drop_table"]}
    with mongodb.client() as client:
        client[database].orders.insert_one({"_id": 1, "n": 1})
        catch_up(tmp_path, mongodb, database, pipeline=spared)
        client[database].orders.insert_one({"_id": 2, "n": 2})
        client[database].orders.drop()
    catch_up(tmp_path, mongodb, database, pipeline=spared)
    assert [(row["_op"], row["_id"]) for row in changes(tmp_path)] == [("+I", 1), ("+I", 2)]


def test_a_collection_that_appears_is_followed(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    pattern = [rf"{database}\.(orders|later.*)"]
    with mongodb.client() as client:
        client[database].orders.insert_one({"_id": 1, "n": 1})
        client[database].other.insert_one({"_id": 1, "n": 1})
        catch_up(tmp_path, mongodb, database, collections=pattern)
        client[database].later.insert_many([{"_id": number, "n": number} for number in range(10)])
        client[database].other.insert_one({"_id": 2})
        catch_up(tmp_path, mongodb, database, collections=pattern)
        client[database].later.update_one({"_id": 1}, {"$set": {"n": -1}})
        client[database].orders.insert_one({"_id": 2, "n": 2})
    catch_up(tmp_path, mongodb, database, collections=pattern)
    require_collection_equal(tmp_path, mongodb, database)
    later = {key: row["n"] for key, row in replayed(changes(tmp_path, "later")).items()}
    assert later == at_server(mongodb, database, "later")
    assert changes(tmp_path, "other") == []


def test_a_collection_renamed_away_ends_and_one_renamed_to_a_captured_name_begins(
    mongodb: MongoDb, database: str, tmp_path: Path
) -> None:
    names = [f"{database}.orders", f"{database}.coming"]
    with mongodb.client() as client:
        client[database].orders.insert_one({"_id": 1, "n": 1})
        client[database].coming.insert_one({"_id": 9, "n": 9})
        catch_up(tmp_path, mongodb, database, collections=names)
        client[database].orders.rename("away")
        client[database].away.insert_one({"_id": 2, "n": 2})
        catch_up(tmp_path, mongodb, database, collections=names)
        assert [row["_op"] for row in changes(tmp_path)] == ["+I"]
        client[database].coming.drop()
        client[database].away.rename("orders")
        catch_up(tmp_path, mongodb, database, collections=names)
        client[database].orders.insert_one({"_id": 3, "n": 3})
    catch_up(tmp_path, mongodb, database, collections=names)
    require_collection_equal(tmp_path, mongodb, database)
    assert replayed(changes(tmp_path, "coming")) == {}


def test_check_says_what_will_be_followed(mongodb: MongoDb, database: str) -> None:
    with mongodb.client() as client:
        client[database].create_collection("orders", changeStreamPreAndPostImages={"enabled": True})
        client[database].create_collection("words", collation={"locale": "de"})
    names = [f"{database}.orders", f"{database}.words"]
    config = MongoDbSourceConfig.model_validate({"type": "mongodb", "uri": mongodb.uri, "collections": names})
    with connect(config.uri) as client:
        results, _ = check_source(client, probe(client), config)
    (refused,) = [result for result in results if not result.ok]
    assert refused.required
    assert refused.text.startswith(f"{database}.words has the collation 'de', by which its keys are ordered")
    assert f"Changes of {database} can be followed, with documents as they are now." in [r.text for r in results]


def test_what_cannot_be_followed_is_refused_by_name(mongodb: MongoDb, database: str, tmp_path: Path) -> None:
    with mongodb.client() as client:
        client[database].orders.insert_one({"_id": 1, "n": 1})
        pipeline(tmp_path, mongodb, database, startup="snapshot").run(local=True)
        with pytest.raises(ConfigError, match=r'was begun with source\.startup = "snapshot"'):
            catch_up(tmp_path, mongodb, database)
        if mongodb.private:
            client[database].create_collection("words", collation={"locale": "de"})
            with pytest.raises(SourceError, match="collation 'de'"):
                catch_up(tmp_path / "words", mongodb, database, collections=[f"{database}.words"])


@pytest.mark.parametrize("version", ["4.4", "5.0", "6.0"])
def test_older_servers_are_followed_with_what_they_have(version: str, tmp_path: Path) -> None:
    """Before 6.0 there are no images, and no event says that a collection was made."""
    with MongoDbServer(version=version) as mongodb, mongodb.client() as client:
        pattern = [r"shop\.(orders|later)"]
        client.shop.orders.insert_many([{"_id": number, "n": number} for number in range(20)])
        catch_up(tmp_path, mongodb, "shop", collections=pattern)
        client.shop.orders.update_many({"_id": {"$lt": 5}}, {"$set": {"n": -1}})
        client.shop.orders.delete_one({"_id": 7})
        client.shop.later.insert_many([{"_id": number, "n": number} for number in range(5)])
        catch_up(tmp_path, mongodb, "shop", collections=pattern)
        client.shop.later.update_one({"_id": 2}, {"$set": {"n": 22}})
        client.shop.orders.drop()
        client.shop.orders.insert_one({"_id": 100, "n": 100})
        catch_up(tmp_path, mongodb, "shop", collections=pattern)
        catch_up(tmp_path, mongodb, "shop", collections=pattern)
        require_collection_equal(tmp_path, mongodb, "shop")
        later = {key: row["n"] for key, row in replayed(changes(tmp_path, "later")).items()}
        assert later == at_server(mongodb, "shop", "later")


def test_a_document_that_does_not_fit_parks_its_collection_and_others_go_on(
    mongodb: MongoDb, database: str, tmp_path: Path
) -> None:
    names = [f"{database}.orders", f"{database}.users"]
    declared: dict[str, Any] = {
        "collections": names,
        "columns": {name: {"_id": "long", "n": "long"} for name in names},
    }
    with mongodb.client() as client:
        client[database].orders.insert_one({"_id": 1, "n": 1})
        client[database].users.insert_one({"_id": 1, "n": 1})
        catch_up(tmp_path, mongodb, database, **declared)
        client[database].orders.insert_many([{"_id": 2, "n": "two"}, {"_id": 3, "n": 3}])
        client[database].users.insert_one({"_id": 2, "n": 2})
        with pytest.raises(SchemaError, match="a document: n, a column of type long, is of type string"):
            catch_up(tmp_path, mongodb, database, **declared)
    assert [row["_id"] for row in changes(tmp_path)] == [1]
    assert [row["_id"] for row in changes(tmp_path, "users")] == [1, 2]
    # With another type for the column it is read again.
    declared["columns"][names[0]] = {"_id": "long", "n": "json"}
    job = pipeline(tmp_path, mongodb, database, **declared)
    store = CheckpointStore(job.config.pipeline.state, pipeline="shop")
    with store.lease():
        ask(store, names[:1], TableRequest.RESNAPSHOT)
    job.run(local=True, until="caught-up")
    require_collection_equal(tmp_path, mongodb, database)
