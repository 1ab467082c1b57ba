"""MongoDB's collections: two drivers at one, a migration that dies half-way, and what is refused, not guessed."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raycdc.config import Secret
from raycdc.core.failpoints import FailpointError
from raycdc.core.secrets import from_private
from raycdc.errors import FencedError, RaycdcError, SinkError, SinkUnavailableError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import AddColumnEvent, DropColumnEvent, RenameColumnEvent
from raycdc.model.evolution.events import AlterColumnTypeEvent
from raycdc.sandbox.servers import MongoDb
from raycdc.segments import StageTask, run_in_process
from raycdc.sinks.api import STEP_APPEND, SinkContext, TableCommit
from raycdc.sinks.mongodb import migration
from raycdc.sinks.mongodb.commits import CommitCollection, RecordChange
from raycdc.sinks.mongodb.plugin import MongoDbSinkConfig
from raycdc.sinks.mongodb.sink import MongoDbSink
from raycdc.sinks.mongodb.tasks import LoadDocuments, ServerAddress
from raycdc.testing.epochs import Row, ScriptedTable
from tests.epochs.sink_world import HOME, World, works_of, world_of

pytestmark = pytest.mark.server

INT = LogicalType(TypeKind.INT64)
T = TableId("shop", "t")


def keyed(*names: str, key: tuple[str, ...] = ("id",)) -> TableSchema:
    return TableSchema(tuple(Column(name, INT, nullable=name not in key) for name in names), key)


def alone(request: pytest.FixtureRequest, kind: str, root: Path, schema: TableSchema | None = None) -> World:
    """A world whose only table is ``shop.t`` with id, a and b."""
    world = world_of(request, kind, root)
    world.script.tables = {}
    world.script.table("shop.t", schema or keyed("id", "a", "b"))
    return world


@pytest.fixture(params=["mongodb-upsert", "mongodb-parts-upsert"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return alone(request, request.param, tmp_path)


@pytest.fixture
def parts(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return alone(request, "mongodb-parts-upsert", tmp_path)


def table_of(world: World) -> ScriptedTable:
    return world.script.table("shop.t")


def works(world: World, *epochs: int) -> list[TableCommit]:
    return [work for epoch in epochs for work in works_of(world.loop(), world.store.manifest(epoch))]


def put(sink: Any, work: TableCommit) -> None:
    if work.changes:
        sink.apply_schema(work)
    sink.commit(work, sink.stage([work])[work.target])


def raw(world: World) -> list[Row]:
    assert world.mongodb is not None
    return world.mongodb.find("shop", "t")


def three_epochs(world: World) -> None:
    for number in range(1, 4):
        table_of(world).insert({"id": number, "a": number, "b": number})
        if number == 3:
            table_of(world).update((1,), a=30)
        world.script.seal(final=number == 3)


def change(world: World, names: dict[str, str | None], *events: Any, added: tuple[Column, ...] = ()) -> None:
    """`events`, which keep the columns `names` under new names (None: as they are) and add `added`."""
    table = table_of(world)
    table.changes += events
    renamed = {old: new or old for old, new in names.items()}
    columns = [replace(c, name=renamed[c.name]) for c in table.schema.columns if c.name in renamed]
    table.schema = TableSchema((*columns, *added), table.schema.primary_key)
    table.rows = {
        key: {new: row[old] for old, new in renamed.items()} | {c.name: 7 for c in added}
        for key, row in table.rows.items()
    }


# -- two drivers


def test_a_driver_that_wakes_from_a_pause_changes_nothing(world: World) -> None:
    three_epochs(world)
    old = world.sink()
    first, second, _ = works(world, 1, 2, 3)
    put(old, first)
    staged = old.stage([second])[T]
    world.restart()
    done = raw(world)
    with pytest.raises(FencedError, match=r"shop\.t was written by a newer driver"):
        old.commit(second, staged)
    with pytest.raises(FencedError):
        old.tombstone(second)
    assert raw(world) == done
    world.check()


def test_a_task_that_outlives_its_round_changes_nothing(parts: World) -> None:
    three_epochs(parts)
    kept: list[StageTask[Any]] = []

    def run(tasks: Any) -> list[Any]:
        kept.extend(tasks)
        return run_in_process(tasks)

    parts.loop(parts.sink(run=run)).run()
    done = raw(parts)
    assert len(kept) == 3
    for task in kept:
        with pytest.raises(FencedError, match="for an epoch that is over"):
            run_in_process([task])
    assert raw(parts) == done
    parts.check()


def behind_the_next_look(monkeypatch: pytest.MonkeyPatch, *acts: Callable[[], object]) -> None:
    """Others act when a driver has read the record of a target, and not yet written it."""
    read = CommitCollection.read

    def late(self: CommitCollection, target: TableId) -> Any:
        found = read(self, target)
        monkeypatch.setattr(CommitCollection, "read", read)
        for act in acts:
            act()
        return found

    monkeypatch.setattr(CommitCollection, "read", late)


def test_two_drivers_of_one_generation_do_not_pass_each_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    three_epochs(world)
    one, other = world.sink(), world.sink()
    first, second, third = works(world, 1, 2, 3)
    put(one, first)
    behind_the_next_look(monkeypatch, lambda: put(other, second), lambda: put(other, third))
    with pytest.raises(FencedError, match="another driver wrote the record"):
        one.commit(second, one.stage([second])[T])
    assert [(row["_id"], row["a"]) for row in raw(world)] == [(1, 30), (2, 2), (3, 3)]


def test_a_last_commit_of_a_driver_that_was_replaced_does_not_end_its_successor(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was in its transaction when the successor read the record, and was let through."""
    three_epochs(world)
    old, new = world.sink(), world.sink()
    first, second, third = works(world, 1, 2, 3)
    put(old, first)
    second_again, third_again = replace(second, generation=2), replace(third, generation=2)
    staged = new.stage([second_again])[T]
    behind_the_next_look(monkeypatch, lambda: put(old, second))
    with pytest.raises(SinkUnavailableError, match="a driver that was replaced committed meanwhile"):
        new.commit(second_again, staged)
    new.commit(second_again, staged)
    put(new, third_again)
    with pytest.raises(FencedError):
        put(old, third)
    assert [(row["_id"], row["a"]) for row in raw(world)] == [(1, 30), (2, 2), (3, 3)]


