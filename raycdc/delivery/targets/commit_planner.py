"""Plans the part of an epoch that each target gets: its rows, its schema, and the places from which its segments are
read.

Owned by the epoch loop, which passes manifests in order. The commit record of an epoch contains the description of each
target after the epoch. The planner reads the newest record when the loop starts or recovers.

`TargetBatchRules` are checked for each target before a row is written. A target that breaks a rule is refused alone,
and the remaining targets get their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from raycdc.delivery.ports import Routing
from raycdc.delivery.record_keeper import slot_of
from raycdc.delivery.rows.bad_row_filter import LeftOut
from raycdc.delivery.targets.described_targets import DescribedTargets, Recorded
from raycdc.delivery.targets.parked_targets import ParkedTargets
from raycdc.delivery.targets.target_retry import SinkRetry
from raycdc.errors import (
    ChangeRefusedError,
    ConfigError,
    KeyRefusedError,
    NameRefusedError,
    RoutesRefusedError,
    RulesRefusedError,
    SchemaError,
    StateError,
    TableRefusedError,
)
from raycdc.model import TableId, TableSchema
from raycdc.model.evolution.events import CreateTableEvent, SchemaChangeEvent
from raycdc.model.evolution.targets import (
    Tables,
    TargetEpoch,
    TargetSchema,
    changed_routes,
    emptied,
    routed_to,
    target_of,
)
from raycdc.model.rules.names import claimed
from raycdc.model.rules.transform import UNCHANGED
from raycdc.model.view import RowView, projected
from raycdc.segments.access import SegmentAccess
from raycdc.sinks.api import TableCommit
from raycdc.sinks.changes import creates
from raycdc.source.snapshot.log.stream_state import StreamState, stream_of
from raycdc.source.tables.table_requests import replaced, requests_of, resnapshot_requested
from raycdc.state.codec import NEW_STATE
from raycdc.state.manifests.manifest import Manifest, Segment, TableEpoch, target_digest
from raycdc.state.opaque import Positions, positions_in
from raycdc.state.store import CheckpointStore, CommitRecord, RoutedTarget
from raycdc.transform import ResolvedTransform, layout_of


class TargetBatchRules:
    """The rules that a target's part of an epoch must obey; see the module's docstring."""

    def __init__(self, routing: Routing, left_out: LeftOut) -> None:
        self._routing = routing
        self._left_out = left_out

    def check(
        self,
        manifest: Manifest,
        tables: Tables,
        target_epoch: TargetEpoch,
        target: TargetSchema,
        before: TargetSchema | None,
        transforms: Mapping[TableId, ResolvedTransform],
    ) -> None:
        """Raise `TableRefusedError` if the configuration or the sink does not allow a target's part of an epoch.

        `target_epoch` is the target's part of the epoch of `manifest`. `before` describes the target before the epoch;
        None if it is new. `transforms` has the transforms of tables that have one.
        """
        if why := next(filter(None, map(self._routing.router.mixed, target_epoch.sources)), ""):
            # A source with a log parks such a table earlier. A source of topics does not check this.
            raise RoutesRefusedError(f"{target_epoch.name}: of {target_epoch.sources[0]}, {why}.")
        merged = ", ".join(map(str, target.sources))
        if len(target.sources) > 1 and self._routing.no_merging:
            raise RoutesRefusedError(f"route: {merged} all go to {target_epoch.name}, and {self._routing.no_merging}")
        soft = [source for source in target_epoch.sources if source in transforms and transforms[source].transform.soft]
        if len(target.sources) > 1 and soft:
            key_path = self._routing.transforms.transforms.key_path(soft[0])
            raise RoutesRefusedError(
                f'{key_path}.on_delete = "soft": {soft[0]} is merged with other tables into {target_epoch.name}, where '
                "nobody could tell whose a deleted row is. Route it elsewhere."
            )
        self._check_dropped(target_epoch, target, transforms)
        self._check_again(manifest, target_epoch, target, transforms)
        self._left_out.check(manifest, tables, target_epoch, before, target, transforms)

    def check_known(self, source: TableId, schema: TableSchema) -> None:
        """Raise `KeyRefusedError` if the table needs a row store but has no key."""
        if self._routing.known is not None and not schema.primary_key:
            raise KeyRefusedError(
                f'{source} has no primary key, by which source.changelog = "full" knows its rows. Declare one, or '
                "leave the table out."
            )

    def _check_dropped(
        self, target_epoch: TargetEpoch, target: TargetSchema, transforms: Mapping[TableId, ResolvedTransform]
    ) -> None:
        """Raise `RoutesRefusedError` if deleting a row that a lookup dropped might delete another table's row."""
        drops = [source for source in target_epoch.sources if source in transforms and transforms[source].drops]
        if self._routing.upsert and len(target.sources) > 1 and drops:
            key_path = transforms[drops[0]].lookups[0].lookup.key_path
            raise RoutesRefusedError(
                f'{key_path}.missing = "drop": {drops[0]} is merged with other tables into {target_epoch.name}, where '
                "deleting a row that was left out might delete another table's. Route it elsewhere, or use missing = "
                '"null".'
            )

    def _check_again(
        self,
        manifest: Manifest,
        target_epoch: TargetEpoch,
        target: TargetSchema,
        transforms: Mapping[TableId, ResolvedTransform],
    ) -> None:
        """Raise `RoutesRefusedError` if the part has rows of a backfill, and other rows of the target may have the same
        keys.

        The command for a backfill already refuses such tables, but another table may have been routed to the target
        since the command.
        """
        again = sorted({s.table for s in manifest.segments if s.kind == "backfill" and s.table in target_epoch.sources})
        rekeyed = any(source in transforms and transforms[source].has_new_key for source in again)
        if again and self._routing.upsert and (len(target.sources) > 1 or rekeyed):
            raise RoutesRefusedError(
                f"{target_epoch.name}: rows of {again[0]} were read again, and cannot be told from those of the other "
                f"tables there, or of another key. Read it anew with: raycdc tables resnapshot CONFIG {again[0]}"
            )


