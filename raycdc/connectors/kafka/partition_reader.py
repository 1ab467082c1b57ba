"""Reads all partitions of one reader over one consumer, in the fetcher's thread (FLIP-27's multiplexed model).

The reader's thread asks for changes (`add`, `remove`, `pause`, `resume`); they are carried out before the next fetch.
The consumer joins no group: it is told what to read from where, and commits nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from raycdc.connectors.kafka.client import TIMEOUT_S, consumer_properties, is_away, source_error
from raycdc.connectors.kafka.messages import Fetched, Trouble, gather
from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.errors import LogLostError

#: Longest a fetch waits for messages, so that changes and the end do not.
FETCH_WAIT_S = 0.1
#: About what one fetch brings: large enough that per-batch work is small.
FETCH_BYTES = 8 << 20
MESSAGES_MAX = 50_000
MESSAGES_MIN = 100
#: How often the ends of partitions are looked at (they come with each fetch response; nobody is asked).
ENDS_EVERY_S = 0.5
#: How often the broker is asked for the ends of paused partitions, which have no fetch responses, and for how long.
PAUSED_ENDS_EVERY_S = 2.0
PAUSED_ENDS_TIMEOUT_S = 1.0

_GONE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
_OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


@dataclass(frozen=True, slots=True)
class Fetch:
    """One fetch: what came of which partitions, and where each partition's log ends as far as we know."""

    parts: tuple[Fetched, ...]
    ends: dict[str, int]
    bytes: int


