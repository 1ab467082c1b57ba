"""The Kafka sink's transactions as stage tasks. Each may run twice (`transactions` explains why).

| task | under the identity of | writes |
|---|---|---|
| `WriteEpoch` | the table | all rows of an epoch, unless its record says that the epoch is in parts |
| `PlanParts` | the table | no message; the epoch's number of parts, unless it was planned before |
| `WritePart` | a part | the rows of its keys |
| `WriteChanges` | the table | schema changes, or no message: to end an epoch in parts, or to claim a topic |
| `Bar` | the table, or a part | no message; the epoch can never be written afterwards |

*The table's record decides about the epoch*: it is at `STEP_LAST` if all parts are. An epoch is planned before its
first part is written, so the table's record, read after fencing its writers, shows every part that may exist. The plan
is kept even if a later version or configuration of raycdc would choose another number of parts.

A part first fences its own other writers, and then reads the table's record. An epoch may also end without its parts:
it is barred by tombstones, or completed without lost rows. In this case each part gets its tombstone first, and the
table's record is written last. A suspended part therefore finds one of the two records, or it is fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import JsonValue

from raycdc.errors import ChangeRefusedError, SinkError
from raycdc.formats.plugins import load_format
from raycdc.model import RowKind, TableId, TableSchema
from raycdc.model.evolution import SchemaChangeEvent, TruncateTableEvent
from raycdc.model.keys import OWNER
from raycdc.segments.bad_rows import whole_updates
from raycdc.segments.tasks import ResultT_co, StageTask
from raycdc.segments.writing import partition_numbers
from raycdc.sinks.kafka.passed_keys import by_owner
from raycdc.sinks.kafka.transactions import (
    Cut,
    KafkaTarget,
    Message,
    TransactionalProducer,
    TransactionRecord,
    read_record,
)
from raycdc.sinks.steps import half_written, holds
from raycdc.sinks.task_inputs import TableInput
from raycdc.state.manifests.manifest import Segment
from raycdc.state.recovery import STEP_APPEND, STEP_LAST, STEP_TOMBSTONE, CommitVector

#: The section ``sink.format``: its type, and the options of that type.
FormatSection = Mapping[str, JsonValue]

#: The types of schema changes for which sources also write a truncation among the rows. The truncation does not show
#: which of the two types caused it, so truncations are left out only if both types are left out.
EMPTYING = frozenset({"truncate_table", "drop_table"})

#: The metadata columns of stored rows that encoders get after the table's own columns.
STORED = ("_op", "_seq", "_ts_ms", "_pos")


@dataclass(frozen=True, slots=True)
class TopicTask(StageTask[ResultT_co]):
    """A transaction that brings `target`, a topic of `table`, to the vector `goal`, unless the target already holds
    that vector.
    """

    target: KafkaTarget
    goal: CommitVector
    table: TableId


@dataclass(frozen=True, slots=True)
class EpochMessages:
    """The rows of an epoch, and the format of their messages in `section` (``sink.format``).

    Schema changes of the types in `left_out` get no message. If `begins` is True, the table is read from its beginning.
    If `by_owner` is True, a key that passes from one row to another gets the messages of
    `raycdc.sinks.kafka.passed_keys`.
    """

    rows: TableInput
    section: FormatSection
    left_out: frozenset[str] = frozenset()
    begins: bool = False
    by_owner: bool = False


@dataclass(frozen=True, slots=True)
class WrittenMessages:
    """The result of writing an epoch: the number of messages.

    If the epoch is written in several parts, `parts` is their number, and no message was written.
    """

    messages: int
    parts: int = 1


@dataclass(frozen=True, slots=True)
class WriteEpoch(TopicTask[WrittenMessages]):
    """Writes the rows of one table and epoch as messages, unless the target already holds them.

    If the epoch was already planned in parts, nothing is written, and the number of parts is returned.
    """

    messages: EpochMessages

    @property
    def input_bytes(self) -> int:
        return self.messages.rows.bytes

    @property
    def segments(self) -> Collection[Segment]:
        return self.messages.rows.segments

    def run(self) -> WrittenMessages:
        with TransactionalProducer(self.target) as transactions:
            record = transactions.record()
            if holds(record.vector, self.goal, self.table):
                return WrittenMessages(0)
            if record.cut.of(self.goal.epoch) > 1:
                return WrittenMessages(0, record.cut.parts)
            messages = _rows_of(self, self.messages, transactions.partitions)
            return WrittenMessages(transactions.write(self.goal, messages, cut=record.cut))


@dataclass(frozen=True, slots=True)
class PlanParts(TopicTask[int]):
    """Records that an epoch is in `parts`, unless a number was recorded before.

    The result is the recorded number of parts; 0 if the target already holds the epoch. `goal` is the epoch's vector at
    `STEP_SCHEMA`, because no row is written.
    """

    parts: int

    def run(self) -> int:
        goal = self.goal
        with TransactionalProducer(self.target) as transactions:
            record = transactions.record()
            if holds(record.vector, replace(goal, step=STEP_LAST), self.table):
                return 0
            if record.cut.epoch != goal.epoch:
                cut = Cut(goal.epoch, self.parts, max(record.cut.most, self.parts))
                transactions.write(goal, (), cut=cut)
                return self.parts
            return record.cut.parts


@dataclass(frozen=True, slots=True)
class WritePart(TopicTask[int]):
    """Writes the rows with keys of part `number` of `parts`, unless the part or the table already holds them.

    The result is the number of messages.
    """

    messages: EpochMessages
    number: int
    parts: int

    @property
    def input_bytes(self) -> int:
        return self.messages.rows.bytes // self.parts

    @property
    def segments(self) -> Collection[Segment]:
        return self.messages.rows.segments

    def run(self) -> int:
        goal, table = self.goal, self.table
        with TransactionalProducer(self.target.part(self.number)) as transactions:
            ours = transactions.held()
            # The table's record is read last; see the module's docstring. A part's tombstone counts only if the table
            # has a tombstone, too.
            barred = ours is not None and ours.progress == (goal.epoch, STEP_TOMBSTONE)
            if (holds(ours, goal, table) and not barred) or holds(read_record(self.target).vector, goal, table):
                return 0
            part = (self.number, self.parts)
            return transactions.write(goal, _rows_of(self, self.messages, transactions.partitions, part=part))


@dataclass(frozen=True, slots=True)
class WriteChanges(TopicTask[int]):
    """Writes schema changes of a table of `schema` as messages to `ddl_topic`, unless the target already holds this
    step.

    Without changes, it is an empty commit. The result is the number of messages.
    """

    schema: TableSchema
    section: FormatSection
    ddl_topic: str
    changes: tuple[SchemaChangeEvent, ...] = ()
    ts_ms: int = 0

    def run(self) -> int:
        with TransactionalProducer(self.target) as transactions:
            record = transactions.record()
            if holds(record.vector, self.goal, self.table):
                return 0
            encoder = open_format(self.section).encoder(self.table, self.schema)
            reported = [encoder.encode_change(change, ts_ms=self.ts_ms) for change in self.changes]
            messages = [(self.ddl_topic, None, text) for text in reported if text]
            return transactions.write(self.goal, messages, cut=record.cut)


@dataclass(frozen=True, slots=True)
class Bar(TopicTask[int]):
    """Writes a tombstone, for a table or a part. The result is the number of parts. For a table, `barred` is the number
    of parts that already have tombstones; if the epoch has more parts, nothing is written. For a part, `barred` is
    None.
    """

    barred: int | None

    def run(self) -> int:
        goal, table = self.goal, self.table
        with TransactionalProducer(self.target) as transactions:
            record = transactions.record()
            if holds(record.vector, goal, table):
                return record.cut.most
            if half_written(record.vector, goal):
                raise SinkError(
                    f"{table}: rows of epoch {goal.epoch} were written to topic {self.target.topic} while the epoch "
                    "was given up. Is another driver running with the same state? End it and start again. Where that "
                    "says the same, this topic cannot be continued exactly: route the table to another topic, with "
                    "another pipeline.state and a new snapshot."
                )
            if self.barred is None or record.cut.most <= self.barred:
                transactions.write(goal, (), cut=record.cut)
            return record.cut.most


def renew(target: KafkaTarget) -> None:
    """Write a table's record again, unchanged, because brokers forget old offsets of a group."""
    with TransactionalProducer(target) as transactions:
        record = transactions.record()
        if record.vector is not None:
            transactions.write(record.vector, (), cut=record.cut)


