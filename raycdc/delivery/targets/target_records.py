"""Reads the commit records of targets, and checks that this state can have written them.

The epoch loop uses it when it starts, and before an epoch is first written. The vectors are read from the targets
themselves, because the targets may have changed since the state's own record was written. A target that cannot be read
while others answer is parked before anything depends on it, because it may hold any epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from raycdc.core.activity import Stage
from raycdc.delivery.ports import EpochPorts
from raycdc.delivery.record_keeper import slot_of, table_of
from raycdc.delivery.targets.commit_planner import CommitPlanner
from raycdc.delivery.targets.parked_targets import ParkedTargets
from raycdc.delivery.targets.target_retry import TargetRetry
from raycdc.errors import SinkError, TableRefusedError, TargetBlockedError, TargetDroppedError
from raycdc.model import TableId
from raycdc.sinks.api import Sink
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.recovery import (
    STEP_LAST,
    STEP_TOMBSTONE,
    CommitVector,
    Sealed,
    ahead,
    another_copy,
    beyond,
    shortfalls,
    strangers,
)
from raycdc.state.store import CheckpointStore


class LackingTarget(NamedTuple):
    """A target that lacks rows of the commit record, with the reason and the vector that it holds.

    If `is_there` is True, the target was found: it has an older record, or the sink names what others did to it.
    Otherwise it is missing, and perhaps the whole sink is elsewhere.
    """

    error: TableRefusedError
    held: CommitVector | None
    is_there: bool


class TargetRecords:
    """Reads and checks targets; see the module's docstring.

    Row stores are included, under their names in commit records.
    """

    def __init__(
        self,
        store: CheckpointStore,
        sink: Sink,
        ports: EpochPorts,
        planner: CommitPlanner,
        parked: ParkedTargets,
        target_retry: TargetRetry,
    ) -> None:
        self._tracker = ports.tracker
        self._target_retry = target_retry
        self._parked = parked
        self._store = store
        self._sink = sink
        self._known = ports.routing.known
        self._planner = planner

    def of(self, manifest: Manifest) -> dict[TableId, CommitVector | None]:
        """Return the vector of each target that takes part in the epoch of `manifest`.

        A target that keeps no record (a console) counts as holding the same epoch as the row stores of its tables.
        """
        targets = self._targets(manifest)
        holds = {name: self._held_or_parked(name, targets, manifest) for name in targets if self._asks(name)}
        targets = self._targets(manifest)
        holds = {name: vector for name, vector in holds.items() if name in targets}
        for name, sources in targets.items():
            if name not in holds:
                had = [holds.get(slot_of(source)) for source in sources]
                holds[name] = None if None in had else min(vector for vector in had if vector is not None)
        return holds

    def check_record(
        self, recorded: Mapping[str, tuple[int, int]], digests: Mapping[str, int], committed: int, newest: int
    ) -> dict[TableId, LackingTarget]:
        """Return the targets that lack rows of the record of `committed`. `recorded` are the vectors of the record, and
        `digests` its digests.

        Raises `SinkError` if a target is ahead of the record and of the epochs sealed after it. Parked targets are not
        checked.
        """
        names = [name for name in map(TableId.parse, recorded) if not self._parked.owes_nothing(name)]
        manifests = list(self._store.manifests(committed))
        if committed:
            last = self._store.manifest(committed)
            after = replace(last, epoch=last.epoch + 1, from_splits=last.to_splits)
        elif manifests:
            after = manifests[0]
        else:
            return {}
        parts = {name: self._sources_of(name) or (name,) for name in names}
        invalid: dict[TableId, TableRefusedError] = {}
        holds = {name: self._held_or_parked(name, parts, after, invalid) for name in names if self._asks(name)}
        if refusal := beyond(holds, newest_epoch=newest):
            raise SinkError(refusal.text)
        later = {manifest.epoch: self._targets(manifest) for manifest in manifests}
        behind = {target: sources for targets in later.values() for target, sources in targets.items()}
        new = [name for name in behind if name not in holds and self._asks(name)]
        holds |= {name: self._held_or_parked(name, behind, after) for name in new}
        reached = {name: self._parked.reached((*self._sources_of(name), *behind.get(name, ()))) for name in holds}
        for name in filter(self._parked.owes_nothing, behind):
            # The target has refused its earlier resnapshot and also the tombstone of that epoch, so it may hold a part
            # of the resnapshot.
            begins = min(epoch for epoch, targets in later.items() if name in targets)
            reached[name] = max(reached.get(name, (0, 0)), (begins - 1, STEP_LAST))
        most = {str(name): max(recorded.get(str(name), (0, 0)), vector) for name, vector in reached.items()}
        sealed = {m.epoch: Sealed(m.generation, later[m.epoch], m.digest) for m in manifests}
        owed = self.owed(recorded)
        others = strangers(holds, recorded={name: most[name] for name in owed}, digests=digests, committed=committed)
        if refusal := ahead({n: v for n, v in holds.items() if n not in others}, recorded=most, sealed=sealed):
            raise SinkError(refusal.text)
        lacking = others | shortfalls(holds, recorded=owed)
        return {
            name: LackingTarget(
                invalid.get(name) or TargetDroppedError(text),
                holds[name],
                is_there=holds[name] is not None or name in invalid,
            )
            for name, text in lacking.items()
        }

    def owed(self, recorded: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """Return the entries of a record without those of targets that wait for a resnapshot, because such targets may
        have been deleted.
        """
        return {name: v for name, v in recorded.items() if not self._parked.owes_nothing(TableId.parse(name))}

    def check_ours(self, manifest: Manifest, recorded: Mapping[str, tuple[int, int]]) -> None:
        """Raise `SinkError` if another writer has already written the number of this epoch to a target.

        Only targets that are new to the state's record need this check, because the others were compared at the start.
        If a new target already holds the epoch, the sink would skip the epoch.
        """
        targets = self._targets(manifest)
        for target in targets:
            if str(target) not in recorded and self._asks(target):
                held = self._held_or_parked(target, targets, manifest)
                if held is not None and held.epoch >= manifest.epoch:
                    raise SinkError(another_copy(target, held.epoch))

    def written(self, manifests: Iterable[Manifest]) -> list[TableId]:
        """Return the targets of the epochs that hold rows of this pipeline, while nothing is recorded.

        Row stores are left out, because they belong to the state. A target whose last commit is a tombstone has no
        rows.
        """
        targets = dict.fromkeys(target for manifest in manifests for target in self._targets(manifest))
        asked = [target for target in targets if self._asks(target) and table_of(target) is None]
        held = ((target, self._held_if_there(target)) for target in asked)
        return [target for target, vector in held if vector is not None and vector.step != STEP_TOMBSTONE]

    def _sources_of(self, target: TableId) -> tuple[TableId, ...]:
        table = table_of(target)
        return self._planner.sources_of(target) if table is None else (table,)

    def _targets(self, manifest: Manifest) -> dict[TableId, tuple[TableId, ...]]:
        return self._parked.taking_part(manifest, self._planner.targets(manifest))

    def _asks(self, target: TableId) -> bool:
        """Return True if the target keeps a record that can be read."""
        return self._sink.durable or table_of(target) is not None

    def _held_or_parked(
        self,
        target: TableId,
        targets: Mapping[TableId, Sequence[TableId]],
        manifest: Manifest,
        why_not: dict[TableId, TableRefusedError] | None = None,
    ) -> CommitVector | None:
        """Return the vector of the target. Park the target as of `manifest` if it does not answer while other targets
        do. `targets` has the sources of each target; all of them may be queried. If the target cannot be read for
        another reason, the error is put into `why_not`.
        """
        try:
            return self.held(target, siblings=targets)
        except TargetBlockedError as error:
            self._parked.park(target, targets[target], manifest, error, None)
        except TableRefusedError as error:
            if why_not is not None:
                why_not[target] = error
        return None

    def _held_if_there(self, target: TableId) -> CommitVector | None:
        """Return the vector of `target`; None if the target refuses, which its next write reports, too."""
        try:
            return self.held(target)
        except TableRefusedError:
            return None

    def held(self, target: TableId, *, retry: bool = True, siblings: Iterable[TableId] = ()) -> CommitVector | None:
        """Return the vector of a target, or of a table's row store.

        A failed read is retried if `retry` is True. `siblings` are targets that may be queried to see if the sink
        answers.
        """
        table = table_of(target)
        if table is None:
            with self._tracker.doing(Stage.INSPECT, "waits to hear what the target holds", table=str(target)):
                ask = partial(self._sink.committed, target)
                return self._target_retry([target], ask, siblings=siblings) if retry else ask()
        return self._known.committed(table) if self._known is not None else None
