"""Kafka's pure parts: where partitions start and stop, who gets which, event time, one schema for many partitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycdc.connectors.kafka.messages import Fetched, binary, within
from raycdc.connectors.kafka.offsets import Partition, new_states
from raycdc.connectors.kafka.plugin import StartMode, StartOptions, StopMode, StopOptions
from raycdc.connectors.kafka.schemas import SchemaRegistry, conform, fits, merge, wider
from raycdc.connectors.kafka.split import PartitionState
from raycdc.connectors.kafka.watermark import Alignment, Watermarks
from raycdc.errors import ConfigError, SchemaError, SourceError, StateError
from raycdc.formats.api import MessageBatch, Origin
from raycdc.model import META_FIELDS, Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.schema import AddColumnEvent, AlterColumnTypeEvent, CreateTableEvent

TABLE = TableId("shop", "product")
INT32, INT64 = LogicalType(TypeKind.INT32), LogicalType(TypeKind.INT64)
FLOAT64, STRING = LogicalType(TypeKind.FLOAT64), LogicalType(TypeKind.STRING)
A, B = ("a", 0), ("a", 1)


def decimal(precision: int, scale: int) -> LogicalType:
    return LogicalType(TypeKind.DECIMAL, precision=precision, scale=scale)


def schema(*columns: tuple[str, LogicalType], key: tuple[str, ...] = ()) -> TableSchema:
    return TableSchema(tuple(Column(name, kind) for name, kind in columns), key)


@dataclass
class FakeCluster:
    """Partitions that hold 10 to 100, the group at 50 of the first."""

    group: dict[Partition, int] = field(default_factory=lambda: {A: 50})

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 10)

    def latest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 100)

    def at_time(self, partitions: Iterable[Partition], timestamp_ms: int) -> dict[Partition, int]:
        return dict.fromkeys(partitions, timestamp_ms)

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {p: self.group[p] for p in partitions if p in self.group}


def found(start: StartOptions | None, stop: StopOptions | None = None) -> list[tuple[int, int | None]]:
    states = new_states(FakeCluster(), [A, B], {"a": "id"}, start=start, stop=stop or StopOptions())
    return [(state.offset, state.stop) for state in states]


@pytest.mark.parametrize(
    ("start", "offsets"),
    [
        (StartOptions(), [10, 10]),
        (StartOptions(mode=StartMode.LATEST), [100, 100]),
        (StartOptions(mode=StartMode.TIMESTAMP, timestamp_ms=33), [33, 33]),
        (StartOptions(mode=StartMode.GROUP_OFFSETS), [50, 10]),
        (StartOptions(mode=StartMode.GROUP_OFFSETS, otherwise="latest"), [50, 100]),
        (StartOptions(mode=StartMode.OFFSETS, offsets={"a:1": 77}), [10, 77]),
        (None, [10, 10]),
    ],
)
def test_a_partition_starts_where_it_is_told_and_a_later_one_at_its_beginning(
    start: StartOptions | None, offsets: list[int]
) -> None:
    assert found(start) == [(offset, None) for offset in offsets]


def test_stops_are_fixed_when_the_partition_is_found() -> None:
    assert found(StartOptions(), StopOptions(mode=StopMode.LATEST)) == [(10, 100), (10, 100)]
    assert found(StartOptions(), StopOptions(mode=StopMode.TIMESTAMP, timestamp_ms=40)) == [(10, 40), (10, 40)]
    given_ = StopOptions(mode=StopMode.OFFSETS, offsets={"a:0": 20, "a:1": 30})
    assert found(StartOptions(), given_) == [(10, 20), (10, 30)]


def test_offsets_that_cannot_be_meant_are_refused_by_name() -> None:
    with pytest.raises(SourceError, match=r"a:1 has no committed offset .*otherwise"):
        found(StartOptions(mode=StartMode.GROUP_OFFSETS, otherwise="fail"))
    with pytest.raises(ConfigError, match=r'start.offsets names "a:9"'):
        found(StartOptions(mode=StartMode.OFFSETS, offsets={"a:9": 1}))
    with pytest.raises(ConfigError, match="where a:1 stops"):
        found(StartOptions(), StopOptions(mode=StopMode.OFFSETS, offsets={"a:0": 20}))
    with pytest.raises(ValueError, match="belong together"):
        StartOptions(mode=StartMode.OFFSETS)


def test_a_state_survives_the_wire_and_a_foreign_or_newer_one_is_refused() -> None:
    state = PartitionState("a", 3, "id", 7, 9, {"version": 1})
    assert PartitionState.from_json(state.to_json()) == state
    assert (state.split_id, state.ended(), state.ended(until=7)) == ("a:3", False, True)
    with pytest.raises(StateError, match="not that of a Kafka source"):
        PartitionState.from_json({"version": 1, "position": {"file": "binlog.1", "pos": 4}})
    with pytest.raises(StateError, match="newer"):
        PartitionState.from_json({**state.to_json(), "version": 9})


def test_an_idle_partition_holds_no_watermark_back() -> None:
    marks = Watermarks(idle_after_s=30)
    for split in ("a:0", "a:1"):
        marks.add(split, now_s=0)
    marks.read("a:0", event_ms=100, now_s=0)
    marks.read("a:1", event_ms=900, now_s=20)
    marks.read("a:1", event_ms=800, now_s=20)
    assert marks.active(now_s=29) == {"a:0": 100, "a:1": 900}
    assert marks.active(now_s=31) == {"a:1": 900}
    assert marks.ahead(500) == {"a:1"}
    # One that is held back is not idle by its own doing.
    marks.waits("a:1", now_s=60)
    assert marks.active(now_s=61) == {"a:1": 900}


def test_nobody_goes_further_than_the_drift_beyond_the_slowest_reader() -> None:
    assert Alignment(max_drift_ms=50).limit_ms is None
    alignment = Alignment(max_drift_ms=50)
    alignment.report(0, {"a:0": 300, "a:1": 200})
    alignment.report(1, {"a:2": 500})
    assert alignment.limit_ms == 250
    alignment.report(0, {})
    assert [alignment.limit_ms] == [550]
    alignment.forget(1)
    assert [alignment.limit_ms] == [None]


@pytest.mark.parametrize(
    ("known", "other", "result"),
    [
        (INT32, INT64, INT64),
        (INT64, INT32, INT64),
        (INT64, FLOAT64, FLOAT64),
        (decimal(5, 2), decimal(6, 1), decimal(7, 2)),
        (INT32, decimal(6, 3), decimal(13, 3)),
        (decimal(38, 0), decimal(38, 10), STRING),
        (INT32, STRING, STRING),
    ],
)
def test_the_wider_of_two_types_holds_the_values_of_both(
    known: LogicalType, other: LogicalType, result: LogicalType
) -> None:
    assert wider(known, other) == result
    assert wider(result, known).arrow() == result.arrow()


def test_merging_tells_what_changed_and_nothing_when_it_fits() -> None:
    one = schema(("id", INT64), ("w", INT32), key=("id",))
    two = schema(("id", INT64), ("w", FLOAT64), ("note", STRING), key=("id",))
    assert merge(TABLE, None, one) == (one, (CreateTableEvent(TABLE, one),))
    merged, changes = merge(TABLE, one, two)
    assert merged == two
    assert changes == (AlterColumnTypeEvent(TABLE, "w", FLOAT64), AddColumnEvent(TABLE, Column("note", STRING)))
    assert merge(TABLE, merged, one) == (merged, ())
    assert (fits(merged, one), fits(one, two), fits(None, one)) == (True, False, False)
    with pytest.raises(SchemaError, match="two primary keys"):
        merge(TABLE, one, schema(("id", INT64), key=("w",)))


def test_a_narrower_batch_is_conformed_and_a_value_that_would_change_is_refused() -> None:
    metas = [pa.array([0], pa.int8()), pa.array([0]), pa.array([0]), pa.array(["p"])]
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1], pa.int32()), *metas], schema=pa.schema([pa.field("id", pa.int32()), *META_FIELDS])
    )
    wide = schema(("note", STRING), ("id", INT64))
    assert conform(TABLE, batch, wide).to_pylist() == [
        {"note": None, "id": 1, "_op": 0, "_seq": 0, "_ts_ms": 0, "_pos": "p"}
    ]
    exact = batch.set_column(0, pa.field("id", pa.int64()), pa.array([2**60 + 1]))
    with pytest.raises(SchemaError, match=r"shop.product: a value of column 'id'"):
        conform(TABLE, exact, schema(("id", FLOAT64)))


def test_schemas_asked_for_in_one_epoch_hold_from_the_next_for_everyone() -> None:
    registry = SchemaRegistry({}, open_epoch=lambda: 5)
    one, two = schema(("id", INT64)), schema(("id", INT64), ("note", STRING))
    first = registry.request(TABLE, one)
    second = registry.request(TABLE, two)
    assert first is not None
    assert second is not None
    assert (first.from_epoch, second.from_epoch, second.schemas) == (6, 6, {TABLE: two})
    assert registry.request(TABLE, one) is None
    assert registry.sealed(5).schemas == {}
    assert registry.tables == {}
    sealed = registry.sealed(6)
    assert sealed.schemas == {TABLE: two}
    assert sealed.changes[TABLE] == (CreateTableEvent(TABLE, one), AddColumnEvent(TABLE, Column("note", STRING)))
    assert registry.tables == {TABLE: two}


def fetched(offsets: list[int], next_offset: int | None = None) -> Fetched:
    batch = MessageBatch(Origin("a", 0), pa.array([b"x"] * len(offsets), pa.large_binary()), np.array(offsets))
    return Fetched("a:0", next_offset or offsets[-1] + 1, batch, 1, 0)


def offsets_of(part: Fetched) -> list[int]:
    return part.batch.offsets.tolist() if part.batch is not None else []


@given(st.lists(st.none() | st.binary(max_size=5), max_size=20))
def test_bytes_become_an_array(values: list[bytes | None]) -> None:
    found = binary(values)
    found.validate(full=True)
    assert found.to_pylist() == values


def test_ends_are_judged_by_positions_where_markers_and_compaction_leave_gaps() -> None:
    gaps = fetched([3, 7, 8, 12])
    assert offsets_of(within(gaps, first=0, end=None)) == [3, 7, 8, 12]
    cut = within(gaps, first=7, end=12)
    assert (offsets_of(cut), cut.next_offset) == ([7, 8], 12)
    # The only message read is beyond the end: everything before it was markers.
    beyond = within(fetched([12]), first=9, end=10)
    assert (offsets_of(beyond), beyond.next_offset) == ([], 10)
    # The log ended with a marker: the position is told without a message.
    marker = within(Fetched("a:0", 13, None, 0, 0), first=9, end=13)
    assert (offsets_of(marker), marker.next_offset) == ([], 13)
