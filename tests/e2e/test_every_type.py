"""`raycdc run` of a table with every column type into each sink whose targets are files, by snapshot and by log.

Databases have theirs in `test_jdbc`, messages in `tests/integration/connectors/kafka/test_kafka_round_trip`.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycdc.clients.mysql import query
from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.connectors.mysql.values.types import MySqlColumn
from raycdc.model import TableId, TableSchema
from raycdc.sandbox.compare import read_delta
from raycdc.sandbox.servers import MySqlServer
from tests.e2e.test_iceberg import read_iceberg
from tests.e2e.test_jdbc import write_rows
from tests.e2e.verified import require_verified
from tests.epochs.sink_world import lake_rows
from tests.integration.connectors.mysql.test_mysql_types import cases_of
from tests.integration.connectors.mysql.type_cases import as_printed, server_values
from tests.support.jobs import Job, catch_up
from tests.support.sessions import session

pytestmark = pytest.mark.server


def delta_columns(folder: Path, schema: TableSchema) -> dict[str, pa.Array]:
    held = read_delta(folder).sort_by("id")
    return {c.name: held.column(c.name).combine_chunks().cast(c.type.arrow()) for c in schema.columns}


def iceberg_columns(folder: Path, schema: TableSchema) -> dict[str, pa.Array]:
    held = read_iceberg(folder, schema)
    return {c.name: held.column(c.name).combine_chunks() for c in schema.columns}


def parquet_columns(folder: Path, schema: TableSchema) -> dict[str, pa.Array]:
    """The rows that are left of a changelog."""
    changes = pa.concat_tables(pq.read_table(file) for file in sorted(folder.glob("*.parquet")))
    newest = changes.group_by("id").aggregate([("_seq", "max")]).column("_seq_max")
    left = pa.compute.is_in(changes["_seq"], value_set=newest.combine_chunks())
    there = pa.compute.invert(pa.compute.is_in(changes["_op"], value_set=pa.array(["-D", "-U"])))
    held = changes.filter(pa.compute.and_(left, there)).sort_by("id")
    return {c.name: held.column(c.name).combine_chunks() for c in schema.columns}


@pytest.mark.long_variants("parquet-*", suite="sinks")
@pytest.mark.parametrize(
    ("sink", "columns_of"),
    [("delta", delta_columns), ("iceberg", iceberg_columns), ("parquet", parquet_columns), ("jsonl", None)],
)
def test_every_type_arrives(
    sink: str,
    columns_of: Callable[[Path, TableSchema], dict[str, pa.Array]] | None,
    mysql80: MySqlServer,
    tmp_path: Path,
) -> None:
    generator = random.Random(3)
    cases = cases_of(mysql80)
    columns = ", ".join(f"c{n} {case.sql}" for n, case in enumerate(cases))
    with mysql80.fresh_database() as database, session(mysql80, "root") as connection:
        table = f"`{database}`.t"
        query(connection, f"CREATE TABLE {table} (id INT PRIMARY KEY, {columns})")
        write_rows(connection, table, cases, generator, range(24))
        write = "upsert" if sink in ("delta", "iceberg") else "changelog"
        job = Job(tmp_path, mysql80, database, ("t",), sink=sink, write=write, local=True)
        catch_up(job)
        write_rows(connection, table, cases, generator, range(16, 40))
        query(connection, f"DELETE FROM {table} WHERE id % 7 = 0")
        catch_up(job)
        if sink != "jsonl":
            require_verified(job, rows=30)
        source = load_table(connection, TableId(database, "t"))
        theirs = server_values(connection, source)
    folder = job.lake / database / "t"
    if columns_of is None:
        left: dict[int, dict[str, Any]] = {}
        for row in lake_rows(sink, folder):
            left[row["id"]] = row
        rows = [row for _, row in sorted(left.items()) if row["_op"] != "-D"]
        ours = {column.name: lines_as_printed(column, [row[column.name] for row in rows]) for column in source.columns}
        theirs = [
            [None if v is None else json.loads(v) for v in values] if column.shape.base == "json" else values
            for column, values in zip(source.columns, theirs, strict=True)
        ]
    else:
        held = columns_of(folder, source.schema())
        ours = {column.name: as_printed(column, held[column.name]) for column in source.columns}
    assert len(theirs[0]) > 30
    for column, values in zip(source.columns, theirs, strict=True):
        assert (column.column_type, ours[column.name]) == (column.column_type, values)


def lines_as_printed(column: MySqlColumn, values: list[Any]) -> list[Any]:
    """`as_printed` of values of JSON lines; documents as they are."""

    def shown(value: Any) -> Any:
        if isinstance(value, dict) and list(value) == ["$binary"]:
            return base64.b64decode(value["$binary"]).hex().upper()
        match column.shape.base:
            case "float":
                return np.float32(value)
            case "double":
                return value
            case _:
                return value.encode().hex().upper() if column.charset else str(value)

    if column.shape.base == "json":
        return values
    return [None if value is None else shown(value) for value in values]
