"""How a table's segments are shared out among tasks. Pure; called by sinks while staging."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from raycdc.checkpoint.manifest import Segment

#: Below this much input a second task costs more than it saves (starting one costs about 70 ms of a worker).
TASK_BYTES_MIN = 16 << 20

#: A task's output file should not be larger than about this much Arrow data, whatever the parallelism.
TASK_BYTES_MAX = 512 << 20


@dataclass(frozen=True, slots=True)
class Input:
    """A run of batches of a segment: the `part`-th of so many."""

    segment: Segment
    part: tuple[int, int] = (0, 1)

    @property
    def bytes(self) -> int:
        return self.segment.bytes // self.part[1]

    def to_json(self) -> dict[str, Any]:
        return {"segment": self.segment.to_json(), "part": list(self.part)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Input:
        return cls(Segment.from_json(data["segment"]), (data["part"][0], data["part"][1]))


def share_out(segments: Sequence[Segment], *, parallelism: int) -> list[list[Input]]:
    """Inputs of tasks for rows whose order between files does not matter; large segments are split between tasks.

    Every batch of every segment is in exactly one task, the tasks are of nearly equal size, and the same segments give
    the same tasks.
    """
    total = sum(segment.bytes for segment in segments)
    if not total:
        return []
    count = min(max(1, parallelism), -(-total // TASK_BYTES_MIN))
    count = max(count, -(-total // TASK_BYTES_MAX))
    share = -(-total // count)
    inputs = [
        Input(segment, (i, parts))
        for segment in segments
        for parts in (max(1, -(-segment.bytes // share)),)
        for i in range(parts)
    ]
    tasks: list[list[Input]] = [[] for _ in range(count)]
    loads = [0] * count
    for entry in sorted(inputs, key=lambda entry: -entry.bytes):
        lightest = loads.index(min(loads))
        tasks[lightest].append(entry)
        loads[lightest] += entry.bytes
    return [_in_order(task) for task in tasks if task]


def by_partition(segments: Iterable[Segment]) -> list[list[Input]]:
    """Inputs of tasks for rows whose order per key matters: a hash partition is never split."""
    groups: dict[int, list[Input]] = {}
    for segment in segments:
        groups.setdefault(segment.partition, []).append(Input(segment))
    return [_in_order(groups[partition]) for partition in sorted(groups)]


def _in_order(inputs: list[Input]) -> list[Input]:
    return sorted(inputs, key=lambda entry: (entry.segment.seq_base, entry.segment.path, entry.part[0]))
