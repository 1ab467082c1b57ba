"""The durable side of the simulation: manifests and schema documents, surviving every process.

Segments in memory: what a reader's spool holds, surviving the reader.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from raycdc.errors import FencedError, StateError
from raycdc.segments.writing import SegmentContents
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.tables.parking import Requests
from raycdc.state.manifests.manifest import Manifest, Segment
from raycdc.state.opaque import Position, positions_in
from raycdc.state.parked import ParkedTarget


class CrashError(Exception):
    """Raised where the running process dies."""


class AcknowledgedEarlyError(AssertionError):
    """Raised if the source was allowed to drop what a start may still need."""


class MemoryState:
    """`raycdc.source.protocol.coordinator.ManifestWriter` with the rules of `raycdc.state.store`.

    `crash` says whether the writing process dies now, asked right before and right after a manifest is durable.
    """

    def __init__(self, chance: random.Random) -> None:
        self.generation = 0
        self.manifests: dict[int, Manifest] = {}
        self.dropped: dict[int, Manifest] = {}
        self.committed = 0
        #: The newest epoch whose positions the source was told: it may have thrown away its log before them.
        self.acknowledged = 0
        self.requests = Requests()
        self.parked: Mapping[str, ParkedTarget] = {}
        self.documents: dict[str, dict[str, Any]] = {}
        self.crash_probability = 0.0
        self.on_manifest: list[Callable[[Manifest], None]] = []
        self._random = chance

    @property
    def last(self) -> Manifest | None:
        return self.manifests[max(self.manifests)] if self.manifests else None

    @property
    def next_epoch(self) -> int:
        """Return the first number that no epoch ever had."""
        return max((*self.manifests, *self.dropped), default=0) + 1

    def put_documents(self, documents: Mapping[str, dict[str, Any]]) -> None:
        self.documents.update(documents)

    def schema_document(self, fingerprint: str) -> SchemaDocument:
        return SchemaDocument.from_json(self.document(fingerprint))

    def document(self, fingerprint: str) -> dict[str, Any]:
        return self.documents[fingerprint]

    def write_manifest(self, manifest: Manifest) -> None:
        if manifest.generation != self.generation:
            raise FencedError(f"generation {manifest.generation} was replaced by {self.generation}")
        self.maybe_crash()
        if manifest.epoch < self.next_epoch:
            raise StateError(f"epoch {manifest.epoch} exists already")
        stored = Manifest.from_json(manifest.to_json())
        for look in self.on_manifest:
            look(stored)
        self.manifests[manifest.epoch] = stored
        self.maybe_crash()

    def acknowledge(self, positions: Mapping[str, Position]) -> None:
        """`raycdc.source.connector.Source.acknowledge`, of a source that keeps its log no longer than it must."""
        told = [
            epoch
            for epoch, manifest in self.manifests.items()
            if epoch <= self.committed and positions == positions_in(manifest.to_splits)
        ]
        if not told:
            raise AcknowledgedEarlyError(f"{positions} was acknowledged, and the sink holds epoch {self.committed}")
        self.acknowledged = max(self.acknowledged, *told)

    def require_log(self) -> None:
        """Check that the source still has its log from the last manifest on, where a start continues."""
        if self.acknowledged > (self.last.epoch if self.last else 0):
            raise AcknowledgedEarlyError(f"the log is gone before epoch {self.acknowledged}, the state is {self.last}")

    def drop_after(self, epoch: int) -> None:
        """Drop all epochs after `epoch`, as a recovery does; their numbers stay used."""
        for number in [n for n in self.manifests if n > epoch]:
            self.dropped[number] = self.manifests.pop(number)

    def maybe_crash(self, probability: float | None = None) -> None:
        """Let the process die here with `crash_probability`, unless another probability is given."""
        if self.chance(self.crash_probability if probability is None else probability):
            raise CrashError

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self._random.random() < probability


#: The writer of a segment: (generation, subtask, incarnation).
Author = tuple[int, int, int]


class MemorySpool:
    """All finished segments of all readers. Reading a deleted one is an error, as it is on disk."""

    def __init__(self) -> None:
        self._batches: dict[str, list[pa.RecordBatch]] = {}
        #: The writer of each segment, also of deleted ones.
        self.authors: dict[str, Author] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._batches

    def put(self, kind: str, batches: list[pa.RecordBatch], author: Author) -> str:
        """Store a finished segment; return its path."""
        path = f"{kind}-{len(self.authors)}"
        self._batches[path] = batches
        self.authors[path] = author
        return path

    def read(self, path: str) -> pa.Table:
        if path not in self._batches:
            raise FileNotFoundError(path)
        return pa.Table.from_batches(self._batches[path])

    def delete(self, path: str) -> None:
        """Delete segments; missing ones are ignored, as with unlink and missing_ok."""
        self._batches.pop(path, None)


class MemorySegmentWriter:
    """`raycdc.segments.SegmentWriter` without a disk."""

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
