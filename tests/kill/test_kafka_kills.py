"""Kill it, anywhere, while a topic is read: afterwards the sink has every committed message once and no aborted one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raycdc.sandbox.compare import check_changelog, final_rows, read_changelog, read_delta
from raycdc.sandbox.servers import KafkaServer
from tests.support.jobs import JobRun, TopicJob, catch_up, run_through
from tests.support.product_feed import COLUMNS, ProductFeed

pytestmark = [pytest.mark.server, pytest.mark.kill]

SEEDS = range(int(os.environ.get("RAYCDC_KILL_SEEDS", "1")))
Recorder = Callable[[str, object], None]
SOURCE_POINTS = ("before_seal", "after_seal", "before_manifest", "after_manifest")
DRIVER_POINTS = ("in_commit", "after_commit", "after_record")
PAUSE_S = 0.01


def kafka_job(folder: Path, kafka: KafkaServer, topic: str, **options: Any) -> TopicJob:
    broker: Any = kafka
    source = 'group_id = "watchers"\ndiscovery_interval = "300ms"'
    return TopicJob(folder, broker, "shop", ("product",), source=source, topic=topic, columns=COLUMNS, **options)


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: int(row["id"]))


def expect_exact_changelog(job: TopicJob, feed: ProductFeed) -> None:
    rows = read_changelog(job.lake / "shop" / "product", job.sink)
    assert check_changelog(rows, ["id"]) == []
    schema = read_changelog_schema()
    assert by_id(final_rows(rows, ["id"], schema).to_pylist()) == by_id(list(feed.rows.values()))


def read_changelog_schema() -> Any:
    from raycdc.formats.decoding.sql_types import parse_columns

    return parse_columns(COLUMNS, key_path="columns").arrow()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_topics_changelog_survives_a_kill_of_the_whole_process_at_every_step(
    kafka: KafkaServer, tmp_path: Path, record_property: Recorder, seed: int
) -> None:
    points = SOURCE_POINTS + DRIVER_POINTS
    with kafka.fresh_topic(partitions=3) as topic:
        feed = ProductFeed(kafka, topic, seed=seed, partitions=3)
        job = kafka_job(tmp_path, kafka, topic, sink="jsonl", write="changelog", local=True, readers=2, readers_min=2)
        failpoints = ",".join(f"{point}=kill@{1 + (seed + number) % 3}" for number, point in enumerate(points))
        with feed.running(pause_s=PAUSE_S):
            deaths = run_through(job, failpoints=failpoints, busy=lambda: not set(points) <= job.hit())
        catch_up(job)
    record_property("kills", len(deaths))
    assert deaths == [-signal.SIGKILL] * len(points)
    assert feed.aborted > 0
    expect_exact_changelog(job, feed)


@pytest.mark.long(suite="kill")
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_readers_enumerator_and_broker_die_while_partitions_are_added(
    tmp_path: Path, record_property: Recorder, seed: int
) -> None:
    with KafkaServer() as kafka:
        topic = kafka.create_topic("products", partitions=3)
        feed = ProductFeed(kafka, topic, seed=seed, partitions=3)
        job = kafka_job(tmp_path, kafka, topic, readers=2, readers_min=2)
        with feed.running(pause_s=PAUSE_S):
            run = job.start(failpoints="after_seal=kill@2,after_manifest=kill@3")
            assert run.wait_for(lambda: {"after_seal", "after_manifest"} <= job.hit()), run.story()
            kafka.add_partitions(topic, 5)
            feed.partitions = 5
            kafka.kill()
            kafka.start()
            wait_for_commits(run, 3)
            run.process.kill()
            run.kill()
            again = job.start()
            wait_for_commits(again, 3)
            assert again.interrupt() in (0, 130), again.story()
        catch_up(job)
    record_property("kills", len(job.hit()) + 2)
    lake = read_delta(job.lake / "shop" / "product").to_pylist()
    assert by_id(lake) == by_id(list(feed.rows.values()))


def wait_for_commits(run: JobRun, count: int) -> None:
    """Wait until so many more epochs were committed."""
    target = sum(event["event"] == "commit" for event in run.events) + count
    reached = run.wait_for(lambda: sum(event["event"] == "commit" for event in list(run.events)) >= target)
    assert reached, run.story()
