"""`raycdc run` over two tables whose names print alike without quotes: each is a table of its own, everywhere."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from raycdc.model import TableId
from raycdc.sandbox.compare import read_delta
from raycdc.sandbox.servers import DatabaseServer, KafkaServer, MongoDb, PostgresServer
from tests.e2e.test_jdbc import mysql_keys, sink_keys
from tests.epochs.sink_world import iceberg_table
from tests.support.forked_commands import completed
from tests.support.jobs import Job, TopicJob, catch_up
from tests.support.table_commands import listed, tables_command

pytestmark = pytest.mark.server

NAMESAKE, DOTTED = TableId("alike", "x.t"), TableId("alike.x", "t")
BOTH = (NAMESAKE, DOTTED)
#: As raycdc writes them.
PLAIN, QUOTED = "alike.x.t", "`alike.x`.t"

#: The rows of a target: all columns but raycdc's, by id.
Held = dict[int, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Place:
    """A sink, how its targets are read, and the keys of ``[sink]``."""

    sink: str
    read: Callable[[TableId], Held]
    write: str = "upsert"
    keys: str = ""


def by_id(rows: list[dict[str, Any]]) -> Held:
    """The rows that are left of a changelog, or those of a table."""
    held: Held = {}
    for row in sorted(rows, key=lambda row: int(row.get("_seq", 0))):
        if row.get("_op") == "T":
            held.clear()
        elif row.get("_op", "").startswith("-"):
            held.pop(row["id"], None)
        else:
            # A second insert of a key is a row that came twice.
            assert row.get("_op") != "+I" or row["id"] not in held, row
            held[row["id"]] = {name: value for name, value in row.items() if name[0] != "_" and value is not None}
    return held


def read_files(folder: Path, suffix: str) -> Held:
    files = [path for path in folder.rglob(f"*.{suffix}") if not path.name.startswith(("_", "."))]
    if suffix == "parquet":
        return by_id([row for path in files for row in pq.ParquetFile(path).read().to_pylist()])
    return by_id([json.loads(line) for path in files for line in path.read_text().splitlines()])


def selected(connection: Any, table: TableId, *, quote: str = "`") -> Held:
    with connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {quote}{table.db}{quote}.{quote}{table.table}{quote}")
        names = [column[0] for column in cursor.description]
        return by_id([dict(zip(names, row, strict=True)) for row in cursor.fetchall()])


def source_rows(server: DatabaseServer, table: TableId) -> Held:
    return selected(server.connect(), table)


@pytest.fixture(name="place")
def _place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    lake = tmp_path / "lake"
    match request.param:
        case "jsonl" | "parquet" as kind:
            yield Place(kind, lambda t: read_files(lake / t.db / t.table, kind), "changelog")
        case "delta":
            yield Place("delta", lambda t: by_id(read_delta(lake / t.db / t.table).to_pylist()))
        case "iceberg":
            yield Place("iceberg", lambda t: by_id(iceberg_table(lake / t.db / t.table).scan().to_arrow().to_pylist()))
        case "postgresql":
            postgres: PostgresServer = request.getfixturevalue("postgres")
            with postgres.fresh_database() as home:
                keys = sink_keys(postgres, home)
                yield Place("jdbc", lambda t: selected(postgres.connect(home), t, quote='"'), keys=keys)
        case "mysql":
            replica: DatabaseServer = request.getfixturevalue("mysql80")
            replica.execute("DROP DATABASE IF EXISTS `alike`", "DROP DATABASE IF EXISTS `alike.x`")
            keys = mysql_keys(replica, "alike_home")
            yield Place("jdbc", lambda t: selected(replica.connect(), t), keys=keys)
            replica.execute(*(f"DROP DATABASE IF EXISTS `{name}`" for name in ("alike", "alike.x", "alike_home")))
        case "mongodb":
            mongodb: MongoDb = request.getfixturevalue("mongodb")
            with mongodb.fresh_database() as record:
                keys = f'uri = "{mongodb.uri}"\nrecord = "{record}"\n'
                yield Place("mongodb", lambda t: by_id(mongodb.find(t.db, t.table)), keys=keys)
                with mongodb.client() as client:
                    for name in ("alike", "lake"):
                        client.drop_database(name)
        case "kafka":
            kafka: KafkaServer = request.getfixturevalue("kafka")
            keys = f'bootstrap_servers = "{kafka.bootstrap_servers}"\nformat = {{ type = "canal-json" }}\n'
            yield Place("kafka", lambda t: of_messages(kafka, f"{t.db}.{t.table}"), "changelog", keys)


def of_messages(kafka: KafkaServer, topic: str) -> Held:
    """The rows that a topic of Canal's messages leaves, which are all of one table."""
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reader", "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    rows: list[dict[str, Any]] = []
    tables = set()
    while (message := consumer.poll(10)) is not None and message.error() is None:
        value = json.loads(message.value() or b"{}")
        tables.add((value["database"], value["table"]))
        op = {"TRUNCATE": "T", "DELETE": "-D"}.get(value["type"], "+U")
        for row in value["data"] or [{"id": 0}]:
            rows.append(row | {"id": int(row["id"]), "_op": op, "_seq": len(rows)})
    consumer.close()
    assert len(tables) == 1, tables
    return by_id(rows)


