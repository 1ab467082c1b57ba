"""A pipeline without a source, for each sink: scripted epochs, the epoch loop, and what the sink should hold."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bson.decimal128 import Decimal128
from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable
from pyiceberg.table import StaticTable
from pymysql.cursors import DictCursor

from raycdc.delivery.epoch_loop import EpochLoop
from raycdc.delivery.outcomes import Recovery
from raycdc.delivery.ports import EpochPorts, Routing
from raycdc.delivery.targets.parked_targets import ParkedTargets
from raycdc.errors import RaycdcError, SinkError, StateError, TableRefusedError, TargetExistsError
from raycdc.formats.api import MessageBatch, Origin, RowsItem
from raycdc.formats.plugins import load_format
from raycdc.model import TableId, TableSchema
from raycdc.model.batch import SYMBOLS
from raycdc.model.evolution import SchemaChangeBehavior
from raycdc.model.rules.layout import TableLayout, partition_fields
from raycdc.model.rules.routes import Router
from raycdc.model.rules.transform import Transform, Transforms
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.sandbox.servers import DatabaseServer, KafkaServer, MongoDb, PostgresServer
from raycdc.segments import run_in_process
from raycdc.segments.access import HERE, SegmentAccess
from raycdc.sinks.api import Sink, SinkContext, TableCommit
from raycdc.sinks.delta.sink import DeltaSink
from raycdc.sinks.mongodb.sink import MongoDbSink
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.store import CheckpointStore
from raycdc.testing.epochs import EpochScript, Row, ScriptedTable, simple_schema
from raycdc.transform import TransformedTables, TransformUse

#: One partition, and one transaction per epoch; several, and a transaction for each part of the keys.
TOPICS = ("kafka", "kafka-parts")
#: Delta merges few rows without tasks and more with them, and these tests have few: so one kind has no small epochs.
FILES = (
    "delta-upsert",
    "delta-tasks-upsert",
    "delta-partitioned-upsert",
    "delta-tasks-partitioned-upsert",
    "delta-changelog",
    "delta-partitioned-changelog",
    "iceberg-upsert",
    "iceberg-partitioned-upsert",
    "iceberg-changelog",
    "iceberg-partitioned-changelog",
    "parquet",
    "jsonl",
)
DATABASES = ("postgres-upsert", "postgres-changelog", "mysql-upsert")
#: An epoch's rows in one transaction with the record; in tasks with transactions of their own.
COLLECTIONS = ("mongodb-upsert", "mongodb-parts-upsert", "mongodb-changelog", "mongodb-parts-changelog")
KINDS = (*FILES, *(pytest.param(kind, marks=pytest.mark.server) for kind in (*TOPICS, *DATABASES, *COLLECTIONS)))
#: One kind of each target whose columns are those it was given.
STRICT_UPSERTS = (
    "delta-upsert",
    "iceberg-upsert",
    *(pytest.param(kind, marks=pytest.mark.server) for kind in ("postgres-upsert", "mysql-upsert", "mongodb-upsert")),
)
UPSERTS = (
    "delta-upsert",
    "delta-tasks-upsert",
    "delta-partitioned-upsert",
    "delta-tasks-partitioned-upsert",
    "iceberg-upsert",
    "iceberg-partitioned-upsert",
    *(pytest.param(k, marks=pytest.mark.server) for k in (*DATABASES, *COLLECTIONS) if k.endswith("-upsert")),
)

#: Partitions that rows move between, some without a value.
PARTITIONS = {"delta": ("qty",), "iceberg": ("truncate(10, qty)", "bucket(2, name)")}

#: And those that no schema change of these tests touches.
KEY_PARTITIONS = {"delta": ("id",), "iceberg": ("bucket(4, id)",)}

Server = PostgresServer | DatabaseServer

#: The database that the URL of a sink into MySQL names.
HOME = "raycdc_home"
#: Sinks for topics that the current test opened. Each has a thread that renews records after a while, and would then
#: come to a fail point of another test.
open_topics: list[Sink] = []


@dataclass
class World:
    """A pipeline without a source: scripted epochs, a sink, and what the sink should hold.

    What is routed, merged, transformed or named otherwise has a world that says so, and has the rest from here.
    """

    kind: str
    root: Path
    script: EpochScript
    kafka: KafkaServer | None = None
    server: Server | None = None
    mongodb: MongoDb | None = None
    #: What the targets are partitioned by.
    partition_by: tuple[str, ...] = ()
    table_options: tuple[tuple[str, str], ...] = ()
    #: Which tables' targets are.
    partitioned: str = ".*"
    #: Whether `restart` asks first what the recovery will come to. Not where others write meanwhile.
    foresees: bool = True
    #: What sinks told people of.
    told: list[str] = field(default_factory=list)

    @property
    def write(self) -> str:
        return "upsert" if self.kind.endswith("-upsert") else "changelog"

    @property
    def settings(self) -> dict[str, Any]:
        """The sink's section of a configuration."""
        if self.server is not None:
            own_user = {"user": "loader", "password": "loader"} if "-loader-" in self.kind else {}
            return {"type": "jdbc", **jdbc_options(self.server), **own_user}
        if self.mongodb is not None:
            return {"type": "mongodb", "uri": self.mongodb.uri, "record": HOME}
        if self.kafka is None:
            return {"type": self.kind.partition("-")[0], "path": str(self.root / "lake")}
        topic = f"{self._topics}.{{db}}.{{table}}"
        servers = self.kafka.bootstrap_servers
        sink = {"type": "kafka", "bootstrap_servers": servers, "topic": topic, "format": {"type": "maxwell-json"}}
        return sink | ({"partitions": 3, "task_bytes": "1000B"} if self.kind == "kafka-parts" else {})

    @property
    def _topics(self) -> str:
        return f"w{zlib.crc32(str(self.root).encode()):x}"

    def topic(self, table: ScriptedTable) -> str:
        return f"{self._topics}.{table.id}"

    @property
    def store(self) -> CheckpointStore:
        return self.script.store

    def sink(
        self,
        *,
        on_existing: str = "fail",
        run: Callable[..., Any] = run_in_process,
        access: SegmentAccess = HERE,
        schema_change: str = "lenient",
        left_out: frozenset[str] = frozenset(),
        looks: bool = False,
    ) -> Sink:
        """Opened as a run opens it, or as who only `looks`."""
        plugin = load_plugin(PluginGroup.SINKS, self.settings["type"])
        made: Sink = plugin.create(plugin.config(**self.settings))
        if self.kind.startswith("delta-tasks-"):
            assert isinstance(made, DeltaSink)
            made.small_bytes_max = -1
        if self.kind.startswith("mongodb-parts"):
            assert isinstance(made, MongoDbSink)
            made.small_bytes_max = -1
        if self.kafka is not None:
            open_topics.append(made)
        (made.inspect if looks else made.open)(
            SinkContext(
                self.store.app_id,
                self.write,
                run,
                on_existing,
                schema_change=SchemaChangeBehavior(schema_change),
                left_out=left_out,
                parallelism=2,
                access=access,
                warn=self.told.append,
            )
        )
        return made

    def loop(self, sink: Sink | None = None, **options: Any) -> EpochLoop:
        options = {"routing": self.routing, **options}
        ports = EpochPorts(generation=lambda: self.script.generation, next_sealed=self.next_sealed)
        return EpochLoop(self.store, sink or self.sink(), replace(ports, **options))

    @property
    def routing(self) -> Routing:
        """Nothing but partitions and properties."""
        layout = TableLayout(partition_fields(self.partition_by), self.table_options)
        if not layout:
            return Routing(Router(()))
        upsert = self.write == "upsert"
        transforms = Transforms([Transform(table=self.partitioned, layout=layout)])
        return Routing(Router(()), upsert, transforms=TransformedTables(transforms, use=TransformUse(upsert)))

    def next_sealed(self, after: int, _timeout_s: float) -> Manifest | None:
        return next(iter(self.store.manifests(after)), None)

    def restart(self, **options: Any) -> Recovery:
        """What a new driver does: a new generation, recovery, then everything that is sealed."""
        self.script.generation = self.store.generations.next()
        foreseen = self.foreseen(**options)
        loop = self.loop(**options)
        recovery = recovered(loop)
        if isinstance(recovery, RaycdcError):
            # That a disk is full shows when something is written.
            untold = foreseen is None or isinstance(recovery, TableRefusedError) or "takes no more" in str(recovery)
            assert untold or str(recovery) == foreseen
            raise recovery
        assert not foreseen, foreseen
        if loop.committed < self.store.next_epoch() - 1 and self.store.sealed_epochs(loop.committed):
            loop.run()
        return recovery

    def foreseen(self, **options: Any) -> str | None:
        """What ``raycdc check`` says that the recovery ends with; empty where it does not. Asking changes nothing.

        None where nobody could tell: an own way to begin again.
        """
        if not self.foresees or options.keys() & {"sink", "request_resnapshot"}:
            return None
        before = self.files()
        sink = self.sink(looks=True)
        try:
            self.loop(**{**options, "sink": sink}).inspect()
        except (SinkError, StateError) as error:
            # A transaction that the driver left open hides what a topic holds; the recovery ends it.
            return None if self.kafka is not None and "committed offsets" in str(error) else str(error)
        finally:
            sink.close()
            assert self.files() == before
        return ""

    def is_free(self, **options: Any) -> bool:
        """Whether ``raycdc check`` finds that all targets may be begun with. Asking changes nothing."""
        before = self.files()
        sink: Any = self.sink(looks=True, **options)
        try:
            for table in self.script.tables.values():
                if sink.committed(table.id) is None:
                    sink.require_free(table.id)
        except TargetExistsError:
            return False
        finally:
            sink.close()
            assert self.files() == before
        return True

    def files(self) -> dict[str, int]:
        """When each file here was written."""
        files = (path for path in self.root.rglob("*") if path.is_file())
        return {str(path): path.stat().st_mtime_ns for path in files}

    def again(self) -> World:
        """Another pipeline, without state, over the same sink."""
        return new_world(self.kind, self.root, self.kafka, self.server, self.mongodb)

    def rows(self, table: ScriptedTable) -> list[Row]:
        if self.kafka is not None:
            return read_changes(self.kafka, self.topic(table), table)
        if self.server is not None:
            return database_rows(self.server, table.id)
        if self.mongodb is not None:
            return documents(self.mongodb, self.store.app_id, table)
        return lake_rows(self.kind, self.root / "lake" / table.id.db / table.id.table)

    def target_rows(self, target: str, schema: TableSchema | None = None) -> list[Row]:
        """What the sink has of `target`; a topic's messages say so only to who knows the `schema`."""
        return self.rows(ScriptedTable(TableId.parse(target), schema or simple_schema()))

    def lose(self, table: ScriptedTable) -> None:
        """Somebody takes a table away from the sink."""
        if self.kafka is not None:
            self.kafka.delete_topic(self.topic(table))
        elif self.server is not None:
            self.server.execute(f"DROP TABLE {table.id.db}.{table.id.table}")
        elif self.mongodb is not None:
            with self.mongodb.client() as client:
                client[table.id.db].drop_collection(table.id.table)
        else:
            (self.root / "lake" / table.id.db / table.id.table).rename(self.root / "elsewhere")

    def check(self) -> None:
        """The sink holds exactly what the tables did."""
        for table in self.script.tables.values():
            names = [column.name for column in table.schema.columns]
            if self.write == "upsert":
                key = table.schema.primary_key[0]
                assert sorted(self.rows(table), key=lambda row: row[key]) == table.contents()
            else:
                got = sorted(self.rows(table), key=lambda row: row["_seq"])
                wanted = table.changelog if self.kafka is None else as_messages(table)
                if self.kind == "kafka-parts":
                    # Only a key's changes have an order.
                    got = sorted(got, key=lambda row: row["id"])
                    wanted = sorted(wanted, key=lambda change: change[1]["id"])
                assert [(row["_op"], {n: row[n] for n in names}) for row in got] == wanted
                assert {(row["_db"], row["_table"]) for row in got} == {(table.id.db, table.id.table)}


