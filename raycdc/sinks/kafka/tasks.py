"""The Kafka sink's transactions as stage tasks, each harmless to run twice (`transactions` says why).

| task | under the identity of | writes |
|---|---|---|
| `write_epoch` | the table | all rows of an epoch, unless its record says that the epoch is in parts |
| `plan_parts` | the table | no message; that the epoch is in so many parts, unless it was said before |
| `write_part` | a part | the rows of its keys |
| `write_changes` | the table | schema changes, or none: the end of an epoch in parts, a claim |
| `bar` | the table, or a part | no message: nobody can write the epoch any more |

*The table's record is the table's epoch*: it is at `STEP_LAST` when every part is. An epoch is planned before its
first part, so whoever reads the table's record, having fenced its writers, knows of every part that may be there; and
the plan stays whatever a later version or configuration would choose. A part looks at the table's record after it
fenced its own writers: whoever ended the epoch otherwise (barred it, or went on without rows that are lost) did that
for each part first, so a part that sleeps through it finds one of the two records, or is fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from raycdc.bridge.access import SegmentAccess
from raycdc.bridge.bad_rows import whole_updates
from raycdc.bridge.partitions import partition_numbers
from raycdc.checkpoint.recovery import STEP_APPEND, STEP_LAST, STEP_TOMBSTONE, CommitVector
from raycdc.errors import ChangeRefusedError, SinkError
from raycdc.formats.plugins import load_format
from raycdc.model import RowKind, TableId, TableSchema
from raycdc.schema import TruncateTableEvent, event_from_json
from raycdc.sinks.kafka.transactions import Cut, Record, Target, Transactions, look
from raycdc.sinks.steps import holds
from raycdc.sinks.tasks import read_inputs

#: Schema changes that are such a row among the rows. Sources write none for one that is left out, so each can be by
#: itself; the row does not say which it is, or whether its table begins again, so here it takes both.
EMPTYING = frozenset({"truncate_table", "drop_table"})

_STORED = ("_op", "_seq", "_ts_ms", "_pos")


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

    `left_out` are the schema changes that nobody wants to be told of. Where the epoch was planned in parts before,
    nothing is written: the answer says in how many.
    """
    goal = CommitVector(*vector)
    with Transactions(Target(**target)) as transactions:
        record = transactions.record()
        if holds(record.vector, goal, table):
            return {"messages": 0, "parts": 1}
        if record.cut.of(goal.epoch) > 1:
            return {"messages": 0, "parts": record.cut.parts}
        messages = _rows_of(target, table, schema, format, inputs, node, token, left_out, transactions.partitions)
        return {"messages": transactions.write(goal, messages, cut=record.cut), "parts": 1}


def plan_parts(target: dict[str, Any], vector: list[int], table: str, parts: int) -> dict[str, Any]:
    """Say that an epoch is in `parts`, or what was said of it before; 0 where the target holds it.

    `vector` is the epoch's at `STEP_SCHEMA`: no row of it is written.
    """
    goal = CommitVector(*vector)
    with Transactions(Target(**target)) as transactions:
        record = transactions.record()
        if holds(record.vector, CommitVector(goal.epoch, STEP_LAST, goal.generation), table):
            return {"parts": 0}
        if record.cut.epoch != goal.epoch:
            cut = Cut(goal.epoch, parts, max(record.cut.most, parts))
            transactions.write(goal, (), cut=cut)
            return {"parts": parts}
        return {"parts": record.cut.parts}


def write_part(
    target: dict[str, Any],
    vector: list[int],
    table: str,
    schema: dict[str, Any],
    format: dict[str, Any],  # noqa: A002 - the configuration's own word
    inputs: list[dict[str, Any]],
    node: str,
    token: str,
    part: tuple[int, int],
    left_out: Collection[str] = (),
) -> dict[str, Any]:
    """The rows of the keys of the `part`-th of so many parts, unless the part or the table holds them already."""
    goal = CommitVector(*vector)
    number, parts = part
    whole = Target(**target)
    with Transactions(whole.part(number)) as transactions:
        ours = transactions.held()
        # The table's record is read last: see the module's docstring. A tombstone counts once the table has it, too.
        barred = ours is not None and ours.place == (goal.epoch, STEP_TOMBSTONE)
        if (holds(ours, goal, table) and not barred) or holds(look(whole).vector, goal, table):
            return {"messages": 0}
        messages = _rows_of(
            target, table, schema, format, inputs, node, token, left_out, transactions.partitions, part=(number, parts)
        )
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
        record = transactions.record()
        if holds(record.vector, goal, table):
            return {"messages": 0}
        encoder = open_format(format).encoder(TableId.parse(table), TableSchema.from_json(schema))
        told = [encoder.encode_change(event_from_json(change), ts_ms=ts_ms) for change in changes]
        messages = [(ddl_topic, None, text) for text in told if text]
        return {"messages": transactions.write(goal, messages, cut=record.cut)}


