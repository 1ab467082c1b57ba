"""Upkeep of Iceberg tables on a schedule: small files made large ones.

Called by `raycdc.sinks.iceberg.sink` after a commit; `raycdc.sinks.lakes.maintenance` says what it may do, and when.
Rows are streamed from file to file in their order, partition by partition, and neither looked at nor changed; columns
are found by their ids, so files from before a change of the columns come out as readers see them. Files that were
written for other partitions than the table's own now are left alone, because their rows may belong to several.

The commit is a snapshot of Iceberg's operation ``replace``, which followers of the table pass over. It has no epoch,
and the pipeline's record goes on naming the snapshot before it, of which it descends: whoever looks for a rollback, or
for rows that others took, finds nothing. Nothing is deleted but what a try wrote of which it is certain that it is in
no snapshot: files that no snapshot names any more go with ``remove_orphan_files``.

Upkeep never keeps rows from arriving. A table that cannot be looked after (files beside which rows were deleted, a file
without field ids) is told of once for each reason, and written to as before. What is away is waited for.
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

#: What reading a file of others and writing its rows raises: it is damaged, or has values that do not fit its columns.
_OF_ROWS = (pa.ArrowException, ValueError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class PlannedRewrite:
    """Data files that become larger ones, and the tasks that write these; `whole` when nothing more would be left."""

    old: list[DataFile]
    tasks: list[Together]
    whole: bool


class IcebergMaintenance:
    """One per sink; of a table it knows only what people were told. May be used by several threads."""

    def __init__(
        self, options: OptimizeOptions, context: SinkContext, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._target_bytes = options.target_file
        self._context = context
        self._schedule = MaintenanceSchedule(options.every, clock, context.warn)
        self._reported: set[tuple[TableId, str]] = set()

    def after_commit(self, target: IcebergTarget, generation: int) -> None:
        """Make small files of the table larger ones, if it is time."""
        mark = target.staging_folder / MARK
        try:
            self._schedule.run(target, mark, generation, lambda run_bytes: self._done(target, run_bytes))
        except (SinkError, OSError) as error:
            # The epoch is in the table, and what is away now is waited for by the next commit.
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
            # No commit names them yet. Else they stay: one that is said to have failed may have gone through.
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
        # Of the words alone: the same reason comes again with names of other files.
        reason = target.name, " ".join(word for word in str(error).split() if word.isalpha())
        if reason not in self._reported:
            self._reported.add(reason)
            self._context.warn(
                f"sink.optimize: the small files of {target.name} stay as they are, and rows are written as before. "
                f"{error}"
            )


def _is_unreachable(error: BaseException) -> bool:
    """Whether what is said, or led to it, is over some time without anybody's doing anything to the table."""
    if isinstance(error, SinkUnavailableError) or is_absent(error):
        return True
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, Exception) and is_the_catalogs(cause):
            return True
        cause = cause.__cause__
    return False


def plan(target: IcebergTarget, *, target_bytes: int, run_bytes: int) -> PlannedRewrite:
    """How small files of the table, as of its last `refresh`, become larger ones, of `run_bytes` together. `SinkError`
    where its files are not simply its rows.
    """
    target.check_plain()
    columns, partitions = tuple(target.columns()), target.partitions()
    now = target.table.metadata.default_spec_id
    there = target.data_files()
    # A file that the table has twice stays: taking one of them out would take both.
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
