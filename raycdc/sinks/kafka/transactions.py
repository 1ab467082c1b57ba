"""A transactional producer and its commit record: messages and record become visible together, or neither does.

A *target* is a topic with an identity under which its transactions run. The identity is their ``transactional.id``, and
also the name of the consumer group whose offset is the record; the offset is sent with ``send_offsets_to_transaction``
(KIP-98). ``init_transactions`` aborts an open transaction of another process with that id, and fences the process.
After that, the producer reads the record and writes its transaction. If another process initialises the same id later,
the commit fails. Reading the record and committing are therefore effectively one step: a retry, a speculative duplicate
and a suspended driver either find the record or are fenced.

Each message is one ``produce`` call. ``produce_batch`` of confluent-kafka (2.16) is not used. It is slower, because it
needs a dict for each message: 200,000 messages took 0.60 to 0.63 s of CPU with it, and 0.44 to 0.61 s without it. If
the queue is full, it also skips single messages of a batch; a skipped message would then be sent after later changes of
its key.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from raycdc.clients.kafka import (
    REFUSED_ACCOUNT,
    consumer_client,
    login_accepted,
    producer_client,
    refused_account,
    renew_account,
)
from raycdc.core.failpoints import reach
from raycdc.core.retry import Backoff, RetryPolicy
from raycdc.errors import (
    NameRefusedError,
    SinkError,
    SinkUnavailableError,
    TargetDroppedError,
    TargetModifiedError,
    ValueRefusedError,
)
from raycdc.model import TableId
from raycdc.sinks.steps import is_of_copy, written_by_copy
from raycdc.state.recovery import CommitVector

#: The timeout of one request to the cluster.
TIMEOUT_S = 30.0
#: The timeout of the first request, within which a refusal of the account shows.
REFUSAL_S = 2.0
#: The longest time for which an abandoned transaction blocks readers of its topics.
TRANSACTION_TIMEOUT_MS = 300_000
#: The factor of the epoch in the record's offset. It is larger than the number of steps.
STEPS = 8
_TIMEOUT = "transaction.timeout.ms"
#: librdkafka's property with the most bytes of a message and its key, its default, and the limits of its value.
MESSAGE_BYTES = "message.max.bytes"
MESSAGE_BYTES_DEFAULT = 1_000_000
MESSAGE_BYTES_FROM, MESSAGE_BYTES_TO = 1_000, 1_000_000_000
#: The version of the metadata that is stored with the offset. Since version 2, the metadata has a version and names the
#: topic.
_VERSION = 2

#: The most characters of a group's name.
_IDENTITY_MAX = 200
_LIKE_A_PART = re.compile(r":[0-9]+$")

#: Topic, key and value.
Message = tuple[str, bytes | None, bytes | None]
Messages = Iterable[Message]

_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
_SOON = frozenset(
    {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
)
_UNREACHABLE = _SOON | {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
}
_NOTHING_THERE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})


@dataclass(frozen=True, slots=True)
class KafkaTarget:
    """A table's topic, and the identity under which its transactions run (of pipeline, checkpoint and table).

    `topic_id` is the id of the topic, which a later topic with the same name does not have (empty: unknown). `reached`
    is the vector that the driver last read or wrote; None if there is none. If `begins` is True, the table begins with
    this epoch, so earlier content of the topic does not matter. If the record is newer than `reached` and its digest is
    not in `digests`, another copy of the state wrote it. A message may have `message_bytes` with its key (0: as many
    as librdkafka allows by default), unless ``message.max.bytes`` of the properties sets another limit.
    """

    properties: Mapping[str, str] = field(repr=False)
    topic: str
    identity: str
    topic_id: str = ""
    reached: CommitVector | None = None
    begins: bool = False
    digests: tuple[int, ...] = ()
    message_bytes: int = 0

    def part(self, number: int) -> KafkaTarget:
        """Return the same topic with the identity of one part, which has its own record."""
        return replace(self, identity=f"{self.identity}:{number}", reached=None)

    @property
    def timeout_ms(self) -> int:
        """Return how long a transaction may be open: the user's ``transaction.timeout.ms``, or the default."""
        return int(self.properties.get(_TIMEOUT, TRANSACTION_TIMEOUT_MS))

    def check(self, record: TransactionRecord) -> TransactionRecord:
        """Return `record` if it is valid.

        Raises `TargetDroppedError` if the record belongs to an earlier topic with this name, or is older than
        `reached`. Raises `FencedError` if another copy of the state wrote it.
        """
        servers = self.properties.get("bootstrap.servers")
        if self.begins:
            return record
        if record.topic_id and self.topic_id and record.topic_id != self.topic_id:
            raise TargetDroppedError(
                f"Topic {self.topic} at {servers} is another topic than this pipeline wrote to: it was deleted and "
                "made anew, and its messages of earlier epochs are gone. Nothing more was written. Read its source "
                "table anew."
            )
        reached, vector = self.reached, record.vector
        # Only epochs are compared, because parts of an epoch may be ahead of the table's own record.
        if reached is not None and (vector is None or vector.epoch < reached.epoch):
            holds = "nothing of this pipeline" if vector is None else f"only epoch {vector.epoch}"
            raise TargetDroppedError(
                f"Topic {self.topic} at {servers} held epoch {reached.epoch} and now holds {holds}: it was deleted and "
                "made anew, or its record went, which is an offset of a consumer group. Nothing more was written. Read "
                "its source table anew."
            )
        if vector is not None and self.digests and is_of_copy(vector, reached, self.digests):
            raise written_by_copy(f"Topic {self.topic} at {servers}", vector)
        return record


