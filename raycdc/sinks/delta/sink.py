"""Delta Lake: one table per target under ``PATH/DB/TABLE``, either equal to the source table or holding its changelog.

Stage tasks write rows directly from segments to Parquet data files, and one commit of the files' names makes them
visible. Log rows of an upsert table are compacted to the last row per key and merged in one of three ways, by their
size. Up to `SMALL_BYTES_MAX`, this process compacts and merges them without tasks or intermediate files, which takes
milliseconds. Above that, tasks compact the rows and this process merges them, which takes a tenth of a second or more.
Above `MERGE_IN_PROCESS_BYTES_MAX`, Spark's MERGE is used, which takes seconds but handles any size.

| write | snapshot rows | log rows |
|---|---|---|
| changelog | append | append |
| upsert, table created or emptied by this pipeline | append | merge |
| upsert, ``on_existing = "merge"`` | merge | merge |
| upsert, of several source tables | merge, if the table lacks the new keys | the same |

An epoch with both kinds of rows has two commits: the append, then the merge. A truncation replaces all rows by those
after it in one commit.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from raycdc.errors import ColumnsRefusedError
from raycdc.model import TableId
from raycdc.sinks.api import CHANGELOG, UPSERT, SinkContext, TableCommit, TargetShape
from raycdc.sinks.changes import check_key, check_unmerged, fitted_to
from raycdc.sinks.delta.evolution import check_columns
from raycdc.sinks.delta.maintenance import DeltaMaintenance
from raycdc.sinks.delta.plugin import DeltaSinkConfig
from raycdc.sinks.delta.table import DeltaTarget, delta_errors
from raycdc.sinks.delta.target import DeltaSteps, StagedDelta, columns_of, order_column
from raycdc.sinks.delta.tasks import WritePartitioned
from raycdc.sinks.source_tables import MergedTarget
from raycdc.sinks.steps import ExactlyOnceSink, StageBatch
from raycdc.sinks.targets import spark_statement, table_folder
from raycdc.sinks.task_inputs import MERGED_FILE_BYTES_MAX, TASK_BYTES_MAX, Input, split, task_inputs
from raycdc.sinks.tasks import CompactToParquet, WriteParquet
from raycdc.state.files.folder import private_file
from raycdc.state.manifests.manifest import STATE_NODE
from raycdc.storage.files import (
    Access,
    AnyPath,
    StorePath,
    any_path,
    as_text,
    delete,
    delete_table,
    has_secrets,
    names_in,
)
from raycdc.storage.settings import LIKE_ANYBODY, StorageSettings


class Lake:
    """The location of a lake: a folder of this machine or a URL, with the settings to reach it.

    `root` is a path that can be extended by names and passed to tasks. After `keep_secrets`, the pickle of `root`
    contains no secrets.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._settings = LIKE_ANYBODY
        self._secrets: Path | None = None
        self.root = any_path(path, Access(LIKE_ANYBODY))

    def reach(self, settings: StorageSettings) -> None:
        """Use these settings of the store."""
        self._settings = settings
        self.root = any_path(self._path, Access(settings))

    def keep_secrets(self, folder: str) -> None:
        """Write the store's keys to a private file in `folder` (empty: the system's temporary folder), which tasks
        read.
        """
        if isinstance(self.root, StorePath) and has_secrets(self._settings):
            settings = as_text(self._settings)
            self._secrets = private_file(Path(folder or tempfile.gettempdir()), settings)
            self.root = any_path(self._path, Access(self._settings, str(self._secrets), written=settings))

    def close(self) -> None:
        """Delete the file with the keys."""
        if self._secrets is not None:
            self._secrets.unlink(missing_ok=True)
            self._secrets = None


#: Up to this size of segments, log rows are read and compacted only when they are merged, because writing an
#: intermediate file costs as much as reading a megabyte.
SMALL_BYTES_MAX = 2 << 20


