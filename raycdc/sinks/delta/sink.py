"""Delta Lake: one table per target under ``PATH/DB/TABLE``, either equal to the source table or holding its changelog.

Rows are written as Parquet by the stage tasks (*fused*: segment in, data file out, nothing in between) and become
visible by one commit of their names. Log rows of an upsert table are compacted to the last row per key and merged, in
one of three ways: up to `SMALL_BYTES_MAX` without any task and file in between, which takes milliseconds; compacted by
tasks and merged in this process, which takes a tenth of a second and more; and by Spark's MERGE above
`MERGE_IN_PROCESS_BYTES_MAX`, which takes seconds but any size.

| write | snapshot rows | log rows |
|---|---|---|
| changelog | append | append |
| upsert, table created or emptied by this pipeline | append | merge |
| upsert, ``on_existing = "merge"`` | merge | merge |
| upsert, of several source tables | merge, if the table lacks the new keys | the same |

An epoch with both is two commits, append before merge. A truncation replaces all rows by those after it in one commit.
"""

from __future__ import annotations

import contextlib
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from raycdc.bridge.tasks import StageTask
from raycdc.checkpoint.manifest import STATE_NODE, Segment
from raycdc.errors import ColumnsRefusedError, FencedError, TargetGoneError, TargetTakenError, TargetTouchedError
from raycdc.failpoints import reach
from raycdc.model import TableId
from raycdc.model.layout import TableLayout
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
from raycdc.sinks.changes import check_changes, check_key, fitted, may_lack
from raycdc.sinks.delta import spark_merge
from raycdc.sinks.delta.columns import check_columns, check_mergeable
from raycdc.sinks.delta.evolution import evolve
from raycdc.sinks.delta.layout import BY_SPARK, check_values, set_by_us
from raycdc.sinks.delta.plugin import DeltaSinkConfig
from raycdc.sinks.delta.table import DeltaTarget, Stamp
from raycdc.sinks.delta.upkeep import Upkeep
from raycdc.sinks.origins import CLAIMED, same_key
from raycdc.sinks.plan import MERGED_FILE_BYTES_MAX, TASK_BYTES_MAX, Input, by_partition, share_out
from raycdc.sinks.rows import DELETED, Compacted, alive, changelog_arrow
from raycdc.sinks.targets import check_write, table_folder
from raycdc.sinks.tasks import compacted_rows

#: Compacted rows up to this size (in memory) are merged in this process. Measured into 5 M rows: 655,000 rows in 6 s
#: with 1.1 GB of memory where Spark's MERGE took 43 s; 20,000 rows in 1.4 s, and 0.13 s into a small table.
MERGE_IN_PROCESS_BYTES_MAX = 128 << 20


#: Log rows of a table, as they are in segments, up to this size are read and compacted only when they are merged. A
#: segment has some kilobytes for a single row; a file in between costs as much as reading a megabyte.
SMALL_BYTES_MAX = 2 << 20


@dataclass(slots=True)
class Staged:
    """Results of a table's stage tasks: files to append, and compacted files to merge; or what is small to merge."""

    append: list[dict[str, Any]] = field(default_factory=list)
    merge: list[dict[str, Any]] = field(default_factory=list)
    small: list[Input] = field(default_factory=list)


