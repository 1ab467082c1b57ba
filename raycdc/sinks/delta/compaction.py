"""Small files of a Delta table made large ones: which, and the actions of a commit that does it.

Called by `raycdc.sinks.delta.upkeep`. Rows are streamed from file to file in their order, partition by partition, and
neither looked at nor changed. delta-rs has a compaction of its own, which is not used: two of them at once do not see
each other, and each adds the rows of the same files again (deltalake 1.6). A commit of these actions is for the very
next version; and where removing files may count as a change of data, as in upsert tables, it does, so that another
writer's compaction that began before sees it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from raycdc.sinks.delta.layout import folder_of, value_text
from raycdc.sinks.delta.rewrite import Action, SnapshotFile, in_types, is_plain, snapshot_files
from raycdc.sinks.lake_upkeep import small_groups
from raycdc.sinks.statistics import for_table
from raycdc.sinks.tasks import write_parquet_file
from raycdc.stores.files import AnyPath, reading, relative

#: Rows in memory at once.
BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class Compaction:
    """The actions of a commit, none when there is nothing to do; `whole` when nothing more would be left."""

    actions: list[Action]
    whole: bool


def compaction(
    table: DeltaTable, folder: AnyPath, *, target_bytes: int, run_bytes: int, data_change: bool
) -> Compaction | None:
    """Write the files that take the place of small ones in the snapshot of `table`, of `run_bytes` together; None where
    its files are not simply its rows. A commit that fails leaves files that nobody reads.
    """
    files = snapshot_files(table) if is_plain(table) else None
    if files is None:
        return None
    schema = pa.schema(table.schema().to_arrow())
    metadata = table.metadata()
    names = list(metadata.partition_columns)
    stored = pa.schema([field for field in schema if field.name not in names])
    actions: list[Action] = []
    groups, whole = small_groups(
        files,
        target_bytes=target_bytes,
        size=lambda file: file.size,
        partition=lambda file: file.values,
        run_bytes=run_bytes,
    )
    for group in groups:
        values = dict(zip(names, map(value_text, group[0].values), strict=True))
        path = folder / folder_of(values) / f"part-{uuid.uuid4()}.snappy.parquet"
        written = write_parquet_file(path, stored, _rows(folder, group, stored))
        now_ms = time.time_ns() // 1_000_000
        removed: list[Any] = [
            RemoveAction(
                unquote(file.path),
                data_change=data_change,
                deletion_timestamp=now_ms,
                size=file.size,
                partition_values=dict(values),
            )
            for file in group
        ]
        added = AddAction(
            path=relative(path, folder),
            size=written.size,
            partition_values=dict(values),
            modification_time=now_ms,
            data_change=data_change,
            stats=for_table(written.statistics, metadata.configuration),
        )
        assert written.rows == sum(file.rows or 0 for file in group), group
        actions += [*removed, added]
    return Compaction(actions, whole)


def _rows(folder: AnyPath, files: Sequence[SnapshotFile], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for file in files:
        with (
            reading(folder / unquote(file.path)) as source,
            pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as parquet,
        ):
            for batch in parquet.iter_batches(BATCH_ROWS):
                yield from in_types(pa.Table.from_batches([batch]), schema).to_batches()