def test_an_epoch_in_part_is_known_and_never_dropped(parts: World) -> None:
    three_epochs(parts)

    def broken(_: Any) -> Any:
        raise SinkError("the disk is full")

    first, *_ = works(parts, 1)
    sink = parts.sink(run=broken)
    sink.apply_schema(first)
    with pytest.raises(SinkError, match="disk is full"):
        sink.commit(first, sink.stage([first])[T])
    held = parts.sink().committed(T)
    assert held is not None
    assert (held.epoch, held.step) == (1, STEP_APPEND)
    with pytest.raises(SinkError, match="Start again; the epoch will be kept"):
        parts.sink().tombstone(first)
    parts.restart()
    parts.check()


def test_a_server_that_went_back_in_time_gets_nothing(world: World) -> None:
    three_epochs(world)
    sink = world.sink()
    first, second, third = works(world, 1, 2, 3)
    put(sink, first)
    put(sink, second)
    assert world.mongodb is not None
    with world.mongodb.client() as client:
        client[HOME].raycdc_commit.update_one({}, {"$set": {"epoch": 1}})
        client.shop.t.delete_one({"_id": 2})
    with pytest.raises(SinkError, match=r"shop\.t in .* held epoch 2 and now holds only epoch 1: the serv"):
        sink.commit(third, sink.stage([third])[T])
    assert [row["_id"] for row in raw(world)] == [1]


# -- migrations


@pytest.mark.parametrize("written", [0, 1, 2, 3])
def test_names_are_exchanged_once_whoever_dies(world: World, written: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "BATCH_DOCUMENTS", 4)
    table_of(world).read([{"id": n, "a": n, "b": -n} for n in range(10)])
    world.script.seal()
    extra = Column("extra", INT, default="7")
    change(
        world,
        {"id": None, "a": "b", "b": "a"},
        RenameColumnEvent(T, "a", "x"),
        RenameColumnEvent(T, "b", "a"),
        RenameColumnEvent(T, "x", "b"),
        AddColumnEvent(T, extra),
        added=(extra,),
    )
    table_of(world).insert({"id": 10, "a": 1, "b": 2, "extra": None})
    world.script.seal(final=True)
    dies_after(monkeypatch, written)
    with pytest.raises(RaycdcError, match="died"):
        world.loop(world.sink(schema_change="evolve")).run()
    monkeypatch.setattr(CommitCollection, "write", WRITE)
    world.script.generation = world.store.generations.next()
    loop = world.loop(world.sink(schema_change="evolve"))
    loop.recover()
    if world.store.sealed_epochs(loop.committed):
        loop.run()
    world.check()


WRITE = CommitCollection.write


def dies_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The driver ends after it wrote a migration's record so often: as it begins, and with each batch."""
    left, begun = [count], [False]

    def write(
        self: CommitCollection, session: Any, target: TableId, before: Any, record: RecordChange, positions: Any
    ) -> Any:
        now = WRITE(self, session, target, before, record, positions)
        begun[0] = begun[0] or bool(record.operations)
        if session is not None and begun[0]:
            left[0] -= 1
            if left[0] < 0:
                raise SinkError("died")
        return now

    monkeypatch.setattr(CommitCollection, "write", write)