@dataclass(frozen=True, slots=True)
class _Takes:
    """The way in which rows are written to a target: `appended` is True if snapshot rows are appended, and `partitions`
    are the names of the partition columns.
    """

    appended: bool = False
    partitions: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: DeltaTarget) -> _Takes:
        """Return the rules of a refreshed table."""
        return cls(table.ownership.created_by_us, tuple(table.partition_columns))


class DeltaSink(ExactlyOnceSink[DeltaSteps]):
    """The Delta Lake sink; see the module's docstring."""

    kind: ClassVar[str] = "delta"
    writes: ClassVar[tuple[str, ...]] = (UPSERT, CHANGELOG)
    keeps_greatest: ClassVar[bool] = True
    merges_sources: ClassVar[bool] = True
    makes_at_once: ClassVar[bool] = True

    def statement(self, target: TargetShape) -> str:
        return spark_statement(target, "DELTA", self._config.path)

    def __init__(self, config: DeltaSinkConfig) -> None:
        super().__init__()
        self._config = config
        self._lake = Lake(config.path)
        self.small_bytes_max = SMALL_BYTES_MAX
        self._maintenance: DeltaMaintenance | None = None
        self._targets: dict[TableId, DeltaTarget] = {}
        #: Cached, because staging reads it while another thread may be committing to the target.
        self._takes: dict[TableId, _Takes] = {}
        self._with_options: set[str] = set()

    def open(self, context: SinkContext) -> None:
        self.inspect(context)
        self._lake.keep_secrets(context.private)
        if self._config.optimize is not None:
            self._maintenance = DeltaMaintenance(
                self._config.optimize, upsert=self._upsert, session=context.session, warn=context.warn
            )

    def inspect(self, context: SinkContext) -> None:
        super().inspect(context)
        self._lake.reach(context.storage)

    @property
    def root(self) -> AnyPath:
        """Return the folder of the lake. For a store, its access settings are known only after `open`."""
        return self._lake.root

    @contextmanager
    def opened(self, target: TableId, *, writes: bool) -> Iterator[DeltaSteps]:
        # A call that only reads gets a separate handle. Refreshing the shared handle would replace the snapshot that a
        # concurrent commit has just checked.
        table = self._target(target) if writes else self._handle(target)
        with delta_errors(table):
            yield DeltaSteps(table, self._context, self._with_options)

    def check_work(self, work: TableCommit) -> None:
        check_columns(work, columns_of(work, self._context))
        if self._upsert:
            check_key(work)
            check_unmerged(work, self._context.on_existing)
        self._takes.pop(work.target, None)

    def apply_schema(self, work: TableCommit) -> None:
        super().apply_schema(work)
        # No commit to the target is running now, so the shared handle is used. Opening a small table again would be
        # most of the work.
        if self._reached.of(work.target) is not None:
            self._takes[work.target] = _Takes.of(self._target(work.target))

    def prepare(self, work: TableCommit, batch: StageBatch) -> StagedDelta:
        work, staged = self._fitted(work), StagedDelta()
        may_append = self._upsert and not work.merged and self._taken(work.target).appended
        appended, merged = split(work.segments, upsert=self._upsert, may_append=may_append)
        file_bytes_max = MERGED_FILE_BYTES_MAX if self._upsert else TASK_BYTES_MAX
        for inputs in task_inputs(appended, parallelism=self._context.parallelism, task_bytes_max=file_bytes_max):
            self._append(work, inputs, staged, batch)
        inputs_to_merge = [entry for inputs in merged for entry in inputs]
        if not work.merged and _are_small(inputs_to_merge, self.small_bytes_max, self._context):
            staged.small = inputs_to_merge
        else:
            for inputs in merged:
                batch.add(self._merge_task(work, inputs), staged.merge.append)
        return staged

    def after_commit(self, work: TableCommit, staged: StagedDelta) -> None:
        if work.target not in self._takes:
            self._takes[work.target] = _Takes.of(self._target(work.target))
        delete(file.path for file in staged.merge)
        if self._maintenance is not None:
            self._maintenance.after_commit(self._target(work.target), work.generation)

    def forget(self, target: TableId) -> None:
        super().forget(target)
        if (handle := self._targets.get(target)) is not None:
            handle.forget()
        self._takes.pop(target, None)
        self._with_options.discard(str(target))

    def discard(self, target: TableId) -> None:
        """Delete a table with all its versions. Only for a table that only this pipeline uses."""
        delete_table(table_folder(self.root, target), "_delta_log")
        self.forget(target)
        self._targets.pop(target, None)

    def close(self) -> None:
        self._targets.clear()
        self._lake.close()

    def _fitted(self, work: TableCommit) -> TableCommit:
        """Return `work` with only those columns that the target has."""
        if not self._context.rules.may_lack:
            return work
        handle = self._handle(work.target)
        names = handle.arrow().names if handle.refresh() else [c.name for c in work.schema.columns]
        kept = fitted_to(work, self._context, names)
        if order_column(work, self._context) != order_column(kept, self._context):
            raise ColumnsRefusedError(
                f"The Delta table {handle.path} lacks the column {self._context.order_by!r} that source.order_by "
                "names: add it to the table, or let pipeline.schema_change do it."
            )
        return kept

    def _taken(self, target: TableId) -> _Takes:
        if target not in self._takes:
            handle = self._handle(target)
            if not handle.refresh():
                # The table does not exist yet: the commit of this or an earlier epoch creates it. If another writer
                # creates it first, that table is refused, replaced, or (``merge``) adopted. Only an adopted table can
                # already have keys of the snapshot rows.
                return _Takes(appended=self._context.on_existing != "merge")
            self._takes[target] = _Takes.of(handle)
        return self._takes[target]

    def _partition_by(self, work: TableCommit) -> Sequence[str]:
        """Return the partition columns that the layout requests; if it requests none, those of the target."""
        return work.layout.columns if work.layout.partitions else self._taken(work.target).partitions

    def _append(self, work: TableCommit, inputs: list[Input], staged: StagedDelta, batch: StageBatch) -> None:
        path = self._target(work.target).path / f"part-{work.epoch:010d}-{uuid.uuid4()}.snappy.parquet"
        table, changelog = self._context.table_input(work, inputs), not self._upsert
        if partition_by := self._partition_by(work):
            task = WritePartitioned(table, path, changelog, partition_by, str(work.target))
            batch.add(task, staged.append.extend)
        else:
            batch.add(WriteParquet(table, path, changelog), staged.append.append)

    def _merge_task(self, work: TableCommit, inputs: list[Input]) -> CompactToParquet:
        path = self._target(work.target).path / "_raycdc" / f"merge-{work.epoch:010d}-{uuid.uuid4()}.parquet"
        # Rows of several tables cannot be ordered by a column.
        order_by = "" if work.merged else order_column(work, self._context)
        return CompactToParquet(self._context.table_input(work, inputs), path, order_by, MergedTarget.of(work))

    def _handle(self, target: TableId) -> DeltaTarget:
        return DeltaTarget(table_folder(self.root, target), target, self._context.app_id)

    def _target(self, target: TableId) -> DeltaTarget:
        if target not in self._targets:
            handle = self._handle(target)
            own = handle.path / "_raycdc"
            delete(own / name for name in names_in(own) if name.startswith("merge-"))
            self._targets[target] = handle
        return self._targets[target]


def _are_small(inputs: Sequence[Input], bytes_max: int, context: SinkContext) -> bool:
    """Return True if the rows to merge are few and on this node, because other nodes may be unreachable at the
    commit.
    """
    here = all(entry.segment.node == STATE_NODE for entry in inputs)
    return here and context.without_tasks(sum(entry.bytes for entry in inputs), bytes_max)