class DeltaSink:
    """See the module's docstring."""

    writes: ClassVar[tuple[str, ...]] = (UPSERT, CHANGELOG)
    durable: ClassVar[bool] = True
    keeps_greatest: ClassVar[bool] = True
    merges_origins: ClassVar[bool] = True

    def __init__(self, config: DeltaSinkConfig) -> None:
        self.root = Path(config.path).absolute()
        self.small_bytes_max = SMALL_BYTES_MAX
        self._optimize = config.optimize
        self._upkeep: Upkeep | None = None
        self._targets: dict[TableId, DeltaTarget] = {}
        #: Whether snapshot rows of a target may be appended; asked while another thread may be committing to it.
        self._appendable: dict[TableId, bool] = {}
        self._partitions: dict[TableId, list[str]] = {}
        #: Targets that were seen to have the properties that the configuration asks for.
        self._with_options: set[TableId] = set()

    def open(self, context: SinkContext) -> None:
        self.look(context)
        if self._optimize is not None:
            self._upkeep = Upkeep(self._optimize, upsert=self._upsert, spark=context.spark)

    def look(self, context: SinkContext) -> None:
        check_write("delta", self.writes, context.write)
        self._context = context
        self._upsert = context.write == UPSERT

    def require_free(self, target: TableId) -> None:
        handle = DeltaTarget(table_folder(self.root, target), target, self._context.app_id)
        if not handle.refresh():
            self._check_folder_free(handle)
        elif handle.vector() is None and not handle.created_by_us():
            self._on_existing(handle)

    def committed(self, target: TableId) -> CommitVector | None:
        handle = DeltaTarget(table_folder(self.root, target), target, self._context.app_id)
        return handle.vector() if handle.refresh() else None

    def apply_schema(self, work: TableWork) -> None:
        check_changes(work, self._context.schema_change, self._context.left_out)
        wanted = self._arrow(work)
        check_columns(work, wanted)
        if self._upsert:
            check_key(work)
        target = self._target(work.target)
        self._appendable.pop(work.target, None)
        self._partitions.pop(work.target, None)
        if self._upsert and work.merged and self._context.on_existing == "merge":
            raise TargetTakenError(
                f"{work.target}: {', '.join(map(str, work.merged))} cannot be merged, or given another key, with "
                'pipeline.on_existing = "merge": whether a row that is there already is one of theirs is not '
                'known. Use "fail" or "replace".'
            )
        stamp = _stamp(work, STEP_SCHEMA)
        if not target.refresh():
            if not any(change["type"] == "create_table" for change in work.changes):
                raise _disappeared(target)
            self._check_folder_free(target)
            target.create(wanted, stamp, work.layout)
        elif target.vector() is None and not target.created_by_us():
            self._take_over(target, work, wanted, stamp)
        elif (held := target.vector()) is None or (held.epoch, held.step) < (work.epoch, STEP_SCHEMA):
            evolve(
                target,
                work,
                wanted,
                stamp,
                upsert=self._upsert,
                behavior=self._context.schema_change,
                left_out=self._context.left_out,
            )

    def stage(self, works: Sequence[TableWork]) -> Mapping[TableId, Any]:
        tasks: list[StageTask] = []
        places: list[list[dict[str, Any]]] = []
        staged: dict[TableId, Staged] = {}
        for work in map(self._fitted, works):
            into = staged[work.target] = Staged()
            appended, merged = self._split(work)
            file_bytes_max = MERGED_FILE_BYTES_MAX if self._upsert else TASK_BYTES_MAX
            for inputs in share_out(appended, parallelism=self._context.parallelism, task_bytes_max=file_bytes_max):
                tasks.append(self._append_task(work, inputs))
                places.append(into.append)
            if not work.merged and self._are_small(merged):
                into.small = [entry for inputs in merged for entry in inputs]
                continue
            for inputs in merged:
                tasks.append(self._merge_task(work, inputs))
                places.append(into.merge)
        results = self._context.run_tasks(tasks) if tasks else []
        for place, result in zip(places, results, strict=True):
            place.extend(result.get("files", [result]))
        return staged

    def commit(self, work: TableWork, staged: Any) -> None:
        target = self._target(work.target)
        if not target.refresh():
            raise _disappeared(target)
        work = self._fitted(work)
        held = target.vector()
        if held is not None and held.generation > work.generation:
            raise FencedError(f"{work.target} was written by a newer driver (generation {held.generation}).")
        target.check_layout(work.layout)
        if work.target not in self._with_options:
            self._set_options(target, work.layout)
        to_merge = staged.merge or staged.small
        steps = [s for s, there in ((STEP_APPEND, staged.append), (STEP_MERGE, to_merge)) if there]
        for step in steps or [STEP_LAST]:
            last = step == (steps or [STEP_LAST])[-1]
            stamp = _stamp(work, STEP_LAST if last else step)
            if held is None or (held.epoch, held.step) < (work.epoch, stamp.vector.step):
                reach("in_commit")
                self._commit_step(target, work, staged, step=step, stamp=stamp)
            elif step == STEP_APPEND:
                _delete(staged.append)
        _delete(staged.merge)
        if self._upkeep is not None:
            self._upkeep.after_commit(target, work.generation)

    def tombstone(self, work: TableWork) -> None:
        target = self._target(work.target)
        stamp = _stamp(work, STEP_TOMBSTONE)
        if not target.refresh():
            target.create(self._arrow(work), stamp, work.layout)
        target.mark(stamp)

    def discard(self, target: TableId) -> None:
        """Delete a table with all its versions: for one that is nobody's but the pipeline's."""
        shutil.rmtree(table_folder(self.root, target), ignore_errors=True)
        self._targets.pop(target, None)
        self._appendable.pop(target, None)
        self._partitions.pop(target, None)
        self._with_options.discard(target)

    def close(self) -> None:
        self._targets.clear()

    def _fitted(self, work: TableWork) -> TableWork:
        """`work` with the columns that the target takes; all, unless the user wants changes left out."""
        if not may_lack(self._context.schema_change, self._context.left_out):
            return work
        # A handle of its own, as in `_may_append`.
        handle = DeltaTarget(table_folder(self.root, work.target), work.target, self._context.app_id)
        names = handle.arrow().names if handle.refresh() else [c.name for c in work.schema.columns]
        kept = replace(work, schema=fitted(work.schema, names))
        if self._order_by(work) != self._order_by(kept):
            raise ColumnsRefusedError(
                f"The Delta table {handle.path} lacks the column {self._context.order_by!r} that source.order_by "
                "names: add it to the table, or let pipeline.schema_change do it."
            )
        return kept

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _commit_step(self, target: DeltaTarget, work: TableWork, staged: Staged, *, step: int, stamp: Stamp) -> None:
        if step not in (STEP_APPEND, STEP_MERGE):
            target.mark(stamp)
            return
        there = {name.casefold() for name in target.arrow().names}
        if missing := [column.name for column in work.schema.columns if column.name.casefold() not in there]:
            raise TargetTouchedError(
                f"The Delta table {target.path} ({target.name}) lacks the column {missing[0]!r} of the rows to come: "
                "somebody else changed the table."
            )
        if step == STEP_APPEND:
            target.append(staged.append, stamp)
            return
        if staged.small:
            compacted = compacted_rows(
                staged.small, work.schema, node=STATE_NODE, token="", order_by=self._order_by(work)
            )
            self._merge_rows(target, work, compacted, stamp)
            return
        files = [file["path"] for file in staged.merge]
        emptied = any(file["truncated"] for file in staged.merge)
        if work.merged and not emptied and (key := _taken(target, files, work.schema.primary_key)) is not None:
            raise same_key(str(work.target), key, alone=len(work.merged) == 1)
        columns = [*work.schema.arrow().names, DELETED]
        size = sum(file["memory_bytes"] for file in staged.merge)
        self._check_values(target, work, files)
        if not emptied and self._context.spark is not None and size > MERGE_IN_PROCESS_BYTES_MAX:
            spark_merge.merge(self._context.spark, target, work.schema, files, stamp, order_by=self._order_by(work))
            return
        rows = pa.concat_tables([pq.read_table(path, columns=columns) for path in files])
        if work.merged and not emptied and all(file["new"] for file in staged.merge):
            # Nothing to find in the table: the keys were just found not to be there.
            target.add_rows(rows.drop_columns([DELETED]), stamp)
        else:
            self._merge_rows(target, work, Compacted(rows, emptied), stamp)

    def _set_options(self, target: DeltaTarget, layout: TableLayout) -> None:
        target.set_options(set_by_us(layout))
        if by_spark := target.lacking({n: v for n, v in layout.options if n in BY_SPARK}):
            spark_merge.set_options(self._context.spark, target, by_spark)
        self._with_options.add(target.name)

    def _check_values(self, target: DeltaTarget, work: TableWork, files: Sequence[str]) -> None:
        """`DataError` when compacted rows have values by which a Delta table cannot be partitioned."""
        names = [name for name in target.partition_columns if name in work.schema.arrow().names]
        for path in files if names else ():
            check_values(alive(pq.read_table(path, columns=[*names, DELETED])), names, str(work.target))

    def _merge_rows(self, target: DeltaTarget, work: TableWork, compacted: Compacted, stamp: Stamp) -> None:
        if names := target.partition_columns:
            check_values(alive(compacted.rows), names, str(work.target))
        if compacted.truncated:
            target.overwrite(alive(compacted.rows), stamp)
        else:
            target.merge(compacted.rows, work.schema.primary_key, stamp, order_by=self._order_by(work))

    def _split(self, work: TableWork) -> tuple[list[Segment], list[list[Input]]]:
        """Segments to append, and inputs of the tasks that compact rows to merge."""
        if not self._upsert:
            return list(work.segments), []
        if work.merged:
            return [], [self._in_order(work)] if work.segments else []
        snapshot = [s for s in work.segments if s.kind == "snapshot"]
        log = [s for s in work.segments if s.kind != "snapshot"]
        if self._may_append(work.target):
            return snapshot, by_partition(log)
        # Chunks are not hash-partitioned as the log is: one task sees all rows of a key.
        return [], [self._in_order(work)] if work.segments else []

    def _are_small(self, merged: Sequence[Sequence[Input]]) -> bool:
        """Whether rows to merge are few, and here: another node may be away when they are committed."""
        inputs = [entry for group in merged for entry in group]
        here = all(entry.segment.node == STATE_NODE for entry in inputs)
        return here and sum(entry.bytes for entry in inputs) <= self.small_bytes_max

    def _in_order(self, work: TableWork) -> list[Input]:
        return [Input(segment) for segment in sorted(work.segments, key=lambda s: s.seq_base)]

    def _may_append(self, target: TableId) -> bool:
        if target not in self._appendable:
            # A handle of its own: refreshing the shared one would move the snapshot a commit has just checked.
            handle = DeltaTarget(table_folder(self.root, target), target, self._context.app_id)
            self._appendable[target] = handle.refresh() and handle.created_by_us()
        return self._appendable[target]

    def _partition_by(self, work: TableWork) -> list[str]:
        """The columns that the target is partitioned by; those asked for, where it is asked."""
        if work.layout.partitions:
            return list(work.layout.columns)
        if work.target not in self._partitions:
            handle = DeltaTarget(table_folder(self.root, work.target), work.target, self._context.app_id)
            self._partitions[work.target] = handle.partition_columns if handle.refresh() else []
        return self._partitions[work.target]

    def _append_task(self, work: TableWork, inputs: list[Input]) -> StageTask:
        path = self._target(work.target).path / f"part-{work.epoch:010d}-{uuid.uuid4()}.snappy.parquet"
        args = {**self._task_args(work, inputs, path), "changelog": not self._upsert}
        if partition_by := self._partition_by(work):
            args |= {"partition_by": partition_by, "target": str(work.target)}
            function = "raycdc.sinks.delta.tasks:write_partitioned"
            return StageTask(function, args, sum(entry.bytes for entry in inputs))
        return StageTask("raycdc.sinks.tasks:write_parquet", args, sum(entry.bytes for entry in inputs))

    def _merge_task(self, work: TableWork, inputs: list[Input]) -> StageTask:
        path = self._target(work.target).path / "_raycdc" / f"merge-{work.epoch:010d}-{uuid.uuid4()}.parquet"
        args = self._task_args(work, inputs, path)
        if work.merged:
            beginning = [str(table) for table in work.beginning]
            args |= {"target": str(work.target), "beginning": beginning, "alone": len(work.merged) == 1}
            return StageTask("raycdc.sinks.tasks:compact_origins", args, sum(entry.bytes for entry in inputs))
        args["order_by"] = self._order_by(work)
        return StageTask("raycdc.sinks.tasks:compact", args, sum(entry.bytes for entry in inputs))

    def _order_by(self, work: TableWork) -> str:
        """The column that says which of a key's rows wins; the source has seen to it that its tables have it."""
        wanted = self._context.order_by
        return wanted if wanted in [column.name for column in work.schema.columns] else ""

    def _task_args(self, work: TableWork, inputs: list[Input], path: Path) -> dict[str, Any]:
        return {
            "inputs": [entry.to_json() for entry in inputs],
            "schema": work.schema.to_json(),
            "path": str(path),
            "node": self._context.node,
            "token": self._context.flight_token,
        }

    def _take_over(self, target: DeltaTarget, work: TableWork, wanted: pa.Schema, stamp: Stamp) -> None:
        if self._on_existing(target) == "replace":
            target.create(wanted, stamp, work.layout, replace=True)
            return
        target.check_layout(work.layout)
        check_mergeable(target, wanted)
        missing = [f for f in wanted if f.name not in target.arrow().names]
        if missing:
            target.add_columns(missing, stamp)
        target.mark(stamp)

    def _on_existing(self, target: DeltaTarget) -> str:
        """What becomes of a table that is not ours: it is merged into, or replaced."""
        wanted = "replace" if target.left_empty() else self._context.on_existing
        if wanted == "fail":
            raise TargetTakenError(
                f"The Delta table {target.path} exists and was not created by this pipeline (or its state was "
                f'deleted). Set pipeline.on_existing to "merge" to write into it or "replace" to empty it first, '
                f"or choose another sink.path."
            )
        return wanted

    def _check_folder_free(self, target: DeltaTarget) -> None:
        present = sorted(p.name for p in target.path.iterdir()) if target.path.is_dir() else []
        if any(not name.startswith(("_", ".", "part-")) for name in present):
            raise TargetTakenError(
                f"{target.path} holds files that are not a Delta table ({present[0]}); choose another path."
            )

    def _arrow(self, work: TableWork) -> pa.Schema:
        return work.schema.arrow() if self._upsert else changelog_arrow(work.schema)

    def _target(self, target: TableId) -> DeltaTarget:
        if target not in self._targets:
            path = table_folder(self.root, target)
            _delete([{"path": left} for left in (path / "_raycdc").glob("merge-*")])
            self._targets[target] = DeltaTarget(path, target, self._context.app_id)
        return self._targets[target]


def _taken(target: DeltaTarget, files: Sequence[str], key: Sequence[str]) -> dict[str, Any] | None:
    """The key of a claimed row (`raycdc.sinks.origins`) that the table has already, from another source table."""
    tables = [pq.read_table(path, columns=[*key, CLAIMED]) for path in files]
    claims = pa.concat_tables(tables)
    return target.first_of(claims.filter(claims.column(CLAIMED)).select(list(key)))


def _disappeared(target: DeltaTarget) -> TargetGoneError:
    return TargetGoneError(f"The Delta table {target.path} of {target.name} disappeared. Read its source table anew.")


def _stamp(work: TableWork, step: int) -> Stamp:
    return Stamp(CommitVector(work.epoch, step, work.generation), work.positions)


def _delete(files: Sequence[Mapping[str, Any]]) -> None:
    """Staged files nobody will read; one that cannot be deleted only costs space."""
    for file in files:
        with contextlib.suppress(OSError):
            Path(file["path"]).unlink(missing_ok=True)