def test_a_migration_of_an_epoch_that_is_dropped_is_finished_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "BATCH_DOCUMENTS", 4)
    table_of(world).read([{"id": n, "a": n, "b": -n} for n in range(10)])
    world.script.seal()
    change(world, {"id": None, "b": None}, DropColumnEvent(T, "a"))
    table_of(world).insert({"id": 10, "b": 2})
    world.script.seal(final=True)
    dies_after(monkeypatch, 2)
    with pytest.raises(RaycdcError, match="died"):
        world.loop(world.sink(schema_change="evolve")).run()
    assert len([row for row in raw(world) if "a" in row]) not in (0, 10)
    monkeypatch.setattr(CommitCollection, "write", WRITE)
    (work,) = works(world, 2)
    work = replace(work, generation=world.store.generations.next())
    world.sink(schema_change="evolve").tombstone(work)
    assert raw(world) == [{"_id": n, "id": n, "b": -n} for n in range(10)]


def test_a_default_fills_documents_and_an_added_column_leaves_them_alone(world: World) -> None:
    table_of(world).read([{"id": n, "a": n, "b": n} for n in range(3)])
    world.script.seal()
    c, d = Column("c", INT, default="7"), Column("d", INT)
    change(world, {"id": None, "a": None, "b": None}, AddColumnEvent(T, c), AddColumnEvent(T, d), added=(c, d))
    table_of(world).insert({"id": 9, "a": 9, "b": 9, "c": None, "d": 9})
    world.script.seal(final=True)
    world.loop().run()
    assert raw(world) == [
        *({"_id": n, "id": n, "a": n, "b": n, "c": 7} for n in range(3)),
        {"_id": 9, "id": 9, "a": 9, "b": 9, "c": None, "d": 9},
    ]


# -- documents


