"""The epoch loop: takes sealed epochs in order and stages, commits, records and reports each.

Runs on the driver, on a thread of the caller. Staging of epoch e+1 overlaps the commit of e. A table whose schema
changes in e+1 is an exception: it is staged after the commit of e and the change of its target. Epochs commit strictly
in order, the tables of one epoch on a few threads. The loop itself needs no Spark, because the sink's tasks run on the
task runner in the sink's context.

*Crashes*: before the sink's commits, the epoch is staged again. Between or after the commits, `recover` reads which
targets hold the epoch, and writes it to the others. After the record, only the message to the source side is lost, and
the source side reads the record when it starts.

If rows of an epoch are lost before a target got them, their source tables are resnapshotted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from raycdc.core.failpoints import reach
from raycdc.delivery.epoch_recovery import EpochRecovery
from raycdc.delivery.epoch_writer import EpochParts, EpochWriter, PreparedEpoch, by_changes
from raycdc.delivery.outcomes import Recovery, StartForecast
from raycdc.delivery.ports import EpochPorts
from raycdc.errors import StateError
from raycdc.model import TableId
from raycdc.sinks.api import Sink
from raycdc.source.tables.table_requests import ask_for_lost_rows
from raycdc.state.bad_row_counts import resolve_bad_rows
from raycdc.state.manifests.manifest import STREAM_SPLIT_ID, Manifest
from raycdc.state.store import CheckpointStore

#: How long to wait for the next sealed epoch before the loop checks for failures and for a stop.
POLL_S = 0.2


class EpochLoop:
    """Delivers epochs; see the module's docstring.

    `sink` must be open. After `stop` or `inspect`, the loop cannot be used any more.
    """

    def __init__(self, store: CheckpointStore, sink: Sink, ports: EpochPorts) -> None:
        self._parts = EpochParts.of(store, sink, ports)
        self._writer = EpochWriter(self._parts)
        self._stopped = threading.Event()

    def __repr__(self) -> str:
        return f"EpochLoop(committed={self.committed}, generation={self._parts.ports.generation()})"

    @property
    def committed(self) -> int:
        """Return the last epoch that is recorded; 0 if there is none."""
        return self._parts.records.epoch

    def stop(self) -> None:
        """Let `run` return after the current commit, and end all waits.

        Later epochs that are already staged are staged again at the next start.
        """
        self._stopped.set()
        self._parts.stopping.set()

    def recover(self) -> Recovery:
        """Make the sink and the commit record agree. Call it before `run`, and before anything is read.

        Raises `SinkError` or `StateError` if the sink and the record contradict each other; nothing is changed then.
        """
        if self.committed:
            # The driver that recorded the epoch may have died before its dead letters were shown.
            self._writer.dead_letters.show(self.committed)
        return EpochRecovery(self._parts, self._writer).run()

    def written(self) -> list[TableId]:
        """Return the targets that hold rows of epochs without a record. Changes nothing."""
        return EpochRecovery(self._parts, self._writer).written()

    def inspect(self) -> StartForecast:
        """Return what `recover` would find, with its errors. Changes nothing, and waits for no node."""
        self.stop()
        return EpochRecovery(self._parts, self._writer).inspect()

    def run(self) -> None:
        """Commit epochs until one is final or `stop` is called.

        Raises the first error, after the running commit has ended. Raises `StoppedWaitingError` if the run is asked to
        stop while a commit waits for something; the next start makes that commit.
        """
        store, ports = self._parts.store, self._parts.ports
        self._parts.planner.start_after(store.last_commit())
        resolve_bad_rows(store, self.committed)
        self._writer.dead_letters.sweep(self.committed)
        with ports.threads.pool(1, "commit") as committer:
            under_way: Future[None] | None = None
            after = self.committed
            generation = 0
            while not self._stopped.is_set():
                manifest = ports.next_sealed(after, POLL_S)
                if manifest is None:
                    if under_way is not None and under_way.done():
                        under_way.result()
                        under_way = None
                    continue
                after = manifest.epoch
                if generation not in (0, manifest.generation) and self._parts.records.merged:
                    # A command about a table raised the generation.
                    if under_way is not None:
                        under_way.result()
                    EpochRecovery(self._parts, self._writer).begin_together_at(manifest)
                generation = manifest.generation
                prepared = self._prepare(manifest, under_way)
                under_way = committer.submit(self._writer.commit, prepared)
                if manifest.final:
                    break
            if under_way is not None:
                under_way.result()

    def _prepare(self, manifest: Manifest, under_way: Future[None] | None) -> PreparedEpoch:
        """Stage `manifest` and wait for the running commit `under_way`, in the order that schema changes allow."""
        prepared = self._writer.prepared(manifest)
        self._parts.store.generations.require_driver(self._parts.ports.generation, f"epoch {manifest.epoch}")
        self._parts.target_records.check_ours(manifest, self._parts.records.vectors)
        prepared.commits = self._writer.taking_part(prepared, prepared.commits)
        # If there is a row store, all tables wait, because the running commit adds the rows that make the next changes
        # exact.
        now, later = ([], list(prepared.commits)) if prepared.sources else by_changes(prepared.commits)
        reach("before_stage")
        try:
            self._writer.stage(prepared, now)
        finally:
            if under_way is not None:
                under_way.result()
        self._writer.apply(prepared, later)
        self._writer.stage(prepared, later)
        reach("after_stage")
        return prepared


def request_resnapshot(
    store: CheckpointStore, warn: Callable[[str], None], manifest: Manifest, tables: Sequence[TableId], text: str
) -> None:
    """Store a request to resnapshot `tables` from the epoch of `manifest` on. The next source side carries it out.

    Raises `StateError` with `text` if the source cannot take snapshots.
    """
    if STREAM_SPLIT_ID not in manifest.to_splits:
        raise StateError(text)
    names = [str(table) for table in tables]
    ask_for_lost_rows(store, manifest, names)
    warn(f"Rows of an epoch are lost before they were written: {', '.join(names)} will be read again.")
