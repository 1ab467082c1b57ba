"""Scheduled maintenance of Delta tables: compacts small files, and deletes files that are no longer needed.

Called by `raycdc.sinks.delta.sink` after a commit; `raycdc.sinks.lakes.maintenance` decides what is done, and when. The
commit of a compaction is only valid as the version right after the version that was read. Work that needs more than
moving rows of plain files (deletion vectors, sorting) is done by Spark's OPTIMIZE.

Compaction replaces small files by large ones. Rows are streamed from file to file in their order, partition by
partition, without interpreting them. delta-rs's own compaction is not used, because two concurrent compactions do not
detect each other, and each adds the rows of the same files (deltalake 1.6). In upsert tables, removed files are marked
as a change of data, so that another writer's compaction that began earlier detects the conflict.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from raycdc.core.failpoints import reach
from raycdc.errors import ConfigError, SinkError, TargetModifiedError
from raycdc.sinks.api import ignore_text
from raycdc.sinks.delta import spark_merge
from raycdc.sinks.delta.commits import hooks
from raycdc.sinks.delta.layout import folder_of, value_text
from raycdc.sinks.delta.plugin import NO_SPARK_ORDER, DeltaOptimizeOptions
from raycdc.sinks.delta.small_merge import Action, SnapshotFile, in_types, is_plain, snapshot_files
from raycdc.sinks.delta.table import DeltaTarget, is_the_tables
from raycdc.sinks.delta.table_constraints import without_values
from raycdc.sinks.lakes.maintenance import MARK, MaintenanceOutcome, MaintenanceSchedule, small_groups
from raycdc.sinks.lakes.statistics import for_table, has_bounds
from raycdc.sinks.lakes.unreachable import is_absent, is_refused
from raycdc.sinks.tasks import write_parquet_file
from raycdc.storage.files import AnyPath, reading, relative

#: The most rows in memory.
BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class DeltaCompaction:
    """The actions of a compacting commit; none if there is nothing to do. `whole` is True if no small files remain
    after the commit.
    """

    actions: list[Action]
    whole: bool


def compaction(
    table: DeltaTable, folder: AnyPath, *, target_bytes: int, run_bytes: int, data_change: bool
) -> DeltaCompaction | None:
    """Combine small files of the snapshot of `table` into large ones, up to `run_bytes` in total, and return the
    commit's actions. Returns None if the table's files do not simply contain its rows. If the commit fails, the new
    files remain and are never read.
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
    return DeltaCompaction(actions, whole)


def _rows(folder: AnyPath, files: Sequence[SnapshotFile], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for file in files:
        with (
            reading(folder / unquote(file.path)) as source,
            pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as parquet,
        ):
            for batch in parquet.iter_batches(BATCH_ROWS):
                yield from in_types(pa.Table.from_batches([batch]), schema).to_batches()


class DeltaMaintenance:
    """The maintenance of one sink's tables. The only state about a table is its schedule."""

    def __init__(
        self,
        options: DeltaOptimizeOptions,
        *,
        upsert: bool,
        session: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.time,
        warn: Callable[[str], None] = ignore_text,
    ) -> None:
        """Create it. Raises `ConfigError` if the options need Spark and there is no session."""
        if options.z_order and session is None:
            raise ConfigError(NO_SPARK_ORDER)
        self._options = options
        self._upsert = upsert
        self._session = session
        self._schedule = MaintenanceSchedule(options.every, clock, warn)

    def after_commit(self, target: DeltaTarget, generation: int) -> None:
        """Optimise the table if maintenance is due. Raises `SinkError`, except for errors that a concurrent commit of
        another writer caused.
        """
        mark = target.path / "_raycdc" / MARK
        self._schedule.run(target, mark, generation, lambda run_bytes: self._done(target, run_bytes))

    def _done(self, target: DeltaTarget, run_bytes: int) -> MaintenanceOutcome:
        try:
            reach("before_optimize")
            done = self._optimize(target, run_bytes)
            reach("after_optimize")
            # The refresh syncs the new files, before the vacuum deletes any file.
            target.refresh()
            if self._options.vacuum is not None:
                self._vacuum(target, self._options.vacuum)
        except CommitFailedError:
            return MaintenanceOutcome.OVERTAKEN
        except Exception as cause:
            if not is_the_tables(cause):
                raise
            raise (SinkError if is_absent(cause) or is_refused(cause) else TargetModifiedError)(
                f"{target.location} cannot be optimised: {without_values(str(cause))}. Leave sink.optimize out to "
                "go on without."
            ) from cause
        return MaintenanceOutcome.DONE if done else MaintenanceOutcome.MORE

    def _optimize(self, target: DeltaTarget, run_bytes: int) -> bool:
        """Optimise the table; return True if nothing is left to do."""
        fields = {field.name: field.type for field in target.arrow() if field.name not in target.partition_columns}
        # Sorting by columns without statistics would not let readers skip files.
        order = [name for name in self._options.z_order if name in fields and has_bounds(fields[name])]
        found = None
        if not order:
            size = self._options.target_file
            # A changelog may be read as a stream, which fails on commits that change data.
            found = compaction(
                target.table, target.path, target_bytes=size, run_bytes=run_bytes, data_change=self._upsert
            )
        if found is None:
            session = None if self._session is None else self._session()
            spark_merge.optimize(session, target, order, target_bytes=self._options.target_file)
            return True
        if found.actions:
            target.table.create_write_transaction(
                found.actions,
                mode="append",
                schema=target.table.schema(),
                partition_by=target.partition_columns,
                commit_properties=CommitProperties(
                    max_commit_retries=0, custom_metadata={"userMetadata": json.dumps({"raycdc": "optimize"})}
                ),
                post_commithook_properties=hooks(target.table),
            )
        return found.whole

    def _vacuum(self, target: DeltaTarget, retention: timedelta) -> None:
        """Delete files that commits removed and that are older than `retention`.

        Files that are in no commit stay, because they may belong to an epoch that is being staged.
        """
        hours = math.ceil(retention.total_seconds() / 3600)
        target.table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=False)
        target.refresh()
