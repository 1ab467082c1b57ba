"""Data files of Iceberg tables: what is written is read back by id, and bounds never leave a key out."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycdc.model import LogicalType, TypeKind
from raycdc.sinks.iceberg.files import (
    IcebergColumn,
    KeyBounds,
    arrow_type,
    as_stored,
    decoded,
    read_columns,
    stored,
    type_text,
    write_data_file,
)
from raycdc.sinks.iceberg.tasks import Changed, Rewrite, WantedColumn
from raycdc.sinks.tasks import write_parquet_file

VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "int": [-(1 << 31), 0, (1 << 31) - 1],
    "long": [-(1 << 63), 5, (1 << 63) - 1],
    "float": [-1.5, float("nan"), 0.0],
    "double": [-0.0, 1e300, float("nan")],
    "string": ["", "ä" * 40, "z\U0010ffff" * 20],
    "binary": [b"", b"\xff" * 40, b"\x00"],
    "date": [date(1, 1, 1), date(9999, 12, 31)],
    "timestamp": [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)],  # noqa: DTZ001
    "timestamptz": [datetime(1970, 1, 1, tzinfo=UTC), datetime(2038, 1, 19, tzinfo=UTC)],
    "decimal(9, 2)": [Decimal("-9999999.99"), Decimal("0.01")],
    "decimal(18, 0)": [Decimal(-(10**18) + 1), Decimal(10**18 - 1)],
    "decimal(38, 10)": [Decimal("-9999999999999999999999999999.9999999999"), Decimal("1e-10")],
}


def table_of(kind: str, values: list[Any]) -> tuple[list[IcebergColumn], pa.RecordBatch]:
    columns = [IcebergColumn(7, "key", kind)]
    return columns, as_stored(pa.record_batch({"key": pa.array(values, arrow_type(kind))}), columns)


@pytest.mark.parametrize("kind", VALUES)
def test_values_come_back_and_every_file_may_have_its_keys(kind: str, tmp_path: Path) -> None:
    columns, batch = table_of(kind, [*VALUES[kind], None])
    path = tmp_path / "x.parquet"
    described = write_data_file(str(path), columns, [batch])
    assert described is not None
    assert described.rows == len(VALUES[kind]) + 1
    assert described.statistics.nulls == {7: 1}
    renamed = [IcebergColumn(8, "other", "int"), IcebergColumn(7, "new name", kind)]
    (read,) = read_columns(str(path), renamed, rows=100)
    assert list(map(str, read.column("new name").to_pylist())) == list(map(str, [*VALUES[kind], None]))
    assert read.column("other").null_count == read.num_rows
    lower, upper = described.statistics.lower, described.statistics.upper
    for value in VALUES[kind]:
        keys = pa.table({"key": pa.array([value], arrow_type(kind))})
        assert KeyBounds(columns, keys).may_have(lower, upper)


@pytest.mark.parametrize(
    ("kind", "within", "beyond"),
    [
        ("int", [1, 100], [-7, 101]),
        ("long", [1, 100], [-7, 101]),
        ("string", ["b", "y" * 40], ["a", "z"]),
        ("decimal(38, 2)", [Decimal("1.00"), Decimal("9" * 30)], [Decimal("0.99"), Decimal("9" * 30 + ".01")]),
        ("date", [date(2020, 1, 1), date(2021, 1, 1)], [date(2019, 12, 31), date(2021, 1, 2)]),
    ],
)
def test_files_without_the_keys_are_left_out(kind: str, within: list[Any], beyond: list[Any], tmp_path: Path) -> None:
    columns, batch = table_of(kind, within)
    described = write_data_file(str(tmp_path / "x.parquet"), columns, [batch])
    assert described is not None
    lower, upper = described.statistics.lower, described.statistics.upper
    assert list(lower) == list(upper) == [7]
    for value in beyond:
        assert not KeyBounds(columns, pa.table({"key": pa.array([value], arrow_type(kind))})).may_have(lower, upper)
    both = pa.table({"key": pa.array(beyond, arrow_type(kind))})
    gap = kind in ("int", "long", "date")  # Numbers are looked for one by one, others by the least and greatest.
    assert KeyBounds(columns, both).may_have(lower, upper) is not gap


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), min_size=1))
def test_bounds_of_texts_hold_all_of_them(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    columns, batch = table_of("string", texts)
    described = write_data_file(str(tmp_path_factory.mktemp("d") / "x.parquet"), columns, [batch])
    assert described is not None
    statistics = described.statistics
    for bounds, holds in ((statistics.lower, bytes.__le__), (statistics.upper, bytes.__ge__)):
        for bound in bounds.values():
            edge = decoded("string", bound)
            assert all(holds(edge, text.encode()) for text in texts)


def test_a_text_of_others_that_is_not_utf8_has_no_bound(tmp_path: Path) -> None:
    data = pa.array([b"b", b"\xff\xfe"], pa.binary())
    texts = pa.StringArray.from_buffers(2, *data.buffers()[1:])
    columns = [IcebergColumn(7, "key", "string")]
    described = write_data_file(str(tmp_path / "x.parquet"), columns, [pa.record_batch({"key": texts})])
    assert described is not None
    assert (described.statistics.lower, described.statistics.upper) == ({7: b"b"}, {})


def test_a_bound_from_before_a_column_was_widened_is_understood() -> None:
    columns = [IcebergColumn(1, "key", "long")]
    keys = pa.table({"key": pa.array([5], pa.int64())})
    low, high = (1).to_bytes(4, "little"), (9).to_bytes(4, "little")
    assert KeyBounds(columns, keys).may_have({1: low}, {1: high})
    assert not KeyBounds(columns, keys).may_have({1: high}, {1: high})


def test_every_logical_type_has_a_place() -> None:
    types = [
        *(LogicalType(kind) for kind in TypeKind if kind not in (TypeKind.DECIMAL, TypeKind.BIT)),
        LogicalType(TypeKind.DECIMAL, precision=38, scale=30),
        *(LogicalType(TypeKind.BIT, length=length) for length in (1, 64)),
    ]
    schema = stored(pa.schema([(str(n), one.arrow()) for n, one in enumerate(types)]))
    assert [arrow_type(type_text(one.arrow())) for one in types] == schema.types
    assert {str(t) for t in schema.types} & {"int8", "int16"} == set()


def test_minus_zero_is_the_zero_that_is_there(tmp_path: Path) -> None:
    columns, batch = table_of("double", [0.0, 1.0, float("nan")])
    write_data_file(str(tmp_path / "old.parquet"), columns, [batch])
    keys = pa.table({"key": pa.array([-0.0]), "_claimed": pa.array([False])})
    write_parquet_file(tmp_path / "keys.parquet", keys.schema, keys.to_batches())
    changed = Changed(("key",), (str(tmp_path / "keys.parquet"),), target="", alone=False)
    wanted = (WantedColumn(columns[0], 7),)
    result = Rewrite((str(tmp_path / "old.parquet"),), 0, str(tmp_path / "new.parquet"), wanted, changed=changed).run()
    assert result.went == [True]
    assert repr(pq.read_table(tmp_path / "new.parquet").to_pydict()) == "{'key': [1.0, nan]}"


@pytest.mark.parametrize("cut", [1, 7, 100])
def test_wide_rows_are_written_and_read_few_at_a_time(
    cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raycdc.sinks.tasks.ROW_GROUP_BYTES_MAX", 64 << 10)
    monkeypatch.setattr("raycdc.sinks.iceberg.files.BATCH_BYTES_MAX", 16 << 10)
    columns = [IcebergColumn(1, "id", "long"), IcebergColumn(2, "doc", "string")]
    schema = pa.schema([column.field() for column in columns])
    texts = [bytes(np.random.default_rng(number).integers(97, 123, 3000, np.uint8)).decode() for number in range(100)]
    whole = pa.RecordBatch.from_arrays([pa.array(range(100), pa.int64()), pa.array(texts)], schema=schema)
    given = [whole.slice(first, cut) for first in range(0, 100, cut)]
    described = write_data_file(tmp_path / "x.parquet", columns, given)
    assert described is not None
    footer = pq.read_metadata(tmp_path / "x.parquet")
    sizes = [footer.row_group(number).total_byte_size for number in range(footer.num_row_groups)]
    assert len(described.splits) == len(sizes)
    assert max(sizes) <= 80 << 10
    assert min(sizes[:-1]) >= 32 << 10
    read = list(read_columns(tmp_path / "x.parquet", columns, rows=1 << 16))
    assert pa.Table.from_batches(read).equals(pa.Table.from_batches([whole]))
    assert max(batch.nbytes for batch in read) <= 18 << 10
    # Of the columns that are read alone.
    assert len(list(read_columns(tmp_path / "x.parquet", columns[:1], rows=1 << 16, only=True))) == 1


def test_a_row_that_is_wider_than_a_row_group_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raycdc.sinks.tasks.ROW_GROUP_BYTES_MAX", 100)
    columns, batch = table_of("string", ["x" * 1000, "y" * 1000, None, "", "z" * 1000])
    described = write_data_file(tmp_path / "x.parquet", columns, [batch, batch.slice(0, 0)])
    assert described is not None
    assert described.rows == 5
    (read,) = read_columns(tmp_path / "x.parquet", columns, rows=100)
    assert read.equals(batch)
