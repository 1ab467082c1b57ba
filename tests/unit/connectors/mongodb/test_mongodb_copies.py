"""Documents into columns and back into documents: the same bytes, but for the order of fields."""

from __future__ import annotations

import struct
from typing import Any

import bson
import pyarrow as pa
import pytest

from raycdc.connectors.mongodb.bson.decoder import DocumentDecoder
from raycdc.connectors.mongodb.layout import (
    FIELDS,
    CollectionLayout,
    OnTypeMismatch,
    Spelling,
    declared,
    parse_type,
    whole_documents,
)
from raycdc.errors import SinkError
from raycdc.model import Column, TableId, TableSchema
from raycdc.sinks.mongodb import writing

_KEY = b"\x02_id\0\x02\0\0\0k\0"
#: Elements called v whose values no driver makes, or which it reads as something else.
_ODD = {
    "symbol": b"\x0ev\0\x02\0\0\0s\0",
    "undefined": b"\x06v\0",
    "pointer": b"\x0cv\0\x02\0\0\0c\0" + bytes(range(12)),
    "code with scope": b"\x0fv\0" + struct.pack("<ii", 15, 2) + b"f\0" + b"\x05\0\0\0\0",
    "old binary": b"\x05v\0\x07\0\0\0\x02\x03\0\0\0old",
    "own binary": b"\x05v\0\x03\0\0\0\x80own",
    "short uuid": b"\x05v\0\x03\0\0\0\x04own",
    "nan with a payload": b"\x01v\0" + struct.pack("<Q", 0xFFF8000000000123),
    "decimal nan with a sign": b"\x13v\0" + bytes(15) + b"\xfc",
    "no unicode": b"\x02v\0\x03\0\0\0\xff\xfe\0",
    "twice": b"\x10v\0\x01\0\0\0\x10v\0\x02\0\0\0",
    "null": b"\x0av\0",
    "regex": b"\x0bv\0a\0i\0",
    "timestamp": b"\x11v\0\x01\0\0\0\0\0\0\0",
    "keys": b"\xffv\0\x7fw\0",
}
_TYPES = ["json", "string", "int", "long", "double", "float", "date", "day", "uuid", "objectId", "binData(2)"]
_TYPES += ["bool", "decimal128", "decimal(10,2)", "decimal(38,2)", "binData(128)"]


def document(elements: bytes) -> bytes:
    body = _KEY + elements + b"\0"
    return (len(body) + 4).to_bytes(4, "little") + body


def written(layout: CollectionLayout, *documents: bytes, columns: dict[str, pa.Array] | None = None) -> list[bytes]:
    decoder = DocumentDecoder(layout, collection="shop.orders")
    batches = [*decoder.decode(b"".join(documents)), *decoder.flush()]
    schema = layout.schema()
    (batch,) = batches
    for name, values in (columns or {}).items():
        batch = batch.append_column(name, values)
        schema = TableSchema((*schema.columns, Column(name, parse_type("int"))), schema.primary_key)
    target = writing.DocumentLayout(TableId("shop", "copy"), schema, "me")
    found = b"".join(statement.documents for statement in target.inserts([batch]))
    cut = []
    while found:
        size = int.from_bytes(found[:4], "little")
        cut.append(found[:size])
        found = found[size:]
    return cut


@pytest.mark.parametrize("odd", _ODD)
def test_a_whole_document_is_the_same_again(odd: str) -> None:
    given = document(_ODD[odd] + b"\x10last\0\x01\0\0\0")
    layout = whole_documents(None, json=Spelling.BSON)
    assert written(layout, given, document(b"")) == [given, document(b"")]


@pytest.mark.parametrize("type_", _TYPES)
@pytest.mark.parametrize("odd", sorted(_ODD.keys() - {"twice"}))
def test_a_value_that_a_column_would_change_is_written_as_it_was(odd: str, type_: str) -> None:
    layout = declared(
        {"_id": parse_type("string"), "v": parse_type(type_)}, json=Spelling.BSON, on_type_mismatch=OnTypeMismatch.REST
    )
    assert written(layout, document(_ODD[odd]), document(b"")) == [document(_ODD[odd]), document(b"")]


@pytest.mark.parametrize("type_", _TYPES)
def test_equal_values_of_other_types_stay_what_they_are(type_: str) -> None:
    layout = declared(
        {"_id": parse_type("string"), "v": parse_type(type_)}, json=Spelling.BSON, on_type_mismatch=OnTypeMismatch.REST
    )
    values: list[Any] = [1, bson.Int64(1), 1.0, True, bson.DatetimeMS(0), "1", None, bson.ObjectId(), bytes(16)]
    values += [bson.Decimal128(text) for text in ("1.00", "1.0", "1", "-0.00", "0.00", "1E+2", "1E+6111", "Infinity")]
    values += [0.1, 0.5, -0.0, bson.DatetimeMS(2**62), bson.DatetimeMS(1), bson.Binary(bytes(16), 4)]
    given = [bson.encode({"_id": "k", "v": value}) for value in values]
    assert written(layout, *given) == given


def test_what_cannot_be_written_is_named() -> None:
    layout = declared({"_id": parse_type("string")}, json=Spelling.BSON, on_type_mismatch=OnTypeMismatch.REST)
    for elements, why in [
        (b"\x10$set\0\x01\0\0\0", "begins with a dollar sign"),
        (b"\x11t\0" + bytes(8), "an empty timestamp"),
    ]:
        with pytest.raises(SinkError, match=rf"a row with its key in \(_id\) cannot be written.*{why}"):
            written(layout, document(b""), document(elements))
    with pytest.raises(SinkError, match="a field that a column has, too"):
        written(layout, document(b"\x10v\0\x01\0\0\0"), columns={"v": pa.array([5], pa.int32())})
    twice = declared(
        {"_id": parse_type("string"), "v": parse_type("int")}, json=Spelling.BSON, on_type_mismatch=OnTypeMismatch.REST
    )
    with pytest.raises(SinkError, match="a field that a column has, too"):
        written(twice, document(_ODD["twice"]))
    assert FIELDS in [column.type for column in layout.columns]


def test_a_text_that_is_no_identifier_is_named() -> None:
    schema = TableSchema((Column("id", parse_type("objectId"), nullable=False),), ("id",))
    layout = writing.DocumentLayout(TableId("shop", "copy"), schema, "me")
    batch = pa.RecordBatch.from_arrays([pa.array(["0" * 24, "A" * 24, "x" * 24])], names=["id"])
    with pytest.raises(
        SinkError, match=r"its key in \(id\) cannot be written. Column id has a text that is no objectId"
    ):
        list(layout.inserts([batch]))
    (done,) = layout.inserts([batch.slice(0, 2)])
    assert [one["_id"] for one in bson.decode_all(done.documents)] == [
        bson.ObjectId("0" * 24),
        bson.ObjectId("a" * 24),
    ]
