"""Decides which targets are parked, which targets get rows of an epoch, and when a parked target gets rows again. The
epoch loop uses it.

| a target | consequence |
|---|---|
| refuses its rows at any step up to its commit | it is parked by that epoch's record if `Parks` allows that |
| is parked | from the next epoch on, no target gets rows of its source tables |
| gets a resnapshot of one of its source tables | that table takes part again; the first such table empties the target |
| refuses the resnapshot, too | it is parked again, from that epoch on |
| is an upsert target whose source tables are all resnapshotted | it waits for all of them, and is emptied once |

If a target may not be parked, its `TableRefusedError` ends the run. A parked target is not read any more, so it may be
deleted. A parked target and the other targets of its source tables may hold a part of an epoch that has no record.

*Crashes*: before the epoch's record, the target refuses the rows again at the next start. After the record, the target
is parked by the record, which the source reads when it starts (`raycdc.source.tables.table_requests.refusals_of`).

If one target of a source table is parked, no target gets rows of that table, because only a whole table can be
resnapshotted.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from raycdc.config import PipelineOptions
from raycdc.core.retry import RetryPolicy
from raycdc.errors import ParkReason, TableRefusedError
from raycdc.model import TableId
from raycdc.model.evolution.effects import SchemaChangeBehavior
from raycdc.segments.bad_rows import FAIL
from raycdc.source.snapshot.log.stream_state import stream_of
from raycdc.source.tables.table_life import Parked, ParkedPhase
from raycdc.source.tables.table_requests import goes_on, requests_of, resnapshot_requested
from raycdc.state.manifests.manifest import STREAM_SPLIT_ID, Manifest
from raycdc.state.opaque import positions_in
from raycdc.state.parked import REPLACEABLE, WAYS_OUT, ParkedTarget, incarnation_of
from raycdc.state.recovery import STEP_LAST, CommitVector
from raycdc.state.store import CheckpointStore


@dataclass(frozen=True, slots=True)
class Parks:
    """The reasons for which a target is parked. If a target is refused for another reason, its error ends the run. The
    fields follow the configuration: `tables` is False for ``pipeline.on_table_error = "fail"``, `changes` for
    ``schema_change = "fail"``, and `values` for ``on_bad_record = "fail"``.
    """

    tables: bool = True
    changes: bool = True
    values: bool = True

    def __call__(self, reason: ParkReason) -> bool:
        match reason:
            case ParkReason.CHANGE:
                return self.tables and self.changes
            case ParkReason.VALUE:
                return self.tables and self.values
            case _:
                return self.tables


def parks_of(options: PipelineOptions) -> Parks:
    """Return the configured parking rules."""
    return Parks(
        tables=options.on_table_error == "park",
        changes=options.schema_change is not SchemaChangeBehavior.FAIL,
        values=options.on_bad_record != FAIL,
    )


@dataclass(frozen=True, slots=True)
class SinkOutagePolicy:
    """How to retry a sink that is unreachable or whose disk is full.

    `location` is the sink's location for messages. `notify` is called with messages about the outage. `policy` limits
    the duration of the retries (None: the default).
    """

    location: str = ""
    notify: Callable[[str], None] = lambda _: None
    policy: RetryPolicy | None = None


@dataclass(frozen=True, slots=True)
class ParkingPolicy:
    """How an epoch loop treats targets that refuse rows.

    `on_parked` is called with parked targets once a commit record has them. `on_bad_rows` is called before an epoch is
    committed, with the rows that the epoch leaves out and with columns that cannot be dropped. `follows` returns True
    if the configuration still selects a source table. `waiting` is the policy for a sink that accepts no writes.
    """

    parks: Parks = field(default_factory=Parks)
    on_parked: Callable[[Mapping[str, ParkedTarget]], None] = lambda _: None
    on_bad_rows: Callable[[str], None] = lambda _: None
    follows: Callable[[TableId], bool] = lambda _: True
    waiting: SinkOutagePolicy = field(default_factory=SinkOutagePolicy)


#: The policy that parks no target.
NOTHING = ParkingPolicy(Parks(tables=False))


class ParkedTargets:
    """The parked targets; see the module's docstring. Used by the thread that stages and the thread that commits."""

    def __init__(self, entries: Mapping[str, ParkedTarget], parks: Parks, *, can_replace: bool = False) -> None:
        """Start with the parked targets of a record. `can_replace` is True if a new snapshot can replace anything that
        exists at a target's location.
        """
        self._entries: Mapping[str, ParkedTarget] = dict(entries)
        self._parks = parks
        self._can_replace = can_replace
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"ParkedTargets({sorted(self._entries)})"

    def owes_nothing(self, target: TableId) -> bool:
        """Return True if the target's content does not matter: it is parked, and its resnapshot has not begun."""
        entry = self._entries.get(str(target))
        return entry is not None and not entry.begun

    def reached(self, sources: Collection[TableId]) -> tuple[int, int]:
        """Return the (epoch, step) that a target of `sources` may hold although its record names an earlier one.

        Such a target may hold rows of an epoch in which it, or another target of the same source tables, was parked.
        """
        names = {str(source) for source in sources}
        epochs = [entry.epoch for entry in self._entries.values() if not names.isdisjoint(entry.sources)]
        return max(epochs, default=0), STEP_LAST

    @property
    def entries(self) -> Mapping[str, ParkedTarget]:
        """Return the entries for the next record. The mapping is never changed in place."""
        return self._entries

    def takes_part(self, target: TableId, source: TableId, manifest: Manifest) -> bool:
        """Return True if `target` gets the rows of `source` in `manifest`."""
        entries = self._entries
        if any(str(source) in entry.sources and entry.waits(source, manifest) for entry in entries.values()):
            return False
        entry = entries.get(str(target))
        return entry is None or not entry.waits(source, manifest)

    def begins(self, target: TableId, manifest: Manifest) -> bool:
        """Return True if the target's part of `manifest` is its first one since it was parked. Its earlier rows are
        then replaced.
        """
        entry = self._entries.get(str(target))
        return entry is not None and not entry.begun and manifest.epoch >= entry.epoch

    def taking_part(
        self, manifest: Manifest, targets: Mapping[TableId, Collection[TableId]]
    ) -> dict[TableId, tuple[TableId, ...]]:
        """Return those `targets` of an epoch that get rows, with the source tables of these rows.

        Row stores are included.
        """
        parts = {
            target: tuple(source for source in sources if self.takes_part(target, source, manifest))
            for target, sources in targets.items()
        }
        return {target: part for target, part in parts.items() if part}

    def park(
        self,
        target: TableId,
        sources: Iterable[TableId],
        manifest: Manifest,
        error: TableRefusedError,
        held: CommitVector | None,
        *,
        anyway: bool = False,
    ) -> None:
        """Park `target` from `manifest` on. Raises `error` if the configuration does not allow that, unless `anyway` is
        True. A target that already refused an earlier epoch stays parked from that earlier epoch on.
        """
        if not anyway and not self._parks(error.reason):
            raise error
        sources = tuple(sources)
        before = self._entries.get(str(target))
        if before is not None and before.epoch < manifest.epoch and all(before.waits(s, manifest) for s in sources):
            return

        def text(every: Collection[str]) -> str:
            return _message(target, every, manifest, error, can_replace=self._can_replace)

        self._add(target, sources, manifest, held, error.reason, text)

    def _add(
        self,
        target: TableId,
        sources: Iterable[TableId],
        manifest: Manifest,
        held: CommitVector | None,
        reason: ParkReason,
        text: Callable[[Collection[str]], str],
    ) -> None:
        with self._lock:
            before = self._entries.get(str(target))
            numbers = {str(source): incarnation_of(source, manifest) or 0 for source in sources}
            if before is not None:
                known = before.sources
                numbers = {name: max(number, known.get(name, 0)) for name, number in {**known, **numbers}.items()}
            entry = ParkedTarget(
                epoch=manifest.epoch,
                held=None if held is None else held.progress,
                reason=reason,
                text=text(sorted(numbers)),
                since_ms=time.time_ns() // 1_000_000,
                sources=numbers,
                positions=positions_in(manifest.from_splits),
            )
            self._entries = {**self._entries, str(target): entry}

    def begin_together(
        self, target: TableId, sources: Iterable[TableId], manifest: Manifest, held: CommitVector | None
    ) -> None:
        """Mark a merged `target` to be emptied once, because all its `sources` are resnapshotted from `manifest` on."""
        text = f"{target} is emptied, because new snapshots of its tables were asked for."
        self._add(target, sources, manifest, held, ParkReason.MISSING, lambda _: text)

    def after(self, manifest: Manifest, targets: Mapping[TableId, Collection[TableId]]) -> None:
        """Update the parked targets to the state after `manifest`: remove those that get rows again. Called just before
        the epoch is recorded.
        """
        with self._lock:
            left = {}
            for name, entry in self._entries.items():
                routed = targets.get(TableId.parse(name), ())
                sources = {*map(TableId.parse, entry.sources), *routed}
                still = entry.after(manifest, sources)
                if still is not None and not (still.begun and all(_is_over(s, manifest) for s in still.sources)):
                    left[name] = still
            self._entries = left


