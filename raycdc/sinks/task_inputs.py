"""Divides a table's segments among stage tasks. `task_inputs`, `split` and `by_partition` divide segments; they are
pure, and called while staging. `TableInput` is the input of one task: the segments whose rows it reads, the schema of
these rows, and the access to the segments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from raycdc.model import TableSchema
from raycdc.segments.access import SegmentAccess
from raycdc.segments.reading import read_segment
from raycdc.segments.tasks import ResultT_co, StageTask
from raycdc.sinks.rows import changelog_arrow, changelog_names
from raycdc.state.manifests.manifest import Segment

#: The least input in bytes for which a second task saves time, because starting a task takes about 70 ms of a worker.
TASK_BYTES_MIN = 16 << 20

#: The largest input of a task that writes one file, in bytes of Arrow data, for any parallelism.
TASK_BYTES_MAX = 512 << 20

#: The same for tables whose files merges rewrite, because a changed row means rewriting its whole file.
MERGED_FILE_BYTES_MAX = 64 << 20

#: The number of parts per task into which large segments are cut.
PARTS_PER_GROUP = 4


@dataclass(frozen=True, slots=True)
class Input:
    """A run of batches of a segment: `part` (i, n) is the i-th of n runs."""

    segment: Segment
    part: tuple[int, int] = (0, 1)

    @property
    def bytes(self) -> int:
        return self.segment.bytes // self.part[1]


def task_inputs(
    segments: Sequence[Segment], *, parallelism: int, task_bytes_max: int = TASK_BYTES_MAX
) -> list[list[Input]]:
    """Divide segments among tasks, for rows that may be in any file of the target. Return the inputs of each task.
    Every batch of every segment is in exactly one task. Tasks are of nearly equal size, so large segments are divided.
    The same segments always give the same tasks. A task gets segments that follow each other in the order of `_seq`.
    Rows of a snapshot with neighbouring keys are therefore in the same file, and the file's statistics exclude most
    other keys.
    """
    total = sum(segment.bytes for segment in segments)
    if not total:
        return []
    count = max(1, min(parallelism, -(-total // TASK_BYTES_MIN)), -(-total // task_bytes_max))
    target_size = -(-total // count)
    tasks: list[list[Input]] = [[] for _ in range(count)]
    before = 0
    for entry in _in_order([part for segment in segments for part in _parts(segment, target_size)]):
        tasks[min(count - 1, (before + entry.bytes // 2) // target_size)].append(entry)
        before += entry.bytes
    return [task for task in tasks if task]


def split(
    segments: Sequence[Segment], *, upsert: bool, may_append: bool
) -> tuple[Sequence[Segment], list[list[Input]]]:
    """Divide a table's part of an epoch into rows that are appended and rows that are merged. Return the segments with
    rows to append, and the inputs of each task with rows to merge.

    A changelog appends all rows. An upsert target appends snapshot rows if `may_append` is True. That is, this pipeline
    created or emptied the target and no other table is routed to it, so it cannot contain their keys yet. All other
    rows are merged, including all rows of backfills.
    """
    if not upsert:
        return segments, []
    if may_append and all(segment.kind != "backfill" for segment in segments):
        log = [segment for segment in segments if segment.kind != "snapshot"]
        return [segment for segment in segments if segment.kind == "snapshot"], by_partition(log)
    # Chunks are not hash-partitioned like the log, so a single task must merge all rows.
    return [], [_in_order([Input(segment) for segment in segments])] if segments else []


def by_partition(segments: Iterable[Segment]) -> list[list[Input]]:
    """Return the inputs of each task for rows whose order per key matters: a hash partition is never divided."""
    groups: dict[int, list[Input]] = {}
    for segment in segments:
        groups.setdefault(segment.partition, []).append(Input(segment))
    return [_in_order(groups[partition]) for partition in sorted(groups)]


def _parts(segment: Segment, target_size: int) -> list[Input]:
    """Return `segment` as a whole, or in pieces of a quarter of a task's size. The sizes of tasks then differ by less
    than one piece.
    """
    parts = (
        max(1, -(-segment.bytes * PARTS_PER_GROUP // target_size))
        if segment.bytes > target_size // PARTS_PER_GROUP
        else 1
    )
    return [Input(segment, (i, parts)) for i in range(parts)]


def _in_order(inputs: list[Input]) -> list[Input]:
    # The sort must be stable: all log segments of a table in an epoch have the same `seq_base`, and the manifest has
    # them in log order.
    return sorted(inputs, key=lambda entry: entry.segment.seq_base)


@dataclass(frozen=True, slots=True)
class TableInput:
    """The rows of a table that one stage task reads. Made by `SinkContext.table_input`."""

    inputs: tuple[Input, ...]
    schema: TableSchema
    access: SegmentAccess

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.inputs)

    @property
    def segments(self) -> Collection[Segment]:
        return [entry.segment for entry in self.inputs]

    def batches(self, columns: Sequence[str], *, symbols: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the batches in order, with `columns`; see `raycdc.segments.reading.read_segment`."""
        for entry in self.inputs:
            yield from read_segment(entry.segment, list(columns), access=self.access, part=entry.part, symbols=symbols)

    def rows(self, *, changelog: bool) -> Iterator[pa.RecordBatch]:
        """Yield the unchanged rows: as events (`changelog`), or the table's columns of snapshot rows, which are all
        inserts.
        """
        names = changelog_names(self.schema) if changelog else self.schema.arrow().names
        return self.batches(names, symbols=changelog)

    def arrow(self, *, changelog: bool) -> pa.Schema:
        """Return the schema of `rows`."""
        return changelog_arrow(self.schema) if changelog else self.schema.arrow()


@dataclass(frozen=True, slots=True)
class TableTask(StageTask[ResultT_co]):
    """The base of stage tasks that read `table`."""

    table: TableInput

    @property
    def input_bytes(self) -> int:
        return self.table.bytes

    @property
    def segments(self) -> Collection[Segment]:
        return self.table.segments
