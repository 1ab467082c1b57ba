"""A transactional producer and the commit record beside it: messages and record become visible together, or neither.

A *target* is a topic with an identity under which its transactions run: it is both their ``transactional.id`` and the
name of the consumer group whose offset, sent with ``send_offsets_to_transaction`` (KIP-98), is the record.
``init_transactions`` ends whatever another process has open under that id and fences it; *then* the record is read;
then the transaction is written. Whoever initialises later makes our commit fail, so reading and writing are one step: a
retry, a speculative twin and a driver that woke from a pause find the record or are fenced.

Each message is a ``produce`` call. confluent-kafka's ``produce_batch`` (2.16) was tried: 200,000 messages cost 0.60 to
0.63 s of CPU with it and 0.44 to 0.61 s without, as it wants a dict for each; and where the queue is full it leaves
out single messages of a batch, so that what is tried again could come behind later changes of its key.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from raycdc.checkpoint.recovery import CommitVector
from raycdc.clients.kafka import consumer_client, producer_client
from raycdc.errors import NameRefusedError, SinkError, TargetGoneError, TargetTouchedError, ValueRefusedError
from raycdc.failpoints import reach

#: How long one question to the cluster may take.
TIMEOUT_S = 30.0
#: A transaction that was left open holds its topics' readers back for no longer than this.
TRANSACTION_TIMEOUT_MS = 300_000
#: Steps per epoch in the offset that is the record; more than there are.
STEPS = 8
#: Between two times of the same question.
RETRY_S = 0.1

#: Topic, key and value.
Message = tuple[str, bytes | None, bytes | None]
Messages = Iterable[Message]

_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
_SOON = frozenset(
    {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
)
_NOTHING_THERE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})


@dataclass(frozen=True, slots=True)
class Target:
    """A table's topic, and the name under which its transactions run (pipeline, checkpoint and table)."""

    properties: Mapping[str, str] = field(repr=False)
    topic: str
    identity: str

    def part(self, number: int) -> Target:
        """The same topic with the identity of one task partition."""
        return replace(self, identity=f"{self.identity}:{number}")


@dataclass(frozen=True, slots=True)
class Cut:
    """In how many parts `epoch` is written, said before the first of them; `most` is how many there ever were."""

    epoch: int = 0
    parts: int = 1
    most: int = 0

    def of(self, epoch: int) -> int:
        """Parts of `epoch`: 1 where nothing else was said."""
        return self.parts if self.epoch == epoch else 1


@dataclass(frozen=True, slots=True)
class Record:
    """The record in an identity's group: how far it is (None: nowhere), and for a whole table how it is cut."""

    vector: CommitVector | None = None
    cut: Cut = Cut()


