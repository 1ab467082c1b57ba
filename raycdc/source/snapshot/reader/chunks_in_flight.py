"""Handles the chunks of one reader, from their assignment until they are published or voided.

The steps of a chunk: `AddSplits` arrives → `OpenChunkRequest` is sent → `ChunkOpened` arrives → the chunk is read in
the background → `CloseChunkRequest` is sent with finished segments → if `ChunkDelta` arrives, the chunk is folded, and
`CloseChunkRequest` is sent again → `ChunkPublished` arrives (its segments now belong to the log reader's epoch) or
`ChunkVoided` arrives (its segments are deleted). A chunk of a locked table is voided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from raycdc.core.failpoints import reach
from raycdc.source.protocol.api import ChunkSegments, ChunkSource
from raycdc.source.protocol.metrics import HandOffWait
from raycdc.source.protocol.source_event import Message, RequestSplit, SourceEvent, SourceEventWrapper
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.chunk_events import (
    ChunkDelta,
    ChunkLocked,
    ChunkOpened,
    ChunkPublished,
    ChunkReaderEvent,
    ChunkRefused,
    ChunkSchemaMismatch,
    ChunkVoided,
    CloseChunkRequest,
    DiscardSegments,
    OpenChunkRequest,
)
from raycdc.source.split import ChunkId, SnapshotSplit

#: The number of chunks that a reader opens in advance while other chunks are read, so that the SELECT need not wait for
#: the exchange of messages.
CHUNKS_AHEAD = 1


@dataclass(slots=True)
class _ReadingChunk:
    split: SnapshotSplit
    document: SchemaDocument | None = None
    read: ChunkSegments | None = None
    folding: bool = False


class ChunksInFlight:
    """The chunks of one reader; see the module's docstring. Owned by the reader's thread. Up to `at_once` chunks are
    read concurrently.
    """

    def __init__(
        self, open_chunks: Callable[[], ChunkSource], *, send: Callable[[Message], None], at_once: int
    ) -> None:
        self._open_chunks = open_chunks
        self._send = send
        self._most = at_once + CHUNKS_AHEAD
        self._chunks: dict[str, _ReadingChunk] = {}
        self._requested = 0
        self._source: ChunkSource | None = None

    def __repr__(self) -> str:
        return f"ChunksInFlight({list(self._chunks)}, requested={self._requested})"

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def waits(self) -> tuple[HandOffWait, ...]:
        """Return the chunks that wait for the log's reader."""
        return tuple(
            HandOffWait(chunk.split.table, chunk.split.split_id, "waits for the log to pass the end of its reading")
            if chunk.read is not None
            else HandOffWait(chunk.split.table, chunk.split.split_id, "waits for the log's reader to open it")
            for chunk in self._chunks.values()
            if chunk.document is None or (chunk.read is not None and not chunk.folding)
        )

    def close(self) -> None:
        if self._source is not None:
            self._source.close()

    def ask_for_more(self) -> None:
        """Request chunks up to the limits of this reader. Not called after the reader was notified that there are no
        more chunks.
        """
        while self._requested + len(self._chunks) < self._most:
            self._requested += 1
            self._send(RequestSplit())

    def forget_requests(self) -> None:
        """Forget earlier requests, which will not be answered."""
        self._requested = 0

    def add(self, split: SnapshotSplit) -> None:
        """Take a chunk that was given to this reader, with or without a request."""
        self._requested = max(0, self._requested - 1)
        self._chunks[split.split_id] = _ReadingChunk(split)
        self._event(OpenChunkRequest(split))

    def remove(self, split_id: str) -> None:
        """Remove the chunk, if this reader has it."""
        chunk = self._chunks.pop(split_id, None)
        if chunk is not None:
            self._discard(chunk)

    def on_event(self, event: ChunkReaderEvent) -> bool:
        """Handle an event for the reader of chunks. Returns True if a chunk is done, so that another one can be
        requested.
        """
        match event:
            case ChunkOpened(chunk_id, opened_at, document):
                chunk = self._chunk(chunk_id)
                if chunk is not None:
                    chunk.document = document
                    self._io().read(chunk.split, opened_at=opened_at, document=document)
            case ChunkDelta(chunk_id, segments):
                chunk = self._chunk(chunk_id)
                if chunk is not None and chunk.read is not None and chunk.document is not None:
                    chunk.folding = True
                    self._io().fold(read=chunk.read, delta=segments, document=chunk.document)
            case ChunkPublished(chunk_id):
                if self._chunk(chunk_id) is not None:
                    del self._chunks[chunk_id.split_id]
                return True
            case ChunkVoided(chunk_id):
                chunk = self._chunk(chunk_id)
                if chunk is not None:
                    del self._chunks[chunk_id.split_id]
                    self._discard(chunk)
                return True
            case DiscardSegments():
                raise AssertionError("the reader's output discards segments of no chunk")
            case _:
                assert_never(event)
        return False

    def poll(self) -> bool:
        """Take a finished read or fold, and report it to the log reader. Returns False if there is none now."""
        read = self._source.poll() if self._source is not None else None
        if read is None:
            return False
        chunk = self._chunks.get(read.split.split_id)
        if chunk is None or chunk.split.attempt != read.split.attempt:
            self._io().discard(read.segments)
            return True
        if read.locked:
            self._event(ChunkLocked(read.split.chunk_id))
            return True
        if read.refused:
            self._event(ChunkRefused(read.split.chunk_id, read.refused))
            return True
        chunk.read, chunk.folding = read, False
        self._event(
            ChunkSchemaMismatch(read.split.chunk_id, read.high, read.schema_mismatch)
            if read.schema_mismatch
            else CloseChunkRequest(read.split.chunk_id, read.high, read.log_end, read.exact, read.segments)
        )
        reach("after_close")
        return True

    def _chunk(self, chunk_id: ChunkId) -> _ReadingChunk | None:
        """Return the chunk that an event is about, if this reader still works at the same attempt."""
        chunk = self._chunks.get(chunk_id.split_id)
        return chunk if chunk is not None and chunk.split.chunk_id == chunk_id else None

    def _discard(self, chunk: _ReadingChunk) -> None:
        # A fold in progress reads the segments, and deletes them itself.
        if chunk.read is not None and not chunk.folding:
            self._io().discard(chunk.read.segments)

    def _io(self) -> ChunkSource:
        if self._source is None:
            self._source = self._open_chunks()
        return self._source

    def _event(self, event: SourceEvent) -> None:
        self._send(SourceEventWrapper(event))