def test_a_key_of_several_columns_is_a_document(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    schema = keyed("a", "id", "b", key=("b", "a"))
    world = alone(request, "mongodb-upsert", tmp_path, schema)
    table = table_of(world)
    table.insert({"a": 1, "id": 5, "b": 2})
    table.insert({"a": 1, "id": 6, "b": 3})
    world.script.seal()
    table.update((2, 1), id=50)
    table.delete((3, 1))
    world.script.seal(final=True)
    world.loop().run()
    assert raw(world) == [{"_id": {"b": 2, "a": 1}, "a": 1, "id": 50, "b": 2}]


def test_a_key_column_called_like_the_documents_own(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    world = alone(request, "mongodb-upsert", tmp_path, keyed("_id", "a", key=("_id",)))
    table_of(world).insert({"_id": 1, "a": 2})
    world.script.seal(final=True)
    world.loop().run()
    assert raw(world) == [{"_id": 1, "a": 2}]


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.b", "contains '.'"), ("$a", "begins with '[$]'"), ("_id", "is that of a row's own key")],
)
def test_names_that_mean_something_else_to_mongodb_are_refused(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, text: str
) -> None:
    world = alone(request, "mongodb-upsert", tmp_path, keyed("id", name))
    table_of(world).insert({"id": 1, name: 2})
    world.script.seal(final=True)
    with pytest.raises(RaycdcError, match=text):
        world.loop().run()


def test_a_row_that_no_document_holds_is_named(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    text = LogicalType(TypeKind.STRING)
    schema = TableSchema((Column("id", INT, nullable=False), Column("a", text)), ("id",))
    world = alone(request, "mongodb-upsert", tmp_path, schema)
    table_of(world).insert({"id": 1, "a": "x" * (15 << 20)})
    world.script.seal()
    table_of(world).insert({"id": 41, "a": "x" * (16 << 20)})
    world.script.seal(final=True)
    with pytest.raises(RaycdcError, match=r"shop\.t: a row.* with its key in \(id\) makes a document of 167\d+ bytes"):
        world.loop().run()
    assert [row["_id"] for row in raw(world)] == [1]


def test_a_type_that_would_be_written_otherwise_is_refused(world: World) -> None:
    table_of(world).read([{"id": 1, "a": 1, "b": 1}])
    world.script.seal()
    wide = LogicalType(TypeKind.STRING)
    change(world, {"id": None, "a": None, "b": None})
    table = table_of(world)
    table.changes.append(AlterColumnTypeEvent(table.id, "a", wide))
    columns = [replace(c, type=wide) if c.name == "a" else c for c in table.schema.columns]
    table.schema = TableSchema(tuple(columns), ("id",))
    table.insert({"id": 2, "a": "x", "b": 1})
    world.script.seal(final=True)
    with pytest.raises(RaycdcError, match="column a is int64 in the target and string at the source"):
        world.loop().run()


# -- collections that are there


def test_documents_that_others_keep_fields_in_keep_them(world: World) -> None:
    assert world.mongodb is not None
    with world.mongodb.client() as client:
        client.shop.t.insert_many([{"_id": 1, "id": 1, "note": "kept"}, {"_id": 5, "id": 5}])
    three_epochs(world)
    with pytest.raises(RaycdcError, match="was not created by this pipeline"):
        world.loop().run()
    world.loop(world.sink(on_existing="merge")).run()
    assert raw(world)[0] == {"_id": 1, "id": 1, "note": "kept", "a": 30, "b": 1}
    assert [row["_id"] for row in raw(world)] == [1, 2, 3, 5]


def test_documents_of_other_keys_are_refused(world: World) -> None:
    assert world.mongodb is not None
    with world.mongodb.client() as client:
        client.shop.t.insert_many([{"_id": 1, "id": 1}, {"id": 5}])
    three_epochs(world)
    with pytest.raises(RaycdcError, match=r"has a document whose _id is not its id"):
        world.loop(world.sink(on_existing="merge")).run()


def test_a_replaced_collection_loses_documents_of_all_keys(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "BATCH_DOCUMENTS", 3)
    assert world.mongodb is not None
    with world.mongodb.client() as client:
        client.shop.t.insert_many([*({"_id": n} for n in range(8)), *({"_id": f"x{n}"} for n in range(8)), {}, {}])
    three_epochs(world)
    world.loop(world.sink(on_existing="replace")).run()
    world.check()


def test_an_epoch_written_in_part_by_hand_is_made_whole(parts: World, fail_at: Callable[[str, int], None]) -> None:
    table_of(parts).read([{"id": n, "a": n, "b": n} for n in range(30)])
    table_of(parts).update((3,), a=33)
    table_of(parts).delete((4,))
    parts.script.seal(final=True)
    fail_at("in_commit", 1)
    with pytest.raises(FailpointError):
        parts.loop().run()
    assert len(raw(parts)) == 29
    parts.restart()
    parts.check()


# -- the server


def test_a_transaction_that_the_server_undoes_is_tried_again(world: World) -> None:
    if world.mongodb is None or not world.mongodb.private:
        pytest.skip("only the emulation fails on demand")
    three_epochs(world)
    first, second, third = works(world, 1, 2, 3)
    sink = world.sink()
    put(sink, first)
    world.mongodb.fail(["update", "insert"], times=2, errorCode=112, errorLabels=["TransientTransactionError"])  # type: ignore[attr-defined]
    put(sink, second)
    put(sink, third)
    assert [(row["_id"], row["a"]) for row in raw(world)] == [(1, 30), (2, 2), (3, 3)]


def test_no_secret_is_in_an_error(mongodb: MongoDb) -> None:
    uri = mongodb.uri.replace("mongodb://", "mongodb://cdc:geh%40eim@").replace("27017", "1")
    sink = MongoDbSink(MongoDbSinkConfig(uri=Secret(uri)))
    with pytest.raises(SinkError) as refused:
        sink.open(SinkContext("raycdc:x:y", "upsert", run_in_process))
    text = repr(refused.value) + str(refused.value) + repr(sink) + repr(MongoDbSinkConfig(uri=Secret(uri)))
    assert "geh" not in text
    assert "sink.uri" in text


def test_tasks_are_told_where_an_address_with_secrets_is(
    parts: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "private").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "private"))
    assert parts.mongodb is not None
    uri = parts.mongodb.uri + "&appName=password-gehe1m"
    told: list[LoadDocuments] = []

    def run(tasks: Any) -> list[Any]:
        told.extend(tasks)
        return run_in_process(tasks)

    sink = MongoDbSink(MongoDbSinkConfig(uri=Secret(uri), record=HOME))
    sink.small_bytes_max = -1
    sink.open(SinkContext(parts.store.app_id, "upsert", run))
    three_epochs(parts)
    parts.loop(sink).run()
    parts.check()
    (held,) = (tmp_path / "private").glob("private-*")
    assert (held.stat().st_mode & 0o777, from_private(held.read_text())) == (0o600, uri)
    assert [task.address for task in told] == [ServerAddress("", str(held), HOME)] * 3
    assert b"gehe1m" not in pickle.dumps(told)
    sink.close()
    assert not held.exists()
    with pytest.raises(SinkError, match="The address of the sink cannot be read from"):
        run_in_process(told[:1])