def identity_of(app_id: str, table: TableId) -> str:
    """Return the unique identity of a table's target.

    The identity is hashed if it would end like the identity of a part (`KafkaTarget.part`), or would be too long for
    the name of a group.
    """
    identity = f"{app_id}:{table}"
    if len(identity) > _IDENTITY_MAX or _LIKE_A_PART.search(table.table):
        return f"raycdc:{hashlib.sha256(identity.encode()).hexdigest()}"
    return identity


@dataclass(frozen=True, slots=True)
class Cut:
    """The division of `epoch` into `parts`, which is recorded before the first part is written. `most` is the largest
    number of parts of any epoch so far.
    """

    epoch: int = 0
    parts: int = 1
    most: int = 0

    def of(self, epoch: int) -> int:
        """Return the number of parts of `epoch`: 1 if it was not planned."""
        return self.parts if self.epoch == epoch else 1


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """The commit record in the consumer group of an identity. `vector` is None if there is no record. Only records of
    whole tables have a `cut`. `topic_id` is the id of the topic (empty: an older version wrote the record, or the
    cluster has no ids).
    """

    vector: CommitVector | None = None
    cut: Cut = Cut()
    topic_id: str = ""


class TransactionalProducer:
    """The transactional producer of one target. Entering its context fences every other producer of the target."""

    def __init__(self, target: KafkaTarget) -> None:
        self._target = target
        #: The time at which the open transaction began.
        self._begun_s: float | None = None
        #: The last refusal of the account.
        self._refusal: KafkaError | None = None
        self._consumer = _consumer(target)
        self._producer = producer_client(
            {
                "linger.ms": "20",
                "batch.size": "1000000",
                "compression.type": "lz4",
                "partitioner": "murmur2_random",
                _TIMEOUT: str(TRANSACTION_TIMEOUT_MS),
                **({MESSAGE_BYTES: str(target.message_bytes)} if target.message_bytes else {}),
                **target.properties,
                "transactional.id": target.identity,
                "queue.buffering.max.messages": "1000000",
                "log_level": 0,
            },
            section="sink",
            on_error=self._heard,
        )

    def __enter__(self) -> Self:
        # librdkafka finds the transaction coordinator immediately if a connection is open, and half a second later
        # otherwise. Two requests are needed to have an open connection: the first one uses the bootstrap connection,
        # which is then closed, and the second one opens a permanent connection.
        for seconds in (REFUSAL_S, TIMEOUT_S):
            self._probe_topic(seconds)
        login_accepted(self._target.properties)
        self._ask(lambda: self._producer.init_transactions(TIMEOUT_S))
        return self

    def _probe_topic(self, seconds: float) -> None:
        """Request the topic's metadata.

        If the broker does not answer within `seconds`, the request is repeated, unless the broker has refused the
        account.
        """
        try:
            self._producer.list_topics(self._target.topic, seconds)
        except KafkaException as cause:
            if self._heard_of() is not None or seconds == TIMEOUT_S:
                raise self._error(cause) from cause

    def _heard_of(self) -> KafkaError | None:
        """Return the last refusal of the account; None if there was none. After a refusal, new connections use the
        newest password.
        """
        with contextlib.suppress(KafkaException):  # The error that `_error` is about to name.
            self._producer.poll(0)
        if self._refusal is not None:
            renew_account(self._producer, self._target.properties)
        return self._refusal

    def _heard(self, error: KafkaError) -> None:
        """Note a refusal of the account. librdkafka calls this during a poll."""
        if error.code() in REFUSED_ACCOUNT:
            self._refusal = error

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def record(self) -> TransactionRecord:
        """Return the target's record, checked by `KafkaTarget.check`. No other process can change the record before
        this producer commits.
        """
        return self._target.check(_read_record(self._target, self._consumer))

    def held(self) -> CommitVector | None:
        """Return the target's vector; see `record`."""
        return self.record().vector

    def write(self, vector: CommitVector, messages: Messages, *, cut: Cut | None = None) -> int:
        """Write `messages` (topic, key, value) and the record in one transaction; return the number of messages."""
        note: dict[str, int | str] = {"version": _VERSION, "generation": vector.generation}
        if vector.digest:
            note["digest"] = vector.digest
        if self._target.topic_id:
            note["topic"] = self._target.topic_id
        if cut is not None and cut.most:
            note |= {"epoch": cut.epoch, "parts": cut.parts, "most": cut.most}
        offset = vector.epoch * STEPS + vector.step
        record = TopicPartition(self._target.topic, 0, offset, metadata=json.dumps(note))
        group = self._consumer.consumer_group_metadata()
        self._ask(self._producer.begin_transaction)
        self._begun_s = time.monotonic()
        try:
            count = self._produce(messages)
            self._add_record(lambda: self._producer.send_offsets_to_transaction([record], group, TIMEOUT_S))
        except Exception:
            self._abort()
            raise
        reach("in_commit")
        self._commit()
        return count

    def partitions(self) -> int:
        """Return the number of the topic's partitions."""
        try:
            return len(self._producer.list_topics(self._target.topic, TIMEOUT_S).topics[self._target.topic].partitions)
        except KafkaException as cause:
            raise self._error(cause) from cause

    def _produce(self, messages: Messages) -> int:
        count = 0
        produce = self._producer.produce
        for topic, key, value in messages:
            while True:
                try:
                    produce(topic, value, key)
                except BufferError:
                    self._ask(lambda: self._producer.poll(0.1))
                    continue
                except KafkaException as cause:
                    raise self._error(cause) from cause
                break
            count += 1
        return count

    def _abort(self) -> None:
        """Abort the transaction, because readers wait for it. If that fails, the next start ends it."""
        with contextlib.suppress(KafkaException):
            self._producer.abort_transaction(TIMEOUT_S)

    def _commit(self) -> None:
        """Commit the transaction.

        If no broker answers in time, the outcome is unknown. The epoch loop then repeats the whole epoch. When the next
        producer initialises, the coordinator decides the outcome, and the producer reads it from the record.
        """
        try:
            self._producer.commit_transaction(TIMEOUT_S)
        except KafkaException as cause:
            if cause.args[0].txn_requires_abort():
                self._abort()
            raise self._error(cause) from cause

    def _add_record(self, add: Callable[[], None]) -> None:
        try:
            add()
        except KafkaException as cause:
            if cause.args[0].code() != KafkaError._STATE:
                raise self._error(cause) from cause
            # The transaction has failed, for example because the account may not write to the topic. librdkafka reports
            # the reason only at the next call (rd_kafka_txn_require_states0 in its source).
            self._ask(add)

    def _ask(self, question: Callable[[], Any]) -> None:
        try:
            question()
        except KafkaException as cause:
            raise self._error(cause) from cause

    def _error(self, cause: KafkaException) -> SinkError:
        """Return the error for an exception of Kafka.

        A broker that ends an open transaction fences its producer, too.
        """
        error, target = self._reason(cause.args[0]), self._target
        if is_unreachable(error) and error.code() not in _OF_A_TOPIC and (refusal := self._heard_of()) is not None:
            text = refused_account(target.properties, refusal).str()
            return SinkUnavailableError(f"Topic {target.topic} at {target.properties.get('bootstrap.servers')}: {text}")
        open_ms = 0.0 if self._begun_s is None else (time.monotonic() - self._begun_s) * 1000
        if error.code() in _FENCED and open_ms >= target.timeout_ms:
            return SinkError(
                f"Topic {target.topic}: the broker ended a transaction that was open for {open_ms / 1000:.0f} s, which "
                f"is longer than {_TIMEOUT} ({target.timeout_ms}). Nothing of the epoch is in the topic. Set a larger "
                f'one in sink.properties ("{_TIMEOUT}"), up to transaction.max.timeout.ms of the brokers. Start again.'
            )
        return topic_error(target, error)

    def _reason(self, error: KafkaError) -> KafkaError:
        """Return the error that librdkafka reported as fatal, if `error` only says that there was one. A poll raises
        the fatal error once, if no earlier poll has.
        """
        if error.code() != KafkaError._FATAL:
            return error
        try:
            self._producer.poll(0)
        except KafkaException as cause:
            reason: KafkaError = cause.args[0]
            return reason
        return error


