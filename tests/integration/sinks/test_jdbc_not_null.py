"""A column that is NOT NULL at the source is so in a target that the pipeline made, and never keeps a row away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raycdc.errors import ValueRefusedError
from raycdc.model import Column, LogicalType, TableSchema, TypeKind
from raycdc.model.evolution import (
    AddColumnEvent,
    AlterColumnTypeEvent,
    CreateTableEvent,
    DropColumnEvent,
    TruncateTableEvent,
)
from raycdc.sandbox.servers import DatabaseServer, PostgresServer
from tests.epochs.sink_world import World, world_of

pytestmark = pytest.mark.server

INT, TEXT = LogicalType(TypeKind.INT64), LogicalType(TypeKind.STRING)
SCHEMA = TableSchema(
    (
        Column("id", INT, nullable=False),
        Column("a", INT, nullable=False),
        Column("b", TEXT, nullable=False),
        Column("c", INT),
        Column("day", LogicalType(TypeKind.DATE), nullable=False),
    ),
    ("id",),
)
SERVERS = pytest.mark.parametrize("kind", ["postgres-upsert", "mysql-upsert"])


class NullableTable:
    """A table at the source, and its target."""

    def __init__(self, request: pytest.FixtureRequest, kind: str, root: Path) -> None:
        self.world: World = world_of(request, kind, root)
        self.world.script.tables = {}
        self.table = self.world.script.table("shop.t", SCHEMA)
        assert self.world.server is not None
        self.server: PostgresServer | DatabaseServer = self.world.server
        self.number = 0

    def run(self, *, check: bool = True, **values: Any) -> None:
        """An epoch with a new row and an older one changed, both with these values, and a run of all that is sealed."""
        for key in {max(self.number, 1), self.number + 1}:
            row = {"id": key, "a": 1, "b": "x", "c": None, "day": None, **values}
            row = {column.name: row.get(column.name) for column in self.table.schema.columns}
            if (key,) in self.table.rows:
                self.table.update((key,), **row)
            else:
                self.table.insert(row)
        self.number += 1
        self.world.script.seal(final=True)
        self.world.restart(sink=self.world.sink(on_existing="merge"))
        if check:
            self.world.check()

    def column(self, name: str, **changes: Any) -> None:
        """The column changes at the source; its nullability and type are told."""
        columns = [replace(c, **changes) if c.name == name else c for c in self.table.schema.columns]
        self.table.schema = replace(self.table.schema, columns=tuple(columns))
        column = self.table.schema.column(name)
        self.table.changes.append(AlterColumnTypeEvent(self.table.id, name, column.type, column.nullable))

    def demanded(self) -> set[str]:
        """The columns beside the key that take no NULL, as the server says."""
        statement = (
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'shop' AND table_name = 't' "
            "AND is_nullable = 'NO' AND column_name <> 'id'"
        )
        if isinstance(self.server, PostgresServer):
            return {str(name) for (name,) in self.server.execute(statement)}
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return {str(name) for (name,) in cursor.fetchall()}


@SERVERS
def test_a_target_takes_no_null_where_its_source_takes_none(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    story = NullableTable(request, kind, tmp_path)
    story.run()
    # A day that is none (0000-00-00) arrives as NULL, whatever the source's column says.
    assert story.demanded() == {"a", "b"}
    story.column("a", nullable=True)
    story.run(a=None)
    assert story.demanded() == {"b"}
    story.run(a=7)
    # There is a NULL, which only the next change of its row takes away.
    story.table.update((1,), a=7)
    story.table.update((2,), a=7)
    story.run(a=7)
    story.column("a", nullable=False)
    story.column("c", nullable=False)
    story.run(a=7, c=5)
    assert story.demanded() == {"a", "b"}, "rows have NULL in c"
    story.column("b", type=replace(TEXT, native="varchar(70)"))
    story.run(a=7, c=5)
    assert story.demanded() == {"a", "b"}


@SERVERS
def test_a_null_that_comes_all_the_same_arrives(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    story = NullableTable(request, kind, tmp_path)
    story.run()
    story.run(a=None)
    assert story.demanded() == {"b"}
    story.table.truncate()
    story.run(b=None)
    assert story.demanded() == set()
    # Rows that change hands within an epoch are taken out, which begins the transaction again.
    story.table.changes += [TruncateTableEvent(story.table.id), CreateTableEvent(story.table.id, story.table.schema)]
    story.table.truncate()
    story.run()
    assert story.demanded() == {"a", "b"}
    story.run(a=2)
    story.table.update((story.number,), a=3)
    story.run(a=4)
    story.table.update((story.number,), a=5)
    story.world.script.seal(final=True)
    story.world.restart()
    story.world.check()


@SERVERS
def test_unique_values_that_are_exchanged_and_a_null_arrive_together(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    story = NullableTable(request, kind, tmp_path)
    for key in (1, 2):
        story.table.insert({"id": key, "a": key, "b": "x", "c": None, "day": None})
    story.number = 2
    story.world.script.seal(final=True)
    story.world.restart()
    story.server.execute("CREATE UNIQUE INDEX own ON shop.t (a)")
    for key, a in ((1, 9), (2, 1), (1, 2)):
        story.table.update((key,), a=a, b=None)
    story.world.script.seal(final=True)
    story.world.restart()
    story.world.check()
    assert story.demanded() == {"a"}


@SERVERS
def test_columns_that_come_and_go(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    story = NullableTable(request, kind, tmp_path)
    story.run()
    added = [Column("d", INT, nullable=False, default="5"), Column("e", INT, nullable=False)]
    story.table.schema = replace(story.table.schema, columns=(*story.table.schema.columns, *added))
    story.table.changes += [AddColumnEvent(story.table.id, column) for column in added]
    for row in story.table.rows.values():
        row |= {"d": 5, "e": None}
    story.run(d=6, e=7)
    # MySQL's statement is only one, and fills no rows; nobody says what rows that exist have in e.
    assert story.demanded() == {"a", "b", *(["d"] if kind.startswith("postgres") else [])}
    # A column that goes at the source stays in the target, and is NULL from here on.
    story.table.schema = replace(
        story.table.schema, columns=tuple(c for c in story.table.schema.columns if c.name not in ("b", "d"))
    )
    story.table.changes += [DropColumnEvent(story.table.id, name) for name in ("b", "d")]
    story.run(check=False, e=8)
    assert story.demanded() == {"a"}
    assert [row["a"] for row in story.world.rows(story.table)] == [1, 1, 1]


@SERVERS
def test_a_table_of_others_gets_no_demands_and_keeps_its_own(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    story = NullableTable(request, kind, tmp_path)
    text = "text" if kind.startswith("postgres") else "longtext"
    schema = "CREATE SCHEMA shop" if kind.startswith("postgres") else "CREATE DATABASE shop"
    columns = f"id bigint PRIMARY KEY, a bigint, b {text}, c bigint NOT NULL, day date"
    story.server.execute(schema, f"CREATE TABLE shop.t ({columns})")
    story.run(c=1)
    story.column("a", nullable=True)
    story.column("a", nullable=False)
    story.run(c=1)
    assert story.demanded() == {"c"}
    with pytest.raises(ValueRefusedError, match="c"):
        story.run(c=None)
