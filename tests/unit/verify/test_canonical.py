"""Values of two sides in one form: what is the same is equal, whatever its type there, and nothing else is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raycdc.model.types import LogicalType, TypeKind
from raycdc.verify.canonical import CanonicalForm, Compared, ComparedColumn

KEY = ComparedColumn("id", CanonicalForm.of(LogicalType(TypeKind.INT32)))


def hashes(logical: LogicalType, array: pa.Array, *, one_zero: bool = False) -> list[int]:
    """Of rows with one key, whose other column has the values of `array`."""
    column = ComparedColumn("v", CanonicalForm.of(logical, one_zero=one_zero))
    rows = len(array)
    columns = {"id": pa.array([1] * rows, pa.int32()), "v": array}
    return [int(found) for found in Compared((KEY, column), (KEY,)).row_hashes(columns, rows)[1]]


def decimals(*texts: str | None, scale: int) -> pa.Array:
    return pa.array(texts, pa.string()).cast(pa.decimal128(20, scale))


@pytest.mark.parametrize(
    ("logical", "source", "target"),
    [
        (LogicalType(TypeKind.INT8), pa.array([1, -1, None], pa.int8()), pa.array([1, -1, None], pa.int64())),
        (LogicalType(TypeKind.BOOLEAN), pa.array([True, False, None]), pa.array([1, 0, None], pa.int8())),
        (LogicalType(TypeKind.UINT64), decimals("7", None, scale=0), pa.array([7, None], pa.int64())),
        (
            LogicalType(TypeKind.DECIMAL, precision=10, scale=2),
            decimals("1.50", "-0.25", None, scale=2),
            pa.array(["1.5", "-0.250", None]),
        ),
        (
            LogicalType(TypeKind.STRING, native="decimal(60,30)"),
            pa.array(["12345678901234567890123456789.000000000000000000000000000001", "-1.5"]),
            pa.array(["12345678901234567890123456789.000000000000000000000000000001", "-1.50"]),
        ),
        (
            LogicalType(TypeKind.TIMESTAMP),
            pa.array([1_000_001, None], pa.timestamp("us", "UTC")),
            pa.array([1_000_001_000, None], pa.timestamp("ns", "Europe/Berlin")),
        ),
        (
            LogicalType(TypeKind.DATE),
            pa.array([3, None], pa.date32()),
            pa.array([3 * 86_400_000, None], pa.timestamp("ms")),
        ),
        (
            LogicalType(TypeKind.TIME),
            pa.array(["-838:59:59", "1:00:00.1"]),
            pa.array(["-838:59:59.000000", "1:00:00.10"]),
        ),
        (
            LogicalType(TypeKind.FLOAT32),
            pa.array([0.1, None], pa.float32()),
            pa.array([0.1, None], pa.float32()).cast(pa.float64()),
        ),
        (LogicalType(TypeKind.STRING), pa.array(["a", None, ""]), pa.array(["a", None, ""]).dictionary_encode()),
    ],
    ids=lambda value: str(value.kind) if isinstance(value, LogicalType) else "",
)
def test_one_value_of_two_types_is_equal(logical: LogicalType, source: pa.Array, target: pa.Array) -> None:
    assert hashes(logical, source) == hashes(logical, target)
    # Slices share their buffers with the rest.
    assert hashes(logical, source[1:]) == hashes(logical, target[1:])


@pytest.mark.parametrize(
    ("logical", "values"),
    [
        (LogicalType(TypeKind.STRING), [None, "", "\0", "\0\0", "a", "a\0", "abcdefgh", "abcdefgh\0", "abcdefghi"]),
        (LogicalType(TypeKind.INT64), [None, 0, 1, -1, 1 << 62]),
        (LogicalType(TypeKind.FLOAT64), [None, 0.0, -0.0, 1.0, float("nan"), float("inf")]),
    ],
)
def test_different_values_differ(logical: LogicalType, values: list[Any]) -> None:
    found = hashes(logical, pa.array(values, logical.arrow()))
    assert len(set(found)) == len(values)


def test_all_nan_are_one_and_the_zeros_where_a_target_has_one() -> None:
    double = LogicalType(TypeKind.FLOAT64)
    odd = np.array([0x7FF8000000000000, 0xFFF8000000000001], np.uint64).view(np.float64)
    assert len(set(hashes(double, pa.array(odd)))) == 1
    assert len(set(hashes(double, pa.array([0.0, -0.0]), one_zero=True))) == 1


def test_a_value_that_its_form_cannot_have_differs_and_spoils_no_other() -> None:
    price = LogicalType(TypeKind.DECIMAL, precision=10, scale=2)
    source = decimals("1.50", "2.00", None, scale=2)
    one, other, nothing = hashes(price, pa.array(["1.5", "two", None]))
    assert [one, nothing] == hashes(price, source)[::2]
    assert other not in (hashes(price, source)[1], nothing)
    assert hashes(price, pa.array(["three"])) != hashes(price, pa.array(["two"]))


def test_two_columns_that_change_hands_differ() -> None:
    number = CanonicalForm.of(LogicalType(TypeKind.INT32))
    compared = Compared((KEY, ComparedColumn("a", number), ComparedColumn("b", number)), (KEY,))
    columns = {"id": pa.array([1, 1]), "a": pa.array([5, 6]), "b": pa.array([6, 5])}
    _, rows = compared.row_hashes(columns, 2)
    assert rows[0] != rows[1]
