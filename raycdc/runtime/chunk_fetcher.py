"""Reads chunks in a thread of its own, one after the other, into finished segments of no epoch.

The SELECT is the connector's (`ChunkReader`), the segment the bridge's; this joins the two and does the folding.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from raycdc.bridge import SegmentWriter, delete_there, read_segment
from raycdc.bridge.access import SegmentAccess
from raycdc.checkpoint.manifest import Segment
from raycdc.errors import TableChangedError
from raycdc.model.mask import Masks
from raycdc.runtime.output import SpoolAddress, segment_name
from raycdc.runtime.stopwatch import Stopwatch
from raycdc.source.protocol.api import ChunkRead
from raycdc.source.snapshot.fold import fold
from raycdc.source.snapshot.reading import ChunkReader
from raycdc.source.split import OpenedAt, SnapshotSplit
from raycdc.transform.masking import masked


class ChunkFetcher:
    """`raycdc.source.protocol.api.ChunkSource` around a connector's `ChunkReader`."""

    def __init__(
        self,
        open_reader: Callable[[], ChunkReader],
        *,
        spool: SpoolAddress,
        access: SegmentAccess,
        notify: Callable[[], None],
        stopwatch: Stopwatch,
        masks: Masks | None = None,
    ) -> None:
        self._open_reader = open_reader
        self._masks = masks or Masks()
        self._spool = spool
        self._access = access
        self._notify = notify
        self._stopwatch = stopwatch
        self._tasks: queue.SimpleQueue[Callable[[ChunkReader], ChunkRead] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[ChunkRead | BaseException] = queue.SimpleQueue()
        self._reader: ChunkReader | None = None
        self._thread = threading.Thread(target=self._run, name="chunk-fetcher", daemon=True)
        self._thread.start()

    def read(self, split: SnapshotSplit, *, opened_at: OpenedAt, document: Mapping[str, Any]) -> None:
        self._tasks.put(lambda reader: self._read(reader, split, opened_at, document))

    def fold(self, *, read: ChunkRead, delta: Sequence[Segment], document: Mapping[str, Any]) -> None:
        self._tasks.put(lambda _: self._fold(read, delta, document))

    def poll(self) -> ChunkRead | None:
        try:
            result = self._results.get_nowait()
        except queue.Empty:
            return None
        if isinstance(result, BaseException):
            raise result
        return result

    def discard(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            if self._access.is_own(segment):
                (self._spool.folder / segment.name).unlink(missing_ok=True)
            elif segment.flight:
                delete_there(segment, self._access)

    def close(self) -> None:
        self._tasks.put(None)
        if self._reader is not None:
            self._reader.wake_up()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        try:
            self._reader = self._open_reader()
            try:
                while (task := self._tasks.get()) is not None:
                    self._results.put(task(self._reader))
                    self._notify()
            finally:
                self._reader.close()
        except BaseException as error:  # noqa: BLE001 - surfaces from `poll`
            self._results.put(error)
            self._notify()

    def _read(
        self, reader: ChunkReader, split: SnapshotSplit, opened_at: OpenedAt, document: Mapping[str, Any]
    ) -> ChunkRead:
        try:
            return self._read_rows(reader, split, opened_at, document)
        except TableChangedError as changed:
            reader.close()
            self._reader = self._open_reader()
            end = self._reader.log_end(opened_at)
            return ChunkRead(split, end.ordinal, exact=False, segments=(), log_end=end.log_end, misfit=str(changed))

    def _read_rows(
        self, reader: ChunkReader, split: SnapshotSplit, opened_at: OpenedAt, document: Mapping[str, Any]
    ) -> ChunkRead:
        self._masks.check_key(split.table, document["primary_key"])
        writer = self._writer(split, document["fingerprint"])
        try:
            batches = iter(reader.read(split, opened_at=opened_at, document=document))
            while (batch := self._next(batches)) is not None:
                with self._stopwatch.running("chunk_write"):
                    writer.append(masked(batch, split.table, self._masks) if self._masks else batch)
            high = reader.high_watermark()
        except BaseException:
            with suppress(OSError):
                writer.abort()
            raise
        with self._stopwatch.running("chunk_write"):
            segments = (writer.finish(),) if writer.rows else ()
        return ChunkRead(split, high.ordinal, high.exact, segments, log_end=high.log_end)

    def _next(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        with self._stopwatch.running("chunk_read"):
            return next(batches, None)

    def _fold(self, read: ChunkRead, delta: Sequence[Segment], document: Mapping[str, Any]) -> ChunkRead:
        split = read.split
        changes = self._table(delta)
        chunk = self._table(read.segments) if read.segments else changes.slice(0, 0)
        folded = fold(chunk, changes, key=document["primary_key"])
        writer = self._writer(split, document["fingerprint"])
        for batch in folded.to_batches():
            writer.append(batch)
        writer.lost = sum(segment.lost for segment in (*read.segments, *delta))
        segments = (writer.finish(),) if writer.rows else ()
        self.discard([*read.segments, *delta])
        return dataclasses.replace(read, exact=True, segments=segments)

    def _table(self, segments: Sequence[Segment]) -> pa.Table:
        batches = [batch for segment in segments for batch in read_segment(segment, access=self._access)]
        return pa.Table.from_batches(batches)

    def _writer(self, split: SnapshotSplit, fingerprint: str) -> SegmentWriter:
        return SegmentWriter(
            self._spool.folder,
            table=split.table,
            schema=fingerprint,
            split_id=split.split_id,
            kind="snapshot",
            name=segment_name("chunk"),
            node=self._spool.node,
            flight=self._spool.flight,
        )
