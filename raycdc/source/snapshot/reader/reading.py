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
    """The upper bound H, an ordinal, of the rows that a chunk's SELECT saw.

    `exact`: it saw all rows up to H.

    Ordinals must therefore order everything that one SELECT can see: no row that it saw may come later in the log with
    an ordinal above H, because that row would be delivered twice. A sum of the positions of several tables is no such
    order, because the log may deliver their rows in another order than they were written in; it is sufficient only for
    a source without a snapshot. If rows are only appended, a chunk can read up to the position of `OpenedAt`, and H is
    exactly the ordinal of that position.

    `log_end` bounds which tables the SELECT may have seen under the chunk's name: the log's end, asked for after the
    SELECT, or H itself if no other table can take the name between the position of H and the SELECT.
    """

    ordinal: int
    exact: bool
    log_end: int


class BlockingLog(Protocol):
    """A connector's blocking reader of one log, from the position of its stream split.

    Except for `wake_up`, one thread calls it.
    """

    def fetch(self) -> LogUnit | None:
        """Return the next units; block until something arrives, or for a moment.

        Raises errors that end the reader.

        None means that the log had nothing else, and counts as seen up to now. If a server is silent for longer than it
        should be, wait instead of returning None.
        """

    def wake_up(self) -> None:
        """Make a blocked `fetch` return soon. Any thread may call it."""

    def close(self) -> None: ...


class ChunkReader(Protocol):
    """A connector's blocking reader of chunks. Used by one thread."""

    def read(self, split: SnapshotSplit, *, opened_at: OpenedAt, document: SchemaDocument) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the chunk as changelog batches (inserts, `_seq` from 0) once `opened_at` is visible.

        Raises `TableChangedError` if the table differs from the `document`, and `TableLockedError` if it stays locked
        for more than a moment, which ends the attempt. A table read as of a position raises no `TableLockedError`,
        because the log waits meanwhile.
        """

    def high_watermark(self) -> HighWatermark:
        """Return the high watermark of the chunk just read to its end."""

    def log_end(self, opened_at: OpenedAt) -> HighWatermark:
        """Return the present end of the log of `opened_at`, before which the log explains how the table changed.

        Called on a new reader: the one that raised `TableChangedError` is closed.
        """

    def wake_up(self) -> None: ...

    def close(self) -> None: ...