class KafkaPartitionReader:
    """`raycdc.source.fetcher.SplitReader` of partitions. `add` … `resume` may be called from any thread."""

    def __init__(self, config: KafkaSourceConfig) -> None:
        self._config = config
        self._changes: deque[Callable[[Consumer], None]] = deque()
        self._changed = threading.Event()
        self._positions: dict[str, TopicPartition] = {}
        self._additions: dict[str, int] = {}
        self._paused: set[str] = set()
        #: Ever read here: a message of a partition that was taken away may still come.
        self._topics: set[str] = set()
        self._ends_at_s = 0.0
        self._paused_ends_at_s = 0.0
        self._message_bytes = 1024.0
        #: Times the cluster or a broker was away, and times a position was set anew by policy.
        self.interruptions = 0
        self.resets = 0
        self._consumer = Consumer(consumer_properties(config), logger=None)

    def __repr__(self) -> str:
        return f"KafkaPartitionReader({sorted(self._positions)}, paused={sorted(self._paused)})"

    # -- the reader's thread

    def add(self, topic: str, partition: int, offset: int, *, addition: int) -> None:
        """Read a partition from `offset` on; what is fetched of it says for which `addition`."""
        where = TopicPartition(topic, partition, offset)

        def change(consumer: Consumer) -> None:
            self._positions[f"{topic}:{partition}"] = where
            self._additions[f"{topic}:{partition}"] = addition
            self._topics.add(topic)
            consumer.incremental_assign([where])

        self._change(change)

    def remove(self, split_id: str) -> None:
        """Stop reading a partition; what was fetched of it before may still come."""

        def change(consumer: Consumer) -> None:
            where = self._positions.pop(split_id, None)
            self._paused.discard(split_id)
            if where is not None:
                consumer.incremental_unassign([where])

        self._change(change)

    def pause(self, split_ids: Iterable[str]) -> None:
        """Fetch nothing of these until `resume`."""
        wanted = set(split_ids)

        def change(consumer: Consumer) -> None:
            known = wanted & set(self._positions)
            consumer.pause([self._positions[s] for s in known])
            self._paused |= known

        self._change(change)

    def resume(self, split_ids: Iterable[str]) -> None:
        """Go on where `pause` stopped."""
        wanted = set(split_ids)

        def change(consumer: Consumer) -> None:
            known = wanted & self._paused
            consumer.resume([self._positions[s] for s in known])
            self._paused -= known

        self._change(change)

    def _change(self, change: Callable[[Consumer], None]) -> None:
        self._changes.append(change)
        self._changed.set()

    # -- the fetcher's thread

    def fetch(self) -> Fetch | None:
        """What arrived within a moment. Raises `LogLostError` and other `SourceError`s by name."""
        self._changed.clear()
        try:
            while self._changes:
                self._changes.popleft()(self._consumer)
            if not self._positions:
                self._changed.wait(FETCH_WAIT_S)
                return None
            wanted = int(min(MESSAGES_MAX, max(MESSAGES_MIN, FETCH_BYTES / self._message_bytes)))
            messages = self._consumer.consume(wanted, timeout=FETCH_WAIT_S)
        except KafkaException as cause:
            raise source_error(cause.args[0], self._config.bootstrap_servers) from cause
        topic = next(iter(self._topics)) if len(self._topics) == 1 else None
        parts, troubles = gather(messages, fetched_ms=time.time_ns() // 1_000_000, topic=topic)
        for trouble in troubles:
            self._handle(trouble)
        parts = [replace(p, addition=self._additions[p.split_id]) for p in parts if p.split_id in self._positions]
        for part in parts:
            self._positions[part.split_id].offset = part.next_offset
        size = sum(part.bytes for part in parts)
        if messages and size:
            self._message_bytes = max(1.0, size / len(messages))
        ends = self._ends()
        return Fetch(tuple(parts), ends, size) if parts or ends else None

    def wake_up(self) -> None:
        self._changed.set()

    def close(self) -> None:
        self._consumer.close()

    def _ends(self) -> dict[str, int]:
        now_s = time.monotonic()
        if now_s < self._ends_at_s + ENDS_EVERY_S:
            return {}
        self._ends_at_s = now_s
        ask = now_s >= self._paused_ends_at_s + PAUSED_ENDS_EVERY_S
        self._paused_ends_at_s = now_s if ask else self._paused_ends_at_s
        ends = {}
        for split_id, where in self._positions.items():
            if split_id in self._paused and not ask:
                continue
            high = self._end(where, ask=split_id in self._paused)
            if high >= 0:
                ends[split_id] = high
        return ends

    def _end(self, where: TopicPartition, *, ask: bool) -> int:
        """Where a partition's log ends, as the last fetch response said or, to `ask`, the broker; -1: not known."""
        if not ask:
            return int(self._consumer.get_watermark_offsets(where, cached=True)[1])
        try:
            # None where the time was not enough, whatever its annotation says.
            found: Any = self._consumer.get_watermark_offsets(where, timeout=PAUSED_ENDS_TIMEOUT_S)
        except KafkaException:
            return -1  # Only a figure: what is wrong with the cluster is told where it is read.
        return -1 if found is None else int(found[1])

    def _handle(self, trouble: Trouble) -> None:
        code = trouble.error.code()
        if trouble.split_id and trouble.split_id not in self._positions:
            return  # Of a partition that was taken from us.
        if code in _OUT_OF_RANGE and trouble.split_id:
            self._out_of_range(trouble.split_id)
        elif code in _GONE:
            raise LogLostError(
                f"{trouble.split_id or 'A topic'} does not exist any more at {self._config.bootstrap_servers}. "
                "Take it out of source.topics, or start another pipeline for the new topic."
            )
        elif is_away(trouble.error):
            self.interruptions += 1  # Librdkafka connects again by itself, for as long as it takes.
        else:
            raise source_error(trouble.error, self._config.bootstrap_servers)

    def _out_of_range(self, split_id: str) -> None:
        where = self._positions[split_id]
        low, high = self._consumer.get_watermark_offsets(where, timeout=TIMEOUT_S)
        policy = self._config.on_out_of_range
        if policy == "fail":
            raise LogLostError(
                f"{split_id}@{where.offset} is not in the topic any more: it holds {low} to {high} at "
                f"{self._config.bootstrap_servers}. Accept that messages are missing with source.on_out_of_range = "
                '"earliest" or "latest", or start another pipeline; raise the topic\'s retention to prevent it.'
            )
        self.resets += 1
        offset = low if policy == "earliest" else high
        self._consumer.incremental_unassign([where])
        self._positions[split_id] = TopicPartition(where.topic, where.partition, offset)
        self._consumer.incremental_assign([self._positions[split_id]])
