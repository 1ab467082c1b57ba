"""The checksum that says "source and lake are equal": sensitive to every value, blind to the order."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycdc.sandbox.compare import checksum, differing_rows

ROWS: dict[str, list[Any]] = {
    "id": [1, 2, 3],
    "name": ["a", "b", None],
    "price": [Decimal("1.50"), Decimal("-2.00"), None],
    "ratio": [0.1, float("nan"), -0.0],
    "at": [dt.datetime(2024, 2, 29, 1, 2, 3, 4), None, dt.datetime(1970, 1, 1)],  # noqa: DTZ001
    "born": [dt.date(1900, 1, 1), None, dt.date(2000, 1, 1)],
    "blob": [b"\x00\xff", b"", None],
}


def table(rows: dict[str, list[Any]]) -> pa.Table:
    return pa.table(rows)


def test_order_of_rows_and_batches_does_not_matter() -> None:
    forward = table(ROWS)
    backward = pa.concat_tables([forward.slice(2, 1), forward.slice(1, 1), forward.slice(0, 1)])
    assert checksum(forward) == checksum(backward)


@pytest.mark.parametrize("column", sorted(ROWS))
def test_one_changed_value_changes_it(column: str) -> None:
    changed = {**ROWS, column: [ROWS[column][1], *ROWS[column][1:]]}
    assert checksum(table(changed)).digest != checksum(table(ROWS)).digest


def test_a_row_that_is_there_twice_counts_twice() -> None:
    once = table({"id": [1, 2]})
    assert checksum(pa.concat_tables([once, once])).digest != checksum(once).digest
    assert differing_rows(pa.concat_tables([once, once]), once) == (["{'id': 1}", "{'id': 2}"], [])


def test_null_is_neither_empty_nor_its_own_text() -> None:
    digests = {checksum(pa.table({"a": pa.array([value], pa.string())})).digest for value in (None, "", "None", "\\N")}
    assert len(digests) == 4


@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), min_size=1, max_size=4))
def test_values_do_not_run_into_each_other(rows: list[tuple[str, str]]) -> None:
    swapped = [(left + right, "") for left, right in rows]
    equal = sorted(rows) == sorted(swapped)
    sums = [
        checksum(pa.table({"a": [row[0] for row in side], "b": [row[1] for row in side]})) for side in (rows, swapped)
    ]
    assert (sums[0] == sums[1]) is equal


def test_an_empty_table_has_no_rows_and_no_digest() -> None:
    empty = checksum(pa.table({"a": pa.array([], pa.int64())}))
    assert (empty.rows, empty.digest) == (0, 0)
