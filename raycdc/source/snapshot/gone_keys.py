"""The keys that a chunk of a backfill is to delete unless its rows have them. Used while the chunk is read."""

from __future__ import annotations

import time

import pyarrow as pa

from raycdc.errors import TableChangedError
from raycdc.model.keys import comparable, without
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.fold import deletes
from raycdc.source.snapshot.key_list import keys_of_text
from raycdc.source.split import SnapshotSplit


class GoneKeys:
    """The keys that a chunk is to delete unless its rows have them (`raycdc.source.split.RowsAgain`)."""

    def __init__(self, split: SnapshotSplit, document: SchemaDocument) -> None:
        named = split.again is not None and split.again.keys
        self._left: pa.Table | None = keys_of_text(named) if named else None
        self._document = document

    def look(self, batch: pa.RecordBatch) -> None:
        """The chunk has these rows."""
        if self._left is not None:
            try:
                rows = pa.Table.from_batches([batch]).select(self._left.column_names)
                self._left = self._left.filter(pa.array(without(self._left, comparable(rows, rows.column_names))))
            except (KeyError, pa.ArrowException) as cause:
                raise _changed(cause) from cause

    def deleted(self, *, first: int) -> pa.RecordBatch | None:
        """The deletes of those that it has not, numbered from `first`; None where there are none."""
        if self._left is None or not self._left.num_rows:
            return None
        try:
            return deletes(self._left, self._document.schema, first=first, read_ms=time.time_ns() // 1_000_000)
        except pa.ArrowException as cause:
            raise _changed(cause) from cause


def _changed(cause: Exception) -> TableChangedError:
    """Its backfill is over, and nothing else."""
    return TableChangedError(f"The table has other key columns than when the backfill began: {cause}")
