"""What MySQL and MariaDB of all ages and settings do with a target on their own, and the sink sees to."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from raycdc.model import Column, LogicalType, TableSchema, TypeKind
from raycdc.schema import AddColumnEvent, SchemaChangeEvent, event_to_json
from raycdc.testing.epochs import ScriptedTable
from raycdc.testing.servers import DatabaseServer
from tests.integration.sink_world import HOME, World, new_world

pytestmark = pytest.mark.server

INT = LogicalType(TypeKind.INT64)
TEXT = LogicalType(TypeKind.STRING)


def keyed(*columns: tuple[str, LogicalType], key: tuple[str, ...] = ("id",)) -> TableSchema:
    return TableSchema(tuple(Column(name, kind, nullable=name not in key) for name, kind in columns), key)


def world_on(
    server: DatabaseServer, root: Path, *schemas: tuple[str, TableSchema], kind: str = "mysql-upsert"
) -> World:
    """A world on an empty server with these tables alone."""
    server.execute(*(f"DROP DATABASE IF EXISTS {name}" for name in ("shop", HOME)), f"CREATE DATABASE {HOME}")
    world = new_world(kind, root, None, server)
    world.script.tables = {}
    for name, schema in schemas:
        world.script.table(name, schema)
    return world


def change(table: ScriptedTable, columns: tuple[Column, ...], *events: SchemaChangeEvent) -> None:
    table.schema = TableSchema(columns, table.schema.primary_key)
    table.changes += map(event_to_json, events)


def found(server: DatabaseServer, sql: str) -> list[tuple[Any, ...]]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


@pytest.mark.parametrize("made", ["by us", "by an older raycdc"])
def test_a_moment_in_the_key_is_the_sources(mysql57: DatabaseServer, tmp_path: Path, made: str) -> None:
    """MySQL 5.7 makes the first TIMESTAMP NOT NULL the time of the row's last update."""
    schema = keyed(("id", INT), ("at", LogicalType(TypeKind.TIMESTAMP)), ("v", INT), key=("id", "at"))
    world = world_on(mysql57, tmp_path, ("shop.t", schema))
    table = world.script.table("shop.t")
    at = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    table.insert({"id": 1, "at": at, "v": 1})
    table.insert({"id": 2, "at": at, "v": 1})
    world.script.seal(final=True)
    world.loop().run()
    if made == "by an older raycdc":
        mysql57.execute("ALTER TABLE shop.t MODIFY `at` timestamp(6) NOT NULL")
    assert ("ON UPDATE" in found(mysql57, "SHOW CREATE TABLE shop.t")[0][1]) is (made != "by us")
    n = Column("n", INT, default="5")
    change(table, (*schema.columns, n), AddColumnEvent(table.id, n))
    for row in table.rows.values():
        row["n"] = 5
    table.update((1, at), v=2)
    world.script.seal(final=True)
    world.restart()
    assert found(mysql57, "SELECT id, at, v, n FROM shop.t ORDER BY id") == [
        (1, at.replace(tzinfo=None), 2, 5),
        (2, at.replace(tzinfo=None), 1, 5),
    ]
