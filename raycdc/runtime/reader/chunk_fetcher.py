"""Reads chunks in fetchers' threads into finished segments, which are not part of an epoch yet.

The connector reads the rows (`ChunkReader`), and the bridge writes segments; this module connects them and folds held
rows into chunks.

| class | role | runs in |
|---|---|---|
| `FetchedChunks` | the reader's side, `raycdc.source.protocol.api.ChunkSource` | the reader's thread |
| `ChunkSplitReader` | one connection, which does one task after the other | its fetcher's thread |
| `ChunkFiles` | writes, reads and deletes segments of chunks | all of them: it has no state |
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import assert_never

import pyarrow as pa

from raycdc.core.activity import ActivityTracker, Stage
from raycdc.errors import SchemaMismatchError, TableChangedError, TableLockedError
from raycdc.model.rules.mask import Masks
from raycdc.runtime.reader.heartbeats import Stopwatch
from raycdc.runtime.reader.output import segment_name
from raycdc.segments import SegmentContents, SegmentWriter, delete_there, read_segment
from raycdc.segments.access import SegmentAccess, SpoolAddress
from raycdc.source.protocol.api import ChunkSegments
from raycdc.source.reader.fetcher_manager import FetcherManager
from raycdc.source.reader.split_reader import (
    RecordsWithSplitIds,
    SplitRecords,
    SplitsAddition,
    SplitsChange,
    SplitsPause,
    SplitsRemoval,
)
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.handoff.fold import fold, left_alone
from raycdc.source.snapshot.reader.reading import ChunkReader
from raycdc.source.snapshot.rereading.backfill_keys import DeletedKeys
from raycdc.source.split import OpenedAt, SnapshotSplit
from raycdc.state.manifests.manifest import Segment
from raycdc.transform.masks import masked


@dataclasses.dataclass(frozen=True, slots=True)
class ReadTask:
    """A chunk to read.

    The log reader opened the chunk at its position `opened_at`, at which the table had the schema `document`.
    """

    split: SnapshotSplit
    opened_at: OpenedAt
    document: SchemaDocument

    @property
    def split_id(self) -> str:
        return f"read {self.split.split_id} {self.split.attempt}"


@dataclasses.dataclass(frozen=True, slots=True)
class FoldTask:
    """Held rows, in the `delta` segments, that are to be folded into the rows that were `read` of a chunk."""

    read: ChunkSegments
    delta: Sequence[Segment]
    document: SchemaDocument

    @property
    def split_id(self) -> str:
        return f"fold {self.read.split.split_id} {self.read.split.attempt}"


#: A fetcher's task for a chunk, which has its own split.
ChunkTask = ReadTask | FoldTask


class FetchedChunks:
    """`raycdc.source.protocol.api.ChunkSource`: the chunks that fetchers read."""

    def __init__(self, fetchers: FetcherManager[ChunkTask, ChunkSegments], files: ChunkFiles) -> None:
        self._fetchers = fetchers
        self._files = files
        self._done: deque[ChunkSegments] = deque()

    def read(self, split: SnapshotSplit, *, opened_at: OpenedAt, document: SchemaDocument) -> None:
        self._fetchers.add_splits((ReadTask(split, opened_at, document),))

    def fold(self, *, read: ChunkSegments, delta: Sequence[Segment], document: SchemaDocument) -> None:
        self._fetchers.add_splits((FoldTask(read, delta, document),))

    def poll(self) -> ChunkSegments | None:
        if not self._done and (fetch := self._fetchers.poll()) is not None:
            self._done.extend(part.batch for part in fetch.records)
        return self._done.popleft() if self._done else None

    def discard(self, segments: Sequence[Segment]) -> None:
        self._files.discard(segments)

    def close(self) -> None:
        self._fetchers.close()


class ChunkSplitReader:
    """Does a fetcher's tasks as a `raycdc.source.reader.split_reader.SplitReader`: one `fetch` does one task
    completely.
    """

    def __init__(self, open_chunks: Callable[[], ChunkReader], files: ChunkFiles) -> None:
        self._open_chunks = open_chunks
        self._files = files
        self._reader = open_chunks()
        self._task: ChunkTask | None = None

    def fetch(self) -> RecordsWithSplitIds[ChunkSegments]:
        assert self._task is not None, "no chunk was given"
        task, self._task = self._task, None
        match task:
            case ReadTask():
                read = self._read(task)
            case FoldTask():
                read = self._files.fold(task)
            case _:
                assert_never(task)
        return RecordsWithSplitIds((SplitRecords(task.split_id, read),), (task.split_id,))

    def handle_splits_changes(self, change: SplitsChange[ChunkTask]) -> None:
        match change:
            case SplitsAddition((task,)):
                self._task = task
            case SplitsAddition() | SplitsRemoval() | SplitsPause():
                raise AssertionError("a chunk is read to its end, and alone")
            case _:
                assert_never(change)

    def wake_up(self) -> None:
        self._reader.wake_up()

    def close(self) -> None:
        self._reader.close()

    def _read(self, task: ReadTask) -> ChunkSegments:
        try:
            return self._files.write(self._reader, task)
        except TableLockedError:
            self._reopen()
            return ChunkSegments(task.split, 0, exact=False, segments=(), log_end=0, locked=True)
        except SchemaMismatchError as unfit:
            self._reopen()
            return ChunkSegments(task.split, 0, exact=False, segments=(), log_end=0, refused=str(unfit))
        except TableChangedError as changed:
            self._reopen()
            end = self._reader.log_end(task.opened_at)
            schema_mismatch = str(changed)
            return ChunkSegments(
                task.split, end.ordinal, exact=False, segments=(), log_end=end.log_end, schema_mismatch=schema_mismatch
            )

    def _reopen(self) -> None:
        self._reader.close()
        self._reader = self._open_chunks()


class ChunkFiles:
    """Writes, reads and deletes the segments of chunks in one spool.

    Any thread may call it, because it has no state.
    """

    def __init__(
        self,
        spool: SpoolAddress,
        *,
        stopwatch: Stopwatch,
        access: SegmentAccess,
        tracker: ActivityTracker | None = None,
        masks: Masks | None = None,
    ) -> None:
        self._tracker = tracker or ActivityTracker()
        self._spool = spool
        self._stopwatch = stopwatch
        self._access = access
        self._masks = masks or Masks()

    def write(self, reader: ChunkReader, task: ReadTask) -> ChunkSegments:
        """Read a chunk to its end into a segment. Blocks; raises the errors of the connector's reader."""
        waits = "waits for the server's answer"
        with self._tracker.doing(Stage.CHUNK, waits, table=str(task.split.table), split=task.split.split_id):
            return self._written(reader, task)

    def _written(self, reader: ChunkReader, task: ReadTask) -> ChunkSegments:
        split, document = task.split, task.document
        self._masks.check_key(split.table, document.primary_key)
        writer = self._writer(split, document.fingerprint)
        try:
            batches = iter(reader.read(split, opened_at=task.opened_at, document=document))
            deleted_keys = DeletedKeys(split, document)
            while (batch := self._next(batches)) is not None:
                self._tracker.came()
                deleted_keys.observe(batch)
                with self._stopwatch.running("chunk_write"):
                    writer.append(masked(batch, split.table, self._masks) if self._masks else batch)
            if (deleted := deleted_keys.deleted(first=writer.rows)) is not None:
                writer.append(deleted)
            high = reader.high_watermark()
        except BaseException:
            with suppress(OSError):
                writer.abort()
            raise
        with self._stopwatch.running("chunk_write"):
            segments = (writer.finish(),) if writer.rows else ()
        return ChunkSegments(split, high.ordinal, high.exact, segments, log_end=high.log_end)

    def fold(self, task: FoldTask) -> ChunkSegments:
        """Write a chunk again with its held rows folded in; its earlier segments are deleted."""
        read, delta = task.read, task.delta
        changes = self._table(delta)
        chunk = self._table(read.segments) if read.segments else changes.slice(0, 0)
        key = task.document.primary_key
        folded = fold(chunk, changes, key=key) if read.split.again is None else left_alone(chunk, changes, key=key)
        writer = self._writer(read.split, task.document.fingerprint)
        for batch in folded.to_batches():
            writer.append(batch)
        writer.lost = sum(segment.lost for segment in (*read.segments, *delta))
        segments = (writer.finish(),) if writer.rows else ()
        self.discard([*read.segments, *delta])
        return dataclasses.replace(read, exact=True, segments=segments)

    def discard(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            if self._access.is_own(segment):
                (self._spool.folder / segment.name).unlink(missing_ok=True)
            elif segment.flight:
                delete_there(segment, self._access)

    def _next(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        with self._stopwatch.running("chunk_read"):
            return next(batches, None)

    def _table(self, segments: Sequence[Segment]) -> pa.Table:
        batches = [batch for segment in segments for batch in read_segment(segment, access=self._access)]
        return pa.Table.from_batches(batches)

    def _writer(self, split: SnapshotSplit, fingerprint: str) -> SegmentWriter:
        kind = "snapshot" if split.again is None else "backfill"
        contents = SegmentContents(split.table, fingerprint, split.split_id, kind)
        return SegmentWriter(self._spool, contents, name=segment_name("chunk"))