def held(target: KafkaTarget) -> CommitVector | None:
    """Return the vector of a table, after fencing all of its other writers.

    If a part is ahead of the table's record, the vector is at `STEP_APPEND` of the part's epoch. Among such parts, a
    part with rows counts more than a part with a tombstone.
    """
    return _held(target, _fenced)


def seen(target: KafkaTarget) -> CommitVector | None:
    """Return the vector of a table like `held`, but without fencing its writers, so it may change at any time."""
    return _held(target, lambda one: one.check(read_record(one)))


def _fenced(target: KafkaTarget) -> TransactionRecord:
    with TransactionalProducer(target) as transactions:
        return transactions.record()


def _held(target: KafkaTarget, record_of: Callable[[KafkaTarget], TransactionRecord]) -> CommitVector | None:
    record = record_of(target)
    ahead: list[CommitVector] = []
    for number in range(record.cut.most):
        part = record_of(target.part(number)).vector
        if part is not None and (record.vector is None or part.progress > record.vector.progress):
            ahead.append(replace(part, step=STEP_APPEND) if part.step == STEP_LAST else part)
    return min(ahead, key=lambda part: part.step, default=record.vector)


def open_format(section: FormatSection) -> Any:
    """Return the format of ``sink.format``."""
    options = {name: value for name, value in section.items() if name != "type"}
    return load_format(str(section["type"]), key_path="sink.format", **options)


