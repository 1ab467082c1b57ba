"""Partitions kept together in event time, as people see it: the real command, a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from raycdc.sandbox.servers import KafkaServer
from tests.support.jobs import JobRun, TopicJob

pytestmark = [pytest.mark.server, pytest.mark.timeout(1800)]

HOUR_S = 3600
#: The names of lags, and those that programs of before know them by.
LAGS = {
    "current_fetch_event_time_lag_ms": "currentFetchEventTimeLag",
    "current_emit_event_time_lag_ms": "currentEmitEventTimeLag",
    "source_idle_time_ms": "sourceIdleTime",
    "pending_records": "pendingRecords",
    "watermark_lag_ms": "watermarkLag",
}


@dataclass
class Feed:
    """Events of a table at seconds after an hour ago."""

    producer: Producer
    topic: str
    began_s: int
    count: int = 0

    def produce(self, partition: int, *seconds: int) -> None:
        for second in seconds:
            self.count += 1
            head = {"database": "shop", "table": "p", "type": "insert", "ts": self.began_s + second}
            message = json.dumps({**head, "data": {"id": self.count}})
            at = (self.began_s + second) * 1000
            self.producer.produce(self.topic, message.encode(), partition=partition, timestamp=at)
        assert self.producer.flush(20) == 0


def rows(run: JobRun) -> int:
    return sum(event["rows"] for event in list(run.events) if event["event"] == "commit")


def newest(run: JobRun) -> dict[str, Any]:
    return next((event for event in reversed(list(run.events)) if event["event"] == "progress"), {})


def paused(run: JobRun) -> list[str]:
    return [split for reader in newest(run).get("readers", ()) for split in reader["paused"]]


def expect(run: JobRun, condition: Callable[[], bool]) -> None:
    assert run.wait_for(condition), run.story()


def test_a_partition_that_runs_ahead_waits_until_the_slow_one_comes_or_is_idle(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    broker: Any = kafka
    with kafka.fresh_topic(partitions=2) as topic:
        job = TopicJob(tmp_path, broker, "shop", ("p",), sink="jsonl", write="changelog", local=True, readers=1)
        job.topic, job.columns = topic, "id BIGINT, PRIMARY KEY (id)"
        job.source = 'alignment = { max_drift = "10s", idle_after = "10s" }'
        feed = Feed(Producer({"bootstrap.servers": kafka.bootstrap_servers}), topic, int(time.time()) - HOUR_S)
        feed.produce(0, 0)
        feed.produce(1, 0, 100)
        run = job.start()
        slow, fast = f"{topic}:0", f"{topic}:1"

        # A steady trickle keeps the slow one from being idle.
        def trickle(condition: Callable[[], bool]) -> Callable[[], bool]:
            def produced() -> bool:
                feed.produce(0, 1)
                return condition()

            return produced

        expect(run, trickle(lambda: paused(run) == [fast]))
        seen: list[dict[str, Any]] = []

        def waits_with_messages_behind_it() -> bool:
            # Where a busy machine took the slow one for idle, those that came before were read.
            feed.produce(1, 101)
            seen[:] = [newest(run)["lag"]]
            return (seen[0]["pending_records"] or 0) >= 2 and paused(run) == [fast]

        expect(run, trickle(waits_with_messages_behind_it))
        (lag,) = seen
        assert lag == {name: lag[new] for new, old in LAGS.items() for name in (new, old)}
        for name in ("current_fetch_event_time_lag_ms", "current_emit_event_time_lag_ms", "watermark_lag_ms"):
            assert (HOUR_S - 200) * 1000 < lag[name] < (HOUR_S + 600) * 1000, (name, lag)

        feed.produce(0, 95)
        expect(run, lambda: rows(run) == feed.count)
        expect(run, lambda: paused(run) == [])

        # The slow partition falls silent: it holds nobody back any more.
        feed.produce(1, 500)
        expect(run, lambda: rows(run) == feed.count)
        feed.produce(1, 501, 502)
        expect(run, lambda: rows(run) == feed.count and newest(run)["lag"]["pending_records"] == 0)
        assert slow not in paused(run)
        expect(run, lambda: newest(run)["lag"]["sourceIdleTime"] > 0)
        assert run.interrupt() in (0, 130), run.story()
