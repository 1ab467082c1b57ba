"""Apache Iceberg: one table ``DB.TABLE`` per target in a catalog, equal to the source table or holding its changelog.

Stage tasks write data files with the table's field ids. A commit through pyiceberg adds them to the table together with
the vector (`table`).

| write | snapshot rows | log rows |
|---|---|---|
| changelog | append | append |
| upsert, table created or emptied by this pipeline | append | merge |
| upsert, ``on_existing = "merge"`` | merge | merge |
| upsert, of several source tables | merge | merge |

A *merge* is a copy-on-write. While staging, tasks compact the log rows to the last row of each key. The commit reads
the key columns of each data file whose bounds allow one of these keys. It rewrites each file that has such a key
without the rows of these keys, and replaces the old files by the new ones. Delete files are not used, because not every
reader supports them. An epoch with both kinds of rows has two commits: the append, then the merge. A truncation
replaces all files in one commit.

`check_sink` makes the checks of ``raycdc check``: the catalog must answer, and its folder must be writable. It changes
nothing, except that a SQL catalog creates its own tables when it is first opened.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from raycdc.config.checks import CheckResult
from raycdc.errors import SinkError
from raycdc.model import TableId
from raycdc.sinks.api import CHANGELOG, UPSERT, SinkContext, TableCommit, TargetShape
from raycdc.sinks.changes import check_key, check_names, check_unmerged, fitted_to
from raycdc.sinks.iceberg.catalog import ReopenedCatalog
from raycdc.sinks.iceberg.files import IcebergColumn, stored
from raycdc.sinks.iceberg.location import Reach, is_in_store, local_path
from raycdc.sinks.iceberg.maintenance import IcebergMaintenance
from raycdc.sinks.iceberg.plugin import IcebergCatalogOptions, IcebergSinkConfig
from raycdc.sinks.iceberg.snapshot_lineage import NO_EXPIRY, Expiry, Retention, SnapshotLineage
from raycdc.sinks.iceberg.table import IcebergTarget, table_errors
from raycdc.sinks.iceberg.target import (
    KEYS,
    IcebergSteps,
    StagedIceberg,
    columns_of,
    parse_location,
    rows_of,
    scratch_path,
)
from raycdc.sinks.iceberg.tasks import CompactToDataFiles, WriteRows
from raycdc.sinks.source_tables import MergedTarget
from raycdc.sinks.steps import ExactlyOnceSink, StageBatch
from raycdc.sinks.targets import spark_statement, table_folder
from raycdc.sinks.task_inputs import MERGED_FILE_BYTES_MAX, TASK_BYTES_MAX, Input, split, task_inputs
from raycdc.storage.files import delete, names_in
from raycdc.storage.settings import StorageSettings

#: The most tables that are checked.
_TABLES_MAX = 50


def check_sink(config: IcebergSinkConfig, tables: Sequence[TableId], storage: StorageSettings) -> list[CheckResult]:
    """Return all findings. `tables` are the targets that are known so far."""
    options = config.catalog_options()
    # `raycdc.driver.startup_checks` checks a store.
    is_folder = options.type != "rest" and not is_in_store(options.warehouse) and bool(options.warehouse)
    folder = [_folder(Path(options.warehouse).absolute())] if is_folder else []
    if any(not found.ok for found in folder):
        return folder  # Opening a SQL catalog would create its folder.
    try:
        catalog = ReopenedCatalog(options, storage)
        catalog.open()
        there = {table: _found(catalog, table, storage) for table in tables[:_TABLES_MAX]}
    except SinkError as cause:
        return [*folder, CheckResult("sink", str(cause), "Correct the [sink] section or the catalog.")]
    answered = CheckResult("sink", f"The {options.type} catalog of Iceberg tables answers.", ok=True)
    return [*folder, answered, *(found for found in there.values() if found is not None)]


def _found(catalog: ReopenedCatalog, table: TableId, storage: StorageSettings) -> CheckResult | None:
    """Return the finding about an existing table."""
    target = IcebergTarget(catalog, table, "", seen=SnapshotLineage(), reach=Reach(storage), expiry=NO_EXPIRY)
    if not target.refresh():
        return None
    target.columns()
    target.check_plain()
    location = target.table.location()
    return None if is_in_store(location) else _folder(local_path(location))


def _folder(folder: Path) -> CheckResult:
    """Check that files can be created in `folder`, or if it does not exist, that it can be created."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    ok = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    text = f"{folder} can be written." if ok else f"{folder} cannot be written ({nearest} refuses)."
    return CheckResult("sink folder", text, "Choose another folder, or let this user write there.", ok=ok)