class FollowedSources:
    """Finds out which source tables are still followed, from a manifest (default: the newest) and the configuration
    (`selects`).
    """

    def __init__(
        self, store: CheckpointStore, selects: Callable[[TableId], bool], manifest: Manifest | None = None
    ) -> None:
        self._stream = stream_of(manifest or store.last_manifest())
        self._selects = selects
        self._requests = requests_of(store)

    def __call__(self, source: TableId) -> bool:
        """Return True if the table is still followed, so that its target must agree with the record."""
        return self._selects(source) and (self._stream is None or source in self._stream.followed)

    def is_asked_for(self, source: TableId) -> bool:
        """Return True if the user requested a change of the table at this start, so that its target's state does not
        matter.
        """
        return self._stream is not None and self._requests.acts_on(str(source), self._stream)

    def begin_together(self, sources: Collection[TableId]) -> list[TableId]:
        """Return the resnapshotted `sources` of a merged target; empty unless all that are still followed are."""
        if (stream := self._stream) is None:
            return []
        again = [source for source in sources if resnapshot_requested(str(source), self._requests, stream)]
        leaving = self._requests.of_leaving(stream)
        staying = [source for source in sources if str(source) not in leaving and self._selects(source)]
        others = {source for source in staying if goes_on(str(source), stream)}
        return again if others <= set(again) else []


