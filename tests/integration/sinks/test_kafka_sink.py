"""The Kafka sink on a real broker: its record, its topics, who may write. What all sinks promise: test_epoch_loop."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec

from raycdc.clients.kafka import Properties, producer_client
from raycdc.delivery.ports import Routing
from raycdc.delivery.rows.bad_row_filter import BadRowFilter
from raycdc.delivery.targets.parked_targets import ParkingPolicy
from raycdc.errors import FencedError, SinkError, ValueRefusedError
from raycdc.formats.api import EncodedBatch
from raycdc.model import RowKind, TableId, TableSchema
from raycdc.model.batch import SYMBOLS
from raycdc.model.evolution import SchemaChangeEvent, TruncateTableEvent
from raycdc.model.rules.routes import Router
from raycdc.sandbox.servers import KafkaServer
from raycdc.sandbox.servers.private import wait_until
from raycdc.segments.bad_rows import BadRecords
from raycdc.sinks.api import STEP_LAST, STEP_TOMBSTONE, CommitVector, TableCommit
from raycdc.sinks.kafka import sink as kafka_keeper
from raycdc.sinks.kafka import tasks as kafka_tasks
from raycdc.sinks.kafka import transactions as kafka_transactions
from raycdc.sinks.kafka.checks import check_sink
from raycdc.sinks.kafka.plugin import KafkaSinkConfig
from raycdc.sinks.kafka.sink import KafkaSink
from raycdc.sinks.kafka.transactions import KafkaTarget, Message, TransactionalProducer, read_record
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.store import CheckpointStore
from raycdc.testing.epochs import EpochScript, ScriptedTable
from tests.epochs.sink_world import World

pytestmark = [pytest.mark.server, pytest.mark.timeout(1800)]


@dataclass
class TopicWorld(World):
    """Scripted epochs into one topic, with options of the sink."""

    topic_name: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    #: Some tests write as two drivers at once.
    foresees: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        made = {"type": "kafka", "bootstrap_servers": self.brokers, "topic": self.topic_name}
        return {**made, "format": {"type": "maxwell-json"}, **self.options}

    @property
    def brokers(self) -> str:
        assert self.kafka is not None
        return self.kafka.bootstrap_servers

    def table(self) -> ScriptedTable:
        return next(iter(self.script.tables.values()))


def read(kafka: KafkaServer, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Committed messages of a topic with one partition: key and value."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "reader",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[bytes | None, bytes | None]] = []
    while True:
        for message in consumer.consume(1000, timeout=5):
            if message.error() is not None:
                consumer.close()
                return found
            found.append((message.key(), message.value()))


class RowEncoder:
    """A format of the test's own: every row is a message, tombstones follow deletes, changes have messages."""

    def __init__(self, table: TableId, schema: TableSchema, *, tombstones: bool, table_in_key: bool) -> None:
        self._head = f"{table}/" if table_in_key else ""
        self._key = schema.primary_key
        self._tombstones = tombstones

    def encode(self, batch: pa.RecordBatch) -> EncodedBatch:
        keys: list[bytes] = []
        values: list[bytes | None] = []
        for row in batch.to_pylist():
            keys.append((self._head + "/".join(str(row[name]) for name in self._key)).encode())
            values.append(json.dumps({**row, "_op": SYMBOLS[row["_op"]]}).encode())
            if self._tombstones and row["_op"] == RowKind.DELETE:
                keys.append(keys[-1])
                values.append(None)
        return EncodedBatch(pa.array(keys, pa.binary()), pa.array(values, pa.binary()))

    def encode_change(self, event: SchemaChangeEvent, *, ts_ms: int) -> bytes | None:
        return event.type.encode()


class RowFormat:
    """See `RowEncoder`."""

    def __init__(self, *, tombstones: bool = False, table_in_key: bool = False, **_: Any) -> None:
        self._options = {"tombstones": tombstones, "table_in_key": table_in_key}

    def encoder(self, table: TableId, schema: TableSchema) -> RowEncoder:
        return RowEncoder(table, schema, **self._options)


@pytest.fixture(autouse=True)
def _row_format(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_identifier: str, **options: Any) -> RowFormat:
        return RowFormat(**options)

    monkeypatch.setattr(kafka_tasks, "load_format", load)


