"""Removes values of rows from texts for people: errors, reasons for parked tables, warnings, events, logs.

Such texts go to terminals, logs, tickets and chats, so none has a value of a row or of its key, with or without masks.
A text names the table, the column, the *names* of the key's columns and the position in the log; whole rows are in the
dead letters (``pipeline.on_bad_record``), in files that only their owner can read. A text of a library or a server,
which may quote the refused value, passes through `without_quotations`, or is left out. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyarrow as pa

from raycdc.model.schema import TableSchema

_INSTEAD = "…"
#: A text in quotes whose quotes are not within a word (``doesn't``), or a number that is no part of a word or version.
_QUOTED = re.compile(r"(?<!\w)'(?:[^']|''|'(?=\w))*'(?!\w)|\"(?:[^\"]|\"\")*\"")
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.]*\w)")


def row_named(batch: pa.RecordBatch, index: int, schema: TableSchema) -> str:
    """Return a name of the row of `batch` at `index`: its position in the log, if it has one, and the key's columns."""
    at = batch.column("_pos")[index].as_py() if "_pos" in batch.schema.names else ""
    row = f"the row at {at}" if at else "a row of the snapshot" if at is None else "a row"
    return f"{row} with its key in {key_named(schema.primary_key)}" if schema.primary_key else row


def key_named(names: Iterable[str]) -> str:
    """Return a name of a key by its columns: ``(tenant, id)``."""
    return f"({', '.join(names)})"


def without_quotations(text: str) -> str:
    """Return the `text` of a server or library that refuses a value, without its quoted parts and numbers."""
    return _NUMBER.sub(_INSTEAD, _QUOTED.sub(_INSTEAD, text))
