"""Brings sink and record together again, before anything is read: at a start, and when a node was lost for good.

Called by the epoch loop. `look` says for ``raycdc check`` what `run` would find, and changes nothing.

*What if the process dies here?* The next start decides the same again: every step can be done twice, and each is
durable before the next one relies on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import assert_never

from raycdc.checkpoint.manifest import STATE_NODE, STREAM_SPLIT_ID, Manifest, Segment
from raycdc.checkpoint.recovery import Frozen, Record, Refuse, Replay, Tombstone
from raycdc.epochs.decisions import Decisions
from raycdc.epochs.epoch_writer import EpochWriter, Prepared
from raycdc.epochs.known_slots import table_of
from raycdc.epochs.outcomes import Outlook, Recovery
from raycdc.epochs.parked_targets import Followed
from raycdc.epochs.parts import EpochParts
from raycdc.errors import (
    SinkError,
    StateError,
    TableRefusedError,
    TargetBlockedError,
    TargetGoneError,
    TargetTouchedError,
)
from raycdc.model import TableId
from raycdc.sinks.api import TableWork
from raycdc.source.snapshot.stream_state import stream_of
from raycdc.source.table_requests import goes_on


class EpochRecovery:
    """See the module's docstring. One object is for one recovery, or for one look."""

    def __init__(self, parts: EpochParts, writer: EpochWriter) -> None:
        self._store = parts.store
        self._sink = parts.sink
        self._ports = parts.ports
        self._works = parts.works
        self._patience = parts.patience
        self._target_patience = parts.target_patience
        self._parked = parts.parked
        self._holdings = parts.holdings
        self._records = parts.records
        self._writer = writer
        self._newest = parts.store.next_epoch() - 1
        self._decisions = Decisions(parts, self._newest)

    def run(self) -> Recovery:
        """`SinkError` or `StateError` when sink and record contradict each other; nothing was changed then."""
        recorded: list[int] = []
        replayed: list[int] = []
        dropped: list[int] = []
        frozen: list[int] = []
        self._works.start_after(self._store.last_commit())
        lacking = self._check_record() is not None
        if self._check_fitting() or lacking:
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
                case Record():
                    share = self._works.of(manifest, self._parked)
                    self._writer.record(manifest, share.routes)
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
        return Recovery(self._records.epoch, tuple(recorded), tuple(replayed), tuple(dropped), tuple(frozen))

    def _with_copies(self, manifest: Manifest) -> Manifest:
        """`manifest` with copies in the place of what no node has."""
        copies = self._ports.copies
        return manifest if copies is None else copies.restored(manifest, self._store.spool, self._ports.access())

    def written(self) -> list[TableId]:
        """The targets that hold rows of epochs behind the record, as those of a run that died before it wrote one."""
        self._works.look_after(self._store.last_commit())
        return self._holdings.written(self._store.manifests(after=self._records.epoch))

    def look(self) -> Outlook:
        """The result that `run` would have, with its errors; changes nothing in state and sink, and
        asks no other node.
        """
        before = set(self._parked.entries)
        self._works.look_after(self._store.last_commit())
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
                raise StateError(decision.text)  # Nothing like a snapshot can be taken of this source.
            if isinstance(decision, Frozen | Tombstone):
                break
        entries = self._parked.entries
        parked = {name: entry.text for name, entry in entries.items() if name not in before and name not in asked}
        return Outlook(parked, tuple(sorted(elsewhere)))

    # -- targets that are not what the record says ------------------------------------------------------------------

    def _check_record(self) -> set[str] | None:
        """Compare what the targets hold with the record. A table that nobody follows owes nothing; one of several that
        lacks what it had is parked, and so is a pipeline's only one that is there and says that somebody changed it;
        where all others do, they are not where they were, or may not be asked: that is the sink's. Known rows lie in
        the state, wherever the targets are, and each table's are its own alone. None where nothing is lacking and the
        record stays; else the targets that the user has asked to begin again.
        """
        lacking = self._holdings.check_record(self._records.vectors, self._records.epoch, self._newest)
        if not lacking:
            return None
        last = self._store.manifest(self._records.epoch)
        followed = Followed(self._store, self._ports.parking.follows)
        names = [TableId.parse(name) for name in self._records.vectors]
        targets = {name: self._records.sources_of(name) for name in names if table_of(name) is None}
        owing = {name for name, sources in targets.items() if any(map(followed, sources))}
        asked = {name for name in owing if all(map(followed.is_asked_for, targets[name]))}
        here = owing - lacking.keys()
        for name, (gone, held) in lacking.items():
            after = _behind(last)
            if name in targets and name not in owing:
                self._records.forget(name)
            elif (source := table_of(name)) is not None:
                # Its changes cannot be made exact any more, in whatever target.
                for target in (t for t in owing if source in targets[t]):
                    holds, anyway = self._writer.held_of_refused(target), followed.is_asked_for(source)
                    self._parked.park(target, targets[target], after, TargetGoneError(str(gone)), holds, anyway=anyway)
                self._records.forget(name)
            elif not (here or name in asked or (isinstance(gone, TargetTouchedError) and len(owing) == 1)):
                raise SinkError(str(gone))  # All at once have one cause, as a lost right, which a person mends once.
            else:
                self._parked.park(name, targets[name], after, gone, held, anyway=name in asked)
        return set(map(str, asked))

    def _check_fitting(self) -> bool:
        """Park the targets to which somebody did what their next commit would refuse, although they hold what they did;
        whether there are any. Those that begin again are made anew, or looked at then.
        """
        if not self._records.epoch:
            return False
        followed = Followed(self._store, self._ports.parking.follows)
        names = [TableId.parse(name) for name in self._records.vectors]
        targets = {name: self._records.sources_of(name) for name in names if table_of(name) is None}
        asked = [
            name
            for name, sources in targets.items()
            if any(map(followed, sources)) and not all(map(followed.is_asked_for, sources))
        ]
        asked = [name for name in asked if not self._parked.owes_nothing(name)]
        unfit = self._patience(partial(self._sink.unfit, asked))
        if not unfit:
            return False
        after = _behind(self._store.manifest(self._records.epoch))
        for name, error in unfit.items():
            self._parked.park(name, targets[name], after, error, self._writer.held_of_refused(name))
        return True

    def _begin_together(self) -> None:
        """Targets whose tables are all to be read anew, as they share them, hold nothing from here on."""
        if not self._ports.routing.upsert or not self._records.epoch:
            return
        followed = Followed(self._store, self._ports.parking.follows)
        committed, newest = self._store.manifest(self._records.epoch), self._store.last_manifest()
        assert newest is not None
        # Sealed epochs are of no use to them: not what is there before a snapshot, nor a beginning before the last.
        after = replace(newest, epoch=committed.epoch + 1, from_splits=committed.to_splits)
        beginning = {}
        for target in {*self._records.routed, *map(TableId.parse, self._parked.entries)}:
            sources = self._records.sources_of(target)
            if len(sources) > 1 and (again := followed.begin_together(sources)):
                beginning[target] = again
        for target, again in beginning.items():
            self._parked.begin_together(target, again, after, self._writer.held_of_refused(target))
        if beginning:
            self._records.do_not_tell(self._parked.entries)
            self._records.write_again()

    # -- epochs that no record names --------------------------------------------------------------------------------

    def _complete(self, prepared: Prepared) -> None:
        """Write the works of `prepared`, which are what the sink lacks of the epoch, and record it."""
        if lost := {segment.table for segment in self._decisions.missing(_segments_of(prepared.sources))}:
            # Their tables begin again: what they were does not matter any more.
            prepared.sources = [replace(w, segments=()) if w.source in lost else w for w in prepared.sources]
        self._writer.apply(prepared, list(prepared.works))
        self._writer.stage(prepared, list(prepared.works))
        self._writer.commit(prepared)

    def _freeze(self, manifest: Manifest, decision: Frozen) -> list[int]:
        """Complete an epoch that some targets cannot have, as its rows are gone or they have a tombstone of it: their
        source tables begin again.

        *What if the process dies here?* Until all targets hold the epoch the same is decided again, and asking and
        dropping twice changes nothing. Once they do, it is recorded; what was asked for is durable by then.

        Later epochs are dropped without tombstones: nobody began to commit them, as this one is not complete, and a
        tombstone of a later epoch would say of a table that it holds this one.
        """
        prepared = self._writer.prepared(manifest)
        targets = self._works.targets(manifest)
        anew = (*decision.again, *decision.barred)
        lost = {source for target in anew for source in targets[target]}
        together = self._shared_by(lost, manifest, targets)
        sources = lost.union(*together.values())
        self._ports.begin_again(manifest, tuple(sorted(sources)), decision.text)
        dropped = self._store.drop_after(manifest.epoch)
        for target, merged in together.items():
            self._parked.begin_together(target, merged, manifest, self._writer.held_of_refused(target))
        self._records.do_not_tell({str(target): self._parked.entries[str(target)] for target in together})
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
        if stream is None or not self._ports.routing.upsert:
            return {}
        names = {*self._records.routed, *targets}
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
        """Bar `epoch` and all later ones in every table they name, then drop their manifests. A target that refuses to
        be barred is parked: what somebody else may still write there is gone when it begins again.
        """
        known = self._ports.routing.known
        for manifest in self._store.manifests(after=epoch - 1):
            self._require_driver(manifest)
            for work in self._works.of(manifest, self._parked).works:
                bar = partial(self._sink.tombstone, replace(work, segments=()))
                self._bar(partial(self._target_patience, [work.target], bar), {work.target}, manifest)
            if known is None:
                continue
            for work in self._works.sources(manifest, self._parked):
                concerned = {t for t, part in self._works.targets(manifest).items() if work.source in part}
                self._bar(partial(known.tombstone, work), concerned, manifest)
        dropped = self._store.drop_after(epoch - 1)
        # The targets are as if the dropped epochs had never been.
        self._works.start_after(self._store.last_commit())
        return dropped

    def _require_driver(self, manifest: Manifest) -> None:
        """Asked when the manifest was read: it may be one that a successor sealed, whose number is newer than ours."""
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
                    held = self._writer.held_of_refused(target, patient=not isinstance(error, TargetBlockedError))
                    self._parked.park(target, sources, manifest, error, held)
            if self._records.epoch:
                # Before the manifests go: nobody would refuse it again.
                self._records.write_again()


def _behind(last: Manifest) -> Manifest:
    """The place right behind `last`, for targets that are parked from there on."""
    return replace(last, epoch=last.epoch + 1, from_splits=last.to_splits)


def _segments_of(works: Sequence[TableWork]) -> list[Segment]:
    return [segment for work in works for segment in work.segments]
