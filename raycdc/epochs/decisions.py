"""The decision about a sealed epoch that no record names: asked of the targets and of its segments, then decided.

The cases are one table (`raycdc.checkpoint.recovery`). Asking changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from raycdc.bridge.reading import verify_segments
from raycdc.checkpoint.manifest import Manifest, Segment
from raycdc.checkpoint.recovery import Decision, Frozen, decide, lacks
from raycdc.epochs.epoch_writer import NODE_POLICY
from raycdc.epochs.parts import EpochParts
from raycdc.model import TableId
from raycdc.schema.events import RenameColumnEvent
from raycdc.waiting.patience import Pauses


class Decisions:
    """See the module's docstring. `newest` is the greatest number that an epoch of the state ever had."""

    def __init__(self, parts: EpochParts, newest: int) -> None:
        self._newest = newest
        self._access = parts.ports.access
        self._sink = parts.sink
        self._works = parts.works
        self._parked = parts.parked
        self._holdings = parts.holdings
        self._records = parts.records
        self._stopping = parts.stopping
        self._threads = parts.ports.threads

    def of(self, manifest: Manifest) -> Decision:
        """The decision for `manifest`. Waits for a node with segments that are needed, unless the loop is stopping."""
        targets = self._parked.taking_part(manifest, self._works.targets(manifest))
        holds = self._holdings.of(targets)
        recorded = self._holdings.owed(self._records.vectors) if self._sink.durable else {}
        lacking = {s for target in targets if lacks(manifest.epoch, holds[target]) for s in targets[target]}
        needed = [segment for segment in manifest.segments if segment.table in lacking]
        pauses = Pauses(NODE_POLICY, self._threads)
        missing, own = needed, self._access()
        renamed = _renamed(manifest, targets)
        while True:
            # Segments that were found whole are not read again while others are waited for.
            missing = self.missing(missing)
            gone = {segment.table for segment in missing}
            lost = {target for target, sources in targets.items() if not gone.isdisjoint(sources)}
            decision = decide(manifest, holds, lost=lost, recorded=recorded, newest_epoch=self._newest, renamed=renamed)
            away = any(not own.is_own(segment) for segment in missing)
            if not (isinstance(decision, Frozen) and away):
                return decision
            # Reading tables again costs more than waiting for a node that only starts anew.
            pause_s = pauses.failed(self._threads.now_s())
            if pause_s is None or self._threads.wait(self._stopping, pause_s):
                return decision

    def missing(self, segments: Sequence[Segment]) -> list[Segment]:
        """Those that are not there, or damaged: few are looked at, so that all of each is."""
        access = self._access()
        placed = access.placed(segments)
        return [segment for segment in placed if not verify_segments([segment], access=access, checksum=True)]


def _renamed(manifest: Manifest, targets: Mapping[TableId, Collection[TableId]]) -> set[TableId]:
    """The targets whose columns get other names in the epoch."""
    parts = manifest.tables.items()
    sources = {table for table, part in parts if any(isinstance(c, RenameColumnEvent) for c in part.changes)}
    return {target for target, those in targets.items() if not sources.isdisjoint(those)}
