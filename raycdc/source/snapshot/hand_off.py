"""The hand-off from snapshot to log: drop, hold or emit each log row, without a lock on the source.

Theory of operation. One log reader passes every change, in order, before the first chunk is read. For a row with
chunk key k of a table in snapshot, the chunk of k is

| chunk of k | the row is | because |
|---|---|---|
| unopened | dropped | its SELECT, still to come, will see the change |
| open | held | nobody knows yet whether its SELECT saw it |
| closed | emitted | its rows are out, the change follows them |

A chunk is opened at a position O of the log reader, always between two transactions; its SELECT starts only when
everything up to O is visible, so dropped rows are seen by it. It is closed at H, a position taken after the SELECT:
an upper bound of what it saw. When the log reader has passed H and D, the held rows at or before H are *folded* into
the chunk (last state of each key wins, so it does not matter which of them the SELECT saw) and the chunk's rows become
inserts; held rows after H follow. A chunk whose SELECT saw exactly H (`exact`) needs no folding.

D (`log_end`) is the log's end, asked for after the SELECT. H bounds the rows that were seen, D the table they are of:
where a snapshot is older than its SELECT, another table may take the name in between, and the SELECT shows that one as
of the snapshot, without an error and without what came into it since. A statement about the table between O and D voids
the chunk. That is enough: a SELECT opens its table under a lock that each such statement takes exclusively, until it
is in the log. So the statements that decided which table was opened are before D, and no other one is between the
opening and the end of the SELECT. A chunk never waits for D for ever: the log had come there when it was asked for.

The chunk is published by the log reader itself, in one step with the release of what was held, so an epoch's cut
contains both or neither and *nothing held is ever state*: after a crash, open chunks are read again.
An update that moves a row between chunks is a delete in one and an insert in the other, each judged by its own.

Some servers (MySQL without GTID) cannot tell when a transaction the log reader has seen becomes visible. There the
log reader remembers what it dropped in the last `ring_s` seconds and holds it too when a chunk opens over it; where
that is more than may be in memory, chunks open later instead (`raycdc.source.snapshot.dropped_rows`). A schema change
waits for the transactions before it, so what was dropped before one is visible to every SELECT after it.

Where the chunk key is not part of the primary key (`movable`), one row may be in several chunks over time, and rows
of an epoch that chunks bring precede those of the log. So that no chunk puts back what another has moved on:

* a chunk that a row left after H is read again (its insert would come after the row's arrival elsewhere);
* a chunk is published only while the open epoch has removed nothing from the table (its insert would come before the
  removal it follows).

The second holds for every table in an epoch that truncates it.

A table whose chunks nothing immutable cuts is judged by place alone (`raycdc.source.snapshot.as_of`).

Keys are compared only through `KeyOrder`, which orders as the server's collation does. Pure: no clock, thread or I/O
but what `KeyOrder` does. One owner (the log reader's thread).

Method: Netflix DBLog (arXiv:2010.12597) and Flink CDC's FLIP-27 source reconcile at watermarks inside the chunk; this
is the same with one log reader for all chunks and the fold limited to (O, H].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, assert_never

import numpy as np
import pyarrow as pa

from raycdc.checkpoint.manifest import Segment
from raycdc.errors import ProtocolError
from raycdc.model import TableId
from raycdc.source.snapshot.as_of import have, later
from raycdc.source.snapshot.chunk_key import ChunkKey, key_names
from raycdc.source.snapshot.dropped_rows import DroppedRows
from raycdc.source.snapshot.held_rows import Spill
from raycdc.source.snapshot.intervals import Interval, IntervalSet, SortKey, cells
from raycdc.source.snapshot.log_rows import LogRows, key_values, removes, split_moves, take
from raycdc.source.snapshot.open_chunk import Decision, FoldChunk, Misfit, OpenChunk, PublishChunk, RetryChunk
from raycdc.source.split import ChunkId, SnapshotSplit
from raycdc.source.table_life import AsOf, Behind, InSnapshot, Reading, TableLives

__all__ = [
    "DROP",
    "EMIT",
    "HOLD",
    "Decision",
    "FoldChunk",
    "HandOff",
    "KeyOrder",
    "LogRows",
    "PublishChunk",
    "RetryChunk",
]

DROP = 0
EMIT = 1
HOLD = 2


class KeyOrder(Protocol):
    """Orders chunk keys as the server does. May ask the server (string collations)."""

    def use(self, table: TableId, key: ChunkKey | None, document: dict[str, Any]) -> None:
        """`table` begins again: as `document` has it, cut by `key`. Tables of the start are known without."""

    def forget(self, table: TableId) -> None:
        """`table` is live, or gone: nothing is asked about it until it begins again."""

    def bound(self, table: TableId, raw: Any) -> SortKey:
        """Sort key of a chunk's bound."""

    def classify(self, table: TableId, keys: pa.Array, bounds: Sequence[SortKey]) -> np.ndarray:
        """For each key the number of `bounds` (ascending) that are ≤ it, or -1 for NULL; int64.

        Keys of several columns come as a struct of them.
        """


