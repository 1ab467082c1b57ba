"""Which chunk of a table a row belongs to: the order of chunk keys, and an index of chunks in that order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from raycdc.model import TableId
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.chunk_key import ChunkKey
from raycdc.source.snapshot.intervals import Interval, SortKey, cells
from raycdc.source.snapshot.log_rows import LogRows, key_values
from raycdc.source.snapshot.open_chunk import OpenChunk

#: How the hand-off judges a row; from `HOLD` on the number of the open chunk is added.
DROP = 0
EMIT = 1
HOLD = 2


class KeyOrder(Protocol):
    """Orders chunk keys as the server does. May ask the server (string collations)."""

    def use(self, table: TableId, key: ChunkKey | None, document: SchemaDocument) -> None:
        """`table` begins again: as `document` has it, cut by `key`. Tables of the start are known without."""

    def forget(self, table: TableId) -> None:
        """`table` is live, or gone: nothing is asked about it until it begins again."""

    def bound(self, table: TableId, raw: Any) -> SortKey:
        """Sort key of a chunk's bound."""

    def classify(self, table: TableId, keys: pa.Array, bounds: Sequence[SortKey]) -> np.ndarray:
        """For each key the number of `bounds` (ascending) that are ≤ it, or -1 for NULL; int64.

        Keys of several columns come as a struct of them.
        """


@dataclass(frozen=True, slots=True, eq=False)
class KeyIndex:
    """The key line of one table, cut at every bound of a chunk, with the judgement of each piece.

    It is built again whenever a chunk is opened, let go or published, and never changed.
    """

    #: The open chunks by their number.
    split_ids: tuple[str, ...]
    bounds: Sequence[SortKey]
    #: Judgement of the keys below the first bound, of those from each bound on, and of NULL.
    codes: np.ndarray
    null_code: int

    @classmethod
    def of(cls, closed: Iterable[Interval], chunks: Mapping[str, OpenChunk], *, null_closed: bool) -> KeyIndex:
        """The index over ranges that are `closed`, and the open `chunks`."""
        layers = [(interval, EMIT) for interval in closed]
        numbered = list(enumerate(chunks.values()))
        layers += [(chunk.interval, HOLD + number) for number, chunk in numbered if chunk.interval is not None]
        bounds, codes = cells(layers, default=DROP)
        nulls = [HOLD + number for number, chunk in numbered if chunk.holds_null]
        null_code = nulls[0] if nulls else EMIT if null_closed else DROP
        return cls(tuple(chunks), bounds, np.array(codes, np.int64), null_code)

    def judge(self, rows: LogRows, key: ChunkKey | None, order: KeyOrder) -> np.ndarray:
        """DROP, EMIT or HOLD + number of the open chunk, per row."""
        if key is None:
            return np.full(rows.batch.num_rows, self.codes[0], np.int64)
        cell = order.classify(rows.table, key_values(rows.batch, key), self.bounds)
        judged: np.ndarray = np.where(cell < 0, self.null_code, self.codes[np.maximum(cell, 0)])
        return judged

    def code_of(self, split_id: str) -> int:
        """The judgement of rows that this open chunk holds."""
        return HOLD + self.split_ids.index(split_id)
