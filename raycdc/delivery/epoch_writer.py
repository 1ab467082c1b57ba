"""Writes one epoch to its targets: stages the rows, changes schemas, commits the tables, and parks targets that refuse.

The epoch loop calls it and decides the order. A `TableRefusedError` concerns only one target. If a stage job for many
targets raises it, each target is staged alone to find the target concerned. The caller handles every other error.

`EpochParts` holds the objects that the epoch loop, its recovery and the epoch writer share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from raycdc.core.activity import EpochPart, Stage
from raycdc.core.failpoints import reach
from raycdc.core.retry import Backoff, RetryPolicy
from raycdc.core.stopping import StopRequest
from raycdc.delivery.dead_letters import DeadLetters
from raycdc.delivery.outcomes import EpochStatistics, FollowedChange
from raycdc.delivery.ports import EpochPorts
from raycdc.delivery.record_keeper import CommitRecordWriter, table_of
from raycdc.delivery.rows.segment_making import Derived, SegmentMaking
from raycdc.delivery.targets.commit_planner import CommitPlanner, TargetBatch, require_readable
from raycdc.delivery.targets.parked_targets import ParkedTargets
from raycdc.delivery.targets.target_records import TargetRecords
from raycdc.delivery.targets.target_retry import SinkRetry, TargetRetry
from raycdc.errors import (
    ReferenceRefusedError,
    SegmentUnavailableError,
    SinkError,
    TableRefusedError,
    TargetBlockedError,
    ValueRefusedError,
)
from raycdc.model import TableId
from raycdc.model.engines import EngineRows, RowsBy
from raycdc.model.evolution.events import CreateTableEvent, named_change
from raycdc.segments.bad_rows import record_missing, refused_missing
from raycdc.sinks.api import Sink, TableCommit
from raycdc.state.bad_row_counts import add_bad_rows, bad_rows
from raycdc.state.manifests.manifest import Manifest, Segment
from raycdc.state.recovery import CommitVector
from raycdc.state.store import CheckpointStore, RoutedTarget


@dataclass(frozen=True, slots=True)
class EpochParts:
    """The parts of one epoch loop.

    `stopping` ends all waits. It is set when the run is asked to stop, and by `EpochLoop.stop`.
    """

    store: CheckpointStore
    sink: Sink
    ports: EpochPorts
    planner: CommitPlanner
    making: SegmentMaking
    parked: ParkedTargets
    target_records: TargetRecords
    records: CommitRecordWriter
    sink_retry: SinkRetry
    target_retry: TargetRetry
    stopping: StopRequest

    @classmethod
    def of(cls, store: CheckpointStore, sink: Sink, ports: EpochPorts) -> EpochParts:
        """Return the parts for the newest record of `store`, and the open `sink`."""
        record = store.last_commit()
        stopping = ports.stopping.part()
        sink_retry = SinkRetry(ports.parking.waiting, stopping, ports.threads)
        entries = record.parked if record else {}
        parked = ParkedTargets(entries, ports.parking.parks, can_replace=sink.can_replace)
        records = CommitRecordWriter(store, parked, generation=ports.generation, on_parked=ports.parking.on_parked)
        planner = CommitPlanner(
            store,
            ports.routing,
            generation=ports.generation,
            access=ports.access,
            sink_retry=sink_retry,
            recorded=records.described,
        )
        making = SegmentMaking(ports.routing, planner.left_out, ports.access)
        of_targets = TargetRetry(sink, sink_retry, parked, records, stopping)
        target_records = TargetRecords(store, sink, ports, planner, parked, of_targets)
        return cls(
            store, sink, ports, planner, making, parked, target_records, records, sink_retry, of_targets, stopping
        )


#: The number of tables of an epoch that commit concurrently. A commit mostly waits for the disk or the JVM.
COMMIT_THREADS = 4

#: How long an unreachable node with segments is retried before the epoch loop fails. The server of a node restarts
#: within seconds. A machine takes longer to boot, so its segments count as unavailable.
NODE_POLICY = RetryPolicy(longest_s=2.0, retry_s=30.0)


@dataclass(slots=True)
class PreparedEpoch:
    """An epoch that is being staged or committed; used by one thread at a time."""

    manifest: Manifest
    commits: Sequence[TableCommit]
    target_batch: TargetBatch
    staged: dict[TableId, Any] = field(default_factory=dict)
    staging_s: float = 0.0
    derived: Derived = field(default_factory=Derived)
    #: The parts of source tables whose changes are made exact, and in `exact` the segments made for them.
    sources: list[TableCommit] = field(default_factory=list)
    exact: dict[str, Segment | None] = field(default_factory=dict)


class EpochWriter:
    """Writes epochs; see the module's docstring."""

    def __init__(self, parts: EpochParts) -> None:
        self._store = parts.store
        self._sink = parts.sink
        self._ports = parts.ports
        self._planner = parts.planner
        self._making = parts.making
        self._parked = parts.parked
        self._target_records = parts.target_records
        self._records = parts.records
        self.dead_letters = DeadLetters(parts.ports.routing.records, parts.store)
        self._stopping = parts.stopping
        #: Guards the counts of left-out rows, because tables commit concurrently.
        self._one_at_a_time = threading.Lock()
        self._target_retry = parts.target_retry

    def prepared(self, manifest: Manifest) -> PreparedEpoch:
        """Return the planned commits for `manifest`. Parks targets that cannot get their part."""
        target_batch = self._planner.of(manifest, self._parked)
        for text in target_batch.warnings:
            self._ports.parking.on_bad_rows(text)
        for target, error in target_batch.refused.items():
            self._park(target, manifest, error)
        sources = self._planner.sources(manifest, self._parked)
        require_readable(sources, manifest)
        return PreparedEpoch(manifest, target_batch.commits, target_batch, sources=sources)

    def apply(self, prepared: PreparedEpoch, commits: Iterable[TableCommit]) -> None:
        """Apply the schema changes of `commits` to their targets; concurrently for several new ones, if the sink can do
        that.
        """
        changing = [work for work in commits if work.changes]
        new = [work for work in changing if all(isinstance(change, CreateTableEvent) for change in work.changes)]
        at_once = {work.target for work in new} if self._sink.makes_at_once and len(new) > 1 else set()
        if at_once:
            with self._ports.threads.pool(COMMIT_THREADS, "table") as pool:
                refused = _refusing(pool, new, self._apply)
            for work, error in refused:
                self._refused(prepared, work, error)
        for work in changing:
            if work.target not in at_once:
                try:
                    self._apply(work)
                except TableRefusedError as error:
                    self._refused(prepared, work, error)

    def _apply(self, work: TableCommit) -> None:
        """Apply the schema changes of `work` to its target."""
        reach("before_schema")
        does, part = "changes the target's columns", EpochPart(work.epoch, rows=0, bytes=0)
        with self._ports.tracker.doing(Stage.SCHEMA, does, table=str(work.target), part=part):
            self._target_retry([work.target], partial(self._sink.apply_schema, work))
        reach("after_schema")

    def stage(self, prepared: PreparedEpoch, commits: Sequence[TableCommit]) -> None:
        """Write the rows of those `commits` whose targets still take part, where readers do not see them."""
        commits = self.taking_part(prepared, commits)
        if not commits:
            return
        started = self._ports.threads.now_s()
        try:
            self._stage_all(prepared, commits)
        except TableRefusedError as error:
            if len(commits) == 1:
                try:
                    self._stage_all(prepared, [self._fitting(prepared, commits[0], error)])
                except TableRefusedError as refused:
                    self._refused(prepared, commits[0], refused)
            else:
                # The refusal concerns one of the targets. Staging them one by one shows which one.
                for work in commits:
                    self.stage(prepared, [work])
        finally:
            prepared.staging_s += self._ports.threads.now_s() - started

    def _fitting(self, prepared: PreparedEpoch, work: TableCommit, error: TableRefusedError) -> TableCommit:
        """Return `work` without the rows that its target can never have, if ``on_bad_record`` leaves such rows out.

        Otherwise raise the error of the target, with the row if it can be identified.
        """
        if not isinstance(error, ValueRefusedError) or isinstance(error, ReferenceRefusedError):
            raise error
        fitting = self._making.fitting(work, prepared.derived, self._sink.unrepresentable)
        if fitting is work:
            raise error
        return fitting

    def _stage_all(self, prepared: PreparedEpoch, commits: Sequence[TableCommit]) -> None:
        pauses = Backoff(NODE_POLICY, self._ports.threads)
        while True:
            try:
                part = _part(prepared.manifest, commits)
                with self._ports.tracker.doing(Stage.STAGE, "writes an epoch's rows", table=_named(commits), part=part):
                    exact = partial(self._making.exact, commits, prepared.sources, prepared.exact)
                    commits = self._target_retry.for_spark(exact)
                    derived = partial(self._making.derived, commits, prepared.target_batch, prepared.derived)
                    commits = self._target_retry.for_spark(derived)
                    # Tasks on other machines need this machine's address to read the new segments.
                    commits = [replace(work, segments=self._planner.located(work.segments)) for work in commits]
                    targets = [work.target for work in commits]
                    prepared.staged.update(self._target_retry(targets, partial(self._sink.stage, commits)))
                break
            except SegmentUnavailableError:
                pause_s = pauses.failed(self._ports.threads.now_s())
                if pause_s is None or self._stopping.pause(pause_s, self._ports.threads):
                    raise
            commits = [replace(work, segments=self._planner.located(work.segments)) for work in commits]
        made = {work.target: work for work in commits}
        prepared.commits = [made.get(work.target, work) for work in prepared.commits]

    def commit(self, prepared: PreparedEpoch) -> None:
        """Make the epoch visible in every target that takes part, and record it."""
        started = self._ports.threads.now_s()
        reach("before_commit")
        # The sink cannot fence this driver before a newer driver has written to it.
        self._store.generations.require_driver(self._ports.generation, f"the commit of epoch {prepared.manifest.epoch}")
        self._count_bad_rows(prepared)
        self._commit_tables(prepared)
        reach("after_last_commit")
        log, commits = self._ports.routing.log, self.taking_part(prepared, prepared.commits)
        written_by = log.rows(segment for work in commits for segment in work.segments)
        self._add_known(prepared)
        commit_s = self._ports.threads.now_s() - started
        self.record(
            prepared.manifest,
            prepared.target_batch.routes,
            _followed(prepared.commits),
            written_by,
            staging_s=prepared.staging_s,
            commit_s=commit_s,
        )
        made = [*prepared.derived.segments.values(), *prepared.exact.values()]
        log.forget([*prepared.manifest.segments, *(segment for segment in made if segment is not None)])
        self._making.forget(made, prepared.manifest.epoch)

    def record(
        self,
        manifest: Manifest,
        routes: Mapping[str, RoutedTarget],
        schema_changes: tuple[FollowedChange, ...] = (),
        written_by: RowsBy = {},  # noqa: B006 - nobody changes it
        *,
        staging_s: float = 0.0,
        commit_s: float = 0.0,
    ) -> None:
        """Record the epoch, which every target that takes part holds, and report its statistics."""
        targets = self._planner.targets(manifest)
        took = self._parked.taking_part(manifest, targets)
        taken = {source for name, sources in took.items() if table_of(name) is None for source in sources}
        part = EpochPart(manifest.epoch, manifest.rows, sum(s.bytes for s in manifest.segments), len(targets))
        with self._ports.tracker.doing(Stage.RECORD, f"records epoch {manifest.epoch}", part=part):
            now_ms = self._records.complete(manifest, targets, routes)
            self.dead_letters.show(manifest.epoch)
        lost = bad_rows(self._store, manifest.epoch)
        written = _only(manifest, taken)
        figures = EpochStatistics.of(written, now_ms, lost, schema_changes, staging_s=staging_s, commit_s=commit_s)
        read_by = self._ports.read_by(manifest.generation)
        read = {read_by: figures.rows} if read_by is not None and figures.rows else {}
        figures = replace(figures, engines=EngineRows(read, written_by))
        if self._ports.copies is not None:
            self._ports.copies.forget(manifest.segments)
        self._ports.on_committed(figures)

    def _add_known(self, prepared: PreparedEpoch) -> None:
        """Update the row store with the epoch, which all targets hold; it supplies the next epoch's before-images."""
        known = self._ports.routing.known
        if known is None:
            return
        parts = [w for w in prepared.sources if self._parked.takes_part(w.target, w.source, prepared.manifest)]
        for source, error in known.add(parts, prepared.exact).items():
            # The targets have this epoch already, but the next one could not be made exact for them.
            for target, sources in self._planner.targets(prepared.manifest).items():
                if source in sources and table_of(target) is None:
                    self._park(target, prepared.manifest, error)
        reach("after_known")

    def _count_bad_rows(self, prepared: PreparedEpoch) -> None:
        """Count the rows that the epoch leaves out, before any target shows that they are missing."""
        for table, error in refused_missing(prepared.manifest, self._ports.routing.records).items():
            targets = self._planner.targets(prepared.manifest)
            for work in self.taking_part(prepared, prepared.commits):
                if table in targets[work.target]:
                    self._refused(prepared, work, error)
        for table, missing in record_missing(prepared.manifest, self._ports.routing.records).items():
            prepared.derived.bad[f"missing of {table}"] = table, missing.count, missing.why
        self._notify(prepared, prepared.derived.bad_rows())

    def _notify(self, prepared: PreparedEpoch, tables: Collection[TableId]) -> None:
        """Keep and count the rows that the epoch leaves out, and report those of `tables`."""
        self.dead_letters.keep(prepared.manifest.epoch)
        lost = {str(table): count for table, count in prepared.derived.bad_rows().items()}
        if not lost:
            return
        add_bad_rows(self._store, prepared.manifest.epoch, lost, committed=self._records.epoch)
        first = {str(table): why for table, _, why in reversed(prepared.derived.bad.values())}
        for name, count in sorted((str(table), lost[str(table)]) for table in tables):
            kept = f"; kept in {self._ports.routing.records.kept}" if self._ports.routing.records.kept else ""
            self._ports.parking.on_bad_rows(
                f"{name}: {count} row{'s' if count > 1 else ''} of epoch {prepared.manifest.epoch} left out as "
                f"pipeline.on_bad_record says{kept}; the first: {first[name]}."
            )

    def _commit_tables(self, prepared: PreparedEpoch) -> None:
        """Commit all tables. If some fail, the remaining tables are still committed, and then the first error is
        raised. If a foreign key refuses a table, the table is retried after the remaining tables, which may have the
        rows that it refers to.
        """
        commits = [work for work in self.taking_part(prepared, prepared.commits) if work.target in prepared.staged]
        # The largest tables come first, so that no thread is left with a large one at the end.
        ordered = sorted(commits, key=lambda work: -work.input_bytes)
        while ordered:
            refused = self._commit_at_once(prepared, ordered)
            again = [work for work, error in refused if isinstance(error, ReferenceRefusedError)]
            if len(again) == len(ordered):
                again = []
            for work, error in refused:
                if work not in again:
                    self._refused(prepared, work, error)
            ordered = again

    def _commit_at_once(
        self, prepared: PreparedEpoch, commits: Sequence[TableCommit]
    ) -> list[tuple[TableCommit, TableRefusedError]]:
        """Commit `commits`, several concurrently. Return those that were refused, with the error."""
        refused = []
        with self._ports.threads.pool(COMMIT_THREADS, "table") as pool:
            pending: dict[Future[None], TableCommit] = {
                pool.submit(self._commit_table, prepared, work): work for work in commits
            }
            for done, future in enumerate(pending, start=1):
                try:
                    future.result()
                except TableRefusedError as error:
                    refused.append((pending[future], error))
                    continue
                reach("after_commit")
                if done < len(pending):
                    reach("between_tables")
        return refused

    def taking_part(self, prepared: PreparedEpoch, commits: Sequence[TableCommit]) -> list[TableCommit]:
        """Return those of `commits` whose targets have not been parked."""
        part = self._parked.taking_part(prepared.manifest, self._planner.targets(prepared.manifest))
        return [work for work in commits if work.target in part]

    def _commit_table(self, prepared: PreparedEpoch, work: TableCommit) -> None:
        does, part = f"commits epoch {prepared.manifest.epoch}", _part(prepared.manifest, [work])
        with self._ports.tracker.doing(Stage.COMMIT, does, table=str(work.target), part=part):
            self._commit_retrying(prepared, work)

    def _commit_retrying(self, prepared: PreparedEpoch, work: TableCommit) -> None:
        staged = [prepared.staged[work.target]]

        def commit() -> None:
            nonlocal work
            if not staged:
                # A failed commit may have used up the staged files. Steps that the target already holds are skipped.
                staged.append(self._sink.stage([work])[work.target])
            self._sink.commit(work, staged.pop())

        try:
            self._target_retry([work.target], commit)
        except TableRefusedError as error:
            with self._one_at_a_time:
                before = prepared.derived.bad_rows()
                work = self._fitting(prepared, work, error)
                now = prepared.derived.bad_rows()
                self._notify(prepared, [table for table, count in now.items() if count != before.get(table)])
            self._target_retry([work.target], commit)

    def _refused(self, prepared: PreparedEpoch, work: TableCommit, error: TableRefusedError) -> None:
        self._park(work.target, prepared.manifest, error)
        prepared.commits = [other for other in prepared.commits if other.target != work.target]

    def _park(self, target: TableId, manifest: Manifest, error: TableRefusedError) -> None:
        reach("before_park")
        sources = {*self._planner.targets(manifest).get(target, ()), *self._planner.sources_of(target)}
        # A blocked target is not retried, because the retries were just used up.
        held = self.held_of_refused(target, retry=not isinstance(error, TargetBlockedError))
        self._parked.park(target, sources, manifest, error, held)

    def held_of_refused(self, target: TableId, *, retry: bool = True) -> CommitVector | None:
        """Return the commit vector of a target that refused its rows; None if the target cannot be read or is gone."""
        try:
            return self._target_records.held(target, retry=retry) if self._sink.durable else None
        except TableRefusedError:
            return None
        except SinkError:
            if retry:
                raise
            return None


