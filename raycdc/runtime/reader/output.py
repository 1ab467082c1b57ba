"""A reader's output: writes the segments of the open epoch as rows arrive, and finishes them at the cut.

Full files are synced immediately. At the cut, only the files that are still open are synced, one by one, so their
number does not depend on the size of transactions. `on_progress` is called after each file of a cut.

If the sink needs only the order of each key's changes, a table with many rows in the previous epoch is cut into hash
partitions (`raycdc.segments.writing`), with one or more segments each.

`EpochSegmentFiles` has the segments of the open epoch: the open ones, the full ones, and those of published chunks.

`_seq` within an epoch is made as follows. The decoder numbers all log rows of its connection consecutively, even rows
that are not emitted. The base of an epoch's log segments maps the smallest number in the epoch to the first value of
the epoch's counter. Rows that were held since earlier epochs have smaller numbers than the rest, and so keep their true
order.

`HeldRowsFile` is a file with held rows in the spool (`raycdc.source.snapshot.log.log_rows`), which only its writer
reads. It is not synced and never named in a manifest. Its name marks it as unfinished, so each sweep deletes it. As in
all files, masked columns are masked before they are written.
"""

from __future__ import annotations

import dataclasses
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePath
from typing import Protocol

import pyarrow as pa
from pyarrow import ipc

from raycdc.errors import DataError, SpoolError, StateError
from raycdc.model import TableId, lost_values
from raycdc.model.batch import with_lost_values, with_masked
from raycdc.model.rules.mask import Masks
from raycdc.runtime.reader.heartbeats import Stopwatch
from raycdc.segments import SegmentContents, SegmentWriter, SpoolAddress, delete_there, partitions_for, split_by_key
from raycdc.segments.access import SegmentAccess
from raycdc.segments.writing import SUFFIX_OPEN
from raycdc.source.protocol.metrics import CutProgress
from raycdc.source.snapshot.log.log_rows import LogRows, SpilledRows
from raycdc.state.manifests.manifest import SEQ_COUNTER_BITS, Segment, seq_base
from raycdc.transform.masks import masked

_ORDINALS = "_raycdc_ordinals"


class HeldRowsFile:
    """Held rows of one table in a file, as `raycdc.source.snapshot.log.log_rows.SpilledRows`; they are marked as
    masked.

    The constructor writes the file. Raises `SpoolError` if the file cannot be written.
    """

    def __init__(self, path: Path, parts: Sequence[LogRows]) -> None:
        self._path = path
        self._table = parts[0].table
        self._lost = [lost_values(part.batch) for part in parts]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o600)
            schema = parts[0].batch.schema.remove_metadata().append(pa.field(_ORDINALS, pa.int64()))
            with pa.OSFile(str(path), "wb") as file, ipc.new_file(file, schema) as writer:
                for part in parts:
                    arrays = [*part.batch.columns, pa.array(part.ordinals, pa.int64())]
                    writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        except OSError as cause:
            raise SpoolError(
                f"Rows of {self._table} that wait for a chunk cannot be written to {path.parent}: "
                f"{cause.strerror or cause}. Make room on that disk, or move the folder (pipeline.state) while the "
                "pipeline stands still."
            ) from cause

    def __repr__(self) -> str:
        return f"HeldRowsFile({self._path.name}, {self._table})"

    def __iter__(self) -> Iterator[LogRows]:
        with pa.memory_map(str(self._path)) as source:
            reader = ipc.open_file(source)
            for number, lost in enumerate(self._lost):
                stored = reader.get_batch(number)
                ordinals = stored.column(_ORDINALS).to_numpy()
                batch = with_masked(stored.drop_columns([_ORDINALS]), masked=True)
                yield LogRows(self._table, with_lost_values(batch, lost) if lost else batch, ordinals)

    def delete(self) -> None:
        self._path.unlink(missing_ok=True)


#: The size at which a table's rows of one epoch continue in a new segment, so that several tasks can share the work.
SEGMENT_BYTES_MAX = 64 << 20


class OpenSegment(Protocol):
    """A segment being written (`raycdc.segments.SegmentWriter`, or the simulation's in memory)."""

    rows: int

    @property
    def bytes(self) -> int: ...

    def append(self, batch: pa.RecordBatch) -> None: ...

    def finish(self, *, seq_base: int = 0) -> Segment: ...

    def abort(self) -> None: ...


class EpochSegmentFiles:
    """The segments of one epoch; see the module's docstring. Owned by the reader's thread.

    A cut ends it; the next epoch has a new object. `partitions` has the number of hash partitions of each table with
    rows. It is fixed for the whole epoch, because otherwise changes of one key could be in two partitions.
    """

    def __init__(self) -> None:
        self.partitions: dict[TableId, int] = {}
        self._writers: dict[tuple[TableId, int], OpenSegment] = {}
        self._full: list[Segment] = []
        self._published: list[Segment] = []
        self._finished_bytes = 0
        self._seqs: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"EpochSegmentFiles({len(self._writers)} files, {self.bytes} bytes, {len(self._published)} chunks)"

    @property
    def bytes(self) -> int:
        return self._finished_bytes + sum(writer.bytes for writer in self._writers.values())

    def number(self, batch: pa.RecordBatch) -> None:
        """Note the row numbers of `batch`, which ascend, as part of the epoch."""
        first, last = batch.column("_seq")[0].as_py(), batch.column("_seq")[-1].as_py()
        known = self._seqs or (first, last)
        self._seqs = (min(first, known[0]), max(last, known[1]))

    def log_writer(self, table: TableId, partition: int, open_segment: Callable[[], OpenSegment]) -> OpenSegment:
        """Return the segment for the next rows of the log.

        If the present segment is full, it is finished, and a new one is opened.
        """
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
        """Add finished segments of chunks to the epoch."""
        self._published += segments
        self._finished_bytes += sum(segment.bytes for segment in segments)

    def finish_log(self, epoch: int, on_progress: Callable[[CutProgress], None]) -> list[Segment]:
        """Finish the segments of the log, durable on disk, and return them. Blocks for as long as the disk takes."""
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
        """Yield the published segments, with consecutive numbers of their rows."""
        rows = 0
        for segment in self._published:
            yield dataclasses.replace(segment, seq_base=seq_base(epoch, log=False, offset=rows))
            rows += segment.rows

    def abort(self) -> list[Segment]:
        """Delete unfinished segments. Return the full ones, which the caller must delete."""
        for writer in self._writers.values():
            writer.abort()
        return self._full


