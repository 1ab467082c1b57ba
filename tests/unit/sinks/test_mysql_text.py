"""Arrow columns as the rows of an INSERT."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from raycdc.errors import SinkError
from raycdc.sinks.jdbc.mysql_text import ends_in_space, value_lists, widest


def text(**columns: pa.Array) -> str:
    batch = pa.RecordBatch.from_pydict(columns)
    return b"".join(value_lists(batch, bytes_max=1 << 20)).decode("latin-1")


def test_values_become_literals_of_their_kind() -> None:
    assert (
        text(
            n=pa.array([1, None], pa.int8()),
            s=pa.array(["it's\\", None]),
            b=pa.array([b"\x00\xff'", b""], pa.binary()),
            d=pa.array([Decimal("0.0000000001"), None], pa.decimal128(38, 10)),
            f=pa.array([0.1, -1e300]),
            t=pa.array([-62132730893999993, None], pa.timestamp("us")),
            z=pa.array([0, None], pa.timestamp("us", "UTC")),
            y=pa.array([dt.date(9999, 12, 31), None]),
            o=pa.array([True, False]),
        )
        == "(1,'it''s\\',_binary'\x00\xff''','1E-10',0.1,"
        "'0001-02-03 04:05:06.000007','1970-01-01 00:00:00.000000','9999-12-31',1),"
        "(NULL,NULL,_binary'',NULL,-1e+300,NULL,NULL,NULL,0)"
    )


def test_slices_of_columns_are_their_own_rows() -> None:
    batch = pa.RecordBatch.from_pydict({"b": pa.array([b"a", b"bc", None, b"d"]), "s": pa.array(["w", "x", "y", "z"])})
    assert list(value_lists(batch.slice(1, 2), bytes_max=100)) == [b"(_binary'bc','x'),(NULL,'y')"]


def test_rows_are_cut_into_statements_and_each_is_in_one() -> None:
    batch = pa.RecordBatch.from_pydict({"s": pa.array(["aaaa", "b" * 50, "cc", "dd"])})
    pieces = list(value_lists(batch, bytes_max=20))
    assert pieces == [b"('aaaa')", b"('" + b"b" * 50 + b"')", b"('cc'),('dd')"]
    assert list(value_lists(batch.slice(0, 0), bytes_max=20)) == []


def test_a_float_is_the_double_it_is() -> None:
    assert text(f=pa.array([0.1], pa.float32())) == "(0.10000000149011612)"


def test_a_zero_keeps_its_sign() -> None:
    assert (
        text(f=pa.array([-0.0, 0.0, None]), g=pa.array([0.0, -0.0, -1.0], pa.float32()))
        == "(-0e0,0),(0,-0e0),(NULL,-1)"
    )


def test_the_widest_column_of_a_row_that_is_too_large_is_named() -> None:
    batch = pa.RecordBatch.from_pydict({"a": ["x" * 30, "y", "z"], "b": [b"", b"w" * 90, None]})
    assert widest(batch, bytes_max=60) == ("b", 99)


def test_what_mysql_cannot_hold_is_refused_by_name() -> None:
    with pytest.raises(SinkError, match="Column f has a value"):
        text(f=pa.array([float("nan")]))


def test_keys_that_end_in_a_space_are_seen() -> None:
    assert ends_in_space([pa.array([1]), pa.array(["a ", None])])
    assert not ends_in_space([pa.array([" a", None])])
