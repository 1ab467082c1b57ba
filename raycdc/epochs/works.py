"""From a manifest to what each target table gets of it: transforms, routes, schemas from the store, segments where they
are now.

Owned by the epoch loop, which asks for manifests in order. The targets as they are after an epoch go into its commit
record, and come from there when the loop begins or begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from raycdc.bridge.access import SegmentAccess
from raycdc.checkpoint.manifest import Manifest, Segment, TableEpoch
from raycdc.checkpoint.opaque import Positions, positions_in
from raycdc.checkpoint.store import CheckpointStore, CommitRecord, RoutedTarget
from raycdc.epochs.known_slots import slot_of
from raycdc.epochs.left_out import LeftOut
from raycdc.epochs.parked_targets import ParkedTargets
from raycdc.epochs.routing import Routing
from raycdc.epochs.share_rules import ShareRules
from raycdc.epochs.sink_patience import SinkPatience
from raycdc.errors import (
    ChangeRefusedError,
    ConfigError,
    NameRefusedError,
    RoutesRefusedError,
    RulesRefusedError,
    SchemaError,
    StateError,
    TableRefusedError,
)
from raycdc.model import TableId, TableSchema
from raycdc.model.names import claimed
from raycdc.model.transform import UNCHANGED
from raycdc.model.view import RowView
from raycdc.schema.events import SchemaChangeEvent
from raycdc.schema.targets import Tables, Target, TargetEpoch, changed_routes, emptied, routed_to, target_of
from raycdc.sinks.api import TableWork
from raycdc.source.snapshot.stream_state import stream_of
from raycdc.source.table_requests import begins_again, requests_of
from raycdc.transform import ResolvedTransform, layout_of


@dataclass(frozen=True, slots=True)
class Share:
    """The shares of the targets in one epoch, and what its commit record says of them (nothing without routes and
    transforms). `derived` are the transforms of tables whose rows have to be gone through first.
    """

    works: tuple[TableWork, ...]
    routes: Mapping[str, RoutedTarget]
    derived: Mapping[TableId, ResolvedTransform] = field(default_factory=dict)
    #: Targets that have no share although tables go there, and why.
    refused: Mapping[TableId, TableRefusedError] = field(default_factory=dict)


class Works:
    """See the module's docstring. `generation` and `access` are those of `raycdc.epochs.ports.EpochPorts`; `patience`
    waits for Spark, which may be asked what transforms mean.
    """

    def __init__(
        self,
        store: CheckpointStore,
        routing: Routing,
        *,
        generation: Callable[[], int],
        access: Callable[[], SegmentAccess],
        patience: SinkPatience,
    ) -> None:
        self._store = store
        self._router = routing.router
        self._routing = routing
        self._transforms = routing.transforms
        self._generation = generation
        self._access = access
        self._patience = patience
        self._schemas: dict[str, TableSchema] = {}
        self._targets: dict[TableId, Target] = {}
        self.left_out = LeftOut(store, routing.records, routing.upsert)
        self._rules = ShareRules(routing, self.left_out)

    def start_after(self, record: CommitRecord | None) -> None:
        """Targets are what they were when `record` was written. `StateError` when routes are others since then.

        A route that is new for a table that is there already would leave all earlier rows behind.
        """
        for maker in self._routing.makers:
            maker.sweep()
        if self._routing.joiner is not None:
            self._routing.joiner.sweep(record.epoch if record else 0)
        self.look_after(record)

    def look_after(self, record: CommitRecord | None) -> None:
        """`start_after`, but what is left of earlier runs stays."""
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
        self._check_transforms(known, self._parked_at(record))
        self._targets = {
            name: Target(
                sources[name],
                self._schema(target.schema) if target.schema else None,
                {source: frozenset(columns) for source, columns in target.dropped.items()},
            )
            for name, target in known.items()
        }

    def _parked_at(self, record: CommitRecord | None) -> Collection[str]:
        """Tables that were not followed when `record` was written: their next rows come with a new snapshot."""
        if record is None:
            return ()
        stream = stream_of(self._store.manifest(record.epoch))
        parked: list[str] = []
        if stream is not None:
            # One that was left at a place goes on from there with the rows that are written, unless it is read anew.
            asked = requests_of(self._store)
            parked = [
                str(table)
                for table, state in stream.parked.items()
                if state.left is None or begins_again(str(table), asked, stream)
            ]
        return [*parked, *(source for entry in record.parked.values() for source in entry.sources)]

    def _check_transforms(self, known: Mapping[TableId, RoutedTarget], parked: Collection[str]) -> None:
        """`StateError` when rows of a table that is there would be others from now on."""
        identity = self._transforms.identity
        for source, was in {s: entry.transforms.get(s, "") for entry in known.values() for s in entry.sources}.items():
            # A transform that leaves rows as they are is none.
            if identity(TableId.parse(source)) != was.removeprefix(UNCHANGED) and source not in parked:
                raise StateError(
                    f"The transform or mask of {source} differs from when its rows were written. Take it back, or "
                    "begin with another pipeline.state and a new snapshot. A table that is paused may be read anew "
                    f"instead: raycdc tables resnapshot CONFIG {source}."
                )

    def of(self, manifest: Manifest, parked: ParkedTargets) -> Share:
        """The share of each target of `manifest` that takes part, which follows what was asked for before. Blocks while
        Spark is waited for.
        """
        # Spark is asked before anything is remembered, so the same can be asked again.
        tables, transforms, unfit = self._patience.for_spark(partial(self._transformed, manifest))
        part = parked.taking_part(manifest, routed_to(manifest.tables, self._router))
        rules = self._transforms.naming.rules
        alike = claimed(rules, sorted(part), self._targets)
        refused: dict[TableId, TableRefusedError] = {}
        after: dict[TableId, Target] = {}
        shares: list[TargetEpoch] = []
        for name, sources in part.items():
            before = None if parked.begins(name, manifest) else self._targets.get(name)
            try:
                if why := alike.get(name) or rules.no_table(name):
                    raise NameRefusedError(f"{name}: {why}.")
                for source in sources:
                    if source in unfit:
                        raise unfit[source]
                    self._rules.check_known(source, self._schema(manifest.tables[source].schema))
                share, target = target_of(name, sources, tables, before, upsert=self._routing.upsert)
                self._rules.check(manifest, tables, share, target, before, transforms)
            except TableRefusedError as error:
                refused[name] = error
                continue
            if len(target.sources) > 1 and parked.begins(name, manifest):
                share = emptied(share)
            after[name] = target
            shares.append(share)
        self._targets.update(after)
        positions = {split: place.to_json() for split, place in positions_in(manifest.to_splits).items()}
        segments = _by_table(manifest.segments)
        works = tuple(self._work(manifest, share, positions, transforms, segments) for share in shares)
        told = self._router or self._transforms
        derived = {table: one for table, one in transforms.items() if self._transforms.derived(one) or one.lookups}
        routes = {str(name): self._described(target) for name, target in after.items() if told}
        return Share(works, routes, derived, refused)

    def _transformed(
        self, manifest: Manifest
    ) -> tuple[Tables, dict[TableId, ResolvedTransform], dict[TableId, TableRefusedError]]:
        """The tables of `manifest` as their transforms make them, these, and why those are not that do not fit."""
        tables: dict[TableId, tuple[TableSchema, Sequence[SchemaChangeEvent]]] = {}
        transforms: dict[TableId, ResolvedTransform] = {}
        unfit: dict[TableId, TableRefusedError] = {}
        for table, part in manifest.tables.items():
            if part.unknown:
                unfit[table] = _unknown_change(table, part)
                continue
            schema = self._schema(part.schema)
            changes: Sequence[SchemaChangeEvent] = part.changes
            if self._transforms or self._transforms.naming.acts:
                try:
                    schema, changes, resolved = self._transform(table, schema, changes)
                except TableRefusedError as error:
                    unfit[table] = error
                    continue
                if resolved is not None:
                    transforms[table] = resolved
            tables[table] = (schema, changes)
        return tables, transforms, unfit

    def _transform(
        self, table: TableId, schema: TableSchema, changes: Sequence[SchemaChangeEvent]
    ) -> tuple[TableSchema, Sequence[SchemaChangeEvent], ResolvedTransform | None]:
        """One table as its transform makes it. Whatever is wrong there is wrong with this one table."""
        try:
            schema, events = self._transforms.read(table, schema, changes)
            resolved = self._transforms.resolved(table, schema)
            events = self._transforms.changes(table, schema, self._before(table), events)
            schema = schema if resolved is None else resolved.schema
        except ConfigError as cause:
            raise RoutesRefusedError(*cause.problems) from cause
        except SchemaError as cause:
            raise RulesRefusedError(str(cause)) from cause
        return schema, events, resolved

    def _before(self, table: TableId) -> TableSchema | None:
        """The schema of the table's transformed rows so far, where a target has them alone; merging finds out itself
        which columns are new to it.
        """
        targets = (self._targets.get(name) for name in self._router.targets(table))
        return next((t.schema for t in targets if t is not None and len(t.sources) == 1), None)

    def sources(self, manifest: Manifest, parked: ParkedTargets) -> list[TableWork]:
        """The works of the known rows for `manifest`; none where no rows are kept.

        They have the schema changes that this version can read; `require_readable` refuses to write the others.
        """
        if self._routing.known is None:
            return []
        works = []
        for table, part in manifest.tables.items():
            if not parked.takes_part(slot_of(table), table, manifest):
                continue
            schema, events = self._transforms.read(table, self._schema(part.schema), part.changes)
            chosen = sorted((s for s in manifest.segments if s.table == table), key=lambda s: s.seq_base)
            work = TableWork(
                epoch=manifest.epoch,
                generation=self._generation(),
                source=table,
                target=table,
                schema=schema,
                changes=tuple(events),
                segments=self.placed(chosen),
                positions={},
            )
            works.append(work)
        return works

    def sources_of(self, target: TableId) -> tuple[TableId, ...]:
        """The source tables that went into the target so far."""
        known = self._targets.get(target)
        return known.sources if known is not None else ()

    def targets(self, manifest: Manifest) -> dict[TableId, tuple[TableId, ...]]:
        """The targets of an epoch, known rows among them, with the source tables that each gets rows or changes of."""
        targets: dict[TableId, list[TableId]] = {}
        for source in manifest.tables:
            for name in self._router.targets(source):
                targets.setdefault(name, []).append(source)
            if self._routing.known is not None:
                targets[slot_of(source)] = [source]
        return {name: tuple(sources) for name, sources in targets.items()}

    def placed(self, segments: Sequence[Segment]) -> tuple[Segment, ...]:
        """Each segment with the endpoint of its node as of now (none: the node is away)."""
        return self._access().placed(segments)

    def _described(self, target: Target) -> RoutedTarget:
        assert target.schema is not None
        schema = self._store.put_schema(target.schema)
        transforms = {str(s): identity for s in target.sources if (identity := self._transforms.identity(s))}
        dropped = {source: sorted(columns) for source, columns in sorted(target.dropped.items())}
        return RoutedTarget(tuple(map(str, target.sources)), schema, dropped, transforms)

    def _work(
        self,
        manifest: Manifest,
        share: TargetEpoch,
        positions: Positions,
        transforms: Mapping[TableId, ResolvedTransform],
        by_table: Mapping[TableId, Sequence[Segment]],
    ) -> TableWork:
        chosen = sorted((s for source in share.sources for s in by_table.get(source, ())), key=lambda s: s.seq_base)
        merged = self._targets[share.name].sources
        alone = len(merged) == 1
        segments = [self._seen(s, share, transforms.get(s.table), alone=alone) for s in chosen]
        anew = any(resolved.keyed_anew for table, resolved in transforms.items() if table in share.sources)
        if anew and self._routing.upsert:
            # Rows of one new key may have had several keys, and so be in several partitions.
            segments = [replace(segment, partition=0) for segment in segments]
        return TableWork(
            epoch=manifest.epoch,
            generation=self._generation(),
            source=share.sources[0],
            target=share.name,
            schema=share.schema,
            changes=share.changes,
            segments=self.placed(segments),
            positions=positions,
            merged=merged if not alone or (anew and self._routing.upsert) else (),
            beginning=share.beginning,
            layout=layout_of(share.name, transforms, share.sources),
            made=_made(transforms, share.sources),
        )

    def _seen(
        self, segment: Segment, share: TargetEpoch, resolved: ResolvedTransform | None, *, alone: bool
    ) -> Segment:
        """The segment as its target sees it, which a table that is not transformed may have for itself alone."""
        schema = share.schema
        if resolved is None:
            own, _ = self._transforms.read(segment.table, self._schema(segment.schema))
        else:
            own = resolved.schema
        projection = None if resolved is None or resolved.plain_view() else resolved.projection()
        if projection is None and (alone or own.arrow().equals(schema.arrow())):
            return segment
        fill = self._routing.upsert and not alone
        if fill:
            # A column that a table had once and dropped has no default in its rows.
            gone = self._targets[share.name].dropped_by(segment.table)
            columns = (replace(c, default=None) if c.name.casefold() in gone else c for c in schema.columns)
            schema = replace(schema, columns=tuple(columns))
        return replace(segment, view=RowView(own, schema, fill=fill, projection=projection))

    def _schema(self, fingerprint: str) -> TableSchema:
        if fingerprint not in self._schemas:
            self._schemas[fingerprint] = self._store.schema(fingerprint)
        return self._schemas[fingerprint]


def _by_table(segments: Sequence[Segment]) -> Mapping[TableId, Sequence[Segment]]:
    """The segments of each table; to look through all of them for each of hundreds of tables takes long."""
    found: dict[TableId, list[Segment]] = {}
    for segment in segments:
        found.setdefault(segment.table, []).append(segment)
    return found


def require_readable(works: Sequence[TableWork], manifest: Manifest) -> None:
    """`ChangeRefusedError` where known rows are to follow a schema change that this version cannot read.

    A table of which a target takes part is parked before; one that goes nowhere has nothing to be parked.
    """
    for work in works:
        part = manifest.tables[work.source]
        if part.unknown:
            raise _unknown_change(work.source, part)


def _unknown_change(table: TableId, part: TableEpoch) -> ChangeRefusedError:
    kind = part.unknown[0].written.to_json().get("type")
    return ChangeRefusedError(f"{table}: {kind!r:.100} is not a known schema change.")


def _made(transforms: Mapping[TableId, ResolvedTransform], sources: Sequence[TableId]) -> tuple[str, ...]:
    """Columns that are no source's own: what is one's of several, is taken for that."""
    columns = [transforms[table].made if table in transforms else frozenset[str]() for table in sources]
    return tuple(sorted(frozenset.intersection(*columns)))
