"""Sealed epochs for people who bring their own sink: Arrow batches per table, and an acknowledgement."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from raycdc.bridge import read_segment
from raycdc.checkpoint.manifest import Manifest
from raycdc.checkpoint.store import CheckpointStore, CommitRecord
from raycdc.errors import StateError
from raycdc.model import META_COLUMNS, TableId, TableSchema
from raycdc.runtime.supervisor import Supervisor

#: Longest one look for the next epoch takes.
WAIT_S = 0.5


@dataclass(eq=False, slots=True)
class Epoch:
    """One sealed epoch. `ack` it when its rows are safe; only then does the next one come.

    `tables` maps every table the epoch touches to its schema. The number never changes and is never used again.
    """

    number: int
    manifest: Manifest
    tables: dict[TableId, TableSchema]
    _store: CheckpointStore
    _supervisor: Supervisor
    _token: str | None
    acknowledged: bool = False

    def batches(self, table: TableId) -> Iterator[pa.RecordBatch]:
        """The table's changes in this epoch: its columns, then `META_COLUMNS`, with ``_op`` as text.

        Segments come in the order of ``_seq``'s ranges; within one, rows are in log order.
        """
        columns = [*self.tables[table].arrow().names, *META_COLUMNS]
        for segment in sorted(self.manifest.segments, key=lambda s: s.seq_base):
            if segment.table == table:
                yield from read_segment(segment, columns, token=self._token, symbols=True)

    def ack(self) -> None:
        """Record that the rows are safe: this epoch never comes again, and its segments may be deleted."""
        if self.acknowledged:
            return
        vectors = {str(table): (self.number, 0) for table in self.tables}
        now_ms = time.time_ns() // 1_000_000
        self._store.write_commit(CommitRecord(self.number, self._store.generation(), now_ms, vectors))
        self.acknowledged = True
        self._supervisor.epoch_committed(self.number)


def epochs_of(
    store: CheckpointStore, supervisor: Supervisor, *, token: str | None, flights: Callable[[], Mapping[str, str]]
) -> Iterator[Epoch]:
    """Epochs after the last acknowledged one, in order, until the final one; `flights` as `EpochLoop` has them."""
    record = store.last_commit()
    after = record.epoch if record else 0
    while True:
        number, _ = supervisor.next_sealed(after, wait_s=WAIT_S)
        if number is None:
            continue
        manifest = store.manifest(store.sealed_epochs(after)[0])
        endpoints = flights()
        placed = (replace(segment, flight=endpoints.get(segment.node, "")) for segment in manifest.segments)
        manifest = replace(manifest, segments=tuple(placed))
        tables = {table: store.schema(part.schema) for table, part in manifest.tables.items()}
        epoch = Epoch(manifest.epoch, manifest, tables, store, supervisor, token)
        yield epoch
        if not epoch.acknowledged:
            raise StateError(f"Epoch {epoch.number} was not acknowledged; call ack() before asking for the next one.")
        after = manifest.epoch
        if manifest.final:
            return
