"""Compiled loops that find the batch in a server's reply, and concatenate its documents.

A reply to ``find``, ``aggregate`` or ``getMore`` is ``{cursor: {nextBatch: [document, …], …}, …}`` (MongoDB manual,
"Database Commands"); in the array each document follows its index.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raycdc.connectors.mongodb.bson.code_loops import ARRAY, DOCUMENT
from raycdc.connectors.mongodb.bson.element_loops import container_end, name_end, value_end
from raycdc.core.compiled import copy
from raycdc.core.loops.compiling import helper, njit

_CURSOR, _FIRST, _NEXT = (np.frombuffer(name, np.uint8).copy() for name in (b"cursor", b"firstBatch", b"nextBatch"))


@helper
def _is(data: Any, at: Any, stop: Any, name: Any) -> Any:
    if stop - at != len(name):
        return False
    for i in range(len(name)):
        if data[at + i] != name[i]:
            return False
    return True


@helper
def _field(data: Any, at: Any, end: Any, kind: Any, name: Any, other: Any) -> Any:
    """Return the offsets of a field and of its value in the document at `at`, or -1.

    The field has this type and one of two names.
    """
    last = container_end(data, at, end)
    index = at + 4
    while last >= 0 and index < last - 1:
        stop = name_end(data, index + 1, last)
        over = np.int64(-1) if stop < 0 else value_end(data, np.int64(data[index]), stop + 1, last)
        if over < 0:
            return np.int64(-1), np.int64(-1)
        if data[index] == kind and (_is(data, index + 1, stop, name) or _is(data, index + 1, stop, other)):
            return index, stop + 1
        index = over
    return np.int64(-1), np.int64(-1)


@njit
def find_batch(data: Any) -> tuple[int, int, int, int]:
    """Return the offsets of the cursor, of the batch's field, of its array, and of the array's end; -1 if there is no
    batch.
    """
    _, cursor = _field(data, np.int64(0), len(data), DOCUMENT, _CURSOR, _CURSOR)
    if cursor < 0:
        return cursor, cursor, cursor, cursor
    field, array = _field(data, cursor, len(data), ARRAY, _FIRST, _NEXT)
    end = array if array < 0 else container_end(data, array, len(data))
    return cursor, field, array, end


@njit
def join_documents(data: Any, at: Any, end: Any, out: Any) -> int:
    """Copy the documents of the array in ``data[at:end]`` to `out`, which is as long.

    Returns the bytes, or -1 for damage.
    """
    index = at + 4
    to = 0
    while index < end - 1:
        stop = name_end(data, index + 1, end)
        over = np.int64(-1) if stop < 0 or data[index] != DOCUMENT else container_end(data, stop + 1, end)
        if over < 0:
            return -1
        copy(data, stop + 1, out, to, over - stop - 1)
        to += over - stop - 1
        index = over
    return to
