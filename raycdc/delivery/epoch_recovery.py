"""Makes the sink and the commit record agree before reading begins: at a start, and after the loss of a node. The epoch
loop calls it. `inspect` returns what `run` would find, for ``raycdc check``, and changes nothing.

For each sealed epoch without a record, the targets and the segments are checked, and `raycdc.state.recovery` decides by
a table of cases.

*Crashes*: the next start makes the same decision, because every step can be repeated, and each step is durable before
the next step begins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import assert_never

from raycdc.core.retry import Backoff
from raycdc.delivery.epoch_writer import NODE_POLICY, EpochParts, EpochWriter, PreparedEpoch
from raycdc.delivery.outcomes import Recovery, StartForecast
from raycdc.delivery.record_keeper import table_of
from raycdc.delivery.targets.parked_targets import FollowedSources
from raycdc.errors import (
    SinkError,
    StateError,
    TableRefusedError,
    TargetBlockedError,
    TargetDroppedError,
)
from raycdc.model import TableId
from raycdc.model.evolution.events import RenameColumnEvent
from raycdc.segments.reading import verify_segments
from raycdc.sinks.api import TableCommit
from raycdc.source.snapshot.log.stream_state import stream_of
from raycdc.source.tables.table_requests import goes_on
from raycdc.state.manifests.manifest import STATE_NODE, STREAM_SPLIT_ID, Manifest, Segment
from raycdc.state.recovery import Decision, Frozen, Refuse, Replay, Tombstone, WriteRecord, decide, lacks


class Decisions:
    """Finds the decision for each epoch. `newest` is the greatest epoch number that the state ever had."""

    def __init__(self, parts: EpochParts, newest: int) -> None:
        self._newest = newest
        self._access = parts.ports.access
        self._sink = parts.sink
        self._planner = parts.planner
        self._parked = parts.parked
        self._target_records = parts.target_records
        self._records = parts.records
        self._stopping = parts.stopping
        self._threads = parts.ports.threads

    def of(self, manifest: Manifest) -> Decision:
        """Return the decision for `manifest`. Waits for a node with needed segments, unless the loop is stopping."""
        # Reading the targets comes first, because it parks a target that does not answer while others do.
        holds = self._target_records.of(manifest)
        targets = self._parked.taking_part(manifest, self._planner.targets(manifest))
        recorded = self._target_records.owed(self._records.vectors) if self._sink.durable else {}
        lacking = {s for target in targets if lacks(manifest.epoch, holds[target]) for s in targets[target]}
        needed = [segment for segment in manifest.segments if segment.table in lacking]
        pauses = Backoff(NODE_POLICY, self._threads)
        missing, own = needed, self._access()
        renamed = _renamed(manifest, targets)
        while True:
            # Only the missing segments are checked again after a pause.
            missing = self.missing(missing)
            gone = {segment.table for segment in missing}
            lost = {target for target, sources in targets.items() if not gone.isdisjoint(sources)}
            decision = decide(manifest, holds, lost=lost, recorded=recorded, newest_epoch=self._newest, renamed=renamed)
            remote = any(not own.is_own(segment) for segment in missing)
            if not (isinstance(decision, Frozen) and remote):
                return decision
            # Waiting for a node that restarts costs less than reading tables again.
            pause_s = pauses.failed(self._threads.now_s())
            if pause_s is None or self._stopping.pause(pause_s, self._threads):
                return decision

    def missing(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return the segments that are missing or damaged.

        Each is read completely, which is affordable because they are few.
        """
        access = self._access()
        located = access.located(segments)
        return [segment for segment in located if not verify_segments([segment], access=access, checksum=True)]


def _renamed(manifest: Manifest, targets: Mapping[TableId, Collection[TableId]]) -> set[TableId]:
    """Return the targets whose columns are renamed in the epoch."""
    parts = manifest.tables.items()
    sources = {table for table, part in parts if any(isinstance(c, RenameColumnEvent) for c in part.changes)}
    return {target for target, those in targets.items() if not sources.isdisjoint(those)}


