"""The Kafka sink's transactions: messages and the commit record in one, run as stage tasks.

One transaction per (table, step). Its ``transactional.id`` belongs to the (pipeline, table); the record is an offset of
a consumer group of the same name, sent with ``send_offsets_to_transaction`` (KIP-98), so that both become visible or
neither. Theory of operation: ``init_transactions`` ends whatever another process has open under that id and fences it;
*then* the record is read; then the transaction is written. Whoever initialises later makes our commit fail, so reading
and writing are one step: a retry, a speculative twin and a driver that woke from a pause find the record or are fenced.

Each message is a ``produce`` call. confluent-kafka's ``produce_batch`` (2.16) was tried: 200,000 messages cost 0.60 to
0.63 s of CPU with it and 0.44 to 0.61 s without, as it wants a dict for each; and where the queue is full it leaves
out single messages of a batch, so that what is tried again could come behind later changes of its key.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from raycdc.checkpoint.recovery import CommitVector
from raycdc.errors import FencedError, SinkError
from raycdc.failpoints import reach
from raycdc.formats.plugins import load_format
from raycdc.model import RowKind, TableId, TableSchema
from raycdc.schema import TruncateTableEvent, event_from_json
from raycdc.sinks.tasks import read_inputs

#: How long one question to the cluster may take.
TIMEOUT_S = 30.0
#: A transaction that was left open holds its topics' readers back for no longer than this.
TRANSACTION_TIMEOUT_MS = 300_000
#: Steps per epoch in the offset that is the record; more than there are.
STEPS = 8

#: Schema changes that are such a row among the rows. Sources write none for one that is left out, so each can be by
#: itself; the row does not say which it is, or whether its table begins again, so here it takes both.
EMPTYING = frozenset({"truncate_table", "drop_table"})

_STORED = ("_op", "_seq", "_ts_ms", "_pos")
_FENCED = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
_NOTHING_THERE = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})


@dataclass(frozen=True, slots=True)
class Target:
    """A table's topic, and the name under which its transactions run (pipeline, checkpoint and table)."""

    properties: Mapping[str, str]
    topic: str
    identity: str

    def to_json(self) -> dict[str, Any]:
        return {"properties": dict(self.properties), "topic": self.topic, "identity": self.identity}


