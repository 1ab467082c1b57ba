"""Reads all partitions of one reader through one consumer, in the fetcher's thread (FLIP-27's multiplexed model).

Partitions are added, removed, paused and resumed between two fetches. The consumer joins no group: it is given
partitions and offsets, and commits nothing. A waiting partition is paused in the consumer, and stays paused while other
partitions are assigned. A finished partition is removed.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, assert_never

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin._listoffsets import OffsetSpec

from raycdc.clients.kafka import REFUSED_ACCOUNT, Admin, admin_client, consumer_client
from raycdc.connectors.kafka.cluster.client import (
    DROPPED_CODES,
    TIMEOUT_S,
    ClusterOutage,
    client_properties,
    consumer_properties,
    is_unreachable,
    source_error,
)
from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.connectors.kafka.reading.messages import (
    Fetched,
    FetchFailure,
    LogEnd,
    PartitionRecords,
    PartitionStart,
    gather,
)
from raycdc.core.retry import POLICY, RetryPolicy
from raycdc.errors import LogLostError, SourceUnavailableError
from raycdc.source.reader.split_reader import (
    RecordsWithSplitIds,
    SplitRecords,
    SplitsAddition,
    SplitsChange,
    SplitsPause,
    SplitsRemoval,
)

#: The longest wait of a fetch for messages. A change of the assignment, or the end of the reader, waits for this time
#: at most.
FETCH_WAIT_S = 0.1
#: The approximate size of one fetch: large enough that the work per batch is small.
FETCH_BYTES = 8 << 20
MESSAGES_MAX = 50_000
MESSAGES_MIN = 100
#: How often the ends of partitions are updated (they come with each fetch response, without a query).
ENDS_EVERY_S = 0.5
#: How often the broker is queried for the ends of paused partitions, which have no fetch responses.
PAUSED_ENDS_EVERY_S = 2.0

#: Librdkafka looks for the coordinator of a group even if the consumer uses none, so its refusal is ignored.
NO_GROUP = frozenset({KafkaError.GROUP_AUTHORIZATION_FAILED})
_OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


class LogEnds:
    """The ends of partitions' logs: from fetch responses, and from a separate query for paused partitions."""

    def __init__(self, config: KafkaSourceConfig, consumer: Consumer) -> None:
        self._config = config
        self._consumer = consumer
        self._admin: Admin | None = None
        self._asked: dict[TopicPartition, Future[Any]] = {}
        self._polled_s = 0.0
        self._asked_s = 0.0

    def poll(self, positions: Mapping[str, TopicPartition], *, paused: Collection[str]) -> dict[str, int]:
        """Return the ends of the logs of `positions` that were received since the last call. Does not wait."""
        now_s = time.monotonic()
        if now_s < self._polled_s + ENDS_EVERY_S:
            return {}
        self._polled_s = now_s
        ends = {split_id: end for split_id, end in self._answered().items() if split_id in positions}
        for split_id, where in positions.items():
            if split_id not in paused:
                # The end that the last fetch response reported.
                high = int(self._consumer.get_watermark_offsets(where, cached=True)[1])
                if high >= 0:
                    ends[split_id] = high
        if paused and not self._asked and now_s >= self._asked_s + PAUSED_ENDS_EVERY_S:
            self._asked_s = now_s
            self._asked = self._ask([positions[split_id] for split_id in paused])
        return ends

    def _ask(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Future[Any]]:
        """Query the ends of all `partitions` at the same time; the client's own thread waits for the answers."""
        if self._admin is None:
            self._admin = admin_client(client_properties(self._config), section="source")
        self._admin.hear()
        end = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(where.topic, where.partition): end for where in partitions}
        return dict(self._admin.list_offsets(wanted, request_timeout=TIMEOUT_S))

    def _answered(self) -> dict[str, int]:
        """Return the answers to `_ask`, once all are there. A failure only means a missing figure.

        Problems with the cluster are reported by the reading itself.
        """
        if not all(future.done() for future in self._asked.values()):
            return {}
        asked, self._asked = self._asked, {}
        return {f"{p.topic}:{p.partition}": f.result().offset for p, f in asked.items() if f.exception() is None}


