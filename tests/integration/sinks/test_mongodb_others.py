"""Other people at a MongoDB target, beside the pipeline: their indexes, validators and documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pymongo.errors import ServerSelectionTimeoutError

from raycdc.clients.mongodb import SELECTION_TIMEOUT_MS
from raycdc.delivery.targets.parked_targets import ParkingPolicy, Parks
from raycdc.errors import KeyRefusedError, SinkUnavailableError, TargetExistsError
from raycdc.model import Column, TableId, TableSchema
from raycdc.model.evolution import (
    AddColumnEvent,
    CreateTableEvent,
    DropColumnEvent,
    RenameColumnEvent,
    TruncateTableEvent,
)
from raycdc.sinks.mongodb import migration
from raycdc.sinks.mongodb.commits import CommitCollection
from raycdc.sinks.mongodb.server import Server
from tests.integration.sinks.others_story import INT, OthersStory

pytestmark = pytest.mark.server

#: A key that no other text has.
SECRET = 918273645
T = TableId("shop", "t")
INT_COLUMN = Column("c", INT)
KINDS = pytest.mark.parametrize("kind", ["mongodb-upsert", "mongodb-parts-upsert"])


class OthersCollection(OthersStory):
    """On a collection."""

    def collection(self, do: Any) -> Any:
        assert self.world.mongodb is not None
        with self.world.mongodb.client() as client:
            return do(client["shop"]["t"])

    def ids(self) -> list[int]:
        return sorted(document["_id"] for document in self.collection(lambda found: list(found.find())))


@KINDS
def test_unique_values_that_documents_exchange_within_an_epoch_arrive(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    story = OthersCollection(request, kind, tmp_path)
    story.seal((1, 1, 1), (2, 2, 2), (3, 3, 3))
    story.run()
    story.collection(lambda found: found.create_index("b", unique=True))
    story.exchange_values()
    story.run()
    story.world.check()


@KINDS
def test_fields_of_others_are_never_taken_out(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    story = OthersCollection(request, kind, tmp_path)
    story.collection(lambda found: found.insert_many([{"_id": n, "id": n, "b": n, "theirs": n} for n in (1, 2)]))
    story.seal((1, 1, 1), (2, 2, 2))
    story.run(on_existing="merge")
    story.collection(lambda found: found.create_index("b", unique=True, name="theirs"))
    story.table.update((1,), b=9)
    story.table.update((2,), b=1)
    story.table.update((1,), b=2)
    story.seal()
    with pytest.raises(KeyRefusedError):
        story.run()
    theirs = story.collection(lambda found: {one["_id"]: one["theirs"] for one in found.find()})
    assert theirs == {1: 1, 2: 2}


@KINDS
def test_emptying_the_source_spares_the_documents_of_others(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    story = OthersCollection(request, kind, tmp_path)
    story.collection(lambda found: found.insert_one({"_id": 100, "id": 100, "a": 1, "b": 1}))
    story.seal((1, 1, 1))
    story.run(on_existing="merge")
    story.table.truncate()
    story.seal((2, 2, 2))
    with pytest.raises(TargetExistsError, match="may have rows of others"):
        story.run(on_existing="merge")
    assert story.ids() == [1, 100]
    story.run(on_existing="replace")
    story.world.check()
    story.table.truncate()
    story.seal((3, 3, 3))
    story.run()
    story.world.check()


def changed(
    story: OthersCollection, names: Mapping[str, str | None], *events: Any, incarnation: int | None = None
) -> None:
    """An epoch with `events`, after which the columns `names` have these names (None: the column is new)."""
    table = story.table
    table.changes += events
    columns = {column.name: column for column in table.schema.columns}
    table.schema = TableSchema(
        tuple(replace(columns.get(old or "", INT_COLUMN), name=new) for new, old in names.items()), ("id",)
    )
    table.rows = {key: {new: row[old] if old else 7 for new, old in names.items()} for key, row in table.rows.items()}
    table.insert({"id": 3, **{name: 3 for name in names if name != "id"}})
    story.world.script.seal(final=True, incarnations={} if incarnation is None else {"shop.t": incarnation})


THEIRS: list[dict[str, Any]] = [
    {"_id": 1, "id": 1, "note": "on a row of ours"},
    {"_id": 100, "id": 100, "a": "theirs", "b": "theirs"},
]
#: Each change: the events, the names of columns after it with those before it, and a document of ours.
CHANGES: dict[str, tuple[str, tuple[Any, ...], dict[str, str | None], dict[str, Any]]] = {
    "a dropped column": ("evolve", (DropColumnEvent(T, "b"),), {"id": "id", "a": "a"}, {"a": 2}),
    "a renamed column": (
        "evolve",
        (RenameColumnEvent(T, "b", "c"),),
        {"id": "id", "a": "a", "c": "b"},
        {"a": 2, "c": 2},
    ),
    "a copied column": (
        "lenient",
        (RenameColumnEvent(T, "b", "c"),),
        {"id": "id", "a": "a", "c": "b"},
        {"a": 2, "b": 2, "c": 2},
    ),
    "a default": (
        "lenient",
        (AddColumnEvent(T, replace(INT_COLUMN, name="c", default="7")),),
        {"id": "id", "a": "a", "b": "b", "c": None},
        {"a": 2, "b": 2, "c": 7},
    ),
}


@KINDS
@pytest.mark.parametrize("batch", [5000, 1])
@pytest.mark.parametrize("name", CHANGES)
def test_a_schema_change_changes_no_document_of_others(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, name: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "BATCH_DOCUMENTS", batch)
    behavior, events, names, ours = CHANGES[name]
    story = OthersCollection(request, kind, tmp_path)
    story.collection(lambda found: found.insert_many(THEIRS))
    story.seal((1, 1, 1), (2, 2, 2), (4, 4, 4))
    story.run(on_existing="merge")
    story.table.delete((4,))
    story.seal()
    story.run(on_existing="merge")
    # The key is a document of others from now on.
    story.collection(lambda found: found.insert_one({"_id": 4, "id": 4, "b": "theirs"}))
    changed(story, names, *events)
    story.run(on_existing="merge", schema_change=behavior)
    found = {one.pop("_id"): one for one in story.collection(lambda found: list(found.find()))}
    assert found[100] == {"id": 100, "a": "theirs", "b": "theirs"}
    assert found[4] == {"id": 4, "b": "theirs"}
    assert found[2] == {"id": 2, **ours}
    assert found[1].pop("note") == "on a row of ours"
    assert found[1].keys() == found[2].keys()
    assert {"id", *names} <= found[3].keys()


@pytest.mark.parametrize("way_out", ["none", "replace", "rename"])
@pytest.mark.parametrize("adopted", [False, True])
@pytest.mark.parametrize("name", ["a renamed column", "a copied column", "a default", "a column"])
def test_a_field_of_others_with_the_name_of_a_new_column_parks_the_table_and_the_way_out_works(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, adopted: bool, way_out: str
) -> None:
    plain = (AddColumnEvent(T, replace(INT_COLUMN, name="c")),)
    names: dict[str, str | None] = {"id": "id", "a": "a", "b": "b", "c": None}
    behavior, events, names, _ = CHANGES.get(name, ("lenient", plain, names, {}))
    story = OthersCollection(request, "mongodb-upsert", tmp_path)
    script, parking = story.world.script, ParkingPolicy(Parks())
    if adopted:
        story.collection(lambda found: found.insert_one({"_id": 100, "id": 100}))
    story.table.insert({"id": 1, "a": 1, "b": 1})
    script.seal(final=True, incarnations={"shop.t": 0})
    story.run(on_existing="merge")
    story.collection(lambda found: found.update_one({"_id": 1}, {"$set": {"c": "theirs"}}))
    before = story.collection(lambda found: list(found.find()))
    changed(story, names, *events, incarnation=0)
    with pytest.raises(TargetExistsError, match="documents with a field c, which others wrote"):
        story.run(on_existing="merge", schema_change=behavior)
    if way_out == "none":
        assert story.collection(lambda found: list(found.find())) == before
        return
    story.world.restart(sink=story.world.sink(on_existing="merge", schema_change=behavior), parking=parking)
    record = story.world.store.last_commit()
    assert record is not None
    assert "Rename the collection" in record.parked["shop.t"].text
    assert story.collection(lambda found: list(found.find())) == before
    if way_out == "rename":
        story.collection(lambda found: found.rename("away"))
    story.table.truncate()
    story.table.changes += [TruncateTableEvent(T), CreateTableEvent(T, story.table.schema)]
    script.seal(incarnations={"shop.t": 3})
    story.table.read([dict.fromkeys(names, 5)])
    script.seal(final=True, incarnations={"shop.t": 3})
    on_existing = "replace" if way_out == "replace" else "merge"
    story.world.restart(sink=story.world.sink(on_existing=on_existing, schema_change=behavior), parking=parking)
    held = story.world.rows(story.table)
    assert [{column: row[column] for column in names} for row in held] == story.table.contents()
    record = story.world.store.last_commit()
    assert record is not None
    assert record.parked == {}


def test_a_schema_change_changes_no_change_of_another_pipeline(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    story = OthersCollection(request, "mongodb-changelog", tmp_path)
    theirs = {"_id": {"_seq": 1, "split": "", "by": "theirs"}, "b": 1, "c": "theirs"}
    story.seal((1, 1, 1))
    story.run()
    story.collection(lambda found: found.insert_one(dict(theirs)))
    changed(story, {"id": "id", "a": "a", "c": "b"}, RenameColumnEvent(T, "b", "c"))
    story.run(schema_change="evolve")
    documents = story.collection(lambda found: list(found.find()))
    assert [one for one in documents if one["_id"]["by"] == "theirs"] == [theirs]
    assert [("b" in one, one["c"]) for one in documents if one["_id"]["by"] != "theirs"] == [(False, 1), (False, 3)]


def test_a_schema_change_is_refused_if_rows_of_two_pipelines_cannot_be_told_apart(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = OthersCollection(request, "mongodb-upsert", tmp_path)
    story.seal((1, 1, 1))
    story.run()
    monkeypatch.setattr(CommitCollection, "has_other_writers", lambda *_: True)
    _, events, names, _ = CHANGES["a default"]
    changed(story, names, *events)
    with pytest.raises(TargetExistsError, match="another pipeline writes to it"):
        story.run()


def test_a_server_that_goes_away_in_a_transaction_is_told_at_once(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """And not when the driver, which asks again by itself, has lost its patience."""
    story = OthersCollection(request, "mongodb-upsert", tmp_path)
    assert story.world.mongodb is not None
    asked: list[None] = []

    def away(_: object) -> None:
        asked.append(None)
        cause = ServerSelectionTimeoutError("nobody answers")
        cause._add_error_label("TransientTransactionError")
        raise cause

    with pytest.raises(SinkUnavailableError, match="nobody answers"):
        Server(story.world.mongodb.uri, "any").transaction(away)
    assert len(asked) == 1


def test_how_long_a_server_is_looked_for_is_the_users_to_say() -> None:
    def timeout_s(options: str) -> float:
        server = Server(f"mongodb://127.0.0.1:1/{options}", "any")
        try:
            return float(server.client.options.server_selection_timeout)
        finally:
            server.close()

    assert timeout_s("") == SELECTION_TIMEOUT_MS / 1000
    assert timeout_s("?serverSelectionTimeoutMS=90") == 0.09