def change(server: DatabaseServer, table: TableId, *statements: str) -> None:
    """`statements` about a table that they call T!."""
    server.execute(*(each.replace("T!", f"`{table.table}`") for each in statements), database=table.db)


@pytest.fixture(name="alike")
def _alike(request: pytest.FixtureRequest) -> DatabaseServer:
    """The server of the test, with both tables: the same keys, and other values."""
    server: DatabaseServer = request.getfixturevalue(request.param)
    for table in BOTH:
        server.execute(f"DROP DATABASE IF EXISTS `{table.db}`", f"CREATE DATABASE `{table.db}`")
        values = ", ".join(f"({n}, '{table.db} {n}')" for n in range(1, 7))
        change(server, table, "CREATE TABLE T! (id INT PRIMARY KEY, v VARCHAR(30))", f"INSERT INTO T! VALUES {values}")
    return server


def job_of(folder: Path, alike: DatabaseServer, place: Place) -> Job:
    # The expression sees neither the quotes nor which dot is between the parts.
    tables = ("(x\\.)?t",)
    return Job(folder, alike, "alike", tables, sink=place.sink, write=place.write, sink_keys=place.keys, local=True)


def command(job: Job, *words: str) -> tuple[int, str]:
    words = (*words[:-1], str(job.configuration())) if words[-1] == "CONFIG" else words
    done = completed(words, environment={**os.environ, "RAYCDC_TEST_PASSWORD": "cdc"}, folder=job.folder)
    return done.returncode, done.stdout + done.stderr


def require_equal_places(job: Job, place: Place, *tables: TableId) -> None:
    assert {table: place.read(table) for table in tables} == {t: source_rows(job.server, t) for t in tables}


def change_both(alike: DatabaseServer) -> None:
    for table in BOTH:
        change(alike, table, f"UPDATE T! SET v = 'now {table.db}' WHERE id < 3", "INSERT INTO T! VALUES (7, '7')")
    change(alike, DOTTED, "DELETE FROM T! WHERE id = 4")


@pytest.mark.parametrize(
    ("alike", "place"),
    [("mysql80", "parquet"), ("mysql80", "delta"), ("mariadb", "mysql"), ("mariadb", "postgresql")],
    indirect=True,
)
def test_two_tables_that_print_alike_arrive_whole_and_apart(
    alike: DatabaseServer, place: Place, tmp_path: Path
) -> None:
    job = job_of(tmp_path, alike, place)
    catch_up(job)
    require_equal_places(job, place, *BOTH)
    change_both(alike)
    assert job.start("--until", "caught-up", failpoints="between_tables=kill").wait() == -9
    catch_up(job)
    require_equal_places(job, place, *BOTH)


@pytest.mark.parametrize(("alike", "place"), [("mariadb", "delta")], indirect=True)
def test_each_of_two_tables_that_print_alike_is_asked_for_by_its_name(
    alike: DatabaseServer, place: Place, tmp_path: Path
) -> None:
    job = job_of(tmp_path, alike, place)
    catch_up(job)
    tables_command(job, "pause", QUOTED)
    before = place.read(DOTTED)
    for table in BOTH:
        change(alike, table, "UPDATE T! SET v = 'later' WHERE id = 5", "DELETE FROM T! WHERE id = 1")
    catch_up(job)
    assert {name: entry["phase"] for name, entry in listed(job).items()} == {PLAIN: "stream", QUOTED: "paused"}
    assert place.read(DOTTED) == before
    require_equal_places(job, place, NAMESAKE)
    # As configurations quote them.
    tables_command(job, "resume", "`alike.x`.`t`")
    tables_command(job, "resnapshot", "alike.`x.t`")
    change(alike, NAMESAKE, "INSERT INTO T! VALUES (8, '8')")
    change(alike, DOTTED, "ALTER TABLE T! ADD COLUMN more INT", "INSERT INTO T! VALUES (9, '9', 9)")
    catch_up(job)
    require_equal_places(job, place, *BOTH)
    change(alike, NAMESAKE, "TRUNCATE TABLE T!")
    catch_up(job)
    require_equal_places(job, place, *BOTH)
    assert place.read(NAMESAKE) == {}
    code, said = command(job, "check", "CONFIG")
    assert code == 0, said
    code, said = command(job, "inspect", "checkpoint", "CONFIG")
    assert code == 0, said
    assert set(json.loads(said)["commit"]["tables"]) == {PLAIN, QUOTED}


