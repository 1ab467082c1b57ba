"""What the encoders write, the decoders read back; and which rows become one message."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from raycdc.formats.api import EncodedBatch, MessageBatch, Origin
from raycdc.formats.decoding.sql_types import parse_columns
from raycdc.model import META_FIELDS, RowKind, TableId, TableSchema
from raycdc.model.batch import SYMBOLS
from raycdc.model.evolution import TruncateTableEvent
from tests.unit.formats.format_messages import events_of, make, rows_of

COLUMNS = (
    "id BIGINT, flag BOOLEAN, tiny TINYINT, big BIGINT UNSIGNED, price DECIMAL(20,4), f FLOAT, d DOUBLE, name TEXT, "
    "raw BLOB, day DATE, at DATETIME(6), seen TIMESTAMP(6), t TIME(6), y YEAR, bits BIT(10), e ENUM('a'), s SET('a'), "
    "j JSON"
)
KEYED = f"{COLUMNS}, PRIMARY KEY (id)"
TABLE = TableId("shop", "orders")
FORMATS = ("maxwell-json", "canal-json", "debezium-json")


def changelog(schema: TableSchema, *rows: tuple[str, dict[str, Any]]) -> pa.RecordBatch:
    arrays = [pa.array([row.get(c.name) for _, row in rows], c.type.arrow()) for c in schema.columns]
    meta = [
        pa.array([SYMBOLS.index(op) for op, _ in rows], pa.int8()),
        pa.array(range(len(rows)), pa.int64()),
        pa.array([1_700_000_000_000] * len(rows), pa.int64()),
        pa.nulls(len(rows), pa.string()),
    ]
    return pa.RecordBatch.from_arrays([*arrays, *meta], schema=pa.schema([*schema.arrow(), *META_FIELDS]))


def encoded(name: str, columns: str, *rows: tuple[str, dict[str, Any]], **options: Any) -> EncodedBatch:
    schema = parse_columns(columns, key_path="test")
    return make(name, **options).encoder(TABLE, schema).encode(changelog(schema, *rows))


def read(name: str, messages: EncodedBatch, **options: Any) -> list[tuple[str, dict[str, Any]]]:
    values = messages.values.cast(pa.large_binary())
    batch = MessageBatch(Origin("t", 0), values, np.arange(len(values)), keys=messages.keys)
    decoded = make(name, **options).decoder(keep_null_columns=True).decode(batch)
    assert decoded.failure is None, decoded.failure
    return rows_of(decoded)


def texts(messages: EncodedBatch) -> list[Any]:
    return [None if value is None else json.loads(value) for value in messages.values.to_pylist()]


#: Debezium's word for a value that was left out, which no reader of its messages can tell from the same text in a row.
_LEFT_OUT = "__debezium_unavailable_value"

_ROW = st.fixed_dictionaries(
    {"id": st.integers(-(2**63), 2**63 - 1)},
    optional={
        "flag": st.booleans(),
        "tiny": st.integers(-128, 127),
        "big": st.integers(0, 2**64 - 1).map(Decimal),
        "price": st.decimals(-(10**15), 10**15, places=4),
        "f": st.floats(width=32, allow_nan=False),
        "d": st.floats(allow_nan=False),
        "name": st.text().filter(lambda text: text != _LEFT_OUT),
        "raw": st.binary().filter(lambda raw: raw != _LEFT_OUT.encode()),
        "day": st.dates(date(1, 1, 1)),
        "at": st.datetimes(datetime(1, 1, 1)),  # noqa: DTZ001
        "seen": st.datetimes(datetime(1, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
        "t": st.sampled_from(["12:34:56.000001", "-838:59:59.000000"]),
        "y": st.integers(1901, 2155),
        "bits": st.integers(0, 1023),
        "e": st.sampled_from(["a", ""]),
        "s": st.sampled_from(["", "a", "a,b"]),
        "j": st.sampled_from(['{"a": [1, "\\u00e9\\"", null]}', "3", "[]"]),
    },
)
_NAMES = [c.name for c in parse_columns(COLUMNS, key_path="test").columns]


@given(st.lists(st.tuples(st.sampled_from(["+I", "-D"]), _ROW), min_size=1, max_size=4), st.booleans())
@settings(max_examples=12)
def test_every_value_comes_back_from_every_format(rows: list[tuple[str, dict[str, Any]]], embedded: bool) -> None:
    expected = [(op, {name: row.get(name) for name in _NAMES}) for op, row in rows]
    for name in FORMATS:
        options = {"include_schema": embedded and name == "debezium-json"}
        messages = encoded(name, COLUMNS, *rows, **options)
        assert messages.values.equals(encoded(name, COLUMNS, *rows, **options).values)
        assert read(name, messages, columns=COLUMNS) == expected


@pytest.mark.parametrize("name", FORMATS)
def test_an_adjacent_update_of_one_key_is_one_message(name: str) -> None:
    before = {"id": 1, "name": "a", "tiny": 3, "j": "[1]"}
    after = {"id": 1, "name": None, "tiny": 3, "j": "[1]"}
    columns = "id BIGINT, name TEXT, tiny TINYINT, j JSON"
    messages = encoded(name, f"{columns}, PRIMARY KEY (id)", ("-U", before), ("+U", after))
    assert len(messages) == 1
    assert read(name, messages, columns=columns) == [("-U", before), ("+U", after)]
    [message] = texts(messages)
    changed = {"maxwell-json": {"name": "a"}, "canal-json": [{"name": "a"}]}
    if name in changed:
        assert message["old"] == changed[name]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("columns", ["id BIGINT, n BIGINT", "id BIGINT, n BIGINT, PRIMARY KEY (id)"])
def test_other_retractions_are_deletes_and_inserts(name: str, columns: str) -> None:
    keyed = "PRIMARY" in columns
    old, new = {"id": 1, "n": 1}, {"id": 2 if keyed else 1, "n": 2}
    messages = encoded(name, columns, ("-U", old), ("+U", new), ("-U", new), ("+I", old), ("+U", new))
    assert [op for op, _ in read(name, messages, columns="id BIGINT, n BIGINT")] == ["-D", "+I", "-D", "+I", "+I"]


def test_keys_and_tombstones() -> None:
    columns = "id BIGINT, n TEXT, PRIMARY KEY (id)"
    rows = [("-D", {"id": 1, "n": "x"}), ("+I", {"id": 2, "n": "y"})]
    messages = encoded("debezium-json", columns, *rows, tombstones=True)
    assert messages.keys.to_pylist() == [b'{"id":1}', b'{"id":1}', b'{"id":2}']
    assert [value is None for value in messages.values.to_pylist()] == [False, True, False]
    assert read("debezium-json", messages) == rows
    [key, _] = encoded("maxwell-json", columns, *rows).keys.to_pylist()
    assert key == b'{"database":"shop","table":"orders","pk.id":1}'
    assert encoded("canal-json", "id BIGINT", ("-D", {"id": 1}), tombstones=True).keys.to_pylist() == [None]


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_two_tables_never_have_the_same_key_in_a_shared_topic(name: str) -> None:
    schema = parse_columns("id BIGINT, n TEXT, PRIMARY KEY (id)", key_path="test")
    rows = changelog(schema, ("-D", {"id": 1, "n": "x"}))
    tables = [TableId("shop", "orders"), TableId("shop", "items"), TableId("a.b", "c"), TableId("a", "b.c")]
    written = [make(name, table_in_key=True, tombstones=True).encoder(table, schema).encode(rows) for table in tables]
    assert len({key for messages in written for key in messages.keys.to_pylist()}) == len(tables)
    assert read(name, written[0]) == [("-D", {"id": 1, "n": "x"})]


def test_the_bytes_are_these() -> None:
    columns = "id BIGINT, name VARCHAR(20), price DECIMAL(6,2), PRIMARY KEY (id)"
    rows = [
        ("-U", {"id": 1, "name": "ü", "price": Decimal("1.50")}),
        ("+U", {"id": 1, "name": 'q"', "price": Decimal(2)}),
    ]
    assert encoded("maxwell-json", columns, *rows).values[0].as_py().decode() == (
        '{"database":"shop","table":"orders","primary_key_columns":["id"],"type":"update","ts":1700000000,'
        '"data":{"id":1,"name":"q\\"","price":2.00},"old":{"name":"ü","price":1.50}}'
    )
    assert encoded("canal-json", columns, *rows).values[0].as_py().decode() == (
        '{"data":[{"id":"1","name":"q\\"","price":"2.00"}],"database":"shop","es":1700000000000,"id":0,"isDdl":false,'
        '"mysqlType":{"id":"bigint","name":"varchar(20)","price":"decimal(6,2)"},'
        '"old":[{"name":"ü","price":"1.50"}],"pkNames":["id"],"sql":"","sqlType":{"id":-5,"name":12,"price":3},'
        '"table":"orders","ts":1700000000000,"type":"UPDATE"}'
    )
    assert encoded("debezium-json", columns, *rows).values[0].as_py().decode() == (
        '{"before":{"id":1,"name":"ü","price":"AAAAAAAAAAAAAAAAAAAAlg=="},'
        '"after":{"id":1,"name":"q\\"","price":"AAAAAAAAAAAAAAAAAAAAyA=="},'
        '"source":{"version":"1","connector":"raycdc","name":"raycdc","ts_ms":1700000000000,"db":"shop",'
        '"table":"orders"},"op":"u","ts_ms":1700000000000}'
    )


@pytest.mark.parametrize("name", ["canal-json", "debezium-json"])
def test_a_truncation_is_told_where_the_format_can(name: str) -> None:
    schema = parse_columns("id BIGINT", key_path="test")
    encoder = make(name).encoder(TABLE, schema)
    message = encoder.encode_change(TruncateTableEvent(TABLE), ts_ms=5)
    batch = MessageBatch(Origin("t"), pa.array([message], pa.binary()), np.zeros(1, np.int64))
    assert TruncateTableEvent(TABLE) in events_of(make(name).decoder().decode(batch))
    assert make("maxwell-json").encoder(TABLE, schema).encode_change(TruncateTableEvent(TABLE), ts_ms=5) is None
    assert RowKind.TRUNCATE.symbol == "T"
