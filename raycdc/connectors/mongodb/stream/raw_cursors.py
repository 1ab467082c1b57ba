"""Cursors whose batches are bytes, as the driver's raw ones are, without an object for each document in them.

The driver takes a reply apart document by document before it puts them together again, which is most of what reading
raw batches costs. Here a compiled loop does it (`bson.reply_loops`); the driver reads all other replies as ever.
"""

from __future__ import annotations

from typing import Any

import bson
import numpy as np
from pymongo.cursor import RawBatchCursor
from pymongo.synchronous.command_cursor import RawBatchCommandCursor

from raycdc.connectors.mongodb.bson.documents import Document
from raycdc.connectors.mongodb.bson.reply_loops import find_batch, join_documents


def reply_of(payload: bytes | memoryview) -> Document | None:
    """A reply whose batch is one piece of bytes (none where it is empty); None for one that has no batch.

    Damage within documents is not looked for.
    """
    data = np.frombuffer(payload, np.uint8)
    cursor, field, array, end = (int(place) for place in find_batch(data))
    if end < 0:
        return None
    documents = np.empty(end - array, np.uint8)
    size = int(join_documents(data, array, end, documents))
    if size < 0:
        return None
    rest = bytearray(payload[:field]) + bytearray(payload[end:])
    for place in (0, cursor):
        length = int.from_bytes(rest[place : place + 4], "little") - (end - field)
        rest[place : place + 4] = length.to_bytes(4, "little")
    reply: Document = bson.decode(bytes(rest))
    name = "firstBatch" if bytes(payload[field + 1 : field + 6]) == b"first" else "nextBatch"
    reply["cursor"][name] = [documents[:size].tobytes()] if size else []
    return reply


class RawFind(RawBatchCursor[Any]):
    """`Collection.find_raw_batches`."""

    def _unpack_response(self, response: Any, *args: Any, **options: Any) -> Any:
        reply = reply_of(response.raw_command_response())
        return super()._unpack_response(response, *args, **options) if reply is None else [reply]


class RawCommandCursor(RawBatchCommandCursor[Any]):
    """`Collection.aggregate_raw_batches`, of a cursor that is open."""

    def _unpack_response(self, response: Any, *args: Any, **options: Any) -> Any:
        reply = reply_of(response.raw_command_response())
        return super()._unpack_response(response, *args, **options) if reply is None else [reply]
