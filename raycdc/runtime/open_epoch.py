"""The segments of the open epoch: those being written, those that are full, and the chunks that were published into it.

`_seq` within an epoch: the decoder numbers all log rows of its connection in one run, emitted or not. The base of an
epoch's log segments maps the smallest number in it to the first of the epoch's counter; rows that were held since
earlier epochs have smaller numbers than the others, and so keep their true order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from raycdc.checkpoint.manifest import SEQ_COUNTER_BITS, Segment, seq_base
from raycdc.errors import DataError
from raycdc.model import TableId
from raycdc.source.protocol.metrics import CutProgress

#: A table's rows of one epoch go on in a new segment beyond this, so that several tasks can share them.
SEGMENT_BYTES_MAX = 64 << 20


class OpenSegment(Protocol):
    """A segment being written (`raycdc.bridge.SegmentWriter`, or the simulation's in memory)."""

    rows: int

    @property
    def bytes(self) -> int: ...

    def append(self, batch: pa.RecordBatch) -> None: ...

    def finish(self, *, seq_base: int = 0) -> Segment: ...

    def abort(self) -> None: ...


class OpenEpoch:
    """See the module's docstring. A cut ends it; the next epoch has an object of its own. Owned by the reader's thread.

    `partitions` are the hash partitions of each table with rows: as many all epoch long, or changes of one key would be
    in two of them.
    """

    def __init__(self) -> None:
        self.partitions: dict[TableId, int] = {}
        self._writers: dict[tuple[TableId, int], OpenSegment] = {}
        self._full: list[Segment] = []
        self._published: list[Segment] = []
        self._finished_bytes = 0
        self._seqs: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"OpenEpoch({len(self._writers)} files, {self.bytes} bytes, {len(self._published)} chunks)"

    @property
    def bytes(self) -> int:
        return self._finished_bytes + sum(writer.bytes for writer in self._writers.values())

    def number(self, batch: pa.RecordBatch) -> None:
        """Rows with the numbers of `batch`, which ascend, are part of the epoch."""
        first, last = batch.column("_seq")[0].as_py(), batch.column("_seq")[-1].as_py()
        known = self._seqs or (first, last)
        self._seqs = (min(first, known[0]), max(last, known[1]))

    def log_writer(self, table: TableId, partition: int, open_segment: Callable[[], OpenSegment]) -> OpenSegment:
        """Where the next rows of the log go. A full segment is finished, and another one is opened."""
        writer = self._writers.get((table, partition))
        if writer is not None and writer.bytes >= SEGMENT_BYTES_MAX:
            segment = self._writers.pop((table, partition)).finish()
            self._full.append(segment)
            self._finished_bytes += segment.bytes
            writer = None
        if writer is None:
            writer = self._writers[table, partition] = open_segment()
        return writer

    def publish(self, segments: Sequence[Segment]) -> None:
        """Finished segments of chunks are part of the epoch."""
        self._published += segments
        self._finished_bytes += sum(segment.bytes for segment in segments)

    def finish_log(self, epoch: int, on_progress: Callable[[CutProgress], None]) -> list[Segment]:
        """The segments of the log, durable on disk. Blocks for as long as the disk takes."""
        first, last = self._seqs or (0, 0)
        if last - first >= 1 << SEQ_COUNTER_BITS:
            raise DataError(
                f"Epoch {epoch} spans {last - first} rows of the log, held ones included; at most "
                f"{1 << SEQ_COUNTER_BITS} fit one. Read the snapshot in smaller chunks (source.snapshot.chunk_rows)."
            )
        base = seq_base(epoch, log=True) - first
        log = [dataclasses.replace(segment, seq_base=base) for segment in self._full]
        writers = [writer for writer in self._writers.values() if writer.rows]
        for number, writer in enumerate(writers, start=1):
            log.append(writer.finish(seq_base=base))
            on_progress(CutProgress(epoch, number, len(writers), sum(segment.bytes for segment in log)))
        return log

    def snapshot_segments(self, epoch: int) -> Iterator[Segment]:
        """The published segments, with their rows numbered through."""
        rows = 0
        for segment in self._published:
            yield dataclasses.replace(segment, seq_base=seq_base(epoch, log=False, offset=rows))
            rows += segment.rows

    def abort(self) -> list[Segment]:
        """Delete what is unfinished; the full segments are returned, which nobody needs either."""
        for writer in self._writers.values():
            writer.abort()
        return self._full
