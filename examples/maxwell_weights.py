"""Maintains weights per name over the changelog that maxwell_to_lake.toml writes.

``python maxwell_weights.py LAKE TARGET``: an inserted row adds its weight, a deleted one subtracts it. It may be run
repeatedly: each run continues where the last one stopped.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from raycdc.spark.session import spark_session


def maintain(spark: SparkSession, lake: str, target: str) -> None:
    """Bring TARGET up to date with all changes of shop.product in LAKE."""
    sign = sql.when(sql.col("_op").isin("+I", "+U"), 1).otherwise(-1)
    weights = (
        spark.readStream.format("delta")
        .load(f"{lake}/shop/product")
        .groupBy("name")
        .agg(sql.sum(sign * sql.col("weight").cast("decimal(10,2)")).alias("weight"), sql.sum(sign).alias("products"))
        .where("products > 0")
    )
    writer = weights.writeStream.format("delta").outputMode("complete").trigger(availableNow=True)
    writer.option("checkpointLocation", f"{target}/_checkpoint").start(target).awaitTermination()


if __name__ == "__main__":
    session = spark_session("local[*]", Path(sys.argv[2], "_spark"), {})
    maintain(session, sys.argv[1], sys.argv[2])
    session.read.format("delta").load(sys.argv[2]).orderBy("name").show()