def _only(manifest: Manifest, tables: Collection[TableId]) -> Manifest:
    """Return the manifest with the parts and segments of `tables` only."""
    segments = tuple(segment for segment in manifest.segments if segment.table in tables)
    return replace(manifest, tables={t: part for t, part in manifest.tables.items() if t in tables}, segments=segments)


def _refusing(
    pool: Executor, commits: Sequence[TableCommit], act: Callable[[TableCommit], None]
) -> list[tuple[TableCommit, TableRefusedError]]:
    """Call `act` for all `commits` in `pool`.

    Return the commits that are refused, each with its error. Raises the first error that is no refusal.
    """
    refused = []
    for work, done in [(work, pool.submit(act, work)) for work in commits]:
        try:
            done.result()
        except TableRefusedError as error:
            refused.append((work, error))
    return refused


def _named(commits: Sequence[TableCommit]) -> str:
    """Return a text about the targets of `commits`: the largest one, and the number of others."""
    largest = str(max(commits, key=lambda work: work.input_bytes).target)
    return largest if len(commits) == 1 else f"{largest} and {len(commits) - 1} more"


def _part(manifest: Manifest, commits: Sequence[TableCommit]) -> EpochPart:
    """Return the part of an epoch that `commits` have, for the activity tracker."""
    rows = sum(segment.rows for work in commits for segment in work.segments)
    return EpochPart(manifest.epoch, rows, sum(work.input_bytes for work in commits), len(commits))


def _followed(commits: Sequence[TableCommit]) -> tuple[FollowedChange, ...]:
    """Return the schema changes of `commits`, without the creation of tables."""
    changed = []
    for work in commits:
        names = tuple(named_change(change) for change in work.changes if not isinstance(change, CreateTableEvent))
        if names:
            changed.append(FollowedChange(str(work.source), str(work.target), names))
    return tuple(changed)


def by_changes(commits: Sequence[TableCommit]) -> tuple[list[TableCommit], list[TableCommit]]:
    """Return the commits that may be staged while the previous epoch commits, and those that must wait for a schema
    change.
    """
    return [work for work in commits if not work.changes], [work for work in commits if work.changes]
