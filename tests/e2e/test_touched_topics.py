"""`raycdc run` into topics that others delete: the table is parked, and the way out that people are told mends it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from raycdc.sandbox.servers import KafkaServer, MariaDbServer
from tests.e2e.test_parked_tables import tables_command
from tests.e2e.test_parked_targets import make
from tests.e2e.test_refusing_targets import parked_run
from tests.support.jobs import Job, catch_up

pytestmark = pytest.mark.server

DATABASE = "touched_topics"


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


def test_a_topic_made_anew_parks_its_table_until_that_is_read_anew(
    mariadb: MariaDbServer, kafka: KafkaServer, tmp_path: Path
) -> None:
    names = ("healthy", "remade")
    make(
        mariadb,
        DATABASE,
        *(f"CREATE TABLE {name} (id INT PRIMARY KEY)" for name in names),
        *(f"INSERT INTO {name} VALUES (1), (2)" for name in names),
    )
    keys = f'bootstrap_servers = "{kafka.bootstrap_servers}"\nformat = {{ type = "canal-json" }}\n'
    job = Job(tmp_path, mariadb, DATABASE, names, sink="kafka", sink_keys=keys, write="changelog", local=True)
    catch_up(job)
    topic = f"{DATABASE}.remade"
    assert sorted(key for _, ids in changes(kafka, topic) for key in ids) == [1, 2]
    kafka.delete_topic(topic)
    kafka.create_topic(topic)
    mariadb.execute(*(f"INSERT INTO {name} VALUES (3)" for name in names), database=DATABASE)
    said = parked_run(job, "remade")
    assert f"raycdc tables resnapshot CONFIG {DATABASE}.remade" in said
    assert changes(kafka, topic) == []
    assert sorted(key for _, ids in changes(kafka, f"{DATABASE}.healthy") for key in ids) == [1, 2, 3]
    tables_command(job, "resnapshot", f"{DATABASE}.remade")
    catch_up(job)
    mariadb.execute("INSERT INTO remade VALUES (4)", database=DATABASE)
    catch_up(job)
    inserted = [key for kind, ids in changes(kafka, topic) if kind == "INSERT" for key in ids]
    assert sorted(inserted) == [1, 2, 3, 4]
