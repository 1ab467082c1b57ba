"""A reader's output: the segments of the open epoch, written as rows arrive, finished at the cut.

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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import PurePath

import pyarrow as pa

from raycdc.bridge import SegmentContents, SegmentWriter, SpoolAddress, delete_there, partitions_for, split_by_key
from raycdc.bridge.access import SegmentAccess
from raycdc.bridge.segment import SUFFIX_OPEN
from raycdc.checkpoint.manifest import Segment
from raycdc.errors import StateError
from raycdc.model import TableId
from raycdc.model.mask import Masks
from raycdc.runtime.held_file import HeldFile
from raycdc.runtime.open_epoch import OpenEpoch, OpenSegment
from raycdc.runtime.stopwatch import Stopwatch
from raycdc.source.protocol.metrics import CutProgress
from raycdc.source.snapshot.hand_off import LogRows
from raycdc.source.snapshot.held_rows import SpilledRows
from raycdc.transform.masking import masked


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
        #: Bytes of log rows in the epoch before, by which tables are cut into partitions.
        self._volumes: Counter[TableId] = Counter()
        self._open = OpenEpoch()
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
            return HeldFile(self._spool.folder / f"{segment_name('held')}{SUFFIX_OPEN}", hidden)

    def write_delta(self, rows: Iterable[LogRows], *, fingerprint: str, split_id: str) -> tuple[Segment, ...]:
        writer: OpenSegment | None = None
        for part in rows:
            writer = writer or self._writer(SegmentContents(part.table, fingerprint, split_id, "delta"))
            # Chunks are masked before these are folded into them, by the key, which is not masked.
            writer.append(self._masked(part.batch, part.table, ()))
        assert writer is not None, "a delta without rows"
        return (writer.finish(),)

    def cut(self, epoch: int) -> tuple[Segment, ...]:
        ended = self._open
        with self._stopwatch.running("log_write"):
            log = ended.finish_log(epoch, self._on_progress)
        self._open = OpenEpoch()
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
            # In a thread of its own: a node that is gone lets one wait.
            threading.Thread(target=_delete_there, args=(there, self._access), name="discard", daemon=True).start()

    def close(self) -> None:
        """Delete what is unfinished: it belongs to no epoch."""
        self.release([segment.path for segment in self._open.abort()])

    def _writer(self, contents: SegmentContents) -> OpenSegment:
        return SegmentWriter(self._spool, contents, name=segment_name(contents.kind))


def _delete_there(segments: Sequence[Segment], access: SegmentAccess) -> None:
    """Segments that a node refuses to delete are swept by its next start."""
    for segment in segments:
        with suppress(StateError):
            delete_there(segment, access)