@dataclass(slots=True)
class _Table:
    """What the hand-off knows of a table in snapshot beside its state: the chunks that are open, and an index."""

    #: The state's closed ranges, with the keys that they are compared by.
    closed: IntervalSet
    dropped: DroppedRows
    #: The primary key, when the chunk key is no part of it: a row may then be in several chunks over time.
    movable: tuple[str, ...] = ()
    open: dict[str, OpenChunk] = field(default_factory=dict)
    bounds: list[SortKey] | None = None
    codes: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    null_code: int = DROP
    order: tuple[str, ...] = ()
    #: The open epoch has removed rows of the table; `truncated`: all of them.
    removed: bool = False
    truncated: bool = False


class HandOff:
    """Which rows of tables in snapshot go out, and when chunks do. Tables it does not know are live."""

    def __init__(
        self,
        key_order: KeyOrder,
        lives: TableLives,
        *,
        ring_s: float = 0.0,
        held_bytes_max: int = 0,
        spill: Spill | None = None,
    ) -> None:
        """`lives` has the tables' states. What open chunks hold beyond `held_bytes_max` is put down by `spill`, and
        what is remembered of dropped rows beyond as much is forgotten; without `spill` all is in memory.
        """
        self._held_bytes_max, self._spill = held_bytes_max, spill
        self._order = key_order
        self._lives = lives
        self._ring_s = ring_s
        self._tables: dict[TableId, _Table] = {}

    def __repr__(self) -> str:
        return f"HandOff({self.statistics()})"

    def statistics(self) -> dict[str, Any]:
        """Open chunks and held bytes, for metrics and people."""
        chunks = [c for t in self._tables.values() for c in t.open.values()]
        return {
            "tables": len(self._tables),
            "open_chunks": len(chunks),
            "held_bytes": sum(c.rows.bytes for c in chunks),
            "dropped_bytes": sum(t.dropped.bytes for t in self._tables.values()),
        }

    def add_table(self, table: TableId, *, primary_key: Sequence[str]) -> None:
        """Begin, or go on after a restart, with a table whose chunks are to be read."""
        snapshot = self._reading(table).snapshot
        closed = IntervalSet()
        for lower, upper in snapshot.closed:
            closed.add(self._interval(table, lower, upper))
        movable = () if set(key_names(snapshot.key)) <= set(primary_key) else tuple(primary_key)
        self._tables[table] = _Table(closed, DroppedRows(self._ring_s), movable)

    def drop_table(self, table: TableId) -> list[SnapshotSplit]:
        """No chunk of the table is read from here on. Returns the chunks that were open."""
        known = self._tables.pop(table, None)
        if known is None:
            return []
        self._order.forget(table)
        for chunk in known.open.values():
            chunk.let_go().clear()
        return [chunk.split for chunk in known.open.values()]

    def go_live(self, table: TableId) -> None:
        """A complete table is live from here on, but for changes that its chunks have."""
        self.drop_table(table)
        self._lives.completed(table)

    def bars(self, ordinal: int) -> bool:
        """Whether the log may not be passed as far as `ordinal` yet (`raycdc.source.snapshot.as_of`)."""
        return any(state.bars(ordinal) for table in self._tables if isinstance(state := self._lives[table], AsOf))

    def in_snapshot(self, table: TableId) -> bool:
        return table in self._tables

    def would_be_read_again(self, table: TableId, *, now_s: float) -> bool:
        """Whether a chunk opened now is sure to be a `RetryChunk`: what was dropped lately cannot be folded into it."""
        known = self._tables.get(table)
        if known is None or self._reading(table).snapshot.foldable:
            return False
        known.dropped.trim(now_s=now_s)
        return bool(known.dropped)

    def open(self, split: SnapshotSplit, *, now_s: float, ordinal: int = 0) -> bool:
        """Hold the chunk's keys from here on: `ordinal`. False when the table is not in snapshot (any more).

        Opening the same attempt again changes nothing; a newer attempt replaces an older one.
        """
        table = self._tables.get(split.table)
        if table is None:
            return False
        current = table.open.get(split.split_id)
        if current is not None and current.split.attempt >= split.attempt:
            return current.split.attempt == split.attempt
        if current is not None:
            self._forget(table, current, now_s)
        if split.as_of is not None and isinstance(self._lives[split.table], InSnapshot):
            self._lives.opened_as_of(split.table, max(split.as_of, ordinal))
        interval = None if split.only_null else self._interval(split.table, split.lower, split.upper)
        chunk = OpenChunk(split, interval, split.includes_null)
        table.open[split.split_id] = chunk
        table.bounds = None
        table.dropped.trim(now_s=now_s)
        for rows in table.dropped:
            self._recall(table, chunk, rows)
        return True

    def close(self, chunk: ChunkId, *, high: int, log_end: int, exact: bool, segments: Sequence[Segment]) -> None:
        """The chunk was read: its SELECT saw no row after `high` and no table after `log_end`. Also called with the
        folded segments.

        A chunk or attempt not open here is ignored: it was voided meanwhile, and its reader is told so.
        """
        found = self._found(chunk)
        if found is None:
            return
        found[1].close(high=high, log_end=log_end, exact=exact, segments=segments)

    def misfit(self, chunk_id: ChunkId, *, high: int, reason: str, now_s: float) -> None:
        """The chunk could not be read: its table is another one than the log has said so far. The log says so before
        `high`, where the chunk is read again in any case; until then it holds nothing. Else as `close`.
        """
        found = self._found(chunk_id)
        if found is None:
            return
        known, chunk = found
        self._let_go(known, chunk, now_s)
        chunk.misfit(high=high, reason=reason)
        if isinstance(self._lives[chunk_id.table], AsOf):
            self._lives.lost(chunk_id.table, high)

    def void(self, chunk: ChunkId, *, now_s: float) -> bool:
        """Make the chunk unopened again. False when that attempt is not open here (published, or never opened)."""
        found = self._found(chunk)
        if found is None:
            return False
        self._forget(*found, now_s)
        return True

    def void_table(self, table: TableId, *, now_s: float) -> list[SnapshotSplit]:
        """Void every open chunk of the table: its schema changed inside their windows."""
        known = self._tables.get(table)
        if known is None:
            return []
        voided = list(known.open.values())
        for chunk in voided:
            self._forget(known, chunk, now_s)
        known.dropped.clear()
        return [chunk.split for chunk in voided]

    def begin_epoch(self) -> None:
        """What was emitted so far belongs to an epoch that was cut."""
        for table in self._tables.values():
            table.removed = table.truncated = False

    def truncate(self, table: TableId) -> None:
        """The open epoch has removed all rows of the table: no chunk of it may enter the same epoch."""
        known = self._tables.get(table)
        if known is not None:
            known.truncated = True

    def rows(self, rows: LogRows, *, now_s: float) -> LogRows | None:
        """What of `rows` goes out now; holds or drops the rest."""
        table = self._tables.get(rows.table)
        state = self._lives[rows.table]
        if table is None:
            return self._rows_behind(state, rows) if isinstance(state, Behind) else rows
        if isinstance(state, AsOf):
            if rows.ordinals.size and state.bars(int(rows.ordinals[-1])):
                raise ProtocolError(f"The log was passed on before {rows.table} was read as of {state.at}")
            return None
        codes = self._codes(table, rows)
        if not table.movable and codes.size and (codes == EMIT).all():
            return rows
        batch = split_moves(rows.batch, codes, table.movable)
        moved = LogRows(rows.table, batch, rows.ordinals)
        for number, split_id in enumerate(table.order):
            held = take(moved, codes == HOLD + number)
            if held is not None:
                table.open[split_id].rows.hold(held)
        if self._ring_s > 0:
            dropped = take(moved, codes == DROP)
            if dropped is not None:
                table.dropped.trim(now_s=now_s)
                table.dropped.add((dropped,), now_s=now_s)
                self._forget_what_is_too_much()
        self._spill_what_is_too_much()
        emitted = take(moved, codes == EMIT)
        return None if emitted is None else _emit(table, emitted)

    def _rows_behind(self, state: Behind, rows: LogRows) -> LogRows | None:
        emitted = later(state, rows)
        if emitted is not None:
            self._lives.passed(rows.table)
        return emitted

    def _spill_what_is_too_much(self) -> None:
        chunks = [chunk.rows for table in self._tables.values() for chunk in table.open.values()]
        while self._spill is not None and sum(rows.bytes for rows in chunks) > self._held_bytes_max:
            most = max((rows for rows in chunks if rows.can_spill), key=lambda rows: rows.bytes, default=None)
            if most is None:
                return
            most.spill(self._spill)

    def _forget_what_is_too_much(self) -> None:
        """As much of dropped rows may be in memory as of held ones; where it is more, chunks open later instead."""
        every = [table.dropped for table in self._tables.values()]
        while self._spill is not None and sum(dropped.bytes for dropped in every) > self._held_bytes_max:
            max(every, key=lambda dropped: dropped.bytes).evict()

    def opens_from_s(self, table: TableId) -> float:
        """No chunk of the table may be opened before: what was dropped without being remembered is visible then."""
        known = self._tables.get(table)
        return 0.0 if known is None else known.dropped.visible_from_s

    def awaits(self, rows: LogRows) -> list[bool]:
        """Of each row whether its chunk is unopened: whatever became of it, the chunk will tell."""
        table = self._tables.get(rows.table)
        state = self._lives[rows.table]
        if table is None:
            return have(state, rows) if isinstance(state, Behind) else [False] * rows.batch.num_rows
        if isinstance(state, AsOf):
            return [True] * rows.batch.num_rows
        found: list[bool] = (self._codes(table, rows) == DROP).tolist()
        return found

    def advance(self, ordinal: int, *, now_s: float, barred: bool = False) -> list[Decision]:
        """Decide every closed chunk whose reading the log has passed; `ordinal` is between transactions.

        `barred`: what comes next is behind what the log may pass, which is as good as having passed that.
        """
        decisions: list[Decision] = []
        for table_id, table in self._tables.items():
            state = self._lives[table_id]
            stands = isinstance(state, AsOf) and (barred or state.lost is not None)
            for chunk in list(table.open.values()):
                at = chunk.decided_at
                if at is not None and not _must_wait(table) and (at <= ordinal or stands):
                    decisions.append(self._decide(table, chunk, now_s))
        return decisions

    def complete_tables(self) -> list[TableId]:
        """Tables whose every key is closed: `go_live` makes them live."""
        return [table_id for table_id, table in self._tables.items() if self._is_complete(table_id, table)]

    def _is_complete(self, table_id: TableId, table: _Table) -> bool:
        snapshot = self._reading(table_id).snapshot
        return table.closed.covers_all and (snapshot.null_closed or not snapshot.needs_null)

    def _decide(self, table: _Table, chunk: OpenChunk, now_s: float) -> Decision:
        state = self._reading(chunk.split.table)
        if isinstance(state, AsOf) and state.lost is not None and not isinstance(chunk.state, Misfit):
            self._forget(table, chunk, now_s)
            return RetryChunk(chunk.split, "the table was another one for a later chunk")
        decision = chunk.decide(foldable=state.snapshot.foldable, movable=bool(table.movable))
        match decision:
            case RetryChunk():
                self._forget(table, chunk, now_s)
            case PublishChunk():
                del table.open[chunk.split.split_id]
                if chunk.interval is not None:
                    table.closed.add(chunk.interval)
                closed = tuple((interval.lower_raw, interval.upper_raw) for interval in table.closed)
                null_closed = state.snapshot.null_closed or chunk.split.includes_null
                self._lives.published(chunk.split.table, closed, null_closed=null_closed)
                table.bounds = None
            case FoldChunk():
                pass  # It is closed again with what was folded.
            case _:
                assert_never(decision)
        return decision

    def _reading(self, table: TableId) -> Reading:
        state = self._lives.reading(table)
        assert state is not None, f"{table} is in the hand-off and is {self._lives[table]}"
        return state

    def _found(self, chunk_id: ChunkId) -> tuple[_Table, OpenChunk] | None:
        """The open chunk of this attempt, with its table."""
        known = self._tables.get(chunk_id.table)
        chunk = known.open.get(chunk_id.split_id) if known else None
        return None if known is None or chunk is None or chunk.split.attempt != chunk_id.attempt else (known, chunk)

    def _forget(self, table: _Table, chunk: OpenChunk, now_s: float) -> None:
        del table.open[chunk.split.split_id]
        self._let_go(table, chunk, now_s)

    def _let_go(self, table: _Table, chunk: OpenChunk, now_s: float) -> None:
        """Its keys are those of an unopened chunk from here on."""
        table.bounds = None
        held = chunk.let_go()
        if self._ring_s > 0:
            # What was held is dropped now, and may be as invisible to the next SELECT as any dropped row. What was
            # recalled is in the ring still, or has become visible meanwhile.
            table.dropped.add(held.newest, now_s=now_s)
            self._forget_what_is_too_much()
            if held.spilled:
                # Nor is it read back: the next SELECT waits until it is visible.
                table.dropped.lose(now_s=now_s)
        held.clear()

    def _interval(self, table: TableId, lower: Any, upper: Any) -> Interval:
        return Interval(
            None if lower is None else self._order.bound(table, lower),
            None if upper is None else self._order.bound(table, upper),
            lower,
            upper,
        )

    def _codes(self, table: _Table, rows: LogRows) -> np.ndarray:
        """DROP, EMIT or HOLD + number of the open chunk, per row."""
        if table.bounds is None:
            table.order = tuple(table.open)
            layers = [(interval, EMIT) for interval in table.closed]
            chunks = enumerate(table.open[s].interval for s in table.order)
            layers += [(interval, HOLD + n) for n, interval in chunks if interval is not None]
            table.bounds, cell_codes = cells(layers, default=DROP)
            table.codes = np.array(cell_codes, np.int64)
            nulls = [HOLD + n for n, s in enumerate(table.order) if table.open[s].holds_null]
            null_closed = self._reading(rows.table).snapshot.null_closed
            table.null_code = nulls[0] if nulls else EMIT if null_closed else DROP
        key = self._reading(rows.table).snapshot.key
        if key is None:
            return np.full(rows.batch.num_rows, table.codes[0], np.int64)
        cell = self._order.classify(rows.table, key_values(rows.batch, key), table.bounds)
        codes: np.ndarray = np.where(cell < 0, table.null_code, table.codes[np.maximum(cell, 0)])
        return codes

    def _recall(self, table: _Table, chunk: OpenChunk, rows: LogRows) -> None:
        codes = self._codes(table, rows)
        mine = take(rows, codes == HOLD + table.order.index(chunk.split.split_id))
        if mine is not None:
            chunk.rows.recall(mine)


def _must_wait(table: _Table) -> bool:
    """Whether a chunk published now would come before a removal it follows."""
    return table.truncated or (bool(table.movable) and table.removed)


def _emit(table: _Table, rows: LogRows) -> LogRows:
    if table.movable and not table.removed:
        table.removed = removes(rows)
    return rows
