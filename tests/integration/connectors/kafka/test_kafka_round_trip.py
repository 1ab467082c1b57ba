"""What the Kafka sink writes, the Kafka source reads back to an equal table: real broker, real formats."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from raycdc.config import MaskOptions, PipelineConfig, PipelineOptions, Secret, TransformOptions
from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.errors import SinkError
from raycdc.model.evolution import TruncateTableEvent
from raycdc.pipeline import Pipeline
from raycdc.sandbox.compare import read_delta
from raycdc.sandbox.servers import KafkaServer
from raycdc.sinks.delta.plugin import DeltaSinkConfig
from tests.integration.sinks.test_kafka_sink import TopicWorld, new_world, read

pytestmark = [pytest.mark.server, pytest.mark.timeout(1800)]


def write(world: TopicWorld, *, truncated: bool) -> None:
    """Three epochs; in the second one the table is emptied, as a row and as a schema change."""
    table = world.table()
    for number in range(3):
        world.script.random_epoch(operations=40)
        if truncated and number == 1:
            table.truncate()
            table.changes.append(TruncateTableEvent(table.id))
            world.script.random_epoch(operations=10)
        world.script.seal(final=number == 2)
    world.restart()


def read_back(world: TopicWorld, folder: Path) -> list[dict[str, Any]]:
    source = KafkaSourceConfig(
        bootstrap_servers=world.brokers, topics=(world.topic_name,), format=world.options["format"]
    )
    sink = DeltaSinkConfig(type="delta", path=str(folder / "lake"))
    made = Pipeline(name="back", state=folder / "back", source=source, sink=sink, epoch_interval="100ms")
    made.run(until="caught-up", local=True)
    rows = read_delta(folder / "lake" / "shop" / world.topic_name).to_pylist()
    return sorted(rows, key=lambda row: int(row["id"]))


@pytest.mark.parametrize(
    "options",
    [
        {"format": {"type": "canal-json"}, "tombstones": True},
        {"format": {"type": "debezium-json"}, "tombstones": True, "include_schema": True},
    ],
    ids=["canal", "debezium-with-schema"],
)
def test_a_table_comes_back_as_it_was(kafka: KafkaServer, tmp_path: Path, options: dict[str, Any]) -> None:
    with kafka.fresh_topic() as topic:
        world = new_world(kafka, tmp_path, topic, ddl_topic=f"{topic}.ddl", **options)
        write(world, truncated=True)
        assert read_back(world, tmp_path) == world.table().contents()
        values = [value for _, value in read(kafka, topic)]
        deleted = sum(op in ("-D",) for op, _ in world.table().changelog)
        assert (values.count(None) >= deleted) is bool(options.get("tombstones"))
        documents = [json.loads(value) for value in values if value is not None]
        assert all(("schema" in document) is bool(options.get("include_schema")) for document in documents)
        (told,) = (json.loads(value or b"") for _, value in read(kafka, f"{topic}.ddl"))
        assert told.get("type", told.get("payload", told).get("op")) in ("TRUNCATE", "t")


@pytest.mark.parametrize("name", ["canal-json", "debezium-json", "maxwell-json"])
def test_what_compaction_leaves_of_a_topic_of_two_tables_are_the_rows_of_both(
    kafka: KafkaServer, tmp_path: Path, name: str
) -> None:
    with kafka.fresh_topic() as topic:
        world = new_world(kafka, tmp_path, topic, tombstones=True, format={"type": name})
        tables = [world.table(), world.script.table("shop.others")]
        for number in (1, 2):
            for table in tables:
                table.insert({"id": number, "name": table.id.table, "qty": number})
        world.script.seal()
        tables[0].delete((1,))
        tables[1].delete((2,))
        world.script.seal(final=True)
        world.restart()
        compacted = dict(read(kafka, topic))
        left = [value for value in compacted.values() if value is not None]
        assert len(left) == 2
        assert [b'"others"' in value for value in left].count(True) == 1


def test_a_truncation_that_has_no_place_in_the_topic_is_refused_and_the_transaction_ended(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    with kafka.fresh_topic() as topic:
        world = new_world(kafka, tmp_path / "maxwell", topic)
        with pytest.raises(SinkError, match="the format has no message for that"):
            write(world, truncated=True)
        assert len(read(kafka, topic)) > 0
    with kafka.fresh_topic(partitions=2) as topic:
        world = new_world(kafka, tmp_path / "canal", topic, format={"type": "canal-json"})
        with pytest.raises(SinkError, match="several partitions"):
            write(world, truncated=True)


def test_many_partitions_keep_each_key_in_one(kafka: KafkaServer, tmp_path: Path) -> None:
    with kafka.fresh_topic(partitions=3) as topic:
        world = new_world(kafka, tmp_path, topic, format={"type": "maxwell-json"})
        write(world, truncated=False)
        assert read_back(world, tmp_path) == world.table().contents()


def test_masked_and_transformed_topics_hold_what_they_may(kafka: KafkaServer, tmp_path: Path) -> None:
    with kafka.fresh_topic() as topic:
        world = new_world(kafka, tmp_path, topic, format={"type": "maxwell-json"})
        write(world, truncated=False)
        source = KafkaSourceConfig(
            bootstrap_servers=kafka.bootstrap_servers, topics=(topic,), format=world.options["format"]
        )
        config = PipelineConfig(
            pipeline=PipelineOptions(name="back", state=str(tmp_path / "back")),
            source=source,
            sink=DeltaSinkConfig(type="delta", path=str(tmp_path / "lake")),
            masks=(MaskOptions(columns=r".*\.name", method="hash", key=Secret("k")),),
            transforms=(TransformOptions(table=r"shop\..*", projection="id, name AS label, 'kafka' AS origin"),),
        )
        Pipeline.from_config(config).run(until="caught-up", local=True)
        got = read_delta(tmp_path / "lake" / "shop" / topic).to_pylist()
        expected = {
            int(row["id"]): (hmac.new(b"k", row["name"].encode(), hashlib.sha256).hexdigest(), "kafka")
            for row in world.table().contents()
        }
        assert {int(row["id"]): (row["label"], row["origin"]) for row in got} == expected
