"""Converts a consumer's messages to columns.

This takes a few passes over whole batches of confluent-kafka's objects, without a Python loop.

Each message still costs confluent-kafka's own object and one C call for each of its parts; ``python -m bench topic``
measures both. The messages of a partition come in long runs, which are cut out of the columns without copying.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import KafkaError, Message

from raycdc.formats.api import MessageBatch, Origin

_SECOND = itemgetter(1)
#: If a fetch switches between partitions more often, sorting is cheaper than decoding many small batches.
RUNS_MAX = 16


@dataclass(frozen=True, slots=True)
class Fetched:
    """Messages of one partition in order.

    There are no messages if the position only moved past transaction markers, to `next_offset`. If `reset` is set, the
    topic did not have the position, and the policy replaced it by `next_offset`, which may be an earlier one.
    `event_ms` is the latest timestamp of the broker. `leader_epoch` is the leader epoch of the last message.
    """

    split_id: str
    next_offset: int
    batch: MessageBatch | None
    bytes: int
    fetched_ms: int
    event_ms: int | None = None
    reset: bool = False
    leader_epoch: int | None = None

    @property
    def last(self) -> tuple[int, int] | None:
        """Return the offset after the last message, and the leader epoch in which it was written.

        None if that is unknown.
        """
        if self.batch is None or self.leader_epoch is None:
            return None
        return int(self.batch.offsets[-1]) + 1, self.leader_epoch


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a partition's log: the offset of its next message."""

    offset: int


#: A result of fetching for one partition.
PartitionRecords = Fetched | LogEnd


@dataclass(frozen=True, slots=True)
class PartitionStart:
    """A partition to read from `offset` on.

    `last` is a position at or before `offset`, with its leader epoch. If `last` is given, reading begins there, and the
    broker is first asked for the end of that epoch (OffsetForLeaderEpoch, KIP-320). This detects a log that was
    truncated before `last`, and has different messages there. The check is not made at `offset`, because markers of a
    later epoch may lie between the two positions.
    """

    topic: str
    partition: int
    offset: int
    last: tuple[int, int] | None = None

    @property
    def split_id(self) -> str:
        return f"{self.topic}:{self.partition}"


@dataclass(frozen=True, slots=True)
class FetchFailure:
    """An error that librdkafka reports in place of a message; `split_id` is empty if it is about no partition."""

    split_id: str
    error: KafkaError


def gather(
    messages: Sequence[Message], *, fetched_ms: int, topic: str | None = None
) -> tuple[list[Fetched], list[FetchFailure]]:
    """Return messages by partition, in order, and the failures. The end of a partition only moves its position.

    If all messages are of one topic, `topic` saves the call per message.
    """
    ends: dict[str, int] = {}
    failures: list[FetchFailure] = []
    errors = list(map(Message.error, messages))
    if any(errors):
        for message, error in zip(messages, errors, strict=True):
            if error is None:
                continue
            split_id = f"{message.topic()}:{message.partition()}" if message.topic() else ""
            if error.code() == KafkaError._PARTITION_EOF:
                ends[split_id] = message.offset() or 0
            else:
                failures.append(FetchFailure(split_id, error))
        messages = [message for message, error in zip(messages, errors, strict=True) if error is None]
    fetched = _by_partition(messages, fetched_ms, topic) if messages else []
    read = {entry.split_id: entry.next_offset for entry in fetched}
    for split_id, offset in ends.items():
        if read.get(split_id, -1) < offset:
            fetched.append(Fetched(split_id, offset, None, 0, fetched_ms))
    return fetched, failures


