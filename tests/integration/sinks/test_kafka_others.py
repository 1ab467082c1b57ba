"""Other people at a Kafka sink's topics: a topic that is deleted and made anew is never written on in silence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from raycdc.errors import SinkError, TargetDroppedError
from raycdc.sandbox.servers import KafkaServer
from raycdc.sinks.api import Sink
from raycdc.sinks.kafka.sink import KafkaSink
from raycdc.sinks.kafka.transactions import KafkaTarget, read_record
from raycdc.testing.epochs import ScriptedTable
from tests.epochs.sink_world import TOPICS, World, new_world

pytestmark = [pytest.mark.server, pytest.mark.timeout(1800)]


@pytest.fixture(params=TOPICS)
def world(request: pytest.FixtureRequest, kafka: KafkaServer, tmp_path: Path) -> World:
    made = new_world(request.param, tmp_path, kafka)
    made.script.tables = {}
    made.script.table("shop.orders")
    return made


def orders(world: World) -> ScriptedTable:
    return world.script.table("shop.orders")


def epoch(world: World, first: int, *, final: bool = False) -> None:
    for number in range(first, first + 40):
        orders(world).insert({"id": number, "name": "a", "qty": number})
    world.script.seal(final=final)


def made_anew(world: World) -> None:
    """As somebody does who wants to be rid of old messages."""
    assert world.kafka is not None
    topic = world.topic(orders(world))
    world.kafka.delete_topic(topic)
    world.kafka.create_topic(topic, partitions=3 if world.kind == "kafka-parts" else 1)


def target_of(sink: Sink, world: World) -> KafkaTarget:
    assert isinstance(sink, KafkaSink)
    return sink._target(orders(world).id)


def committed_by_hand(world: World, target: KafkaTarget, offset: int, note: Mapping[str, object]) -> None:
    """The record as if another version had written it."""
    assert world.kafka is not None
    admin = AdminClient({"bootstrap.servers": world.kafka.bootstrap_servers})
    place = TopicPartition(target.topic, 0, offset, json.dumps(note))
    (done,) = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(target.identity, [place])]).values()
    done.result(120)


def test_a_record_of_another_topic_of_this_name_is_not_believed(world: World) -> None:
    """Who loses the race: the topic is made anew between the record and the messages of one transaction."""
    sink = world.sink()
    epoch(world, 1, final=True)
    world.loop(sink).run()
    late = target_of(sink, world)
    made_anew(world)
    committed_by_hand(world, late, 8 + 7, {"version": 2, "generation": 1, "topic": late.topic_id})
    epoch(world, 100, final=True)
    with pytest.raises(TargetDroppedError, match=r"is another topic than this pipeline wrote to"):
        world.loop(sink).run()


def test_a_record_that_an_older_version_wrote_is_read(world: World) -> None:
    sink = world.sink()
    epoch(world, 1, final=True)
    world.loop(sink).run()
    target = target_of(sink, world)
    record = read_record(target)
    assert record.topic_id == target.topic_id != ""
    assert record.vector is not None
    older = {"generation": record.vector.generation, "epoch": record.cut.epoch, "parts": record.cut.parts,
             "most": record.cut.most}  # fmt: skip
    committed_by_hand(world, target, record.vector.epoch * 8 + record.vector.step, older)
    assert read_record(target) == replace(record, topic_id="")
    epoch(world, 100, final=True)
    world.restart()
    world.check()
    assert read_record(target_of(sink, world)).topic_id == target.topic_id


def test_a_record_of_a_newer_version_is_refused(world: World) -> None:
    sink = world.sink()
    epoch(world, 1, final=True)
    world.loop(sink).run()
    committed_by_hand(world, target_of(sink, world), 15, {"version": 3, "generation": 1})
    with pytest.raises(SinkError, match="is of version 3, and this raycdc reads up to 2"):
        sink.committed(orders(world).id)
