"""Apache Iceberg: one table ``DB.TABLE`` per target in a catalog, equal to the source table or holding its changelog.

Stage tasks write data files with the table's field ids; a commit names them, through pyiceberg, in one step with the
vector (`table`).

| write | snapshot rows | log rows |
|---|---|---|
| changelog | append | append |
| upsert, table created or emptied by this pipeline | append | merge |
| upsert, ``on_existing = "merge"`` | merge | merge |
| upsert, of several source tables | merge | merge |

A *merge* is a copy-on-write: tasks compact the log rows to the last of each key while staging; at the commit, the data
files whose bounds allow one of these keys are read by their key columns, those that have one are written anew without
these rows, and the commit takes the old ones out and the new ones in. No delete files are made, which not every reader
knows. An epoch with both is two commits, append before merge. A truncation replaces all files in one commit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from raycdc.model import TableId
from raycdc.sinks.api import CHANGELOG, UPSERT, SinkContext, TableWork, TargetShape
from raycdc.sinks.changes import check_key, check_names, check_unmerged, fitted_to
from raycdc.sinks.iceberg.checks import check_sink
from raycdc.sinks.iceberg.descent import Seen
from raycdc.sinks.iceberg.expiry import NO_EXPIRY, Expiry, Retention
from raycdc.sinks.iceberg.files import StoredColumn, stored
from raycdc.sinks.iceberg.places import Reach
from raycdc.sinks.iceberg.plugin import IcebergCatalogOptions, IcebergSinkConfig
from raycdc.sinks.iceberg.reopened import ReopenedCatalog
from raycdc.sinks.iceberg.table import IcebergTarget
from raycdc.sinks.iceberg.target import KEYS, IcebergSteps, Staged, beside, columns_of, place_of, rows_of
from raycdc.sinks.iceberg.tasks import Compact, WriteRows
from raycdc.sinks.iceberg.upkeep import Upkeep
from raycdc.sinks.origins import Origins
from raycdc.sinks.plan import MERGED_FILE_BYTES_MAX, TASK_BYTES_MAX, Input, share_out, split
from raycdc.sinks.statements import spark_statement
from raycdc.sinks.steps import Batch, ExactlyOnceSink
from raycdc.sinks.targets import table_folder
from raycdc.source.checks import CheckResult
from raycdc.stores.files import delete, names_in


class IcebergSink(ExactlyOnceSink[IcebergSteps]):
    """See the module's docstring."""

    kind: ClassVar[str] = "iceberg"
    writes: ClassVar[tuple[str, ...]] = (UPSERT, CHANGELOG)
    merges_origins: ClassVar[bool] = True

    def __init__(self, config: IcebergSinkConfig) -> None:
        super().__init__()
        self._config = config
        self._catalog = ReopenedCatalog(self._options, self.storage)
        self._targets: dict[TableId, IcebergTarget] = {}
        self._seen = Seen()
        self._reach = Reach(self.storage)
        self._expiry = NO_EXPIRY
        self._upkeep: Upkeep | None = None

    @property
    def _options(self) -> IcebergCatalogOptions:
        return self._config.place()

    def check(self, targets: Sequence[TableId], *, pipeline: str) -> list[CheckResult]:
        return check_sink(self._config, targets, self.storage)

    def open(self, context: SinkContext) -> None:
        self.look(context)
        private = Path(context.private or tempfile.gettempdir())
        self._reach = Reach(context.storage, private, login_changes=self._options.changes)
        if self._config.optimize is not None:
            self._upkeep = Upkeep(self._config.optimize, context)
        # Who is here for the first time hears at once that the address is wrong: only a start that has a state waits.
        self._catalog.open()

    def look(self, context: SinkContext) -> None:
        super().look(context)
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
        yield IcebergSteps(self._target(target) if writes else self._handle(target), self._context)

    def check_work(self, work: TableWork) -> None:
        check_names(work, stored(rows_of(work, self._context)))
        if self._upsert:
            check_key(work)
            check_unmerged(work, self._context.on_existing)

    def prepare(self, work: TableWork, batch: Batch) -> Staged:
        self._target(work.target)  # Before there are files of this driver in the staging folder.
        # A handle of its own: refreshing the shared one would move the metadata that a commit under way has read.
        table = self._handle(work.target)
        if not table.refresh():
            raise IcebergSteps(table, self._context).disappeared()
        work = fitted_to(work, self._context, table.arrow().names)
        staged = Staged(columns=columns_of(work, table, self._context), partitions=table.partitions())
        may_append = not work.merged and table.ownership.created_by_us
        appended, merged = split(work.segments, upsert=self._upsert, may_append=may_append)
        file_bytes_max = MERGED_FILE_BYTES_MAX if self._upsert else TASK_BYTES_MAX
        for inputs in share_out(appended, parallelism=self._context.parallelism, task_bytes_max=file_bytes_max):
            batch.add(self._append_task(work, table, staged.columns, inputs), staged.append.append)
        for inputs in merged:
            batch.add(self._merge_task(work, table, staged.columns, inputs), staged.merge.append)
        return staged

    def after_commit(self, work: TableWork, staged: Staged) -> None:
        delete([*(result.keys for result in staged.merge), *staged.beside])
        if self._upkeep is not None:
            self._upkeep.after_commit(self._target(work.target), work.generation)

    def forget(self, target: TableId) -> None:
        super().forget(target)
        self._seen.forget(target)

    def close(self) -> None:
        self._targets.clear()
        self._reach.close()
        self._catalog.close()

    def _append_task(
        self, work: TableWork, table: IcebergTarget, columns: list[StoredColumn], inputs: list[Input]
    ) -> WriteRows:
        given = self._context.table_input(work, inputs)
        return WriteRows(given, place_of(work, table, columns), changelog=not self._upsert)

    def _merge_task(
        self, work: TableWork, table: IcebergTarget, columns: list[StoredColumn], inputs: list[Input]
    ) -> Compact:
        given = self._context.table_input(work, inputs)
        return Compact(given, place_of(work, table, columns), beside(table, work), Origins.of(work))

    def _handle(self, target: TableId) -> IcebergTarget:
        table_folder(Path(), target)  # Refuses names that would leave the warehouse.
        expiry, app_id = self._expiry, self._context.app_id
        return IcebergTarget(self._catalog, target, app_id, seen=self._seen, reach=self._reach, expiry=expiry)

    def _target(self, target: TableId) -> IcebergTarget:
        if target not in self._targets:
            handle = self._targets[target] = self._handle(target)
            if handle.refresh():
                own = handle.staging_folder
                delete(own / name for name in names_in(own) if name.startswith(KEYS))
        return self._targets[target]
