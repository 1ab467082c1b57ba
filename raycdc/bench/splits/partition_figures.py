"""The results of reading partitions with one reader and with more, and their JSON document.

``raycdc bench splits --json`` prints it for a source of partitions. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from raycdc.bench.splits.figures import ReadSchedule
from raycdc.core.typed_codec import Json
from raycdc.source.partitions.assigner import EACH, distribute, moves_by_load, overloaded


def by_bytes(sizes: Mapping[str, int], readers: int) -> list[list[str]]:
    """Return the partitions of each reader as a run distributes them, after it knows their bytes, `sizes`."""
    placed = distribute(sizes, {reader: [] for reader in range(readers)})
    owned = {reader: placed.get(reader, []) for reader in range(readers)}
    each = EACH * sum(sizes.values()) / max(1, len(sizes))
    weight = {name: size + each for name, size in sizes.items()}
    # Each round makes the most loaded reader less loaded, so there are at most as many rounds as partitions.
    for _ in sizes:
        moved = moves_by_load(owned, weight, overloaded(owned, weight))
        if not moved:
            break
        for name, (giver, taker) in moved.items():
            owned[giver].remove(name)
            owned[taker].append(name)
    return [sorted(owned[reader]) for reader in range(readers)]


def longest_s(groups: Sequence[Sequence[str]], times_s: Mapping[str, float]) -> tuple[float, float]:
    """Return the seconds until the last reader is done, and the fraction of all readers' time in which
    they are idle.
    """
    busy = [sum(times_s[name] for name in group) for group in groups]
    whole = max(busy, default=0.0)
    return whole, 1 - sum(busy) / (len(busy) * whole) if whole else 0.0


#: The version of the document. Version 1 compared two assignments of partitions to readers.
VERSION = 2


@dataclass(frozen=True, slots=True)
class PartitionRead:
    """A partition that was read.

    `seconds` is its part of its reader's time: the measured time of decoding, and a part of the time of fetching in
    proportion to its bytes. `size` is the size of its messages in bytes.
    """

    name: str
    messages: int
    rows: int
    size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PartitionRun:
    """One measured pass over all partitions: reader N read the partitions `groups[N]` in `readers_s[N]` seconds."""

    groups: Sequence[Sequence[PartitionRead]]
    readers_s: Sequence[float]
    cpu_s: float
    peak_bytes: int

    @property
    def readers(self) -> int:
        return len(self.readers_s)

    @property
    def seconds(self) -> float:
        return max(self.readers_s, default=0.0)

    @property
    def messages(self) -> int:
        return sum(read.messages for group in self.groups for read in group)

    @property
    def messages_per_s(self) -> float:
        return self.messages / max(self.seconds, 1e-9)

    @property
    def idle(self) -> float:
        """Return the fraction of all readers' time in which they had nothing to read."""
        return max(0.0, 1 - sum(self.readers_s) / max(self.readers * self.seconds, 1e-9))


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """A partition with at most `messages_max` messages, and the reading of its first part by one reader."""

    name: str
    topic: str
    messages_max: int
    read: PartitionRead


@dataclass(frozen=True, slots=True)
class PartitionAdvice:
    """The lines of the configuration, the number of readers, and the reason in words."""

    readers: int
    settings: str
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """The whole report.

    The same `fraction` of each partition's offsets was read, and times for everything are calculated in proportion.
    `runs` are the measured passes, by ascending number of readers, beginning with one. `scheduled` has the numbers of
    readers for which times are predicted.
    """

    source: str
    began_ms: int
    cores: int
    fraction: float
    partitions: Sequence[PartitionFigures]
    runs: Sequence[PartitionRun]
    scheduled: Sequence[int]
    advice: PartitionAdvice | None = None
    ended_early: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """Return the bytes of each partition that were read."""
        return {partition.name: partition.read.size for partition in self.partitions}

    def times_s(self) -> dict[str, float]:
        """Return the seconds that one reader needs for each whole partition."""
        return {partition.name: partition.read.seconds / self.fraction for partition in self.partitions}

    def schedule(self, readers: int) -> ReadSchedule:
        """Return the predicted schedule of this number of readers for everything, if they do not slow each
        other down.
        """
        return ReadSchedule(readers, *longest_s(by_bytes(self.sizes, readers), self.times_s()))

    def to_json(self) -> dict[str, Json]:
        """Return the JSON document."""
        return {
            "version": VERSION,
            "kind": "partitions",
            "source": self.source,
            "began_ms": self.began_ms,
            "cores": self.cores,
            "ended_early": self.ended_early,
            "share_read": round(self.fraction, 6),
            "partitions": [self._partition(partition) for partition in self.partitions],
            "runs": [_run_json(run) for run in self.runs],
            "scheduled": [self.schedule(readers).to_json() for readers in self.scheduled],
            "advice": None if self.advice is None else asdict(self.advice),
        }

    @staticmethod
    def _partition(partition: PartitionFigures) -> dict[str, Json]:
        read = partition.read
        return {
            "partition": partition.name,
            "topic": partition.topic,
            "offsets": partition.messages_max,
            "messages_read": read.messages,
            "rows_read": read.rows,
            "bytes_read": read.size,
            "seconds_read": round(read.seconds, 4),
        }


def _run_json(run: PartitionRun) -> dict[str, Json]:
    return {
        "readers": run.readers,
        "seconds": round(run.seconds, 4),
        "messages": run.messages,
        "messages_per_s": round(run.messages_per_s),
        "idle": round(run.idle, 4),
        "cpu_s": round(run.cpu_s, 3),
        "peak_bytes": run.peak_bytes,
        "partitions": [[read.name for read in group] for group in run.groups],
        "readers_s": [round(seconds, 4) for seconds in run.readers_s],
    }
