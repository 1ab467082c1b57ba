"""The hand-off from snapshot to log: decides for each log row if it is dropped, held or emitted, without a lock on the
source.

Theory of operation. Before the first chunk is read, one log reader begins to pass every change through this module, in
order. For a log row with the chunk key k, of a table in snapshot, the state of k's chunk decides:

| chunk of k | the row is | because |
|---|---|---|
| unopened | dropped | its SELECT, still to come, will see the change |
| open | held | it is not known yet if its SELECT saw it |
| closed | emitted | the chunk's rows are published, and the change follows them |

A chunk is opened at a position O of the log reader, always between two transactions. Its SELECT starts only when
everything up to O is visible, so the SELECT sees the changes of dropped rows. The chunk is closed at H. H is a log
position that was queried after the SELECT, so it is an upper bound of the changes that the SELECT saw. When the log
reader has passed H and D, the held rows up to H are *folded* into the chunk: the last state of each key wins, so it
does not matter which of these changes the SELECT saw. The chunk's rows are then emitted as inserts, and the held rows
after H follow. If the SELECT saw exactly the changes up to H (`exact`), no folding is needed.

D (`log_end`) is the log's end, queried after the SELECT. H is a bound of the rows that the SELECT saw, and D is a bound
of the statements that decided which table it read. D is needed if the database snapshot is older than the SELECT.
Another table may take the name in between; the SELECT then reads the new table as of the snapshot, without an error and
without the table's later rows. A statement about the table between O and D therefore voids the chunk. This is
sufficient: a SELECT opens its table under a lock that each such statement takes exclusively until it is in the log.
Therefore all statements that decided which table was opened are before D, and none is between the opening and the end
of the SELECT. A chunk never waits for D forever, because the log had reached D when it was queried.

The log reader itself publishes the chunk, in one step with the release of its held rows. An epoch's cut therefore
contains both or neither, and *held rows are never part of a state*: after a crash, open chunks are read again. An
update that moves a row between chunks is split into a delete in one chunk and an insert in the other. Each of them is
judged by its own chunk.

Some servers (MySQL without GTID) do not report when a transaction that the log reader has seen becomes visible. For
these servers, the log reader remembers the rows that it dropped in the last `ring_s` seconds. A chunk that is opened
holds the remembered rows of its keys, too. If they exceed the memory limit, chunks are opened later instead
(`raycdc.source.snapshot.handoff.table_chunks`). A schema change waits for earlier transactions, so rows that were
dropped before it are visible to every SELECT after it.

If the chunk key is not part of the primary key (`movable`), a row may move between chunks over time. Within an epoch,
rows of chunks precede those of the log. Two rules keep a chunk from restoring an old version of a moved row:

* if a row left the chunk after H, the chunk is read again. Otherwise the chunk's insert of the row would come after the
  insert of the same row in another chunk;
* a chunk is published only while the open epoch has removed nothing from the table. Otherwise the chunk's insert, which
  is newer than the removal, would come before it.

The second rule also holds for every table that the open epoch truncates.

A table without an immutable chunk key is judged by position alone (`raycdc.source.snapshot.handoff.as_of`). Chunks of a
backfill hold nothing (`raycdc.source.snapshot.rereading.backfill`).

This module has the tables in snapshot and the memory that they share; the chunks of one table are in
`raycdc.source.snapshot.handoff.table_chunks`, and one chunk is in `raycdc.source.snapshot.handoff.open_chunk`.

Keys are compared only through `KeyOrder`, which orders as the server's collation does. Pure: no clock, no thread, and
no I/O except that of `KeyOrder`. Owned by the log reader's thread.

Method: Netflix DBLog (arXiv:2010.12597) and Flink CDC's FLIP-27 source reconcile each chunk with the log between two
watermarks. This module does the same, with one log reader for all chunks, and folds only log rows in (O, H].

`BackfillChunks` has the open chunks of backfills, at most one per table, and follows the rules of
`raycdc.source.snapshot.rereading.backfill`. Invariant: it remembers every row of the table that was emitted since the
chunk was opened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from raycdc.model import TableId
from raycdc.source.snapshot.handoff.as_of import have, later
from raycdc.source.snapshot.handoff.open_chunk import (
    Decision,
    FoldChunkRequest,
    HeldChunk,
    KeyOrder,
    PublishChunkRequest,
    RetryChunkRequest,
    as_needed,
)
from raycdc.source.snapshot.handoff.table_chunks import TableChunks
from raycdc.source.snapshot.log.log_rows import HeldRows, LogRows, Spill, behind, up_to
from raycdc.source.split import ChunkId, SnapshotSplit
from raycdc.source.tables.table_life import AsOf, Behind, TableStates
from raycdc.state.manifests.manifest import Segment


@dataclass(slots=True)
class BackfillChunk:
    """An open chunk of a backfill, with the log rows that passed since it was opened.

    The remembered log rows are `chunk.rows`. Log rows up to the ordinal `cut` are in epochs that are cut. The chunk's
    reader has already left out the keys of log rows up to the ordinal `left_out`. `last` is the ordinal of the newest
    log row.
    """

    chunk: HeldChunk
    last: int = -1
    cut: int = -1
    left_out: int = -1

    def passed(self, rows: LogRows) -> None:
        """Remember rows that were emitted."""
        self.chunk.rows.hold(rows)
        self.last = max(self.last, int(rows.ordinals[-1]))

    def changed(self) -> Iterator[LogRows]:
        """Return log rows in epochs that are cut, whose keys the chunk's reader has not left out yet. The chunk may
        have older versions of these rows.
        """
        return up_to(behind(self.chunk.rows, self.left_out), self.cut)


@dataclass(slots=True)
class BackfillChunks:
    """The open chunks of backfills; see the module's docstring."""

    _open: dict[TableId, BackfillChunk] = field(default_factory=dict)
    #: Tables that are truncated in the open epoch.
    _emptied: set[TableId] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def held(self) -> list[HeldRows]:
        """Return the rows that each chunk remembers."""
        return [backfill.chunk.rows for backfill in self._open.values()]

    def attempt(self, chunk: ChunkId) -> HeldChunk | None:
        """Return the open chunk, if this attempt is the current one."""
        backfill = self._open.get(chunk.table)
        return None if backfill is None or backfill.chunk.split.chunk_id != chunk else backfill.chunk

    def open(self, split: SnapshotSplit) -> None:
        """Remember the table's rows from here on. Opening the same attempt again changes nothing."""
        if self.attempt(split.chunk_id) is None:
            self.drop(split.table)
            self._open[split.table] = BackfillChunk(HeldChunk(split, None, holds_null=False))

    def passed(self, rows: LogRows) -> None:
        """Note that these rows are passed on."""
        backfill = self._open.get(rows.table)
        if backfill is not None and rows.batch.num_rows:
            backfill.passed(rows)

    def begin_epoch(self) -> None:
        """Note that the rows so far belong to an epoch that was cut."""
        self._emptied.clear()
        for backfill in self._open.values():
            backfill.cut = backfill.last

    def truncate(self, table: TableId) -> None:
        """Record that the open epoch truncates the table. No chunk of the table may be published in this epoch, because
        the chunk's rows would come before the truncation.
        """
        self._emptied.add(table)

    def drop(self, table: TableId) -> SnapshotSplit | None:
        """Close the table's open chunk and return it; None if there is none."""
        backfill = self._open.pop(table, None)
        if backfill is None:
            return None
        backfill.chunk.rows.clear()
        return backfill.chunk.split

    def advance(self, ordinal: int) -> list[Decision]:
        """Decide every chunk whose reading the log has passed."""
        found: list[Decision] = []
        for backfill in list(self._open.values()):
            at, table = backfill.chunk.decided_at, backfill.chunk.split.table
            if at is None or at > ordinal or table in self._emptied:
                continue
            decision = self._decide(backfill)
            if not isinstance(decision, FoldChunkRequest):
                self.drop(table)
            found.append(decision)
        return found

    def _decide(self, backfill: BackfillChunk) -> Decision:
        retry = backfill.chunk.retry()
        if retry is not None:
            return retry
        if next(backfill.changed(), None) is None:
            return PublishChunkRequest(backfill.chunk.split, backfill.chunk.segments, ())
        decision = backfill.chunk.fold(as_needed(backfill.chunk.rows, backfill.changed()))
        backfill.left_out = backfill.cut
        return decision


