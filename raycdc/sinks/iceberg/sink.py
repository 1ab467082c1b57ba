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

import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile

from raycdc.bridge.tasks import StageTask, run_in_process
from raycdc.checkpoint.manifest import Segment
from raycdc.errors import FencedError, TargetGoneError, TargetTakenError, TargetTouchedError
from raycdc.failpoints import reach
from raycdc.model import TableId
from raycdc.sinks.api import (
    CHANGELOG,
    STEP_APPEND,
    STEP_LAST,
    STEP_MERGE,
    STEP_SCHEMA,
    STEP_TOMBSTONE,
    UPSERT,
    CommitVector,
    SinkContext,
    TableWork,
)
from raycdc.sinks.changes import check_changes, check_key, check_names, fitted, may_lack
from raycdc.sinks.iceberg import evolution
from raycdc.sinks.iceberg.catalog import local_path, open_catalog
from raycdc.sinks.iceberg.evolution import Plan
from raycdc.sinks.iceberg.files import Bounds, StoredColumn, stored, type_text
from raycdc.sinks.iceberg.partitions import StoredPartition
from raycdc.sinks.iceberg.plugin import IcebergSinkConfig
from raycdc.sinks.iceberg.table import CREATED_BY, Change, IcebergTarget, Stamp, remove
from raycdc.sinks.lake_columns import type_error
from raycdc.sinks.plan import MERGED_FILE_BYTES_MAX, TASK_BYTES_MAX, Input, by_partition, share_out
from raycdc.sinks.rows import changelog_arrow
from raycdc.sinks.targets import check_write, table_folder

#: Data files up to this size together are written anew in this process, larger ones by tasks: a Spark job costs more
#: than reading so much.
REWRITE_IN_PROCESS_BYTES_MAX = 32 << 20


@dataclass(frozen=True, slots=True)
class Staged:
    """Results of a table's stage tasks, and the field ids and partitions that their files were written for."""

    append: list[dict[str, Any]] = field(default_factory=list)
    merge: list[dict[str, Any]] = field(default_factory=list)
    columns: list[StoredColumn] = field(default_factory=list)
    partitions: list[StoredPartition] = field(default_factory=list)

    def files(self, step: int) -> list[dict[str, Any]]:
        """Descriptions of the data files of a step."""
        results = self.append if step == STEP_APPEND else self.merge
        return [file for result in results for file in result["files"]]