def read_record(target: KafkaTarget) -> TransactionRecord:
    """Return the record of `target` without fencing its writers, so it may change at any time."""
    consumer = _consumer(target)
    try:
        return _read_record(target, consumer)
    finally:
        consumer.close()


def _consumer(target: KafkaTarget) -> Consumer:
    return consumer_client(
        {
            **target.properties,
            "group.id": target.identity,
            "enable.auto.commit": "false",
            # With this level, reading waits for the offset of an undecided transaction.
            "isolation.level": "read_committed",
            "log_level": 0,
        },
        section="sink",
    )


def _read_record(target: KafkaTarget, consumer: Consumer) -> TransactionRecord:
    answer = _committed(target, consumer)
    if answer is None or answer.offset < 0:
        return TransactionRecord()
    note = json.loads(answer.metadata or "{}")
    if (version := note.get("version", 1)) > _VERSION:
        raise SinkError(
            f"Topic {target.topic}: its record is of version {version}, and this raycdc reads up to {_VERSION}. Use "
            "the newer one that wrote it."
        )
    vector = CommitVector(
        answer.offset // STEPS, answer.offset % STEPS, note.get("generation", 0), note.get("digest", 0)
    )
    cut = Cut(note.get("epoch", 0), note.get("parts", 1), note.get("most", 0))
    return TransactionRecord(vector, cut, note.get("topic", ""))


