"""What a database target cannot hold or must not believe is a named error, and its epoch is not in the target."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raycdc.errors import FencedError, SinkError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.sinks.jdbc import JdbcSink
from raycdc.testing.servers import PostgresServer
from tests.integration.sink_world import World, play, world_of

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
    with pytest.raises(SinkError, match=r'invalid byte sequence for encoding "UTF8": 0x00 .*column note'):
        world.loop().run()
    assert world.rows(world.script.table("shop.odd")) == []


def test_json_that_is_none_is_refused_with_its_column(world: World) -> None:
    with_column(world, "document", TypeKind.JSON, "{'a'")
    with pytest.raises(SinkError, match=r"invalid input syntax for type json.*column document"):
        world.loop().run()


def test_dates_of_all_years_that_servers_have_arrive(world: World) -> None:
    with_column(world, "day", TypeKind.DATE, dt.date(1, 1, 1))
    world.loop().run()
    assert world.rows(world.script.table("shop.odd")) == [{"id": 1, "day": dt.date(1, 1, 1)}]


def test_a_name_that_postgresql_would_cut_is_refused(world: World) -> None:
    with_column(world, "n" * 64, TypeKind.STRING, "x")
    with pytest.raises(SinkError, match="cuts names after 63 bytes"):
        world.loop().run()


def test_staging_tables_that_lost_rows_are_not_believed(world: World, postgres: PostgresServer) -> None:
    play(world, epochs=1)
    sink = world.sink()
    (work,) = [w for w in world.loop(sink)._works(world.store.manifest(1)) if w.target == ITEMS]
    sink.apply_schema(work)
    staged = sink.stage([work])[ITEMS]
    postgres.execute(f'DELETE FROM raycdc_stage."{staged["merge"][0].name}"')
    with pytest.raises(SinkError, match=r"shop\.items: staging table .* has 0 rows instead of"):
        sink.commit(work, staged)
    assert world.rows(world.script.table("shop.items")) == []


def test_a_driver_that_wakes_while_another_commits_is_fenced(world: World) -> None:
    play(world, epochs=1)
    sink = world.sink()
    assert isinstance(sink, JdbcSink)
    works = {w.target: w for w in world.loop(sink)._works(world.store.manifest(1))}
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