def segment_name(prefix: str) -> str:
    """Return a name that no other reader, incarnation or generation uses."""
    return f"{prefix}-{uuid.uuid4().hex}.arrow"


class EpochOutput:
    """See the module's docstring and `raycdc.source.protocol.api.ReaderOutput`. Owned by the reader's thread."""

    def __init__(
        self,
        spool: SpoolAddress,
        stopwatch: Stopwatch | None = None,
        *,
        partitioned: bool = False,
        masks: Masks | None = None,
        on_progress: Callable[[CutProgress], None] = lambda _: None,
        access: SegmentAccess | None = None,
    ) -> None:
        """Create the output.

        `partitioned` is True if the sink needs the order of each key's changes, but no order between keys. Columns that
        `masks` name are masked before their rows are written.
        """
        self._spool = spool
        self._masks = masks or Masks()
        self._stopwatch = stopwatch or Stopwatch()
        self._partitioned = partitioned
        #: Bytes of log rows per table in the previous epoch, which decide how many partitions the table is cut into.
        self._volumes: Counter[TableId] = Counter()
        self._open = EpochSegmentFiles()
        self._on_progress = on_progress
        self._access = access or SegmentAccess(spool.node)

    def __repr__(self) -> str:
        return f"EpochOutput({self._open!r})"

    @property
    def open_bytes(self) -> int:
        return self._open.bytes

    def collect(
        self,
        table: TableId,
        *,
        fingerprint: str,
        batch: pa.RecordBatch,
        split_id: str,
        key: Sequence[str] = (),
    ) -> None:
        with self._stopwatch.running("log_write"):
            batch = self._masked(batch, table, key)
            for partition, part in split_by_key(batch, key, self._partitions_of(table, key)):
                contents = SegmentContents(table, fingerprint, split_id, "log", partition)
                self._open.log_writer(table, partition, partial(self._writer, contents)).append(part)
        self._open.number(batch)

    def _masked(self, batch: pa.RecordBatch, table: TableId, key: Sequence[str]) -> pa.RecordBatch:
        if not self._masks:
            return batch
        self._masks.check_key(table, key)
        return masked(batch, table, self._masks)

    def _partitions_of(self, table: TableId, key: Sequence[str]) -> int:
        partitions = self._open.partitions
        if table not in partitions:
            partitions[table] = partitions_for(self._volumes[table]) if key and self._partitioned else 1
        return partitions[table]

    def publish(self, segments: Sequence[Segment]) -> None:
        self._open.publish(segments)

    def spill(self, rows: Sequence[LogRows]) -> SpilledRows:
        hidden = [dataclasses.replace(part, batch=self._masked(part.batch, part.table, ())) for part in rows]
        with self._stopwatch.running("log_write"):
            return HeldRowsFile(self._spool.folder / f"{segment_name('held')}{SUFFIX_OPEN}", hidden)

    def write_delta(self, rows: Iterable[LogRows], *, fingerprint: str, split_id: str) -> tuple[Segment, ...]:
        writer: OpenSegment | None = None
        for part in rows:
            writer = writer or self._writer(SegmentContents(part.table, fingerprint, split_id, "delta"))
            # The masked rows can be folded into chunks, because these are masked, too, and the key is not masked.
            writer.append(self._masked(part.batch, part.table, ()))
        assert writer is not None, "a delta without rows"
        return (writer.finish(),)

    def cut(self, epoch: int) -> tuple[Segment, ...]:
        ended = self._open
        with self._stopwatch.running("log_write"):
            log = ended.finish_log(epoch, self._on_progress)
        self._open = EpochSegmentFiles()
        self._volumes = Counter()
        for segment in log:
            self._volumes[segment.table] += segment.bytes
        return (*ended.snapshot_segments(epoch), *log)

    def release(self, paths: Sequence[str]) -> None:
        for path in paths:
            (self._spool.folder / PurePath(path).name).unlink(missing_ok=True)

    def discard(self, segments: Sequence[Segment]) -> None:
        self.release([segment.path for segment in segments if self._access.is_own(segment)])
        there = [segment for segment in segments if not self._access.is_own(segment) and segment.flight]
        if there:
            # In a separate thread, because a lost node makes it wait.
            threading.Thread(target=_delete_there, args=(there, self._access), name="discard", daemon=True).start()

    def close(self) -> None:
        """Delete unfinished segments, which belong to no epoch."""
        self.release([segment.path for segment in self._open.abort()])

    def _writer(self, contents: SegmentContents) -> OpenSegment:
        return SegmentWriter(self._spool, contents, name=segment_name(contents.kind))


def _delete_there(segments: Sequence[Segment], access: SegmentAccess) -> None:
    """Delete segments on other nodes. Those that a node refuses to delete are swept at its next start."""
    for segment in segments:
        with suppress(StateError):
            delete_there(segment, access)