class IcebergSink(ExactlyOnceSink[IcebergSteps]):
    """The Iceberg sink; see the module's docstring."""

    kind: ClassVar[str] = "iceberg"
    writes: ClassVar[tuple[str, ...]] = (UPSERT, CHANGELOG)
    merges_sources: ClassVar[bool] = True

    def __init__(self, config: IcebergSinkConfig) -> None:
        super().__init__()
        self._config = config
        self._catalog = ReopenedCatalog(self._options, self.storage)
        self._targets: dict[TableId, IcebergTarget] = {}
        self._seen = SnapshotLineage()
        self._reach = Reach(self.storage)
        self._expiry = NO_EXPIRY
        self._maintenance: IcebergMaintenance | None = None

    @property
    def _options(self) -> IcebergCatalogOptions:
        return self._config.catalog_options()

    def check(self, targets: Sequence[TableId], *, pipeline: str) -> list[CheckResult]:
        return check_sink(self._config, targets, self.storage)

    def open(self, context: SinkContext) -> None:
        self.inspect(context)
        private = Path(context.private or tempfile.gettempdir())
        self._reach = Reach(context.storage, private, login_changes=self._options.changes)
        if self._config.optimize is not None:
            self._maintenance = IcebergMaintenance(self._config.optimize, context)
        # A first start reports a wrong address immediately. Only a start with a state waits for the catalog.
        self._catalog.open()

    def inspect(self, context: SinkContext) -> None:
        super().inspect(context)
        self._catalog.close()
        self._catalog = ReopenedCatalog(self._options, context.storage)
        self._reach = Reach(context.storage, login_changes=self._options.changes)
        after = self._config.expire_snapshots
        retention = Retention(None if after is None else after.total_seconds(), self._config.keep_snapshots)
        self._expiry = Expiry(retention, context.warn, upsert=context.upsert)

    def statement(self, target: TargetShape) -> str:
        return spark_statement(target, "ICEBERG")

    @contextmanager
    def opened(self, target: TableId, *, writes: bool) -> Iterator[IcebergSteps]:
        table = self._target(target) if writes else self._handle(target)
        with table_errors(table):
            yield IcebergSteps(table, self._context)

    def check_work(self, work: TableCommit) -> None:
        check_names(work, stored(rows_of(work, self._context)))
        if self._upsert:
            check_key(work)
            check_unmerged(work, self._context.on_existing)

    def prepare(self, work: TableCommit, batch: StageBatch) -> StagedIceberg:
        # The call removes leftovers, before this driver writes to the staging folder.
        self._target(work.target)
        # A separate handle is used. Refreshing the shared handle would change the metadata that a concurrent commit has
        # read.
        table = self._handle(work.target)
        if not table.refresh():
            raise IcebergSteps(table, self._context).disappeared()
        work = fitted_to(work, self._context, table.arrow().names)
        staged = StagedIceberg(columns=columns_of(work, table, self._context), partitions=table.partitions())
        may_append = not work.merged and table.ownership.created_by_us
        appended, merged = split(work.segments, upsert=self._upsert, may_append=may_append)
        file_bytes_max = MERGED_FILE_BYTES_MAX if self._upsert else TASK_BYTES_MAX
        for inputs in task_inputs(appended, parallelism=self._context.parallelism, task_bytes_max=file_bytes_max):
            batch.add(self._append_task(work, table, staged.columns, inputs), staged.append.append)
        for inputs in merged:
            batch.add(self._merge_task(work, table, staged.columns, inputs), staged.merge.append)
        return staged

    def after_commit(self, work: TableCommit, staged: StagedIceberg) -> None:
        delete([*(result.keys for result in staged.merge), *staged.scratch])
        if self._maintenance is not None:
            self._maintenance.after_commit(self._target(work.target), work.generation)

    def forget(self, target: TableId) -> None:
        super().forget(target)
        self._seen.forget(target)

    def close(self) -> None:
        self._targets.clear()
        self._reach.close()
        self._catalog.close()

    def _append_task(
        self, work: TableCommit, table: IcebergTarget, columns: list[IcebergColumn], inputs: list[Input]
    ) -> WriteRows:
        given = self._context.table_input(work, inputs)
        return WriteRows(given, parse_location(work, table, columns), changelog=not self._upsert)

    def _merge_task(
        self, work: TableCommit, table: IcebergTarget, columns: list[IcebergColumn], inputs: list[Input]
    ) -> CompactToDataFiles:
        given = self._context.table_input(work, inputs)
        return CompactToDataFiles(
            given, parse_location(work, table, columns), scratch_path(table, work), MergedTarget.of(work)
        )

    def _handle(self, target: TableId) -> IcebergTarget:
        table_folder(Path(), target)  # This raises an error for names that would leave the warehouse.
        expiry, app_id = self._expiry, self._context.app_id
        return IcebergTarget(self._catalog, target, app_id, seen=self._seen, reach=self._reach, expiry=expiry)

    def _target(self, target: TableId) -> IcebergTarget:
        if target not in self._targets:
            handle = self._targets[target] = self._handle(target)
            if handle.refresh():
                own = handle.staging_folder
                delete(own / name for name in names_in(own) if name.startswith(KEYS))
        return self._targets[target]