def works_of(loop: EpochLoop, manifest: Manifest, *, begun: bool = False) -> list[TableCommit]:
    """What each target of the loop's sink gets of an epoch; with `begun`, if all that are parked had begun again."""
    parts = loop._parts
    return list(parts.planner.of(manifest, ParkedTargets({}, parts.parked._parks) if begun else parts.parked).commits)


def commit(loop: EpochLoop, manifest: Manifest) -> None:
    """Stage and commit one epoch, the next one."""
    loop._writer.commit(loop._prepare(manifest, None))


def recovered(loop: EpochLoop) -> Recovery | RaycdcError:
    """What a recovery did, or with which contradiction it ended."""
    try:
        return loop.recover()
    except (SinkError, StateError) as error:
        return error


def iceberg_table(folder: Path) -> StaticTable:
    """An Iceberg table in a folder, as pyiceberg reads it without any catalog."""
    version = (folder / "metadata" / "version-hint.text").read_text()
    return StaticTable.from_metadata(str(folder / "metadata" / f"v{version}.metadata.json"))


def iceberg_rows(folder: Path) -> list[Row]:
    """The rows of an Iceberg table in a folder."""
    found: list[Row] = iceberg_table(folder).scan().to_arrow().to_pylist()
    return found


def lake_rows(kind: str, folder: Path) -> list[Row]:
    """The rows of a table that is a folder, as a sink of `kind` keeps it; of files in the order of their names."""
    if kind == "jsonl":
        return [json.loads(line) for f in sorted(folder.glob("*.jsonl")) for line in f.read_bytes().splitlines()]
    if kind == "parquet":
        return [row for f in sorted(folder.glob("*.parquet")) for row in pq.read_table(f).to_pylist()]
    if kind.startswith("iceberg"):
        return iceberg_rows(folder)
    found: list[Row] = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
    return found


