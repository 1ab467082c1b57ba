"""Chunk keys without a server: literals, state, intervals, and packets cut anywhere."""

from __future__ import annotations

import json
from bisect import bisect_right
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raycdc.connectors.mysql.server.catalog import constant_default
from raycdc.connectors.mysql.server.client import parse_version
from raycdc.connectors.mysql.snapshot import keys, resultset_loops
from raycdc.connectors.mysql.snapshot.key_order import MySqlKeyOrder
from raycdc.connectors.mysql.snapshot.planning.chunk_keys import chunk_key
from raycdc.connectors.mysql.snapshot.planning.chunk_plan import ChunkRange
from raycdc.connectors.mysql.snapshot.sort_keys import NULL_INTERVAL, SortKeys, bound_keys, classify, sort_keys
from raycdc.connectors.mysql.values.documents import document_of
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.model import TableId

#: The first example may load machine code.
compiled = settings(deadline=None)
KEY_VALUES = st.integers() | st.text() | st.binary() | st.floats(allow_nan=False)


@given(KEY_VALUES | st.none())
def test_key_values_survive_state(value: Any) -> None:
    returned = keys.bound_from_json(json.loads(json.dumps(keys.bound_to_json(value))))
    assert returned == value
    assert type(returned) is type(value)


@given(lower=KEY_VALUES | st.none(), upper=KEY_VALUES | st.none(), null=st.booleans(), only=st.booleans())
def test_chunks_survive_state(lower: Any, upper: Any, null: bool, only: bool) -> None:
    chunk = ChunkRange(lower, upper, includes_null=null, only_null=only, key="k")
    assert ChunkRange.from_json(json.loads(json.dumps(chunk.to_json()))) == chunk


@given(st.text())
def test_no_text_ends_its_literal(text: str) -> None:
    column = MySqlColumn("k", "varchar(9)", "latin1", "latin1_bin")
    sql = keys.literal(column, text)
    assert sql == f"CONVERT(_utf8mb4 X'{text.encode().hex()}' USING latin1) COLLATE latin1_bin"


@pytest.mark.parametrize(
    ("column_type", "value", "sql"),
    [
        ("bigint(20)", -5, "-5"),
        ("double", 0.1, "0.1e0"),
        ("double", 1e300, "1e+300"),
        ("decimal(9,2)", "-1.50", "-1.50"),
        ("varbinary(9)", b"\0'", "X'0027'"),
        ("datetime(3)", "2024-01-01 10:00:00.123", "'2024-01-01 10:00:00.123'"),
    ],
)
def test_literals_are_exact(column_type: str, value: Any, sql: str) -> None:
    assert keys.literal(MySqlColumn("k", column_type), value) == sql


def test_a_temporal_bound_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="not a date or time"):
        keys.literal(MySqlColumn("k", "date"), "2024-01-01' OR '1")


def test_names_are_quoted_in_conditions() -> None:
    column = MySqlColumn("a`b", "int", nullable=True)
    table = MySqlTable(TableId("d", "t"), (column,), ("a`b",))
    assert ChunkRange(1, None, key="a`b").condition(table) == "`a``b` >= 1"
    assert ChunkRange(only_null=True, key="a`b").condition(table) == "`a``b` IS NULL"
    assert ChunkRange(includes_null=True, key="a`b").condition(table) == "1 = 1"
    assert ChunkRange(1, 5, includes_null=True, key="a`b").condition(table) == (
        "(`a``b` >= 1 AND `a``b` < 5 OR `a``b` IS NULL)"
    )


def test_the_first_column_of_the_primary_key_is_the_chunk_key() -> None:
    columns = (MySqlColumn("e", "enum('x')"), MySqlColumn("Id", "int"))
    assert chunk_key(MySqlTable(TableId("d", "t"), columns, ("Id", "e")), None) == columns[1]
    assert chunk_key(MySqlTable(TableId("d", "t"), columns, ("e", "Id")), None) is None
    assert chunk_key(MySqlTable(TableId("d", "t"), columns, ()), None) is None
    assert chunk_key(MySqlTable(TableId("d", "t"), columns, ()), "id") == columns[1]


@compiled
@given(st.lists(st.none() | st.integers(0, (1 << 64) - 1)), st.lists(st.integers(0, (1 << 64) - 1)))
def test_unsigned_keys_fall_into_their_intervals(values: list[int | None], bounds: list[int]) -> None:
    column = MySqlColumn("k", "bigint(20) unsigned")
    bounds = sorted(bounds)
    array = pa.array([None if v is None else Decimal(v) for v in values], pa.decimal128(20, 0))
    found = classify(sort_keys(None, column, array), bound_keys(None, column, list(bounds)))
    assert found.tolist() == [NULL_INTERVAL if v is None else bisect_right(bounds, v) for v in values]


@compiled
@given(st.lists(st.none() | st.binary(max_size=4)), st.lists(st.binary(max_size=4)), st.integers(0, 3))
def test_binary_keys_fall_into_their_intervals(values: list[bytes | None], bounds: list[bytes], cut: int) -> None:
    column = MySqlColumn("k", "varbinary(9)")
    bounds = sorted(bounds)
    array = pa.array(values, pa.binary()).slice(cut)
    found = classify(sort_keys(None, column, array), bound_keys(None, column, list(bounds)))
    assert found.tolist() == [NULL_INTERVAL if v is None else bisect_right(bounds, v) for v in values[cut:]]


