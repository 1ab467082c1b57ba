"""MERGE by Spark, for epochs too large to merge in the driver process.

Called by `sink` from any thread. MERGE takes its app transaction from *session* settings, so every merge
has a session of its own and none sees another's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raycdc.errors import SinkError
from raycdc.model import TableSchema
from raycdc.sinks.delta.table import DeltaTarget, Stamp, vector_to_version
from raycdc.sinks.rows import DELETED


def merge(
    spark: Any, target: DeltaTarget, schema: TableSchema, files: Sequence[str], stamp: Stamp, *, order_by: str = ""
) -> None:
    """Upsert and delete the compacted rows in Parquet `files`, atomically with the vector of `stamp`.

    With `order_by` a row of the target with a greater value of that column stays as it is.
    """
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.write.txnAppId", target.app_id)
    session.conf.set("spark.databricks.delta.write.txnVersion", str(vector_to_version(stamp.vector)))
    session.conf.set("spark.databricks.delta.commitInfo.userMetadata", stamp.text(target.app_id))
    session.read.parquet(*files).createOrReplaceTempView("changes")
    try:
        session.sql(_statement(target, schema, order_by)).collect()
    except Exception as cause:  # py4j wraps whatever the JVM threw
        raise SinkError(f"The Delta table {target.path} ({target.name}) cannot be merged into: {cause}") from cause
    # A merge that changed nothing may have committed nothing; the vector must be written all the same.
    target.mark(stamp)


def _statement(target: DeltaTarget, schema: TableSchema, order_by: str) -> str:
    names = [_quote(column.name) for column in schema.columns]
    key = " AND ".join(f"t.{_quote(name)} = s.{_quote(name)}" for name in schema.primary_key)
    deleted = f"s.{_quote(DELETED)}"
    gone = [_quote(name) for name in target.arrow().names if name not in {column.name for column in schema.columns}]
    updates = [*(f"t.{name} = s.{name}" for name in names), *(f"t.{name} = NULL" for name in gone)]
    by = _quote(order_by)
    newer = f"AND (t.{by} IS NULL OR s.{by} >= t.{by}) " if order_by else ""
    return (
        f"MERGE INTO delta.{_quote(str(target.path))} t USING changes s ON {key} "
        f"WHEN MATCHED AND {deleted} THEN DELETE "
        f"WHEN MATCHED {newer}THEN UPDATE SET {', '.join(updates)} "
        f"WHEN NOT MATCHED AND NOT {deleted} THEN INSERT ({', '.join(names)}) "
        f"VALUES ({', '.join(f's.{name}' for name in names)})"
    )


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