def read_changes(kafka: KafkaServer, topic: str, table: ScriptedTable) -> list[Row]:
    """What committed messages of a topic say, as a changelog whose order is theirs, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "reader",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    partitions = consumer.list_topics(topic).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    messages: list[Any] = []
    while sum(message.error() is not None for message in messages) < len(partitions):
        messages += consumer.consume(1000, timeout=0.02)
    consumer.close()
    columns = ", ".join(f"{column.name} {column.type.spark()}" for column in table.schema.columns)
    rows: list[Row] = []
    for partition in sorted(partitions):
        # Each has a decoder of its own: rows of one partition may be older than those of another.
        ours = [m for m in messages if m.error() is None and m.partition() == partition]
        ordered = sorted(ours, key=lambda message: int(message.offset()))
        values = pa.array([message.value() for message in ordered], pa.large_binary())
        decoder = load_format("maxwell-json", columns=f"{columns}, PRIMARY KEY (id)").decoder()
        decoded = decoder.decode(MessageBatch(Origin(topic, partition), values, np.arange(len(values))))
        assert decoded.failure is None, decoded.failure
        rows += [row for item in decoded.items if isinstance(item, RowsItem) for row in item.batch.to_pylist()]
    names = {"_db": table.id.db, "_table": table.id.table}
    return [{**row, **names, "_op": SYMBOLS[row["_op"]], "_seq": number} for number, row in enumerate(rows)]


def as_messages(table: ScriptedTable) -> list[tuple[str, Row]]:
    """A row that moves to another key is a delete and an insert in a topic, as its messages have two keys."""
    changes = list(table.changelog)
    for at, (op, row) in enumerate(table.changelog):
        if op == "-U" and table.key(row) != table.key(changes[at + 1][1]):
            changes[at : at + 2] = [("-D", row), ("+I", changes[at + 1][1])]
    return changes


def kafka_of(request: pytest.FixtureRequest, kind: str) -> KafkaServer | None:
    """The broker, started only for who needs it."""
    found: KafkaServer | None = request.getfixturevalue("kafka") if kind in TOPICS else None
    return found


def world_of(request: pytest.FixtureRequest, kind: str, root: Path) -> World:
    """A world on an empty server, started only for who needs it."""
    server: Server | None = None
    mongodb: MongoDb | None = None
    if kind in COLLECTIONS:
        mongodb = request.getfixturevalue("mongodb_homes")
        assert isinstance(mongodb, MongoDb)
        mongodb.drop("shop", HOME)
    if kind.startswith("postgres"):
        server = request.getfixturevalue("postgres")
        assert isinstance(server, PostgresServer)
        statements = [f'DROP SCHEMA IF EXISTS "{name}" CASCADE' for name in ("shop", "raycdc_stage")]
        server.execute(*statements, "DROP TABLE IF EXISTS raycdc_commit")
    elif kind.startswith("mysql"):
        server = request.getfixturevalue("mariadb")
        assert isinstance(server, DatabaseServer)
        server.execute(*(f"DROP DATABASE IF EXISTS {name}" for name in ("shop", HOME)), f"CREATE DATABASE {HOME}")
    return new_world(kind, root, kafka_of(request, kind), server, mongodb)


def new_world(
    kind: str,
    root: Path,
    kafka: KafkaServer | None = None,
    server: Server | None = None,
    mongodb: MongoDb | None = None,
    *,
    pipeline: str = "shop",
) -> World:
    script = EpochScript(CheckpointStore(root / "state", pipeline=pipeline), seed=7)
    for name in ("shop.orders", "shop.items"):
        script.table(name)
    partition_by = PARTITIONS[kind.partition("-")[0]] if "partitioned" in kind else ()
    return World(kind, root, script, kafka, server, mongodb, partition_by)


def jdbc_options(server: Server) -> dict[str, Any]:
    """The keys of the sink's section for a private server."""
    if isinstance(server, PostgresServer):
        return {"url": f"jdbc:{server.url()}", "user": server.user, "password": server.password}
    url = f"jdbc:mysql://{server.host}:{server.port}/{HOME}"
    return {"url": url, "user": "root", "password": server.root_password}


