"""What a database target cannot hold or must not believe is a named error, and its epoch is not in the target."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raycdc.config import Secret
from raycdc.errors import FencedError, SinkError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import AddColumnEvent
from raycdc.sandbox.servers import PostgresServer
from raycdc.segments import run_in_process
from raycdc.sinks.api import SinkContext
from raycdc.sinks.jdbc.plugin import JdbcSinkConfig
from raycdc.sinks.jdbc.sink import JdbcSink
from tests.epochs.sink_world import World, play, works_of, world_of

pytestmark = pytest.mark.server

ITEMS = TableId("shop", "items")


@pytest.fixture(params=["postgres-upsert"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return world_of(request, request.param, tmp_path)


def with_column(world: World, name: str, kind: TypeKind, value: Any) -> None:
    """A table with one row that has `value` in a column of that kind, sealed."""
    schema = TableSchema((Column("id", LogicalType(TypeKind.INT64), nullable=False), Column(name, LogicalType(kind))))
    table = world.script.table("shop.odd", replace(schema, primary_key=("id",)))
    table.insert({"id": 1, name: value})
    world.script.seal(final=True)


def test_a_nul_character_is_refused_with_its_column(world: World) -> None:
    with_column(world, "note", TypeKind.STRING, "a\0b")
    with pytest.raises(SinkError, match=r'invalid byte sequence for encoding "UTF8": … .*column note'):
        world.loop().run()
    assert world.rows(world.script.table("shop.odd")) == []


def test_json_that_is_none_is_refused_with_its_column(world: World) -> None:
    with_column(world, "document", TypeKind.JSON, "{'a'")
    with pytest.raises(SinkError, match=r"invalid input syntax for type json.*column document"):
        world.loop().run()


def test_an_error_quotes_no_row(world: World, postgres: PostgresServer) -> None:
    """The server's details have whole rows, masked columns of others included, and errors go into logs."""
    postgres.execute(
        "CREATE SCHEMA shop", "CREATE TABLE shop.odd (id bigint PRIMARY KEY, note text CHECK (note = 'x'))"
    )
    with_column(world, "note", TypeKind.STRING, "geheim")
    with pytest.raises(SinkError, match='violates check constraint "odd_note_check"') as refused:
        world.loop(world.sink(on_existing="merge")).run()
    assert "geheim" not in str(refused.value)


def test_dates_of_all_years_that_servers_have_arrive(world: World) -> None:
    with_column(world, "day", TypeKind.DATE, dt.date(1, 1, 1))
    world.loop().run()
    assert world.rows(world.script.table("shop.odd")) == [{"id": 1, "day": dt.date(1, 1, 1)}]


def test_a_name_that_postgresql_would_cut_is_refused(world: World) -> None:
    with_column(world, "n" * 64, TypeKind.STRING, "x")
    with pytest.raises(SinkError, match="has more than 63 bytes"):
        world.loop().run()


def test_staging_tables_that_lost_rows_are_not_believed(world: World, postgres: PostgresServer) -> None:
    play(world, epochs=1)
    sink = world.sink()
    (work,) = [w for w in works_of(world.loop(sink), world.store.manifest(1)) if w.target == ITEMS]
    sink.apply_schema(work)
    staged = sink.stage([work])[ITEMS]
    postgres.execute(f'DELETE FROM raycdc_stage."{staged.merge[0].name}"')
    with pytest.raises(SinkError, match=r"shop\.items: staging table .* has 0 rows instead of"):
        sink.commit(work, staged)
    assert world.rows(world.script.table("shop.items")) == []


def test_a_driver_that_wakes_while_another_commits_is_fenced(world: World) -> None:
    play(world, epochs=1)
    sink = world.sink()
    assert isinstance(sink, JdbcSink)
    works = {w.target: w for w in works_of(world.loop(sink), world.store.manifest(1))}
    late = works[ITEMS]
    sink.apply_schema(late)
    staged = sink.stage([late])[ITEMS]
    world.restart()
    with pytest.raises(FencedError, match=r"newer driver \(generation 2\)"):
        sink.commit(late, staged)
    world.check()


