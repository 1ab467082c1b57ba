"""The rules by which a target may get its part of an epoch: whoever breaks one is refused alone, and all others go on.

Asked by `raycdc.epochs.works` for each target of each epoch, in order, before a row of it is written.
"""

from __future__ import annotations

from collections.abc import Mapping

from raycdc.checkpoint.manifest import Manifest
from raycdc.epochs.left_out import LeftOut
from raycdc.epochs.routing import Routing
from raycdc.errors import KeyRefusedError, RoutesRefusedError
from raycdc.model import TableId, TableSchema
from raycdc.schema.targets import Tables, Target, TargetEpoch
from raycdc.transform import ResolvedTransform


class ShareRules:
    """See the module's docstring."""

    def __init__(self, routing: Routing, left_out: LeftOut) -> None:
        self._routing = routing
        self._left_out = left_out

    def check(
        self,
        manifest: Manifest,
        tables: Tables,
        share: TargetEpoch,
        target: Target,
        before: Target | None,
        transforms: Mapping[TableId, ResolvedTransform],
    ) -> None:
        """`TableRefusedError` where the configuration or the sink does not allow `share`, the part that `target` has of
        `manifest`. `before` is the target as it was; None where it begins. `transforms` are those of tables that have
        one.
        """
        if why := next(filter(None, map(self._routing.router.mixed, share.sources)), ""):
            # Where the log is read such a table is parked alone; topics are not asked there.
            raise RoutesRefusedError(f"{share.name}: of {share.sources[0]}, {why}.")
        merged = ", ".join(map(str, target.sources))
        if len(target.sources) > 1 and self._routing.no_merging:
            raise RoutesRefusedError(f"route: {merged} all go to {share.name}, and {self._routing.no_merging}")
        soft = [source for source in share.sources if source in transforms and transforms[source].transform.soft]
        if len(target.sources) > 1 and soft:
            place = self._routing.transforms.transforms.place(soft[0])
            raise RoutesRefusedError(
                f'{place}.on_delete = "soft": {soft[0]} is merged with other tables into {share.name}, where nobody '
                "could tell whose a deleted row is. Route it elsewhere."
            )
        self._check_dropped(share, target, transforms)
        self._check_again(manifest, share, target, transforms)
        self._left_out.check(manifest, tables, share, before, target, transforms)

    def check_known(self, source: TableId, schema: TableSchema) -> None:
        """`KeyRefusedError` where rows of the table are to be known, and nothing tells them apart."""
        if self._routing.known is not None and not schema.primary_key:
            raise KeyRefusedError(
                f'{source} has no primary key, by which source.changelog = "full" knows its rows. Declare one, or '
                "leave the table out."
            )

    def _check_dropped(
        self, share: TargetEpoch, target: Target, transforms: Mapping[TableId, ResolvedTransform]
    ) -> None:
        """`RoutesRefusedError` where a row that was never there might take another's with it when it is deleted."""
        drops = [source for source in share.sources if source in transforms and transforms[source].drops]
        if self._routing.upsert and len(target.sources) > 1 and drops:
            place = transforms[drops[0]].lookups[0].lookup.place
            raise RoutesRefusedError(
                f'{place}.missing = "drop": {drops[0]} is merged with other tables into {share.name}, where deleting a '
                'row that was left out might delete another table\'s. Route it elsewhere, or use missing = "null".'
            )

    def _check_again(
        self, manifest: Manifest, share: TargetEpoch, target: Target, transforms: Mapping[TableId, ResolvedTransform]
    ) -> None:
        """`RoutesRefusedError` for rows that are read again, where the target may have their keys from other rows: the
        command is refused there, but a table may have come to share its target since.
        """
        again = sorted({s.table for s in manifest.segments if s.kind == "backfill" and s.table in share.sources})
        anew = any(source in transforms and transforms[source].keyed_anew for source in again)
        if again and self._routing.upsert and (len(target.sources) > 1 or anew):
            raise RoutesRefusedError(
                f"{share.name}: rows of {again[0]} were read again, and cannot be told from those of the other tables "
                f"there, or of another key. Read it anew with: raycdc tables resnapshot CONFIG {again[0]}"
            )