def new_world(kafka: KafkaServer, folder: Path, topic: str, **options: Any) -> TopicWorld:
    script = EpochScript(CheckpointStore(folder / "state", pipeline="p"))
    world = TopicWorld("kafka", folder, script, kafka, topic_name=topic, options=options)
    world.script.table(f"shop.{topic}")
    return world


def expect_changelog(world: TopicWorld) -> None:
    """The topic holds every change once, in order, and nothing else."""
    names = [column.name for column in world.table().schema.columns]
    assert world.kafka is not None
    rows = [json.loads(value) for _, value in read(world.kafka, world.topic_name) if value is not None]
    ordered = sorted(rows, key=lambda row: row["_seq"])
    assert [(row["_op"], {name: row[name] for name in names}) for row in ordered] == world.table().changelog


def test_a_driver_that_wakes_from_a_pause_can_commit_nothing_any_more(kafka: KafkaServer, tmp_path: Path) -> None:
    with kafka.fresh_topic() as topic:
        world = new_world(kafka, tmp_path, topic)
        world.script.random_epoch(operations=5)
        manifest = world.script.seal()
        old, new = world.sink(), world.sink()
        work = work_of(world, manifest)
        assert isinstance(old, KafkaSink)
        with TransactionalProducer(old._target(work.target)) as paused:
            paused._producer.begin_transaction()
            paused._producer.produce(topic, b"late")
            new.tombstone(replace(work, generation=2, segments=()))
            assert new.committed(work.target) == CommitVector(manifest.epoch, STEP_TOMBSTONE, 2)
            with pytest.raises(SinkError, match="another process took over"):
                paused._ask(lambda: paused._producer.commit_transaction(20))
        with pytest.raises(FencedError, match="generation 2"):
            old.commit(work, None)
        assert read(kafka, topic) == []


def work_of(world: TopicWorld, manifest: Manifest) -> TableCommit:
    table = world.table()
    return TableCommit(
        epoch=manifest.epoch,
        generation=1,
        source=table.id,
        target=table.id,
        schema=table.schema,
        changes=(),
        segments=manifest.segments,
        positions={},
    )


def test_the_record_is_read_from_the_cluster_and_belongs_to_the_topic(kafka: KafkaServer, tmp_path: Path) -> None:
    with kafka.fresh_topic() as topic:
        world = new_world(kafka, tmp_path, topic)
        world.script.random_epoch(operations=5)
        manifest = world.script.seal()
        sink, work = world.sink(), work_of(world, manifest)
        assert sink.committed(work.target) is None
        sink.commit(work, None)
        sink.commit(work, None)
        assert world.sink().committed(work.target) == CommitVector(manifest.epoch, STEP_LAST, 1)
        expect_changelog(world)


def test_somebody_elses_topic_is_not_written_to_unless_told(kafka: KafkaServer, tmp_path: Path) -> None:
    with kafka.fresh_topic() as topic:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        producer.produce(topic, b"mine")
        assert producer.flush(20) == 0
        world = new_world(kafka, tmp_path, topic)
        world.topic_name = "{table}"
        work = work_of(world, world.script.seal())
        with pytest.raises(SinkError, match="did not write"):
            world.sink().apply_schema(work)
        world.sink(on_existing="merge").apply_schema(work)


def test_tables_whose_topics_brokers_do_not_make_beside_each_other_are_told_beforehand(kafka: KafkaServer) -> None:
    config = KafkaSinkConfig(bootstrap_servers=kafka.bootstrap_servers, format={"type": "canal-json"})
    tables = [TableId("clash", name) for name in ("a_b", "a.b", "other")]

    def told() -> dict[str, bool]:
        found = [result for result in check_sink(config, tables, pipeline="p") if result.name == "sink topic"]
        return {result.text: result.parks for result in found if not result.ok}

    assert told() == {
        "clash.a_b: topic clash.a_b cannot be beside clash.a.b, from which it differs only in '.' and '_'.": True
    }
    kafka.create_topic("clash.a_b")
    assert told() == {
        "clash.a.b: topic clash.a.b cannot be beside clash.a_b, from which it differs only in '.' and '_'.": True
    }


