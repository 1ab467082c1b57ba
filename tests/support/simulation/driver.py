"""The driver of the simulation: commits sealed epochs to the model sink in order, records them, and recovers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from raycdc.delivery.targets.parked_targets import ParkedTargets, Parks
from raycdc.errors import TargetModifiedError
from raycdc.model import TableId, TableSchema
from raycdc.source.protocol.api import TableCounts, TableProgress
from raycdc.source.tables.parking import TableRequest
from raycdc.source.tables.table_requests import backfills_over, refusals_of, stream_state
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.recovery import STEP_LAST, CommitVector, Frozen, Replay, Tombstone, WriteRecord, decide
from tests.support.simulation.cluster import SimCluster
from tests.support.simulation.sinks import ModelSink
from tests.support.simulation.state import MemorySpool, MemoryState


class SimDriver:
    """The driver. One step of `run` is one table's commit, the record, or the message to the source side."""

    def __init__(self, state: MemoryState, sink: ModelSink, spool: MemorySpool) -> None:
        self._state = state
        self._sink = sink
        self._spool = spool
        self._tables: list[TableId] | None = None
        self._epoch: Manifest | None = None
        #: True if the last epoch of a bounded run was committed.
        self.finished = False
        #: The probability to die between the commits of two tables.
        self.half_commits = 0.0
        #: The probability that a target refuses its part of an epoch.
        self.refusals = 0.0
        self._parked = ParkedTargets(state.parked, Parks())
        #: Called with each epoch that all targets have.
        self.on_record: list[Callable[[Manifest], None]] = []

    @property
    def committed(self) -> int:
        return self._state.committed

    def step(self, cluster: SimCluster) -> bool:
        """Do the next step; return False if there is nothing to do."""
        if self._epoch is None:
            epoch = cluster.coordinator.epochs.sealed_after(self._state.committed)
            if epoch is None:
                return False
            self._epoch = self._state.manifests[epoch]
            self._tables = list(self._parked.taking_part(self._epoch, {t: [t] for t in self._epoch.tables}))
        assert self._tables is not None
        if self._tables:
            self._commit(self._epoch, self._tables.pop())
            if self._tables and self.half_commits:
                self._state.maybe_crash(self.half_commits)
            return True
        epoch = self._epoch.epoch
        self.finished = self._epoch.final and self._epoch.generation == cluster.generation
        told = set(self._state.parked)
        self._record(self._epoch)
        self._epoch = None
        if new := {name: entry for name, entry in self._state.parked.items() if name not in told}:
            self._state.maybe_crash()
            cluster.coordinator.park_tables(refusals_of(new))
        cluster.coordinator.epoch_committed(epoch)
        assert cluster.enumerator is not None
        progress = cluster.enumerator.statistics().progress
        counts, tables = progress.counts(), progress.tables()
        assert counts == _counted(tables.values()), f"the tables are counted as {counts}: {tables}"
        return True

    def _record(self, manifest: Manifest) -> None:
        """Write the commit record, which is one document."""
        self._parked.after(manifest, {table: [table] for table in manifest.tables})
        self._state.committed, self._state.parked = manifest.epoch, self._parked.entries
        for hear in self.on_record:
            hear(manifest)
        self._state.maybe_crash()
        self._state.requests = self._state.requests.left(stream_state(manifest), backfills_over(manifest))

    def crash(self) -> None:
        """Forget the running work; `recover` makes sink and record agree again."""
        self._epoch, self._tables, self.finished = None, None, False
        self._parked = ParkedTargets(self._state.parked, Parks())

    def recover(self) -> None:
        self._parked = ParkedTargets(self._state.parked, Parks())
        for epoch in sorted(e for e in self._state.manifests if e > self._state.committed):
            manifest = self._state.manifests[epoch]
            holds = {
                t: CommitVector(self._sink.holds(t), STEP_LAST) if self._sink.holds(t) else None
                for t in self._parked.taking_part(manifest, {t: [t] for t in manifest.tables})
            }
            lost = {segment.table for segment in manifest.segments if segment.path not in self._spool}
            newest = self._state.next_epoch - 1
            decision = decide(manifest, holds, lost=lost, recorded={}, newest_epoch=newest)
            match decision:
                case WriteRecord():
                    pass
                case Replay(tables):
                    for table in tables:
                        self._commit(manifest, table)
                        self._state.maybe_crash()
                case Tombstone():
                    self._state.drop_after(epoch - 1)
                    return
                case Frozen(again, replay, _):
                    self._freeze(manifest, again, replay)
                    return
                case _:
                    raise AssertionError(f"recovery of epoch {epoch}: {decision}")
            self._record(manifest)

    def _freeze(self, manifest: Manifest, again: Sequence[TableId], replay: Sequence[TableId]) -> None:
        """Freeze tables like `raycdc.delivery.epoch_recovery.EpochRecovery._freeze`, with a chance to die
        at each step.
        """
        stream = stream_state(manifest)
        self._state.requests = self._state.requests.and_also(map(str, again), TableRequest.RESNAPSHOT, stream)
        self._state.maybe_crash()
        self._state.drop_after(manifest.epoch)
        self._state.maybe_crash()
        for table in (*replay, *again):
            self._commit(replace(manifest, segments=()) if table in again else manifest, table)
            self._state.maybe_crash()
        self._record(manifest)

    def _commit(self, manifest: Manifest, table: TableId) -> None:
        schema = TableSchema.from_json(self._state.document(manifest.tables[table].schema))
        if self.refusals and self._sink.holds(table) < manifest.epoch and self._state.chance(self.refusals):
            error = TargetModifiedError(f"{table} refuses epoch {manifest.epoch}.")
            self._parked.park(table, [table], manifest, error, None)
            return
        self._sink.commit(manifest, table, schema)


def _counted(tables: Collection[TableProgress]) -> TableCounts:
    reading = [progress for progress in tables if progress.phase == "snapshot"]
    return TableCounts(
        len(tables),
        len(reading),
        sum(progress.chunks_done for progress in tables),
        sum(max(0, progress.chunks_total - progress.chunks_done) for progress in reading),
    )
