"""Compiles all loops of the connector, so that no reader compiles at its first document."""

from __future__ import annotations

import struct

import bson
import numpy as np

from raycdc.connectors.mongodb.bson.decoder import DocumentDecoder
from raycdc.connectors.mongodb.bson.size_loops import larger_than
from raycdc.connectors.mongodb.layout import OnTypeMismatch, Spelling, declared, parse_type
from raycdc.connectors.mongodb.stream.events import Scanner
from raycdc.connectors.mongodb.stream.raw_stream import reply_of

_DOCUMENT = b"\x10_id\0\x01\0\0\0\x02s\0\x02\0\0\0x\0"


def compile_all() -> None:
    """Compile every loop, or load it from the cache. Takes about a quarter of a minute the first time."""
    layout = declared({"_id": parse_type("int")}, json=Spelling.RELAXED, on_type_mismatch=OnTypeMismatch.REST)
    decoder = DocumentDecoder(layout, collection="d.c")
    documents = struct.pack("<i", len(_DOCUMENT) + 5) + _DOCUMENT + b"\0"
    for _ in (*decoder.decode(documents), *decoder.flush()):
        pass
    larger_than(np.frombuffer(documents, np.uint8), 0)
    for _ in decoder.decode_at(documents, np.zeros(1, np.int64)):
        pass
    reply_of(bson.encode({"cursor": {"nextBatch": [{}]}}))
    Scanner(lambda _: True).scan(struct.pack("<i", 5) + b"\0")
