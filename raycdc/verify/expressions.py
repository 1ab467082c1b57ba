"""Computes the columns and filters of rows that need Spark, in a session of verify's own.

The session is started for the first expression, with the functions of the transforms. Results of the pipeline's run are
not used. Each batch of the source is sent to Spark, which returns the results row by row.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.config import SparkOptions
from raycdc.model import META_COLUMNS, Column, LogicalType, TableId, TableSchema
from raycdc.model.column_names import spark_fold
from raycdc.model.rules.transform import Transform, Transforms
from raycdc.transform import PlainResolver, ResolvedColumn, ResolvedTransform, TransformResolver
from raycdc.transform.resolved import CONSTANT_META, META_LOGICAL, is_plain
from raycdc.verify.targets.api import NotComparedError

#: Both sides are read at the same time.
_MASTER = "local[2]"
_ROW = "_row"
_KEEP = "_keep"
#: Metadata that differ from change to change. A column that is computed from such metadata cannot be compared.
_VARYING = re.compile("|".join(rf"\b{name}\b" for name in META_COLUMNS if name not in CONSTANT_META), re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ComputedRows:
    """Computed values of one batch, by the columns' names, and a mask of the rows that pass the filter (None: all)."""

    columns: Mapping[str, pa.Array]
    passing: np.ndarray | None


class Expressions:
    """A `TransformResolver` that also returns the values of the resolved expressions.

    Used by one thread at a time; `close` ends Spark.
    """

    def __init__(self, options: SparkOptions, transforms: Transforms) -> None:
        self._options = options
        self._transforms = transforms
        self._plain = PlainResolver()
        self._session: Any = None
        self._resolver: TransformResolver | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def close(self) -> None:
        """End Spark. Called once, by the creator."""
        if self._session is not None:
            self._session.stop()
        if self._scratch is not None:
            self._scratch.cleanup()

    def resolve(self, table: TableId, transform: Transform, schema: TableSchema, key_path: str) -> ResolvedTransform:
        """Resolve a transform like a run.

        Starts Spark (some 5 s) for the first transform that needs it. Raises `ConfigError` if Spark cannot start.
        """
        if is_plain(transform):
            return self._plain.resolve(table, transform, schema, key_path)
        if self._resolver is None:
            self._resolver = self._started()
        return self._resolver.resolve(table, transform, schema, key_path)

    def _started(self) -> TransformResolver:
        from raycdc.spark.session import spark_session
        from raycdc.spark.transforms import SparkResolver, TransformSession

        self._scratch = tempfile.TemporaryDirectory(prefix="raycdc-verify-")
        self._session = spark_session(_MASTER, Path(self._scratch.name), self._options.conf)
        return SparkResolver(TransformSession(lambda: self._session, self._transforms))

    def rows(self, resolved: ResolvedTransform, batch: pa.RecordBatch) -> ComputedRows:
        """Return the columns that `resolved` computes of a batch of its source's rows.

        Raises `NotComparedError` if an expression fails for a row; the text contains no value of the row.
        """
        columns = computable(resolved)
        keep = resolved.transform.filter
        if not columns and not keep:
            return ComputedRows({}, None)
        from raycdc.spark.transforms import quiet_errors

        kinds = _inputs(resolved)
        arrays = [_input(resolved.table, batch, name).cast(kind.arrow()) for name, kind in kinds.items()]
        numbers = pa.array(np.arange(batch.num_rows))
        rows = pa.table([*arrays, numbers], names=[*kinds, _ROW])
        ddl = TableSchema(tuple(Column(name, kind) for name, kind in kinds.items())).spark_ddl()
        ddl = ", ".join(part for part in (ddl, f"`{_ROW}` bigint") if part)
        wanted = [*(column.sql for column in columns), *([f"coalesce(({keep}), false)"] if keep else []), _ROW]
        # The columns are found by their numbers, because two expressions may have the same name here.
        names = [*(f"c{number}" for number in range(len(columns))), *([_KEEP] if keep else []), _ROW]
        try:
            with quiet_errors():
                made = self._session.createDataFrame(rows, ddl).selectExpr(*wanted).toDF(*names).toArrow()
        except Exception as cause:
            if not type(cause).__module__.startswith(("pyspark.", "py4j.")):
                raise
            # The cause is left out, because its text quotes the value.
            raise NotComparedError(
                f"an expression of its transform fails on a row of the source ({type(cause).__name__})"
            ) from None
        made = made.combine_chunks()
        if not made.column(_ROW).combine_chunks().equals(numbers):
            raise AssertionError(f"{resolved.table}: rows came back from Spark in another order")
        computed = ((column, made.column(f"c{n}").combine_chunks()) for n, column in enumerate(columns))
        values = {column.name: array.cast(column.type.arrow()) for column, array in computed}
        passing = made.column(_KEEP).to_numpy().astype(np.bool_) if keep else None
        return ComputedRows(values, passing)


def computable(resolved: ResolvedTransform) -> Sequence[ResolvedColumn]:
    """Return the computed columns that have the same value each time they are computed."""
    return [column for column in resolved.computed if not _VARYING.search(column.sql)]


def _inputs(resolved: ResolvedTransform) -> dict[str, LogicalType]:
    """Return the columns that expressions use, by name."""
    uses = resolved.uses
    used = {column.name: column.type for column in resolved.source.columns if spark_fold(column.name) in uses.columns}
    meta = {name: META_LOGICAL[name] for name in CONSTANT_META if name in uses.meta | uses.filter_meta}
    return used | meta


def _input(table: TableId, batch: pa.RecordBatch, name: str) -> pa.Array:
    match name:
        case "_db" | "_table":
            return pa.repeat(pa.scalar(table.db if name == "_db" else table.table), batch.num_rows)
        case _:
            array = batch.column(name)
            return pc.cast(array, array.type.value_type) if pa.types.is_dictionary(array.type) else array
