"""Writes commit records: the epoch that each target holds, the parked targets, and the source tables of each target.

One writer belongs to one epoch loop. It reads the newest record when it is created, and writes each later one.

Row stores (`raycdc.delivery.rows.row_store`) are counted in the record as additional targets. The row store of
``shop.orders`` has the name ``known rows of shop.orders``, which no target can have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from raycdc.core.failpoints import reach
from raycdc.delivery.targets.parked_targets import ParkedTargets
from raycdc.errors import FencedError
from raycdc.model import TableId
from raycdc.model.rules.names import ROW_STORE_OF
from raycdc.state.drivers.generations import OwnGeneration
from raycdc.state.manifests.manifest import Manifest, target_digest
from raycdc.state.parked import ParkedTarget
from raycdc.state.recovery import STEP_LAST
from raycdc.state.store import CheckpointStore, CommitRecord, RoutedTarget

#: The folder of row stores below the state.
KNOWN = "known"


def slot_of(table: TableId) -> TableId:
    """Return the name of the row store of `table` among the targets of a record."""
    return TableId(f"{ROW_STORE_OF}{table.db}", table.table)


def table_of(slot: TableId) -> TableId | None:
    """Return the table whose row store has the name `slot`; None if `slot` is the name of a target."""
    return TableId(slot.db.removeprefix(ROW_STORE_OF), slot.table) if slot.db.startswith(ROW_STORE_OF) else None


class CommitRecordWriter:
    """Writes commit records; see the module's docstring.

    `on_parked` is called once for each target that a new record parks. It is not called for targets that the first
    record already parks, because the source reads these itself when it starts.
    """

    def __init__(
        self,
        store: CheckpointStore,
        parked: ParkedTargets,
        *,
        generation: Callable[[], OwnGeneration],
        on_parked: Callable[[Mapping[str, ParkedTarget]], None],
    ) -> None:
        record = store.last_commit()
        self._store = store
        self._parked = parked
        self._generation = generation
        self._on_parked = on_parked
        self._epoch = record.epoch if record else 0
        self._vectors: dict[str, tuple[int, int]] = {**record.tables, **record.known} if record else {}
        #: The names of row stores among them.
        self._slots: set[str] = {name for name in self._vectors if table_of(TableId.parse(name)) is not None}
        self._routes: dict[str, RoutedTarget] = dict(record.routes) if record else {}
        self._digests: dict[str, int] = dict(record.digests) if record else {}
        #: The time since when each reported target is parked.
        self._reported = {name: entry.since_ms for name, entry in parked.entries.items()}

    def __repr__(self) -> str:
        return f"RecordKeeper(epoch={self._epoch}, targets={len(self._vectors)})"

    @property
    def epoch(self) -> int:
        """Return the last epoch that is recorded; 0 if there is none."""
        return self._epoch

    @property
    def vectors(self) -> Mapping[str, tuple[int, int]]:
        """Return the (epoch, step) of each target that was ever written, row stores included."""
        return self._vectors

    @property
    def digests(self) -> Mapping[str, int]:
        """Return the digest that each target stored with its last epoch, as far as known; row stores included."""
        return self._digests

    @property
    def merged(self) -> set[TableId]:
        """Return the targets that got rows of several source tables."""
        return {TableId.parse(name) for name, route in self._routes.items() if len(route.sources) > 1}

    def described(self, target: TableId) -> RoutedTarget | None:
        """Return the record's description of `target`; None if it has none."""
        return self._routes.get(str(target))

    def sources_of(self, target: TableId) -> tuple[TableId, ...]:
        """Return the source tables of `target`, including those that are parked with it."""
        route, parked = self._routes.get(str(target)), self._parked.entries.get(str(target))
        names = [*(route.sources if route is not None else ()), *(parked.sources if parked is not None else ())]
        return tuple(map(TableId.parse, dict.fromkeys(names))) or (target,)

    def forget(self, target: TableId) -> None:
        """Remove `target` from later records, because its past rows no longer matter."""
        del self._vectors[str(target)]
        self._slots.discard(str(target))
        self._routes.pop(str(target), None)
        self._digests.pop(str(target), None)

    def complete(
        self, manifest: Manifest, targets: Mapping[TableId, tuple[TableId, ...]], routes: Mapping[str, RoutedTarget]
    ) -> int:
        """Record that those `targets` that take part hold the epoch. Return the time of the record in milliseconds."""
        part = self._parked.taking_part(manifest, targets)
        self._vectors.update({str(target): (manifest.epoch, STEP_LAST) for target in part})
        digest = manifest.digest
        self._digests.update({str(target): target_digest(digest, target) for target in part})
        self._slots.update(str(target) for target in part if table_of(target) is not None)
        self._describe(routes, part)
        self._parked.after(manifest, targets)
        now_ms = self._write(manifest.epoch)
        self._epoch = manifest.epoch
        reach("after_record")
        return now_ms

    def _describe(self, routes: Mapping[str, RoutedTarget], part: Collection[TableId]) -> None:
        """Note the columns that the epoch's targets have after the epoch. A target that is not in `part` refused the
        epoch, but may have got some of its columns. If such a target has no earlier epoch, its `schema` stays empty.
        """
        for name, target in routes.items():
            if TableId.parse(name) in part:
                self._routes[name] = target
            else:
                self._routes[name] = self._routes.get(name, replace(target, schema="")).refusing(target)

    def write_again(self) -> None:
        """Replace the record of the last epoch, because targets were parked or removed."""
        self._write(self._epoch)

    def report_nothing_of(self, targets: Mapping[str, ParkedTarget]) -> None:
        """Suppress the report of `targets`, whose tables are resnapshotted without a decision by the user."""
        self._reported |= {name: entry.since_ms for name, entry in targets.items()}

    def _write(self, epoch: int) -> int:
        """Write the record. Write it again if the driver's own generation rose during the write."""
        now_ms = time.time_ns() // 1_000_000
        tables = dict(self._vectors)
        known = {name: tables.pop(name) for name in sorted(self._slots)}
        parked = self._parked.entries
        while True:
            generation = self._generation()
            try:
                self._store.write_commit(
                    CommitRecord(
                        epoch, generation, now_ms, tables, dict(self._routes), known, parked, dict(self._digests)
                    )
                )
                break
            except FencedError:
                if self._generation() == generation:
                    raise
        if new := {name: entry for name, entry in parked.items() if self._reported.get(name) != entry.since_ms}:
            reach("before_park_reported")
            self._on_parked(new)
        self._reported = {name: entry.since_ms for name, entry in parked.items()}
        return now_ms
