"""Writes segments: uncompressed Arrow IPC files in the reader's spool, durable before they are reported.

Called by source readers, on the reader's own thread. A segment gets its name when it is complete and synced. Before
that its name is ``NAME.open``; when the owner of the spool starts, it deletes such files. Segments are uncompressed, so
that the reading task maps the file and copies nothing. They are files, so that they survive the process that wrote
them. `MadeSegments` is the folder of segments that were made from other segments, by computing expressions or leaving
out bad rows.

A table's rows may be divided into hash partitions by key (`split_by_key`), so that all changes of a key in an epoch are
in one partition, in order. The partition of a row is computed from its own key columns. Before-images and deletions
have the key that they remove; inserts and after-images have the key that they write. The images of an update that
changes the key may therefore be in two partitions. A truncation concerns every key and goes to every partition. The
number of partitions is chosen for each table and epoch, by the size of the table's previous epoch, so small epochs stay
one segment.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from raycdc.errors import SpoolError
from raycdc.model import RowKind, TableId, key_hashes
from raycdc.model.batch import BATCH_BYTES_MAX, BATCH_ROWS_MAX, lost_values, with_lost_values
from raycdc.segments.access import SpoolAddress
from raycdc.state.files.folder import sync_folder
from raycdc.state.manifests.manifest import Segment

SUFFIX_OPEN = ".open"

#: Batches below both limits are collected and written as one batch. Writing a batch has a fixed cost, and with many
#: small transactions each batch has only a few rows.
_SMALL_ROWS = 512
_SMALL_BYTES = 64 << 10
#: Collected batches are written when they reach one of these sizes, which include Arrow's overhead per batch.
_JOINED_ROWS = 8192
_JOINED_BYTES = 1 << 20
_OVERHEAD_BYTES = 6 << 10


@dataclass(frozen=True, slots=True)
class SegmentContents:
    """The description of a segment's rows: their table, schema version, split and hash partition. `kind` is as in
    `Segment`.
    """

    table: TableId
    schema: str
    split_id: str
    kind: str
    partition: int = 0


class SegmentWriter:
    """One segment being written. Opens its file at the first batch; `finish` or `abort` ends it.

    All batches must have the schema of the first one (`raycdc.model.changelog_schema`). Batches larger than
    `BATCH_BYTES_MAX` or `BATCH_ROWS_MAX` are cut without a copy, and small ones are joined. The `_seq` of rows is
    relative to the segment's `seq_base`. The caller of `finish` may leave `seq_base` at 0 and set it later with
    ``dataclasses.replace``. `append` and `finish` raise `SpoolError` if the file cannot be written, for example to a
    full disk.
    """

    def __init__(self, spool: SpoolAddress, contents: SegmentContents, *, name: str) -> None:
        self.path = spool.folder.absolute() / name
        self.rows = 0
        #: The number of lost values; see `raycdc.model.batch`.
        self.lost = 0
        self._spool = spool
        self._contents = contents
        self._file: _ChecksummedFile | None = None
        self._writer: Any = None
        self._small = _SmallBatches()

    @classmethod
    def remaking(cls, segment: Segment, spool: Path | str, name: str, *, kind: str = "") -> SegmentWriter:
        """Return a writer in `spool` for a segment made from `segment`: for the same table, split and partition."""
        contents = SegmentContents(
            segment.table, segment.schema, segment.split_id, kind or segment.kind, segment.partition
        )
        return cls(SpoolAddress(Path(spool)), contents, name=name)

    def __repr__(self) -> str:
        return f"SegmentWriter({self.path.name}, {self._contents.table}, rows={self.rows}, bytes={self.bytes})"

    @property
    def bytes(self) -> int:
        """Return the bytes written and waiting so far, without the footer that `finish` adds."""
        return (self._file.size if self._file else 0) + self._small.bytes

    def append(self, batch: pa.RecordBatch) -> None:
        """Write `batch`, or keep it for a later write; its buffers must not change until `finish`.

        Skips an empty batch. May block on disk.
        """
        if batch.num_rows == 0:
            return
        if self._small.take(batch):
            if self._small.is_enough:
                self._write_small()
        else:
            self._write_small()
            self._write(batch)
        self.rows += batch.num_rows
        self.lost += lost_values(batch)

    def _write_small(self) -> None:
        joined = self._small.joined()
        if joined is not None:
            self._write(joined)

    def _write(self, batch: pa.RecordBatch) -> None:
        with self._refusals():
            if self._writer is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = _ChecksummedFile(Path(f"{self.path}{SUFFIX_OPEN}"))
                self._writer = ipc.new_file(pa.PythonFile(self._file, mode="w"), batch.schema.remove_metadata())
            step = rows_per_batch(batch)
            for start in range(0, batch.num_rows, step):
                self._writer.write_batch(batch.slice(start, step))

    def finish(self, *, seq_base: int = 0) -> Segment:
        """Write the footer, sync and rename the file, and return the segment's descriptor.

        At least one row must have been appended. If the spool has copies, the segment's copy is durable afterwards.
        """
        self._write_small()
        assert self._file is not None, f"segment {self.path.name} has no rows; ask `rows` before finishing"
        with self._refusals():
            self._writer.close()
            self._file.sync()
            self._file.path.rename(self.path)
            sync_folder(self.path.parent)
        if self._spool.copies is not None:
            self._spool.copies.put(self.path)
        contents = self._contents
        return Segment(
            node=self._spool.node,
            path=str(self.path),
            flight=self._spool.flight,
            table=contents.table,
            schema=contents.schema,
            split_id=contents.split_id,
            partition=contents.partition,
            kind=contents.kind,
            seq_base=seq_base,
            rows=self.rows,
            bytes=self._file.size,
            crc32=self._file.crc32,
            lost=self.lost,
        )

    def abort(self) -> None:
        """Delete the incomplete file. Does nothing if nothing was written or the segment is finished."""
        self._small = _SmallBatches()
        if self._file is not None and not self._file.closed:
            self._file.close()
            self._file.path.unlink(missing_ok=True)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except OSError as cause:
            what = cause.strerror or str(cause)
            raise SpoolError(
                f"Rows of {self._contents.table} cannot be written to {self.path.parent}: {what}. Make room on that "
                "disk, or move the folder (pipeline.state) while the pipeline stands still."
            ) from cause


class _SmallBatches:
    """Batches of few rows that wait to be written as one."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        #: The memory of the kept batches, including the overhead of each.
        self.bytes = 0

    @property
    def is_enough(self) -> bool:
        return self._rows >= _JOINED_ROWS or self.bytes >= _JOINED_BYTES

    def take(self, batch: pa.RecordBatch) -> bool:
        """Keep `batch` and return True if it is small.

        A small slice of a large batch is not small, because it would keep the whole batch in memory.
        """
        if batch.num_rows >= _SMALL_ROWS or (size := batch.get_total_buffer_size()) >= _SMALL_BYTES:
            return False
        self._batches.append(batch)
        self._rows += batch.num_rows
        self.bytes += size + _OVERHEAD_BYTES
        return True

    def joined(self) -> pa.RecordBatch | None:
        """Return all kept batches as one batch that owns its memory, and clear them; None if there are none."""
        if not self._batches:
            return None
        batches, rows = self._batches, self._rows
        self._batches, self._rows, self.bytes = [], 0, 0
        table = pa.Table.from_batches(batches, schema=batches[0].schema.remove_metadata())
        (joined,) = table.combine_chunks().to_batches(max_chunksize=rows)
        return joined