@dataclass(frozen=True, slots=True)
class TargetBatch:
    """The parts of all targets in one epoch, and the targets' descriptions for its commit record.

    `derived` are the transforms of tables whose segments must be rewritten.
    """

    commits: tuple[TableCommit, ...]
    routes: Mapping[str, RoutedTarget]
    derived: Mapping[TableId, ResolvedTransform] = field(default_factory=dict)
    #: The targets that get no part although tables are routed to them, with the reason.
    refused: Mapping[TableId, TableRefusedError] = field(default_factory=dict)
    #: Warnings for people.
    warnings: tuple[str, ...] = ()


class CommitPlanner:
    """Plans commits; see the module's docstring.

    `generation` and `access` are those of `raycdc.delivery.ports.EpochPorts`. `sink_retry` retries calls to Spark,
    which resolves transforms.
    """

    def __init__(
        self,
        store: CheckpointStore,
        routing: Routing,
        *,
        generation: Callable[[], int],
        access: Callable[[], SegmentAccess],
        sink_retry: SinkRetry,
        recorded: Recorded,
    ) -> None:
        self._store = store
        self._router = routing.router
        self._routing = routing
        self._transforms = routing.transforms
        self._generation = generation
        self._access = access
        self._sink_retry = sink_retry
        self._targets = DescribedTargets(store, routing.transforms, recorded)
        self.left_out = LeftOut(store, routing.records, routing.upsert)
        self._rules = TargetBatchRules(routing, self.left_out)

    def start_after(self, record: CommitRecord | None) -> None:
        """Start with the targets that `record` describes, and delete files that earlier runs left.

        Raises `StateError` if routes changed, because a new target of an existing table would lack all its earlier
        rows.
        """
        for maker in self._routing.makers:
            maker.sweep()
        if self._routing.joiner is not None:
            self._routing.joiner.sweep(record.epoch if record else 0)
        self.inspect_after(record)

    def inspect_after(self, record: CommitRecord | None) -> None:
        """Start like `start_after`, but keep files that earlier runs left."""
        tables = record.tables if record else {}
        routes = record.routes if record else {}
        known = {TableId.parse(name): routes.get(name, RoutedTarget((name,), "")) for name in tables}
        stream = stream_of(self._store.manifest(record.epoch)) if record else None
        waiting = {source for entry in record.parked.values() for source in entry.sources} if record else set()
        parked = {*(stream.parked if stream is not None else ()), *map(TableId.parse, waiting)}
        if changed := changed_routes(self._sources_of_known(known, parked), self._router):
            more = f" (and {len(changed) - 3} more)" if len(changed) > 3 else ""
            raise StateError(
                f"Routes changed: {'; '.join(changed[:3])}{more}. Rows already written would be missing there. Take "
                f"the routes back, or {NEW_STATE}."
            )
        self._check_transforms(known, self._parked_at(record, stream))
        self._targets.start(known, stream)

    def _sources_of_known(
        self, known: Mapping[TableId, RoutedTarget], parked: Collection[TableId]
    ) -> dict[TableId, set[TableId]]:
        """Return the source tables of the `known` targets, with the `parked` tables that are routed to them.

        A shared target that was emptied while one of its tables is paused, or waits with a parked target, has no rows
        of that table. The next rows of that table come with a new snapshot (`raycdc.source.tables.table_commands`), so
        its routes did not change.
        """
        sources = {name: set(map(TableId.parse, target.sources)) for name, target in known.items()}
        for table in set().union(*sources.values()).intersection(parked):
            for name in sources.keys() & set(self._router.targets(table)):
                sources[name].add(table)
        return sources

    def _parked_at(self, record: CommitRecord | None, stream: StreamState | None) -> Collection[str]:
        """Return the tables that were parked at `record`, and whose next rows come with a new snapshot."""
        if record is None:
            return ()
        parked: list[str] = []
        if stream is not None:
            # A parked table that keeps its position in the log continues after the written rows, unless it is
            # resnapshotted.
            asked = requests_of(self._store)
            parked = [
                str(table)
                for table, state in stream.parked.items()
                if state.left is None or resnapshot_requested(str(table), asked, stream)
            ]
        return [*parked, *(source for entry in record.parked.values() for source in entry.sources)]

    def _check_transforms(self, known: Mapping[TableId, RoutedTarget], parked: Collection[str]) -> None:
        """Raise `StateError` if a changed transform would make later rows of an existing table inconsistent."""
        identity = self._transforms.identity
        for source, was in {s: entry.transforms.get(s, "") for entry in known.values() for s in entry.sources}.items():
            # A transform that does not change rows counts as none.
            if identity(TableId.parse(source)) != was.removeprefix(UNCHANGED) and source not in parked:
                raise StateError(
                    f"The transform or mask of {source} differs from when its rows were written, or a setting of "
                    "spark.conf by which expressions may give other results, such as spark.sql.session.timeZone. Take "
                    f"it back, or {NEW_STATE}. A table that is paused may be read anew "
                    f"instead: raycdc tables resnapshot CONFIG {source}."
                )

    def of(self, manifest: Manifest, parked: ParkedTargets) -> TargetBatch:
        """Return the parts of those targets that get rows of the epoch of `manifest`. Blocks while Spark is
        unreachable.
        """
        # Transforms are resolved before the planner's state changes, so that the call can be repeated if Spark is
        # unreachable.
        tables, transforms, unfit = self._sink_retry.for_spark(partial(self._transformed, manifest))
        part = parked.taking_part(manifest, routed_to(manifest.tables, self._router))
        rules = self._transforms.naming.rules
        clashes = claimed(rules, sorted(part), self._targets)
        refused: dict[TableId, TableRefusedError] = {}
        after: dict[TableId, TargetSchema] = {}
        parts: list[TargetEpoch] = []
        warnings: list[str] = []
        for name, sources in part.items():
            before = None if parked.begins(name, manifest) else self._targets.get(name)
            try:
                if why := clashes.get(name) or rules.no_table(name):
                    raise NameRefusedError(f"{name}: {why}.")
                for source in sources:
                    if source in unfit:
                        raise unfit[source]
                    self._rules.check_known(source, self._targets.schema(manifest.tables[source].schema))
                begins = _begins(sources, tables)
                had = self._targets.columns_of(name) if begins else ()
                if begins and not had and name in self._targets:
                    warnings.append(_unknown_columns(name))
                target_epoch, target = target_of(name, sources, tables, before, upsert=self._routing.upsert, had=had)
                self._rules.check(manifest, tables, target_epoch, target, before, transforms)
            except TableRefusedError as error:
                refused[name] = error
                continue
            if len(target.sources) > 1 and parked.begins(name, manifest):
                target_epoch = emptied(target_epoch)
            after[name] = target
            parts.append(target_epoch)
        routes = self._targets.follow(after)
        positions = {split: key_path.to_json() for split, key_path in positions_in(manifest.to_splits).items()}
        segments = _by_table(manifest.segments)
        digest = manifest.digest
        works = (self._work(manifest, target_epoch, positions, transforms, segments) for target_epoch in parts)
        commits = tuple(replace(work, digest=target_digest(digest, work.target)) for work in works)
        if rekeyed := {work.target for work in commits if creates(work) and parked.begins(work.target, manifest)}:
            asked_for = replaced(self._store)
            commits = tuple(replace(w, replaces=w.target in rekeyed and asked_for([w.source])) for w in commits)
        derived = {table: one for table, one in transforms.items() if self._transforms.derived(one) or one.lookups}
        return TargetBatch(commits, routes, derived, refused, tuple(warnings))

    def _transformed(
        self, manifest: Manifest
    ) -> tuple[Tables, dict[TableId, ResolvedTransform], dict[TableId, TableRefusedError]]:
        """Return the transformed schemas and changes of the tables of `manifest`, their transforms, and errors by
        table.
        """
        tables: dict[TableId, tuple[TableSchema, Sequence[SchemaChangeEvent]]] = {}
        transforms: dict[TableId, ResolvedTransform] = {}
        unfit: dict[TableId, TableRefusedError] = {}
        for table, part in manifest.tables.items():
            if part.unknown:
                unfit[table] = _unknown_change(table, part)
                continue
            schema = self._targets.schema(part.schema)
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
        """Return one table's transformed schema and changes, and its transform. Any error concerns this table only."""
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
        """Return the schema of the table's earlier transformed rows, taken from a target that has rows of this table
        only; None if there is no such target. For a merged target, the merge of schemas finds new columns.
        """
        targets = (self._targets.get(name) for name in self._router.targets(table))
        return next((t.schema for t in targets if t is not None and len(t.sources) == 1), None)

    def sources(self, manifest: Manifest, parked: ParkedTargets) -> list[TableCommit]:
        """Return the commits of the row stores for `manifest`; empty if there are no row stores.

        They contain only the schema changes that this version of raycdc can read; `require_readable` raises an error
        for the rest.
        """
        if self._routing.known is None:
            return []
        commits = []
        digest = manifest.digest
        for table, part in manifest.tables.items():
            if not parked.takes_part(slot_of(table), table, manifest):
                continue
            schema, events = self._transforms.read(table, self._targets.schema(part.schema), part.changes)
            chosen = sorted((s for s in manifest.segments if s.table == table), key=lambda s: s.seq_base)
            work = TableCommit(
                epoch=manifest.epoch,
                generation=self._generation(),
                source=table,
                target=table,
                schema=schema,
                changes=tuple(events),
                segments=self.located(chosen),
                positions={},
                digest=target_digest(digest, slot_of(table)),
            )
            commits.append(work)
        return commits

    def sources_of(self, target: TableId) -> tuple[TableId, ...]:
        """Return the source tables whose rows the target has."""
        known = self._targets.get(target)
        return known.sources if known is not None else ()

    def targets(self, manifest: Manifest) -> dict[TableId, tuple[TableId, ...]]:
        """Return the targets of an epoch, row stores included, with the source tables from which each gets rows or
        changes.
        """
        targets: dict[TableId, list[TableId]] = {}
        for source in manifest.tables:
            for name in self._router.targets(source):
                targets.setdefault(name, []).append(source)
            if self._routing.known is not None:
                targets[slot_of(source)] = [source]
        return {name: tuple(sources) for name, sources in targets.items()}

    def located(self, segments: Sequence[Segment]) -> tuple[Segment, ...]:
        """Return the segments, each with the present endpoint of its node (empty if the node is unreachable)."""
        return self._access().located(segments)

    def _work(
        self,
        manifest: Manifest,
        target_epoch: TargetEpoch,
        positions: Positions,
        transforms: Mapping[TableId, ResolvedTransform],
        by_table: Mapping[TableId, Sequence[Segment]],
    ) -> TableCommit:
        chosen = sorted(
            (s for source in target_epoch.sources for s in by_table.get(source, ())), key=lambda s: s.seq_base
        )
        merged = self._targets[target_epoch.name].sources
        alone = len(merged) == 1
        segments = [self._seen(s, target_epoch, transforms.get(s.table), alone=alone) for s in chosen]
        rekeyed = any(resolved.has_new_key for table, resolved in transforms.items() if table in target_epoch.sources)
        if rekeyed and self._routing.upsert:
            # Rows with the same new key may be in several partitions, because they had different keys.
            segments = [replace(segment, partition=0) for segment in segments]
        return TableCommit(
            epoch=manifest.epoch,
            generation=self._generation(),
            source=target_epoch.sources[0],
            target=target_epoch.name,
            schema=target_epoch.schema,
            changes=target_epoch.changes,
            segments=self.located(segments),
            positions=positions,
            merged=merged if not alone or (rekeyed and self._routing.upsert) else (),
            beginning=target_epoch.beginning,
            layout=layout_of(target_epoch.name, transforms, target_epoch.sources),
            made=_made(transforms, target_epoch.sources),
        )

    def _seen(
        self, segment: Segment, target_epoch: TargetEpoch, resolved: ResolvedTransform | None, *, alone: bool
    ) -> Segment:
        """Return the segment with the view that converts its rows for the target; without a view if they need no
        change. `alone` is True if the target has rows of this table only.
        """
        schema = target_epoch.schema
        if resolved is None:
            own, _ = self._transforms.read(segment.table, self._targets.schema(segment.schema))
        else:
            own = resolved.schema
        projection = None if resolved is None or resolved.plain_view() else resolved.projection()
        owner = resolved.owner if resolved is not None else ()
        if projection is None and not owner and (alone or own.arrow().equals(schema.arrow())):
            return segment
        fill = self._routing.upsert and not alone
        if fill:
            # Rows get no default for a column that their table had and dropped.
            own, schema, names = self._targets[target_epoch.name].seen(segment.table, own)
            projection = projected(projection, names)
        return replace(segment, view=RowView(own, schema, fill=fill, projection=projection, owner=owner))


