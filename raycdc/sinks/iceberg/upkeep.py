"""Upkeep of Iceberg tables on a schedule: small files made large ones.

Called by `raycdc.sinks.iceberg.sink` after a commit; `raycdc.sinks.lake_upkeep` says what it may do, and when. Rows are
streamed from file to file in their order, partition by partition, and neither looked at nor changed; columns are found
by their ids, so files from before a change of the columns come out as readers see them. Files that were written for
other partitions than the table's own now are left alone, because their rows may belong to several.

The commit is a snapshot of Iceberg's operation ``replace``, which followers of the table pass over. It has no epoch,
and the pipeline's record goes on naming the snapshot before it, of which it descends: whoever looks for a rollback, or
for rows that others took, finds nothing. Nothing is deleted: files that no snapshot names any more go with
``remove_orphan_files``.

Upkeep never keeps rows from arriving. A table that cannot be looked after (files beside which rows were deleted, a file
without field ids) is told of once, and written to as before.
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

from raycdc.errors import SinkError, TableRefusedError, TargetTouchedError
from raycdc.failpoints import reach
from raycdc.model import TableId
from raycdc.sinks.api import SinkContext
from raycdc.sinks.iceberg.commits import Change
from raycdc.sinks.iceberg.layout import folder_of
from raycdc.sinks.iceberg.refusals import is_the_tables
from raycdc.sinks.iceberg.table import IcebergTarget
from raycdc.sinks.iceberg.target import run_in_commit, size_of, values_of
from raycdc.sinks.iceberg.tasks import Together
from raycdc.sinks.lake_options import OptimizeOptions
from raycdc.sinks.lake_upkeep import MARK, Schedule, small_groups
from raycdc.stores.files import delete

#: What reading a file of others and writing its rows raises: it is damaged, or has values that do not fit its columns.
_OF_ROWS = (pa.ArrowException, ValueError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class Planned:
    """Data files that become larger ones, and the tasks that write these; `whole` when nothing more would be left."""

    old: list[DataFile]
    tasks: list[Together]
    whole: bool


class Upkeep:
    """One per sink; of a table it knows only whether people were told. May be used by several threads."""

    def __init__(
        self, options: OptimizeOptions, context: SinkContext, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._target_bytes = options.target_file
        self._context = context
        self._schedule = Schedule(options.every, clock)
        self._told: set[TableId] = set()

    def after_commit(self, target: IcebergTarget, generation: int) -> None:
        """Make small files of the table larger ones, if it is time."""
        mark = target.staging_folder / MARK
        try:
            self._schedule.run(target, mark, generation, lambda: self._done(target))
        except (SinkError, OSError) as error:
            # The epoch is in the table, and what is away now is waited for by the next commit.
            self._tell(target, error)

    def _done(self, target: IcebergTarget) -> bool:
        """Whether it is done, or not possible now; else the next commit goes on with it."""
        try:
            reach("before_optimize")
            planned = plan(target, target_bytes=self._target_bytes)
            if planned.tasks:
                self._replace(target, planned)
            reach("after_optimize")
        except CommitFailedException:
            return False
        except (SinkError, TableRefusedError) as error:
            self._tell(target, error)
            return True
        except Exception as cause:
            if not is_the_tables(cause):
                raise
            self._tell(target, target.error("cannot be read or written", cause))
            return True
        return planned.whole

    def _replace(self, target: IcebergTarget, planned: Planned) -> None:
        try:
            written = [file for file in run_in_commit(planned.tasks, self._context) if file is not None]
            there, now = sum(file.record_count for file in planned.old), sum(file.rows for file in written)
            if there != now:
                raise TargetTouchedError(
                    f"The Iceberg table {target.name} has files with {now} rows, where its manifests say {there}."
                )
        except Exception as cause:
            # No commit names them yet. Else they stay: one that is said to have failed may have gone through.
            delete(task.into for task in planned.tasks)
            if not isinstance(cause, _OF_ROWS):
                raise
            raise target.error("has files that cannot be written anew", cause) from cause
        target.replace_files(Change(add=written, delete=planned.old, same_rows=True))

    def _tell(self, target: IcebergTarget, error: Exception) -> None:
        if target.name not in self._told:
            self._told.add(target.name)
            self._context.warn(
                f"sink.optimize: the small files of {target.name} stay as they are, and rows are written as before. "
                f"{error}"
            )


def plan(target: IcebergTarget, *, target_bytes: int) -> Planned:
    """How small files of the table, as of its last `refresh`, become larger ones. `SinkError` where its files are not
    simply its rows.
    """
    target.check_plain()
    columns, partitions = tuple(target.columns()), target.partitions()
    now = target.table.metadata.default_spec_id
    there = target.data_files()
    # A file that the table has twice stays: taking one of them out would take both.
    times = Counter(file.file_path for file in there)
    files = [f for f in there if f.spec_id == now and f.file_format == FileFormat.PARQUET and times[f.file_path] == 1]
    groups, whole = small_groups(files, target_bytes=target_bytes, size=size_of, partition=values_of)
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
    return Planned([file for group in groups for file in group], tasks, whole)
