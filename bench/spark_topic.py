"""The peer of `bench.topic`: a plain Spark job that reads a topic with confluent-kafka and decodes with `from_json`.

Spark's own Kafka connector is in no package that its resolver finds complete; tasks read a partition each instead.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from bench.topic import PARTITIONS, TOPIC

_SCHEMA = (
    "type STRING, ts BIGINT, data STRUCT<id: BIGINT, customer: INT, price: DECIMAL(10,2), quantity: INT, "
    "weight: DOUBLE, name: STRING, note: STRING, created: STRING, day: STRING, flag: INT>"
)


def read(servers: str, count: int) -> Any:
    """Return a function for `mapInArrow`, which maps partition numbers to the values of their messages."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from confluent_kafka import Consumer, TopicPartition

        for batch in batches:
            for partition in batch.column(0).to_pylist():
                expected = len(range(partition, count, PARTITIONS))
                consumer = Consumer({"bootstrap.servers": servers, "group.id": "spark"})
                consumer.assign([TopicPartition(TOPIC, partition, 0)])
                seen = 0
                while seen < expected:
                    found = [message.value() for message in consumer.consume(10_000, timeout=0.2)]
                    seen += len(found)
                    if found:
                        yield pa.RecordBatch.from_arrays([pa.array(found, pa.binary()).cast(pa.string())], ["value"])
                consumer.close()

    return work


def main(given: dict[str, Any]) -> None:
    """Run the job, and print when it starts and ends."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as sql

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[*]").config("spark.driver.host", "127.0.0.1")
    session = builder.config("spark.driver.memory", "4g").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    session.range(10).count()
    print(json.dumps({"event": "started"}), flush=True)
    values = session.range(0, PARTITIONS, 1, PARTITIONS).mapInArrow(
        read(given["servers"], given["count"]), "value STRING"
    )
    parsed = values.select(sql.from_json("value", _SCHEMA).alias("m"))
    parsed.select("m.data.*", "m.type", "m.ts").write.parquet(given["lake"])
    print(json.dumps({"event": "done"}), flush=True)
    session.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
