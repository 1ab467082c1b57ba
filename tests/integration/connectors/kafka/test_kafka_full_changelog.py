"""A topic that repeats itself, written on as a full changelog with the row before each change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.errors import SchemaError
from raycdc.pipeline import Pipeline
from raycdc.sandbox.servers import KafkaServer
from raycdc.sinks.kafka.plugin import KafkaSinkConfig
from tests.integration.sinks.test_kafka_sink import read

pytestmark = [pytest.mark.server, pytest.mark.timeout(1800)]


def produce(kafka: KafkaServer, topic: str, *changes: tuple[str, int, Any]) -> None:
    """Maxwell's messages: what happened, id, name; an update says nothing of the row before it."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for kind, number, name in changes:
        body = {"database": "shop", "table": "item", "type": kind, "ts": 1_700_000_000, "xid": 1, "commit": True}
        row = {"id": number, "name": name}
        old: dict[str, Any] = {"old": {}} if kind == "update" else {}
        producer.produce(topic, json.dumps({**body, "data": row, **old}).encode(), str(number).encode())
    assert producer.flush(20) == 0


def run(
    kafka: KafkaServer, state: Path, topic: str, *, columns: str = "id BIGINT, name STRING, PRIMARY KEY (id)"
) -> None:
    source = KafkaSourceConfig(
        bootstrap_servers=kafka.bootstrap_servers,
        topics=(topic,),
        format={"type": "maxwell-json", "columns": columns},
        changelog="full",
    )
    sink = KafkaSinkConfig(
        bootstrap_servers=kafka.bootstrap_servers,
        topic=f"{topic}.full",
        format={"type": "debezium-json"},
        write="changelog",
    )
    Pipeline(name="again", state=state, source=source, sink=sink, epoch_interval="100ms").run(
        until="caught-up", local=True
    )


def test_repeated_messages_and_missing_befores_become_a_full_changelog(kafka: KafkaServer, tmp_path: Path) -> None:
    with kafka.fresh_topic() as topic:
        produce(kafka, topic, ("insert", 1, "a"), ("insert", 2, "b"), ("insert", 1, "a"))
        run(kafka, tmp_path / "state", topic)
        produce(kafka, topic, ("insert", 2, "b"), ("insert", 1, "c"), ("update", 3, "d"), ("delete", 2, "?"))
        produce(kafka, topic, ("delete", 9, "?"))
        run(kafka, tmp_path / "state", topic)
        told = [json.loads(value) for _, value in read(kafka, f"{topic}.full") if value is not None]
    row = [{"id": number, "name": name} for number, name in ((1, "a"), (2, "b"), (1, "c"), (3, "d"))]
    assert [(entry["op"], entry["before"], entry["after"]) for entry in told] == [
        ("c", None, row[0]),
        ("c", None, row[1]),
        ("u", row[0], row[2]),
        ("c", None, row[3]),
        ("d", row[1], None),
    ]


def test_a_table_without_a_key_is_refused(kafka: KafkaServer, tmp_path: Path) -> None:
    with kafka.fresh_topic() as topic:
        produce(kafka, topic, ("insert", 1, "a"))
        with pytest.raises(SchemaError, match="has no primary key, by which"):
            run(kafka, tmp_path / "state", topic, columns="id BIGINT, name STRING")