@pytest.mark.parametrize(
    ("alike", "place", "why"),
    [
        ("mariadb", "iceberg", "contains '.'"),
        ("mysql80", "mongodb", "contains '.'"),
        ("mariadb", "kafka", "cannot have the topic alike.x.t, because that is alike.x.t's"),
    ],
    indirect=["alike", "place"],
)
def test_a_target_that_cannot_tell_them_apart_parks_one_until_a_route_names_it(
    alike: DatabaseServer, place: Place, why: str, tmp_path: Path
) -> None:
    job = job_of(tmp_path, alike, place)
    for words in ("check", "plan") if place.sink == "kafka" else ("check",):
        _, said = command(job, words, "CONFIG")
        assert f"{QUOTED}: " in said
        assert why in said
    run = job.run()
    assert run.wait() == 4, run.story()
    assert why in run.story()
    require_equal_places(job, place, NAMESAKE)
    if place.sink == "iceberg":
        return  # It goes on as the others do, and takes long.
    change_both(alike)
    assert job.start("--until", "caught-up").wait() == 4
    require_equal_places(job, place, NAMESAKE)
    assert {name: entry["phase"] for name, entry in listed(job).items()} == {PLAIN: "stream", QUOTED: "parked"}
    job.sections = f'[[route]]\ntable = "{QUOTED}"\nto = "lake.alike_{place.sink}"\n'
    tables_command(job, "resnapshot", QUOTED)
    catch_up(job)
    change(alike, DOTTED, "UPDATE T! SET v = 'routed' WHERE id = 2")
    catch_up(job)
    require_equal_places(job, place, NAMESAKE)
    assert place.read(TableId("lake", f"alike_{place.sink}")) == source_rows(alike, DOTTED)


ROUTE = """
[[route]]
table = '(.*)'
to = "$1"
"""


@pytest.mark.parametrize(("alike", "place"), [("mariadb", "jsonl")], indirect=True)
def test_a_route_that_cannot_tell_them_apart_parks_one(alike: DatabaseServer, place: Place, tmp_path: Path) -> None:
    job = job_of(tmp_path, alike, place)
    job.sections = ROUTE
    why = "route[0] cannot tell it from alike.x.t"
    for words in ("check", "plan"):
        _, said = command(job, words, "CONFIG")
        assert f"{QUOTED}: {why}" in said
    run = job.run()
    assert run.wait() == 4, run.story()
    assert why in run.story()
    require_equal_places(job, place, NAMESAKE)
    job.pipeline = 'route_mode = "first_match"'
    job.sections = f'[[route]]\ntable = "{QUOTED}"\nto = "{QUOTED}"\n{ROUTE}'
    tables_command(job, "resnapshot", QUOTED)
    catch_up(job)
    require_equal_places(job, place, *BOTH)


def feed(kafka: KafkaServer, topic: str, number: int) -> None:
    """A row of each table, in Maxwell's words."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for table in BOTH:
        head = {"database": table.db, "table": table.table, "type": "insert", "ts": 1_700_000_000 + number}
        producer.produce(topic, json.dumps({**head, "data": {"id": number, "v": table.db}}).encode(), partition=0)
    assert producer.flush(20) == 0


@pytest.mark.parametrize("place", ["delta"], indirect=True)
def test_tables_of_messages_that_print_alike_are_two(kafka: KafkaServer, place: Place, tmp_path: Path) -> None:
    broker: Any = kafka
    with kafka.fresh_topic() as topic:
        job = TopicJob(tmp_path, broker, "alike", (), sink=place.sink, local=True, readers=1)
        job.topic, job.columns = topic, "id BIGINT, v STRING, PRIMARY KEY (id)"
        feed(kafka, topic, 1)
        catch_up(job)
        feed(kafka, topic, 2)
        assert job.start("--until", "caught-up", failpoints="between_tables=kill").wait() == -9
        catch_up(job)
    for table in BOTH:
        assert place.read(table) == {n: {"id": n, "v": table.db} for n in (1, 2)}
