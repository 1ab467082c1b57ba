"""Sealed epochs for users who bring their own sink: Arrow batches per table, and an acknowledgement.

`Pipeline.epochs` yields each `Epoch`. `Pipeline.epochs` and the data source for Spark are both built on the `Ledger`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from raycdc.delivery.dead_letters import DeadLetters
from raycdc.errors import RaycdcError, StateError
from raycdc.model import META_COLUMNS, TableId, TableSchema
from raycdc.runtime.supervisor import Supervisor
from raycdc.segments import read_segment
from raycdc.segments.access import SegmentAccess
from raycdc.segments.bad_rows import BadRecords, record_missing, refused_missing
from raycdc.source.tables.table_requests import complete_requests
from raycdc.state.drivers.generations import OwnGeneration
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.store import CheckpointStore, CommitRecord

_log = logging.getLogger(__name__)

#: The longest time that one poll waits for the next epoch.
WAIT_S = 0.5


@dataclass(eq=False, slots=True)
class Epoch:
    """One sealed epoch. Call `ack` when its rows are safe; the next epoch comes only after that.

    `tables` has the schema of each table with changes in the epoch. The number never changes and is never used again.
    """

    number: int
    manifest: Manifest
    tables: dict[TableId, TableSchema]
    _ledger: Ledger
    _access: SegmentAccess
    acknowledged: bool = False

    def batches(self, table: TableId) -> Iterator[pa.RecordBatch]:
        """Yield the table's changes in this epoch: its columns, then `META_COLUMNS`, with ``_op`` as text.

        Segments come in the order of their ranges of ``_seq``. Within a segment, rows are in log order.
        """
        columns = [*self.tables[table].arrow().names, *META_COLUMNS]
        for segment in sorted(self.manifest.segments, key=lambda s: s.seq_base):
            if segment.table == table:
                yield from read_segment(segment, columns, access=self._access, symbols=True)

    def ack(self) -> None:
        """Record that the rows are safe: this epoch never comes again, and its segments may be deleted.

        If it raises an error, nothing was recorded, and the epoch comes again. Raises `StateError` if the iterator of
        epochs was closed.
        """
        if self.acknowledged:
            return
        self._ledger.acknowledge(self.number)
        self.acknowledged = True


class Ledger:
    """The sealed epochs of a running source side, for one consumer. Each epoch is kept until it is acknowledged.

    Created by `raycdc.pipeline.Pipeline.ledger`. For one thread.
    """

    def __init__(
        self,
        store: CheckpointStore,
        supervisor: Supervisor,
        records: BadRecords,
        *,
        access: Callable[[], SegmentAccess],
        generation: Callable[[], OwnGeneration],
        sealed_before: int = 0,
    ) -> None:
        """Create the ledger.

        `sealed_before` is the last epoch that was sealed before this run. It may be marked as the final epoch of an
        earlier run. `records` decides what happens to rows that the source cannot deliver.
        """
        self.store = store
        self._generation = generation
        self._records = records
        self._dead_letters = DeadLetters(records, store)
        self._dead_letters.show(self.acknowledged)
        self._dead_letters.sweep(self.acknowledged)
        self._sealed_before = sealed_before
        self._supervisor = supervisor
        self._access = access
        self._closed = False
        #: The first error of a step after an acknowledgement was recorded.
        self._failed: RaycdcError | None = None

    def close(self) -> None:
        """Record that the run has ended, so that no epoch can be acknowledged any more."""
        self._closed = True

    @property
    def acknowledged(self) -> int:
        """Return the last acknowledged epoch; 0 if there is none."""
        record = self.store.last_commit()
        return record.epoch if record else 0

    def next_after(self, epoch: int, *, wait_s: float = WAIT_S) -> Manifest | None:
        """Return the first sealed epoch after `epoch`, with present paths of its segments; None if none comes within
        `wait_s`.

        Raises the error that ended the source side, the error of a step after the last acknowledgement, and `DataError`
        for rows that the source cannot deliver.
        """
        if self._failed is not None:
            raise self._failed
        manifest = next_manifest(self.store, self._supervisor, epoch, wait_s)
        if manifest is None:
            return None
        # A consumer cannot skip a single table, so a row that it would miss without notice ends the run.
        for refused in refused_missing(manifest, self._records).values():
            raise refused
        for table, missing in record_missing(manifest, self._records).items():
            _log.warning("%s: %d changes of epoch %d left out: %s", table, missing.count, manifest.epoch, missing.why)
        self._dead_letters.keep(manifest.epoch)
        return replace(manifest, segments=self._access().located(manifest.segments))

    def acknowledge(self, epoch: int) -> None:
        """Record that the rows of all epochs up to `epoch` are safe: they never come again.

        If an error is raised, `epoch` was not recorded and comes again. An error after the record is raised by the next
        call of `next_after` instead, so that no caller takes back rows whose epoch counts as acknowledged. Raises
        `StateError` if the run has ended.
        """
        if self._closed:
            raise StateError(
                f"Epoch {epoch} was not acknowledged, because its run has ended: the iterator of epochs was closed, or "
                "ended with an error. Nothing was recorded, and the epoch comes again with the next run. Call ack() "
                "within the loop."
            )
        for manifest in self.store.manifests(self.acknowledged):
            if manifest.epoch > epoch:
                return
            before = self.store.last_commit() or CommitRecord(0, 0, 0, {})
            vectors = {**before.tables, **{str(table): (manifest.epoch, 0) for table in manifest.tables}}
            now_ms = time.time_ns() // 1_000_000
            # The other parts of the commit record are kept, because they stay valid when an epoch is read.
            self.store.write_commit(
                replace(
                    before, epoch=manifest.epoch, generation=self._generation(), committed_ms=now_ms, tables=vectors
                )
            )
            try:
                complete_requests(self.store, manifest.epoch)
                self._dead_letters.show(manifest.epoch)
                self._supervisor.epoch_committed(manifest.epoch)
            except RaycdcError as error:
                self._failed = self._failed or error

    def is_end(self, epoch: int) -> bool:
        """Return True if the sealed epoch is the last one of this run; False for 0, which is before the first."""
        return epoch > self._sealed_before and self.store.manifest(epoch).final

    def epochs(self) -> Iterator[Epoch]:
        """Yield the epochs after the last acknowledged one, in order, until the final one."""
        after = self.acknowledged
        while True:
            manifest = self.next_after(after)
            if manifest is None:
                continue
            tables = {table: self.store.schema(part.schema) for table, part in manifest.tables.items()}
            epoch = Epoch(manifest.epoch, manifest, tables, self, self._access())
            yield epoch
            if not epoch.acknowledged:
                raise StateError(
                    f"Epoch {epoch.number} was not acknowledged; call ack() before asking for the next one."
                )
            after = manifest.epoch
            if self.is_end(manifest.epoch):
                return


def next_manifest(store: CheckpointStore, supervisor: Supervisor, after: int, wait_s: float) -> Manifest | None:
    """Return the first sealed epoch after `after`, or None if there is none within `wait_s`."""
    epoch, _ = supervisor.next_sealed(after, wait_s=wait_s)
    if epoch is None:
        return None
    manifest = store.manifest_after(after)
    if manifest is None:
        raise StateError(
            f"Epoch {epoch} was sealed, but its manifest is not in {store.location}. Is the folder shared?"
        )
    return manifest