class Transactions:
    """A transactional producer and the record beside it. Fences every other one of the same target."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._consumer = Consumer(
            {
                **target.properties,
                "group.id": target.identity,
                "enable.auto.commit": "false",
                # An offset of a transaction that is not decided yet is waited for.
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        self._producer = Producer(
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
            }
        )

    def __enter__(self) -> Self:
        self._ask(lambda: self._producer.init_transactions(TIMEOUT_S))
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def held(self) -> CommitVector | None:
        """What the target holds. Nobody else can change it before our commit."""
        try:
            (answer,) = self._consumer.committed([TopicPartition(self._target.topic, 0)], timeout=TIMEOUT_S)
        except KafkaException as cause:
            if cause.args[0].code() in _NOTHING_THERE:
                return None
            raise self._error(cause.args[0]) from cause
        if answer.error is not None and answer.error.code() not in _NOTHING_THERE:
            raise self._error(answer.error)
        if answer.error is not None or answer.offset < 0:
            return None
        note = json.loads(answer.metadata or "{}")
        return CommitVector(answer.offset // STEPS, answer.offset % STEPS, note.get("generation", 0))

    def write(self, vector: CommitVector, messages: Iterator[tuple[str, bytes | None, bytes | None]]) -> int:
        """One transaction: `messages` (topic, key, value) and the record. How many messages."""
        note = json.dumps({"generation": vector.generation})
        record = TopicPartition(self._target.topic, 0, vector.epoch * STEPS + vector.step, metadata=note)
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
            raise self._error(cause.args[0]) from cause

    def _produce(self, messages: Iterator[tuple[str, bytes | None, bytes | None]]) -> int:
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
                    raise self._error(cause.args[0]) from cause
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
                raise self._error(cause.args[0]) from cause
            return

    def _ask(self, question: Callable[[], Any]) -> None:
        try:
            question()
        except KafkaException as cause:
            raise self._error(cause.args[0]) from cause

    def _error(self, error: KafkaError) -> SinkError:
        if error.code() in _FENCED:
            return SinkError(f"Topic {self._target.topic}: another process took over its transactions.")
        servers = self._target.properties.get("bootstrap.servers")
        return SinkError(f"Topic {self._target.topic} at {servers}: {error.str()} ({error.name()})")


def write_epoch(
    target: dict[str, Any],
    vector: list[int],
    table: str,
    schema: dict[str, Any],
    format: dict[str, Any],  # noqa: A002 - the configuration's own word
    inputs: list[dict[str, Any]],
    node: str,
    token: str,
    left_out: Collection[str] = (),
) -> dict[str, Any]:
    """The rows of one table and epoch as messages, unless the target holds them already.

    `left_out` are the schema changes that nobody wants to be told of.
    """
    goal = CommitVector(*vector)
    into = Target(**target)
    with Transactions(into) as transactions:
        if _holds(transactions.held(), goal, table):
            return {"messages": 0}
        described = TableSchema.from_json(schema)
        encoder = open_format(format).encoder(TableId.parse(table), described)
        names = [*(column.name for column in described.columns), *_STORED]
        batches = read_inputs(inputs, names, node=node, token=token)
        truncation = _Truncation(TableId.parse(table), encoder, transactions.partitions, set(left_out) >= EMPTYING)
        messages = _messages(into.topic, encoder, truncation, _whole_updates(batches))
        return {"messages": transactions.write(goal, messages)}


def write_changes(
    target: dict[str, Any],
    vector: list[int],
    table: str,
    schema: dict[str, Any],
    format: dict[str, Any],  # noqa: A002 - the configuration's own word
    changes: list[dict[str, Any]],
    ddl_topic: str,
    ts_ms: int,
) -> dict[str, Any]:
    """Schema changes as messages, unless the target holds them already; none at all is an empty commit."""
    goal = CommitVector(*vector)
    with Transactions(Target(**target)) as transactions:
        if _holds(transactions.held(), goal, table):
            return {"messages": 0}
        encoder = open_format(format).encoder(TableId.parse(table), TableSchema.from_json(schema))
        told = [encoder.encode_change(event_from_json(change), ts_ms=ts_ms) for change in changes]
        return {"messages": transactions.write(goal, iter([(ddl_topic, None, text) for text in told if text]))}


def open_format(section: Mapping[str, Any]) -> Any:
    """The format of ``sink.format``."""
    return load_format(section["type"], place="sink.format", **{k: v for k, v in section.items() if k != "type"})


def _holds(held: CommitVector | None, goal: CommitVector, table: str) -> bool:
    """Whether the step is done. A newer driver that was here fences us."""
    if held is not None and held.generation > goal.generation:
        raise FencedError(f"{table} was written by a newer driver (generation {held.generation}).")
    return held is not None and (held.epoch, held.step) >= (goal.epoch, goal.step)


def _whole_updates(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows with both halves of an update in one batch, so that the encoder sees them side by side."""
    rest: pa.RecordBatch | None = None
    for batch in batches:
        rows = batch
        if rest is not None:
            together = pa.Table.from_batches([rest, batch]).combine_chunks()
            rows = together.to_batches()[0]
            rest = None
        if rows.num_rows and rows.column("_op")[rows.num_rows - 1].as_py() == RowKind.UPDATE_BEFORE:
            rest = rows.slice(rows.num_rows - 1)
            rows = rows.slice(0, rows.num_rows - 1)
        if rows.num_rows:
            yield rows
    if rest is not None:
        yield rest


@dataclass(frozen=True, slots=True)
class _Truncation:
    """The message for a row that says that all rows are gone. It has no key: only one partition has its order."""

    table: TableId
    encoder: Any
    partitions: Callable[[], int]
    left_out: bool = False

    def message(self, row: pa.RecordBatch) -> bytes | None:
        """None where nobody wants to be told of it."""
        if self.left_out:
            return None
        told: bytes | None = self.encoder.encode_change(
            TruncateTableEvent(self.table), ts_ms=row.column("_ts_ms")[0].as_py() or 0
        )
        why = "the format has no message for that" if told is None else ""
        if not why and self.partitions() != 1:
            why = "its topic has several partitions, whose messages have no order between them"
        if told is None or why:
            raise SinkError(
                f"All rows of {self.table} are gone, and {why}. Leave it out with pipeline.exclude_schema_changes = "
                '["truncate_table", "drop_table"], or use canal-json or debezium-json with sink.partitions = 1.'
            )
        return told

    def cut(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, bytes | None]]:
        """`batch` in pieces, each with the message of the truncation that follows it, if one does."""
        first = 0
        for at in np.flatnonzero(batch.column("_op").to_numpy() == RowKind.TRUNCATE).tolist():
            yield batch.slice(first, at - first), self.message(batch.slice(at, 1))
            first = at + 1
        yield batch.slice(first), None


def _messages(
    topic: str, encoder: Any, truncation: _Truncation, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[str, bytes | None, bytes | None]]:
    for batch in batches:
        for rows, emptied in truncation.cut(batch):
            encoded = encoder.encode(rows)
            for key, value in zip(encoded.keys.to_pylist(), encoded.values.to_pylist(), strict=True):
                yield topic, key, value
            if emptied is not None:
                yield topic, None, emptied
