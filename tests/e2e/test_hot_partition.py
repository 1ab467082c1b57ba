"""Balance on a broker: one of several partitions becomes hot, and gets a reader of its own while messages come."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from raycdc.sandbox.background import again_and_again
from raycdc.sandbox.compare import read_changelog
from raycdc.sandbox.servers import KafkaServer
from tests.support.jobs import JobRun, TopicJob

pytestmark = [pytest.mark.server, pytest.mark.long(suite="balance")]

PARTITIONS = 6
HOT = 1
COLUMNS = "id BIGINT, note TEXT"
#: Every so often messages come, so many to each partition: half of about 1 MB/s is the hot one's. Others that bring
#: next to nothing would stay beside it, because moving them gains nothing.
STEP_S = 0.05
HOT_MESSAGES, OTHER_MESSAGES = 50, 10
NOTE = "x" * 500


class Feed:
    """Messages with numbers that never repeat; `sent` are those of each partition."""

    def __init__(self, kafka: KafkaServer, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "acks": "all"})
        self._topic = topic
        self._number = 0
        self.sent: Counter[int] = Counter()

    def send(self, partition: int, count: int) -> None:
        for _ in range(count):
            data = {"id": self._number, "note": NOTE}
            message = {"database": "shop", "table": "product", "type": "insert", "ts": 1_700_000_000, "data": data}
            self._producer.produce(self._topic, json.dumps(message).encode(), partition=partition)
            self._number += 1
            self.sent[partition] += 1
        self._producer.poll(0)

    @contextmanager
    def coming(self) -> Iterator[None]:
        """Messages come while the block runs."""

        def step() -> None:
            for partition in range(PARTITIONS):
                self.send(partition, HOT_MESSAGES if partition == HOT else OTHER_MESSAGES)

        try:
            with again_and_again(step, pause_s=STEP_S):
                yield
        finally:
            self._producer.flush()


def owners(run: JobRun) -> dict[int, frozenset[str]]:
    """The partitions that each reader had when it was told of last."""
    progress: list[dict[str, Any]] = [event for event in list(run.events) if event["event"] == "progress"]
    return {r["subtask"]: frozenset(r["splits"]) for r in progress[-1]["readers"]} if progress else {}


def numbers(lake: Path) -> Counter[int]:
    return Counter(row["id"] for row in read_changelog(lake, "jsonl") if row["note"] == NOTE)


def test_a_hot_partition_gets_a_reader_of_its_own_and_no_record_comes_twice(
    kafka: KafkaServer, tmp_path: Path, record_property: Any
) -> None:
    with kafka.fresh_topic(partitions=PARTITIONS) as topic:
        names = {f"{topic}:{partition}" for partition in range(PARTITIONS)}
        hot = f"{topic}:{HOT}"
        feed = Feed(kafka, topic)
        broker: Any = kafka
        job = TopicJob(
            tmp_path,
            broker,
            "shop",
            ("product",),
            sink="jsonl",
            write="changelog",
            local=True,
            readers=2,
            readers_min=2,
            topic=topic,
            columns=COLUMNS,
        )
        feed.send(HOT, 1)
        run = job.start()
        run.wait_for(lambda: set().union(*owners(run).values()) == names)
        before = owners(run)
        assert sorted(map(len, before.values())) == [3, 3]
        began_s = time.monotonic()
        with feed.coming():
            run.wait_for(lambda: frozenset({hot}) in owners(run).values())
            after = owners(run)
            record_property("seconds", round(time.monotonic() - began_s, 1))
            run.wait_for(lambda: set().union(*owners(run).values()) == names)
        assert run.wait_for(lambda: sum(numbers(job.lake).values()) >= sum(feed.sent.values()))
        assert run.interrupt() in (0, 130), run.story()
        assert set(numbers(job.lake).values()) == {1}
        assert len(numbers(job.lake)) == sum(feed.sent.values())
        record_property(
            "owners",
            json.dumps({k: [sorted(v) for v in w.values()] for k, w in (("before", before), ("after", after))}),
        )
        record_property("messages", json.dumps(dict(feed.sent)))
