"""Keys of rows as a text, which commands, states and messages have: exactly as Arrow has them, of whatever type."""

from __future__ import annotations

import base64

import pyarrow as pa
from pyarrow import ipc

from raycdc.errors import StateError

#: Keys of one SELECT.
KEYS_AT_ONCE = 500


def text_of_keys(keys: pa.Table) -> str:
    """The rows of `keys`, whose columns are a primary key's; empty for none."""
    if not keys.num_rows:
        return ""
    sink = pa.BufferOutputStream()
    options = ipc.IpcWriteOptions(compression="zstd")
    with ipc.new_stream(sink, keys.schema.remove_metadata(), options=options) as writer:
        writer.write_table(keys)
    return base64.b64encode(sink.getvalue()).decode("ascii")


def lists_of_keys(keys: pa.Table) -> tuple[str, ...]:
    """The rows of `keys` as texts of at most `KEYS_AT_ONCE` each."""
    firsts = range(0, keys.num_rows, KEYS_AT_ONCE)
    return tuple(text_of_keys(keys.slice(first, KEYS_AT_ONCE)) for first in firsts)


def keys_of_text(text: str) -> pa.Table:
    """Inverse of `text_of_keys`, for a text that is not empty. `StateError` for one that is no such text."""
    try:
        with ipc.open_stream(base64.b64decode(text, validate=True)) as reader:
            return reader.read_all()
    except (ValueError, OSError, pa.ArrowException) as cause:
        raise StateError(f"A list of keys cannot be read: {cause}.") from cause
