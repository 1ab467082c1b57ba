"""The epoch loop over targets that are away for a while, or have a lock for somebody else: it waits, and says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import adbc_driver_manager
import pymysql
import pytest
from confluent_kafka import KafkaError
from pymongo.errors import AutoReconnect, OperationFailure

from raycdc.core.failpoints import heard
from raycdc.core.retry import RetryPolicy
from raycdc.delivery.ports import Routing
from raycdc.delivery.rows.segment_making import SegmentMaking
from raycdc.delivery.targets.parked_targets import ParkingPolicy, SinkOutagePolicy
from raycdc.errors import SinkError, SinkLockedError, SinkUnavailableError, SparkLostError, TargetModifiedError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import AddColumnEvent
from raycdc.model.rules.routes import Router
from raycdc.model.rules.transform import Transform, Transforms
from raycdc.sandbox.servers import DatabaseServer, KafkaServer, PostgresServer
from raycdc.sinks.jdbc.refusals import mysql_refusal, postgres_refusal, postgres_unreached
from raycdc.sinks.jdbc.target import JdbcSteps
from raycdc.sinks.kafka.transactions import KafkaTarget, topic_error
from raycdc.sinks.mongodb.server import Server
from raycdc.transform import PlainResolver, ResolvedTransform, TransformedTables, TransformUse
from tests.epochs.sink_world import World, new_world, play, world_of

DATABASES = ["postgres-upsert", "mysql-upsert"]


def waiting(told: list[str], act: Callable[[], object] = lambda: None) -> ParkingPolicy:
    """The first time that something is waited for `act` ends it."""

    def tell(text: str) -> None:
        told.append(text)
        if len(told) == 1:
            act()

    return ParkingPolicy(on_parked=lambda new: pytest.fail(f"parked: {new}"), waiting=SinkOutagePolicy("", tell))


def end_sessions(server: PostgresServer | DatabaseServer) -> None:
    if isinstance(server, PostgresServer):
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'raycdc'")
        return
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT ID FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID() AND USER = 'root'")
        for (number,) in cursor.fetchall():
            # Another one may have ended by itself.
            with suppress(pymysql.Error):
                cursor.execute(f"KILL {number}")


@pytest.mark.server
@pytest.mark.parametrize("kind", DATABASES)
def test_sessions_that_the_server_ends_in_a_commit_are_opened_again(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    world = world_of(request, kind, tmp_path)
    play(world)
    write = JdbcSteps.write
    told: list[str] = []
    ended: list[bool] = []

    def then_end(self: JdbcSteps, *args: Any) -> None:
        write(self, *args)
        if not ended:
            ended.append(True)
            assert world.server is not None
            end_sessions(world.server)

    monkeypatch.setattr(JdbcSteps, "write", then_end)
    world.loop(parking=waiting(told)).run()
    assert ended
    assert told
    assert told[0].startswith("The sink is waited for: ")
    assert told[0].endswith("It is tried again for 5 minutes; see that it answers.")
    world.check()


@pytest.mark.server
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kind", "place"), [("postgres-upsert", "before_commit"), ("kafka", "in_commit")])
def test_a_server_that_stops_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, place: str
) -> None:
    with PostgresServer() if kind.startswith("postgres") else KafkaServer() as server:
        world = new_world(
            kind,
            tmp_path,
            server if isinstance(server, KafkaServer) else None,
            server if isinstance(server, PostgresServer) else None,
        )
        play(world)
        told: list[str] = []
        monkeypatch.setattr("raycdc.sinks.kafka.transactions.TIMEOUT_S", 3.0)
        monkeypatch.setattr("raycdc.sinks.kafka.sink.TIMEOUT_S", 3.0)
        stops, gone = threading.Lock(), threading.Event()

        def stop(reached: str) -> None:
            # Once, whoever of those that commit at once comes first.
            if reached == place and stops.acquire(blocking=False):
                server.stop()
                gone.set()

        def start() -> None:
            # Another thread may be told while the server is still on its way down.
            assert gone.wait(300)
            server.start()

        loop = world.loop(parking=waiting(told, start))

        with heard(stop):
            loop.run()
        assert told[0].startswith("The sink is waited for: ")
        world.check()


@pytest.mark.parametrize("step", ["exact", "derived", "stage", "commit"])
def test_work_of_a_spark_that_ends_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    world = new_world("jsonl", tmp_path, None, None)
    play(world)
    told: list[str] = []
    ends = [True]
    sink = world.sink()
    owner: Any = SegmentMaking if step in ("exact", "derived") else type(sink)
    work = getattr(owner, step)

    def once(*args: Any) -> Any:
        if ends:
            ends.clear()
            raise SparkLostError("Spark is gone: its JVM ended.")
        return work(*args)

    monkeypatch.setattr(owner, step, once)
    world.loop(sink, parking=waiting(told)).run()
    [said] = told
    assert said.startswith("Spark is waited for: Spark is gone: its JVM ended. It is tried again for 5 minutes; see in")
    world.check()


class LostOnce:
    """A resolver whose JVM ends at the first question."""

    def __init__(self) -> None:
        self.asked = 0

    def resolve(self, table: TableId, transform: Transform, schema: TableSchema, place: str) -> ResolvedTransform:
        self.asked += 1
        if self.asked == 1:
            raise SparkLostError("Spark is gone: its JVM ended.")
        return PlainResolver().resolve(table, transform, schema, place)


@pytest.mark.parametrize("recovers", [False, True], ids=["runs", "recovers"])
def test_a_jvm_that_ends_while_a_transform_is_looked_up_is_waited_for(tmp_path: Path, recovers: bool) -> None:
    world = new_world("delta-upsert", tmp_path)
    play(world)
    resolver, told = LostOnce(), list[str]()
    transformed = TransformedTables(Transforms([Transform(table="shop.orders")]), resolver, TransformUse(True))
    loop = world.loop(routing=Routing(Router(()), True, transforms=transformed), parking=waiting(told))
    if recovers:
        loop.recover()
    else:
        loop.run()
    [said] = told
    assert said.startswith("Spark is waited for: Spark is gone: its JVM ended. It is tried again for 5 minutes; see in")
    assert resolver.asked == 2
    world.check()


@pytest.mark.server
@pytest.mark.parametrize("kind", DATABASES)
def test_a_server_that_stays_away_ends_the_run_and_loses_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    world = world_of(request, kind, tmp_path)
    play(world)

    def refuse(*_: Any) -> None:
        raise SinkUnavailableError("The server is away.")

    with monkeypatch.context() as patched:
        patched.setattr("raycdc.delivery.targets.target_retry.POLICY", RetryPolicy(retry_s=0.0))
        patched.setattr(JdbcSteps, "write", refuse)
        with pytest.raises(SinkError, match=r"waited for: The server is away\. See that it answers, and start again"):
            world.loop(parking=waiting([])).run()
    world.restart()
    world.check()


@contextmanager
def reader(server: PostgresServer | DatabaseServer) -> Iterator[Callable[[], object]]:
    """Somebody who reads the table in a transaction; the function ends his session."""
    is_postgres = isinstance(server, PostgresServer)
    connection = server.connect()
    cursor = connection.cursor()
    try:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT {'pg_backend_pid' if is_postgres else 'CONNECTION_ID'}() FROM shop.orders")
        number = cursor.fetchall()[0][0]
        yield lambda: server.execute(f"SELECT pg_terminate_backend({number})" if is_postgres else f"KILL {number}")
    finally:
        with suppress(pymysql.Error, adbc_driver_manager.Error):
            cursor.close()
        with suppress(pymysql.Error, adbc_driver_manager.Error):
            connection.close()


@pytest.mark.server
@pytest.mark.parametrize("kind", DATABASES)
def test_a_change_of_a_table_that_somebody_reads_is_tried_again_and_holds_up_no_other_reader(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("raycdc.sinks.jdbc.postgres_tables.CHANGE_LOCK_TIMEOUT_S", 1)
    monkeypatch.setattr("raycdc.sinks.jdbc.mysql_tables.CHANGE_LOCK_TIMEOUT_S", 1)
    world: World = world_of(request, kind, tmp_path)
    table = world.script.table("shop.orders")
    table.insert({"id": 1, "name": "a", "qty": 1})
    world.script.seal(final=True)
    world.loop().run()
    city = Column("city", LogicalType(TypeKind.STRING))
    table.schema = type(table.schema)((*table.schema.columns, city), table.schema.primary_key)
    table.changes.append(AddColumnEvent(table.id, city))
    table.rows[(1,)] |= {"city": None}
    table.insert({"id": 2, "name": "b", "qty": 2, "city": "Oslo"})
    world.script.seal(final=True)
    assert world.server is not None
    told: list[str] = []
    with reader(world.server) as end:
        world.restart(parking=waiting(told, end))
    assert "lock" in told[0].lower(), told
    assert len(told) == 1
    world.check()


def test_errors_of_servers_that_may_not_come_again_are_told_apart() -> None:
    for code in ("57P01", "08006", "40P01", "53300"):
        assert postgres_refusal(code) is SinkUnavailableError
    assert postgres_refusal("55P03") is SinkLockedError
    assert postgres_refusal("", "server closed the connection unexpectedly") is SinkUnavailableError
    assert postgres_refusal("", "out of cheese") is SinkError
    assert postgres_unreached("failed: Connection refused") is SinkUnavailableError
    assert postgres_unreached("FATAL:  the database system is starting up") is SinkUnavailableError
    assert postgres_unreached('FATAL:  password authentication failed for user "a"') is SinkError
    # What a wrong key looks like depends on the bytes of the signature; a connection that broke is another matter.
    assert postgres_unreached("SSL error: data too large for modulus") is SinkError
    assert postgres_unreached("SSL error: unexpected eof while reading") is SinkUnavailableError
    assert postgres_unreached("SSL error: decryption failed or bad record mac") is SinkUnavailableError
    for number in (2013, 1053, 1213, 1927):
        assert mysql_refusal(number) is SinkUnavailableError
    assert mysql_refusal(1205) is SinkLockedError
    target = KafkaTarget({"bootstrap.servers": "b"}, "t", "i")
    assert type(topic_error(target, KafkaError(KafkaError._ALL_BROKERS_DOWN))) is SinkUnavailableError
    assert type(topic_error(target, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))) is not SinkUnavailableError
    server = Server("mongodb://127.0.0.1:1", "raycdc")
    for cause, said in (
        (AutoReconnect("not primary"), SinkUnavailableError),
        (OperationFailure("moved", 189, {"errorLabels": ["TransientTransactionError"]}), SinkUnavailableError),
        (OperationFailure("no", 13), TargetModifiedError),
        (OperationFailure("no", 18), SinkError),
    ):
        with pytest.raises(SinkError) as raised, server.named("shop.t"):
            raise cause
        assert type(raised.value) is said
