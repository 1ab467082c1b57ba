"""The epoch loop: sealed epochs in order, each staged, committed to the sink, recorded, told to the source side.

Runs on the driver, in a thread of its caller's. Staging of epoch e+1 overlaps the commit of e, except for tables whose
schema changes in e+1: these wait for the commit, then for the change. Epochs commit strictly in order, the tables of
one on a few threads. It needs no Spark itself: what runs the stage tasks was handed to the sink.

*What if the process dies here?* Before the sink's commits: the epoch is staged again. Between or after them: `recover`
asks the sink and replays what is missing. After the record: nothing was lost but the message to the source side, which
reads the record at its start.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from raycdc.bridge.missing_rows import told_missing
from raycdc.bridge.reading import verify_segments
from raycdc.checkpoint.bad_rows import add_bad_rows, bad_rows, settle_bad_rows
from raycdc.checkpoint.manifest import STATE_NODE, Manifest, Segment
from raycdc.checkpoint.recovery import (
    STEP_LAST,
    CommitVector,
    Frozen,
    Record,
    Refuse,
    Replay,
    Tombstone,
    contradictions,
    decide,
    lacks,
)
from raycdc.checkpoint.store import CheckpointStore, CommitRecord, RoutedTarget
from raycdc.errors import FencedError, SegmentUnavailableError, SinkError, StateError
from raycdc.failpoints import reach
from raycdc.model import TableId
from raycdc.model.routes import Router
from raycdc.schema.events import RenameColumnEvent
from raycdc.sinks.api import Sink, TableWork
from raycdc.spark.known_rows import slot_of, table_of
from raycdc.spark.works import Derived, Routing, Share, Works

#: Tables of one epoch that commit at once: each commit waits for the disk or the JVM more than it computes.
COMMIT_THREADS = 4

#: How long to wait for the next sealed epoch before looking whether something failed or a stop was asked for.
POLL_S = 0.2

#: How long a node with segments may be away before the epoch loop ends with its error: its server is started again
#: within seconds, a machine that boots is not waited for.
NODE_PATIENCE_S = 30.0

#: Epochs whose figures `statistics` keeps.
STATISTICS_EPOCHS = 100


@dataclass(frozen=True, slots=True)
class EpochStatistics:
    """Figures of one committed epoch. `staging_s` overlaps the commit of the epoch before."""

    epoch: int
    rows: int
    bytes: int
    tables: Mapping[str, int]
    staging_s: float
    commit_s: float
    committed_ms: int
    sealed_ms: int
    watermark_ms: int | None
    final: bool
    #: Rows of each table that were left out so far, of those that lost any.
    bad_rows: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recovery:
    """What `EpochLoop.recover` did: epochs recorded, replayed, dropped, and completed by tables that begin again.

    Reading goes on after `epoch`.
    """

    epoch: int
    recorded: tuple[int, ...] = ()
    replayed: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    frozen: tuple[int, ...] = ()


@dataclass(slots=True)
class _Prepared:
    """An epoch on its way through the loop; owned by one thread at a time."""

    manifest: Manifest
    works: Sequence[TableWork]
    share: Share
    staged: dict[TableId, Any] = field(default_factory=dict)
    staging_s: float = 0.0
    derived: Derived = field(default_factory=Derived)
    #: Shares of source tables whose changes are made exact, and what was made of their segments.
    sources: list[TableWork] = field(default_factory=list)
    exact: dict[str, Segment | None] = field(default_factory=dict)


def _refuse(_manifest: Manifest, _tables: Sequence[TableId], text: str) -> None:
    raise StateError(text)


class EpochLoop:
    """See the module's docstring. `sink` is open; `generation` tells this driver's newest, which rises
    when its coordinator had to be replaced.

    `next_sealed(after, timeout_s)` returns the first sealed epoch greater than `after`, or None when there was none
    for so long; it may raise to end the loop. `on_committed` is called after each record, in order, on a thread of the
    loop. `positions` picks what goes into the sink's commits of an epoch's split states. `flights` are the endpoints of
    the spools of other nodes, by their names, as of now. `begin_again` asks, durably, for new snapshots of source
    tables whose rows of an epoch are gone (the text says why), or raises if that cannot be. `routing` says which
    targets tables go to. `on_bad_rows` is told of rows that an epoch leaves out, before it is committed.
    """

    def __init__(
        self,
        store: CheckpointStore,
        sink: Sink,
        *,
        generation: Callable[[], int],
        next_sealed: Callable[[int, float], Manifest | None],
        on_committed: Callable[[EpochStatistics], None] = lambda _: None,
        positions: Callable[[Manifest], Mapping[str, Any]] = lambda manifest: manifest.to_splits,
        node: str = "",
        flight_token: str = "",
        flights: Callable[[], Mapping[str, str]] = dict,
        begin_again: Callable[[Manifest, Sequence[TableId], str], None] = _refuse,
        routing: Routing | None = None,
        on_bad_rows: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._on_bad_rows = on_bad_rows
        self._begin_again = begin_again
        self._sink = sink
        self._generation = generation
        self._next_sealed = next_sealed
        self._on_committed = on_committed
        self._node = node
        self._flight_token = flight_token
        self._routing = routing or Routing(Router())
        self._known = self._routing.known
        self._shares = Works(store, self._routing, generation=generation, positions=positions, flights=flights)
        self._stopping = threading.Event()
        record = store.last_commit()
        self._committed = record.epoch if record else 0
        self._vectors: dict[str, tuple[int, int]] = {**record.tables, **record.known} if record else {}
        self._routes: dict[str, RoutedTarget] = dict(record.routes) if record else {}
        self._history: deque[EpochStatistics] = deque(maxlen=STATISTICS_EPOCHS)

    def __repr__(self) -> str:
        return f"EpochLoop(committed={self._committed}, generation={self._generation()})"

    @property
    def committed(self) -> int:
        """The last epoch that is recorded; 0 when none is."""
        return self._committed

    def statistics(self) -> list[EpochStatistics]:
        """Figures of the latest epochs, oldest first."""
        return list(self._history)

    def stop(self) -> None:
        """Let `run` return after the commit under way; what was staged beyond it is staged again at the next start."""
        self._stopping.set()

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Commit epochs until one is final or `stop` is called. Raises the first error, after the commit under way."""
        self._shares.start_after(self._store.last_commit())
        settle_bad_rows(self._store, self._committed)
        self._routing.records.sweep(self._committed)
        with ThreadPoolExecutor(1, thread_name_prefix="raycdc-commit") as committer:
            under_way: Future[None] | None = None
            after = self._committed
            while not self._stopping.is_set():
                manifest = self._next_sealed(after, POLL_S)
                if manifest is None:
                    if under_way is not None and under_way.done():
                        under_way.result()
                        under_way = None
                    continue
                after = manifest.epoch
                prepared = self._prepare(manifest, under_way)
                under_way = committer.submit(self._commit, prepared)
                if manifest.final:
                    break
            if under_way is not None:
                under_way.result()

    def _prepare(self, manifest: Manifest, under_way: Future[None] | None) -> _Prepared:
        """Stage `manifest` and wait for the commit under way, in the order that schema changes allow."""
        share = self._shares.of(manifest)
        prepared = _Prepared(manifest, share.works, share, sources=self._shares.sources(manifest))
        # Changes are made exact by rows that the commit under way adds to.
        now, later = ([], list(prepared.works)) if prepared.sources else _by_changes(prepared.works)
        reach("before_stage")
        try:
            self._stage(prepared, now)
        finally:
            if under_way is not None:
                under_way.result()
        for work in later:
            if work.changes:
                reach("before_schema")
                self._sink.apply_schema(work)
                reach("after_schema")
        self._stage(prepared, later)
        reach("after_stage")
        return prepared

    def _stage(self, prepared: _Prepared, works: Sequence[TableWork]) -> None:
        if not works:
            return
        started = time.monotonic()
        while True:
            try:
                works = self._shares.exact(works, prepared.sources, prepared.exact)
                works = self._shares.derived(works, prepared.share, prepared.derived)
                prepared.staged.update(self._sink.stage(works))
                break
            except SegmentUnavailableError:
                if time.monotonic() - started > NODE_PATIENCE_S or self._stopping.wait(POLL_S):
                    raise
            works = [replace(work, segments=self._shares.placed(work.segments)) for work in works]
        made = {work.target: work for work in works}
        prepared.works = [made.get(work.target, work) for work in prepared.works]
        prepared.staging_s += time.monotonic() - started

    def _commit(self, prepared: _Prepared) -> None:
        started = time.monotonic()
        reach("before_commit")
        self._tell_bad_rows(prepared)
        self._commit_tables(prepared.works, prepared.staged)
        reach("after_last_commit")
        if self._known is not None:
            self._known.add(prepared.sources, prepared.exact)
            reach("after_known")
        self._record(
            prepared.manifest, prepared.share.routes, staging_s=prepared.staging_s, commit_s=time.monotonic() - started
        )
        made = [*prepared.derived.segments.values(), *prepared.exact.values()]
        self._shares.forget(made, prepared.manifest.epoch)

    def _tell_bad_rows(self, prepared: _Prepared) -> None:
        """Count what the epoch leaves out, before anybody can see that it lacks."""
        for table, missing in told_missing(prepared.manifest, self._routing.records).items():
            prepared.derived.bad[f"missing of {table}"] = table, missing.count, missing.why
        lost = {str(table): count for table, count in prepared.derived.bad_rows().items()}
        if not lost:
            return
        add_bad_rows(self._store, prepared.manifest.epoch, lost, committed=self._committed)
        first = {str(table): why for table, _, why in reversed(prepared.derived.bad.values())}
        for name, count in sorted(lost.items()):
            kept = f"; kept in {self._routing.records.folder}" if self._routing.records.folder else ""
            self._on_bad_rows(
                f"{name}: {count} row{'s' if count > 1 else ''} of epoch {prepared.manifest.epoch} left out as "
                f"pipeline.on_bad_record says{kept}; the first: {first[name]}."
            )

    def _commit_tables(self, works: Sequence[TableWork], staged: Mapping[TableId, Any]) -> None:
        """Commit all tables; when some fail the others still finish, and the first error is raised."""
        with ThreadPoolExecutor(COMMIT_THREADS, thread_name_prefix="raycdc-table") as pool:
            # The largest first: whoever is last should be done soon.
            ordered = sorted(works, key=lambda work: -work.input_bytes)
            pending = [pool.submit(self._sink.commit, work, staged[work.target]) for work in ordered]
            for done, future in enumerate(as_completed(pending), start=1):
                future.result()
                reach("after_commit")
                if done < len(pending):
                    reach("between_tables")

    def _record(
        self, manifest: Manifest, routes: Mapping[str, RoutedTarget], *, staging_s: float, commit_s: float
    ) -> None:
        now_ms = time.time_ns() // 1_000_000
        self._vectors.update({str(target): (manifest.epoch, STEP_LAST) for target in self._shares.targets(manifest)})
        self._routes.update(routes)
        self._write_record(manifest.epoch, now_ms)
        self._committed = manifest.epoch
        reach("after_record")
        rows = dict.fromkeys(map(str, manifest.tables), 0)
        for segment in manifest.segments:
            rows[str(segment.table)] += segment.rows
        figures = EpochStatistics(
            epoch=manifest.epoch,
            rows=manifest.rows,
            bytes=sum(segment.bytes for segment in manifest.segments),
            tables=rows,
            staging_s=staging_s,
            commit_s=commit_s,
            committed_ms=now_ms,
            sealed_ms=manifest.created_ms,
            watermark_ms=manifest.watermark_ms,
            final=manifest.final,
            bad_rows=bad_rows(self._store, manifest.epoch),
        )
        self._history.append(figures)
        self._on_committed(figures)

    def _write_record(self, epoch: int, now_ms: int) -> None:
        """Write the commit record; once more when the generation rose in our own hands at that very moment."""
        generation = self._generation()
        slots = {name for name in self._vectors if table_of(TableId.parse(name)) is not None}
        known = {name: self._vectors[name] for name in slots}
        tables = {name: vector for name, vector in self._vectors.items() if name not in slots}
        record = CommitRecord(epoch, generation, now_ms, tables, dict(self._routes), known)
        try:
            self._store.write_commit(record)
        except FencedError:
            if self._generation() == generation:
                raise
            self._store.write_commit(replace(record, generation=self._generation()))

    # -- recovery ---------------------------------------------------------------------------------------------------

    def recover(self) -> Recovery:
        """Bring sink and record together before anything is read. Call it once, before `run`.

        `SinkError` or `StateError` when they contradict each other; nothing was changed then.
        """
        recorded: list[int] = []
        replayed: list[int] = []
        dropped: list[int] = []
        frozen: list[int] = []
        newest = self._store.next_epoch() - 1
        self._shares.start_after(self._store.last_commit())
        self._check_record(newest)
        for manifest in self._store.manifests(after=self._committed):
            decision = self._decide(manifest, newest)
            if isinstance(decision, Refuse):
                raise SinkError(decision.text)
            if isinstance(decision, Tombstone):
                dropped = self._drop_from(manifest.epoch)
                break
            share = self._shares.of(manifest)
            match decision:
                case Record():
                    self._record(manifest, share.routes, staging_s=0.0, commit_s=0.0)
                    recorded.append(manifest.epoch)
                case Replay(targets):
                    # Steps that the targets hold are skipped by the sink.
                    self._complete(manifest, share, [work for work in share.works if work.target in targets])
                    replayed.append(manifest.epoch)
                case Frozen():
                    dropped = self._freeze(manifest, share, decision)
                    frozen.append(manifest.epoch)
                    break
                case _:
                    assert_never(decision)
        return Recovery(self._committed, tuple(recorded), tuple(replayed), tuple(dropped), tuple(frozen))

    def _check_record(self, newest: int) -> None:
        asked = [name for name in map(TableId.parse, self._vectors) if self._sink.durable or table_of(name) is not None]
        if asked:
            holds = {name: self._held(name) for name in asked}
            if refusal := contradictions(holds, recorded=self._vectors, newest_epoch=newest):
                raise SinkError(refusal.text)

    def _held(self, target: TableId) -> CommitVector | None:
        """What a target holds, or the known rows of a table."""
        table = table_of(target)
        if table is None:
            return self._sink.committed(target)
        return self._known.committed(table) if self._known is not None else None

    def _holds(self, targets: Mapping[TableId, Sequence[TableId]]) -> dict[TableId, CommitVector | None]:
        """What each target of an epoch holds. One that remembers nothing had its rows when these became known rows."""
        holds = {name: self._held(name) for name in targets if self._sink.durable or table_of(name) is not None}
        for name, sources in targets.items():
            if name not in holds:
                had = [holds.get(slot_of(source)) for source in sources]
                holds[name] = None if None in had else min(vector for vector in had if vector is not None)
        return holds

    def _decide(self, manifest: Manifest, newest: int) -> Record | Replay | Frozen | Tombstone | Refuse:
        targets = self._shares.targets(manifest)
        holds = self._holds(targets)
        recorded = self._vectors if self._sink.durable else {}
        lacking = {s for target in targets if lacks(manifest.epoch, holds[target]) for s in targets[target]}
        needed = [segment for segment in manifest.segments if segment.table in lacking]
        deadline_s = time.monotonic() + NODE_PATIENCE_S
        missing = needed
        while True:
            # What was found whole is not read again while others are waited for.
            missing = self._missing(missing)
            gone = {segment.table for segment in missing}
            lost = {target for target, sources in targets.items() if not gone.isdisjoint(sources)}
            decision = decide(
                manifest, holds, lost=lost, recorded=recorded, newest_epoch=newest, renamed=_renamed(manifest, targets)
            )
            away = any(segment.node != (self._node or STATE_NODE) for segment in missing)
            if not (isinstance(decision, Frozen) and away) or time.monotonic() > deadline_s:
                return decision
            # Reading tables again costs more than waiting for a node that only starts anew.
            if self._stopping.wait(POLL_S):
                return decision

    def _missing(self, segments: Sequence[Segment]) -> list[Segment]:
        """Those that are not there, or damaged: few are looked at, so that all of each is."""
        node, token = self._node or None, self._flight_token or None
        placed = self._shares.placed(segments)
        return [segment for segment in placed if not verify_segments([segment], node=node, token=token, checksum=True)]

    def _complete(self, manifest: Manifest, share: Share, works: list[TableWork]) -> None:
        """Write `works`, which is what the sink lacks of the epoch, and record it."""
        prepared = _Prepared(manifest, works, share, sources=self._shares.sources(manifest))
        if lost := {segment.table for segment in self._missing(_segments_of(prepared.sources))}:
            # Their tables begin again: what they were does not matter any more.
            prepared.sources = [replace(w, segments=()) if w.source in lost else w for w in prepared.sources]
        for work in prepared.works:
            if work.changes:
                self._sink.apply_schema(work)
        self._stage(prepared, prepared.works)
        self._commit(prepared)

    def _freeze(self, manifest: Manifest, share: Share, decision: Frozen) -> list[int]:
        """Complete an epoch whose rows are gone for the targets to fill anew: their source tables begin again.

        *What if the process dies here?* Until all targets hold the epoch the same is decided again, and asking and
        dropping twice changes nothing. Once they do, it is recorded; what was asked for is durable by then.

        Later epochs are dropped without tombstones: nobody began to commit them, as this one is not complete, and a
        tombstone of a later epoch would say of a table that it holds this one.
        """
        if self._routing.upsert and any(len(work.merged) > 1 for work in share.works if work.target in decision.again):
            raise StateError(decision.text)  # One of several merged tables cannot begin again.
        targets = self._shares.targets(manifest)
        sources = tuple(sorted({source for target in decision.again for source in targets[target]}))
        self._begin_again(manifest, sources, decision.text)
        dropped = self._store.drop_after(manifest.epoch)
        works = [work for work in share.works if work.target in (*decision.again, *decision.replay)]
        works = [replace(work, segments=()) if work.target in decision.again else work for work in works]
        self._complete(manifest, share, works)
        return dropped

    def _drop_from(self, epoch: int) -> list[int]:
        """Bar `epoch` and all later ones in every table they name, then drop their manifests."""
        for manifest in self._store.manifests(after=epoch - 1):
            for work in self._works(manifest):
                self._sink.tombstone(replace(work, segments=()))
            for work in self._shares.sources(manifest) if self._known is not None else ():
                self._known.tombstone(work)  # type: ignore[union-attr]
        return self._store.drop_after(epoch - 1)

    def _works(self, manifest: Manifest) -> list[TableWork]:
        return list(self._shares.of(manifest).works)


def _by_changes(works: Sequence[TableWork]) -> tuple[list[TableWork], list[TableWork]]:
    """Those that may be staged while others are committed, and those that wait for a change of their schema."""
    return [work for work in works if not work.changes], [work for work in works if work.changes]


def _segments_of(works: Sequence[TableWork]) -> list[Segment]:
    return [segment for work in works for segment in work.segments]


def _renamed(manifest: Manifest, targets: Mapping[TableId, Collection[TableId]]) -> set[TableId]:
    """The targets whose columns get other names in the epoch."""
    kind = RenameColumnEvent.type
    sources = {t for t, part in manifest.tables.items() if any(change["type"] == kind for change in part.changes)}
    return {target for target, parts in targets.items() if not sources.isdisjoint(parts)}
