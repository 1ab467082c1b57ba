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
    """An upper bound, as an ordinal, of the rows that a chunk's SELECT saw; `exact`: all rows up to it.

    Ordinals must therefore order everything that one SELECT can see: no row that it saw may come later in the log with
    an ordinal above H, because that row would be delivered twice. A sum of the positions of several tables is no such
    order, because the log may deliver their rows in another order than they were written in; it is sufficient only for
    a source without a snapshot. If rows are only appended, a chunk can read up to the position of `OpenedAt`, and H is
    exactly the ordinal of that position.

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
