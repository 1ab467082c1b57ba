"""The peer of `bench.pipeline`: one partitioned JDBC read into one Delta table, as Spark's own guide shows it.

Run as a process: ``python -m bench.spark_jdbc ARGUMENTS_AS_JSON``. It prints one JSON line per phase.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main(arguments: str) -> None:
    """Start Spark on `jars`, warm up, copy `table` of `rows` rows into a Delta table at `lake`."""
    from pyspark.sql import SparkSession

    given = json.loads(arguments)
    threads = os.cpu_count() or 1
    builder = (
        SparkSession.builder.master(f"local[{threads}]")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraClassPath", os.pathsep.join(given["jars"]))
        .config("spark.local.dir", given["scratch"])
        .config("spark.sql.warehouse.dir", str(Path(given["scratch"]) / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.databricks.delta.snapshotPartitions", "2")
    )
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    options = {
        "url": f"jdbc:mysql://127.0.0.1:{given['port']}/bench?useServerPrepStmts=false",
        "driver": "com.mysql.cj.jdbc.Driver",
        "user": "root",
        "password": "root",
        "dbtable": f"bench.{given['table']}",
        "partitionColumn": "id",
        "lowerBound": "0",
        "upperBound": str(given["rows"]),
        # Each partition is a result set in memory: as many rows as a chunk of raycdc has.
        "numPartitions": str(max(threads, given["rows"] // 100_000)),
    }
    # The session's first job and first commit are part of starting.
    session.range(10).write.format("delta").save(str(Path(given["lake"]) / "warm"))
    print(json.dumps({"event": "started"}), flush=True)
    session.read.format("jdbc").options(**options).load().write.format("delta").save(given["lake"] + "/table")
    print(json.dumps({"event": "done"}), flush=True)
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1])