def test_deletes_have_tombstones_and_schema_changes_their_own_topic(kafka: KafkaServer, tmp_path: Path) -> None:
    with kafka.fresh_topic() as topic:
        world = new_world(kafka, tmp_path, topic, tombstones=True, ddl_topic=f"{topic}.ddl")
        table = world.table()
        table.insert({"id": 1, "name": "a", "qty": 1})
        table.delete((1,))
        world.script.seal(final=True)
        world.restart()
        world.restart()
        assert [(key, value is None) for key, value in read(kafka, topic)] == [
            (f"shop.{topic}/1".encode(), False),
            (f"shop.{topic}/1".encode(), False),
            (f"shop.{topic}/1".encode(), True),
        ]
        assert [value for _, value in read(kafka, f"{topic}.ddl")] == [b"create_table"]


@pytest.mark.long(suite="sinks")
def test_the_record_of_a_quiet_table_is_kept_beyond_what_brokers_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_keeper, "RENEW_AFTER_S", 10.0)
    monkeypatch.setattr(kafka_keeper, "POLL_EVERY_S", 1.0)
    short = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}
    with KafkaServer(short) as kafka:
        topic = kafka.create_topic("quiet")
        world = new_world(kafka, tmp_path, topic)
        world.script.random_epoch(operations=5)
        manifest = world.script.seal()
        sink, work = world.sink(), work_of(world, manifest)
        sink.commit(work, None)
        assert isinstance(sink, KafkaSink)
        kept = sink._target(work.target)
        forgotten = replace(kept, identity="nobody")
        with TransactionalProducer(forgotten) as transactions:
            transactions.write(CommitVector(1, STEP_LAST, 1), ())
        # Both groups have no member, and one has no keeper.
        wait_until(lambda: read_record(forgotten).vector is None, timeout_s=150, what="the broker to forget a record")
        assert read_record(kept).vector == CommitVector(manifest.epoch, STEP_LAST, 1)
        sink.close()
        assert len(read(kafka, topic)) == len(world.table().changelog)


@pytest.mark.parametrize(("topic", "ddl"), [("clash2.{db}.{table}", "clash2.shop_a"), ("clash3", "clash3")])
def test_a_topic_of_schema_changes_that_collides_with_a_tables_is_found_beforehand(
    kafka: KafkaServer, topic: str, ddl: str
) -> None:
    config = KafkaSinkConfig(
        bootstrap_servers=kafka.bootstrap_servers, format={"type": "canal-json"}, topic=topic, ddl_topic=ddl
    )
    found = check_sink(config, [TableId("shop", "a")], pipeline="p")
    refused = {result.text: (result.parks, result.required) for result in found if not result.ok}
    text = (
        "sink.ddl_topic: topic clash2.shop_a cannot be beside clash2.shop.a, from which it differs only in '.' and '_'."
    )
    assert refused == ({} if topic == ddl else {text: (False, True)})


def test_a_truncation_comes_once_into_a_topic_that_has_rows_and_changes(kafka: KafkaServer, tmp_path: Path) -> None:
    with kafka.fresh_topic() as topic:
        world = new_world(kafka, tmp_path, topic, ddl_topic=topic)
        table = world.table()
        table.insert({"id": 1, "name": "a", "qty": 1})
        world.script.seal()
        world.restart()
        before = len(read(kafka, topic))
        table.changes.append(TruncateTableEvent(table.id))
        table.truncate()
        table.insert({"id": 2, "name": "b", "qty": 1})
        world.script.seal(final=True)
        world.restart()
        values = [value for _, value in read(kafka, topic)[before:] if value is not None]
        assert [value for value in values if b"truncate" in value] == [b"truncate_table"]
        assert len(values) == 2


LARGE_BYTES = 3_000_000


