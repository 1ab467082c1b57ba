"""A reader's output: the segments of the open epoch, written as rows arrive, finished at the cut.

`_seq` within an epoch: the decoder numbers all log rows of its connection in one run, emitted or not. The base of an
epoch's log segments maps the smallest number in it to the first of the epoch's counter; rows that were held since
earlier epochs have smaller numbers than the others, and so keep their true order.

Files are synced one by one, those that are full as soon as they are: what a cut has left to sync is bounded by the
number of open files, whatever the transaction's size. `on_progress` is told after each file of a cut.

Where the sink takes changes by key, a table of which the epoch before had much is cut into hash partitions
(`raycdc.bridge.partitions`): one segment or more for each.
"""

from __future__ import annotations

import dataclasses
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Protocol

import pyarrow as pa

from raycdc.bridge import SegmentWriter, delete_there, partitions_for, split_by_key
from raycdc.bridge.access import SegmentAccess
from raycdc.bridge.segment import SUFFIX_OPEN
from raycdc.checkpoint.manifest import SEQ_COUNTER_BITS, Segment, seq_base
from raycdc.errors import DataError, StateError
from raycdc.model import TableId
from raycdc.model.mask import Masks
from raycdc.runtime.held_file import HeldFile
from raycdc.runtime.stopwatch import Stopwatch
from raycdc.source.snapshot.hand_off import LogRows
from raycdc.source.snapshot.held_rows import SpilledRows
from raycdc.transform.masking import masked

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


@dataclasses.dataclass(frozen=True, slots=True)
class SpoolAddress:
    """Where a reader writes its segments: folder, the name of the spool's node and its Flight endpoint (or empty)."""

    folder: Path
    node: str
    flight: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class CutProgress:
    """Of the files that the cut of `epoch` has to sync so many are on disk; `bytes` of the log are, in all."""

    epoch: int
    synced: int
    files: int
    bytes: int