def bar(target: dict[str, Any], vector: list[int], table: str, barred: int | None) -> dict[str, Any]:
    """Write a tombstone. Of a table (not `barred` None) only after all its parts' were: the answer says how many parts
    there are, and nothing was written where these are more.
    """
    goal = CommitVector(*vector)
    with Transactions(Target(**target)) as transactions:
        record = transactions.record()
        if holds(record.vector, goal, table):
            return {"most": record.cut.most}
        if record.vector is not None and record.vector.epoch == goal.epoch and record.vector.step >= STEP_APPEND:
            raise SinkError(
                f"{table}: rows of epoch {goal.epoch} were written to topic {target['topic']} while the epoch was "
                "given up. Is another driver running with the same state? End it and start again. Where that says the "
                "same, this topic cannot be continued exactly: route the table to another topic, with another "
                "pipeline.state and a new snapshot."
            )
        if barred is None or record.cut.most <= barred:
            transactions.write(goal, (), cut=record.cut)
        return {"most": record.cut.most}


def renew(target: Target) -> None:
    """Write a table's record as it is once more: brokers forget a group's offsets of long ago."""
    with Transactions(target) as transactions:
        record = transactions.record()
        if record.vector is not None:
            transactions.write(record.vector, (), cut=record.cut)


def held(target: Target) -> CommitVector | None:
    """What a table holds, after fencing everybody who might still write to it.

    `STEP_APPEND` where parts hold more than the table's record; rows count more than tombstones beside them.
    """
    return _held(target, _fenced)


def seen(target: Target) -> CommitVector | None:
    """What `held` would say now, without fencing anybody: it may change the next moment."""
    return _held(target, look)


def _fenced(target: Target) -> Record:
    with Transactions(target) as transactions:
        return transactions.record()


def _held(target: Target, record_of: Callable[[Target], Record]) -> CommitVector | None:
    record = record_of(target)
    ahead: list[CommitVector] = []
    for number in range(record.cut.most):
        part = record_of(target.part(number)).vector
        if part is not None and (record.vector is None or part.place > record.vector.place):
            ahead.append(replace(part, step=STEP_APPEND) if part.step == STEP_LAST else part)
    return min(ahead, key=lambda part: part.step, default=record.vector)


def open_format(section: Mapping[str, Any]) -> Any:
    """The format of ``sink.format``."""
    return load_format(section["type"], place="sink.format", **{k: v for k, v in section.items() if k != "type"})


def _rows_of(
    target: dict[str, Any],
    table: str,
    schema: dict[str, Any],
    format: dict[str, Any],  # noqa: A002 - the configuration's own word
    inputs: list[dict[str, Any]],
    node: str,
    token: str,
    left_out: Collection[str],
    partitions: Callable[[], int],
    *,
    part: tuple[int, int] = (0, 1),
) -> Iterator[tuple[str, bytes | None, bytes | None]]:
    """The messages of `inputs`, or of one part of their keys."""
    described = TableSchema.from_json(schema)
    encoder = open_format(format).encoder(TableId.parse(table), described)
    names = [*(column.name for column in described.columns), *_STORED]
    batches = _of_part(read_inputs(inputs, names, access=SegmentAccess(node, token)), described.primary_key, part)
    truncation = _Truncation(TableId.parse(table), encoder, partitions, set(left_out) >= EMPTYING)
    return _messages(target["topic"], encoder, truncation, whole_updates(batches))


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
            raise ChangeRefusedError(
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
