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
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, assert_never

from raycdc.bridge.reading import verify_segments
from raycdc.checkpoint.bad_rows import bad_rows, settle_bad_rows
from raycdc.checkpoint.manifest import STATE_NODE, STREAM_SPLIT_ID, Manifest, Segment
from raycdc.checkpoint.recovery import (
    STEP_LAST,
    Frozen,
    Record,
    Refuse,
    Replay,
    Tombstone,
    decide,
    lacks,
)
from raycdc.checkpoint.store import CheckpointStore, CommitRecord, OwnGeneration, RoutedTarget
from raycdc.epochs.epoch_writer import NODE_PATIENCE_S, EpochWriter, Prepared, by_changes
from raycdc.epochs.holdings import Holdings
from raycdc.epochs.known_rows import table_of
from raycdc.epochs.outcomes import EpochStatistics, Outlook, Recovery
from raycdc.epochs.parked_targets import NOTHING, Followed, ParkedTargets, Parking
from raycdc.epochs.routing import Routing
from raycdc.epochs.works import Works
from raycdc.errors import FencedError, SinkError, StateError, TableRefusedError, TargetGoneError
from raycdc.failpoints import reach
from raycdc.model import TableId
from raycdc.model.routes import Router
from raycdc.schema.events import RenameColumnEvent
from raycdc.sinks.api import Sink, TableWork
from raycdc.source.snapshot.stream_state import stream_of
from raycdc.source.table_requests import goes_on

#: How long to wait for the next sealed epoch before looking whether something failed or a stop was asked for.
POLL_S = 0.2

#: Epochs whose figures `statistics` keeps.
STATISTICS_EPOCHS = 100


def _refuse(_manifest: Manifest, _tables: Sequence[TableId], text: str) -> None:
    raise StateError(text)


