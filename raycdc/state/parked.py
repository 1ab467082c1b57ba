"""Parked targets: each could not take its rows of a sealed epoch, and the other targets go on without it.

The epoch loop writes an entry for each parked target into the commit record (`raycdc.delivery.targets.parked_targets`).
The entry lists the source tables that wait for a user's decision. The source is notified
(`raycdc.source.tables.parking.Refusal`) and passes no rows of these tables from some later position on. Rows before
this position are not written either.

A source table takes part again from the manifest in which its resnapshot began: its incarnation is then greater than
when it was parked, and the resnapshot empties the target first. It therefore does not matter how much of the refused
epoch the target has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from raycdc.core.typed_codec import JsonObject
from raycdc.errors import ParkReason
from raycdc.model import TableId
from raycdc.state.manifests.manifest import STREAM_SPLIT_ID, Manifest
from raycdc.state.opaque import Position

#: The advice for each reason: what to do before the table is resnapshotted. ``tests/e2e/test_ways_out.py`` tests each
#: advice, and fails for a reason without a test.
WAYS_OUT: Mapping[ParkReason, str] = {
    ParkReason.CHANGE: "Delete or move away the target if it is a changelog or has another key; any other is emptied, "
    "and gets the columns that the table has now",
    ParkReason.COLUMNS: "Rename or change the column at the source, or choose other columns with a [[transform]]",
    ParkReason.NAME: "Give it another name in the sink with a [[route]], or rename the table",
    ParkReason.KEY: "Give the table a key that tells its rows apart, change one of two rows that have the same key, or "
    "delete the target if its key is an older one",
    ParkReason.VALUE: "Mend the row, the transform or the column's type",
    ParkReason.TAKEN: "Move what is there away, or say with pipeline.on_existing what becomes of it",
    ParkReason.MISSING: "The target is made anew",
    ParkReason.MODIFIED: "Undo what was done to the target, or delete the target",
    ParkReason.BLOCKED: "End the session that has the target locked, or mend what fails for it at its server or "
    "catalog",
    ParkReason.RULES: "Change the [[transform]], [[lookup]], [[mask]] or [[route]], or the table",
}

#: Reasons that lie in the content of the target, which a new snapshot may replace.
REPLACEABLE = frozenset({ParkReason.CHANGE, ParkReason.TAKEN, ParkReason.MODIFIED})


@dataclass(frozen=True, slots=True)
class ParkedTarget(JsonObject):
    """A target that has no epoch from `epoch` on.

    It may have a part of `epoch`; its commit vector `held` tells which (None: nothing).

    `sources` are the source tables whose rows are not written, with their incarnations when they were parked.
    `positions` are the positions of the splits before the epoch. `begun` is True if a merged target was emptied and has
    rows again, from tables that are no longer in `sources`.
    """

    epoch: int
    held: tuple[int, int] | None
    reason: ParkReason
    text: str
    since_ms: int
    sources: Mapping[str, int]
    positions: Mapping[str, Position] = field(default_factory=dict)
    begun: bool = False

    def waits(self, source: TableId, manifest: Manifest) -> bool:
        """Return True if the target must not get the rows of `source` in `manifest`."""
        if manifest.epoch < self.epoch:
            return False
        if str(source) not in self.sources:
            # This table was routed to the target later. Its rows may be written, because the target was emptied before.
            return not self.begun and not any(self._is_back(TableId.parse(name), manifest) for name in self.sources)
        return not self._is_back(source, manifest)

    def _is_back(self, source: TableId, manifest: Manifest) -> bool:
        """Return True if one of the `sources` was resnapshotted by `manifest`, which empties the target."""
        now = incarnation_of(source, manifest)
        return now is not None and now > self.sources[str(source)]

    def after(self, manifest: Manifest, sources: Collection[TableId]) -> ParkedTarget | None:
        """Return the entry after `manifest` is committed, which has changes of `sources` for the target; None if it is
        not parked any more.
        """
        if manifest.epoch < self.epoch:
            return self
        back = {str(source) for source in sources if not self.waits(source, manifest)}
        new = {str(s): incarnation_of(s, manifest) or 0 for s in sources if self.waits(s, manifest)}
        left = {**new, **{name: number for name, number in self.sources.items() if name not in back}}
        begun = self.begun or bool(back)
        return replace(self, sources=left, begun=begun) if left else None


def incarnation_of(source: TableId, manifest: Manifest) -> int | None:
    """Return the table's incarnation after `manifest`; None if it is not followed, or has no incarnations."""
    stream = manifest.to_splits.get(STREAM_SPLIT_ID)
    return None if stream is None else stream.incarnation(str(source))
