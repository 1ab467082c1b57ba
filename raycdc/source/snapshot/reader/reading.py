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
    """The upper bound H, an ordinal, of the rows that a chunk's SELECT saw. `exact` is True if the SELECT saw all rows
    up to H.

    A row that the SELECT saw must not come in the log with an ordinal above H, because it would be delivered twice.
    Ordinals must therefore order everything that one SELECT can see. For example, the sum of the positions of several
    tables is not sufficient, because the log may deliver their rows in another order than they were written in. (Such
    an ordinal is sufficient only for a source without a snapshot.) If rows are only appended, a chunk can read up to
    the position of `OpenedAt`, and H is exactly the ordinal of that position.

    `log_end` is the log's end, queried after the SELECT: statements after it cannot have decided which table the SELECT
    read. If no other table can take the name between the position of H and the SELECT, `log_end` may be H itself.
    """

    ordinal: int
    exact: bool
    log_end: int


class BlockingLog(Protocol):
    """A connector's blocking reader of one log, from the position of its stream split.

    Except for `wake_up`, one thread calls it.
    """

    def fetch(self) -> LogUnit | None:
        """Return the next units. Blocks until something arrives, or for a moment. Raises errors that end the reader.

        None means that the log has nothing more at this moment, so it counts as read up to now. If the server is silent
        for longer than it should be, this is unknown; wait instead of returning None.
        """

    def wake_up(self) -> None:
        """Make a blocked `fetch` return soon. Any thread may call it."""

    def close(self) -> None: ...


class ChunkReader(Protocol):
    """A connector's blocking reader of chunks. Used by one thread."""

    def read(self, split: SnapshotSplit, *, opened_at: OpenedAt, document: SchemaDocument) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the chunk as changelog batches (inserts, `_seq` from 0) once `opened_at` is visible.

        Raises `TableChangedError` if the table differs from `document`. Raises `TableLockedError`, which ends the
        attempt, if the table stays locked for more than a moment. If the table is read as of a position, wait for the
        lock instead, because the log reader waits for this table in any case.
        """

    def high_watermark(self) -> HighWatermark:
        """Return the high watermark of the chunk just read to its end."""

    def log_end(self, opened_at: OpenedAt) -> HighWatermark:
        """Return the present end of the log to which `opened_at` belongs. Called after `TableChangedError`: the log
        explains before this end how the table changed. The call is made on a new `ChunkReader`, because the one that
        raised the error is closed.
        """

    def wake_up(self) -> None: ...

    def close(self) -> None: ...
