"""Two drivers at one database, and a database that went back in time: nobody commits or alters what is not his."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raycdc.errors import FencedError, RaycdcError, SinkError, SinkUnavailableError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import RenameColumnEvent, TruncateTableEvent
from raycdc.sandbox.servers import DatabaseServer, PostgresServer
from raycdc.sinks.api import TableCommit
from raycdc.sinks.jdbc import mysql as mysql_sink
from raycdc.sinks.jdbc import postgres as postgres_sink
from raycdc.sinks.jdbc import target
from raycdc.sinks.jdbc.database import CommitTable
from raycdc.sinks.jdbc.mysql_tables import MySqlTables
from raycdc.sinks.jdbc.sink import JdbcSink
from raycdc.sinks.jdbc.target import JdbcSteps
from raycdc.sinks.steps import TargetState
from tests.epochs.sink_world import HOME, World, works_of, world_of

pytestmark = pytest.mark.server

INT = LogicalType(TypeKind.INT64)
T = TableId("shop", "t")


def keyed(*names: str) -> TableSchema:
    return TableSchema(tuple(Column(name, INT, nullable=name != "id") for name in names), ("id",))


def alone(request: pytest.FixtureRequest, kind: str, root: Path) -> World:
    """A world whose only table is ``shop.t`` with id, a and b."""
    world = world_of(request, kind, root)
    world.script.tables = {}
    world.script.table("shop.t", keyed("id", "a", "b"))
    return world


@pytest.fixture(params=["postgres-upsert", "mysql-upsert"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return alone(request, request.param, tmp_path)


@pytest.fixture
def mysql(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return alone(request, "mysql-upsert", tmp_path)


def sink_of(world: World, **options: Any) -> JdbcSink:
    made = world.sink(**options)
    assert isinstance(made, JdbcSink)
    return made


def work_of(world: World, epoch: int) -> TableCommit:
    (found,) = works_of(world.loop(), world.store.manifest(epoch))
    return found


def put(sink: JdbcSink, work: TableCommit) -> None:
    if work.changes:
        sink.apply_schema(work)
    sink.commit(work, sink.stage([work])[work.target])


def execute(world: World, *statements: str) -> None:
    assert world.server is not None
    world.server.execute(*statements)


def record(world: World) -> str:
    return "raycdc_commit" if isinstance(world.server, PostgresServer) else f"{HOME}.raycdc_commit"


def end_session(world: World, session: Any) -> None:
    """What a server or a network does to a connection of a driver that is silent."""
    if isinstance(world.server, PostgresServer):
        ((pid,),) = session.rows("SELECT pg_backend_pid()")
        execute(world, f"SELECT pg_terminate_backend({pid})")
    else:
        execute(world, f"KILL {session._connection.thread_id()}")


def new_driver(world: World, **options: Any) -> None:
    """A driver that takes over: everything sealed is in the target when it is done."""
    world.script.generation = world.store.generations.next()
    loop = world.loop(world.sink(**options))
    loop.recover()
    if world.store.sealed_epochs(loop.committed):
        loop.run()


def started(run: Callable[[], Any]) -> tuple[threading.Thread, list[RaycdcError]]:
    """`run` on a thread of its own, and the error it ended with, once it has ended."""
    errors: list[RaycdcError] = []

    def body() -> None:
        try:
            run()
        except RaycdcError as error:
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    return thread, errors


def three_epochs(world: World) -> None:
    table = world.script.table("shop.t")
    for number in range(1, 4):
        table.insert({"id": number, "a": number, "b": number})
        world.script.seal(final=number == 3)


def test_a_server_that_went_back_in_time_gets_nothing(world: World) -> None:
    three_epochs(world)
    sink = sink_of(world)
    put(sink, work_of(world, 1))
    put(sink, work_of(world, 2))
    # A copy that has epoch 1 only is there instead.
    execute(world, f"UPDATE {record(world)} SET epoch = 1", "DELETE FROM shop.t WHERE id = 2")
    work = work_of(world, 3)
    with pytest.raises(SinkError, match=r"shop\.t in .* held epoch 2 and now holds only epoch 1: the server went back"):
        sink.commit(work, sink.stage([work])[T])
    execute(world, f"DELETE FROM {record(world)}")
    with pytest.raises(SinkError, match="held epoch 2 and now holds nothing of this pipeline"):
        sink.tombstone(work)
    assert [row["id"] for row in world.rows(world.script.table("shop.t"))] == [1]


def test_what_a_start_found_counts_too(world: World) -> None:
    three_epochs(world)
    put(sink_of(world), work_of(world, 1))
    put(sink_of(world), work_of(world, 2))
    sink = sink_of(world)
    assert sink.committed(T) is not None
    execute(world, f"UPDATE {record(world)} SET epoch = 1")
    work = work_of(world, 3)
    with pytest.raises(SinkError, match="the server went back in time"):
        sink.commit(work, sink.stage([work])[T])


@pytest.mark.parametrize("on_existing", ["fail", "replace"])
def test_a_driver_paused_before_the_first_record_is_fenced(
    world: World, on_existing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_epochs(world)
    if on_existing == "replace":
        schema = "SCHEMA" if isinstance(world.server, PostgresServer) else "DATABASE"
        execute(world, f"CREATE {schema} shop", "CREATE TABLE shop.t (id BIGINT PRIMARY KEY, a BIGINT, b BIGINT)")
    old, late = sink_of(world, on_existing=on_existing), work_of(world, 1)
    standing = JdbcSteps.read_state

    def paused(target: JdbcSteps, epoch: int | None = None) -> TargetState:
        found = standing(target, epoch)
        monkeypatch.undo()
        waiting, errors = started(lambda: new_driver(world, on_existing=on_existing))
        waiting.join(timeout=1)
        assert waiting.is_alive(), "the new driver did not wait for the one before it"
        end_session(world, target._session)
        waiting.join()
        assert errors == []
        return found

    monkeypatch.setattr(JdbcSteps, "read_state", paused)
    with pytest.raises(SinkError):
        old.apply_schema(late)
    world.check()
    with pytest.raises(FencedError, match="newer driver"):
        old.apply_schema(late)
    world.check()


def test_a_driver_that_sleeps_in_its_commit_is_not_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    three_epochs(world)
    put(sink_of(world), work_of(world, 1))
    for module in (mysql_sink, postgres_sink):
        monkeypatch.setattr(module, "IDLE_TIMEOUT_S", 1)
    sleeps, wakes = threading.Event(), threading.Event()

    def sleep(_: str) -> None:
        monkeypatch.setattr(target, "reach", lambda _: None)
        sleeps.set()
        wakes.wait()

    monkeypatch.setattr(target, "reach", sleep)
    old, late = sink_of(world), work_of(world, 2)
    staged = old.stage([late])[T]
    sleeping, errors = started(lambda: old.commit(late, staged))
    sleeps.wait()
    new_driver(world)
    wakes.set()
    sleeping.join()
    # The server is away for a moment, as it seems; asked again, the record is another driver's.
    assert [type(error) for error in errors] == [SinkUnavailableError]
    world.check()
    with pytest.raises(FencedError, match="newer driver"):
        old.commit(late, staged)


def test_a_driver_without_its_connection_alters_nothing(mysql: World, monkeypatch: pytest.MonkeyPatch) -> None:
    table = mysql.script.table("shop.t")
    table.insert({"id": 1, "a": 1, "b": 1})
    mysql.script.seal()
    old = sink_of(mysql)
    put(old, work_of(mysql, 1))
    table.changes.append(TruncateTableEvent(table.id))
    table.truncate()
    table.insert({"id": 2, "a": 2, "b": 2})
    mysql.script.seal()
    table.insert({"id": 3, "a": 3, "b": 3})
    mysql.script.seal(final=True)
    late, alter = work_of(mysql, 2), MySqlTables.alter

    def paused(tables: MySqlTables, *args: Any) -> None:
        monkeypatch.undo()
        end_session(mysql, tables._statements)
        new_driver(mysql)
        alter(tables, *args)

    monkeypatch.setattr(MySqlTables, "alter", paused)
    with pytest.raises(SinkError):
        old.apply_schema(late)
    mysql.check()


def exchange(world: World) -> TableCommit:
    """Epoch 1 in the target, and epoch 2 with the names of a and b exchanged."""
    table = world.script.table("shop.t")
    table.insert({"id": 1, "a": 10, "b": 20})
    world.script.seal()
    put(sink_of(world), work_of(world, 1))
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        table.changes.append(RenameColumnEvent(table.id, old, new))
    world.script.seal()
    return work_of(world, 2)


def exchanged(world: World) -> bool:
    return [(row["a"], row["b"]) for row in world.rows(world.script.table("shop.t"))] == [(20, 10)]


def killed(*_: Any) -> None:
    raise SinkError("killed here")


def test_a_statement_under_way_is_waited_for_and_not_done_again(
    mysql: World, mariadb: DatabaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = exchange(mysql)
    hold, first = CommitTable.hold, sink_of(mysql, schema_change="evolve")
    second = sink_of(mysql, schema_change="evolve")
    with mariadb.connect(autocommit=False) as reader, reader.cursor() as cursor:
        cursor.execute("SELECT * FROM shop.t")
        altering, _ = started(lambda: first.apply_schema(work))
        under_way = "SELECT 1 FROM information_schema.PROCESSLIST WHERE INFO LIKE 'ALTER TABLE%'"
        with mariadb.connect() as connection, connection.cursor() as looking:
            while not looking.execute(under_way):
                pass

        # The first driver dies: it will not write the record when the statement has ended.
        def hold_or_die(*args: Any) -> None:
            (killed if threading.current_thread() is altering else hold)(*args)

        monkeypatch.setattr(CommitTable, "hold", hold_or_die)
        waiting, errors = started(lambda: second.apply_schema(replace(work, generation=2)))
        waiting.join(timeout=1)
        assert waiting.is_alive()
        reader.rollback()
        altering.join()
    waiting.join()
    assert (errors, exchanged(mysql)) == ([], True)


def test_an_exchange_that_outran_its_record_is_not_undone_under_another_epoch(
    mysql: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, sink, alter = exchange(mysql), sink_of(mysql, schema_change="evolve"), MySqlTables.alter

    def die_behind(tables: MySqlTables, *args: Any) -> None:
        alter(tables, *args)
        killed()

    monkeypatch.setattr(MySqlTables, "alter", die_behind)
    with pytest.raises(SinkError, match="killed here"):
        sink.apply_schema(work)
    monkeypatch.undo()
    assert exchanged(mysql)
    sink.tombstone(replace(work, segments=(), generation=2))
    sink.apply_schema(replace(work, epoch=3, generation=2))
    assert exchanged(mysql)


def test_an_exchange_of_a_dropped_epoch_is_not_undone_by_the_next(world: World) -> None:
    work, sink = exchange(world), sink_of(world, schema_change="evolve")
    sink.apply_schema(work)
    sink.tombstone(replace(work, segments=(), generation=2))
    sink.apply_schema(replace(work, epoch=3, generation=2))
    assert exchanged(world)
    sink.tombstone(replace(work, epoch=3, segments=(), generation=3))
    last = replace(work, epoch=4, generation=3)
    sink.apply_schema(last)
    sink.commit(last, sink.stage([last])[T])
    assert exchanged(world)
    # Now it counts: the next exchange is another one.
    sink.apply_schema(replace(work, epoch=5, generation=3))
    assert not exchanged(world)


def test_a_record_that_another_node_wrote_is_not_overwritten(mysql: World, monkeypatch: pytest.MonkeyPatch) -> None:
    three_epochs(mysql)
    create = MySqlTables.create

    def overtaken(tables: MySqlTables, *args: Any, **options: Any) -> None:
        create(tables, *args, **options)
        execute(mysql, f"UPDATE {HOME}.raycdc_commit SET epoch = 1, step = 3, generation = 2")

    monkeypatch.setattr(MySqlTables, "create", overtaken)
    with pytest.raises(FencedError, match=r"The record of shop\.t was written by a newer driver"):
        sink_of(mysql).apply_schema(work_of(mysql, 1))
