"""What a topic of Canal's messages says, for tests of commands that write there."""

from __future__ import annotations

import json

from confluent_kafka import Consumer, TopicPartition

from raycdc.sandbox.servers import KafkaServer


def changes(kafka: KafkaServer, topic: str) -> list[tuple[str, list[int]]]:
    """Of each message of a topic with one partition what it says, and the keys of its rows."""
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reader", "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[str, list[int]]] = []
    while (message := consumer.poll(10)) is not None and message.error() is None:
        value = json.loads(message.value() or b"{}")
        found.append((value["type"], [int(row["id"]) for row in value["data"] or ()]))
    consumer.close()
    return found
