"""The rows of later rounds: values of keys that the log names, and the conditions by which readers of files skip."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.source.snapshot.rereading.backfill_keys import keys_of_text
from raycdc.verify import source_rows as some_rows
from raycdc.verify.canonical import CanonicalForm, Compared, ComparedColumn
from raycdc.verify.source_rows import NamedKeys, SomeRows
from raycdc.verify.targets.api import SPANS_MAX, RowFilter, arrow_condition, spans

SCHEMA = TableSchema(
    (
        Column("id", LogicalType(TypeKind.INT64)),
        Column("name", LogicalType(TypeKind.STRING)),
        Column("x", LogicalType(TypeKind.FLOAT64)),
    ),
    primary_key=("id", "name"),
)


def compared(*names: str) -> Compared:
    columns = tuple(ComparedColumn(name, CanonicalForm.of(SCHEMA.column(name).type)) for name in names)
    return Compared(columns, columns)


def log_rows(first: int, last: int) -> pa.RecordBatch:
    numbers = list(range(first, last + 1))
    return pa.record_batch(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": [f"n{number}" for number in numbers],
            "x": pa.array(numbers, pa.float64()),
        }
    )


def looked(named: NamedKeys, key: Compared, wanted: np.ndarray, batch: pa.RecordBatch) -> None:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    named.observe(wanted, key.key_hashes(columns, batch.num_rows), batch, columns)


def hashes(key: Compared, batch: pa.RecordBatch) -> np.ndarray:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    return np.sort(key.key_hashes(columns, batch.num_rows))


def test_keys_that_the_log_names_are_asked_for_by_their_values() -> None:
    key = compared("id", "name")
    wanted = hashes(key, log_rows(3, 7))
    named = NamedKeys(key, SCHEMA, ("id", "name"))
    for first in (1, 5, 5):  # Keys are named again and again.
        looked(named, key, wanted, log_rows(first, first + 5))
    rows = named.rows(wanted)
    listed = keys_of_text(rows.lists[0]).sort_by("id")
    assert listed.to_pydict() == {"id": [3, 4, 5, 6, 7], "name": ["n3", "n4", "n5", "n6", "n7"]}
    assert rows.values["id"].to_pylist() == [3, 4, 5, 6, 7]
    assert rows.values["name"].to_pylist() == ["n3", "n4", "n5", "n6", "n7"]
    (split,) = rows.splits(TableId("a", "b"))
    assert split.again is not None
    assert split.again.keys == rows.lists[0]
    assert not rows.whole().is_narrow


def test_a_key_that_no_literal_finds_is_read_with_all_others() -> None:
    key = compared("x")
    wanted = hashes(key, log_rows(3, 7))
    named = NamedKeys(key, SCHEMA, ("x",))
    looked(named, key, wanted, log_rows(1, 9))
    assert not named.rows(wanted).is_narrow


def test_too_many_keys_are_read_with_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(some_rows, "KEYS_MAX", 4)
    key = compared("id")
    wanted = hashes(key, log_rows(1, 5))
    named = NamedKeys(key, SCHEMA, ("id",))
    looked(named, key, wanted, log_rows(1, 4))
    assert named.rows(hashes(key, log_rows(1, 4))).is_narrow
    assert not named.rows(wanted).is_narrow  # One of them was not seen.
    looked(named, key, wanted, log_rows(5, 5))
    assert not named.rows(hashes(key, log_rows(1, 2))).is_narrow


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
@pytest.mark.parametrize("count", [1, SPANS_MAX, SPANS_MAX + 1, 3000])
def test_spans_have_all_values_and_are_few(kind: pa.DataType, count: int) -> None:
    numbers = sorted({random.randrange(-(2**63), 2**63) for _ in range(count)})
    values = pa.array(numbers if pa.types.is_integer(kind) else sorted(map(str, numbers)), kind)
    found = spans(values)
    assert len(found) <= SPANS_MAX
    assert all(low <= high for low, high in found)
    assert all(before[1] < after[0] for before, after in pairwise(found))
    assert all(any(low <= value <= high for low, high in found) for value in values.to_pylist())


def test_a_reader_of_files_skips_groups_of_rows_and_never_a_wanted_one(tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array(range(10_000), pa.int32()), "_op": ["+I"] * 9_999 + ["T"]})
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=100)
    data = ds.dataset(tmp_path)

    def read(wanted: RowFilter) -> list[int]:
        condition = arrow_condition(wanted, data.schema)
        return list(data.to_table(filter=condition).column("id").to_pylist())

    values = pa.array([5, 7, 4_000], pa.int64())
    assert read(RowFilter({"id": values})) == [5, 7, 4_000]
    # Of changes those that emptied the table count for every key.
    assert read(RowFilter({"id": values}, of_changes=True)) == [5, 7, 4_000, 9_999]
    # A number that the column cannot have, and a text: nothing is skipped by them.
    assert len(read(RowFilter({"id": pa.array([5, 2**40], pa.int64())}))) == 10_000
    assert len(read(RowFilter({"id": pa.array(["5"])}))) == 10_000


def test_a_row_that_comes_with_several_lists_counts_once() -> None:
    """As from a server to which ``a`` and ``A`` are one key: both lists that have a spelling of it give its row."""
    key = compared("name")
    spelled = [f"{letter}{number}" for number in range(700) for letter in "aA"]
    everything = pa.record_batch({"name": spelled})
    only = SomeRows(hashes(key, everything), lists=("", "", ""))
    now = pa.record_batch({"name": [name for name in spelled if name[0] == "A"] + ["b1"]})
    came = key.key_hashes({"name": now["name"]}, now.num_rows)
    wanted = only.wanted()
    chosen = np.concatenate([wanted.among(came[:300]), wanted.among(came), wanted.among(came)])
    counted = np.concatenate([came[:300], came, came])[chosen]
    assert sorted(counted) == sorted(came[:-1]), "each once, and no other"


def test_values_that_no_statement_has_room_for_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target is read without a condition on that column; the result is the same."""
    key = compared("name", "id")
    batch = log_rows(1, 100)
    wanted = hashes(key, batch)
    found: list[set[str]] = []
    for most in (1 << 20, 1000, 100):
        monkeypatch.setattr(some_rows, "VALUES_BYTES_MAX", most)
        named = NamedKeys(key, SCHEMA, ("name", "id"))
        looked(named, key, wanted, batch)
        found.append(set(named.rows(wanted).values))
    assert found == [{"name", "id"}, {"name"}, set()]