def _by_table(segments: Sequence[Segment]) -> Mapping[TableId, Sequence[Segment]]:
    """Return the segments of each table, because searching all segments for each of hundreds of tables takes long."""
    found: dict[TableId, list[Segment]] = {}
    for segment in segments:
        found.setdefault(segment.table, []).append(segment)
    return found


def require_readable(commits: Sequence[TableCommit], manifest: Manifest) -> None:
    """Raise `ChangeRefusedError` if a row store must apply a schema change that this version cannot read.

    A table with such a change is normally parked together with its target before that. A table without a target cannot
    be parked, so its error ends the run.
    """
    for work in commits:
        part = manifest.tables[work.source]
        if part.unknown:
            raise _unknown_change(work.source, part)


def _unknown_change(table: TableId, part: TableEpoch) -> ChangeRefusedError:
    kind = part.unknown[0].written.to_json().get("type")
    return ChangeRefusedError(f"{table}: {kind!r:.100} is not a known schema change.")


def _unknown_columns(target: TableId) -> str:
    """Return the warning for the target of a resnapshotted table whose columns an older version did not record."""
    return (
        f"{target}: its table begins again, and an older raycdc did not write down which columns the target has: those "
        "that the table has not any more stay there, with null. Drop them if they are not wanted."
    )


def _begins(sources: Sequence[TableId], tables: Tables) -> bool:
    """Return True if one of the tables is created in this epoch, for the first time or again."""
    return any(isinstance(change, CreateTableEvent) for source in sources for change in tables[source][1])


def _made(transforms: Mapping[TableId, ResolvedTransform], sources: Sequence[TableId]) -> tuple[str, ...]:
    """Return the columns that the transforms of all tables add. Any other column belongs to a source."""
    columns = [transforms[table].made if table in transforms else frozenset[str]() for table in sources]
    return tuple(sorted(frozenset.intersection(*columns)))