def with_topic(kafka: KafkaServer, topic: str, max_message_bytes: int) -> None:
    entry = ConfigEntry("max.message.bytes", str(max_message_bytes), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin: AdminClient = kafka.admin()
    (done,) = admin.incremental_alter_configs([resource]).values()
    done.result(120)


def noise(size: int) -> str:
    """Text that no compression makes much smaller."""
    return random.Random(1).randbytes(size // 2).hex()


def test_a_message_may_be_as_large_as_its_topic_allows(kafka: KafkaServer, tmp_path: Path) -> None:
    with kafka.fresh_topic() as topic:
        with_topic(kafka, topic, 4_000_000)
        world = new_world(kafka, tmp_path, topic)
        world.table().insert({"id": 1, "name": noise(LARGE_BYTES), "qty": 1})
        world.script.seal(final=True)
        world.restart()
        assert len(read(kafka, topic)) == 1


@pytest.mark.parametrize("action", ["skip", "dead-letter", "fail"])
def test_a_row_that_is_too_large_for_its_topic_is_a_bad_row(kafka: KafkaServer, tmp_path: Path, action: str) -> None:
    with kafka.fresh_topic() as topic:
        world = new_world(kafka, tmp_path, topic)
        table = world.table()
        table.insert({"id": 1, "name": "small", "qty": 1})
        table.insert({"id": 2, "name": noise(LARGE_BYTES), "qty": 1})
        table.update((2,), name="smaller")
        table.insert({"id": 3, "name": noise(LARGE_BYTES), "qty": 1})
        table.delete((3,))
        world.script.seal(final=True)
        records = BadRecords(action, str(tmp_path / "dead") if action == "dead-letter" else "")
        sieve = BadRowFilter(records, tmp_path / "derived")
        told: list[str] = []
        parking = ParkingPolicy(on_bad_rows=told.append)
        world.restart(routing=Routing(Router(()), bad_row_filter=sieve, records=records), parking=parking)
        rows = [json.loads(value) for _, value in read(kafka, topic) if value is not None]
        record = world.store.last_commit()
        assert record is not None
        if action == "fail":
            assert rows == []
            assert "column name makes the message larger" in record.parked[str(table.id)].text
            return
        assert not record.parked
        assert [(row["id"], row["name"]) for row in rows] == [(1, "small"), (2, "smaller")]
        assert [text for text in told if "left out" in text]


def test_a_limit_that_is_raised_counts_from_the_next_new_snapshot_on(kafka: KafkaServer, tmp_path: Path) -> None:
    with kafka.fresh_topic() as topic:
        world = new_world(kafka, tmp_path, topic)
        sink = world.sink()
        assert isinstance(sink, KafkaSink)
        table = world.table()
        table.insert({"id": 1, "name": noise(LARGE_BYTES), "qty": 1})
        work = work_of(world, world.script.seal())
        with pytest.raises(ValueRefusedError):
            sink.commit(work, None)
        with_topic(kafka, topic, 4_000_000)
        sink.commit(work, None)
        assert len(read(kafka, topic)) == 1


def end_of(kafka: KafkaServer, topic: str, level: IsolationLevel) -> int:
    admin: AdminClient = kafka.admin()
    latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    (done,) = admin.list_offsets({TopicPartition(topic, 0): latest}, isolation_level=level).values()
    return int(done.result(120).offset)


def is_ended(kafka: KafkaServer, topic: str, before: int) -> bool:
    """Whether a message came after the offset `before`, and no transaction is open."""
    written = end_of(kafka, topic, IsolationLevel.READ_UNCOMMITTED)
    return written > before and end_of(kafka, topic, IsolationLevel.READ_COMMITTED) == written


def test_a_producer_whose_transaction_was_ended_says_so_wherever_it_notices(tmp_path: Path) -> None:
    with KafkaServer({"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}) as kafka:
        topic = kafka.create_topic("slow")
        for buffered, count in ((10, 1000), (1_000_000, 200_000), (1_000_000, 1)):
            before = end_of(kafka, topic, IsolationLevel.READ_UNCOMMITTED)
            made = {"bootstrap.servers": kafka.bootstrap_servers, "transaction.timeout.ms": "1000"}
            target = KafkaTarget(made, topic, f"slow{count}")

            def messages(count: int = count, before: int = before) -> Iterator[Message]:
                yield topic, b"k", b"v"
                wait_until(lambda: is_ended(kafka, topic, before), timeout_s=120, what="the end of the transaction")
                for _ in range(count):
                    yield topic, b"k", b"v" * 400

            with pytest.MonkeyPatch.context() as patch:
                limit = {"queue.buffering.max.messages": buffered}

                def client(properties: Properties, limit: Properties = limit, **options: Any) -> Producer:
                    return producer_client({**properties, **limit}, **options)

                patch.setattr(kafka_transactions, "producer_client", client)
                with (
                    pytest.raises(SinkError, match="the broker ended a transaction that was open for"),
                    TransactionalProducer(target) as transactions,
                ):
                    transactions.write(CommitVector(1, STEP_LAST, 1), messages())
