"""From a manifest to what each target table gets of it: routes, schemas from the store, segments where they are now.

Owned by the epoch loop, which asks for manifests in order. What targets are after an epoch goes into its commit record,
and comes from there when the loop begins or begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raycdc.checkpoint.manifest import Manifest, Segment
from raycdc.checkpoint.store import CheckpointStore, CommitRecord, RoutedTarget
from raycdc.errors import ConfigError, StateError
from raycdc.model import TableId, TableSchema
from raycdc.model.routes import Router
from raycdc.model.view import RowView
from raycdc.schema.targets import Target, TargetEpoch, changed_routes, targets_of
from raycdc.sinks.api import TableWork


@dataclass(frozen=True, slots=True)
class Routing:
    """Where tables go; whether the sink updates rows; and why several tables cannot go to one target, if so."""

    router: Router
    upsert: bool = False
    no_merging: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """What the targets get of one epoch, and what its commit record says of them (nothing without routes)."""

    works: tuple[TableWork, ...]
    routes: Mapping[str, RoutedTarget]


class Works:
    """See the module's docstring. The other arguments are those of `EpochLoop`."""

    def __init__(
        self,
        store: CheckpointStore,
        routing: Routing,
        *,
        generation: Callable[[], int],
        positions: Callable[[Manifest], Mapping[str, Any]],
        flights: Callable[[], Mapping[str, str]],
    ) -> None:
        self._store = store
        self._router = routing.router
        self._routing = routing
        self._generation = generation
        self._positions = positions
        self._flights = flights
        self._schemas: dict[str, TableSchema] = {}
        self._targets: dict[TableId, Target] = {}

    def start_after(self, record: CommitRecord | None) -> None:
        """Targets are what they were when `record` was written. `StateError` when routes are others since then.

        A route that is new for a table that is there already would leave all earlier rows behind.
        """
        tables = record.tables if record else {}
        routes = record.routes if record else {}
        known = {TableId.parse(name): routes.get(name, RoutedTarget((name,), "")) for name in tables}
        sources = {name: tuple(map(TableId.parse, target.sources)) for name, target in known.items()}
        if changed := changed_routes(sources, self._router):
            more = f" (and {len(changed) - 3} more)" if len(changed) > 3 else ""
            raise StateError(
                f"Routes changed: {'; '.join(changed[:3])}{more}. Rows already written would be missing there. Take "
                "the routes back, or begin with another pipeline.state and a new snapshot."
            )
        self._targets = {
            name: Target(
                sources[name], self._schema(target.schema) if target.schema else None, frozenset(target.dropped)
            )
            for name, target in known.items()
        }

    def of(self, manifest: Manifest) -> Share:
        """The share of each target of `manifest`, which follows what was asked for before."""
        tables = {table: (self._schema(part.schema), part.changes) for table, part in manifest.tables.items()}
        made = targets_of(tables, self._targets, self._router, upsert=self._routing.upsert)
        for share, target in made:
            if len(target.sources) > 1 and self._routing.no_merging:
                merged = ", ".join(map(str, target.sources))
                raise ConfigError(f"route: {merged} all go to {share.name}, and {self._routing.no_merging}")
        after = {share.name: target for share, target in made}
        self._targets.update(after)
        positions = self._positions(manifest)
        works = tuple(self._work(manifest, share, positions) for share, _ in made)
        return Share(works, {str(name): self._described(target) for name, target in after.items() if self._router})

    def targets(self, manifest: Manifest) -> dict[TableId, tuple[TableId, ...]]:
        """The targets of an epoch, with the source tables that each gets rows or changes of."""
        found: dict[TableId, list[TableId]] = {}
        for source in manifest.tables:
            for name in self._router.targets(source):
                found.setdefault(name, []).append(source)
        return {name: tuple(sources) for name, sources in found.items()}

    def placed(self, segments: Sequence[Segment]) -> tuple[Segment, ...]:
        """Each segment with the endpoint of its node as of now (none: the node is away)."""
        flights = self._flights()
        return tuple(replace(segment, flight=flights.get(segment.node, "")) for segment in segments)

    def _described(self, target: Target) -> RoutedTarget:
        assert target.schema is not None
        schema = self._store.put_schema(target.schema)
        return RoutedTarget(tuple(map(str, target.sources)), schema, tuple(sorted(target.dropped)))

    def _work(self, manifest: Manifest, share: TargetEpoch, positions: Mapping[str, Any]) -> TableWork:
        chosen = sorted((s for s in manifest.segments if s.table in share.sources), key=lambda s: s.seq_base)
        merged = self._targets[share.name].sources
        segments = [self._seen(s, share.schema) for s in chosen] if len(merged) > 1 else chosen
        return TableWork(
            epoch=manifest.epoch,
            generation=self._generation(),
            source=share.sources[0],
            target=share.name,
            schema=share.schema,
            changes=share.changes,
            segments=self.placed(segments),
            positions=positions,
            merged=merged if len(merged) > 1 else (),
            beginning=share.beginning,
        )

    def _seen(self, segment: Segment, schema: TableSchema) -> Segment:
        """The segment as its merged target sees it."""
        own = self._schema(segment.schema)
        if own.arrow().equals(schema.arrow()):
            return segment
        return replace(segment, view=RowView(own, schema, fill=self._routing.upsert))

    def _schema(self, fingerprint: str) -> TableSchema:
        if fingerprint not in self._schemas:
            self._schemas[fingerprint] = self._store.schema(fingerprint)
        return self._schemas[fingerprint]
