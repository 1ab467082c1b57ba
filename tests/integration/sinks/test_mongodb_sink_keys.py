"""MongoDB's collections, and what may pass for the same key, change or collection and is another one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from bson import Binary

from raycdc.core.failpoints import FailpointError
from raycdc.errors import RaycdcError, SinkError
from raycdc.model import Column, LogicalType, TableSchema, TypeKind
from raycdc.model.evolution import DropColumnEvent, RenameColumnEvent
from raycdc.model.evolution.events import AlterColumnTypeEvent
from raycdc.sinks.mongodb import migration
from raycdc.sinks.mongodb.commits import CommitCollection, Operations, RecordChange
from raycdc.sinks.mongodb.sink import MongoDbSink
from raycdc.sinks.record import Intent
from tests.epochs.sink_world import HOME, World, new_world
from tests.integration.sinks.test_mongodb_sink import (
    INT,
    T,
    alone,
    change,
    keyed,
    put,
    raw,
    table_of,
    three_epochs,
    works,
)

pytestmark = pytest.mark.server

MOMENT, DAY = dt.datetime.fromisoformat("2024-02-29T12:00:00.123400"), dt.datetime.fromisoformat("2024-01-01")
DATETIME, TIME, DECIMAL = TypeKind.DATETIME, TypeKind.TIME, TypeKind.DECIMAL


@pytest.fixture(params=["mongodb-upsert", "mongodb-parts-upsert"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return alone(request, request.param, tmp_path)


def one_key(logical: LogicalType) -> TableSchema:
    return TableSchema((Column("id", logical, nullable=False), Column("v", INT)), ("id",))


def insert(world: World, *documents: dict[str, Any]) -> None:
    assert world.mongodb is not None
    with world.mongodb.client() as client:
        client.shop.t.insert_many(documents)


# -- migrations


@pytest.mark.parametrize("batch", [2, 5000])
@pytest.mark.parametrize("dropped", [True, False])
def test_a_migration_is_over_with_its_last_batch(
    world: World, dropped: bool, batch: int, fail_at: Callable[[str, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "BATCH_DOCUMENTS", batch)
    table_of(world).read([{"id": n, "a": n, "b": -n} for n in range(1, 4)])
    world.script.seal()
    if dropped:
        change(world, {"id": None, "a": "b"}, DropColumnEvent(T, "b"), RenameColumnEvent(T, "a", "b"))
    else:
        change(
            world,
            {"id": None, "a": "b", "b": "a"},
            RenameColumnEvent(T, "a", "x"),
            RenameColumnEvent(T, "b", "a"),
            RenameColumnEvent(T, "x", "b"),
        )
    table_of(world).insert({"id": 10, "b": 2, **({} if dropped else {"a": 1})})
    world.script.seal(final=True)
    fail_at("after_batch", 2 if batch == 2 else 1)
    with pytest.raises(FailpointError):
        world.loop(world.sink(schema_change="evolve")).run()
    fail_at("end_fenced", 1)
    world.script.generation = world.store.generations.next()
    loop = world.loop(world.sink(schema_change="evolve"))
    loop.recover()
    if world.store.sealed_epochs(loop.committed):
        loop.run()
    world.check()


def test_a_migration_reaches_documents_with_keys_of_every_type(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "BATCH_DOCUMENTS", 2)
    three_epochs(world)
    first, *_ = works(world, 1)
    sink = world.sink(schema_change="evolve")
    put(sink, first)
    others = [None, -1.5, 2, 3, "x", "y", {"k": 1}, {"k": 2}, b"bytes", True, DAY]
    insert(world, *({"_id": key, "a": 5} for key in others))
    assert isinstance(sink, MongoDbSink)
    kept = sink._commits.read(T)
    assert kept is not None
    held = replace(kept.held, intent=Intent("x", kept.held.columns, kept.held.key, kept.held.shape()))
    kept = sink._commits.write(None, T, kept, RecordChange(held, Operations(renamed=(("a", "c"),))), {})
    migration.migrate(sink._server, sink._commits, T, kept, {})
    assert [row for row in raw(world) if "a" in row or "c" not in row] == []
    assert len(raw(world)) == len(others) + 1


# -- keys


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        (LogicalType(DATETIME, fsp=4), LogicalType(DATETIME, fsp=6), MOMENT),
        (LogicalType(TIME, fsp=0), LogicalType(TIME, fsp=6), "12:00:00"),
        (LogicalType(DECIMAL, precision=36, scale=2), LogicalType(DECIMAL, precision=38, scale=4), Decimal("1.50")),
    ],
    ids=["moment", "time", "digits"],
)
@pytest.mark.parametrize("behavior", ["evolve", "lenient"])
def test_a_key_whose_text_gets_more_digits_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, old: LogicalType, new: LogicalType, value: Any, behavior: str
) -> None:
    world = alone(request, "mongodb-upsert", tmp_path, one_key(old))
    table = table_of(world)
    table.read([{"id": value, "v": 1}])
    world.script.seal()
    table.changes.append(AlterColumnTypeEvent(T, "id", new))
    table.schema = one_key(new)
    table.update((value,), v=2)
    world.script.seal(final=True)
    with pytest.raises(RaycdcError, match="the key column id is a text in MongoDB"):
        world.loop(world.sink(schema_change=behavior)).run()
    assert [row["v"] for row in raw(world)] == [1]


@pytest.mark.parametrize("kind", ["mongodb-changelog", "mongodb-parts-changelog"])
def test_two_pipelines_keep_their_changes_in_one_collection(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    world = alone(request, kind, tmp_path)
    for number in (1, 2):
        table_of(world).insert({"id": number, "a": 1, "b": 1})
    world.script.seal(final=True)
    world.loop().run()
    other = new_world(kind, tmp_path / "other", mongodb=world.mongodb)
    other.script.tables = {}
    other.script.table("shop.t", keyed("id", "a", "b"))
    table_of(other).insert({"id": 77, "a": 7, "b": 7})
    other.script.seal(final=True)
    other.loop(other.sink(on_existing="merge")).run()
    assert sorted(row["id"] for row in raw(world)) == [1, 2, 77]
    other.restart()
    assert sorted(row["id"] for row in raw(world)) == [1, 2, 77]


# -- collections that are there

TEXT = LogicalType(TypeKind.STRING)


@pytest.mark.parametrize(
    ("logical", "value", "there"),
    [
        (INT, 1, "1"),
        (TEXT, "1", 1),
        (LogicalType(DATETIME, fsp=6), DAY, "2024-01-01 00:00:00.0000"),
        (LogicalType(DECIMAL, precision=36, scale=2), Decimal("1.50"), "1.5"),
        (LogicalType(TypeKind.BINARY), b"x" * 16, Binary(b"x" * 16, 4)),
    ],
    ids=["number", "text", "moment", "digits", "subtype"],
)
def test_documents_with_keys_of_another_form_are_refused(
    request: pytest.FixtureRequest, tmp_path: Path, logical: LogicalType, value: Any, there: Any
) -> None:
    world = alone(request, "mongodb-upsert", tmp_path, one_key(logical))
    insert(world, {"_id": there, "id": there, "v": 0})
    table_of(world).insert({"id": value, "v": 1})
    world.script.seal(final=True)
    with pytest.raises(RaycdcError, match="has not the form of column id"):
        world.loop(world.sink(on_existing="merge")).run()
    assert len(raw(world)) == 1


@pytest.mark.parametrize(
    ("logical", "value"),
    [
        (TEXT, "1"),
        (LogicalType(DATETIME, fsp=6), DAY),
        (LogicalType(DATETIME, fsp=0), DAY),
        (LogicalType(TypeKind.TIME, fsp=2), "-12:00:00.25"),
        (LogicalType(DECIMAL, precision=36, scale=2), Decimal("-1.50")),
        (LogicalType(DECIMAL, precision=6, scale=2), Decimal("1.50")),
        (LogicalType(TypeKind.BINARY), b"x" * 16),
    ],
)
def test_documents_that_an_earlier_pipeline_wrote_are_taken(
    request: pytest.FixtureRequest, tmp_path: Path, logical: LogicalType, value: Any
) -> None:
    world = alone(request, "mongodb-upsert", tmp_path, one_key(logical))
    table_of(world).insert({"id": value, "v": 1})
    world.script.seal(final=True)
    world.loop().run()
    other = new_world("mongodb-upsert", tmp_path / "other", mongodb=world.mongodb)
    other.script.tables = {}
    other.script.table("shop.t", one_key(logical))
    table_of(other).insert({"id": value, "v": 2})
    other.script.seal(final=True)
    other.loop(other.sink(on_existing="merge")).run()
    assert [row["v"] for row in raw(world)] == [2]


@pytest.mark.parametrize(
    ("ident", "taken"),
    [({"b": 2, "a": 1}, True), ({"a": 1, "b": 2}, False), ({"b": 2, "a": 1, "c": 3}, False), (5, False)],
)
def test_a_key_of_several_columns_is_compared_as_a_whole(
    request: pytest.FixtureRequest, tmp_path: Path, ident: Any, taken: bool
) -> None:
    world = alone(request, "mongodb-upsert", tmp_path, keyed("a", "id", "b", key=("b", "a")))
    insert(world, {"_id": ident, "a": 1, "b": 2, "id": 0})
    table_of(world).insert({"a": 1, "id": 5, "b": 2})
    world.script.seal(final=True)
    loop = world.loop(world.sink(on_existing="merge"))
    if taken:
        loop.run()
    else:
        with pytest.raises(RaycdcError, match=r"is not its \{b, a\}, by which rows are found"):
            loop.run()
    assert [row["id"] for row in raw(world)] == [5 if taken else 0]


def test_a_collection_that_was_made_again_is_not_written_on(world: World) -> None:
    three_epochs(world)
    first, second, _ = works(world, 1, 2, 3)
    sink = world.sink()
    put(sink, first)
    assert world.mongodb is not None
    with world.mongodb.client() as client:
        client.shop.drop_collection("t")
        client.shop.create_collection("t")
        with pytest.raises(SinkError, match="is another collection than this pipeline wrote to"):
            put(sink, second)
        assert raw(world) == []
        # As the message says.
        client[HOME].raycdc_commit.update_one({"_id.target": "shop.t"}, {"$set": {"uuid": ""}})
        put(sink, second)
        assert [row["_id"] for row in raw(world)] == [2]
        client.shop.drop_collection("t")
        client.shop.create_collection("t")
    with pytest.raises(SinkError, match="is another collection"):
        world.sink().commit(second, world.sink().stage([second])[T])


@pytest.mark.parametrize("written", [1, 2, 3])
def test_a_replaced_collection_is_no_other_pipelines_any_more_whoever_dies(
    world: World, tmp_path: Path, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_epochs(world)
    world.loop().run()
    other = new_world(world.kind, tmp_path / "other", mongodb=world.mongodb)
    other.script.tables = {}
    other.script.table("shop.t", keyed("id", "a", "b"))
    three_epochs(other)
    write, left = CommitCollection.write, [written]

    def dies(self: CommitCollection, session: Any, *args: Any, **options: Any) -> Any:
        now = write(self, session, *args, **options)
        left[0] -= session is None
        if not left[0]:
            raise SinkError("died")
        return now

    monkeypatch.setattr(CommitCollection, "write", dies)
    with pytest.raises(RaycdcError, match="died"):
        other.loop(other.sink(on_existing="replace")).run()
    monkeypatch.setattr(CommitCollection, "write", write)
    assert world.sink().committed(T) is None
    other.script.generation = other.store.generations.next()
    loop = other.loop(other.sink(on_existing="replace"))
    loop.recover()
    if other.store.sealed_epochs(loop.committed):
        loop.run()
    other.check()
    assert world.mongodb is not None
    assert len(world.mongodb.find(HOME, "raycdc_commit", {"_id.target": "shop.t"})) == 1