def _by_partition(messages: Sequence[Message], fetched_ms: int, topic: str | None) -> list[Fetched]:
    count = len(messages)
    codes = np.fromiter(map(Message.partition, messages), np.int64, count)
    names = [topic or ""]
    if topic is None:
        # Only errors have no topic.
        topics = [name or "" for name in map(Message.topic, messages)]
        names = sorted(set(topics))
        numbers = {name: number << 32 for number, name in enumerate(names)}
        codes += np.fromiter(map(numbers.__getitem__, topics), np.int64, count)
    whole = MessageBatch(
        Origin(""),
        binary(list(map(Message.value, messages))),
        np.fromiter(map(Message.offset, messages), np.int64, count),
        binary(list(map(Message.key, messages))),
        np.fromiter(map(_SECOND, map(Message.timestamp, messages)), np.int64, count),
    )
    cuts = np.flatnonzero(np.diff(codes)) + 1
    order = None
    if len(cuts) > RUNS_MAX:
        order = np.argsort(codes, kind="stable")
        whole, codes = _taken(whole, order), codes[order]
        cuts = np.flatnonzero(np.diff(codes)) + 1
    bounds = [0, *cuts.tolist(), count]
    parts = [
        _part(whole, start, stop, Origin(names[int(codes[start]) >> 32], int(codes[start]) & 0xFFFFFFFF), fetched_ms)
        for start, stop in pairwise(bounds)
    ]
    lasts = [messages[stop - 1 if order is None else int(order[stop - 1])] for stop in bounds[1:]]
    return [replace(part, leader_epoch=last.leader_epoch()) for part, last in zip(parts, lasts, strict=True)]


def binary(values: Sequence[Any]) -> pa.Array:
    """Return bytes and Nones as an array. One join is ten times as fast as Arrow's conversion of objects."""
    count = len(values)
    missing = values.count(None)
    if missing == count:
        return pa.nulls(count, pa.large_binary())
    validity = None
    if missing:
        there = np.fromiter((value is not None for value in values), bool, count)
        validity = pa.py_buffer(np.packbits(there, bitorder="little"))
        values = [value or b"" for value in values]
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, count), out=ends[1:])
    buffers = [validity, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.large_binary(), count, buffers, missing)


def _taken(batch: MessageBatch, order: npt.NDArray[np.int64]) -> MessageBatch:
    assert batch.keys is not None
    assert batch.timestamps_ms is not None
    rows = pa.array(order)
    return MessageBatch(
        batch.origin,
        batch.values.take(rows),
        batch.offsets[order],
        batch.keys.take(rows),
        batch.timestamps_ms[order],
    )


def _part(whole: MessageBatch, start: int, stop: int, origin: Origin, fetched_ms: int) -> Fetched:
    batch = _slice(replace(whole, origin=origin), start, stop)
    assert batch is not None
    assert batch.timestamps_ms is not None
    latest = int(batch.timestamps_ms.max())
    size = batch.values.nbytes + (batch.keys.nbytes if batch.keys is not None else 0)
    split_id = f"{origin.topic}:{origin.partition}"
    return Fetched(split_id, int(batch.offsets[-1]) + 1, batch, size, fetched_ms, latest if latest >= 0 else None)


def within(fetched: Fetched, *, first: int, end: int | None) -> Fetched:
    """Return the messages from `first` on and before `end`; `next_offset` is at most `end`.

    A message at or after the end proves that everything before the end was read, transaction markers included.
    """
    next_offset = fetched.next_offset if end is None else min(fetched.next_offset, end)
    batch = fetched.batch
    if batch is not None:
        start = int(np.searchsorted(batch.offsets, first))
        stop = len(batch) if end is None else int(np.searchsorted(batch.offsets, end))
        if start > 0 or stop < len(batch):
            batch = _slice(batch, start, stop)
    next_offset = max(next_offset, first)
    return replace(fetched, next_offset=next_offset, batch=batch)


def _slice(batch: MessageBatch, start: int, stop: int) -> MessageBatch | None:
    if stop <= start:
        return None
    return MessageBatch(
        batch.origin,
        batch.values.slice(start, stop - start),
        batch.offsets[start:stop],
        None if batch.keys is None else batch.keys.slice(start, stop - start),
        None if batch.timestamps_ms is None else batch.timestamps_ms[start:stop],
    )
