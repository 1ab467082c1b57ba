"""Kafka's pure parts: where partitions start and stop, who gets which, event time, one schema for many partitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycdc.connectors.kafka.cluster.discovery import OffsetRanges, Partition, Policy, in_range, new_states
from raycdc.connectors.kafka.enumeration.schemas import SchemaRegistry, conform, fits, merge, wider
from raycdc.connectors.kafka.plugin import KafkaSourceConfig, StartMode, StartOptions, StopMode, StopOptions
from raycdc.connectors.kafka.reading.messages import Fetched, binary, within
from raycdc.connectors.kafka.split import DecoderState, PartitionState
from raycdc.connectors.kafka.watermark import Alignment, Watermarks
from raycdc.errors import ConfigError, LogLostError, SchemaError, SourceError, StateError
from raycdc.formats.api import MessageBatch, Origin
from raycdc.model import META_FIELDS, Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import AddColumnEvent, AlterColumnTypeEvent, CreateTableEvent

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
    """Partitions that hold 10 to 100 (110 with open transactions), the group at 50 of the first."""

    group: dict[Partition, int] = field(default_factory=lambda: {A: 50})

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 10)

    def latest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 100)

    def bounds(self, partitions: Iterable[Partition]) -> dict[Partition, tuple[int, int]]:
        return dict.fromkeys(partitions, (10, 110))

    def at_time(self, partitions: Iterable[Partition], timestamp_ms: int) -> dict[Partition, int]:
        """The messages' times are their offsets; the last one's is 99."""
        return dict.fromkeys(partitions, timestamp_ms) if timestamp_ms < 100 else {}

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {p: self.group[p] for p in partitions if p in self.group}


def found(
    start: StartOptions | None,
    stop: StopOptions | None = None,
    *,
    policy: Policy = "fail",
    cluster: FakeCluster | None = None,
) -> list[tuple[int, int | None]]:
    asked = cluster or FakeCluster()
    limits = OffsetRanges(start, stop or StopOptions(), policy)
    states = new_states(asked, [A, B], {"a": "id"}, limits, now_ms=1_000)
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


def test_a_partition_stops_where_it_is_told_and_the_present_end_is_the_runs() -> None:
    assert found(StartOptions(), StopOptions(mode=StopMode.LATEST)) == [(10, None), (10, None)]
    assert found(StartOptions(), StopOptions(mode=StopMode.TIMESTAMP, timestamp_ms=40)) == [(10, 40), (10, 40)]
    given_ = StopOptions(mode=StopMode.OFFSETS, offsets={"a:0": 20, "a:1": 30})
    assert found(StartOptions(), given_) == [(10, 20), (10, 30)]


@pytest.mark.parametrize("offset", [9, 111])
def test_a_start_that_the_partition_does_not_have_is_refused_or_set_by_the_policy(offset: int) -> None:
    given_ = StartOptions(mode=StartMode.OFFSETS, offsets={"a:1": offset})
    with pytest.raises(LogLostError, match=rf"a:1@{offset} is not in the topic.* holds 10 to 110.*on_out_of_range"):
        found(given_)
    assert found(given_, policy="earliest") == [(10, None), (10, None)]
    assert found(given_, policy="latest") == [(10, None), (110, None)]
    group = FakeCluster({A: offset})
    with pytest.raises(LogLostError, match=rf"a:0@{offset} "):
        found(StartOptions(mode=StartMode.GROUP_OFFSETS), cluster=group)
    assert in_range(FakeCluster(), {A: 10, B: 110}, policy="fail") == {A: 10, B: 110}


def test_a_stop_before_all_that_is_left_is_out_of_range_and_one_further_on_is_waited_for() -> None:
    gone = StopOptions(mode=StopMode.OFFSETS, offsets={"a:0": 9, "a:1": 200})
    with pytest.raises(LogLostError, match=r"a:0 is to be read up to 9, .*holds only 10 to 110.*on_out_of_range"):
        found(StartOptions(), gone)
    assert found(StartOptions(), gone, policy="earliest") == [(10, 9), (10, 200)]


def test_a_time_after_all_messages_is_the_end_and_one_in_the_future_is_refused() -> None:
    def start(time_ms: int) -> StartOptions:
        return StartOptions(mode=StartMode.TIMESTAMP, timestamp_ms=time_ms)

    assert found(start(1_000)) == [(100, None), (100, None)]
    with pytest.raises(ConfigError, match=r"source.startup.timestamp_ms lies in the future, and a:0"):
        found(start(1_001))
    with pytest.raises(ConfigError, match=r"source.stop.timestamp_ms lies in the future"):
        found(StartOptions(), StopOptions(mode=StopMode.TIMESTAMP, timestamp_ms=1_001))


def test_a_message_that_comes_while_the_start_is_looked_up_by_time_is_read() -> None:
    class Growing(FakeCluster):
        end = 100

        def latest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
            return dict.fromkeys(partitions, self.end)

        def at_time(self, partitions: Iterable[Partition], timestamp_ms: int) -> dict[Partition, int]:
            self.end += 1
            return {}

    assert found(StartOptions(mode=StartMode.TIMESTAMP, timestamp_ms=500), cluster=Growing())[0] == (100, None)


def test_a_configuration_that_stops_before_it_starts_is_refused() -> None:
    base: dict[str, Any] = {"bootstrap_servers": "k:1", "topics": ["a"], "format": "maxwell-json"}
    offsets: dict[str, Any] = {
        "startup": {"mode": "offsets", "offsets": {"a:0": 7}},
        "stop": {"mode": "offsets", "offsets": {"a:0": 6}},
    }
    with pytest.raises(ValueError, match=r'"a:0" is to stop at 6, before it starts at 7'):
        KafkaSourceConfig(**{**base, **offsets})
    times: dict[str, Any] = {
        "startup": {"mode": "timestamp", "timestamp_ms": 7},
        "stop": {"mode": "timestamp", "timestamp_ms": 6},
    }
    with pytest.raises(ValueError, match="earlier than start"):
        KafkaSourceConfig(**{**base, **times})


def test_offsets_that_cannot_be_meant_are_refused_by_name() -> None:
    with pytest.raises(SourceError, match=r"a:1 has no committed offset .*otherwise"):
        found(StartOptions(mode=StartMode.GROUP_OFFSETS, otherwise="fail"))
    with pytest.raises(ConfigError, match=r'startup.offsets names "a:9"'):
        found(StartOptions(mode=StartMode.OFFSETS, offsets={"a:9": 1}))
    with pytest.raises(ConfigError, match="where a:1 stops"):
        found(StartOptions(), StopOptions(mode=StopMode.OFFSETS, offsets={"a:0": 20}))
    with pytest.raises(ValueError, match="belong together"):
        StartOptions(mode=StartMode.OFFSETS)


def test_a_state_survives_the_wire_and_a_foreign_or_newer_one_is_refused() -> None:
    state = PartitionState("a", 3, "id", 7, 9, DecoderState.from_json({"version": 1}))
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


def test_a_schema_is_hashed_once_for_all_seals_and_anew_when_it_is_another() -> None:
    epochs = [5]
    registry = SchemaRegistry({}, open_epoch=lambda: epochs[0])
    assert registry.fingerprints() == {}
    for columns in ((("id", INT64),), (("id", INT64), ("note", STRING))):
        registry.request(TABLE, schema(*columns))
        epochs[0] += 1
        registry.sealed(epochs[0])
        found = registry.fingerprints()
        assert found == {TABLE: schema(*columns).fingerprint()}
        assert registry.fingerprints()[TABLE] is found[TABLE]


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
