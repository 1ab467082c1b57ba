"""Copies a topic of Maxwell messages into Parquet files, end to end, by ``raycdc run`` on Ray and Spark.

| case | what runs |
|---|---|
| ``topic_to_parquet`` | a first start on a full topic, beside a Spark job: confluent-kafka, `from_json`, Parquet |
| ``consume`` | what reading the topic costs without decoding: confluent-kafka alone, and as columns (`gather`) |

Wall and CPU time as in `bench.pipeline`; the broker's are not counted.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.measure import Measurement, Options, measure, measured, progress
from bench.pipeline import Bench, figures_of, raycdc_measurement, readers_max

CASES = ("consume", "topic_to_parquet")
SERVER = "kafka"

_MESSAGES = 1_000_000
PARTITIONS = 4
TOPIC = "bench"
COLUMNS = (
    "id BIGINT, customer INT, price DECIMAL(10,2), quantity INT, weight DOUBLE, name STRING, note STRING, "
    "created DATETIME, day DATE, flag INT"
)


def run(options: Options) -> Iterator[Measurement]:
    """Start a broker, fill a topic, and run each system as a user would."""
    from raycdc.sandbox.servers import KafkaServer

    count = options.rows or _MESSAGES
    with tempfile.TemporaryDirectory(prefix="raycdc-bench-") as folder, KafkaServer() as kafka:
        kafka.create_topic(TOPIC, partitions=PARTITIONS)
        progress(f"writing {count:,d} messages ...")
        fill(kafka.bootstrap_servers, count)
        bench = TopicBench(Path(folder), kafka)
        bench.rows = count
        given = {"servers": kafka.bootstrap_servers, "count": count}
        if "consume" in options.cases:
            yield measure("consume", "confluent-kafka", "bench.topic:consume", {**given, "columns": False})
            yield measure("consume", "raycdc", "bench.topic:consume", {**given, "columns": True})
        if "topic_to_parquet" in options.cases:
            yield bench.parquet()
            yield bench.spark()


def messages(count: int) -> Iterator[bytes]:
    """Return Maxwell's inserts and, one in ten, updates of a table with ten mixed columns."""
    chance = random.Random(1)
    for number in range(count):
        price, weight = f"{chance.randrange(10**6) / 100:.2f}", chance.random() * 100
        second = f"{chance.randrange(60):02d}"
        data = (
            f'{{"id":{number},"customer":{chance.randrange(10**5)},"price":{price},"quantity":{number % 9},'
            f'"weight":{weight},"name":"product {number % 5000}","note":"für den Händler \\"{number % 77}\\"",'
            f'"created":"2026-03-{1 + number % 28:02d} 12:34:{second}","day":"2026-03-{1 + number % 28:02d}",'
            f'"flag":{number % 2}}}'
        )
        kind, old = ("update", ',"old":{"quantity":10}') if number % 10 == 9 else ("insert", "")
        yield (
            f'{{"database":"shop","table":"orders","type":"{kind}","ts":{1_770_000_000 + number // 1000},'
            f'"xid":{number},"commit":true,"data":{data}{old}}}'
        ).encode()


def fill(servers: str, count: int) -> None:
    """Write the messages, spread evenly over the partitions."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "linger.ms": "50", "queue.buffering.max.messages": "200000"})
    for number, text in enumerate(messages(count)):
        while True:
            try:
                producer.produce(TOPIC, text, partition=number % PARTITIONS)
            except BufferError:
                producer.poll(0.05)
                continue
            break
    producer.flush()


def consume(servers: str, count: int, columns: bool) -> dict[str, Any]:
    """Read the topic once, as message objects or as columns."""
    from confluent_kafka import Consumer, TopicPartition

    from raycdc.connectors.kafka.reading.messages import gather

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "queued.max.messages.kbytes": "65536"})
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    figures: dict[str, Any] = {"rows": count}
    seen = 0
    with measured(figures):
        while seen < count:
            batch = consumer.consume(30_000, timeout=0.1)
            if columns:
                parts, _ = gather(batch, fetched_ms=0, topic=TOPIC)
                seen += sum(len(part.batch) for part in parts if part.batch is not None)
            else:
                seen += len(batch)
    consumer.close()
    return figures


class TopicBench(Bench):
    """The end-to-end case."""

    def parquet(self) -> Measurement:
        """Measure a first start on the full topic."""
        progress("topic_to_parquet: measuring raycdc ...")
        path = self.folder / "topic.toml"
        path.write_text(
            f"""
[pipeline]
name = "topic"
state = "{self.folder / "topic"}"
engines = "always"

[source]
type = "kafka"
bootstrap_servers = "{self.server.bootstrap_servers}"
topics = ["{TOPIC}"]
format = {{ type = "maxwell-json", columns = "{COLUMNS}" }}

[spark]
from_bytes = "4MiB"

[readers]
max = {readers_max()}

[sink]
type = "parquet"
path = "{self.folder / "topic-lake"}"
write = "changelog"
"""
        )
        return raycdc_measurement("topic_to_parquet", self.rows, self.raycdc(path))

    def spark(self) -> Measurement:
        """Measure the peer on the same topic."""
        progress("topic_to_parquet: measuring spark-from_json ...")
        lake = str(self.folder / "spark-lake")
        given = {"servers": self.server.bootstrap_servers, "count": self.rows, "lake": lake}
        run = self.watched([sys.executable, "-m", "bench.spark_topic", json.dumps(given)])
        (started, _), (done, _) = run.of("started")[0], run.of("done")[0]
        figures = figures_of(run, started, done)
        shutil.rmtree(lake)
        return Measurement(case="topic_to_parquet", system="spark-from_json", rows=self.rows, **figures)