class Transactions:
    """The producer of one target, from its ``init_transactions`` on. Fences every other one of the same target."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._consumer = _consumer(target)
        self._producer = producer_client(
            {
                "linger.ms": "20",
                "batch.size": "1000000",
                "compression.type": "lz4",
                "partitioner": "murmur2_random",
                **target.properties,
                "transactional.id": target.identity,
                "transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS),
                "queue.buffering.max.messages": "1000000",
                "log_level": 0,
            },
            section="sink",
        )

    def __enter__(self) -> Self:
        # librdkafka asks for the coordinator at once where a connection is up, and otherwise half a second later: one
        # answer comes over the bootstrap connection, which ends with it, and the next over one that stays.
        for _ in range(2):
            self._ask(lambda: self._producer.list_topics(self._target.topic, TIMEOUT_S))
        self._ask(lambda: self._producer.init_transactions(TIMEOUT_S))
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def record(self) -> Record:
        """The record of the target. Nobody else can change it before our commit."""
        return _read_record(self._target, self._consumer)

    def held(self) -> CommitVector | None:
        """How far the target is; see `record`."""
        return self.record().vector

    def write(self, vector: CommitVector, messages: Messages, *, cut: Cut | None = None) -> int:
        """One transaction: `messages` (topic, key, value) and the record. How many messages."""
        note: dict[str, int] = {"generation": vector.generation}
        if cut is not None and cut.most:
            note |= {"epoch": cut.epoch, "parts": cut.parts, "most": cut.most}
        offset = vector.epoch * STEPS + vector.step
        record = TopicPartition(self._target.topic, 0, offset, metadata=json.dumps(note))
        group = self._consumer.consumer_group_metadata()
        self._ask(self._producer.begin_transaction)
        try:
            count = self._produce(messages)
            self._ask(lambda: self._producer.send_offsets_to_transaction([record], group, TIMEOUT_S))
        except Exception:
            self._abort()
            raise
        reach("in_commit")
        self._commit()
        return count

    def partitions(self) -> int:
        """How many partitions the topic has."""
        try:
            return len(self._producer.list_topics(self._target.topic, TIMEOUT_S).topics[self._target.topic].partitions)
        except KafkaException as cause:
            raise topic_error(self._target, cause.args[0]) from cause

    def _produce(self, messages: Messages) -> int:
        count = 0
        produce = self._producer.produce
        for topic, key, value in messages:
            while True:
                try:
                    produce(topic, value, key)
                except BufferError:
                    self._producer.poll(0.1)
                    continue
                except KafkaException as cause:
                    raise topic_error(self._target, cause.args[0]) from cause
                break
            count += 1
        return count

    def _abort(self) -> None:
        """Readers wait for an open transaction. One that cannot be ended here is ended by the next start."""
        with contextlib.suppress(KafkaException):
            self._producer.abort_transaction(TIMEOUT_S)

    def _commit(self) -> None:
        """Its outcome is known only when it answered: asked again for as long as the broker is away."""
        while True:
            try:
                self._producer.commit_transaction(TIMEOUT_S)
            except KafkaException as cause:
                if cause.args[0].retriable():
                    continue
                if cause.args[0].txn_requires_abort():
                    self._abort()
                raise topic_error(self._target, cause.args[0]) from cause
            return

    def _ask(self, question: Callable[[], Any]) -> None:
        try:
            question()
        except KafkaException as cause:
            raise topic_error(self._target, cause.args[0]) from cause


def look(target: Target) -> Record:
    """The record of `target`, without fencing anybody: it may change the next moment."""
    consumer = _consumer(target)
    try:
        return _read_record(target, consumer)
    finally:
        consumer.close()


def _consumer(target: Target) -> Consumer:
    return consumer_client(
        {
            **target.properties,
            "group.id": target.identity,
            "enable.auto.commit": "false",
            # An offset of a transaction that is not decided yet is waited for.
            "isolation.level": "read_committed",
            "log_level": 0,
        },
        section="sink",
    )


def _read_record(target: Target, consumer: Consumer) -> Record:
    answer = _committed(target, consumer)
    if answer is None or answer.offset < 0:
        return Record()
    note = json.loads(answer.metadata or "{}")
    vector = CommitVector(answer.offset // STEPS, answer.offset % STEPS, note.get("generation", 0))
    return Record(vector, Cut(note.get("epoch", 0), note.get("parts", 1), note.get("most", 0)))


def _committed(target: Target, consumer: Consumer) -> TopicPartition | None:
    """The group's offset; None where there is no such topic. Raises `SinkError`."""
    give_up_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            (answer,) = consumer.committed([TopicPartition(target.topic, 0)], timeout=TIMEOUT_S)
        except KafkaException as cause:
            error = cause.args[0]
        else:
            if answer.error is None:
                return answer
            error = answer.error
        if error.code() in _NOTHING_THERE:
            return None
        # A cluster's first group finds its coordinator just made, and one that moves is between two brokers.
        if error.code() not in _SOON or time.monotonic() > give_up_s:
            raise topic_error(target, error)
        time.sleep(RETRY_S)


#: Errors of a broker that concern one topic, and not the cluster.
_OF_A_TOPIC: dict[int, type[SinkError]] = {
    KafkaError.MSG_SIZE_TOO_LARGE: ValueRefusedError,
    KafkaError.RECORD_LIST_TOO_LARGE: ValueRefusedError,
    KafkaError.INVALID_RECORD: ValueRefusedError,
    KafkaError.UNKNOWN_TOPIC_OR_PART: TargetGoneError,
    KafkaError.TOPIC_EXCEPTION: NameRefusedError,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: TargetTouchedError,
    KafkaError.POLICY_VIOLATION: TargetTouchedError,
}


def topic_error(target: Target, error: KafkaError) -> SinkError:
    """The named error of a broker's refusal: the topic's own where `_OF_A_TOPIC` says so, else the whole sink's."""
    if error.code() in _FENCED:
        return SinkError(f"Topic {target.topic}: another process took over its transactions.")
    servers = target.properties.get("bootstrap.servers")
    refusal = _OF_A_TOPIC.get(error.code(), SinkError)
    return refusal(f"Topic {target.topic} at {servers}: {error.str()} ({error.name()})")
