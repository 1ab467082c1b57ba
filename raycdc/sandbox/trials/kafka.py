"""The sandbox server of Kafka: a broker with the shop's changes as Debezium's messages, in a topic per table."""

from __future__ import annotations

import base64
import json
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from raycdc.sandbox.servers.kafka import KafkaServer
from raycdc.sandbox.shop import ShopSize
from raycdc.sandbox.trials.goods import Row, SandboxRowChange, SandboxRows
from raycdc.sandbox.trials.trial import COMPARED, DATABASE, SandboxAccount, SandboxSourceServer

_TIMEOUT_S = 60.0
FORMAT = "debezium-json"


class KafkaSandbox(SandboxSourceServer):
    """A Kafka broker. Its plain listener needs no account; its TLS listener does."""

    title: ClassVar[str] = "Kafka"
    accounts: ClassVar[tuple[SandboxAccount, ...]] = ()

    def __init__(self, server: KafkaServer) -> None:
        super().__init__(server)
        self._server = server
        self._goods: SandboxRows | None = None
        self._producer: Any = None

    @property
    def version(self) -> str:
        from raycdc.sandbox.servers.kafka import KAFKA_VERSION

        return f"Kafka {KAFKA_VERSION}"

    @property
    def url(self) -> str:
        return self.address

    def preview_code(self, database: str, table: str) -> str:
        config = f'"bootstrap.servers": "{self.address}", "group.id": "look"'
        return f"""from confluent_kafka import Consumer
first = {{{config}, "auto.offset.reset": "earliest"}}
consumer = Consumer(first)
consumer.subscribe(["{database}.{table}"])
messages = consumer.consume(5, timeout=30)
print(*(message.value() for message in messages), sep="\\n")
consumer.close()"""

    @property
    def as_source(self) -> Mapping[str, str | int | Sequence[str]]:
        topics = [f"{DATABASE}.{table}" for table in COMPARED]
        return {"type": "kafka", "bootstrap_servers": self.address, "topics": topics, "format": FORMAT}

    @property
    def as_sink(self) -> Mapping[str, str]:
        return {"type": "kafka", "bootstrap_servers": self.address, "format": FORMAT}

    @property
    def init_words(self) -> Sequence[str]:
        topics = [word for table in COMPARED for word in ("--table", f"{DATABASE}.{table}")]
        return ["--source", "kafka", "--answer", f"bootstrap_servers={self.address}", *topics]

    def fill(self, size: ShopSize) -> None:
        from confluent_kafka import Producer

        self._producer = Producer({"bootstrap.servers": self.address, "log_level": 0})
        self._goods = SandboxRows(size, seed=random.randrange(2**31))
        for table, rows in self._goods.rows.items():
            self._server.create_topic(f"{DATABASE}.{table}")
            for row in rows.values():
                self._send(SandboxRowChange(table, None, row))
        self._flush()

    def step(self) -> None:
        assert self._goods is not None, "the shop is filled first"
        for change in self._goods.step():
            self._send(change)
        self._flush()

    def summary(self) -> str:
        assert self._goods is not None, "the shop is filled first"
        return self._goods.summary()

    def held(self, table: str) -> dict[int, str]:
        assert self._goods is not None, "the shop is filled first"
        return self._goods.held(table, COMPARED[table])

    def written(self, table: str) -> dict[int, str]:
        """Return the rows that result from a pipeline's messages about a table of the shop, as `held` does."""
        from confluent_kafka import Consumer, TopicPartition

        settings = {"bootstrap.servers": self.address, "group.id": "demo", "log_level": 0}
        # Messages of aborted transactions do not count.
        consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": "true"})
        rows: dict[int, str] = {}
        try:
            consumer.assign([TopicPartition(f"{DATABASE}.{table}", 0, 0)])
            while (message := consumer.poll(_TIMEOUT_S)) is not None and message.error() is None:
                if (value := message.value()) is None:
                    continue
                change = json.loads(value)
                if (before := change.get("before")) is not None:
                    rows.pop(_key(before), None)
                if (after := change.get("after")) is not None:
                    rows[_key(after)] = str(after[COMPARED[table]])
        finally:
            consumer.close()
        return rows

    def _send(self, change: SandboxRowChange) -> None:
        row = change.after or change.before
        assert row is not None
        now_ms = time.time_ns() // 1_000_000
        operation = "d" if change.after is None else "c" if change.before is None else "u"
        source = {"connector": "mysql", "db": DATABASE, "table": change.table, "ts_ms": now_ms}
        message = {"before": change.before, "after": change.after, "source": source, "op": operation, "ts_ms": now_ms}
        while True:
            try:
                self._producer.produce(
                    f"{DATABASE}.{change.table}",
                    json.dumps(message, ensure_ascii=False).encode(),
                    key=json.dumps({"id": row["id"]}).encode(),
                )
            except BufferError:
                self._producer.poll(1.0)
            else:
                return

    def _flush(self) -> None:
        left = self._producer.flush(_TIMEOUT_S)
        assert not left, f"{left} messages were not taken within {_TIMEOUT_S:g} s"


def _key(row: Row) -> int:
    """Return the key of a table's row, or of a collection's document.

    Debezium writes an unsigned BIGINT as its bytes in base64.
    """
    key = row.get("id", row.get("_id"))
    return int.from_bytes(base64.b64decode(key), "big", signed=True) if isinstance(key, str) else int(str(key))
