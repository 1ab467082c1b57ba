"""The reading interfaces of a connector: blocking calls, each used by one fetcher thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.log.log_unit import LogUnit
from raycdc.source.split import OpenedAt, SnapshotSplit


@dataclass(frozen=True, slots=True)
class HighWatermark:
    """An upper bound of what a chunk's SELECT saw, as an ordinal; `exact`: just that.

    So ordinals must order everything that one SELECT can see: no row that it saw may come later in the log with an
    ordinal above H, because that row would come twice. A sum of the positions of several tables is no such order: the
    log may tell their rows in another order than they were written in. It is enough for a source without a snapshot.
    Where rows are only appended, a chunk can read up to the position of `OpenedAt`, and H is exactly the ordinal that
    the connector makes of that position.

    `log_end` bounds which tables the SELECT may have seen under the chunk's name: the log's end, asked for after the
    SELECT, or H itself where nothing can take the name between the place of H and the SELECT.
    """

    ordinal: int
    exact: bool
    log_end: int


class BlockingLog(Protocol):
    """A connector's blocking reader of one log, from where its stream split says. Used by one thread, but `wake_up`."""

    def fetch(self) -> LogUnit | None:
        """Block until something arrived, or for a moment. Raises what ends the reader.

        None says that the log had nothing else: it counts as seen up to now, so a server that is silent for longer than
        it should be is waited for.
        """

    def wake_up(self) -> None:
        """Make a blocked `fetch` return soon. Any thread may call it."""

    def close(self) -> None: ...


class ChunkReader(Protocol):
    """A connector's blocking reader of chunks. Used by one thread."""

    def read(self, split: SnapshotSplit, *, opened_at: OpenedAt, document: SchemaDocument) -> Iterator[pa.RecordBatch]:
        """Rows of the chunk as changelog batches (inserts, `_seq` from 0), begun only when `opened_at` is visible.

        `TableChangedError` where the table is another one than the `document` says, and `TableLockedError` where
        somebody has it locked for more than a moment, which ends the attempt; none of a table that is read as of a
        place, as the log stands meanwhile.
        """

    def high_watermark(self) -> HighWatermark:
        """Of the chunk just read to its end."""

    def log_end(self, opened_at: OpenedAt) -> HighWatermark:
        """The end now of the log that `opened_at` is a place in: before it the log says how a table was changed that a
        chunk did not find as described.

        Asked of a new reader: the one that raised `TableChangedError` is closed.
        """

    def wake_up(self) -> None: ...

    def close(self) -> None: ...