class KafkaPartitionReader:
    """The reader of several partitions through one consumer, a `raycdc.source.reader.split_reader.SplitReader`.

    `retry_policy` limits how long an account may be refused until its password changes. The reader waits for
    unavailable brokers without limit.
    """

    def __init__(self, config: KafkaSourceConfig, *, retry_policy: RetryPolicy = POLICY) -> None:
        self._config = config
        self._positions: dict[str, TopicPartition] = {}
        #: The next offset to read, which is not that of a message if markers lie before the next message.
        self._wanted: dict[str, int] = {}
        self._paused: set[str] = set()
        #: All topics that this reader has read, because messages of removed partitions may still arrive.
        self._topics: set[str] = set()
        self._message_bytes = 1024.0
        self._outage = ClusterOutage(config, retry_policy)
        #: The number of outages of the cluster or a broker, and of positions replaced by policy.
        self.interruptions = 0
        self.resets = 0
        self._consumer = consumer_client(
            consumer_properties(config), section="source", lasting=True, on_error=self._outage.heard
        )
        self._outage.watch(self._consumer)
        self._ends = LogEnds(config, self._consumer)

    def __repr__(self) -> str:
        return f"KafkaPartitionReader({sorted(self._positions)}, paused={sorted(self._paused)})"

    def handle_splits_changes(self, change: SplitsChange[PartitionStart]) -> None:
        try:
            match change:
                case SplitsAddition(starts):
                    for start in starts:
                        self._add(start)
                case SplitsRemoval(split_ids):
                    for split_id in split_ids:
                        self._remove(split_id)
                case SplitsPause(paused, resumed):
                    self._pause(paused, resumed)
                case _:
                    assert_never(change)
        except KafkaException as cause:
            raise source_error(cause.args[0], self._config.bootstrap_servers) from cause

    def _add(self, start: PartitionStart) -> None:
        where = TopicPartition(start.topic, start.partition, start.offset)
        if start.last is not None:
            where = TopicPartition(start.topic, start.partition, start.last[0], leader_epoch=start.last[1])
        self._positions[start.split_id] = where
        self._wanted[start.split_id] = start.offset
        self._topics.add(start.topic)
        self._consumer.incremental_assign([where])

    def _remove(self, split_id: str) -> None:
        where = self._positions.pop(split_id, None)
        if where is None:
            return
        if split_id in self._paused:
            # Older versions of librdkafka keep the pause of a partition that is removed and added again.
            self._consumer.resume([where])
            self._paused.discard(split_id)
        self._consumer.incremental_unassign([where])

    def _pause(self, paused: Sequence[str], resumed: Sequence[str]) -> None:
        pause, resume = set(paused) & set(self._positions), set(resumed) & self._paused
        self._consumer.pause([self._positions[split_id] for split_id in pause])
        self._consumer.resume([self._positions[split_id] for split_id in resume])
        self._paused = (self._paused | pause) - resume

    def fetch(self) -> RecordsWithSplitIds[PartitionRecords] | None:
        """Return the messages that arrived within a short wait.

        Raises `LogLostError` and other kinds of `SourceError`.
        """
        try:
            return self._fetch()
        except KafkaException as cause:
            raise source_error(cause.args[0], self._config.bootstrap_servers) from cause

    def _fetch(self) -> RecordsWithSplitIds[PartitionRecords] | None:
        rate_limit = self._config.rate_limit
        size_max = rate_limit.bytes_at_once(FETCH_BYTES)
        wanted = rate_limit.rows_at_once(int(min(MESSAGES_MAX, max(MESSAGES_MIN, size_max / self._message_bytes))))
        messages = self._consumer.consume(wanted, timeout=FETCH_WAIT_S)
        topic = next(iter(self._topics)) if len(self._topics) == 1 else None
        fetched_ms = time.time_ns() // 1_000_000
        parts, outages = gather(messages, fetched_ms=fetched_ms, topic=topic)
        parts = [p for p in parts if p.split_id in self._positions]
        self._outage.see_to(next(iter(self._topics), None), answered=bool(parts))
        for part in parts:
            self._positions[part.split_id].offset = part.next_offset
        # These messages come before the reset of their partition. Later messages were not fetched yet.
        resets = [self._handle(outage) for outage in outages]
        parts += [
            Fetched(split_id, self._positions[split_id].offset, None, 0, fetched_ms, reset=True)
            for split_id in resets
            if split_id is not None
        ]
        size = sum(part.bytes for part in parts)
        if messages and size:
            self._message_bytes = max(1.0, size / len(messages))
        ends = self._ends.poll(self._positions, paused=self._paused)
        fetched: list[tuple[str, PartitionRecords]] = [
            *((split_id, LogEnd(end)) for split_id, end in ends.items()),
            *((part.split_id, part) for part in parts),
        ]
        records = tuple(SplitRecords(split_id, batch) for split_id, batch in fetched)
        count = sum(part.batch is not None and len(part.batch.offsets) for part in parts)
        return RecordsWithSplitIds(records, bytes=size, rows=count) if records else None

    def wake_up(self) -> None:
        """Do nothing, because a fetch never waits long."""

    def close(self) -> None:
        self._consumer.close()

    def _handle(self, outage: FetchFailure) -> str | None:
        """Raise the failure's error, or tolerate it. Returns the partition if its position was replaced."""
        code = outage.error.code()
        if outage.split_id and outage.split_id not in self._positions:
            return None  # The partition was removed from this reader.
        if code in NO_GROUP:
            return None
        if code in _OUT_OF_RANGE and outage.split_id:
            return outage.split_id if self._out_of_range(outage.split_id) else None
        if code in DROPPED_CODES:
            raise LogLostError(
                f"{outage.split_id or 'A topic'} does not exist any more at {self._config.bootstrap_servers}. "
                "Take it out of source.topics, or start another pipeline for the new topic."
            )
        if code in REFUSED_ACCOUNT:
            self.interruptions += 1
            self._outage.refused(outage.error)
            return None
        if not is_unreachable(outage.error):
            raise source_error(outage.error, self._config.bootstrap_servers)
        self.interruptions += 1  # Librdkafka reconnects by itself, without a time limit.
        return None

    def _out_of_range(self, split_id: str) -> bool:
        """Replace the position of a partition that lacks it, or raise the error.

        Returns True if the policy replaced it.
        """
        where = self._positions[split_id]
        # None after a timeout, although the annotation does not say so.
        found: Any = self._consumer.get_watermark_offsets(where, timeout=TIMEOUT_S)
        if found is None:
            raise SourceUnavailableError(
                f"Kafka at {self._config.bootstrap_servers} did not say where {split_id} begins and ends."
            )
        low, high = found
        if where.offset < low <= self._wanted[split_id] <= high:
            # Only markers are between the position and the first offset, so no message is lost.
            self._go_on(split_id, self._wanted[split_id])
            return False
        policy = self._config.on_out_of_range
        if policy == "fail" and low <= where.offset <= high:
            raise LogLostError(
                f"{split_id} has other messages before {where.offset} than those that were read: its log at "
                f"{self._config.bootstrap_servers} was truncated before, as when a broker leads that did not have "
                f"them. "
                "Messages that were read and are gone now stay in the target. Continue with the present messages by "
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
        """Continue reading at `offset` instead of the present position."""
        where = self._positions[split_id]
        self._consumer.incremental_unassign([where])
        self._positions[split_id] = TopicPartition(where.topic, where.partition, offset)
        self._wanted[split_id] = offset
        self._consumer.incremental_assign([self._positions[split_id]])