__all__ = [
    "Decision",
    "FoldChunkRequest",
    "HandOff",
    "HandOffStatistics",
    "LogRows",
    "PublishChunkRequest",
    "RetryChunkRequest",
    "RowMemory",
]


@dataclass(frozen=True, slots=True)
class HandOffStatistics:
    """Figures for metrics and people: tables in snapshot, open chunks, and bytes in memory."""

    tables: int
    open_chunks: int
    held_bytes: int
    dropped_bytes: int


@dataclass(frozen=True, slots=True)
class RowMemory:
    """The memory limit of all tables together, for rows that chunks hold and for dropped rows.

    Held rows beyond `bytes_max` are written to disk by `spill`; without `spill`, they stay in memory. Dropped rows
    beyond `bytes_max` are forgotten, and chunks are opened later because of that.
    """

    bytes_max: int = 0
    spill: Spill | None = None

    def enforce(self, tables: Collection[TableChunks], backfill: BackfillChunks) -> None:
        """Bring the memory of `tables` and of backfills' chunks within the limit, beginning with the largest."""
        if self.spill is None:
            return
        every = [table.dropped for table in tables]
        while sum(dropped.bytes for dropped in every) > self.bytes_max:
            max(every, key=lambda dropped: dropped.bytes).evict()
        chunks = [*(rows for table in tables for rows in table.held), *backfill.held]
        while sum(rows.bytes for rows in chunks) > self.bytes_max:
            most = max((rows for rows in chunks if rows.can_spill), key=lambda rows: rows.bytes, default=None)
            if most is None:
                return
            most.spill(self.spill)