def test_an_idle_connection_that_the_server_closed_is_replaced(world: World, postgres: PostgresServer) -> None:
    play(world, epochs=2)
    sink = world.sink()
    sink.committed(ITEMS)
    postgres.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'raycdc'",
    )
    world.loop(sink).run()
    world.check()


@pytest.mark.parametrize(
    ("statements", "refusal"),
    [
        (
            ("CREATE TABLE shop.odd (id text COLLATE shop.loose PRIMARY KEY, v bigint)",),
            "compares key column id by a nondeterministic collation",
        ),
        (
            (
                "CREATE TABLE shop.odd (id text PRIMARY KEY, v bigint)",
                "CREATE UNIQUE INDEX other ON shop.odd (id COLLATE shop.loose)",
            ),
            "compares key column of index shop.other by a nondeterministic collation",
        ),
        (("CREATE UNLOGGED TABLE shop.odd (id text PRIMARY KEY, v bigint)",), "is UNLOGGED: after a crash"),
        (
            (
                "CREATE TABLE shop.odd (id text PRIMARY KEY, v bigint)",
                "CREATE RULE away AS ON DELETE TO shop.odd DO INSTEAD NOTHING",
            ),
            "has rewrite rules",
        ),
        (
            ("CREATE TABLE shop.odd (id text, v bigint)", "CREATE INDEX ON shop.odd (id)"),
            "has no primary key",
        ),
    ],
)
def test_a_table_that_would_change_rows_is_not_adopted(
    world: World, postgres: PostgresServer, statements: tuple[str, ...], refusal: str
) -> None:
    loose = "CREATE COLLATION shop.loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    postgres.execute("CREATE SCHEMA shop", loose, *statements)
    id_ = Column("id", LogicalType(TypeKind.STRING), nullable=False)
    schema = TableSchema((id_, Column("v", LogicalType(TypeKind.INT64))), ("id",))
    world.script.tables = {}
    world.script.table("shop.odd", schema).insert({"id": "a", "v": 1})
    world.script.seal(final=True)
    with pytest.raises(SinkError, match=refusal):
        world.loop(world.sink(on_existing="merge")).run()
    assert postgres.execute("SELECT * FROM shop.odd") == []


def test_a_table_whose_rows_are_hidden_is_not_adopted(world: World, postgres: PostgresServer) -> None:
    postgres.execute(
        "CREATE ROLE loader LOGIN PASSWORD 'loader'",
        "GRANT CREATE ON DATABASE postgres TO loader",
        "GRANT CREATE ON SCHEMA public TO loader",
        "CREATE SCHEMA shop",
        "GRANT ALL ON SCHEMA shop TO loader",
        "CREATE TABLE shop.items (id bigint PRIMARY KEY, name text, qty integer)",
        "ALTER TABLE shop.items ENABLE ROW LEVEL SECURITY",
        "GRANT ALL ON shop.items TO loader",
    )
    play(world, epochs=1)
    config = JdbcSinkConfig(url=f"jdbc:{postgres.url()}", user="loader", password=Secret("loader"))
    sink = JdbcSink(config)
    sink.open(SinkContext(world.store.app_id, "upsert", run_in_process, "merge"))
    (work,) = [w for w in works_of(world.loop(), world.store.manifest(1)) if w.target == ITEMS]
    with pytest.raises(SinkError, match=r"shop\.items exists in .* and has row-level security"):
        sink.apply_schema(work)
    sink.close()
    postgres.execute("DROP OWNED BY loader CASCADE", "DROP ROLE loader")


def test_defaults_of_bytes_and_bits_are_filled(world: World) -> None:
    world.script.tables = {}
    table = world.script.table("shop.odd")
    table.insert({"id": 1, "name": "a", "qty": 1})
    world.script.seal()
    raw = Column("raw", LogicalType(TypeKind.BINARY), default="\0'ä")
    bit = Column("bit", LogicalType(TypeKind.BIT, length=5), default="21")
    table.schema = TableSchema((*table.schema.columns, raw, bit), ("id",))
    table.changes += [AddColumnEvent(table.id, column) for column in (raw, bit)]
    table.rows[(1,)] |= {"raw": "\0'ä".encode(), "bit": 21}
    world.script.seal(final=True)
    world.loop().run()
    world.check()
