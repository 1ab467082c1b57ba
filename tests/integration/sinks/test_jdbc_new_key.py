"""A table that is made again with another primary key: its target in a database gets that key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raycdc.errors import SinkError
from raycdc.model import Column, LogicalType, TableSchema, TypeKind
from raycdc.model.evolution import CreateTableEvent, DropTableEvent
from raycdc.sandbox.servers import PostgresServer
from raycdc.sinks.api import TableCommit
from raycdc.sinks.jdbc.mysql_tables import MySqlTables
from raycdc.sinks.jdbc.sink import JdbcSink
from tests.epochs.sink_world import World, works_of, world_of

pytestmark = pytest.mark.server

INT, TEXT = LogicalType(TypeKind.INT64), LogicalType(TypeKind.STRING)
SHORT = LogicalType(TypeKind.STRING, native="varchar(20)")


def keyed(*key: str) -> TableSchema:
    types = {"id": INT, "name": SHORT, "note": TEXT}
    return TableSchema(tuple(Column(name, kind, nullable=name not in key) for name, kind in types.items()), key)


@pytest.fixture(params=["postgres-upsert", "mysql-upsert"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A row in the target, and beside it a sealed epoch in which the table is made again under the key (name)."""
    world = world_of(request, request.param, tmp_path)
    world.script.tables = {}
    table = world.script.table("shop.t", keyed("id"))
    table.insert({"id": 1, "name": "one", "note": None})
    world.script.seal()
    put(sink_of(world), work_of(world, 1))
    made_again(world, "name")
    for name in ("a", "b", "A"):
        table.insert({"id": None, "name": name, "note": "the same"})
    world.script.seal(final=True)
    return world


def made_again(world: World, *key: str) -> None:
    table = world.script.table("shop.t")
    table.schema = keyed(*key)
    table.rows = {}
    table.changes += [DropTableEvent(table.id), CreateTableEvent(table.id, table.schema)]


def sink_of(world: World, **options: Any) -> JdbcSink:
    made = world.sink(**options)
    assert isinstance(made, JdbcSink)
    return made


def work_of(world: World, epoch: int) -> TableCommit:
    (found,) = works_of(world.loop(), world.store.manifest(epoch))
    return found


def put(sink: JdbcSink, work: TableCommit) -> None:
    sink.apply_schema(work)
    sink.commit(work, sink.stage([work])[work.target])


def key_of(world: World) -> list[str]:
    """The primary key of the target as the server has it."""
    question = (
        "SELECT k.column_name AS name FROM information_schema.key_column_usage k "
        "JOIN information_schema.table_constraints c USING (table_schema, table_name, constraint_name) "
        "WHERE c.constraint_type = 'PRIMARY KEY' AND table_schema = 'shop' AND table_name = 't' "
        "ORDER BY k.ordinal_position"
    )
    if isinstance(world.server, PostgresServer):
        return [str(name) for (name,) in world.server.execute(question)]
    assert world.server is not None
    with world.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(question)
        return [str(name) for (name,) in cursor.fetchall()]


def test_its_rows_are_told_apart_by_the_new_key(world: World) -> None:
    assert key_of(world) == ["id"]
    world.restart()
    world.check()
    assert key_of(world) == ["name"]
    # And once more, to a key of both, whose columns take no NULL.
    made_again(world, "id", "name")
    world.script.table("shop.t").insert({"id": 1, "name": "x", "note": None})
    world.script.table("shop.t").insert({"id": 2, "name": "x", "note": None})
    world.script.seal(final=True)
    world.restart()
    world.check()
    assert key_of(world) == ["id", "name"]


def test_an_epoch_that_is_dropped_leaves_a_key_that_the_next_may_change_back(world: World) -> None:
    work, sink = work_of(world, 2), sink_of(world)
    sink.apply_schema(work)
    assert key_of(world) == ["name"]
    sink.tombstone(replace(work, segments=(), generation=2))
    old = keyed("id")
    create = CreateTableEvent(work.source, old)
    changes = (DropTableEvent(work.source), create)
    sink.apply_schema(replace(work, epoch=3, generation=2, schema=old, changes=changes, segments=()))
    assert key_of(world) == ["id"]
    put(sink, replace(work, epoch=4, generation=3))
    assert key_of(world) == ["name"]
    world.check()


@pytest.mark.parametrize("world", ["mysql-upsert"], indirect=True)
def test_a_driver_that_dies_behind_the_statement_does_not_repeat_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL's DDL is in the transaction of the record."""
    alter = MySqlTables.alter

    def die_behind(tables: MySqlTables, *args: Any) -> None:
        alter(tables, *args)
        raise SinkError("killed here")

    monkeypatch.setattr(MySqlTables, "alter", die_behind)
    with pytest.raises(SinkError, match="killed here"):
        sink_of(world).apply_schema(work_of(world, 2))
    monkeypatch.undo()
    assert key_of(world) == ["name"]
    world.restart()
    world.check()


def test_a_table_that_others_made_keeps_its_key(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    world = world_of(request, "postgres-upsert", tmp_path)
    world.script.tables = {}
    world.script.table("shop.t", keyed("id")).insert({"id": 1, "name": "one", "note": None})
    world.script.seal()
    assert isinstance(world.server, PostgresServer)
    world.server.execute("CREATE SCHEMA shop", "CREATE TABLE shop.t (id bigint PRIMARY KEY, name text, note text)")
    sink = sink_of(world, on_existing="merge")
    put(sink, work_of(world, 1))
    made_again(world, "name")
    world.script.seal(final=True)
    with pytest.raises(SinkError, match=r"its key is \(id\) and becomes \(name\)"):
        sink.apply_schema(work_of(world, 2))
    assert key_of(world) == ["id"]
