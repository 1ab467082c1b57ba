"""Messages of the Kafka sink without a broker: tables that were emptied, and transactions that fail."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from raycdc.connectors.kafka.enumeration.schemas import emptied_row
from raycdc.errors import SinkError, SinkUnavailableError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.segments.access import HERE
from raycdc.sinks.kafka import tasks as kafka_tasks
from raycdc.sinks.kafka import transactions as kafka_transactions
from raycdc.sinks.kafka.tasks import EpochMessages, WriteEpoch
from raycdc.sinks.kafka.transactions import TransactionalProducer, TransactionRecord, identity_of
from raycdc.sinks.task_inputs import TableInput
from raycdc.state.recovery import CommitVector

TABLE = TableId("shop", "p")
SCHEMA = TableSchema((Column("id", LogicalType(TypeKind.INT64)),), ("id",))


def test_the_record_of_a_table_is_never_that_of_a_part_of_another_one() -> None:
    """In a fixed topic a table may have any name."""
    part = kafka_transactions.KafkaTarget({}, "all", identity_of("raycdc:p:1", TableId("shop", "t"))).part(0)
    assert part.identity == "raycdc:p:1:shop.t:0"
    assert identity_of("raycdc:p:1", TableId("shop", "t:0")) != part.identity
    assert identity_of("raycdc:p:1", TableId("shop", "t:a")) == "raycdc:p:1:shop.t:a"
    assert len(identity_of("raycdc:p:1", TableId("shop", "t" * 300))) < 200


class Target:
    """A topic with three partitions that keeps what is written."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def record(self) -> TransactionRecord:
        return TransactionRecord()

    def partitions(self) -> int:
        return 3

    def write(self, _vector: CommitVector, messages: Any, **_: Any) -> int:
        self.messages += messages
        return len(self.messages)


def write_truncation(
    monkeypatch: pytest.MonkeyPatch, *, left_out: Collection[str] = (), begins: bool = False, at: str | None = "m:0:0:0"
) -> list[Any]:
    target = Target()
    row: pa.RecordBatch = emptied_row(SCHEMA, ts_ms=1, at=at or "")
    if at is None:
        row = row.set_column(row.schema.get_field_index("_pos"), row.schema.field("_pos"), pa.nulls(1, pa.string()))
    monkeypatch.setattr(kafka_tasks, "TransactionalProducer", lambda _: target)
    monkeypatch.setattr(TableInput, "batches", lambda *_, **__: iter([row]))
    into = kafka_transactions.KafkaTarget({}, "t", "i")
    messages = EpochMessages(TableInput((), SCHEMA, HERE), {"type": "canal-json"}, frozenset(left_out), begins=begins)
    WriteEpoch(into, CommitVector(1, 7, 1), TABLE, messages).run()
    return target.messages


def test_an_emptied_table_that_no_message_can_tell_is_refused_unless_both_changes_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for left_out in ((), ("truncate_table",), ("drop_table",)):
        with pytest.raises(SinkError, match="exclude_schema_changes"):
            write_truncation(monkeypatch, left_out=left_out)
    assert write_truncation(monkeypatch, left_out=("truncate_table", "drop_table")) == []


def test_a_table_that_is_read_anew_needs_no_message_for_its_own_truncation(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be parked again for ever: each new snapshot begins with one."""
    assert write_truncation(monkeypatch, begins=True, at=None) == []
    with pytest.raises(SinkError, match="exclude_schema_changes"):
        write_truncation(monkeypatch, begins=True)
    with pytest.raises(SinkError, match="exclude_schema_changes"):
        write_truncation(monkeypatch, at=None)


class Client:
    """A producer and consumer of which one call fails."""

    def __init__(self, fails: str, error: KafkaError) -> None:
        self._fails = fails
        self._error = error
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any) -> Any:
            self.calls.append(name)
            if name == self._fails:
                raise KafkaException(self._error)

        return call


def one_message(error: Exception | None = None) -> Iterator[tuple[str, bytes | None, bytes | None]]:
    yield "t", b"k", b"v"
    if error is not None:
        raise error


def transactions_of(monkeypatch: pytest.MonkeyPatch, client: Client) -> TransactionalProducer:
    monkeypatch.setattr(kafka_transactions, "producer_client", lambda _, **__: client)
    monkeypatch.setattr(kafka_transactions, "consumer_client", lambda _, **__: client)
    return TransactionalProducer(kafka_transactions.KafkaTarget({}, "t", "i"))


@pytest.mark.parametrize(
    ("fails", "abortable"), [("produce", False), ("send_offsets_to_transaction", False), ("commit_transaction", True)]
)
def test_a_transaction_that_fails_is_ended_before_the_error_is_told(
    monkeypatch: pytest.MonkeyPatch, fails: str, abortable: bool
) -> None:
    client = Client(fails, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, txn_requires_abort=abortable))
    with pytest.raises(SinkError, match="TOPIC_AUTHORIZATION_FAILED"):
        transactions_of(monkeypatch, client).write(CommitVector(1, 7, 1), one_message())
    assert client.calls[-2:] == [fails, "abort_transaction"]


def test_a_transaction_whose_rows_cannot_be_read_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client("", KafkaError(KafkaError._FAIL))
    with pytest.raises(OSError, match="gone"):
        transactions_of(monkeypatch, client).write(CommitVector(1, 7, 1), one_message(OSError("gone")))
    assert client.calls[-1] == "abort_transaction"


def test_a_commit_of_unknown_outcome_is_not_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client("commit_transaction", KafkaError(KafkaError._TIMED_OUT))
    with pytest.raises(SinkError):
        transactions_of(monkeypatch, client).write(CommitVector(1, 7, 1), one_message())
    assert "abort_transaction" not in client.calls


def test_a_transaction_that_the_broker_ended_because_it_took_too_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, str] = {}
    client = Client("commit_transaction", KafkaError(KafkaError._FENCED))

    def producer_client(properties: dict[str, str], **_: Any) -> Client:
        asked.update(properties)
        return client

    monkeypatch.setattr(kafka_transactions, "producer_client", producer_client)
    monkeypatch.setattr(kafka_transactions, "consumer_client", lambda _, **__: client)
    for open_s, said in ((59.0, "another process took over"), (61.0, r"open for 61 s.*\(60000\).*Set a larger one")):
        moments = iter((100.0, 100.0 + open_s))
        monkeypatch.setattr(kafka_transactions, "time", SimpleNamespace(monotonic=lambda m=moments: next(m)))
        transactions = TransactionalProducer(
            kafka_transactions.KafkaTarget({"transaction.timeout.ms": "60000"}, "t", "i")
        )
        with pytest.raises(SinkError, match=said):
            transactions.write(CommitVector(1, 7, 1), one_message())
    assert asked["transaction.timeout.ms"] == "60000"


def test_a_broker_that_does_not_answer_is_worth_waiting_for(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client("begin_transaction", KafkaError(KafkaError._ALL_BROKERS_DOWN))
    with pytest.raises(SinkUnavailableError):
        transactions_of(monkeypatch, client).write(CommitVector(1, 7, 1), one_message())