def _rows_of(
    task: TopicTask[Any], messages: EpochMessages, partitions: Callable[[], int], *, part: tuple[int, int] = (0, 1)
) -> Iterator[Message]:
    """Yield the messages of a task's rows, or of those rows whose key is in one part."""
    schema = messages.rows.schema
    encoder = open_format(messages.section).encoder(task.table, schema)
    owner = [OWNER] if messages.by_owner else []
    batches = _of_part(messages.rows.batches([*schema.arrow().names, *STORED, *owner]), schema.primary_key, part)
    if messages.by_owner:
        batches = by_owner(batches, schema.primary_key, target=str(task.table))
    truncation = _Truncation(
        task.table, encoder, partitions, left_out=messages.left_out >= EMPTYING, begins=messages.begins
    )
    return _messages(task.target.topic, encoder, truncation, whole_updates(batches))


def _of_part(
    batches: Iterator[pa.RecordBatch], key: tuple[str, ...], part: tuple[int, int]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows whose key is in the part, in their order. A truncation has no key, so it is in each part. If an
    update keeps the key, its two images stay next to each other.
    """
    number, parts = part
    for batch in batches:
        if parts == 1:
            yield batch
            continue
        ours = partition_numbers(batch, key, parts) == number
        ours |= batch.column("_op").to_numpy() == RowKind.TRUNCATE
        if ours.any():
            yield batch.filter(pa.array(ours))


def no_truncation(encoder: Any, table: TableId, partitions: int) -> str:
    """Return why a topic with so many `partitions` can have no message for a truncation; empty if it can. The message
    has no key, so its order is only defined in a topic with one partition.
    """
    if encoder.encode_change(TruncateTableEvent(table), ts_ms=0) is None:
        return "the format has no message for that"
    return "" if partitions == 1 else "its topic has several partitions, whose messages have no order between them"


@dataclass(frozen=True, slots=True)
class _Truncation:
    """Makes the message for a truncation. If truncations are `left_out`, none has a message.

    If the table `begins`, one truncation is not the source's: it stands before the rows that are read anew, has no
    position in the log, and is left out if there can be no message. The table would otherwise be refused for ever,
    because the refusal of a table ends with a new snapshot. `KafkaSink` warns of it.
    """

    table: TableId
    encoder: Any
    partitions: Callable[[], int]
    left_out: bool = False
    begins: bool = False

    def message(self, row: pa.RecordBatch) -> bytes | None:
        """Return the message; None if the truncation is left out. Raises `ChangeRefusedError` if there can be no
        message for it.
        """
        if self.left_out:
            return None
        if why := no_truncation(self.encoder, self.table, self.partitions()):
            if self.begins and not row.column("_pos")[0].is_valid:
                return None
            raise ChangeRefusedError(
                f"All rows of {self.table} are gone, and {why}. Leave it out with pipeline.exclude_schema_changes = "
                '["truncate_table", "drop_table"], or use canal-json or debezium-json with sink.partitions = 1.'
            )
        ts_ms = row.column("_ts_ms")[0].as_py() or 0
        reported: bytes = self.encoder.encode_change(TruncateTableEvent(self.table), ts_ms=ts_ms)
        return reported

    def cut(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, bytes | None]]:
        """Yield `batch` in pieces, each with the message of the truncation that follows it (None: none follows)."""
        first = 0
        for at in np.flatnonzero(batch.column("_op").to_numpy() == RowKind.TRUNCATE).tolist():
            yield batch.slice(first, at - first), self.message(batch.slice(at, 1))
            first = at + 1
        yield batch.slice(first), None


def _messages(
    topic: str, encoder: Any, truncation: _Truncation, batches: Iterator[pa.RecordBatch]
) -> Iterator[Message]:
    for batch in batches:
        for rows, emptied in truncation.cut(batch):
            encoded = encoder.encode(rows)
            for key, value in zip(encoded.keys.to_pylist(), encoded.values.to_pylist(), strict=True):
                yield topic, key, value
            if emptied is not None:
                yield topic, None, emptied
