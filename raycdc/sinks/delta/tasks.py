"""The stage task of a partitioned Delta table: segments in, a file for each partition out.

Run by a `TaskRunner` in a Spark worker or in the driver process, as the tasks of `raycdc.sinks.tasks` are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from raycdc.bridge.access import SegmentAccess
from raycdc.model import TableSchema
from raycdc.sinks.delta.layout import folder_of, partition_values
from raycdc.sinks.partitioning import gathered
from raycdc.sinks.rows import changelog_arrow, changelog_names
from raycdc.sinks.tasks import read_inputs, write_parquet_file


def write_partitioned(
    inputs: list[dict[str, Any]],
    schema: dict[str, Any],
    path: str,
    changelog: bool,
    node: str,
    token: str,
    partition_by: list[str],
    target: str,
) -> dict[str, Any]:
    """As `raycdc.sinks.tasks.write_parquet`, one or more files for each value of the columns `partition_by`.

    Those that rows lack are NULL. `path` is the table's folder and the name from which those of the files are made.
    """
    table = TableSchema.from_json(schema)
    names = changelog_names(table) if changelog else [c.name for c in table.columns]
    batches = read_inputs(inputs, names, access=SegmentAccess(node, token), symbols=changelog)
    arrow = changelog_arrow(table) if changelog else table.arrow()
    return {"files": write_files(Path(path), arrow, batches, partition_by, target=target)}


def write_files(
    path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], partition_by: Sequence[str], *, target: str
) -> list[dict[str, Any]]:
    """Write `batches` of `schema`, each partition's rows into files of its own beside the name `path`.

    Descriptions are those of `write_parquet_file`, with ``partition``, its values as the log has them. `DataError` for
    a value that the log cannot have.
    """

    def keys(rows: pa.Table) -> list[pa.Array | pa.ChunkedArray]:
        nothing = pa.nulls(rows.num_rows)
        return [rows.column(name) if name in rows.column_names else nothing for name in partition_by]

    kept = pa.schema([field for field in schema if field.name not in partition_by])
    named = (pa.RecordBatch.from_arrays(batch.columns, names=schema.names) for batch in batches)
    files: list[dict[str, Any]] = []
    for number, (values, rows) in enumerate(gathered(named, keys)):
        partition = partition_values(partition_by, values, target)
        place = path.parent / folder_of(partition) / path.name.replace("part-", f"part-{number:05d}-", 1)
        written = write_parquet_file(place, kept, (batch.select(kept.names) for batch in rows))
        files.append({**written, "partition": partition})
    return files
