"""Reads all partitions of one reader over one consumer, in the fetcher's thread (FLIP-27's multiplexed model).

The reader's thread asks for changes (`add`, `remove`, `pause`, `resume`); they are carried out before the next fetch.
The consumer joins no group: it is told what to read from where, and commits nothing. A partition that waits is paused
in the consumer, which keeps that while others are assigned; one that needs no reading any more is `remove`d.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from raycdc.clients.kafka import admin_client, consumer_client
from raycdc.connectors.kafka.client import (
    GONE,
    TIMEOUT_S,
    client_properties,
    consumer_properties,
    is_away,
    source_error,
)
from raycdc.connectors.kafka.messages import Fetched, Trouble, gather
from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.errors import LogLostError, SourceUnavailableError

#: Longest a fetch waits for messages, so that changes and the end do not.
FETCH_WAIT_S = 0.1
#: About what one fetch brings: large enough that per-batch work is small.
FETCH_BYTES = 8 << 20
MESSAGES_MAX = 50_000
MESSAGES_MIN = 100
#: How often the ends of partitions are looked at (they come with each fetch response; nobody is asked).
ENDS_EVERY_S = 0.5
#: How often the broker is asked for the ends of paused partitions, which have no fetch responses.
PAUSED_ENDS_EVERY_S = 2.0

#: The consumer looks for its group's coordinator, whether or not it ever needs it. We do not.
NO_GROUP = frozenset({KafkaError.GROUP_AUTHORIZATION_FAILED})
_OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


@dataclass(frozen=True, slots=True)
class Fetch:
    """One fetch: what came of which partitions, and where each partition's log ends as far as we know."""

    parts: tuple[Fetched, ...]
    ends: dict[str, int]
    bytes: int


