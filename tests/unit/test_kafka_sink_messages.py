"""Messages of the Kafka sink without a broker: tables that were emptied, and transactions that fail."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Self

import pyarrow as pa
import pytest

from raycdc.checkpoint.recovery import CommitVector
from raycdc.connectors.kafka.schemas import emptied_row
from raycdc.errors import SinkError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.sinks import kafka_tasks
from raycdc.sinks.kafka_tasks import write_epoch

TABLE = TableId("shop", "p")
SCHEMA = TableSchema((Column("id", LogicalType(TypeKind.INT64)),), ("id",))


class Target:
    """A topic with three partitions that keeps what is written."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def held(self) -> None: ...

    def partitions(self) -> int:
        return 3

    def write(self, _vector: CommitVector, messages: Any) -> int:
        self.messages += messages
        return len(self.messages)


def write_truncation(monkeypatch: pytest.MonkeyPatch, *, left_out: Collection[str]) -> list[Any]:
    target = Target()
    row: pa.RecordBatch = emptied_row(SCHEMA, ts_ms=1, place="m:0:0:0")
    monkeypatch.setattr(kafka_tasks, "Transactions", lambda _: target)
    monkeypatch.setattr(kafka_tasks, "read_inputs", lambda *_, **__: iter([row]))
    into = {"properties": {}, "topic": "t", "identity": "i"}
    write_epoch(into, [1, 7, 1], str(TABLE), SCHEMA.to_json(), {"type": "canal-json"}, [], "n", "t", left_out=left_out)
    return target.messages


def test_an_emptied_table_that_no_message_can_tell_is_refused_unless_both_changes_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for left_out in ((), ("truncate_table",), ("drop_table",)):
        with pytest.raises(SinkError, match="exclude_schema_changes"):
            write_truncation(monkeypatch, left_out=left_out)
    assert write_truncation(monkeypatch, left_out=("truncate_table", "drop_table")) == []
