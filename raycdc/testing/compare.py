"""Whether a sink holds what the source holds: counts and checksums over all columns, computed from Arrow on both sides.

Called by ``raycdc demo`` and by the kill and end-to-end tests. The source is read with plain SQL through pymysql, never
through raycdc's own connector, so that a fault of the connector cannot hide itself.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from raycdc.testing.checksum import Checksum, checksum, differing_rows


@dataclass(frozen=True, slots=True)
class TableComparison:
    """One table, both sides. `problems` is empty exactly when they are equal."""

    table: str
    source: Checksum
    sink: Checksum
    problems: tuple[str, ...] = field(default=())

    @property
    def equal(self) -> bool:
        """Same columns, same rows, each as often."""
        return not self.problems


def compare_table(connection: Any, database: str, table: str, held: pa.Table) -> TableComparison:
    """Compare `held` (what the sink holds, the table's own columns only) with ``database.table`` at the source."""
    names = [row[0] for row in _columns(connection, database, table)]
    problems: list[str] = []
    if list(held.column_names) != names:
        problems.append(f"columns differ: source {names}, sink {held.column_names}")
        common = [name for name in names if name in held.column_names]
        held = held.select(common)
    source = read_source(connection, database, table, like=held.schema)
    ours, theirs = checksum(source), checksum(held)
    if ours != theirs:
        only_source, only_sink = differing_rows(source, held)
        problems.append(f"rows differ: source {ours.rows}, sink {theirs.rows}")
        problems += [f"only in the source: {row}" for row in only_source]
        problems += [f"only in the sink: {row}" for row in only_sink]
    return TableComparison(f"{database}.{table}", source=ours, sink=theirs, problems=tuple(problems))


def compare_lake(connection: Any, lake: Path, tables: Sequence[tuple[str, str]]) -> list[TableComparison]:
    """`compare_table` for Delta tables in ``lake/DATABASE/TABLE`` (upsert mode)."""
    return [
        compare_table(connection, database, table, read_delta(lake / database / table)) for database, table in tables
    ]


def read_delta(path: Path) -> pa.Table:
    """All rows of a Delta table, read by delta-rs; an empty table without columns when there is none yet."""
    if not DeltaTable.is_deltatable(str(path)):
        return pa.table({})
    return pa.table(DeltaTable(str(path)).to_pyarrow_table())


def read_source(connection: Any, database: str, table: str, *, like: pa.Schema) -> pa.Table:
    """The rows of a table as Arrow columns of the types in `like`, in the order of `like`'s columns."""
    selected = [
        (name, expression)
        for name, data_type in _columns(connection, database, table)
        if name in like.names
        for expression in [_expression(name, data_type)]
    ]
    with connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        if not selected:
            cursor.execute(f"SELECT COUNT(*) FROM `{database}`.`{table}`")
            return pa.table({}) if cursor.fetchone()[0] == 0 else pa.table({"": pa.nulls(1)})
        cursor.execute(f"SELECT {', '.join(expression for _, expression in selected)} FROM `{database}`.`{table}`")
        rows = cursor.fetchall()
    columns = zip(*rows, strict=True) if rows else [()] * len(selected)
    arrays = {
        name: pa.array([_value(value, like.field(name).type) for value in values], like.field(name).type)
        for (name, _), values in zip(selected, columns, strict=True)
    }
    return pa.table({name: arrays[name] for name in like.names if name in arrays})


def _columns(connection: Any, database: str, table: str) -> list[tuple[str, str]]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT COLUMN_NAME, DATA_TYPE FROM information_schema.COLUMNS "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION",
            (database, table),
        )
        return [(str(name), str(data_type).lower()) for name, data_type in cursor.fetchall()]


def _expression(name: str, data_type: str) -> str:
    """The select list with which the text protocol loses nothing."""
    column = f"`{name.replace('`', '``')}`"
    match data_type:
        case "float":
            return f"{column} + 0e0"  # printed as FLOAT it would have six digits
        case "bit" | "year":
            return f"{column} + 0"
        case "time":
            return f"CAST({column} AS CHAR)"  # a duration, beyond what Python's time holds
        case _:
            return column


def _value(value: Any, kind: pa.DataType) -> Any:
    """A value of pymysql as pyarrow takes it for a column of `kind`."""
    match value:
        case None:
            return None
        case dt.datetime() if pa.types.is_timestamp(kind) and kind.tz is not None:
            return value.replace(tzinfo=dt.UTC)
        case int() if pa.types.is_decimal(kind):
            return decimal.Decimal(value)
        case int() if pa.types.is_boolean(kind):
            return bool(value)
        case str() if pa.types.is_binary(kind):
            return value.encode()
        case bytes() if pa.types.is_string(kind):
            return value.decode()
        case _:
            return value
