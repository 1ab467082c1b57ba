"""Segments in memory: what a reader's spool holds, surviving the reader."""

from __future__ import annotations

import pyarrow as pa

from raycdc.bridge.segment import SegmentContents
from raycdc.checkpoint.manifest import Segment

#: Who wrote a segment: (generation, subtask, incarnation).
Author = tuple[int, int, int]


class MemorySpool:
    """All finished segments of all readers. Reading a deleted one is an error, as it is on disk."""

    def __init__(self) -> None:
        self._batches: dict[str, list[pa.RecordBatch]] = {}
        #: Who wrote what, deleted segments included.
        self.authors: dict[str, Author] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._batches

    def put(self, kind: str, batches: list[pa.RecordBatch], author: Author) -> str:
        """Keep a finished segment; returns its path."""
        path = f"{kind}-{len(self.authors)}"
        self._batches[path] = batches
        self.authors[path] = author
        return path

    def read(self, path: str) -> pa.Table:
        if path not in self._batches:
            raise FileNotFoundError(path)
        return pa.Table.from_batches(self._batches[path])

    def delete(self, path: str) -> None:
        """Harmless when it is gone already, like unlink with missing_ok."""
        self._batches.pop(path, None)


class MemorySegmentWriter:
    """`raycdc.bridge.SegmentWriter` without a disk."""

    def __init__(self, spool: MemorySpool, author: Author, contents: SegmentContents) -> None:
        self.rows = 0
        self.bytes = 0
        self._spool = spool
        self._author = author
        self._contents = contents
        self._batches: list[pa.RecordBatch] = []

    def append(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._batches.append(batch)
            self.rows += batch.num_rows
            self.bytes += batch.nbytes

    def finish(self, *, seq_base: int = 0) -> Segment:
        assert self.rows, "a segment without rows was finished"
        contents = self._contents
        path = self._spool.put(contents.kind, self._batches, self._author)
        return Segment(
            node="sim",
            path=path,
            flight="",
            table=contents.table,
            schema=contents.schema,
            split_id=contents.split_id,
            partition=contents.partition,
            kind=contents.kind,
            seq_base=seq_base,
            rows=self.rows,
            bytes=self.bytes,
            crc32=0,
        )

    def abort(self) -> None:
        self._batches.clear()