def database_rows(server: Server, target: TableId) -> list[Row]:
    """The rows of a table as Python values, numerics as decimals."""
    if isinstance(server, PostgresServer):
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f'SELECT * FROM "{target.db}"."{target.table}"')
            table: pa.Table = cursor.fetch_arrow_table()
        numerics = [f.name for f in table.schema if "type_name=numeric" in str(f.type)]
        rows: list[Row] = table.to_pylist()
        for row in rows:
            row |= {name: Decimal(row[name]) for name in numerics if row[name] is not None}
        return rows
    with server.connect(cursorclass=DictCursor) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM `{target.db}`.`{target.table}`")
        return list(cursor.fetchall())


def documents(mongodb: MongoDb, app_id: str, table: ScriptedTable) -> list[Row]:
    """The documents of a collection as rows: without their keys, decimals as decimals, and null for a field of the
    target that is not there.
    """
    (record,) = mongodb.find(HOME, "raycdc_commit", {"_id": {"app": app_id, "target": str(table.id)}})
    columns = json.loads(record["columns"])
    names = [column["name"] for column in (columns if isinstance(columns, list) else columns["columns"])]
    rows = []
    for document in mongodb.find(table.id.db, table.id.table):
        del document["_id"]
        row: Row = {**dict.fromkeys(names), **document}
        rows.append({n: v.to_decimal() if isinstance(v, Decimal128) else v for n, v in row.items()})
    return rows


def play(world: World, *, epochs: int = 3, final: bool = True) -> None:
    """A snapshot that overlaps the log, then changes."""
    orders = world.script.table("shop.orders")
    orders.read([{"id": i, "name": "snapshot", "qty": None} for i in range(100, 130)])
    for number in range(epochs):
        if number == 1:
            orders.read([{"id": i, "name": "second chunk", "qty": 1} for i in range(130, 160)])
        world.script.random_epoch(operations=30)
        orders.update((100 + number,), qty=number)
        world.script.seal(final=final and number == epochs - 1)
