"""Spark's MERGE, for epochs that are too large to merge in the driver process, and Spark's OPTIMIZE.

Callable from any thread. Spark's MERGE takes its app transaction from settings of the *session*, so each merge uses a
session of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from deltalake.exceptions import CommitFailedError

from raycdc.errors import ColumnsRefusedError, SinkError, TargetModifiedError
from raycdc.model import TableSchema
from raycdc.sinks import jvm_end
from raycdc.sinks.delta.commits import DeltaCommits
from raycdc.sinks.delta.table import DeltaTarget, vector_to_version
from raycdc.sinks.delta.table_constraints import without_values
from raycdc.sinks.lakes.unreachable import is_absent
from raycdc.sinks.rows import DELETED
from raycdc.sinks.steps import CommitMetadata
from raycdc.storage.files import StorePath

#: Part of error messages. On an object store, concurrent commits of Delta's library for Spark may overwrite each other.
NOT_AT_STORES = "Spark does not write to an object store here, where its commits are not safe"

#: Texts of JVM errors that concern the table: Delta's error conditions and exceptions, and a missing file.
_TABLES_OWN = ("[DELTA_", "io.delta.exceptions", "FAILED_READ_FILE", "java.io.FileNotFoundException")
#: Texts of JVM errors that another writer caused.
_RIVALS = ("DELTA_CONCURRENT", "io.delta.exceptions.Concurrent")


def merge(
    spark: Any,
    target: DeltaTarget,
    schema: TableSchema,
    files: Sequence[str],
    commit_metadata: CommitMetadata,
    *,
    order_by: str = "",
) -> None:
    """Upsert and delete the compacted rows in Parquet `files`, atomically with the vector of `commit_metadata`.

    With `order_by`, a row of the target with a greater value of that column stays unchanged.
    """
    with _of_spark(spark, target, "cannot be merged into"):
        session = spark.newSession()
        session.conf.set("spark.databricks.delta.write.txnAppId", target.app_id)
        session.conf.set("spark.databricks.delta.write.txnVersion", str(vector_to_version(commit_metadata.vector)))
        session.conf.set("spark.databricks.delta.commitInfo.userMetadata", commit_metadata.text(target.app_id))
        session.read.parquet(*files).createOrReplaceTempView("changes")
        session.sql(_statement(target, schema, order_by)).collect()
    # A merge that changed nothing may have made no commit, but the vector must be written.
    DeltaCommits(target).mark(commit_metadata)


def set_options(spark: Any, target: DeltaTarget, options: Mapping[str, str]) -> None:
    """Let Spark set table properties, because delta-rs sets them in another way."""
    names = ", ".join(options)
    if spark is None:
        raise ColumnsRefusedError(
            f"table_options: {names} of {target.name}: Spark sets it, and --local runs without it."
        )
    if isinstance(target.path, StorePath):
        raise ColumnsRefusedError(f"table_options: {names} of {target.name}: Spark sets it, and {NOT_AT_STORES}.")
    pairs = ", ".join(f"{_literal(name)} = {_literal(value)}" for name, value in options.items())
    with _of_spark(spark, target, f"cannot have the properties {names}", refusal=ColumnsRefusedError):
        spark.newSession().sql(f"ALTER TABLE delta.{_quote(str(target.path))} SET TBLPROPERTIES ({pairs})").collect()
    target.refresh()


def optimize(spark: Any, target: DeltaTarget, order: Sequence[str], *, target_bytes: int) -> None:
    """Combine small files; with `order`, cluster all rows by these columns.

    Spark also applies deletion vectors if that saves enough. If another writer removes the same files at the same time,
    its commit wins.
    """
    if isinstance(target.path, StorePath):
        raise TargetModifiedError(
            f"{target.location} has more than plain files, deletion vectors say: only Spark can optimise it, and "
            f"{NOT_AT_STORES}. Leave sink.optimize out, or rewrite the table without them."
        )
    if spark is None:
        raise TargetModifiedError(
            f"{target.location} has more than plain files, deletion vectors say: only "
            "Spark can optimise it. Leave sink.optimize out, or run without --local."
        )
    by = f" ZORDER BY ({', '.join(map(_quote, order))})" if order else ""
    with _of_spark(spark, target, "cannot be optimised", rivals_win=True):
        session = spark.newSession()
        session.conf.set("spark.databricks.delta.optimize.maxFileSize", str(target_bytes))
        session.conf.set("spark.databricks.delta.optimize.minFileSize", str(target_bytes * 3 // 4))
        session.sql(f"OPTIMIZE delta.{_quote(str(target.path))}{by}").collect()


@contextmanager
def _of_spark(
    spark: Any,
    target: DeltaTarget,
    what: str,
    *,
    refusal: type[SinkError] = TargetModifiedError,
    rivals_win: bool = False,
) -> Iterator[None]:
    """Turn Spark's errors within the block into errors of raycdc. The text `what` is the rest of the message's
    sentence, whose subject is the table. An error of Delta or of Spark's analysis becomes a `refusal`. An error that
    another writer caused becomes a `TargetModifiedError`, or a `CommitFailedError` if `rivals_win` is True. Any other
    error of Spark or the disk becomes a `SparkLostError` if the JVM of `spark` is gone, and a `SinkError` otherwise.
    All remaining errors, such as invalid SQL, are bugs and pass through.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import ParseException, PySparkException

    try:
        yield
    except ParseException:
        raise
    except (Py4JError, PySparkException, OSError, EOFError) as cause:
        if (lost := jvm_end.lost(spark, cause)) is not None:
            raise lost from cause
        rival = "Concurrent" in type(cause).__name__ or any(sign in str(cause) for sign in _RIVALS)
        if rival and rivals_win:
            raise CommitFailedError(str(cause)) from cause
        kind = SinkError
        if (isinstance(cause, PySparkException) or any(s in str(cause) for s in _TABLES_OWN)) and not is_absent(cause):
            kind = TargetModifiedError if rival else refusal
        raise kind(f"{target.location} {what}: {without_values(str(cause))}") from cause


def _statement(target: DeltaTarget, schema: TableSchema, order_by: str) -> str:
    names = [_quote(column.name) for column in schema.columns]
    key = " AND ".join(f"t.{_quote(name)} = s.{_quote(name)}" for name in schema.primary_key)
    deleted = f"s.{_quote(DELETED)}"
    dropped_columns = [
        _quote(name) for name in target.ownership.left_behind(target.arrow().names, schema.arrow().names)
    ]
    updates = [*(f"t.{name} = s.{name}" for name in names), *(f"t.{name} = NULL" for name in dropped_columns)]
    by = _quote(order_by)
    newer = f"AND (t.{by} IS NULL OR s.{by} >= t.{by}) " if order_by else ""
    return (
        f"MERGE INTO delta.{_quote(str(target.path))} t USING changes s ON {key} "
        f"WHEN MATCHED AND {deleted} THEN DELETE "
        f"WHEN MATCHED {newer}THEN UPDATE SET {', '.join(updates)} "
        f"WHEN NOT MATCHED AND NOT {deleted} THEN INSERT ({', '.join(names)}) "
        f"VALUES ({', '.join(f's.{name}' for name in names)})"
    )


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