def rows_per_batch(batch: pa.RecordBatch) -> int:
    """Return how many rows of `batch` fit the limits of one batch; at least one."""
    by_bytes: int = BATCH_BYTES_MAX * batch.num_rows // max(batch.get_total_buffer_size(), 1)
    return max(1, min(BATCH_ROWS_MAX, by_bytes, int(batch.num_rows)))


class _ChecksummedFile:
    """A file with the methods that Arrow's writer needs. It counts the bytes and computes the CRC-32 of everything
    written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.crc32 = 0
        # Unbuffered: Arrow writes whole column buffers, and its few small writes per batch cost less than a copy.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._file: IO[bytes] = os.fdopen(descriptor, "wb", buffering=0)

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.crc32 = zlib.crc32(view, self.crc32)
        self.size += len(view)
        while view:
            view = view[self._file.write(view) :]
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Do nothing, because no bytes are buffered here; `sync` makes the file durable."""

    def sync(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def close(self) -> None:
        self._file.close()


class MadeSegments:
    """The segments that were made from other segments, in `folder` on this machine. Callable from any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def forget(self, segments: Iterable[Segment]) -> None:
        """Delete those `segments` that are in the folder."""
        for segment in segments:
            if Path(segment.path).parent == self._folder:
                Path(segment.path).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete all files that earlier runs left. Must be called while nothing is staged."""
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                path.unlink(missing_ok=True)


#: The size from which on a task of its own for a partition saves time (`raycdc.sinks.task_inputs.TASK_BYTES_MIN`).
PARTITION_BYTES = 16 << 20
PARTITIONS_MAX = 16


def partitions_for(volume_bytes: int, *, worth_bytes: int = 0, most: int = PARTITIONS_MAX) -> int:
    """Return the number of partitions for `volume_bytes`: a power of two, at most `most`. Each partition gets at least
    `worth_bytes` (default, if 0: `PARTITION_BYTES`).
    """
    wanted = max(1, min(most, volume_bytes // (worth_bytes or PARTITION_BYTES)))
    return 1 << (wanted.bit_length() - 1)


def partition_numbers(batch: pa.RecordBatch, key: Sequence[str], count: int) -> np.ndarray:
    """Return for each row the partition of its key, uint8 below `count` (at most 256).

    Equal keys have equal numbers.
    """
    numbers: np.ndarray = (key_hashes(batch, key) % np.uint64(count)).astype(np.uint8)
    return numbers


def split_by_key(batch: pa.RecordBatch, key: Sequence[str], count: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield each partition's number and its rows in their order. A truncation is in all partitions."""
    if count == 1 or not key or not batch.num_rows:
        yield 0, batch
        return
    numbers = partition_numbers(batch, key, count)
    everywhere = batch.column("_op").to_numpy(zero_copy_only=False) == RowKind.TRUNCATE
    lost = lost_values(batch)
    for number in range(count):
        rows = np.flatnonzero((numbers == number) | everywhere)
        if rows.size:
            yield number, with_lost_values(batch.take(pa.array(rows)), lost)
            lost = 0  # Only the sum is known, so the first part carries it.
