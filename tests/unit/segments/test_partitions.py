"""Hash partitions: equal keys go together whatever their type, rows keep their order, nothing is lost or doubled."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raycdc.model import RowKind, TableId
from raycdc.model.batch import lost_values, with_lost_values
from raycdc.runtime.reader.output import EpochOutput
from raycdc.segments.access import SpoolAddress
from raycdc.segments.writing import PARTITION_BYTES, PARTITIONS_MAX, partition_numbers, partitions_for, split_by_key

COUNT = 4
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int64": (pa.int64(), [*range(50), -1, 1 << 62]),
    "int8": (pa.int8(), list(range(-60, 60))),
    "uint64": (pa.uint64(), [0, 1, (1 << 64) - 1, 77]),
    "string": (pa.string(), ["", "a", "b", "ä", "a much longer key than the others", *map(str, range(50))]),
    "large_string": (pa.large_string(), ["", "x", *map(str, range(50))]),
    "binary": (pa.binary(), [b"", b"\x00", b"\x00\x00", *(bytes([n]) for n in range(50))]),
    "fixed": (pa.binary(3), [b"abc", b"abd", b"\x00\x00\x00"]),
    "decimal": (pa.decimal128(20, 2), [Decimal(n) / 100 for n in range(-30, 30)]),
    "wide_decimal": (pa.decimal256(60, 2), [Decimal(n) / 100 for n in range(-30, 30)]),
    "date": (pa.date32(), [date(2024, 1, day) for day in range(1, 29)]),
    "timestamp": (pa.timestamp("us"), [n * 86_400_000_000 for n in range(28)]),
    "double": (pa.float64(), [0.0, 1.5, -2.5, 1e300]),
    "bool": (pa.bool_(), [True, False]),
}


def batch(kind: pa.DataType, keys: list[Any], ops: list[int] | None = None) -> pa.RecordBatch:
    columns = {
        "id": pa.array(keys, kind),
        "_op": pa.array(ops or [int(RowKind.INSERT)] * len(keys), pa.int8()),
        "_seq": pa.array(range(len(keys)), pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize("kind", KEYS)
def test_a_key_has_one_partition_wherever_it_stands(kind: str) -> None:
    arrow, keys = KEYS[kind]
    there = partition_numbers(batch(arrow, keys), ["id"], COUNT)
    turned = partition_numbers(batch(arrow, keys[::-1]), ["id"], COUNT)
    sliced = partition_numbers(batch(arrow, [keys[0], *keys]).slice(1), ["id"], COUNT)
    assert np.array_equal(there, turned[::-1])
    assert np.array_equal(there, sliced)
    assert set(there) <= set(range(COUNT))


@pytest.mark.parametrize("kind", ["int64", "int8", "string", "large_string", "binary", "decimal", "wide_decimal"])
def test_keys_are_spread_over_all_partitions(kind: str) -> None:
    assert set(partition_numbers(batch(*KEYS[kind]), ["id"], COUNT)) == set(range(COUNT))


def test_both_zeros_are_one_key_and_null_is_one_too() -> None:
    zeros = partition_numbers(batch(pa.float64(), [0.0, -0.0]), ["id"], 251)
    assert zeros[0] == zeros[1]
    made = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x00"), pa.array([3, 4], pa.int64()).buffers()[1]])
    nulls = batch(pa.int64(), [0, 0]).set_column(0, "id", made)
    numbers = partition_numbers(nulls, ["id"], 251)
    assert numbers[0] == numbers[1]


def test_a_key_keeps_its_partition_when_its_column_becomes_wider() -> None:
    narrow = partition_numbers(batch(pa.int32(), [-5, 0, 7]), ["id"], 251)
    assert np.array_equal(narrow, partition_numbers(batch(pa.int64(), [-5, 0, 7]), ["id"], 251))
    texts = partition_numbers(batch(pa.string(), ["a", "bc"]), ["id"], 251)
    assert np.array_equal(texts, partition_numbers(batch(pa.large_string(), ["a", "bc"]), ["id"], 251))


def test_columns_of_a_key_are_told_apart() -> None:
    rows = pa.RecordBatch.from_pydict({"a": ["ab", "a"], "b": ["c", "bc"]})
    first, second = partition_numbers(rows, ["a", "b"], 251)
    assert first != second


def test_rows_keep_their_order_and_each_is_in_one_partition() -> None:
    rows = batch(pa.int64(), [n % 7 for n in range(1000)])
    parts = dict(split_by_key(rows, ["id"], COUNT))
    seqs = [part.column("_seq").to_pylist() for part in parts.values()]
    assert all(found == sorted(found) for found in seqs)
    assert sorted(seq for found in seqs for seq in found) == list(range(1000))
    keys = [set(part.column("id").to_pylist()) for part in parts.values()]
    assert sum(map(len, keys)) == 7


def test_a_truncation_reaches_every_partition() -> None:
    rows = batch(pa.int64(), [None, 1], [int(RowKind.TRUNCATE), int(RowKind.INSERT)])
    parts = dict(split_by_key(rows, ["id"], COUNT))
    assert set(parts) == set(range(COUNT))
    assert all(part.column("_op")[0].as_py() == RowKind.TRUNCATE for part in parts.values())
    assert sum(part.num_rows for part in parts.values()) == COUNT + 1


def test_lost_values_are_counted_once() -> None:
    rows = with_lost_values(batch(pa.int64(), list(range(100))), 5)
    assert sum(lost_values(part) for _, part in split_by_key(rows, ["id"], COUNT)) == 5


@pytest.mark.parametrize(("parts", "count"), [(0, 1), (1, 1), (2, 2), (3, 2), (7, 4), (1 << 20, PARTITIONS_MAX)])
def test_partitions_are_as_many_as_the_epoch_before_was_worth(parts: int, count: int) -> None:
    assert partitions_for(parts * PARTITION_BYTES) == count


@pytest.mark.parametrize(("partitioned", "key", "wanted"), [(True, ("id",), 2), (True, (), 1), (False, ("id",), 1)])
def test_a_large_table_is_partitioned_from_its_second_epoch_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitioned: bool, key: tuple[str, ...], wanted: int
) -> None:
    monkeypatch.setattr("raycdc.segments.writing.PARTITION_BYTES", 1 << 10)
    epochs = EpochOutput(SpoolAddress(tmp_path, "here"), partitioned=partitioned)
    table = TableId("shop", "orders")
    found = []
    for epoch in (1, 2, 3):
        for rows in (batch(pa.int64(), list(range(100))),) if epoch < 3 else (batch(pa.int64(), [1]),):
            epochs.collect(table, fingerprint="f", batch=rows, split_id="stream", key=key)
        found.append({segment.partition for segment in epochs.cut(epoch)})
    epochs.close()
    assert found[0] == {0}
    assert len(found[1]) == wanted
    assert len(found[2]) == 1  # One row is in one of them.