@compiled
@given(
    st.lists(st.decimals(-(10**20), 10**20, places=5, allow_nan=False)),
    st.lists(st.decimals(-(10**20), 10**20, places=5)),
)
def test_wide_decimals_fall_into_their_intervals(values: list[Decimal], bounds: list[Decimal]) -> None:
    column = MySqlColumn("k", "decimal(30,5)")
    bounds = sorted(bounds)
    found = classify(
        sort_keys(None, column, pa.array(values, pa.decimal128(30, 5))),
        bound_keys(None, column, [format(b, "f") for b in bounds]),
    )
    assert found.tolist() == [bisect_right(bounds, v) for v in values]


@compiled
@given(st.lists(st.text(alphabet="ab \t", max_size=4)), st.lists(st.text(alphabet="ab \t", max_size=4)))
def test_padded_keys_compare_as_if_continued_by_spaces(values: list[str], bounds: list[str]) -> None:
    def padded(text: str) -> str:
        return text.ljust(9)

    def as_keys(texts: list[str]) -> SortKeys:
        offsets = np.cumsum([0, *(len(t) for t in texts)], dtype=np.int64)
        data = np.frombuffer("".join(texts).encode() or b"\0", np.uint8)
        return SortKeys(np.ones(len(texts), np.bool_), offsets=offsets, data=data, pad=b" ")

    bounds = sorted(bounds, key=padded)
    expected = [bisect_right([padded(b) for b in bounds], padded(v)) for v in values]
    assert classify(as_keys(values), as_keys(bounds)).tolist() == expected


@pytest.mark.parametrize(
    ("text", "version"),
    [("8.0.15", (8, 0, 15)), ("10.11.19-MariaDB-0+deb12u1-log", (10, 11, 19)), ("5.7", (5, 7, 0)), ("9.x", (9, 0, 0))],
)
def test_versions_are_read(text: str, version: tuple[int, int, int]) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("default", "extra", "quoted", "constant"),
    [
        (None, "", False, None),
        ("5", "", False, "5"),
        ("NULL", "", True, None),
        ("NULL", "", False, "NULL"),
        ("'it''s'", "", True, "it's"),
        ("'it''s'", "", False, "'it''s'"),
        ("current_timestamp()", "", True, None),
        ("CURRENT_TIMESTAMP(3)", "", False, None),
        ("uuid()", "DEFAULT_GENERATED", False, None),
        ("f(x)", "", False, "f(x)"),
    ],
)
def test_only_constant_defaults_are_taken(default: str | None, extra: str, quoted: bool, constant: str | None) -> None:
    assert constant_default(default, extra, quoted=quoted) == constant


@compiled
@given(st.lists(st.binary(max_size=20), max_size=5), st.data())
def test_packets_cut_anywhere_are_found_whole(payloads: list[bytes], data: st.DataObject) -> None:
    payloads = [b"\0" + p for p in payloads]
    packets = [len(p).to_bytes(3, "little") + b"\0" + p for p in [*payloads, b"\xfe\0\0\x02\0"]]
    stream = b"".join(packets)
    cut = data.draw(st.integers(0, len(stream)))
    ends = np.cumsum([len(p) for p in packets])
    memory = np.zeros(len(stream) + resultset_loops.SLACK, np.uint8)
    memory[: len(stream)] = np.frombuffer(stream, np.uint8)
    position = np.zeros(2, np.int64)
    reason = resultset_loops.scan_packets(memory, 0, cut, position)
    complete = int(ends[ends <= cut].max()) if (ends <= cut).any() else 0
    assert position[0] == complete
    assert reason == (resultset_loops.SCAN_END if complete == len(stream) else resultset_loops.SCAN_MORE)


LABELLED = MySqlTable(
    TableId("d", "t"),
    (MySqlColumn("e", "enum('z','a','m')", nullable=False), MySqlColumn("n", "int", nullable=False)),
    ("e", "n"),
)
BOUND = st.tuples(st.integers(0, 3)) | st.tuples(st.integers(0, 3), st.integers(-3, 3))


def key_order() -> MySqlKeyOrder:
    def no_server() -> Any:
        raise AssertionError("numbers and labels are ordered without the server")

    return MySqlKeyOrder(no_server, {})


@compiled
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-4, 4))), st.sets(BOUND))
def test_composite_keys_are_ordered_as_tuples_are(rows: list[tuple[int, int]], raw: set[tuple[int, ...]]) -> None:
    order = key_order()
    order.use(LABELLED.id, ("e", "n"), document_of(LABELLED))
    bounds = sorted(order.bound(LABELLED.id, list(bound)) for bound in raw)
    assert bounds == sorted(raw)
    labels = pa.array([("", "z", "a", "m")[label] for label, _ in rows], pa.string())
    touched = pa.StructArray.from_arrays([labels, pa.array([n for _, n in rows], pa.int32())], ["e", "n"])
    assert order.classify(LABELLED.id, touched, bounds).tolist() == [bisect_right(bounds, row) for row in rows]


def test_a_table_that_begins_again_is_ordered_by_its_new_key() -> None:
    order = key_order()
    order.use(LABELLED.id, "n", document_of(LABELLED))
    assert order.classify(LABELLED.id, pa.array([4, 5, 6], pa.int32()), [order.bound(LABELLED.id, 5)]).tolist() == [
        0,
        1,
        1,
    ]
    order.use(LABELLED.id, ("n", "e"), document_of(LABELLED))
    assert order.bound(LABELLED.id, [5, 2]) == (5, 2)
