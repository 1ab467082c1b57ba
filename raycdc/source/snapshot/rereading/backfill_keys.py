"""The keys of a backfill's rows: a chunk deletes a row with such a key unless the source still has the row. In
commands, states and messages, keys are a text that contains them in Arrow's format, so keys of all types are exact.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence

import pyarrow as pa
from pyarrow import ipc

from raycdc.errors import StateError, TableChangedError
from raycdc.model.keys import comparable, without
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.handoff.fold import deletes
from raycdc.source.split import SnapshotSplit

#: The number of keys in one SELECT.
KEYS_AT_ONCE = 500


def text_of_keys(keys: pa.Table) -> str:
    """Return the rows of `keys`, whose columns are those of a primary key, as a text; empty for no rows."""
    if not keys.num_rows:
        return ""
    sink = pa.BufferOutputStream()
    options = ipc.IpcWriteOptions(compression="zstd")
    with ipc.new_stream(sink, keys.schema.remove_metadata(), options=options) as writer:
        writer.write_table(keys)
    return base64.b64encode(sink.getvalue()).decode("ascii")


def lists_of_keys(keys: pa.Table) -> tuple[str, ...]:
    """Return the rows of `keys` as texts of at most `KEYS_AT_ONCE` rows each."""
    firsts = range(0, keys.num_rows, KEYS_AT_ONCE)
    return tuple(text_of_keys(keys.slice(first, KEYS_AT_ONCE)) for first in firsts)


def keys_of_text(text: str) -> pa.Table:
    """Return the keys of a text made by `text_of_keys`. Raises `StateError` for any other non-empty text."""
    try:
        with ipc.open_stream(base64.b64decode(text, validate=True)) as reader:
            return reader.read_all()
    except (ValueError, OSError, pa.ArrowException) as cause:
        raise StateError(f"A list of keys cannot be read: {cause}.") from cause


def distinct_lists(texts: Sequence[str]) -> tuple[list[str], int]:
    """Return lists of the same keys, each key once, and the number of keys. The lists may be of several targets."""
    keys = [keys_of_text(text) for text in texts if text]
    if len({table.schema for table in keys}) != 1:
        return list(texts), sum(table.num_rows for table in keys)
    every = pa.concat_tables(keys)
    once = every.group_by(every.column_names).aggregate([]).select(every.column_names)
    return list(lists_of_keys(once)), once.num_rows


class DeletedKeys:
    """The keys of rows that a chunk deletes, unless the SELECT returns rows with these keys
    (`raycdc.source.split.BackfillRows`).
    """

    def __init__(self, split: SnapshotSplit, document: SchemaDocument) -> None:
        named = split.again is not None and split.again.keys
        self._left: pa.Table | None = keys_of_text(named) if named else None
        self._document = document

    def observe(self, batch: pa.RecordBatch) -> None:
        """Note that the chunk has these rows."""
        if self._left is not None:
            try:
                rows = pa.Table.from_batches([batch]).select(self._left.column_names)
                self._left = self._left.filter(pa.array(without(self._left, comparable(rows, rows.column_names))))
            except (KeyError, pa.ArrowException) as cause:
                raise _changed(cause) from cause

    def deleted(self, *, first: int) -> pa.RecordBatch | None:
        """Return the deletions of the keys that the source lacks, numbered from `first`; None if there are none."""
        if self._left is None or not self._left.num_rows:
            return None
        try:
            return deletes(self._left, self._document.schema, first=first, read_ms=time.time_ns() // 1_000_000)
        except pa.ArrowException as cause:
            raise _changed(cause) from cause


def _changed(cause: Exception) -> TableChangedError:
    """Return the error of a table whose key columns changed since the backfill began; only the backfill ends."""
    return TableChangedError(f"The table has other key columns than when the backfill began: {cause}")