def _is_over(source: str, manifest: Manifest) -> bool:
    """Return True if the table is not followed any more. If it is added again later, it gets a snapshot of its own."""
    stream = stream_of(manifest)
    state = None if stream is None else stream.named(source)
    return isinstance(state, Parked) and state.phase in (ParkedPhase.ENDED, ParkedPhase.REMOVED)


def _message(
    target: TableId, sources: Collection[str], manifest: Manifest, error: TableRefusedError, *, can_replace: bool
) -> str:
    """Return the text for people: the error, from which epoch on nothing was written, and the solution."""
    name = next(iter(sources), str(target))
    # Remove the target's name, because every message about a parked table begins with it.
    why = _sentence(str(error).removeprefix(f"{target}: "))
    written = f"Nothing of {target} was written from epoch {manifest.epoch} on."
    if error.partly_written:
        written = f"{target} may have some rows of epoch {manifest.epoch}, and nothing was written after them."
    many = f" {', '.join(sources)} go there and wait with it." if len(sources) > 1 else ""
    way = error.way_out or WAYS_OUT[error.reason]
    if STREAM_SPLIT_ID not in manifest.to_splits:
        indexes = {
            name: position.to_json().get("offset")
            for name, position in sorted(positions_in(manifest.from_splits).items())
        }
        begin = ", ".join(f'"{name}" = {offset}' for name, offset in indexes.items())
        tables = ", ".join(f"'{re.escape(source)}'" for source in sources or [name])
        return (
            f"{why} {written}{many} {way}. Its messages are "
            f"still in the topic, and this pipeline does not go back to them: read them with a pipeline of its own, "
            f'with pipeline.on_existing = "merge", source.format.include = [{tables}] and source.startup = '
            f'{{ mode = "offsets", offsets = {{ {begin} }} }}'
        )
    asked = "; ".join(f"raycdc tables resnapshot CONFIG {source}" for source in sources or [name])
    if can_replace and not many and error.reason in REPLACEABLE and not error.way_out:
        asked += f". Or have the new snapshot replace it, with all that is there: {asked} --replace"
    return f"{why} {written}{many} {way}; then: {asked}"


def _sentence(text: str) -> str:
    """Return a server's message with a full stop at its end."""
    return text if text.endswith((".", "!", "?")) else f"{text.removesuffix(';')}."
