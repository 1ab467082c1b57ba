"""How long the brokers keep the messages of topics that were not read yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from raycdc.source.connector import LogRoom

Partition = tuple[str, int]

#: Each halves the time in which the oldest unread message may have been written: a week to three minutes.
_QUESTIONS = 12


class Brokers(Protocol):
    """What is asked (`raycdc.connectors.kafka.client.Cluster`)."""

    def latest(self, partitions: Iterable[Partition]) -> dict[Partition, int]: ...
    def at_time(self, partitions: Iterable[Partition], timestamp_ms: int) -> dict[Partition, int]: ...
    def retention_ms(self, topics: Iterable[str]) -> dict[str, int | None]: ...


def log_room(brokers: Brokers, offsets: Mapping[Partition, int], now_ms: int) -> LogRoom | None:
    """The room of the partition that has the least, behind `offsets`; None where one is deleted by its size.

    Brokers delete a segment so long after its newest message was written (``retention.ms``), so a message is there for
    that time at least. Of the oldest unread one the time is found by asking which offsets times have.
    """
    retention = brokers.retention_ms({topic for topic, _ in offsets})
    if any(time_ms is None for time_ms in retention.values()):
        return None
    ends = brokers.latest(offsets)
    finite = {topic: time_ms for topic, time_ms in retention.items() if time_ms is not None and time_ms >= 0}
    kept_s = [time_ms / 1000 for time_ms in finite.values()]
    if not finite:
        return LogRoom(forever=True)
    behind = [p for p, offset in offsets.items() if p[0] in finite and offset < ends.get(p, offset)]
    # Of each the oldest unread message is written at `low` or later, and before `high`.
    low, high = {p: now_ms - finite[p[0]] for p in behind}, dict.fromkeys(behind, now_ms)
    for _ in range(_QUESTIONS if behind else 0):
        for time_ms, asked in _by_time({p: (low[p] + high[p]) // 2 for p in behind}).items():
            found = brokers.at_time(asked, time_ms)
            for partition in asked:
                first = found.get(partition)
                older = first is None or first > offsets[partition]
                (high if older else low)[partition] = time_ms
    kept_s += [max(0, finite[p[0]] - (now_ms - low[p])) / 1000 for p in behind]
    return LogRoom(kept_s=min(kept_s))


def _by_time(times: Mapping[Partition, int]) -> dict[int, list[Partition]]:
    asked: dict[int, list[Partition]] = {}
    for partition, time_ms in times.items():
        asked.setdefault(time_ms, []).append(partition)
    return asked