def segment_name(prefix: str) -> str:
    """A name no other reader, incarnation or generation uses."""
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
        """`partitioned`: the sink wants each key's changes in order, and nothing of the order between keys. Columns
        that `masks` names are hidden before their rows are written.
        """
        self._spool = spool
        self._masks = masks or Masks()
        self._stopwatch = stopwatch or Stopwatch()
        self._partitioned = partitioned
        self._writers: dict[tuple[TableId, int], OpenSegment] = {}
        #: Of the open epoch, as decided at a table's first rows; and bytes of log rows in the epoch before.
        self._partitions: dict[TableId, int] = {}
        self._volumes: Counter[TableId] = Counter()
        self._on_progress = on_progress
        self._access = access or SegmentAccess(spool.node)
        self._full: list[Segment] = []
        self._published: list[Segment] = []
        self._published_bytes = 0
        self._seqs: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"EpochOutput({len(self._writers)} tables, {self.open_bytes} bytes, {len(self._published)} chunks)"

    @property
    def open_bytes(self) -> int:
        open_bytes = sum(writer.bytes for writer in self._writers.values())
        return self._published_bytes + open_bytes + sum(segment.bytes for segment in self._full)

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
                self._log_writer(table, fingerprint, split_id, partition).append(part)
        first, last = batch.column("_seq")[0].as_py(), batch.column("_seq")[-1].as_py()
        known = self._seqs or (first, last)
        self._seqs = (min(first, known[0]), max(last, known[1]))

    def _masked(self, batch: pa.RecordBatch, table: TableId, key: Sequence[str]) -> pa.RecordBatch:
        if not self._masks:
            return batch
        self._masks.check_key(table, key)
        return masked(batch, table, self._masks)

    def _partitions_of(self, table: TableId, key: Sequence[str]) -> int:
        """As many all epoch long, or changes of one key would be in two of them."""
        if table not in self._partitions:
            self._partitions[table] = partitions_for(self._volumes[table]) if key and self._partitioned else 1
        return self._partitions[table]

    def _log_writer(self, table: TableId, fingerprint: str, split_id: str, partition: int) -> OpenSegment:
        writer = self._writers.get((table, partition))
        if writer is not None and writer.bytes >= SEGMENT_BYTES_MAX:
            self._full.append(self._writers.pop((table, partition)).finish())
            writer = None
        if writer is None:
            writer = self._writer(table, fingerprint, split_id, kind="log", partition=partition)
            self._writers[table, partition] = writer
        return writer

    def publish(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            self._published.append(segment)
            self._published_bytes += segment.bytes

    def spill(self, rows: Sequence[LogRows]) -> SpilledRows:
        hidden = [dataclasses.replace(part, batch=self._masked(part.batch, part.table, ())) for part in rows]
        with self._stopwatch.running("log_write"):
            return HeldFile(self._spool.folder / f"{segment_name('held')}{SUFFIX_OPEN}", hidden)

    def write_delta(self, rows: Iterable[LogRows], *, fingerprint: str, split_id: str) -> tuple[Segment, ...]:
        writer: OpenSegment | None = None
        for part in rows:
            writer = writer or self._writer(part.table, fingerprint, split_id, kind="delta")
            # Chunks are masked before these are folded into them, by the key, which is not masked.
            writer.append(self._masked(part.batch, part.table, ()))
        assert writer is not None, "a delta without rows"
        return (writer.finish(),)

    def cut(self, epoch: int) -> tuple[Segment, ...]:
        first, last = self._seqs or (0, 0)
        if last - first >= 1 << SEQ_COUNTER_BITS:
            raise DataError(
                f"Epoch {epoch} spans {last - first} rows of the log, held ones included; at most "
                f"{1 << SEQ_COUNTER_BITS} fit one. Read the snapshot in smaller chunks (source.snapshot.chunk_rows)."
            )
        base = seq_base(epoch, log=True) - first
        self._partitions.clear()
        with self._stopwatch.running("log_write"):
            log = [dataclasses.replace(segment, seq_base=base) for segment in self._full]
            writers = [writer for writer in self._writers.values() if writer.rows]
            for number, writer in enumerate(writers, start=1):
                log.append(writer.finish(seq_base=base))
                self._on_progress(CutProgress(epoch, number, len(writers), sum(segment.bytes for segment in log)))
        self._volumes = Counter()
        for segment in log:
            self._volumes[segment.table] += segment.bytes
        segments = [*self._snapshot_segments(epoch), *log]
        self._writers.clear()
        self._full.clear()
        self._published.clear()
        self._published_bytes = 0
        self._seqs = None
        return tuple(segments)

    def release(self, paths: Sequence[str]) -> None:
        for path in paths:
            (self._spool.folder / PurePath(path).name).unlink(missing_ok=True)

    def discard(self, segments: Sequence[Segment]) -> None:
        self.release([segment.path for segment in segments if self._access.is_own(segment)])
        there = [segment for segment in segments if not self._access.is_own(segment) and segment.flight]
        if there:
            # In a thread of its own: a node that is gone lets one wait.
            threading.Thread(target=_delete_there, args=(there, self._access), name="discard", daemon=True).start()

    def close(self) -> None:
        """Delete what is unfinished: it belongs to no epoch."""
        for writer in self._writers.values():
            writer.abort()
        self.release([segment.path for segment in self._full])

    def _snapshot_segments(self, epoch: int) -> Iterator[Segment]:
        rows = 0
        for segment in self._published:
            yield dataclasses.replace(segment, seq_base=seq_base(epoch, log=False, offset=rows))
            rows += segment.rows

    def _writer(self, table: TableId, fingerprint: str, split_id: str, *, kind: str, partition: int = 0) -> OpenSegment:
        return SegmentWriter(
            self._spool.folder,
            table=table,
            schema=fingerprint,
            split_id=split_id,
            kind=kind,
            name=segment_name(kind),
            node=self._spool.node,
            flight=self._spool.flight,
            partition=partition,
        )


def _delete_there(segments: Sequence[Segment], access: SegmentAccess) -> None:
    """Segments that a node refuses to delete are swept by its next start."""
    for segment in segments:
        with suppress(StateError):
            delete_there(segment, access)
