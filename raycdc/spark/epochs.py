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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

from raycdc.bridge.reading import verify_segments
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
from raycdc.checkpoint.store import CheckpointStore, CommitRecord
from raycdc.errors import FencedError, SegmentUnavailableError, SinkError, StateError
from raycdc.failpoints import reach
from raycdc.model import TableId, TableSchema
from raycdc.sinks.api import Sink, TableWork

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
    works: list[TableWork]
    staged: dict[TableId, Any] = field(default_factory=dict)
    staging_s: float = 0.0


def _refuse(_manifest: Manifest, _tables: Sequence[TableId], text: str) -> None:
    raise StateError(text)


class EpochLoop:
    """See the module's docstring. `sink` is open; `generation` tells this driver's newest, which rises
    when its coordinator had to be replaced.

    `next_sealed(after, timeout_s)` returns the first sealed epoch greater than `after`, or None when there was none
    for so long; it may raise to end the loop. `on_committed` is called after each record, in order, on a thread of the
    loop. `positions` picks what goes into the sink's commits of an epoch's split states. `flights` are the endpoints of
    the spools of other nodes, by their names, as of now. `begin_again` asks, durably, for new snapshots of tables whose
    rows of an epoch are gone (the text says why), or raises if that cannot be.
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
    ) -> None:
        self._store = store
        self._flights = flights
        self._begin_again = begin_again
        self._sink = sink
        self._generation = generation
        self._next_sealed = next_sealed
        self._on_committed = on_committed
        self._positions = positions
        self._node = node
        self._flight_token = flight_token
        self._schemas: dict[str, TableSchema] = {}
        self._stopping = threading.Event()
        record = store.last_commit()
        self._committed = record.epoch if record else 0
        self._vectors: dict[str, tuple[int, int]] = dict(record.tables) if record else {}
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
        prepared = _Prepared(manifest, self._works(manifest))
        reach("before_stage")
        try:
            self._stage(prepared, [work for work in prepared.works if not work.changes])
        finally:
            if under_way is not None:
                under_way.result()
        changed = [work for work in prepared.works if work.changes]
        for work in changed:
            self._sink.apply_schema(work)
        self._stage(prepared, changed)
        reach("after_stage")
        return prepared

    def _stage(self, prepared: _Prepared, works: Sequence[TableWork]) -> None:
        if not works:
            return
        started = time.monotonic()
        while True:
            try:
                prepared.staged.update(self._sink.stage(works))
                break
            except SegmentUnavailableError:
                if time.monotonic() - started > NODE_PATIENCE_S or self._stopping.wait(POLL_S):
                    raise
            works = [replace(work, segments=self._placed(work.segments)) for work in works]
        prepared.staging_s += time.monotonic() - started

    def _commit(self, prepared: _Prepared) -> None:
        started = time.monotonic()
        reach("before_commit")
        self._commit_tables(prepared.works, prepared.staged)
        reach("after_last_commit")
        self._record(prepared.manifest, staging_s=prepared.staging_s, commit_s=time.monotonic() - started)

    def _commit_tables(self, works: Sequence[TableWork], staged: Mapping[TableId, Any]) -> None:
        """Commit all tables; when some fail the others still finish, and the first error is raised."""
        with ThreadPoolExecutor(COMMIT_THREADS, thread_name_prefix="raycdc-table") as pool:
            pending = [pool.submit(self._sink.commit, work, staged[work.target]) for work in works]
            for done, future in enumerate(as_completed(pending), start=1):
                future.result()
                reach("after_commit")
                if done < len(pending):
                    reach("between_tables")

    def _record(self, manifest: Manifest, *, staging_s: float, commit_s: float) -> None:
        now_ms = time.time_ns() // 1_000_000
        self._vectors.update({str(table): (manifest.epoch, STEP_LAST) for table in manifest.tables})
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
        )
        self._history.append(figures)
        self._on_committed(figures)

    def _write_record(self, epoch: int, now_ms: int) -> None:
        """Write the commit record; once more when the generation rose in our own hands at that very moment."""
        generation = self._generation()
        try:
            self._store.write_commit(CommitRecord(epoch, generation, now_ms, dict(self._vectors)))
        except FencedError:
            if self._generation() == generation:
                raise
            self._store.write_commit(CommitRecord(epoch, self._generation(), now_ms, dict(self._vectors)))

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
        self._check_record(newest)
        for manifest in self._store.manifests(after=self._committed):
            match self._decide(manifest, newest):
                case Record():
                    self._record(manifest, staging_s=0.0, commit_s=0.0)
                    recorded.append(manifest.epoch)
                case Replay(tables):
                    self._replay(manifest, tables)
                    replayed.append(manifest.epoch)
                case Tombstone():
                    dropped = self._drop_from(manifest.epoch)
                    break
                case Frozen(again, replay, text):
                    dropped = self._freeze(manifest, again, replay, text)
                    frozen.append(manifest.epoch)
                    break
                case Refuse(text):
                    raise SinkError(text)
                case decision:
                    assert_never(decision)
        return Recovery(self._committed, tuple(recorded), tuple(replayed), tuple(dropped), tuple(frozen))

    def _check_record(self, newest: int) -> None:
        if self._sink.durable:
            holds = {table: self._sink.committed(table) for table in map(TableId.parse, self._vectors)}
            if refusal := contradictions(holds, recorded=self._vectors, newest_epoch=newest):
                raise SinkError(refusal.text)

    def _decide(self, manifest: Manifest, newest: int) -> Record | Replay | Frozen | Tombstone | Refuse:
        holds: dict[TableId, CommitVector | None] = dict.fromkeys(manifest.tables)
        if self._sink.durable:
            holds = {table: self._sink.committed(table) for table in manifest.tables}
        recorded = self._vectors if self._sink.durable else {}
        needed = [segment for segment in manifest.segments if lacks(manifest.epoch, holds[segment.table])]
        deadline_s = time.monotonic() + NODE_PATIENCE_S
        while True:
            missing = self._missing(needed)
            lost = {segment.table for segment in missing}
            decision = decide(manifest, holds, lost=lost, recorded=recorded, newest_epoch=newest)
            away = any(segment.node != (self._node or STATE_NODE) for segment in missing)
            if not (isinstance(decision, Frozen) and away) or time.monotonic() > deadline_s:
                return decision
            # Reading tables again costs more than waiting for a node that only starts anew.
            if self._stopping.wait(POLL_S):
                return decision

    def _missing(self, segments: Sequence[Segment]) -> list[Segment]:
        """Those that are not there, or damaged."""
        node, token = self._node or None, self._flight_token or None
        placed = self._placed(segments)
        return [segment for segment in placed if not verify_segments([segment], node=node, token=token)]

    def _replay(self, manifest: Manifest, tables: Sequence[TableId]) -> None:
        """Write an epoch again for the tables that lack it. Steps they hold are skipped by the sink."""
        self._complete(manifest, [work for work in self._works(manifest) if work.source in tables])

    def _complete(self, manifest: Manifest, works: list[TableWork]) -> None:
        """Write `works`, which is what the sink lacks of the epoch, and record it."""
        prepared = _Prepared(manifest, works)
        for work in prepared.works:
            if work.changes:
                self._sink.apply_schema(work)
        self._stage(prepared, prepared.works)
        self._commit(prepared)

    def _freeze(self, manifest: Manifest, again: Sequence[TableId], replay: Sequence[TableId], text: str) -> list[int]:
        """Complete an epoch whose rows are gone for the tables `again`, which are to begin anew instead.

        *What if the process dies here?* Until all tables hold the epoch the same is decided again, and asking and
        dropping twice changes nothing. Once they do, it is recorded; what was asked for is durable by then.

        Later epochs are dropped without tombstones: nobody began to commit them, as this one is not complete, and a
        tombstone of a later epoch would say of a table that it holds this one.
        """
        self._begin_again(manifest, again, text)
        dropped = self._store.drop_after(manifest.epoch)
        works = [work for work in self._works(manifest) if work.source in (*again, *replay)]
        works = [replace(work, segments=()) if work.source in again else work for work in works]
        self._complete(manifest, works)
        return dropped

    def _drop_from(self, epoch: int) -> list[int]:
        """Bar `epoch` and all later ones in every table they name, then drop their manifests."""
        for manifest in self._store.manifests(after=epoch - 1):
            for work in self._works(manifest):
                self._sink.tombstone(replace(work, segments=()))
        return self._store.drop_after(epoch - 1)

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _works(self, manifest: Manifest) -> list[TableWork]:
        positions = self._positions(manifest)
        return [
            TableWork(
                epoch=manifest.epoch,
                generation=self._generation(),
                source=table,
                target=table,
                schema=self._schema(part.schema),
                changes=part.changes,
                segments=self._placed(
                    sorted((s for s in manifest.segments if s.table == table), key=lambda s: s.seq_base)
                ),
                positions=positions,
            )
            for table, part in manifest.tables.items()
        ]

    def _placed(self, segments: Sequence[Segment]) -> tuple[Segment, ...]:
        """Each segment with the endpoint of its node as of now (none: the node is away)."""
        flights = self._flights()
        return tuple(replace(segment, flight=flights.get(segment.node, "")) for segment in segments)

    def _schema(self, fingerprint: str) -> TableSchema:
        if fingerprint not in self._schemas:
            self._schemas[fingerprint] = self._store.schema(fingerprint)
        return self._schemas[fingerprint]
