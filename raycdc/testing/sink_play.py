"""A pipeline without a source that writes into the sink, for the stories of `raycdc.testing.SinkConformance`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from raycdc.delivery.epoch_loop import EpochLoop
from raycdc.delivery.ports import EpochPorts
from raycdc.delivery.targets.parked_targets import NOTHING, ParkingPolicy
from raycdc.model.evolution.events import CreateTableEvent, TruncateTableEvent
from raycdc.segments import run_in_process
from raycdc.segments.tasks import TaskRunner
from raycdc.sinks.api import Sink, SinkContext, TableCommit
from raycdc.state.manifests.manifest import Manifest, target_digest
from raycdc.state.store import CheckpointStore
from raycdc.testing.epochs import EpochScript, ScriptedTable

#: A value greater than all others in the stories, except for rows that an altered target cannot store.
LARGE = 100_000


class Play:
    """A pipeline without a source: scripted epochs of two tables, and drivers that write them into the sink.

    A play with a different `state` in the same folder is a different pipeline with the same targets.
    """

    def __init__(
        self,
        folder: Path,
        new_sink: Callable[[Path], Sink],
        *,
        state: str = "state",
        left_out: frozenset[str] = frozenset(),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._left_out = left_out
        self.folder = folder
        self._new_sink = new_sink
        self.store = CheckpointStore(folder / state, pipeline="conformance")
        self.script = EpochScript(self.store)
        self.orders = self.script.table("shop.orders")
        self.items = self.script.table("shop.items")
        #: The number of resnapshots of each table.
        self.incarnations = {str(table.id): 0 for table in (self.orders, self.items)}

    def copied(self) -> Play:
        """Return a pipeline whose state is a copy of this one's as it is now, over the same targets."""
        shutil.copytree(self.store.path, self.folder / "copy")
        copy = Play(self.folder, self._new_sink, state="copy", left_out=self._left_out)
        for table, original in ((copy.orders, self.orders), (copy.items, self.items)):
            table.announced, table.rows = True, dict(original.rows)
        copy.script.random.seed("a copy")
        return copy

    def sink(
        self, *, inspects: bool = False, run_tasks: TaskRunner = run_in_process, on_existing: str = "fail"
    ) -> Sink:
        """Return a new driver's sink, opened as by a run, or as by ``raycdc check``."""
        sink = self._new_sink(self.folder)
        context = SinkContext(
            self.store.app_id,
            sink.writes[0],
            run_tasks,
            on_existing,
            left_out=self._left_out,
            parallelism=2,
            storage=sink.storage,
        )
        (sink.inspect if inspects else sink.open)(context)
        return sink

    def epochs(self, count: int = 3) -> None:
        """Seal epochs of inserts, updates and deletions of both tables, the first with snapshot rows."""
        for number in range(count):
            if not self.orders.announced:
                for table in (self.orders, self.items):
                    table.read([{"id": key, "name": f"{table.id.table}{key}", "qty": key} for key in range(100, 120)])
            self.script.random_epoch(operations=12)
            self._seal(final=number == count - 1)

    def resnapshot(self, table: ScriptedTable) -> None:
        """Seal epochs in which `table` is resnapshotted.

        From then on the target, which is empty or was dropped, must have the table's changelog from the resnapshot on.
        """
        self.incarnations[str(table.id)] += 1
        table.changelog.clear()
        table.truncate()
        table.changes.extend((TruncateTableEvent(table.id), CreateTableEvent(table.id, table.schema)))
        self._seal()
        table.read([{"id": key, "name": f"anew{key}", "qty": key} for key in range(200, 210)])
        self._seal(final=True)

    def idle_epoch(self) -> None:
        """Seal an epoch without a change."""
        self._seal()

    def large_epoch(self) -> None:
        """Seal an epoch in which both tables get a row whose ``qty`` is `LARGE`, with other changes."""
        self.script.random_epoch(operations=12)
        for table in (self.orders, self.items):
            table.insert({"id": 500, "name": "large", "qty": LARGE})
        self._seal(final=True)

    def run(self, sink: Sink | None = None, *, parking: ParkingPolicy = NOTHING) -> None:
        """Run a driver that writes all sealed epochs, and ends. If `parking` parks no table, a refusal ends it, too."""
        self._loop(sink or self.sink(), parking).run()

    def restart(self, *, parking: ParkingPolicy = NOTHING) -> None:
        """Run a new driver: the next generation, recovery, then all sealed epochs."""
        self.script.generation = self.store.generations.next()
        loop = self._loop(self.sink(), parking)
        loop.recover()
        if self.store.sealed_epochs(loop.committed):
            loop.run()

    def commits(self, epoch: int, *, generation: int = 0) -> list[TableCommit]:
        """Return the table commits of a sealed epoch, of the script's generation or another one."""
        manifest = self.store.manifest(epoch)
        return [
            TableCommit(
                epoch=epoch,
                generation=generation or self.script.generation,
                source=table,
                target=table,
                schema=self.script.tables[table].schema,
                changes=part.changes,
                segments=tuple(segment for segment in manifest.segments if segment.table == table),
                positions={split: state.to_json() for split, state in manifest.to_splits.items()},
                digest=target_digest(manifest.digest, table),
            )
            for table, part in manifest.tables.items()
        ]

    def parked(self) -> dict[str, str]:
        """Return the tables that are parked in the newest record, with the reason for people."""
        record = self.store.last_commit()
        return {} if record is None else {name: entry.text for name, entry in record.parked.items()}

    def _seal(self, *, final: bool = False) -> None:
        self.script.seal(final=final, incarnations=self.incarnations)

    def _loop(self, sink: Sink, parking: ParkingPolicy) -> EpochLoop:
        own = self.script.generation
        ports = EpochPorts(generation=lambda: own, next_sealed=self._next_sealed, parking=parking)
        return EpochLoop(self.store, sink, ports)

    def _next_sealed(self, after: int, _timeout_s: float) -> Manifest | None:
        return next(iter(self.store.manifests(after)), None)
