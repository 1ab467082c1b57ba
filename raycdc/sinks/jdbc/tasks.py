"""The stage task of the database sink: it loads segments into one staging table.

A task that runs twice creates two tables with unique names. The commit uses the table whose name it got as the task's
result, and a later commit of the target drops the other table.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from raycdc.errors import SinkError
from raycdc.sinks.jdbc.database import JdbcDatabase, open_database
from raycdc.sinks.jdbc.plugin import TaskAddress
from raycdc.sinks.jdbc.staging import StagedTable
from raycdc.sinks.rows import DELETED, target_columns
from raycdc.sinks.source_tables import CLAIMED, MergedTarget
from raycdc.sinks.task_inputs import TableTask
from raycdc.sinks.tasks import ROW_GROUP_ROWS, compacted_merged, compacted_rows


@dataclass(frozen=True, slots=True)
class LoadStagingTable(TableTask[StagedTable]):
    """Loads rows into a staging table whose name begins with `prefix`.

    The `mode` is ``"append"`` for unchanged rows, ``"changelog"`` for events, or ``"merge"`` for the last row of each
    key. `target` is used in errors only. `merged` is set if the rows are of several source tables, or if a transform
    gives them another key.
    """

    target: str
    prefix: str
    address: TaskAddress
    mode: Literal["append", "changelog", "merge"]
    merged: MergedTarget | None = None

    def run(self) -> StagedTable:
        try:
            database, name = open_database(self.address.open()), f"{self.prefix}{uuid.uuid4().hex[:8]}"
            return self._merged(database, name) if self.mode == "merge" else self._appended(database, name)
        except SinkError as cause:
            raise type(cause)(f"{self.target}: {cause}") from cause

    def _appended(self, database: JdbcDatabase, name: str) -> StagedTable:
        changelog = self.mode == "changelog"
        key = () if changelog else self.table.schema.primary_key
        columns = target_columns(self.table.schema, changelog=changelog)
        nulls: set[str] = set()

        def rows() -> Iterator[pa.RecordBatch]:
            for batch in self.table.rows(changelog=changelog):
                nulls.update(name for name in batch.schema.names if batch.column(name).null_count)
                yield batch

        count = database.load(name, columns, key, rows(), flags=())
        return StagedTable(name, count, nulls=frozenset(nulls))

    def _merged(self, database: JdbcDatabase, name: str) -> StagedTable:
        if self.merged is None:
            flags, compacted = [DELETED], compacted_rows(self.table)
        else:
            flags, compacted = [DELETED, CLAIMED], compacted_merged(self.table, self.merged)
        batches: Iterator[pa.RecordBatch] = iter(compacted.rows.to_batches(max_chunksize=ROW_GROUP_ROWS))
        schema = self.table.schema
        rows = database.load(name, schema.columns, schema.primary_key, batches, flags=flags)
        deleted = pc.sum(compacted.rows.column(DELETED)).as_py() or 0
        kept = compacted.rows.filter(pc.invert(compacted.rows.column(DELETED))) if deleted else compacted.rows
        nulls = frozenset(column for column in kept.schema.names if kept.column(column).null_count)
        return StagedTable(name, rows, deleted, compacted.truncated, nulls)
