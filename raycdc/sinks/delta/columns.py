"""The names, types and defaults that a Delta table can have; each refusal says the way out.

Called by `sink` and `evolution`.
"""

from __future__ import annotations

import pyarrow as pa

from raycdc.errors import TargetTakenError
from raycdc.model import Column, TableId
from raycdc.model.names import NAMES
from raycdc.model.types import TypeKind
from raycdc.sinks.api import TableWork
from raycdc.sinks.changes import check_constant, check_names
from raycdc.sinks.delta.layout import unfit
from raycdc.sinks.delta.table import DeltaTarget
from raycdc.sinks.lake_columns import LakeFormat, type_error
from raycdc.sinks.targets import check_names as check_names_held

FORMAT = LakeFormat("Delta")

_SQL_TYPES: dict[TypeKind, str] = {
    TypeKind.BOOLEAN: "BOOLEAN",
    TypeKind.INT8: "TINYINT",
    TypeKind.INT16: "SMALLINT",
    TypeKind.INT32: "INT",
    TypeKind.INT64: "BIGINT",
    TypeKind.UINT64: "DECIMAL(20, 0)",
    TypeKind.FLOAT32: "REAL",
    TypeKind.FLOAT64: "DOUBLE",
    TypeKind.STRING: "VARCHAR",
    TypeKind.DATE: "DATE",
    TypeKind.TIME: "VARCHAR",
    TypeKind.YEAR: "SMALLINT",
    TypeKind.ENUM: "VARCHAR",
    TypeKind.SET: "VARCHAR",
    TypeKind.JSON: "VARCHAR",
}


def check_columns(work: TableWork, wanted: pa.Schema) -> None:
    """`SinkError` for column names that Delta cannot have."""
    check_names_held(NAMES["delta"], work.target, wanted.names)
    check_names(work, wanted)


def check_mergeable(target: DeltaTarget, wanted: pa.Schema) -> None:
    """`SinkError` when a column of the existing table has another type than ours, or partitions it in odd ways."""
    for field in target.arrow():
        if field.name in target.partition_columns and (odd := unfit(field.name, field.type)):
            raise TargetTakenError(
                f"{target.name}: the Delta table that is there is partitioned by a {odd} Choose another path, or "
                'empty it with pipeline.on_existing = "replace".'
            )
    there = {f.name.casefold(): f for f in target.arrow()}
    for want in wanted:
        have = there.get(want.name.casefold())
        if have is not None and (have.type != want.type or have.name != want.name):
            raise type_error(FORMAT, target.name, have, want)


def default_sql(target: TableId, column: Column) -> str:
    """A constant default as delta-rs's SQL. `SinkError` where it is no value of the column's type."""
    assert column.default is not None
    check_constant(target, column)
    text = column.default.replace("'", "''")
    match column.type.kind:
        case TypeKind.DECIMAL:
            return f"CAST('{text}' AS DECIMAL({column.type.precision}, {column.type.scale}))"
        case TypeKind.BINARY:
            return f"X'{column.default.encode().hex()}'"
        case TypeKind.BIT:
            return f"CAST('{text}' AS {'BIGINT' if column.type.length <= 63 else 'DECIMAL(20, 0)'})"
        case TypeKind.DATETIME | TypeKind.TIMESTAMP as kind:
            # A CAST would go through nanoseconds, which end in the year 2262.
            zone = "None" if kind is TypeKind.DATETIME else 'Some("UTC")'
            return f"arrow_cast('{text}', 'Timestamp(Microsecond, {zone})')"
        case kind:
            return f"CAST('{text}' AS {_SQL_TYPES[kind]})"