class IcebergSink:
    """See the module's docstring."""

    writes: ClassVar[tuple[str, ...]] = (UPSERT, CHANGELOG)
    durable: ClassVar[bool] = True
    merges_origins: ClassVar[bool] = True

    def __init__(self, config: IcebergSinkConfig) -> None:
        self._options = config.place()
        self._opening = threading.Lock()
        self._catalog: Catalog | None = None
        self._targets: dict[TableId, IcebergTarget] = {}
        self._seen: dict[TableId, CommitVector] = {}

    def open(self, context: SinkContext) -> None:
        check_write("iceberg", self.writes, context.write)
        self._context = context
        self._upsert = context.write == UPSERT

    def look(self, context: SinkContext) -> None:
        self.open(context)

    def require_free(self, target: TableId) -> None:
        handle = self._handle(target)
        if handle.refresh() and handle.vector() is None and not handle.created_by_us():
            self._on_existing(handle)

    def committed(self, target: TableId) -> CommitVector | None:
        handle = self._handle(target)
        return handle.vector() if handle.refresh() else None

    def apply_schema(self, work: TableWork) -> None:
        check_changes(work, self._context.schema_change, self._context.left_out)
        wanted = stored(self._arrow(work))
        check_names(work, wanted)
        if self._upsert:
            check_key(work)
        if self._upsert and work.merged and self._context.on_existing == "merge":
            raise TargetTakenError(
                f"{work.target}: {', '.join(map(str, work.merged))} cannot be merged, or given another key, with "
                'pipeline.on_existing = "merge": whether a row that is there already is one of theirs is not known. '
                'Use "fail" or "replace".'
            )
        target = self._target(work.target)
        stamp = _stamp(work, STEP_SCHEMA)
        if not target.refresh():
            if not any(change["type"] == "create_table" for change in work.changes):
                raise TargetGoneError(f"The Iceberg table {work.target} disappeared. Read its source table anew.")
            target.create(wanted, stamp, work.layout)
        elif target.vector() is None and not target.created_by_us():
            self._take_over(target, work, wanted, stamp)
        else:
            target.commit(stamp, lambda: self._evolved(target, work, wanted))

    def stage(self, works: Sequence[TableWork]) -> Mapping[TableId, Any]:
        tasks: list[StageTask] = []
        places: list[list[dict[str, Any]]] = []
        staged: dict[TableId, Staged] = {}
        for whole in works:
            self._target(whole.target)  # Before there are files of this driver in the staging folder.
            # A handle of its own: refreshing the shared one would move the metadata that a commit under way has read.
            target = self._handle(whole.target)
            if not target.refresh():
                raise TargetGoneError(f"The Iceberg table {whole.target} disappeared. Read its source table anew.")
            work = self._fitted(whole, target)
            into = staged[work.target] = Staged(columns=self._columns(work, target), partitions=target.partitions())
            appended, merged = self._split(work, target)
            file_bytes_max = MERGED_FILE_BYTES_MAX if self._upsert else TASK_BYTES_MAX
            for inputs in share_out(appended, parallelism=self._context.parallelism, task_bytes_max=file_bytes_max):
                tasks.append(self._append_task(work, target, into.columns, inputs))
                places.append(into.append)
            for inputs in merged:
                tasks.append(self._merge_task(work, target, into.columns, inputs))
                places.append(into.merge)
        results = self._context.run_tasks(tasks) if tasks else []
        for place, result in zip(places, results, strict=True):
            place.append(result)
        return staged

    def commit(self, work: TableWork, staged: Any) -> None:
        target = self._target(work.target)
        if not target.refresh():
            raise TargetGoneError(f"The Iceberg table {work.target} disappeared. Read its source table anew.")
        held = target.vector()
        if held is not None and held.generation > work.generation:
            raise FencedError(f"{work.target} was written by a newer driver (generation {held.generation}).")
        target.check_layout(work.layout)
        target.options = dict(work.layout.options)
        work = self._fitted(work, target)
        steps = [s for s, there in ((STEP_APPEND, staged.append), (STEP_MERGE, staged.merge)) if there]
        for step in steps or [STEP_LAST]:
            last = step == (steps or [STEP_LAST])[-1]
            stamp = _stamp(work, STEP_LAST if last else step)
            if held is None or (held.epoch, held.step) < (work.epoch, stamp.vector.step):
                reach("in_commit")
                target.commit(stamp, lambda step=step: self._change(target, work, staged, step))  # type: ignore[misc]
            else:
                remove([file["path"] for file in staged.files(step)])
        remove([result["keys"] for result in staged.merge])

    def tombstone(self, work: TableWork) -> None:
        target = self._target(work.target)
        stamp = _stamp(work, STEP_TOMBSTONE)
        if not target.refresh():
            target.create(stored(self._arrow(work)), stamp, work.layout)
        target.mark(stamp)

    def close(self) -> None:
        self._targets.clear()
        if self._catalog is not None:
            self._catalog.close()

    # -- what commits do --------------------------------------------------------------------------------------------

    def _change(self, target: IcebergTarget, work: TableWork, staged: Staged, step: int) -> Change:
        """The change of one step of an epoch, against the table as it is now."""
        if step == STEP_LAST:
            return Change()
        target.check_plain()
        if self._columns(work, target) != staged.columns or target.partitions() != staged.partitions:
            raise TargetTouchedError(
                f"{work.target}: somebody changed the columns or partitions of the Iceberg table while an epoch was "
                "written to it. Start again."
            )
        added = staged.files(step)
        if step == STEP_APPEND:
            return Change(add=added)
        if any(result["truncated"] for result in staged.merge):
            return Change(add=added, delete=target.data_files())
        results = [result for result in staged.merge if result["touched"]]
        if not results:
            return Change()
        keys = [result["keys"] for result in results]
        key = [column for column in staged.columns if column.name in work.schema.primary_key]
        touched = pa.concat_tables([pq.read_table(path, columns=[column.name for column in key]) for path in keys])
        bounds = Bounds(key, touched)
        old = [file for file in target.data_files() if bounds.may_have(file.lower_bounds, file.upper_bounds)]
        columns = [{**column.to_json(), "from": column.id} for column in target.columns()]
        args = {
            "columns": columns,
            "key": list(work.schema.primary_key),
            "keys": keys,
            "target": str(work.target),
            "alone": len(work.merged) == 1,
        }
        written = self._rewritten(target, work, old, args)
        gone = [file for file, result in zip(old, written, strict=True) if result["gone"]]
        new = [file for result in written for file in result["files"]]
        return Change(add=[*added, *new], delete=gone)

    def _evolved(self, target: IcebergTarget, work: TableWork, wanted: pa.Schema) -> Change:
        """The schema changes of an epoch, against the table as it is now."""
        plan = evolution.plan(
            target.columns(),
            work,
            wanted,
            next_id=target.next_id,
            upsert=self._upsert,
            behavior=self._context.schema_change,
            left_out=self._context.left_out,
        )
        return self._planned(target, work, plan)

    def _planned(self, target: IcebergTarget, work: TableWork, plan: Plan) -> Change:
        columns = [planned.column for planned in plan.columns]
        target.check_sources(columns)
        if plan.emptied:
            return Change(delete=target.data_files(), columns=columns)
        if not plan.rewritten:
            return Change(columns=columns)
        target.check_plain()
        old = target.data_files()
        described = [{**p.column.to_json(), "from": p.origin, "constant": p.constant} for p in plan.columns]
        written = self._rewritten(target, work, old, {"columns": described})
        new = [file for result in written for file in result["files"]]
        return Change(add=new, delete=old, columns=columns)

    def _rewritten(
        self, target: IcebergTarget, work: TableWork, files: Sequence[DataFile], args: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Results of `tasks.rewrite` for `files`."""
        given = {**args, "partitions": [one.to_json() for one in target.partitions()]}
        tasks = [
            StageTask(
                "raycdc.sinks.iceberg.tasks:rewrite",
                {**given, "path": str(local_path(file.file_path)), "into": self._new_file(target, work)},
                file.file_size_in_bytes,
            )
            for file in files
        ]
        small = sum(task.input_bytes for task in tasks) <= REWRITE_IN_PROCESS_BYTES_MAX
        return run_in_process(tasks) if small else self._context.run_tasks(tasks)

    def _take_over(self, target: IcebergTarget, work: TableWork, wanted: pa.Schema, stamp: Stamp) -> None:
        on_existing = self._on_existing(target)
        target.check_layout(work.layout)
        if on_existing == "replace":
            target.commit(stamp, lambda: self._replaced(target, wanted))
            return
        target.check_plain()
        target.commit(
            stamp,
            lambda: self._planned(
                target,
                work,
                evolution.mergeable(target.columns(), wanted, work, next_id=target.next_id),
            ),
        )

    def _on_existing(self, target: IcebergTarget) -> str:
        """What becomes of a table that is not ours: it is merged into, or replaced."""
        wanted = "replace" if target.left_empty() else self._context.on_existing
        if wanted == "fail":
            raise TargetTakenError(
                f"The Iceberg table {target.name} exists and was not created by this pipeline (or its state was "
                f'deleted). Set pipeline.on_existing to "merge" to write into it or "replace" to empty it first, '
                f"or route the table to another name."
            )
        return wanted

    def _replaced(self, target: IcebergTarget, wanted: pa.Schema) -> Change:
        """An empty table of `wanted` in place of what was there; columns that stay the same keep their ids."""
        target.check_plain()
        here = {(column.name, column.arrow): column for column in target.columns()}
        fresh = iter(range(target.next_id, target.next_id + len(wanted)))
        columns = [here.get((f.name, f.type)) or StoredColumn(next(fresh), f.name, type_text(f.type)) for f in wanted]
        target.check_sources(columns)
        return Change(delete=target.data_files(), columns=columns, properties={CREATED_BY: self._context.app_id})

    # -- what tasks do ----------------------------------------------------------------------------------------------

    def _split(self, work: TableWork, target: IcebergTarget) -> tuple[list[Segment], list[list[Input]]]:
        """Segments to append, and inputs of the tasks that compact rows to merge."""
        if not self._upsert:
            return list(work.segments), []
        in_order = [Input(segment) for segment in sorted(work.segments, key=lambda s: s.seq_base)]
        if not work.merged and target.created_by_us():
            log = [s for s in work.segments if s.kind != "snapshot"]
            return [s for s in work.segments if s.kind == "snapshot"], by_partition(log)
        # Chunks are not hash-partitioned as the log is: one task sees all rows of a key.
        return [], [in_order] if in_order else []

    def _append_task(
        self, work: TableWork, target: IcebergTarget, columns: Sequence[StoredColumn], inputs: list[Input]
    ) -> StageTask:
        args = {**self._task_args(work, target, columns, inputs), "changelog": not self._upsert}
        return StageTask("raycdc.sinks.iceberg.tasks:write_rows", args, sum(entry.bytes for entry in inputs))

    def _merge_task(
        self, work: TableWork, target: IcebergTarget, columns: Sequence[StoredColumn], inputs: list[Input]
    ) -> StageTask:
        keys = target.staging_folder / f"keys-{work.epoch:010d}-{uuid.uuid4()}.parquet"
        args = {**self._task_args(work, target, columns, inputs), "keys": str(keys)}
        if work.merged:
            beginning = [str(table) for table in work.beginning]
            alone = len(work.merged) == 1
            args["merged"] = {"target": str(work.target), "beginning": beginning, "alone": alone}
        return StageTask("raycdc.sinks.iceberg.tasks:compact", args, sum(entry.bytes for entry in inputs))

    def _task_args(
        self, work: TableWork, target: IcebergTarget, columns: Sequence[StoredColumn], inputs: list[Input]
    ) -> dict[str, Any]:
        return {
            "inputs": [entry.to_json() for entry in inputs],
            "schema": work.schema.to_json(),
            "columns": [column.to_json() for column in columns],
            "partitions": [one.to_json() for one in target.partitions()],
            "path": self._new_file(target, work),
            "node": self._context.node,
            "token": self._context.flight_token,
        }

    def _new_file(self, target: IcebergTarget, work: TableWork) -> str:
        return str(target.data_folder / f"{work.epoch:010d}-{uuid.uuid4()}.parquet")

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _fitted(self, work: TableWork, target: IcebergTarget) -> TableWork:
        """`work` with the columns that the target takes; all, unless the user wants changes left out."""
        if not may_lack(self._context.schema_change, self._context.left_out):
            return work
        return replace(work, schema=fitted(work.schema, target.arrow().names))

    def _columns(self, work: TableWork, target: IcebergTarget) -> list[StoredColumn]:
        """The table's columns that rows of `work` have, in their order."""
        there = {column.name: column for column in target.columns()}
        wanted = stored(self._arrow(work))
        if missing := [name for name in wanted.names if name not in there]:
            raise TargetTouchedError(
                f"The Iceberg table {work.target} lacks the column {missing[0]!r} of the rows to come: somebody else "
                "changed the table. Add the column again, or take a new snapshot of the table."
            )
        for want in wanted:
            if there[want.name].arrow != want.type:
                raise type_error(evolution.FORMAT, work.target, pa.field(want.name, there[want.name].arrow), want)
        return [there[name] for name in wanted.names]

    def _arrow(self, work: TableWork) -> pa.Schema:
        return work.schema.arrow() if self._upsert else changelog_arrow(work.schema)

    def _handle(self, target: TableId) -> IcebergTarget:
        table_folder(Path(), target)  # Refuses names that would leave the warehouse.
        with self._opening:
            if self._catalog is None:
                self._catalog = open_catalog(self._options)
        return IcebergTarget(self._catalog, target, self._context.app_id, seen=self._seen)

    def _target(self, target: TableId) -> IcebergTarget:
        if target not in self._targets:
            handle = self._targets[target] = self._handle(target)
            if handle.refresh():
                remove([str(left) for left in handle.staging_folder.glob("keys-*")])
        return self._targets[target]


def _stamp(work: TableWork, step: int) -> Stamp:
    return Stamp(CommitVector(work.epoch, step, work.generation), work.positions)
