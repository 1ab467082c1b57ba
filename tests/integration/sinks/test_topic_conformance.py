"""The suite that each sink is held to, for topics: of one partition, of several, and compacted ones."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from raycdc.formats.api import MessageBatch, Origin, RowsItem
from raycdc.formats.plugins import load_format
from raycdc.model import RowKind, TableId
from raycdc.model.batch import SYMBOLS
from raycdc.sandbox.servers import KafkaServer
from raycdc.sandbox.servers.private import free_port, wait_until
from raycdc.sinks.kafka.tasks import EMPTYING
from raycdc.testing.epochs import Row, ScriptedTable
from raycdc.testing.sink_conformance import SinkConformance
from tests.epochs.sink_world import as_messages
from tests.integration.sinks.on_s3 import play_only
from tests.support.servers.gate import Gate, GateMode

pytestmark = [pytest.mark.server, pytest.mark.timeout(1800)]

#: Those of the stories' tables, now and later.
COLUMNS = "id bigint, name string, qty int, city string, PRIMARY KEY (id)"
#: Of those who use the plain listener.
USER = "User:ANONYMOUS"


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[KafkaServer, Gate]]:
    """A broker that looks at what people may do, and the gate to its plain listener."""
    port, through = free_port(), free_port()
    options = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:cdc",
    }
    # The gate first: the broker is asked where it tells clients to go before it counts as started.
    with (
        Gate(KafkaServer.host, port, listens_on=through) as gate,
        KafkaServer(options, port=port, advertised_port=through) as kafka,
    ):
        yield kafka, gate


def of_topic(topic: str) -> tuple[ResourceType, str, ResourcePatternType, str, str]:
    """The beginning of a rule about what people may do with a topic."""
    return ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, USER, "*"


def permit(admin: Any, topic: str) -> None:
    """Remove all rules about a topic."""
    rules = AclBindingFilter(*of_topic(topic), AclOperation.ANY, AclPermissionType.ANY)
    admin.delete_acls([rules])[rules].result(120)


def forbid(admin: Any, topic: str) -> None:
    """Let people do all but write to a topic; returns when the broker knows."""
    rules = [
        AclBinding(*of_topic(topic), AclOperation.ALL, AclPermissionType.ALLOW),
        AclBinding(*of_topic(topic), AclOperation.WRITE, AclPermissionType.DENY),
    ]
    for done in admin.create_acls(rules).values():
        done.result(120)
    wanted = AclBindingFilter(*of_topic(topic), AclOperation.WRITE, AclPermissionType.DENY)
    wait_until(lambda: bool(admin.describe_acls(wanted).result(120)), timeout_s=120, what=f"a rule about {topic}")


class Topics(SinkConformance):
    """Targets are topics of one broker; each folder has topics of its own."""

    #: Not once somebody added partitions.
    keeps_order = False
    #: Messages of most formats, and of several partitions, cannot say them.
    left_out = EMPTYING
    impossible: ClassVar[Mapping[str, str]] = {
        "widen": "A message stays as it was written: topics have no columns.",
        "back_up": "A topic cannot be put back. A copy is another topic, as in the story of one that was made anew.",
        "rename": "Topics cannot be renamed.",
        "replace": "A log is never emptied: with `replace` a topic that has messages is refused as with `fail`.",
    }
    more: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _server(self, guarded: tuple[KafkaServer, Gate], monkeypatch: pytest.MonkeyPatch) -> None:
        # A broker that is away is noticed sooner.
        monkeypatch.setattr("raycdc.sinks.kafka.transactions.TIMEOUT_S", 5.0)
        monkeypatch.setattr("raycdc.sinks.kafka.sink.TIMEOUT_S", 5.0)
        self.kafka, self.gate = guarded

    def settings(self, folder: Path) -> dict[str, Any]:
        return {
            "type": "kafka",
            "bootstrap_servers": f"{self.gate.host}:{self.gate.port}",
            # The first answer of each client waits for half of this, and there are hundreds.
            "properties": {"reconnect.backoff.ms": "10"},
            "topic": f"{self.prefix(folder)}.{{db}}.{{table}}",
            "format": "maxwell-json",
            **self.more,
        }

    def prefix(self, folder: Path) -> str:
        return f"c{zlib.crc32(str(folder).encode()):x}"

    def topic(self, folder: Path, target: TableId) -> str:
        return f"{self.prefix(folder)}.{target}"

    def rows(self, folder: Path, target: TableId) -> list[Row]:
        """In the order of partitions and offsets, but for messages of different times."""
        messages = self.messages(self.topic(folder, target))
        values = pa.array([message.value() for message in messages if message.value()], pa.large_binary())
        decoder = load_format("maxwell-json", columns=COLUMNS).decoder()
        decoded = decoder.decode(MessageBatch(Origin("any", 0), values, np.arange(len(values))))
        assert decoded.failure is None
        rows = [row for item in decoded.items if isinstance(item, RowsItem) for row in item.batch.to_pylist()]
        return [{**row, "_op": SYMBOLS[row["_op"]], "_seq": number} for number, row in enumerate(rows)]

    def messages(self, topic: str) -> list[Any]:
        """The committed ones. A transaction counts a moment after its producer heard so, which is waited for."""
        wait_until(
            lambda: self.ends(topic, committed=True) == self.ends(topic), timeout_s=120, what="ends of transactions"
        )
        settings = {"bootstrap.servers": self.kafka.bootstrap_servers, "group.id": "reader"}
        # The first messages may be deleted.
        settings |= {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        consumer = Consumer({**settings, "enable.partition.eof": True})
        partitions = consumer.list_topics(topic).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        messages: list[Any] = []
        while sum(message.error() is not None for message in messages) < len(partitions):
            messages += consumer.consume(1000, timeout=0.02)
        consumer.close()
        there = [message for message in messages if message.error() is None]
        return sorted(there, key=lambda message: (message.timestamp()[1], message.partition(), message.offset()))

    def ends(self, topic: str, *, committed: bool = False) -> list[int]:
        """The end of each partition, for readers of committed messages or of all."""
        admin: AdminClient = self.kafka.admin()
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        numbers = admin.list_topics(topic, timeout=120).topics[topic].partitions
        if not numbers:
            return []
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = admin.list_offsets({TopicPartition(topic, n): latest for n in numbers}, isolation_level=level)
        return [done.result(120).offset for done in asked.values()]

    def changes(self, table: ScriptedTable) -> list[tuple[str, Row]]:
        return [change for change in as_messages(table) if change[0] != RowKind.TRUNCATE.symbol]

    def lose(self, folder: Path, target: TableId) -> None:
        self.kafka.delete_topic(self.topic(folder, target))

    def occupy(self, folder: Path, target: TableId) -> None:
        topic = self.kafka.create_topic(self.topic(folder, target))
        row = {"database": target.db, "table": target.table, "type": "insert", "ts": 1, "data": {"id": 1}}
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        producer.produce(topic, json.dumps(row).encode())
        assert producer.flush(20) == 0

    def alter(self, folder: Path, target: TableId) -> None:
        self.configure(self.topic(folder, target), "max.message.bytes", "100")

    def configure(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        admin: AdminClient = self.kafka.admin()
        (done,) = admin.incremental_alter_configs([resource]).values()
        done.result(120)

    def revoke(self, folder: Path, target: TableId) -> Callable[[], object]:
        admin, topic = AdminClient({**self.kafka.secure_properties}), self.topic(folder, target)
        forbid(admin, topic)
        return partial(permit, admin, topic)

    def erase(self, folder: Path, target: TableId) -> None:
        """As ``kafka-delete-records`` does."""
        admin: AdminClient = self.kafka.admin()
        (done,) = admin.delete_records([TopicPartition(self.topic(folder, target), 0, 3)]).values()
        done.result(120)

    def maintain(self, folder: Path, target: TableId) -> None:
        topic = self.topic(folder, target)
        self.kafka.add_partitions(topic, 4)
        self.configure(topic, "retention.ms", "600000000")

    @contextmanager
    def unreachable(self, folder: Path) -> Iterator[None]:
        with self.gate.being(GateMode.SHUT):
            yield


@pytest.mark.long(suite="sinks")
class TestOnePartition(Topics):
    """The whole suite, with one transaction for an epoch."""


class Parts(Topics):
    """An epoch is in parts, each with a transaction of its own."""

    more: ClassVar[dict[str, Any]] = {"partitions": 3, "task_bytes": "1000B"}


@pytest.mark.long(suite="sinks")
class TestSeveralPartitions(Parts):
    """The whole suite."""


class TestSeveralPartitionsInEachRun(Parts):
    """The worst that others do to a target."""


WORST = (
    "test_a_lost_target_is_recreated_during_the_run",
    "test_deleted_target_rows_are_noticed_or_later_changes_arrive",
    "test_a_target_that_may_not_be_written_any_more_is_parked_alone",
)
play_only(TestSeveralPartitionsInEachRun, WORST)


@pytest.mark.long(suite="sinks")
class TestCompacted(Topics):
    """A message without a value comes after each deletion, for topics that keep the last message of a key."""

    more: ClassVar[dict[str, Any]] = {"tombstones": True}
