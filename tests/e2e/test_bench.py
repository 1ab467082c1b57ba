"""`raycdc bench`: the command finds the benchmarks, and a small run of one says what it must."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from bench.seen import InKafka
from raycdc.sandbox.servers import KafkaServer
from raycdc.sandbox.servers.private import wait_until


def test_bench_topic_reads_every_message_of_a_topic_it_filled(tmp_path: Path) -> None:
    words = ["bench", "topic", "--json", "--rows", "5000", "--cases", "consume"]
    command = [sys.executable, "-m", "raycdc.cli", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    found = {(m["case"], m["system"]): m["rows"] for m in json.loads(done.stdout)["measurements"]}
    assert found == {("consume", "confluent-kafka"): 5000, ("consume", "raycdc"): 5000}


@pytest.mark.long(suite="stories")
def test_bench_mongodb_follows_every_change(tmp_path: Path) -> None:
    words = ["bench", "mongodb", "--json", "--rows", "3000", "--tries", "1", "--cases", "change_stream"]
    command = [sys.executable, "-m", "raycdc.cli", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    found = {(m["case"], m["system"]): m["rows"] for m in json.loads(done.stdout)["measurements"]}
    assert found == {("change_stream", system): 9_000 for system in ("raycdc", "raw", "pymongo")}


@pytest.mark.long(suite="stories")
@pytest.mark.spark
def test_bench_mongodb_reads_every_document_and_change_with_every_system(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "raycdc.cli", "bench", "mongodb", "--json", "--rows", "3000", "--tries", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    found = {(m["case"], m["system"]): m["rows"] for m in json.loads(done.stdout)["measurements"]}
    ours = ("raycdc", "raycdc-document", "raycdc-bson")
    ten_passes = {("snapshot", system): 30_000 for system in (*ours, "raw", "pymongo", "pymongoarrow")}
    changes = {("change_stream", system): 9_000 for system in ("raycdc", "raw", "pymongo")}
    assert found == {**ten_passes, ("snapshot", "spark-mongodb"): 9_000, **changes}


def test_bench_lists_the_benchmarks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "raycdc.cli", "bench", "checkout", "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=True)
    assert (
        "{advice,binlog,commits,elastic,formats,latency,mongodb,pipeline,scale,sinks,snapshot,start,topic}"
        in done.stdout
    )


def test_rows_of_a_topic_are_seen_when_their_transaction_is_committed(kafka: KafkaServer) -> None:
    def message(key: int, at: int) -> bytes:
        return json.dumps({"before": None, "after": {"id": key, "at": at}, "op": "c"}).encode()

    with kafka.fresh_topic() as topic:
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic}
        producer = Producer(settings)
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(topic, message(1, 10))
        producer.commit_transaction(60)
        watch = InKafka(kafka, topic)
        watch.begin()
        try:
            for key, keep in ((2, False), (3, True)):
                producer.begin_transaction()
                producer.produce(topic, message(key, 10 + key))
                producer.flush(60)
                if keep:
                    written_us = time.time_ns() // 1000
                    producer.commit_transaction(60)
                else:
                    producer.abort_transaction(60)
            wait_until(lambda: bool(watch.seen(0)), timeout_s=60, what="the committed row")
            ((row, given_us),) = watch.seen(0).items()
            assert row == (3, 13)
            assert written_us <= given_us <= time.time_ns() // 1000
        finally:
            watch.close()


pytestmark = pytest.mark.server