class EpochRecovery:
    """One recovery, or one inspection; see the module's docstring."""

    def __init__(self, parts: EpochParts, writer: EpochWriter) -> None:
        self._store = parts.store
        self._sink = parts.sink
        self._ports = parts.ports
        self._planner = parts.planner
        self._target_retry = parts.target_retry
        self._parked = parts.parked
        self._target_records = parts.target_records
        self._records = parts.records
        self._writer = writer
        self._newest = parts.store.next_epoch() - 1
        self._decisions = Decisions(parts, self._newest)

    def run(self) -> Recovery:
        """Carry out the decisions for all epochs without a record, and return what was done.

        Raises `SinkError` or `StateError` if the sink and the record contradict each other; nothing is changed then.
        """
        recorded: list[int] = []
        replayed: list[int] = []
        dropped: list[int] = []
        frozen: list[int] = []
        self._planner.start_after(self._store.last_commit())
        before = self._parked.entries
        lacking = self._check_record() is not None
        if (self._check_fitting() or lacking or self._parked.entries is not before) and self._records.epoch:
            self._records.write_again()
        self._begin_together()
        for sealed in self._store.manifests(after=self._records.epoch):
            manifest = self._with_copies(sealed)
            decision = self._decisions.of(manifest)
            self._require_driver(manifest)
            match decision:
                case Refuse(text):
                    raise SinkError(text)
                case Tombstone():
                    dropped = self._drop_from(manifest.epoch)
                    break
                case WriteRecord():
                    target_batch = self._planner.of(manifest, self._parked)
                    self._writer.record(manifest, target_batch.routes)
                    recorded.append(manifest.epoch)
                case Replay(targets):
                    # The sink skips steps that the targets already hold.
                    prepared = self._writer.prepared(manifest)
                    prepared.commits = [work for work in prepared.commits if work.target in targets]
                    self._complete(prepared)
                    replayed.append(manifest.epoch)
                case Frozen():
                    dropped = self._freeze(manifest, decision)
                    frozen.append(manifest.epoch)
                    break
                case _:
                    assert_never(decision)
        return Recovery(self._records.epoch, tuple(recorded), tuple(replayed), tuple(dropped), tuple(frozen))

    def _with_copies(self, manifest: Manifest) -> Manifest:
        """Return `manifest` with copies instead of the segments that no node has."""
        copies = self._ports.copies
        return manifest if copies is None else copies.restored(manifest, self._store.spool, self._ports.access())

    def written(self) -> list[TableId]:
        """Return the targets that hold rows of epochs without a record, because a run died before it recorded them."""
        self._planner.inspect_after(self._store.last_commit())
        return self._target_records.written(self._store.manifests(after=self._records.epoch))

    def inspect(self) -> StartForecast:
        """Return what `run` would find, with its errors.

        Changes nothing in the state and the sink, and contacts no other node.
        """
        before = set(self._parked.entries)
        self._planner.inspect_after(self._store.last_commit())
        asked = self._check_record() or set()
        self._check_fitting()
        elsewhere: set[str] = set()
        for manifest in self._store.manifests(after=self._records.epoch):
            nodes = {segment.node for segment in manifest.segments} - {STATE_NODE}
            elsewhere |= nodes
            if nodes:
                continue
            decision = self._decisions.of(manifest)
            if isinstance(decision, Refuse):
                raise SinkError(decision.text)
            if isinstance(decision, Frozen) and STREAM_SPLIT_ID not in manifest.to_splits:
                raise StateError(decision.text)  # This source cannot take a snapshot, so the rows are lost.
            if isinstance(decision, Frozen | Tombstone):
                break
        entries = self._parked.entries
        parked = {name: entry.text for name, entry in entries.items() if name not in before and name not in asked}
        return StartForecast(parked, tuple(sorted(elsewhere)))

    def _check_record(self) -> set[str] | None:
        """Compare the targets with the commit record.

        Targets of tables that are no longer followed are ignored. A target that lacks recorded rows is parked if some
        other target has its rows, or if it is the only one and was found, for example an older copy of it. If all
        targets lack recorded rows, the sink itself was moved, restored or is not accessible, and its error is raised.
        Row stores are in the state and not in the sink, so they are handled one by one.

        Returns None if nothing is lacking and the record stays as it is; otherwise the targets that the user has asked
        to resnapshot.
        """
        lacking = self._target_records.check_record(
            self._records.vectors, self._records.digests, self._records.epoch, self._newest
        )
        if not lacking:
            return None
        last = self._store.manifest(self._records.epoch)
        followed = FollowedSources(self._store, self._ports.parking.follows)
        names = [TableId.parse(name) for name in self._records.vectors]
        targets = {name: self._records.sources_of(name) for name in names if table_of(name) is None}
        owing = {name for name, sources in targets.items() if any(map(followed, sources))}
        asked = {name for name in owing if all(map(followed.is_asked_for, targets[name]))}
        here = owing - lacking.keys()
        for name, (gone, held, is_there) in lacking.items():
            after = _behind(last)
            if name in targets and name not in owing:
                self._records.forget(name)
            elif (source := table_of(name)) is not None:
                # No target of this table can get exact changes any more.
                for target in (t for t in owing if source in targets[t]):
                    holds, anyway = self._writer.held_of_refused(target), followed.is_asked_for(source)
                    self._parked.park(
                        target, targets[target], after, TargetDroppedError(str(gone)), holds, anyway=anyway
                    )
                self._records.forget(name)
            elif not (here or name in asked or (is_there and len(owing) == 1)):
                # If all targets lack rows, there is one cause, such as a lost permission, which the user can correct.
                raise SinkError(str(gone))
            else:
                self._parked.park(name, targets[name], after, gone, held, anyway=name in asked)
        return set(map(str, asked))

    def _check_fitting(self) -> bool:
        """Park the targets that another client changed so that their next commit would fail.

        Returns True if there are any. Targets that will be resnapshotted are not checked.
        """
        if not self._records.epoch:
            return False
        followed = FollowedSources(self._store, self._ports.parking.follows)
        names = [TableId.parse(name) for name in self._records.vectors]
        targets = {name: self._records.sources_of(name) for name in names if table_of(name) is None}
        asked = [
            name
            for name, sources in targets.items()
            if any(map(followed, sources)) and not all(map(followed.is_asked_for, sources))
        ]
        asked = [name for name in asked if not self._parked.owes_nothing(name)]
        unfit = self._unfit(asked)
        if not unfit:
            return False
        after = _behind(self._store.manifest(self._records.epoch))
        for name, error in unfit.items():
            self._parked.park(name, targets[name], after, error, self._writer.held_of_refused(name))
        return True

    def _unfit(self, targets: Sequence[TableId]) -> Mapping[TableId, TableRefusedError]:
        """Return the targets that the sink's `unfit` names.

        Each target is checked alone if one of them does not answer.
        """
        try:
            return self._target_retry(targets, partial(self._sink.unfit, targets))
        except TargetBlockedError:
            unfit: dict[TableId, TableRefusedError] = {}
        for target in targets:
            try:
                unfit |= self._target_retry([target], partial(self._sink.unfit, [target]))
            except TargetBlockedError as error:
                unfit[target] = error
        return unfit

    def _begin_together(self) -> None:
        """Empty the merged targets whose source tables are all to be resnapshotted."""
        if not self._ports.routing.upsert or not self._records.epoch:
            return
        followed = FollowedSources(self._store, self._ports.parking.follows)
        committed, newest = self._store.manifest(self._records.epoch), self._store.last_manifest()
        assert newest is not None
        # Epochs that are sealed already do not count, because their rows are older than the snapshots.
        self._empty(followed, replace(newest, epoch=committed.epoch + 1, from_splits=committed.to_splits))

    def begin_together_at(self, manifest: Manifest) -> None:
        """Empty the merged targets whose source tables are all resnapshotted from `manifest` on, because a running
        pipeline was given a command. Called before `manifest` is prepared, while no commit runs.
        """
        if not self._ports.routing.upsert or not self._records.epoch:
            return
        committed = self._store.manifest(self._records.epoch)
        before = FollowedSources(self._store, self._ports.parking.follows, committed)
        now = FollowedSources(self._store, self._ports.parking.follows, manifest)
        after = replace(committed, epoch=manifest.epoch, from_splits=committed.to_splits)
        self._empty(before, after, unless=now)

    def _empty(self, followed: FollowedSources, after: Manifest, *, unless: FollowedSources | None = None) -> None:
        """Have the merged targets emptied that `followed` names, from the epoch of `after` on; not if `unless` names
        them, too, because their snapshots begin later.
        """
        beginning = {}
        for target in {*self._records.merged, *map(TableId.parse, self._parked.entries)}:
            sources = self._records.sources_of(target)
            later = unless is not None and unless.begin_together(sources)
            if len(sources) > 1 and not later and (again := followed.begin_together(sources)):
                beginning[target] = again
        for target, again in beginning.items():
            self._parked.begin_together(target, again, after, self._writer.held_of_refused(target))
        if beginning:
            self._records.report_nothing_of(self._parked.entries)
            self._records.write_again()

    def _complete(self, prepared: PreparedEpoch) -> None:
        """Write those tables of `prepared` that the sink lacks in the epoch, and record the epoch."""
        if lost := {segment.table for segment in self._decisions.missing(_segments_of(prepared.sources))}:
            # Tables whose rows are lost are resnapshotted, so their segments are not needed.
            prepared.sources = [replace(w, segments=()) if w.source in lost else w for w in prepared.sources]
        self._writer.apply(prepared, list(prepared.commits))
        self._writer.stage(prepared, list(prepared.commits))
        self._writer.commit(prepared)

    def _freeze(self, manifest: Manifest, decision: Frozen) -> list[int]:
        """Complete an epoch that some targets cannot get, because its rows are lost or because these targets have a
        tombstone of it. The source tables of these targets are resnapshotted.

        *Crashes*: until all targets hold the epoch, the next start makes the same decision, and can repeat the requests
        and the drops. After that, the epoch is recorded, and the requests are durable already.

        Later epochs are dropped without tombstones. No commit of a later epoch has begun, because this epoch is
        incomplete. A tombstone of a later epoch would wrongly say that its target holds this epoch.
        """
        prepared = self._writer.prepared(manifest)
        targets = self._planner.targets(manifest)
        anew = (*decision.again, *decision.barred)
        lost = {source for target in anew for source in targets[target]}
        together = self._shared_by(lost, manifest, targets)
        sources = lost.union(*together.values())
        self._ports.request_resnapshot(manifest, tuple(sorted(sources)), decision.text)
        dropped = self._store.drop_after(manifest.epoch)
        for target, merged in together.items():
            self._parked.begin_together(target, merged, manifest, self._writer.held_of_refused(target))
        self._records.report_nothing_of({str(target): self._parked.entries[str(target)] for target in together})
        part = self._parked.taking_part(manifest, targets)
        commits = [w for w in prepared.commits if w.target in (*decision.again, *decision.replay) and w.target in part]
        prepared.commits = [replace(work, segments=()) if work.target in decision.again else work for work in commits]
        self._complete(prepared)
        return dropped

    def _shared_by(
        self, sources: Collection[TableId], manifest: Manifest, targets: Mapping[TableId, Collection[TableId]]
    ) -> dict[TableId, list[TableId]]:
        """Return the merged targets with one row per key that are connected to `sources` by shared tables.

        These targets are refilled together, because their rows cannot be told apart by source table.
        """
        stream = stream_of(manifest)
        if stream is None or not self._ports.routing.upsert:
            return {}
        names = {*self._records.merged, *targets}
        known = {
            name: {*self._records.sources_of(name), *targets.get(name, ())} for name in names if table_of(name) is None
        }
        merged = {name: parts for name, parts in known.items() if len(parts) > 1}
        together: dict[TableId, list[TableId]] = {}
        pending = set(sources)
        while pending:
            reached = {name: parts for name, parts in merged.items() if not pending.isdisjoint(parts)}
            merged = {name: parts for name, parts in merged.items() if name not in reached}
            pending = {source for parts in reached.values() for source in parts if goes_on(str(source), stream)}
            together |= {name: sorted(parts & pending) for name, parts in reached.items()}
        return together

    def _drop_from(self, epoch: int) -> list[int]:
        """Write tombstones of `epoch` and all later epochs to every target they name, then drop the manifests of these
        epochs. A target that refuses its tombstone is parked; its resnapshot removes any row that a suspended driver
        may still write there.
        """
        known = self._ports.routing.known
        for manifest in self._store.manifests(after=epoch - 1):
            self._require_driver(manifest)
            for work in self._planner.of(manifest, self._parked).commits:
                bar = partial(self._sink.tombstone, replace(work, segments=()))
                self._bar(partial(self._target_retry, [work.target], bar), {work.target}, manifest)
            if known is None:
                continue
            for work in self._planner.sources(manifest, self._parked):
                concerned = {t for t, part in self._planner.targets(manifest).items() if work.source in part}
                self._bar(partial(known.tombstone, work), concerned, manifest)
        dropped = self._store.drop_after(epoch - 1)
        # Forget the effects of the dropped epochs on the targets.
        self._planner.start_after(self._store.last_commit())
        return dropped

    def _require_driver(self, manifest: Manifest) -> None:
        """Raise `FencedError` if the manifest is of a newer driver. Checked after the manifest was read."""
        self._store.generations.require_driver(self._ports.generation, f"the recovery of epoch {manifest.epoch}")

    def _bar(self, tombstone: Callable[[], None], targets: Collection[TableId], manifest: Manifest) -> None:
        try:
            tombstone()
        except TableRefusedError as error:
            if self._records.epoch:
                manifest = _behind(self._store.manifest(self._records.epoch))
            for target in targets:
                if table_of(target) is None:
                    sources = self._records.sources_of(target)
                    held = self._writer.held_of_refused(target, retry=not isinstance(error, TargetBlockedError))
                    self._parked.park(target, sources, manifest, error, held)
            if self._records.epoch:
                # The record is written before the manifests are dropped, because afterwards nothing would park the
                # target again.
                self._records.write_again()


def _behind(last: Manifest) -> Manifest:
    """Return an empty manifest for the epoch after `last`.

    Targets that lack rows of an epoch in the commit record are parked as of this manifest.
    """
    return replace(last, epoch=last.epoch + 1, from_splits=last.to_splits)


def _segments_of(commits: Sequence[TableCommit]) -> list[Segment]:
    return [segment for work in commits for segment in work.segments]
