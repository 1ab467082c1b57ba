"""The Kafka reader without a broker: what is sealed, held, let go and refused."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raycdc.connectors.kafka.events import (
    AlignWatermarks,
    SchemaChangeRequest,
    SchemasInForce,
    TableEmptied,
    TablePartition,
)
from raycdc.connectors.kafka.reading.held_partitions import KafkaReaderSettings
from raycdc.connectors.kafka.reading.messages import Fetched, LogEnd, PartitionRecords, PartitionStart
from raycdc.connectors.kafka.reading.reader import KafkaReader
from raycdc.connectors.kafka.reading.statements import DdlMessages
from raycdc.connectors.kafka.split import PartitionState
from raycdc.connectors.mysql.ddl.catalogue import events_of_statement
from raycdc.errors import DataError, SchemaError
from raycdc.formats.api import MessageBatch, Origin
from raycdc.formats.plugins import load_format
from raycdc.model import RowKind, TableId
from raycdc.model.evolution import DropTableEvent
from raycdc.model.rules.mask import Masks
from raycdc.model.rules.transform import Transform, Transforms
from raycdc.source.protocol.api import Availability
from raycdc.source.protocol.metrics import PartitionMetrics, SplitLoad
from raycdc.source.protocol.source_event import (
    AddSplits,
    EpochSealed,
    Message,
    Registered,
    RemoveSplits,
    SealEpoch,
    SourceEvent,
    SourceEventWrapper,
    SplitsRemoved,
)
from raycdc.source.reader.source_reader_base import ReaderContext
from raycdc.source.reader.split_reader import RecordsWithSplitIds, SplitRecords
from raycdc.source.snapshot.handoff.hand_off import LogRows
from raycdc.source.snapshot.log.log_rows import SpilledRows
from raycdc.source.split import PartitionSplit
from raycdc.state.manifests.manifest import Segment
from raycdc.transform.masks import Masking
from raycdc.transform.target_rules import TargetRules
from tests.support.simulation.network import NoThreads

TABLE = TableId("shop", "product")


def maxwell(row: dict[str, Any], kind: str = "insert", **fields: Any) -> bytes:
    message = {"database": "shop", "table": "product", "type": kind, "ts": 1_700_000_000, "data": row, **fields}
    return json.dumps(message).encode()


class Output:
    """Rows of the open epoch in memory."""

    def __init__(self) -> None:
        self.open: list[tuple[str, str, pa.RecordBatch]] = []
        self.sealed: dict[int, list[dict[str, Any]]] = {}
        self.fingerprints: dict[int, set[str]] = {}

    @property
    def open_bytes(self) -> int:
        return sum(int(batch.nbytes) for _, _, batch in self.open)

    def collect(self, table: TableId, *, fingerprint: str, batch: pa.RecordBatch, **_: Any) -> None:
        self.open.append((str(table), fingerprint, batch))

    def publish(self, segments: Sequence[Segment]) -> None:
        raise AssertionError("no chunks here")

    def spill(self, rows: Sequence[LogRows]) -> SpilledRows:
        raise AssertionError("there is room in memory")

    def write_delta(self, rows: Iterable[LogRows], *, fingerprint: str, split_id: str) -> tuple[Segment, ...]:
        raise AssertionError("no chunks here")

    def cut(self, epoch: int) -> tuple[Segment, ...]:
        self.sealed[epoch] = [row for _, _, batch in self.open for row in batch.to_pylist()]
        self.fingerprints[epoch] = {fingerprint for _, fingerprint, _ in self.open}
        self.open = []
        return ()

    def release(self, paths: Sequence[str]) -> None: ...

    def discard(self, segments: Sequence[Segment]) -> None: ...

    def close(self) -> None: ...


class Partitions:
    """A scripted fetcher."""

    def __init__(self) -> None:
        self.fetches: list[RecordsWithSplitIds[PartitionRecords]] = []
        self.calls: list[tuple[str, Any]] = []
        self.additions: dict[str, int] = {}

    def add_splits(self, splits: Sequence[PartitionStart], *, addition: int = 0) -> None:
        for start in splits:
            self.additions[start.split_id] = addition
            self.calls.append(("add", (start.topic, start.partition, start.offset)))

    def remove_splits(self, split_ids: Sequence[str]) -> None:
        self.calls.extend(("remove", split_id) for split_id in split_ids)

    def pause_or_resume_splits(self, *, pause: Sequence[str] = (), resume: Sequence[str] = ()) -> None:
        self.calls.append(("pause", sorted(pause)))
        self.calls.append(("resume", sorted(resume)))

    def bring(self, *batches: PartitionRecords) -> None:
        """The fetcher has these of the first partition, for its present addition."""
        parts = tuple(SplitRecords("m:0", batch, self.additions["m:0"]) for batch in batches)
        self.fetches.append(RecordsWithSplitIds(parts))

    def poll(self) -> RecordsWithSplitIds[PartitionRecords] | None:
        return self.fetches.pop(0) if self.fetches else None

    def close(self) -> None: ...


class Rig:
    """A reader with its surroundings scripted."""

    def __init__(
        self,
        *,
        columns: str | None = "id BIGINT, name STRING, PRIMARY KEY (id)",
        statements: DdlMessages | None = None,
        masks: Masks | None = None,
        rules: TargetRules | None = None,
        format_: str = "maxwell-json",
        **options: Any,
    ) -> None:
        self.output = Output()
        self.partitions = Partitions()
        self.sent: list[Message] = []
        self.now_s = 0.0
        self._format = load_format(format_, columns=columns, **options)
        context = ReaderContext(
            self.output,
            self.sent.append,
            Availability(),
            now_s=lambda: self.now_s,
            epoch_bytes_max=1 << 20,
            threads=NoThreads(),
        )
        self.reader = KafkaReader(
            context,
            self.partitions,
            make_decoder=self._format.decoder,
            settings=KafkaReaderSettings(
                30.0,
                aligned=True,
                dead_letters=options.get("on_error") == "dead-letter",
                masking=Masking(masks or Masks()),
                statements=statements or DdlMessages(),
                rules=rules or TargetRules(),
            ),
            wall_ms=lambda: 1_700_000_001_000,
        )
        self.reader.handle(Registered(1))

    def add(self, *, offset: int = 0, stop: int | None = None, partition: int = 0, until: int | None = None) -> None:
        state = PartitionState("m", partition, "id", offset, stop)
        self.reader.handle(AddSplits((PartitionSplit(state.split_id, state.sealed(), until),)))

    def bring(
        self, *messages: bytes | None, first: int = 0, partition: int = 0, next_offset: int | None = None
    ) -> None:
        self.queue(*messages, first=first, next_offset=next_offset)
        self.work()

    def queue(
        self,
        *messages: bytes | None,
        first: int,
        next_offset: int | None = None,
        keys: Sequence[bytes | None] | None = None,
    ) -> None:
        """The fetcher has these, and the reader has not yet."""
        offsets = np.arange(first, first + len(messages))
        keyed = None if keys is None else pa.array(keys, pa.binary())
        batch = MessageBatch(Origin("m", 0), pa.array(list(messages), pa.large_binary()), offsets, keyed)
        end = next_offset or first + len(messages)
        part = Fetched("m:0", end, batch if messages else None, 10, 1_700_000_000_500, 1_700_000_000_000)
        self.partitions.bring(part)

    def work(self) -> None:
        for _ in range(5):
            self.reader.poll_next()

    def allow(self) -> None:
        """Answer the schema requests as the enumerator does: from the next epoch on."""
        self.hear(SchemasInForce(0, {event.table: event.schema for event in self.asked()}))
        self.work()

    def asked(self) -> list[SchemaChangeRequest]:
        return [event for event in told(self.sent) if isinstance(event, SchemaChangeRequest)]

    def hear(self, event: SourceEvent) -> None:
        self.reader.handle(SourceEventWrapper(event))

    def seal(self, epoch: int) -> EpochSealed:
        self.reader.handle(SealEpoch(epoch))
        self.work()
        return [m for m in self.sent if isinstance(m, EpochSealed) and m.epoch == epoch][-1]

    def offset(self, report: EpochSealed, split: str = "m:0") -> int:
        return PartitionState.of(report.splits[split]).offset


def told(sent: Sequence[Message]) -> list[SourceEvent]:
    return [message.event for message in sent if isinstance(message, SourceEventWrapper)]


def test_a_batch_waits_for_its_schema_and_its_position_with_it() -> None:
    rig = Rig()
    rig.add()
    rig.bring(maxwell({"id": 1, "name": "a"}))
    assert rig.reader.seal_matters == (True, False)
    first = rig.seal(1)
    assert (rig.output.sealed[1], rig.offset(first), first.tables) == ([], 0, {})
    (asked,) = rig.asked()
    rig.hear(SchemasInForce(3, {asked.table: asked.schema}))
    second = rig.seal(2)
    assert (rig.output.sealed[2], rig.offset(second)) == ([], 0)
    rig.work()
    third = rig.seal(3)
    assert [row["id"] for row in rig.output.sealed[3]] == [1]
    assert (rig.offset(third), list(third.tables)) == (1, ["shop.product"])


def test_a_position_that_a_policy_set_back_is_gone_on_from() -> None:
    rig = Rig()
    rig.add(offset=60)
    reset = Fetched("m:0", 20, None, 0, 0, reset=True)
    rig.partitions.bring(reset)
    rig.bring(maxwell({"id": 1, "name": "a"}), first=20)
    rig.allow()
    report = rig.seal(1)
    assert ([row["id"] for row in rig.output.sealed[1]], rig.offset(report)) == ([1], 21)


def test_rows_are_numbered_in_order_and_positions_are_sealed_with_them() -> None:
    rig = Rig()
    rig.add()
    rig.bring(maxwell({"id": 1, "name": "a"}), maxwell({"id": 1, "name": "b"}, "update", old={"name": "a"}))
    rig.allow()
    report = rig.seal(1)
    rows = [(row["_op"], row["name"], row["_seq"]) for row in rig.output.sealed[1]]
    assert rows == [(0, "a", 0), (1, "a", 1), (2, "b", 2)]
    assert rig.offset(report) == 2
    assert report.watermark_ms == 1_700_000_000_000


def test_a_partition_that_is_taken_away_is_answered_after_its_positions_were_sealed() -> None:
    rig = Rig()
    rig.add()
    rig.add(partition=1)
    rig.bring(maxwell({"id": 1, "name": "a"}))
    rig.allow()
    rig.reader.handle(RemoveSplits(("m:0",)))
    rig.bring(maxwell({"id": 2, "name": "b"}), first=1)
    assert not any(isinstance(m, SplitsRemoved) for m in rig.sent)
    assert rig.reader.seal_matters[0]
    report = rig.seal(1)
    assert ([row["id"] for row in rig.output.sealed[1]], rig.offset(report)) == ([1], 1)
    (removed,) = [m for m in rig.sent if isinstance(m, SplitsRemoved)]
    assert rig.sent.index(removed) > rig.sent.index(report)
    assert removed.states["m:0"] is not None
    assert PartitionState.of(removed.states["m:0"]).offset == 1
    assert list(rig.seal(2).splits) == ["m:1"]


def named(number: int) -> bytes:
    return maxwell({"id": number, "name": "a"})


def test_what_was_fetched_of_a_partition_before_it_left_is_dropped_when_it_comes_back() -> None:
    rig = Rig()
    rig.add()
    rig.bring(named(0))
    rig.allow()
    for number in (1, 2, 3):
        rig.queue(named(number), first=number)
    rig.reader.handle(RemoveSplits(("m:0",)))
    rig.reader.poll_next()  # One of the three is dropped while the partition leaves; two still wait in the fetcher.
    assert len(rig.partitions.fetches) == 2
    rig.reader.handle(SealEpoch(1))
    rig.reader.poll_next()
    (removed,) = [m for m in rig.sent if isinstance(m, SplitsRemoved)]
    assert removed.states["m:0"] is not None
    assert PartitionState.of(removed.states["m:0"]).offset == 1
    rig.add(offset=1)
    rig.queue(named(1), named(2), named(3), first=1)
    rig.work()
    report = rig.seal(2)
    assert ([row["id"] for row in rig.output.sealed[2]], rig.offset(report)) == ([1, 2, 3], 4)


def test_a_batch_that_was_held_when_its_partition_left_is_read_again_when_it_comes_back() -> None:
    rig = Rig()
    rig.add()
    rig.bring(named(0))  # Held: its schema is not in force yet.
    rig.queue(named(1), first=1)
    rig.reader.handle(RemoveSplits(("m:0",)))
    rig.reader.handle(SealEpoch(1))
    rig.reader.poll_next()
    rig.add(offset=0)
    rig.queue(named(0), named(1), first=0)
    rig.allow()
    report = rig.seal(2)
    assert ([row["id"] for row in rig.output.sealed[2]], rig.offset(report)) == ([0, 1], 2)


def test_nothing_at_or_beyond_the_end_is_read_and_the_end_asks_for_a_seal() -> None:
    rig = Rig()
    rig.add(stop=2)
    rig.bring(*(maxwell({"id": i, "name": "a"}) for i in range(4)))
    rig.allow()
    report = rig.seal(1)
    assert ([row["id"] for row in rig.output.sealed[1]], rig.offset(report)) == ([0, 1], 2)


def test_a_position_that_only_markers_moved_is_sealed_too() -> None:
    rig = Rig()
    rig.add(stop=5)
    rig.bring(next_offset=5)
    assert rig.reader.heartbeat().dirty
    assert rig.offset(rig.seal(1)) == 5


def test_a_new_field_waits_for_the_next_epoch_and_older_rows_have_null_in_it() -> None:
    rig = Rig(columns=None)
    rig.add()
    rig.bring(maxwell({"id": 1}, primary_key_columns=["id"]))
    rig.allow()
    rig.seal(1)
    rig.bring(maxwell({"id": 2, "note": "x"}, primary_key_columns=["id"]), first=1)
    rig.seal(2)
    rig.allow()
    rig.seal(3)
    assert (rig.output.sealed[2], [row["note"] for row in rig.output.sealed[3]]) == ([], ["x"])
    rig.bring(maxwell({"id": 3, "note": None}, primary_key_columns=["id"]), first=2)
    rig.seal(4)
    assert [(row["id"], row["note"]) for row in rig.output.sealed[4]] == [(3, None)]


def test_a_bad_message_ends_the_job_by_name_after_what_came_before_it() -> None:
    rig = Rig()
    rig.add()
    rig.bring(maxwell({"id": 1, "name": "a"}))
    rig.allow()
    with pytest.raises(Exception, match=r"m.0.*2.*corrupt"):
        rig.bring(maxwell({"id": 2, "name": "b"}), b"{", first=1)
    assert [row["id"] for _, _, batch in rig.output.open for row in batch.to_pylist()] == [1, 2]


def test_a_bad_message_becomes_a_row_where_dead_letters_are_kept() -> None:
    rig = Rig(on_error="dead-letter")
    rig.add()
    rig.bring(b"{", maxwell({"id": 1, "name": "a"}))
    rig.allow()
    rig.seal(1)
    letters = [row for row in rig.output.sealed[1] if "reason" in row]
    assert [(row["topic"], row["offset"], row["value"]) for row in letters] == [("m", 0, b"{")]
    assert "corrupt" in letters[0]["reason"]


DROP = json.dumps(
    {"type": "table-drop", "database": "shop", "table": "product", "ts": 1, "sql": "DROP TABLE product"}
).encode()


def test_a_dropped_table_is_a_row_in_its_place_and_told_with_the_seal() -> None:
    rig = Rig()
    rig.add()
    rig.bring(maxwell({"id": 1, "name": "a"}), DROP, maxwell({"id": 2, "name": "b"}))
    rig.allow()
    report = rig.seal(1)
    rows = [(row["_op"], row["id"], row["_pos"]) for row in rig.output.sealed[1]]
    assert rows == [(RowKind.INSERT, 1, None), (RowKind.TRUNCATE, None, "m:0:1:0"), (RowKind.INSERT, 2, None)]
    before = told(rig.sent[: rig.sent.index(report)])
    product = TableId("shop", "product")
    assert [event for event in before if isinstance(event, TablePartition | TableEmptied)] == [
        TablePartition(product, "m:0"),
        TableEmptied(product, "m:0", 1, DropTableEvent(product)),
    ]


def test_a_drop_that_is_left_out_or_of_a_table_without_rows_does_nothing() -> None:
    rig = Rig(statements=DdlMessages(left_out=frozenset({"drop_table"})))
    rig.add()
    rig.bring(DROP, maxwell({"id": 1, "name": "a"}), DROP)
    rig.allow()
    report = rig.seal(1)
    assert ([row["id"] for row in rig.output.sealed[1]], rig.offset(report)) == ([1], 3)


def altered(sql: str) -> bytes:
    message = {"type": "table-alter", "database": "shop", "table": "product", "ts": 1, "sql": f"ALTER TABLE {sql}"}
    return json.dumps(message).encode()


def test_a_dropped_column_cannot_come_back_also_after_a_restart() -> None:
    rig = Rig(statements=DdlMessages(events_of_statement))
    rig.add()
    rig.bring(maxwell({"id": 1, "name": "a"}), altered("product DROP COLUMN name"), maxwell({"id": 2}))
    rig.allow()
    report = rig.seal(1)
    again = Rig(statements=DdlMessages(events_of_statement))
    again.reader.handle(AddSplits((PartitionSplit("m:0", report.splits["m:0"], None),)))
    again.bring(maxwell({"id": 3}), first=3)
    again.allow()
    again.seal(1)
    assert [row["id"] for row in again.output.sealed[1]] == [3]
    with pytest.raises(SchemaError, match=r"ADD COLUMN name.*lost their value in 'name' when it was dropped"):
        again.bring(maxwell({"id": 4}), altered("product ADD COLUMN name TEXT"), first=4)


def test_rows_behind_a_dropped_column_do_not_have_its_default() -> None:
    rig = Rig(columns=None, statements=DdlMessages(events_of_statement))
    rig.add()
    rig.bring(maxwell({"id": 1}))
    rig.allow()
    added = altered("product ADD COLUMN n INT NOT NULL DEFAULT 5")
    rig.bring(added, maxwell({"id": 2}), altered("product DROP COLUMN n"), maxwell({"id": 3}), first=1)
    with_default = next(event for event in rig.asked() if len(event.schema.columns) == 2)
    rig.hear(SchemasInForce(0, {with_default.table: with_default.schema}))
    rig.work()
    rig.seal(1)
    assert [(row["id"], row.get("n")) for row in rig.output.sealed[1]] == [(1, None), (2, 5), (3, None)]


def test_a_default_that_another_partitions_rows_came_before_is_refused() -> None:
    rig = Rig(statements=DdlMessages(events_of_statement))
    rig.add()
    rig.bring(maxwell({"id": 1, "name": "a"}))
    rig.allow()
    rig.bring(altered("product ADD COLUMN qty INT NOT NULL DEFAULT 5"), first=1)
    asked = rig.asked()[-1]
    columns = tuple(replace(column, default=None) for column in asked.schema.columns)
    rig.hear(SchemasInForce(0, {asked.table: replace(asked.schema, columns=columns)}))
    with pytest.raises(SchemaError, match=r"ADD COLUMN qty.*rows with 'qty' came before it"):
        rig.work()


def test_a_statement_that_cannot_be_followed_is_refused_by_name() -> None:
    rig = Rig(statements=DdlMessages(events_of_statement))
    rig.add()
    rig.bring(maxwell({"id": 1, "name": "a"}))
    rig.allow()
    sql = "ALTER TABLE product RENAME COLUMN name TO title"
    renamed = {"type": "table-alter", "database": "shop", "table": "product", "ts": 1, "sql": sql}
    with pytest.raises(SchemaError, match=r"shop.product: .*RENAME COLUMN name TO title.*format.ddl"):
        rig.bring(json.dumps(renamed).encode(), first=1)


@pytest.mark.parametrize("include", [(), ("shop.product",)])
def test_a_dropped_database_is_refused_unless_no_table_of_it_was_read(include: tuple[str, ...]) -> None:
    rig = Rig(statements=DdlMessages(events_of_statement), include=include)
    rig.add()
    sql = {"type": "database-drop", "database": "shop", "ts": 1, "sql": "DROP DATABASE IF EXISTS shop"}
    dropped = json.dumps(sql).encode()
    rig.bring(dropped, maxwell({"id": 1, "name": "a"}))
    rig.allow()
    report = rig.seal(1)
    assert ([row["_op"] for row in rig.output.sealed[1]], rig.offset(report)) == ([RowKind.INSERT], 2)
    with pytest.raises(SchemaError, match=r"DROP DATABASE.*all tables of shop are dropped at once"):
        rig.bring(dropped, first=2)


KEYED = b'{"id": 1}'
ROW = b'{"id": 1, "name": "a"}'
SOFT, FILTERED, BY_KEY = {"on_delete": "soft"}, {"filter": "name <> 'x'"}, {"filter": "id > 0"}


@pytest.mark.parametrize(
    ("transform", "upsert", "refused"),
    [
        (SOFT, True, "on_delete = "),
        (FILTERED, False, "filter: whether a changelog has a deletion"),
        (FILTERED, True, ""),
        (BY_KEY, False, ""),
        ({}, False, ""),
    ],
)
def test_a_tombstone_alone_is_refused_where_a_target_needs_the_row_before(
    transform: dict[str, str], upsert: bool, refused: str
) -> None:
    transforms = Transforms([Transform(table="topics.m", **transform)] if transform else [])  # type: ignore[arg-type]
    rig = Rig(format_="json", rules=TargetRules(transforms, upsert=upsert))
    rig.add()
    rig.queue(ROW, first=0, keys=[KEYED])
    rig.work()
    rig.allow()
    rig.seal(1)
    rig.queue(None, first=1, keys=[KEYED])
    if refused:
        with pytest.raises(DataError, match=rf"(?s)m:0 has a tombstone without the delete before it.*{refused}"):
            rig.work()
        assert rig.offset(rig.seal(2)) == 1
        return
    rig.work()
    rig.seal(2)
    assert [(row["_op"], row["id"]) for row in rig.output.sealed[2]] == [(RowKind.DELETE, 1)]


def test_a_partition_that_is_too_far_ahead_waits() -> None:
    rig = Rig()
    rig.add()
    rig.bring(maxwell({"id": 1, "name": "a"}))
    rig.allow()
    rig.hear(AlignWatermarks(1_699_999_999_000))
    rig.work()
    rig.hear(AlignWatermarks(1_700_000_009_000))
    rig.work()
    assert [call for call in rig.partitions.calls if call[1] == ["m:0"]] == [("pause", ["m:0"]), ("resume", ["m:0"])]


def test_a_partition_that_ended_while_it_waited_does_not_go_on() -> None:
    rig = Rig()
    rig.add(stop=2)
    rig.bring(named(0))
    rig.allow()
    rig.hear(AlignWatermarks(1_699_999_999_000))
    rig.work()
    rig.bring(named(1), first=1)  # Fetched before it had to wait.
    rig.hear(AlignWatermarks(1_700_000_009_000))
    rig.work()
    about = [call for call in rig.partitions.calls if call[1] in ("m:0", ["m:0"])]
    assert about == [("pause", ["m:0"]), ("remove", "m:0")]


def test_the_figures_every_source_reports() -> None:
    rig = Rig()
    rig.add()
    rig.bring(maxwell({"id": 1, "name": "a"}))
    rig.allow()
    rig.partitions.bring(LogEnd(11))
    rig.now_s = 2.0
    rig.work()
    assert rig.reader.metrics().partitions == PartitionMetrics(
        fetch_lag_ms=500,
        emit_lag_ms=1000,
        idle_ms=2000,
        watermark_lag_ms=1000,
        pending_records=10,
        loads={"m:0": SplitLoad(0.0)},
    )