def _committed(target: KafkaTarget, consumer: Consumer) -> TopicPartition | None:
    """Return the group's offset; None if there is no such topic. Raises `SinkError`."""
    pauses = Backoff(RetryPolicy(longest_s=2.0, retry_s=TIMEOUT_S))
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
        # The group coordinator is not available while it is created for a cluster's first group, or while it moves to
        # another broker.
        pause_s = pauses.failed(time.monotonic()) if error.code() in _SOON else None
        if pause_s is None:
            raise topic_error(target, error)
        time.sleep(pause_s)


#: Errors of a broker that concern one topic, and not the cluster.
_OF_A_TOPIC: dict[int, type[SinkError]] = {
    KafkaError.MSG_SIZE_TOO_LARGE: ValueRefusedError,
    KafkaError.RECORD_LIST_TOO_LARGE: ValueRefusedError,
    KafkaError.INVALID_RECORD: ValueRefusedError,
    KafkaError.UNKNOWN_TOPIC_OR_PART: TargetDroppedError,
    KafkaError.TOPIC_EXCEPTION: NameRefusedError,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: TargetModifiedError,
    KafkaError.POLICY_VIOLATION: TargetModifiedError,
}


def is_unreachable(error: KafkaError) -> bool:
    """Return True if brokers cannot be reached now, or ask for a later retry."""
    return error.retriable() or error.code() in _UNREACHABLE


def topic_error(target: KafkaTarget, error: KafkaError) -> SinkError:
    """Return the error for a broker's refusal. It concerns the topic if `_OF_A_TOPIC` has the code, and the whole sink
    otherwise.
    """
    if error.code() in _FENCED:
        return SinkError(f"Topic {target.topic}: another process took over its transactions.")
    servers = target.properties.get("bootstrap.servers")
    refusal = _OF_A_TOPIC.get(error.code()) or (SinkUnavailableError if is_unreachable(error) else SinkError)
    return refusal(f"Topic {target.topic} at {servers}: {error.str()} ({error.name()})")
