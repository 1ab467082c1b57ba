"""How long servers keep what a pipeline has not read yet, as their own answers say."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from bson import Timestamp
from confluent_kafka import Producer

from raycdc.config import load_config
from raycdc.connectors.kafka.cluster.client import KafkaCluster
from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.connectors.kafka.source import log_retention
from raycdc.connectors.mongodb.stream.resume_token import StreamPosition
from raycdc.connectors.mongodb.stream.token import seconds_of
from raycdc.sandbox.servers import KafkaServer, MongoDb
from raycdc.server.service import retention_monitor
from raycdc.source.connector import LogRetention
from raycdc.source.snapshot.log.stream_state import stream_of
from raycdc.state.location import state_of
from raycdc.state.store import CheckpointStore
from tests.support.jobs import CollectionJob, catch_up

pytestmark = pytest.mark.server

HOUR_MS = 3_600_000
WEEK_S = 7 * 24 * 3600


def test_a_topic_keeps_its_oldest_unread_message_for_what_is_left_of_its_retention(kafka: KafkaServer) -> None:
    now_ms = time.time_ns() // 1_000_000
    week = {"retention.ms": str(1000 * WEEK_S)}
    with (
        kafka.fresh_topic(config=week) as topic,
        kafka.fresh_topic(config={"retention.ms": "-1"}) as forever,
        kafka.fresh_topic(config={**week, "retention.bytes": "1000000"}) as small,
    ):
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for hours in (50, 30, 10):
            producer.produce(topic, b"m", partition=0, timestamp=now_ms - hours * HOUR_MS)
        assert producer.flush(300) == 0
        form = {"type": "maxwell-json", "columns": "id INT, PRIMARY KEY (id)"}
        keys = {"type": "kafka", "bootstrap_servers": kafka.bootstrap_servers, "topics": [topic], "format": form}
        cluster = KafkaCluster(KafkaSourceConfig.model_validate(keys))
        # Everything was read; the message of fifty hours ago is next; that of ten hours ago is.
        for offset, age_s in ((3, 0), (0, 50 * 3600), (2, 10 * 3600)):
            room = log_retention(cluster, {(topic, 0): offset, (forever, 0): 0}, now_ms)
            assert room is not None
            assert room.kept_s == pytest.approx(WEEK_S - age_s, abs=300)
        assert log_retention(cluster, {(forever, 0): 0}, now_ms) == LogRetention(forever=True)
        assert log_retention(cluster, {(topic, 0): 3, (small, 0): 0}, now_ms) is None


def test_a_collection_has_the_time_between_the_oldest_entry_of_the_log_and_its_place(
    mongodb: MongoDb, mongodb_database: str, tmp_path: Path
) -> None:
    if not mongodb.private:
        pytest.skip("writes to the log of its server")
    nobody: Any = None
    with mongodb.client() as client:
        client[mongodb_database].c.insert_one({"_id": 1})
        job = CollectionJob(tmp_path, nobody, mongodb_database, ("c",), local=True, uri=mongodb.uri, startup="initial")
        catch_up(job)
        config = load_config(job.configuration())
        store = CheckpointStore.there(state_of(config), pipeline=config.pipeline.name)
        assert store is not None
        # The emulated server has no such collection, as mongos has none.
        assert retention_monitor(config, store)() is None
        state = stream_of(store.last_manifest())
        assert state is not None
        place_s, _ = seconds_of(StreamPosition.of(state.position).cluster_time)
        log = client["local"]["oplog.rs"]
        try:
            log.insert_one({"ts": Timestamp(place_s - 7200, 1)})
            room = retention_monitor(config, store)()
        finally:
            log.drop()
    assert room == LogRetention(kept_s=7200.0)
