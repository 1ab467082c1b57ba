"""Rows on their way into a sink: the last one per key, JSON texts, statistics, and how tasks share the work."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raycdc.model import Column, LogicalType, RowKind, TableId, TableSchema, TypeKind
from raycdc.sinks.lakes.statistics import delta_statistics, for_table, properties
from raycdc.sinks.rows import DELETED, alive, last_per_key
from raycdc.sinks.task_inputs import TASK_BYTES_MIN, by_partition, task_inputs
from raycdc.sinks.tasks import json_lines
from raycdc.state.manifests.manifest import Segment

UTC = dt.UTC
D = decimal.Decimal
WALL_CLOCK = dt.datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 - DATETIME has no zone
INSERT, BEFORE, AFTER, DELETE, TRUNCATE = RowKind


def changes(*rows: tuple[RowKind, int | None, str | None]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([key for _, key, _ in rows], pa.int64()),
            "name": pa.array([name for _, _, name in rows], pa.string()),
            "_op": pa.array([int(op) for op, _, _ in rows], pa.int8()),
            "_seq": pa.array(range(len(rows)), pa.int64()),
        }
    )


def compacted(table: pa.Table) -> list[tuple[int, str | None, bool]]:
    rows = last_per_key(table, ["id"], ["id", "name"]).rows.to_pylist()
    return [(row["id"], row["name"], row[DELETED]) for row in rows]


def test_the_last_change_of_each_key_wins() -> None:
    table = changes((INSERT, 1, "a"), (INSERT, 2, "b"), (BEFORE, 1, "a"), (AFTER, 1, "c"), (DELETE, 2, "b"))
    assert compacted(table) == [(1, "c", False), (2, "b", True)]


def test_both_zeros_are_one_key() -> None:
    rows = changes((INSERT, 1, "a"), (BEFORE, 1, "a"), (AFTER, 1, "b"))
    floats = rows.set_column(0, "id", pa.array([0.0, 0.0, -0.0]))
    assert [name for _, name, _ in compacted(floats)] == ["b"]


def test_more_text_than_one_array_holds_is_compacted() -> None:
    batch = changes((INSERT, 1, "x" * (40 << 20)), (INSERT, 2, "y" * (40 << 20))).combine_chunks().to_batches()[0]
    rows = pa.Table.from_batches([batch] * 28)
    assert rows.nbytes > 1 << 31
    numbered = rows.set_column(3, "_seq", pa.array(range(rows.num_rows)))
    found = last_per_key(numbered, ["id"], ["id", "name"]).rows
    assert found.column("id").to_pylist() == [1, 2]


def test_an_update_that_moves_a_row_deletes_its_old_key() -> None:
    assert compacted(changes((BEFORE, 1, "a"), (AFTER, 2, "a"))) == [(1, "a", True), (2, "a", False)]


def test_with_an_order_the_greatest_value_wins_and_the_last_of_equal_ones() -> None:
    rows = changes((INSERT, 1, "new"), (INSERT, 1, "old"), (INSERT, 2, "x"), (INSERT, 2, "y"))
    ordered = rows.append_column("version", pa.array([D("2.5"), D("1.5"), D("1.0"), D("1.0")]))
    found = last_per_key(ordered, ["id"], ["id", "name"], order_by="version").rows.to_pylist()
    assert sorted((row["id"], row["name"]) for row in found) == [(1, "new"), (2, "y")]


def test_two_rows_that_swap_their_keys_both_survive() -> None:
    table = changes(
        (BEFORE, 1, "a"), (AFTER, 9, "a"), (BEFORE, 2, "b"), (AFTER, 1, "b"), (BEFORE, 9, "a"), (AFTER, 2, "a")
    )
    assert compacted(table) == [(1, "b", False), (9, "a", True), (2, "a", False)]


def test_rows_before_a_truncation_are_moot() -> None:
    result = last_per_key(changes((INSERT, 1, "a"), (TRUNCATE, None, None), (INSERT, 2, "b")), ["id"], ["id", "name"])
    assert result.truncated
    assert alive(result.rows).to_pylist() == [{"id": 2, "name": "b"}]


def test_batches_out_of_order_are_put_in_order_of_seq() -> None:
    table = changes((INSERT, 1, "a"), (BEFORE, 1, "a"), (AFTER, 1, "b"))
    assert compacted(table.take(pa.array([2, 0, 1]))) == [(1, "b", False)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([INSERT, AFTER, DELETE, BEFORE]), st.integers(0, 4)), max_size=40))
def test_compaction_equals_replay(operations: list[tuple[RowKind, int]]) -> None:
    rows = [(op, key, f"v{i}") for i, (op, key) in enumerate(operations)]
    replayed: dict[int, str] = {}
    for op, key, value in rows:
        if op in (INSERT, AFTER):
            replayed[key] = value
        else:
            replayed.pop(key, None)
    result = alive(last_per_key(changes(*rows), ["id"], ["id", "name"]).rows).to_pylist()
    assert {row["id"]: row["name"] for row in result} == replayed


def lines(kind: LogicalType, *values: Any) -> list[str]:
    schema = TableSchema((Column("v", kind),))
    batch = pa.RecordBatch.from_pylist([{"v": value} for value in (None, *values)], schema=schema.arrow())
    # Sliced, because offsets of slices are where such code goes wrong.
    return bytes(json_lines(batch.slice(1), schema)).decode().splitlines()


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (LogicalType(TypeKind.INT8), -128, "-128"),
        (LogicalType(TypeKind.INT64), 2**63 - 1, "9223372036854775807"),
        (LogicalType(TypeKind.UINT64), D(2**64 - 1), "18446744073709551615"),
        (LogicalType(TypeKind.BIT, length=64), D(2**63), "9223372036854775808"),
        (LogicalType(TypeKind.BIT, length=8), 255, "255"),
        (LogicalType(TypeKind.YEAR), 1901, "1901"),
        (LogicalType(TypeKind.FLOAT32), 0.1, "0.1"),
        (LogicalType(TypeKind.FLOAT64), 1e300, "1e+300"),
        (LogicalType(TypeKind.BOOLEAN), True, "true"),
        (LogicalType(TypeKind.DECIMAL, precision=20, scale=8), D("0.00000001"), '"0.00000001"'),
        (LogicalType(TypeKind.DECIMAL, precision=20, scale=2), D("-0.05"), '"-0.05"'),
        (LogicalType(TypeKind.DECIMAL, precision=38, scale=0), D("-7"), '"-7"'),
        (LogicalType(TypeKind.DECIMAL, precision=38, scale=38), D("0." + "9" * 38), '"0.' + "9" * 38 + '"'),
        (LogicalType(TypeKind.DATE), dt.date(1, 2, 3), '"0001-02-03"'),
        (LogicalType(TypeKind.DATETIME), WALL_CLOCK, '"2026-01-02 03:04:05"'),
        (LogicalType(TypeKind.DATETIME, fsp=3), WALL_CLOCK.replace(microsecond=60000), '"2026-01-02 03:04:05.060"'),
        (LogicalType(TypeKind.TIMESTAMP, fsp=6), dt.datetime(1970, 1, 1, tzinfo=UTC), '"1970-01-01 00:00:00.000000"'),
        (LogicalType(TypeKind.TIME), "-838:59:59", '"-838:59:59"'),
        (LogicalType(TypeKind.JSON), '{"a":\n [1]}', '{"a":  [1]}'),
        (LogicalType(TypeKind.STRING), 'q"b\\n\n\x01ä\x7f', '"q\\"b\\\\n\\n\\u0001ä\x7f"'),
        (LogicalType(TypeKind.STRING), "", '""'),
        (LogicalType(TypeKind.STRING), None, "null"),
        (LogicalType(TypeKind.BINARY), b"", '{"$binary":""}'),
    ],
)
def test_values_print_as_mysql_prints_them(kind: LogicalType, value: Any, text: str) -> None:
    assert lines(kind, value) == [f'{{"v":{text}}}']


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=20)), min_size=1, max_size=20))
def test_binary_is_base64_for_every_length(values: list[bytes | None]) -> None:
    expected = [None if v is None else {"$binary": base64.b64encode(v).decode()} for v in values]
    assert [json.loads(line)["v"] for line in lines(LogicalType(TypeKind.BINARY), *values)] == expected


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=12), min_size=1, max_size=20))
def test_every_text_survives_json(values: list[str]) -> None:
    text = "".join(line + "\n" for line in values)
    values = [*values, text]
    assert [json.loads(line)["v"] for line in _physical_lines(LogicalType(TypeKind.STRING), values)] == values


def _physical_lines(kind: LogicalType, values: list[str]) -> list[str]:
    """Lines as a reader of the file sees them: only a line feed ends one."""
    schema = TableSchema((Column("v", kind),))
    batch = pa.RecordBatch.from_pylist([{"v": value} for value in values], schema=schema.arrow())
    return bytes(json_lines(batch, schema)).decode().removesuffix("\n").split("\n")


def segment(name: str, size: int, *, partition: int = 0, base: int = 0) -> Segment:
    return Segment("n", name, "", TableId("a", "b"), "f", "s", partition, "log", base, 1, size, 0)


def test_large_segments_are_split_and_small_ones_joined() -> None:
    shared = task_inputs([segment("large", 20 * TASK_BYTES_MIN), segment("small", 10)], parallelism=4)
    parts = sorted((entry.segment.path, entry.part) for task in shared for entry in task)
    assert len(shared) == 4
    loads = [sum(entry.bytes for entry in task) for task in shared]
    assert max(loads) <= min(loads) * 1.5
    count = sum(1 for path, _ in parts if path == "large")
    assert [part for path, part in parts if path == "large"] == [(i, count) for i in range(count)]
    assert ("small", (0, 1)) in parts


def test_little_input_is_one_task_and_none_is_none() -> None:
    assert len(task_inputs([segment(str(i), 100) for i in range(50)], parallelism=8)) == 1
    assert task_inputs([], parallelism=8) == []


def test_a_hash_partition_is_one_task_in_order_of_seq() -> None:
    segments = [segment("c", 9, base=3), segment("x", 9, partition=1), segment("a", 9, base=1)]
    tasks = by_partition(segments)
    assert [[entry.segment.path for entry in task] for task in tasks] == [["a", "c"], ["x"]]


def test_statistics_are_of_integers_and_dates_alone(tmp_path: Any) -> None:
    table = pa.table(
        {
            "id": pa.array([3, 1, 2], pa.int64()),
            "day": pa.array([dt.date(2026, 1, 1), None, dt.date(2025, 1, 1)]),
            "long": pa.array(["x" * 50, "a", "b"]),
            "at": pa.array([1, 2, 3], pa.timestamp("us")),
            "none": pa.nulls(3, pa.int8()),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    assert json.loads(delta_statistics(pq.read_metadata(tmp_path / "t.parquet"), table.schema)) == {
        "numRecords": 3,
        "minValues": {"id": 1, "day": "2025-01-01"},
        "maxValues": {"id": 3, "day": "2026-01-01"},
        "nullCount": {"id": 0, "day": 1, "none": 3},
    }


def test_a_file_has_bounds_of_all_columns_its_table_names_or_of_none() -> None:
    bounds = {"numRecords": 3, "minValues": {"id": 1}, "maxValues": {"id": 3}, "nullCount": {"id": 0, "none": 3}}
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("none", pa.int8()), ("odd name", pa.int8())])
    assert properties(schema) == {"delta.dataSkippingStatsColumns": "id,none"}
    assert json.loads(for_table(json.dumps(bounds), properties(schema))) == bounds
    more = {"delta.dataSkippingStatsColumns": "id,later"}
    assert json.loads(for_table(json.dumps(bounds), more)) == {"numRecords": 3}
    assert json.loads(for_table(json.dumps(bounds), {})) == {"numRecords": 3}
    assert properties(pa.schema([("text", pa.string())])) == {"delta.dataSkippingNumIndexedCols": "0"}
