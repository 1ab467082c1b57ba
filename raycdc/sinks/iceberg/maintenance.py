"""Scheduled maintenance of Iceberg tables: combines small files.

Called by `raycdc.sinks.iceberg.sink` after a commit; `raycdc.sinks.lakes.maintenance` decides what is done, and when.
Rows are streamed from file to file in their order, partition by partition, without interpreting them. Columns are found
by their ids, so the rows of older files get the present columns. Files whose partition spec is not the present one are
skipped, because their rows may belong to several partitions.

The commit is a snapshot of Iceberg's operation ``replace``, which followers of the table skip. The commit has no epoch.
The pipeline's record still names an earlier snapshot, which is an ancestor of the new one, so the checks for a rollback
and for removed rows find nothing. Maintenance deletes only the files of its own failed attempts, if they are certainly
in no snapshot. Iceberg's ``remove_orphan_files`` deletes files that no snapshot names any more.

Maintenance never prevents writes. If a table cannot be maintained, for example because it has delete files or a file
without field ids, each reason is reported once, and rows are written as before. An unreachable catalog or store is
retried later.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile, FileFormat

from raycdc.core.failpoints import reach
from raycdc.errors import SinkError, SinkUnavailableError, TableRefusedError, TargetModifiedError
from raycdc.model import TableId
from raycdc.sinks.api import SinkContext
from raycdc.sinks.iceberg.commits import CommitContent
from raycdc.sinks.iceberg.layout import folder_of
from raycdc.sinks.iceberg.refusals import is_the_catalogs, is_the_tables
from raycdc.sinks.iceberg.table import IcebergTarget, lacks_replaced
from raycdc.sinks.iceberg.target import run_in_commit, size_of, values_of
from raycdc.sinks.iceberg.tasks import Together
from raycdc.sinks.lakes.lake_options import OptimizeOptions
from raycdc.sinks.lakes.maintenance import MARK, MaintenanceOutcome, MaintenanceSchedule, small_groups
from raycdc.sinks.lakes.unreachable import is_absent
from raycdc.storage.files import delete

#: Errors of rewriting another writer's file that is damaged, or has values that do not fit its columns.
_OF_ROWS = (pa.ArrowException, ValueError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class PlannedRewrite:
    """Data files to combine, and the tasks that write the larger files. `whole` is True if no small files remain
    afterwards.
    """

    old: list[DataFile]
    tasks: list[Together]
    whole: bool


class IcebergMaintenance:
    """The maintenance of one sink's tables. It remembers which warnings were shown. Thread-safe."""

    def __init__(
        self, options: OptimizeOptions, context: SinkContext, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._target_bytes = options.target_file
        self._context = context
        self._schedule = MaintenanceSchedule(options.every, clock, context.warn)
        self._reported: set[tuple[TableId, str]] = set()

    def after_commit(self, target: IcebergTarget, generation: int) -> None:
        """Combine small files of the table if maintenance is due."""
        mark = target.staging_folder / MARK
        try:
            self._schedule.run(target, mark, generation, lambda run_bytes: self._done(target, run_bytes))
        except (SinkError, OSError) as error:
            # The epoch is committed already, and the next commit handles an outage.
            self._notify(target, error)

    def _done(self, target: IcebergTarget, run_bytes: int) -> MaintenanceOutcome:
        try:
            reach("before_optimize")
            planned = plan(target, target_bytes=self._target_bytes, run_bytes=run_bytes)
            if planned.tasks:
                self._replace(target, planned)
            reach("after_optimize")
        except CommitFailedException:
            return MaintenanceOutcome.OVERTAKEN
        except (SinkError, TableRefusedError) as error:
            self._notify(target, error)
            return MaintenanceOutcome.AWAY if _is_unreachable(error) else MaintenanceOutcome.DONE
        except Exception as cause:
            if not is_the_tables(cause):
                raise
            reported = target.error("cannot be read or written", cause)
            self._notify(target, reported)
            return (
                MaintenanceOutcome.AWAY
                if _is_unreachable(cause) or _is_unreachable(reported)
                else MaintenanceOutcome.DONE
            )
        return MaintenanceOutcome.DONE if planned.whole else MaintenanceOutcome.MORE

    def _replace(self, target: IcebergTarget, planned: PlannedRewrite) -> None:
        try:
            written = [file for file in run_in_commit(planned.tasks, self._context) if file is not None]
            there, now = sum(file.record_count for file in planned.old), sum(file.rows for file in written)
            if there != now:
                raise TargetModifiedError(
                    f"The Iceberg table {target.name} has files with {now} rows, where its manifests say {there}."
                )
        except Exception as cause:
            # No commit that names these files was tried yet, so they may be deleted. After an attempt they must stay,
            # because a commit that reported a failure may have succeeded.
            delete(task.into for task in planned.tasks)
            if not isinstance(cause, _OF_ROWS):
                raise
            raise target.error("has files that cannot be written anew", cause) from cause
        change, before = CommitContent(add=written, delete=planned.old, same_rows=True), target.table.metadata
        try:
            target.replace_files(change)
        except CommitFailedException:
            if lacks_replaced(target, change, before):
                delete(task.into for task in planned.tasks)
            raise

    def _notify(self, target: IcebergTarget, error: Exception) -> None:
        # Compare the words only, because the same error may name other files each time.
        reason = target.name, " ".join(word for word in str(error).split() if word.isalpha())
        if reason not in self._reported:
            self._reported.add(reason)
            self._context.warn(
                f"sink.optimize: the small files of {target.name} stay as they are, and rows are written as before. "
                f"{error}"
            )


def _is_unreachable(error: BaseException) -> bool:
    """Return True if the error, or one of its causes, will disappear without a change of the table."""
    if isinstance(error, SinkUnavailableError) or is_absent(error):
        return True
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, Exception) and is_the_catalogs(cause):
            return True
        cause = cause.__cause__
    return False


def plan(target: IcebergTarget, *, target_bytes: int, run_bytes: int) -> PlannedRewrite:
    """Plan which small files of the table, as of its last `refresh`, are combined, up to `run_bytes` in total.

    Raises `SinkError` if the table's files do not simply contain its rows.
    """
    target.check_plain()
    columns, partitions = tuple(target.columns()), target.partitions()
    now = target.table.metadata.default_spec_id
    there = target.data_files()
    # A file that the table lists twice is skipped, because removing one entry would remove both.
    times = Counter(file.file_path for file in there)
    files = [f for f in there if f.spec_id == now and f.file_format == FileFormat.PARQUET and times[f.file_path] == 1]
    groups, whole = small_groups(
        files, target_bytes=target_bytes, size=size_of, partition=values_of, run_bytes=run_bytes
    )
    tasks = []
    for group in groups:
        values = values_of(group[0])
        folder = target.data_folder / folder_of(partitions, values) if partitions else target.data_folder
        tasks.append(
            Together(
                tuple(target.files.path(file.file_path) for file in group),
                sum(map(size_of, group)),
                folder / f"upkeep-{uuid.uuid4()}.parquet",
                columns,
                values,
            )
        )
    return PlannedRewrite([file for group in groups for file in group], tasks, whole)