class EpochLoop:
    """See the module's docstring. `sink` is open; `generation` tells this driver's own, which rises when
    its coordinator had to be replaced (`raycdc.checkpoint.term`).

    `next_sealed(after, timeout_s)` returns the first sealed epoch greater than `after`, or None when there was none
    for so long; it may raise to end the loop. `on_committed` is called after each record, in order, on a thread of the
    loop. `positions` picks what goes into the sink's commits of an epoch's split states. `flights` are the endpoints of
    the spools of other nodes, by their names, as of now. `begin_again` asks, durably, for new snapshots of source
    tables whose rows of an epoch are gone (the text says why), or raises if that cannot be. `routing` says which
    targets tables go to. `parking` says what does not end the run, and who is told of it; by default nothing is
    parked.
    """

    def __init__(
        self,
        store: CheckpointStore,
        sink: Sink,
        *,
        generation: Callable[[], OwnGeneration],
        next_sealed: Callable[[int, float], Manifest | None],
        on_committed: Callable[[EpochStatistics], None] = lambda _: None,
        positions: Callable[[Manifest], Mapping[str, Any]] = lambda manifest: manifest.to_splits,
        node: str = "",
        flight_token: str = "",
        flights: Callable[[], Mapping[str, str]] = dict,
        begin_again: Callable[[Manifest, Sequence[TableId], str], None] = _refuse,
        routing: Routing | None = None,
        parking: Parking = NOTHING,
    ) -> None:
        self._store = store
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
        self._parked = ParkedTargets(record.parked if record else {}, parking.parks)
        self._parking = parking
        self._holdings = Holdings(store, sink, self._known, self._shares, self._parked)
        parts = store, sink, self._shares, self._parked, self._holdings, self._routing
        self._writer = EpochWriter(
            *parts, stopping=self._stopping, on_bad_rows=parking.on_bad_rows, waiting=parking.waiting
        )
        self._vectors: dict[str, tuple[int, int]] = {**record.tables, **record.known} if record else {}
        self._routes: dict[str, RoutedTarget] = dict(record.routes) if record else {}
        #: Since when the targets are parked that were told of; those of the record the source hears of at its start.
        self._told = {name: entry.since_ms for name, entry in self._parked.entries.items()}
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

    def _prepare(self, manifest: Manifest, under_way: Future[None] | None) -> Prepared:
        """Stage `manifest` and wait for the commit under way, in the order that schema changes allow."""
        prepared = self._writer.prepared(manifest)
        self._store.require_newest(self._generation(), f"epoch {manifest.epoch}")
        self._holdings.check_ours(manifest, self._vectors)
        # Changes are made exact by rows that the commit under way adds to.
        now, later = ([], list(prepared.works)) if prepared.sources else by_changes(prepared.works)
        reach("before_stage")
        try:
            self._writer.stage(prepared, now)
        finally:
            if under_way is not None:
                under_way.result()
        self._writer.apply(prepared, later)
        self._writer.stage(prepared, later)
        reach("after_stage")
        return prepared

    def _commit(self, prepared: Prepared) -> None:
        started = time.monotonic()
        reach("before_commit")
        # A sink that the successor has not written to yet cannot know that there is one.
        self._store.require_newest(self._generation(), f"the commit of epoch {prepared.manifest.epoch}")
        self._writer.commit(prepared, committed=self._committed)
        self._record(
            prepared.manifest, prepared.share.routes, staging_s=prepared.staging_s, commit_s=time.monotonic() - started
        )
        made = [*prepared.derived.segments.values(), *prepared.exact.values()]
        self._shares.forget(made, prepared.manifest.epoch)

    def _record(
        self, manifest: Manifest, routes: Mapping[str, RoutedTarget], *, staging_s: float, commit_s: float
    ) -> None:
        now_ms = time.time_ns() // 1_000_000
        targets = self._shares.targets(manifest)
        part = self._parked.taking_part(manifest, targets)
        self._vectors.update({str(target): (manifest.epoch, STEP_LAST) for target in part})
        self._routes.update({name: target for name, target in routes.items() if TableId.parse(name) in part})
        self._parked.after(manifest, targets)
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
        parked = self._parked.entries
        record = CommitRecord(epoch, generation, now_ms, tables, dict(self._routes), known, parked)
        try:
            self._store.write_commit(record)
        except FencedError:
            if self._generation() == generation:
                raise
            self._store.write_commit(replace(record, generation=self._generation()))
        if new := {name: entry for name, entry in parked.items() if self._told.get(name) != entry.since_ms}:
            reach("before_park_told")
            self._parking.on_parked(new)
        self._told = {name: entry.since_ms for name, entry in parked.items()}

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
        if self._check_record(newest) is not None:
            self._write_record(self._committed, time.time_ns() // 1_000_000)
        self._begin_together()
        for manifest in self._store.manifests(after=self._committed):
            decision = self._decide(manifest, newest)
            if isinstance(decision, Refuse):
                raise SinkError(decision.text)
            if isinstance(decision, Tombstone):
                dropped = self._drop_from(manifest.epoch)
                break
            match decision:
                case Record():
                    share = self._shares.of(manifest, self._parked)
                    self._record(manifest, share.routes, staging_s=0.0, commit_s=0.0)
                    recorded.append(manifest.epoch)
                case Replay(targets):
                    # Steps that the targets hold are skipped by the sink.
                    prepared = self._writer.prepared(manifest)
                    prepared.works = [work for work in prepared.works if work.target in targets]
                    self._complete(prepared)
                    replayed.append(manifest.epoch)
                case Frozen():
                    dropped = self._freeze(manifest, decision)
                    frozen.append(manifest.epoch)
                    break
                case _:
                    assert_never(decision)
        return Recovery(self._committed, tuple(recorded), tuple(replayed), tuple(dropped), tuple(frozen))

    def look(self) -> Outlook:
        """What `recover` would find, with its errors; changes nothing, waits for no node. The loop is then used up."""
        self._stopping.set()
        newest = self._store.next_epoch() - 1
        before = set(self._parked.entries)
        self._shares.look_after(self._store.last_commit())
        asked = self._check_record(newest) or set()
        elsewhere: set[str] = set()
        for manifest in self._store.manifests(after=self._committed):
            nodes = {segment.node for segment in manifest.segments} - {STATE_NODE}
            elsewhere |= nodes
            if nodes:
                continue
            decision = self._decide(manifest, newest)
            if isinstance(decision, Refuse):
                raise SinkError(decision.text)
            if isinstance(decision, Frozen) and STREAM_SPLIT_ID not in manifest.to_splits:
                raise StateError(decision.text)  # Nothing like a snapshot can be taken of this source.
            if isinstance(decision, Frozen | Tombstone):
                break
        entries = self._parked.entries
        parked = {name: entry.text for name, entry in entries.items() if name not in before and name not in asked}
        return Outlook(parked, tuple(sorted(elsewhere)))

    def _check_record(self, newest: int) -> set[str] | None:
        """Compare what the targets hold with the record. A table that nobody follows owes nothing; one of several that
        lacks what it had is parked; where all do, they are not where they were: that is the sink's. Known rows lie in
        the state, wherever the targets are, and each table's are its own alone. None where nothing is lacking and the
        record stays; else the targets that the user has asked to begin again.
        """
        lacking = self._holdings.check_record(self._vectors, self._committed, newest)
        if not lacking:
            return None
        last = self._store.manifest(self._committed)
        followed = Followed(self._store, self._parking.follows)
        names = [TableId.parse(name) for name in self._vectors]
        targets = {name: self._sources_of(name) for name in names if table_of(name) is None}
        owing = {name for name, sources in targets.items() if any(map(followed, sources))}
        asked = {name for name in owing if all(map(followed.is_asked_for, targets[name]))}
        here = owing - lacking.keys()
        for name, (text, held) in lacking.items():
            gone = TargetGoneError(text)
            after = replace(last, epoch=last.epoch + 1, from_splits=last.to_splits)
            if name in targets and name not in owing:
                del self._vectors[str(name)]
                self._routes.pop(str(name), None)
            elif (source := table_of(name)) is not None:
                # Its changes cannot be made exact any more, in whatever target.
                for target in (t for t in owing if source in targets[t]):
                    holds, anyway = self._writer.held_of_refused(target), followed.is_asked_for(source)
                    self._parked.park(target, targets[target], after, gone, holds, anyway=anyway)
                del self._vectors[str(name)]
            elif not (here or name in asked):
                raise SinkError(text)
            else:
                self._parked.park(name, targets[name], after, gone, held, anyway=name in asked)
        return set(map(str, asked))

    def _begin_together(self) -> None:
        """Targets whose tables are all to be read anew, as they share them, hold nothing from here on."""
        if not self._routing.upsert or not self._committed:
            return
        followed = Followed(self._store, self._parking.follows)
        committed, newest = self._store.manifest(self._committed), self._store.last_manifest()
        assert newest is not None
        # Sealed epochs are of no use to them: not what is there before a snapshot, nor a beginning before the last.
        after = replace(newest, epoch=committed.epoch + 1, from_splits=committed.to_splits)
        found = {}
        for target in map(TableId.parse, {*self._routes, *self._parked.entries}):
            sources = self._sources_of(target)
            if len(sources) > 1 and (again := followed.begin_together(sources)):
                found[target] = again
        for target, again in found.items():
            self._parked.begin_together(target, again, after, self._writer.held_of_refused(target))
        if found:
            self._told = {name: entry.since_ms for name, entry in self._parked.entries.items()}
            self._write_record(self._committed, time.time_ns() // 1_000_000)

    def _sources_of(self, target: TableId) -> tuple[TableId, ...]:
        route, parked = self._routes.get(str(target)), self._parked.entries.get(str(target))
        names = [*(route.sources if route is not None else ()), *(parked.sources if parked is not None else ())]
        return tuple(map(TableId.parse, dict.fromkeys(names))) or (target,)

    def _decide(self, manifest: Manifest, newest: int) -> Record | Replay | Frozen | Tombstone | Refuse:
        targets = self._parked.taking_part(manifest, self._shares.targets(manifest))
        holds = self._holdings.of(targets)
        recorded = self._holdings.owed(self._vectors) if self._sink.durable else {}
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

    def _complete(self, prepared: Prepared) -> None:
        """Write the works of `prepared`, which are what the sink lacks of the epoch, and record it."""
        if lost := {segment.table for segment in self._missing(_segments_of(prepared.sources))}:
            # Their tables begin again: what they were does not matter any more.
            prepared.sources = [replace(w, segments=()) if w.source in lost else w for w in prepared.sources]
        self._writer.apply(prepared, list(prepared.works))
        self._writer.stage(prepared, list(prepared.works))
        self._commit(prepared)

    def _freeze(self, manifest: Manifest, decision: Frozen) -> list[int]:
        """Complete an epoch whose rows are gone for the targets to fill anew: their source tables begin again.

        *What if the process dies here?* Until all targets hold the epoch the same is decided again, and asking and
        dropping twice changes nothing. Once they do, it is recorded; what was asked for is durable by then.

        Later epochs are dropped without tombstones: nobody began to commit them, as this one is not complete, and a
        tombstone of a later epoch would say of a table that it holds this one.
        """
        prepared = self._writer.prepared(manifest)
        targets = self._shares.targets(manifest)
        lost = {source for target in decision.again for source in targets[target]}
        together = self._shared_by(lost, manifest, targets)
        sources = lost.union(*together.values())
        self._begin_again(manifest, tuple(sorted(sources)), decision.text)
        dropped = self._store.drop_after(manifest.epoch)
        for target, merged in together.items():
            self._parked.begin_together(target, merged, manifest, self._writer.held_of_refused(target))
        # Their tables begin again by themselves: nobody has to decide.
        self._told |= {str(target): self._parked.entries[str(target)].since_ms for target in together}
        part = self._parked.taking_part(manifest, targets)
        works = [w for w in prepared.works if w.target in (*decision.again, *decision.replay) and w.target in part]
        prepared.works = [replace(work, segments=()) if work.target in decision.again else work for work in works]
        self._complete(prepared)
        return dropped

    def _shared_by(
        self, sources: Collection[TableId], manifest: Manifest, targets: Mapping[TableId, Collection[TableId]]
    ) -> dict[TableId, list[TableId]]:
        """The targets with one row per key that tables share with `sources`, or with one that shares with them, and all
        of whose rows are to come: they are filled anew together, as their rows there cannot be told apart.
        """
        stream = stream_of(manifest)
        if stream is None or not self._routing.upsert:
            return {}
        names = {*map(TableId.parse, self._routes), *targets}
        known = {name: {*self._sources_of(name), *targets.get(name, ())} for name in names if table_of(name) is None}
        merged = {name: found for name, found in known.items() if len(found) > 1}
        together: dict[TableId, list[TableId]] = {}
        pending = set(sources)
        while pending:
            reached = {name: found for name, found in merged.items() if not pending.isdisjoint(found)}
            merged = {name: found for name, found in merged.items() if name not in reached}
            pending = {source for found in reached.values() for source in found if goes_on(str(source), stream)}
            together |= {name: sorted(found & pending) for name, found in reached.items()}
        return together

    def _drop_from(self, epoch: int) -> list[int]:
        """Bar `epoch` and all later ones in every table they name, then drop their manifests. A target that refuses to
        be barred is parked: what somebody else may still write there is gone when it begins again.
        """
        for manifest in self._store.manifests(after=epoch - 1):
            for work in self._works(manifest):
                self._bar(partial(self._sink.tombstone, replace(work, segments=())), {work.target}, manifest)
            for work in self._shares.sources(manifest, self._parked) if self._known is not None else ():
                concerned = {t for t, part in self._shares.targets(manifest).items() if work.source in part}
                self._bar(partial(self._known.tombstone, work), concerned, manifest)  # type: ignore[union-attr]
        dropped = self._store.drop_after(epoch - 1)
        # What the dropped epochs made of the targets never was.
        self._shares.start_after(self._store.last_commit())
        return dropped

    def _bar(self, tombstone: Callable[[], None], targets: Collection[TableId], manifest: Manifest) -> None:
        try:
            tombstone()
        except TableRefusedError as error:
            if self._committed:
                last = self._store.manifest(self._committed)
                manifest = replace(last, epoch=last.epoch + 1, from_splits=last.to_splits)
            for target in targets:
                if table_of(target) is None:
                    sources = self._sources_of(target)
                    self._parked.park(target, sources, manifest, error, self._writer.held_of_refused(target))
            if self._committed:
                # Before the manifests go: nobody would refuse it again.
                self._write_record(self._committed, time.time_ns() // 1_000_000)

    def _works(self, manifest: Manifest) -> list[TableWork]:
        return list(self._shares.of(manifest, self._parked).works)


def _segments_of(works: Sequence[TableWork]) -> list[Segment]:
    return [segment for work in works for segment in work.segments]


def _renamed(manifest: Manifest, targets: Mapping[TableId, Collection[TableId]]) -> set[TableId]:
    """The targets whose columns get other names in the epoch."""
    kind = RenameColumnEvent.type
    sources = {t for t, part in manifest.tables.items() if any(change["type"] == kind for change in part.changes)}
    return {target for target, parts in targets.items() if not sources.isdisjoint(parts)}
