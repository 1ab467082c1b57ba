"""The Kafka sink's transactions as stage tasks, each harmless to run twice (`transactions` says why).

| task | under the identity of | writes |
|---|---|---|
| `WriteEpoch` | the table | all rows of an epoch, unless its record says that the epoch is in parts |
| `PlanParts` | the table | no message; the epoch's number of parts, unless it was planned before |
| `WritePart` | a part | the rows of its keys |
| `WriteChanges` | the table | schema changes, or no message: to end an epoch in parts, or to claim a topic |
| `Bar` | the table, or a part | no message; the epoch can never be written afterwards |

*The table's record decides about the epoch*: it is at `STEP_LAST` when every part is. An epoch is planned before its
first part is written, so reading the table's record after fencing its writers shows every part that may exist; and the
plan stays even if a later version or configuration would choose another one. A part reads the table's record after it
fenced its own writers. Ending the epoch in another way (barring it, or going on without lost rows) does that for each
part first, so a part that is suspended meanwhile finds one of the two records, or is fenced.
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
from raycdc.segments.bad_rows import whole_updates
from raycdc.segments.partitions import partition_numbers
from raycdc.segments.tasks import ResultT_co, StageTask
from raycdc.sinks.kafka.transactions import (
    Cut,
    KafkaTarget,
    Message,
    TransactionalProducer,
    TransactionRecord,
    read_record,
)
from raycdc.sinks.steps import half_written, holds
from raycdc.sinks.table_input import TableInput
from raycdc.state.manifests.manifest import Segment
from raycdc.state.recovery import STEP_APPEND, STEP_LAST, STEP_TOMBSTONE, CommitVector

#: ``sink.format``: its type and the options of that type.
FormatSection = Mapping[str, JsonValue]

#: Schema changes that are also a row among the rows. Sources write no such row for a change that is left out, so each
#: could be left out alone; but the row does not say which change it is, so here both must be left out.
EMPTYING = frozenset({"truncate_table", "drop_table"})

_STORED = ("_op", "_seq", "_ts_ms", "_pos")


@dataclass(frozen=True, slots=True)
class TopicTask(StageTask[ResultT_co]):
    """A transaction that brings `target`, a topic of `table`, to `goal`, unless it is there already."""

    target: KafkaTarget
    goal: CommitVector
    table: TableId


@dataclass(frozen=True, slots=True)
class EpochMessages:
    """The rows of an epoch as messages of the format in `section` (``sink.format``).

    `left_out` are schema changes without a message.
    """

    rows: TableInput
    section: FormatSection
    left_out: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class WrittenMessages:
    """The number of messages written.

    Or, if the epoch is in several `parts`, their number, and no message was written.
    """

    messages: int
    parts: int = 1


@dataclass(frozen=True, slots=True)
class WriteEpoch(TopicTask[WrittenMessages]):
    """Writes the rows of one table and epoch as messages, unless the target holds them already.

    If the epoch was planned in parts before, nothing is written and their number is returned.
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
    """Records that an epoch is in `parts`.

    The result is the number of parts recorded before, or now; 0 if the target holds the epoch. `goal` is the epoch's at
    `STEP_SCHEMA`: no row of it is written.
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
    """Writes the rows of the keys of part `number` of `parts`, unless the part or the table holds them already.

    The result is the number of messages written.
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
            # The table's record is read last: see the module's docstring. A tombstone counts once the table has it too.
            barred = ours is not None and ours.progress == (goal.epoch, STEP_TOMBSTONE)
            if (holds(ours, goal, table) and not barred) or holds(read_record(self.target).vector, goal, table):
                return 0
            part = (self.number, self.parts)
            return transactions.write(goal, _rows_of(self, self.messages, transactions.partitions, part=part))


@dataclass(frozen=True, slots=True)
class WriteChanges(TopicTask[int]):
    """Schema changes of a table of `schema` as messages to `ddl_topic`, unless the target holds them already; none at
    all is an empty commit. The result is how many messages were written.
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
    """Write a tombstone. Of a table (not `barred` None) only after all its parts' were: the result is how many parts
    there are, and nothing was written where these are more.
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
    """Write a table's record again unchanged, because brokers forget old offsets of a group."""
    with TransactionalProducer(target) as transactions:
        record = transactions.record()
        if record.vector is not None:
            transactions.write(record.vector, (), cut=record.cut)


def held(target: KafkaTarget) -> CommitVector | None:
    """Return the vector of a table, after fencing all of its other writers.

    It is at `STEP_APPEND` if parts hold more than the table's record; rows take precedence over tombstones.
    """
    return _held(target, _fenced)


def seen(target: KafkaTarget) -> CommitVector | None:
    """Return the result of `held` without fencing; it may change immediately."""
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
    """The format of ``sink.format``."""
    options = {name: value for name, value in section.items() if name != "type"}
    return load_format(str(section["type"]), key_path="sink.format", **options)


def _rows_of(
    task: TopicTask[Any], messages: EpochMessages, partitions: Callable[[], int], *, part: tuple[int, int] = (0, 1)
) -> Iterator[Message]:
    """The messages of a task's rows, or of one part of their keys."""
    schema = messages.rows.schema
    encoder = open_format(messages.section).encoder(task.table, schema)
    batches = _of_part(messages.rows.batches([*schema.arrow().names, *_STORED]), schema.primary_key, part)
    truncation = _Truncation(task.table, encoder, partitions, messages.left_out >= EMPTYING)
    return _messages(task.target.topic, encoder, truncation, whole_updates(batches))


def _of_part(
    batches: Iterator[pa.RecordBatch], key: tuple[str, ...], part: tuple[int, int]
) -> Iterator[pa.RecordBatch]:
    """The rows whose key is of the part, in their order; a row without a key (a truncation) is of each.

    Both halves of an update that keeps its key stay side by side.
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


@dataclass(frozen=True, slots=True)
class _Truncation:
    """The message for a row that says that all rows are gone.

    It has no key, so its order holds only in one partition.
    """

    table: TableId
    encoder: Any
    partitions: Callable[[], int]
    left_out: bool = False

    def message(self, row: pa.RecordBatch) -> bytes | None:
        """Return the message; None if such changes are left out."""
        if self.left_out:
            return None
        reported: bytes | None = self.encoder.encode_change(
            TruncateTableEvent(self.table), ts_ms=row.column("_ts_ms")[0].as_py() or 0
        )
        why = "the format has no message for that" if reported is None else ""
        if not why and self.partitions() != 1:
            why = "its topic has several partitions, whose messages have no order between them"
        if reported is None or why:
            raise ChangeRefusedError(
                f"All rows of {self.table} are gone, and {why}. Leave it out with pipeline.exclude_schema_changes = "
                '["truncate_table", "drop_table"], or use canal-json or debezium-json with sink.partitions = 1.'
            )
        return reported

    def cut(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, bytes | None]]:
        """`batch` in pieces, each with the message of the truncation that follows it, if one does."""
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
