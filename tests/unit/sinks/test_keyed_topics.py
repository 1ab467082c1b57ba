"""Keys of topics that several tables share: a key that decides about rows names the table, or the topic is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raycdc.errors import RoutesRefusedError
from raycdc.formats.options import FormatOptions
from raycdc.model import TableId, TableSchema
from raycdc.sinks.api import TableCommit
from raycdc.sinks.kafka import keyed_topics
from raycdc.sinks.kafka.keyed_topics import KeyedTopics, keys_name_tables
from raycdc.sinks.kafka.plugin import KafkaSinkConfig

TARGET = TableId("lake", "item")
COMMIT = TableCommit(1, 1, TableId("shop", "a"), TARGET, TableSchema(()), (), (), {})
MERGED = replace(COMMIT, merged=(TableId("shop", "a"), TableId("shop", "b")))


def config(**options: Any) -> KafkaSinkConfig:
    given = {"bootstrap_servers": "x:1", "format": {"type": "debezium-json"}, **options}
    return KafkaSinkConfig(**given)


@pytest.mark.parametrize("identifier", ["maxwell-json", "canal-json", "debezium-json"])
@pytest.mark.parametrize("topic", ["all", "{db}", "{db}.{table}"])
def test_keys_of_a_shared_topic_name_the_table(identifier: str, topic: str) -> None:
    made = config(topic=topic, format={"type": identifier})
    named = keys_name_tables(made.message_format)
    assert named is (topic != "{db}.{table}" or identifier == "maxwell-json")
    KeyedTopics(made, lambda _: True).require(COMMIT)


@pytest.mark.parametrize("by", [{"tombstones": True}, {"format": {"type": "canal-json", "tombstones": True}}, {}])
def test_several_tables_are_not_merged_into_a_topic_whose_keys_decide_about_rows(by: dict[str, Any]) -> None:
    topics = KeyedTopics(config(**by), lambda topic: not by and topic == "lake.item")
    topics.require(COMMIT)
    with pytest.raises(RoutesRefusedError, match=r"shop.a, shop.b all go to lake.item, and topic lake.item (gets|is)"):
        topics.require(MERGED)
    KeyedTopics(config(), lambda _: False).require(MERGED)


@pytest.mark.parametrize("by", [{"tombstones": True}, {}])
def test_a_format_whose_keys_cannot_name_the_table_is_refused_for_a_shared_topic(
    by: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_topics, "keys_name_tables", lambda _: False)
    with pytest.raises(RoutesRefusedError, match="keys of debezium-json do not name the table"):
        KeyedTopics(config(topic="all", **by), lambda _: not by).require(COMMIT)
    KeyedTopics(config(topic="all"), lambda _: False).require(COMMIT)
    KeyedTopics(config(**by), lambda _: not by).require(COMMIT)


def test_the_option_of_the_format_is_that_of_every_format() -> None:
    assert FormatOptions(type="x", table_in_key=True).table_in_key
