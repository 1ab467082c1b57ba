"""Jobs as users of the data source write them, in a process of their own: ``python -m tests.e2e.spark_job JSON``."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from raycdc.datasource import create_views, register
from raycdc.spark.session import archive_options, check_java, delta_jars

#: Part of the error when the Python process of a streaming source takes more than ten seconds to start, as it may on a
#: busy machine. Spark has no setting for it (`PythonWorkerFactory.createSimpleWorker`), so the query is started again.
SLOW_START = "connect back"


def main() -> None:
    """Do what the argument says, and print the answer as the last line."""
    given = json.loads(sys.argv[1])
    spark = session(given["warehouse"])
    answer = {"stream": stream, "read": read, "sql": sql}[given["job"]](spark, given)
    sys.stdout.write(json.dumps(answer, default=str) + "\n")
    spark.stop()


def session(warehouse: str) -> SparkSession:
    """A session as users make it, which knows the data source."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # The archive of classes fits the class path with Delta's jars; a JVM starts with half of the CPU time.
    jars = delta_jars()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraClassPath", os.pathsep.join(map(str, jars)))
        .config("spark.driver.extraJavaOptions", " ".join(archive_options(check_java(), jars)))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        # Without it availableNow is one batch: after a kill the one that was interrupted, and none behind it.
        .config("spark.sql.streaming.triggerAvailableNowWrapper.enabled", "true")
        .config("spark.sql.warehouse.dir", warehouse)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def stream(spark: SparkSession, given: dict[str, Any]) -> dict[str, Any]:
    """Append the changelog to Parquet, under a checkpoint: until killed, or (`until`) up to the end."""
    while True:
        query = started(spark, given)
        try:
            query.awaitTermination()
        except StreamingQueryException as cause:
            if SLOW_START in str(cause):
                continue
            raise
        break
    progress = [p for p in query.recentProgress if p["numInputRows"]]
    return {"batches": len(progress), "sources": [p["sources"][0] for p in progress], **rows_of(spark, given["out"])}


def started(spark: SparkSession, given: dict[str, Any]) -> StreamingQuery:
    """The query of `stream`."""
    changes = spark.readStream.format("raycdc").options(**given["options"]).load()
    writer = changes.writeStream.format("parquet").options(path=given["out"], checkpointLocation=given["checkpoint"])
    if given["options"].get("until"):
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime="200 milliseconds").start()


def started_too_slowly(query: StreamingQuery) -> bool:
    """Whether the query ended because of `SLOW_START`."""
    return SLOW_START in str(query.exception())


def rows_of(spark: SparkSession, out: str) -> dict[str, Any]:
    rows = spark.read.parquet(out)
    return {
        "columns": rows.dtypes,
        "rows": [row.asDict() for row in rows.orderBy("_seq").collect()],
        "sum": rows.selectExpr("sum(weight * _sign)").first()[0],  # type: ignore[index]
    }


def read(spark: SparkSession, given: dict[str, Any]) -> dict[str, Any]:
    """A bounded read."""
    rows = spark.read.format("raycdc").options(**given["options"]).load()
    return {"columns": rows.dtypes, "rows": [row.asDict() for row in rows.collect()]}


def sql(spark: SparkSession, given: dict[str, Any]) -> dict[str, Any]:
    """Views of tables, and statements over them; the rows of the last one."""
    create_views(spark, given["config"], given["tables"])
    for statement in given["statements"]:
        found = spark.sql(statement)
    return {"columns": found.dtypes, "rows": [row.asDict() for row in found.collect()]}


if __name__ == "__main__":
    main()
