"""The peer of `bench.pipeline` and `bench.sinks`: one partitioned JDBC read into one table, as Spark's guide shows it.

Run as a process: ``python -m bench.spark_jdbc ARGUMENTS_AS_JSON``. It prints one JSON line per phase.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def session_of(given: dict[str, Any]) -> Any:
    """Return a session with the `jars`, with its files in `scratch`."""
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(f"local[{os.cpu_count() or 1}]")
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
    for key, value in given.get("conf", {}).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def main(arguments: str) -> None:
    """Start Spark on `jars`, warm up, copy `table` of `rows` rows to `lake` as Delta, or as `format` with `options`.

    `where` and `select` are expressions applied on the way.
    """
    given = json.loads(arguments)
    threads = os.cpu_count() or 1
    session = session_of(given)
    options = {
        "url": f"jdbc:mysql://127.0.0.1:{given['port']}/bench?useServerPrepStmts=false",
        "driver": "com.mysql.cj.jdbc.Driver",
        "user": "root",
        "password": "root",
        "dbtable": f"bench.{given['table']}",
        "partitionColumn": "id",
        "lowerBound": "0",
        "upperBound": str(given["rows"]),
        # Each partition is a result set in memory, with as many rows as a chunk of raycdc.
        "numPartitions": str(max(threads, given["rows"] // 100_000)),
    }
    # The session's first job and first commit are part of the start.
    session.range(10).write.format("delta").save(str(Path(given["lake"]) / "warm"))
    print(json.dumps({"event": "started"}), flush=True)
    rows = session.read.format("jdbc").options(**options).load()
    if given.get("where"):
        rows = rows.where(given["where"])
    if given.get("select"):
        rows = rows.selectExpr(*given["select"])
    kind, options = given.get("format", "delta"), given.get("options", {})
    writer = rows.write.format(kind).options(**options).mode("append")
    if kind == "iceberg":
        rows.writeTo("peer.bench.standard").create()
    elif options:
        writer.save()
    else:
        writer.save(given["lake"] + "/table")
    print(json.dumps({"event": "done"}), flush=True)
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1])
