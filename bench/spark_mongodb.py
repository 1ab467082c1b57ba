"""The peer of `bench.mongodb`: MongoDB's connector for Spark reads a collection, and nobody keeps it.

Run as a process: ``python -m bench.spark_mongodb ARGUMENTS_AS_JSON``. It prints one JSON line per phase.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

_SCHEMA = (
    "_id STRING, customer INT, price DOUBLE, quantity BIGINT, weight DOUBLE, name STRING, note STRING, "
    "created TIMESTAMP, flag BOOLEAN, status STRING"
)


def main(given: dict[str, Any]) -> None:
    """Start Spark, read once to warm up, then `passes` times."""
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[*]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraClassPath", os.pathsep.join(given["jars"]))
        .config("spark.local.dir", given["scratch"])
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    # One partition uses one connection, like the other systems; cutting a collection is not measured.
    options = {
        "connection.uri": given["uri"],
        "database": "bench",
        "collection": "orders",
        "partitioner": "com.mongodb.spark.sql.connector.read.partitioner.SinglePartitionPartitioner",
    }
    rows = session.read.format("mongodb").schema(_SCHEMA).options(**options).load()
    rows.write.format("noop").mode("overwrite").save()
    print(json.dumps({"event": "started"}), flush=True)
    for _ in range(given["passes"]):
        rows.write.format("noop").mode("overwrite").save()
    print(json.dumps({"event": "done"}), flush=True)
    session.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