class HandOff:
    """Decides which rows of tables in snapshot are emitted, and when chunks are published. All rows of the remaining
    tables are emitted.
    """

    def __init__(
        self, key_order: KeyOrder, table_states: TableStates, *, ring_s: float = 0.0, memory: RowMemory | None = None
    ) -> None:
        """`table_states` has the tables' states."""
        self._order = key_order
        self._table_states = table_states
        self._ring_s = ring_s
        self._tables: dict[TableId, TableChunks] = {}
        #: Open chunks of backfills, whose tables are followed.
        self.backfills = BackfillChunks()
        rows_in_memory = memory or RowMemory()
        self._enforce: Callable[[], None] = lambda: rows_in_memory.enforce(self._tables.values(), self.backfills)

    def __repr__(self) -> str:
        return f"HandOff({self.statistics()})"

    def statistics(self) -> HandOffStatistics:
        held = [rows.bytes for table in self._tables.values() for rows in table.held]
        held += [rows.bytes for rows in self.backfills.held]
        dropped = sum(table.dropped.bytes for table in self._tables.values())
        return HandOffStatistics(len(self._tables), len(held), sum(held), dropped)

    def add_table(self, table: TableId, *, primary_key: Sequence[str]) -> None:
        """Add a table whose chunks are to be read, new or after a restart."""
        chunks = TableChunks(table, self._table_states, self._order, primary_key=primary_key, ring_s=self._ring_s)
        self._tables[table] = chunks

    def drop_table(self, table: TableId) -> list[SnapshotSplit]:
        """Drop the table, of which no more chunks are read; return the chunks that were open."""
        self.backfills.drop(table)
        chunks = self._tables.pop(table, None)
        return [] if chunks is None else chunks.drop()

    def complete_tables(self) -> list[TableId]:
        """Return tables whose keys are all published.

        From now on these tables are live. Of a table that is read as of one position, changes that its chunks contain
        are still dropped.
        """
        complete = [table for table, chunks in self._tables.items() if chunks.is_complete]
        for table in complete:
            self.drop_table(table)
            self._table_states.completed(table)
        return complete

    def bars(self, ordinal: int) -> bool:
        """Return True if the log may not be passed up to `ordinal` yet (`raycdc.source.snapshot.handoff.as_of`)."""
        return any(isinstance(state := chunks.state, AsOf) and state.bars(ordinal) for chunks in self._tables.values())

    def would_be_read_again(self, table: TableId, *, now_s: float) -> bool:
        """Return True if a chunk that is opened now would have to be read again. The reason is that recently dropped
        rows cannot be folded into it.
        """
        chunks = self._tables.get(table)
        return chunks is not None and chunks.would_be_read_again(now_s=now_s)

    def opens_from_s(self, table: TableId) -> float:
        """Return the time before which no chunk of the table may be opened. After that time, all forgotten rows are
        visible to every SELECT.
        """
        chunks = self._tables.get(table)
        return 0.0 if chunks is None else chunks.dropped.visible_from_s

    def open(self, split: SnapshotSplit, *, now_s: float, ordinal: int = 0) -> bool:
        """Hold the chunk's keys from `ordinal` on. Returns False if the table is not in snapshot any more.

        Opening the same attempt again changes nothing. A newer attempt replaces an older one. A chunk of a backfill
        holds no rows, because its table is followed.
        """
        if split.again is not None:
            self.backfills.open(split)
            return True
        chunks = self._tables.get(split.table)
        opened = chunks is not None and chunks.open(split, now_s=now_s, ordinal=ordinal)
        self._enforce()
        return opened

    def close(self, chunk: ChunkId, *, high: int, log_end: int, exact: bool, segments: Sequence[Segment]) -> None:
        """Record that the chunk was read. Its SELECT saw no row after `high`, and no statement after `log_end` decided
        which table it read.

        Called again with the folded segments. If this attempt at the chunk is not open any more, the call has no
        effect: the attempt was voided meanwhile, and its reader was notified.
        """
        attempt = self._attempt(chunk)
        opened = self.backfills.attempt(chunk) if attempt is None else attempt[1]
        if opened is not None:
            opened.close(high=high, log_end=log_end, exact=exact, segments=segments)

    def schema_mismatch(self, chunk: ChunkId, *, high: int, reason: str, now_s: float) -> None:
        """Record that the chunk's SELECT found a different table than the log has described so far. The log explains
        the difference before `high`. When the log reader has passed `high`, the chunk is read again. Until then it
        holds no rows.
        """
        attempt, backfill = self._attempt(chunk), self.backfills.attempt(chunk)
        if backfill is not None:
            backfill.schema_mismatch(high=high, reason=reason)
        if attempt is not None:
            attempt[0].schema_mismatch(attempt[1], high=high, reason=reason, now_s=now_s)
            self._enforce()

    def void(self, chunk: ChunkId, *, now_s: float) -> SnapshotSplit | None:
        """Make the chunk unopened again, and return it. Returns None if this attempt is not open, because it was
        published or never opened.
        """
        attempt = self._attempt(chunk)
        if attempt is None:
            backfill = self.backfills.attempt(chunk)
            if backfill is not None:
                self.backfills.drop(chunk.table)
            return None if backfill is None else backfill.split
        attempt[0].void(attempt[1], now_s=now_s)
        self._enforce()
        return attempt[1].split

    def void_table(self, table: TableId, *, now_s: float) -> list[SnapshotSplit]:
        """Void every open chunk of the table: its schema changed inside their windows."""
        chunks, backfill = self._tables.get(table), self.backfills.drop(table)
        voided = [] if chunks is None else chunks.void_all(now_s=now_s)
        return voided if backfill is None else [*voided, backfill]

    def begin_epoch(self) -> None:
        """Note that the rows emitted so far belong to an epoch that was cut."""
        self.backfills.begin_epoch()
        for chunks in self._tables.values():
            chunks.removals.begin_epoch()

    def truncate(self, table: TableId) -> None:
        """Record that the open epoch truncates the table. No chunk of the table may be published in this epoch."""
        self.backfills.truncate(table)
        chunks = self._tables.get(table)
        if chunks is not None:
            chunks.removals.truncate()

    def rows(self, rows: LogRows, *, now_s: float) -> LogRows | None:
        """Return the rows among `rows` that are emitted now; hold or drop the rest."""
        chunks = self._tables.get(rows.table)
        if chunks is None:
            state = self._table_states[rows.table]
            emitted = later(state, rows) if isinstance(state, Behind) else rows
            if emitted is not None and isinstance(state, Behind):
                self._table_states.passed(rows.table)
            if emitted is not None and self.backfills:
                self.backfills.passed(emitted)
                self._enforce()
            return emitted
        emitted = chunks.pass_on(rows, now_s=now_s)
        if emitted is not rows:
            self._enforce()
        return emitted

    def awaits(self, rows: LogRows) -> list[bool]:
        """Return for each row whether its chunk is unopened and will contain it."""
        chunks = self._tables.get(rows.table)
        if chunks is not None:
            return chunks.awaits(rows)
        state = self._table_states[rows.table]
        return have(state, rows) if isinstance(state, Behind) else [False] * rows.batch.num_rows

    def advance(self, ordinal: int, *, now_s: float, barred: bool = False) -> list[Decision]:
        """Decide about every closed chunk whose H and D the log reader has passed. `ordinal` is its position, between
        two transactions.

        `barred` is True if the log reader must wait at its position because the next unit of the log is after T of a
        table that is read as of T. It then counts as having passed T.
        """
        decisions: list[Decision] = []
        for chunks in self._tables.values():
            decisions += chunks.advance(ordinal, now_s=now_s, barred=barred)
        if self.backfills:
            decisions += self.backfills.advance(ordinal)
        if decisions:
            self._enforce()
        return decisions

    def _attempt(self, chunk: ChunkId) -> tuple[TableChunks, HeldChunk] | None:
        """Return the open chunk and its table, if this attempt is the current one."""
        chunks = self._tables.get(chunk.table)
        attempt = None if chunks is None else chunks.attempt(chunk)
        return None if chunks is None or attempt is None else (chunks, attempt)