class KafkaPartitionReader:
    """`raycdc.source.reader.fetcher.SplitReader` of partitions. `add` … `resume` may be called from any thread."""

    def __init__(self, config: KafkaSourceConfig) -> None:
        self._config = config
        self._changes: deque[Callable[[Consumer], None]] = deque()
        self._changed = threading.Event()
        self._positions: dict[str, TopicPartition] = {}
        #: Where reading is to go on; markers may lie between a position and it.
        self._wanted: dict[str, int] = {}
        self._additions: dict[str, int] = {}
        self._paused: set[str] = set()
        self._admin: AdminClient | None = None
        self._asked: dict[TopicPartition, Future[Any]] = {}
        #: Ever read here: a message of a partition that was taken away may still come.
        self._topics: set[str] = set()
        self._ends_at_s = 0.0
        self._paused_ends_at_s = 0.0
        self._message_bytes = 1024.0
        #: Times the cluster or a broker was away, and times a position was set anew by policy.
        self.interruptions = 0
        self.resets = 0
        self._consumer = consumer_client(consumer_properties(config), section="source")

    def __repr__(self) -> str:
        return f"KafkaPartitionReader({sorted(self._positions)}, paused={sorted(self._paused)})"

    # -- the reader's thread

    def add(
        self, topic: str, partition: int, offset: int, *, addition: int, last: tuple[int, int] | None = None
    ) -> None:
        """Read a partition from `offset` on; what is fetched of it says for which `addition`.

        With `last`, which is a place at or before `offset` and a leader's epoch, reading begins there, and the broker
        is asked first whether that epoch went so far (OffsetForLeaderEpoch, KIP-320): a log that was cut off before
        has other messages there. It is not asked at `offset`: markers of a later epoch may lie in between.
        """
        where = TopicPartition(topic, partition, offset)
        if last is not None:
            where = TopicPartition(topic, partition, last[0], leader_epoch=last[1])

        def change(consumer: Consumer) -> None:
            self._positions[f"{topic}:{partition}"] = where
            self._wanted[f"{topic}:{partition}"] = offset
            self._additions[f"{topic}:{partition}"] = addition
            self._topics.add(topic)
            consumer.incremental_assign([where])

        self._change(change)

    def remove(self, split_id: str) -> None:
        """Stop reading a partition; what was fetched of it before may still come."""

        def change(consumer: Consumer) -> None:
            where = self._positions.pop(split_id, None)
            if where is None:
                return
            if split_id in self._paused:
                # Older librdkafkas keep that for a partition that comes back.
                consumer.resume([where])
                self._paused.discard(split_id)
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
            return self._fetch()
        except KafkaException as cause:
            raise source_error(cause.args[0], self._config.bootstrap_servers) from cause

    def _fetch(self) -> Fetch | None:
        wanted = int(min(MESSAGES_MAX, max(MESSAGES_MIN, FETCH_BYTES / self._message_bytes)))
        messages = self._consumer.consume(wanted, timeout=FETCH_WAIT_S)
        topic = next(iter(self._topics)) if len(self._topics) == 1 else None
        fetched_ms = time.time_ns() // 1_000_000
        parts, troubles = gather(messages, fetched_ms=fetched_ms, topic=topic)
        parts = [p for p in parts if p.split_id in self._positions]
        for part in parts:
            self._positions[part.split_id].offset = part.next_offset
        # Behind what came of their partitions before; what comes now was not fetched yet.
        resets = [self._handle(trouble) for trouble in troubles]
        parts += [
            Fetched(split_id, self._positions[split_id].offset, None, 0, fetched_ms, reset=True)
            for split_id in resets
            if split_id is not None
        ]
        parts = [replace(p, addition=self._additions[p.split_id]) for p in parts]
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
        """Where logs end, as far as that was said since the last look; nobody is waited for."""
        now_s = time.monotonic()
        if now_s < self._ends_at_s + ENDS_EVERY_S:
            return {}
        self._ends_at_s = now_s
        ends = self._answered()
        for split_id, where in self._positions.items():
            if split_id not in self._paused:
                # As its last fetch response said.
                high = int(self._consumer.get_watermark_offsets(where, cached=True)[1])
                if high >= 0:
                    ends[split_id] = high
        if self._paused and not self._asked and now_s >= self._paused_ends_at_s + PAUSED_ENDS_EVERY_S:
            self._paused_ends_at_s = now_s
            self._asked = self._ask_ends([self._positions[split_id] for split_id in self._paused])
        return ends

    def _ask_ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Future[Any]]:
        """One question for all of them, which the client's own thread waits for."""
        if self._admin is None:
            self._admin = admin_client(client_properties(self._config), section="source")
        end = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(where.topic, where.partition): end for where in partitions}
        return dict(self._admin.list_offsets(wanted, request_timeout=TIMEOUT_S))

    def _answered(self) -> dict[str, int]:
        """What `_ask_ends` brought, once all of it is there. A failure is only a figure that is missing: what is wrong
        with the cluster is told where it is read.
        """
        if not all(future.done() for future in self._asked.values()):
            return {}
        asked, self._asked = self._asked, {}
        found = {f"{p.topic}:{p.partition}": f.result().offset for p, f in asked.items() if f.exception() is None}
        return {split_id: end for split_id, end in found.items() if split_id in self._positions}

    def _handle(self, trouble: Trouble) -> str | None:
        """Bear with it, or raise its error. The partition, where its position was set anew."""
        code = trouble.error.code()
        if trouble.split_id and trouble.split_id not in self._positions:
            return None  # Of a partition that was taken from us.
        if code in NO_GROUP:
            return None
        if code in _OUT_OF_RANGE and trouble.split_id:
            return trouble.split_id if self._out_of_range(trouble.split_id) else None
        if code in GONE:
            raise LogLostError(
                f"{trouble.split_id or 'A topic'} does not exist any more at {self._config.bootstrap_servers}. "
                "Take it out of source.topics, or start another pipeline for the new topic."
            )
        if not is_away(trouble.error):
            raise source_error(trouble.error, self._config.bootstrap_servers)
        self.interruptions += 1  # Librdkafka connects again by itself, for as long as it takes.
        return None

    def _out_of_range(self, split_id: str) -> bool:
        """Raise its error, or go on elsewhere; whether by policy."""
        where = self._positions[split_id]
        # None where the time was not enough, whatever its annotation says.
        found: Any = self._consumer.get_watermark_offsets(where, timeout=TIMEOUT_S)
        if found is None:
            raise SourceUnavailableError(
                f"Kafka at {self._config.bootstrap_servers} did not say where {split_id} begins and ends."
            )
        low, high = found
        if where.offset < low <= self._wanted[split_id] <= high:
            # Only markers are gone.
            self._go_on(split_id, self._wanted[split_id])
            return False
        policy = self._config.on_out_of_range
        if policy == "fail" and low <= where.offset <= high:
            raise LogLostError(
                f"{split_id} has other messages before {where.offset} than those that were read: its log at "
                f"{self._config.bootstrap_servers} was cut off before, as when a broker leads that did not have them. "
                "What was read and is gone now stays in the target. Go on with what the topic has by "
                'source.on_out_of_range = "earliest" or "latest", or start another pipeline.'
            )
        if policy == "fail":
            raise LogLostError(
                f"{split_id}@{where.offset} is not in the topic any more: it holds {low} to {high} at "
                f"{self._config.bootstrap_servers}. Accept that messages are missing with source.on_out_of_range = "
                '"earliest" or "latest", or start another pipeline; raise the topic\'s retention to prevent it.'
            )
        self.resets += 1
        self._go_on(split_id, low if policy == "earliest" else high)
        return True

    def _go_on(self, split_id: str, offset: int) -> None:
        """Read on from `offset`, whatever was there before."""
        where = self._positions[split_id]
        self._consumer.incremental_unassign([where])
        self._positions[split_id] = TopicPartition(where.topic, where.partition, offset)
        self._wanted[split_id] = offset
        self._consumer.incremental_assign([self._positions[split_id]])
