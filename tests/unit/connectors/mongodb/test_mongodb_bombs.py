"""Documents within MongoDB's 16 MB that are made to cost much: they are read in bounded memory, or refused by name."""

from __future__ import annotations

import struct
from collections.abc import Callable

import bson
import pyarrow as pa
import pytest

from raycdc.connectors.mongodb.bson.decoder import DocumentDecoder
from raycdc.connectors.mongodb.layout import (
    CollectionLayout,
    OnTypeMismatch,
    Spelling,
    declared,
    parse_type,
    whole_documents,
)
from raycdc.errors import DataError

#: A quarter of the most that a server takes, for time's sake.
SIZE = 15 << 18
#: Nothing becomes larger than this, as text, for each byte that came: an empty name and MinKey have two bytes, and
#: ``"":{"$minKey":1},`` has 17; the buffers of text are grown by doubling.
FACTOR = 18
_ID = b"\x10_id\0\x07\0\0\0"


def document(elements: bytes) -> bytes:
    body = _ID + elements + b"\0"
    return struct.pack("<i", len(body) + 4) + body


def within(kind: bytes, body: bytes) -> bytes:
    """An element ``v`` with a document or an array."""
    return kind + b"v\0" + struct.pack("<i", len(body) + 5) + body + b"\0"


def nested(levels: int) -> bytes:
    body = b""
    for _ in range(levels):
        body = b"\x04" + b"0\0" + struct.pack("<i", len(body) + 5) + body + b"\0"
    return document(within(b"\x04", body))


def deeper(levels: int) -> bytes:
    """Like `nested`, made without copying all for each level."""
    sizes = [5 + (7 + 1) * level for level in range(levels)]
    head = b"".join(b"\x040\0" + struct.pack("<i", size) for size in reversed(sizes))
    return document(b"\x04v\0" + struct.pack("<i", len(head) + levels + 5) + head + bytes(levels + 1))


NESTED: dict[str, bytes] = {
    "as deep as may be": nested(150),
    "deeper": nested(300),
    "a quarter of a million levels": deeper(1 << 18),
}
WIDE: dict[str, Callable[[], bytes]] = {
    "nulls": lambda: document(within(b"\x04", b"\x0a0\0" * (SIZE // 3))),
    "least keys": lambda: document(within(b"\x03", b"\xff\0" * (SIZE // 2))),
    "empty arrays": lambda: document(within(b"\x04", b"\x04\0\x05\0\0\0\0" * (SIZE // 7))),
    "control characters": lambda: document(b"\x02v\0" + struct.pack("<i", SIZE + 1) + b"\x01" * SIZE + b"\0"),
    "one long name": lambda: document(within(b"\x03", b"\x0a" + b"n" * SIZE + b"\0")),
    "fields": lambda: document(b"".join(b"\x0a" + str(n).encode() + b"\0" for n in range(10, 510_000))),
}


def layouts() -> dict[str, CollectionLayout]:
    types = {name: parse_type(text) for name, text in {"_id": "int", "v": "json"}.items()}
    return {
        "a column": declared(types, json=Spelling.RELAXED, on_type_mismatch=OnTypeMismatch.REST),
        "whole": whole_documents(parse_type("int"), json=Spelling.RELAXED),
    }


def read(layout: CollectionLayout, raw: bytes) -> pa.Table:
    decoder = DocumentDecoder(layout, collection="shop.orders")
    return pa.Table.from_batches([*decoder.decode(raw), *decoder.flush()], layout.schema().arrow())


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("kept", ["a column", "whole"])
def test_a_document_that_is_nested_deep_is_read_or_refused(name: str, kept: str) -> None:
    if name == "as deep as may be":
        assert read(layouts()[kept], NESTED[name]).num_rows == 1
        return
    with pytest.raises(DataError, match=r"shop\.orders: .*(nested|no BSON)"):
        read(layouts()[kept], NESTED[name])


@pytest.mark.parametrize("name", WIDE)
def test_a_document_that_is_wide_takes_memory_in_proportion(name: str) -> None:
    raw = WIDE[name]()
    assert SIZE <= len(raw) <= 16 << 18
    table = read(layouts()["a column"], raw)
    assert table.num_rows == 1
    assert table.nbytes <= FACTOR * len(raw)


@pytest.mark.parametrize("size", [-1, 0, 2, 0x7FFFFFFF])
@pytest.mark.parametrize("kind", [b"\x02", b"\x03", b"\x04", b"\x05"])
def test_a_length_that_lies_is_damage(size: int, kind: bytes) -> None:
    with pytest.raises(DataError, match="what the server sent is no BSON"):
        read(layouts()["a column"], document(kind + b"v\0" + struct.pack("<i", size) + b"abc\0"))


def test_the_bombs_are_bson() -> None:
    assert bson.decode(nested(3)) == {"_id": 7, "v": [[[[]]]]}
    assert bson.decode(deeper(3)) == {"_id": 7, "v": [[[[]]]]}
