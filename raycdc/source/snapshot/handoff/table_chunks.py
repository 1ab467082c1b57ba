"""The chunks of one table in snapshot: its open chunks, its published keys, and the decisions about its log rows.

`raycdc.source.snapshot.handoff.hand_off` explains the rules, and has a `TableChunks` for each table whose chunks are
read. `TableStates` has the table's state, and is notified of each published chunk.

Invariant: every key is in exactly one of three sets: the published ranges, the open chunks, and the unopened rest.

`DroppedRows` remembers recently dropped rows of the table that a SELECT may not see yet. A chunk that is opened holds
those that have its keys. They are in memory, and their number depends on users' writes, so their size is limited.
Beyond the limit the oldest rows are forgotten (`evict`), and no chunk of the table is opened until the forgotten rows
are visible to every SELECT.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, assert_never

import numpy as np

from raycdc.errors import ProtocolError
from raycdc.model import TableId
from raycdc.source.snapshot.handoff.open_chunk import (
    DROP,
    EMIT,
    HOLD,
    Decision,
    FoldChunkRequest,
    HeldChunk,
    KeyIndex,
    KeyOrder,
    PublishChunkRequest,
    RetryChunkRequest,
    SelectMismatched,
)
from raycdc.source.snapshot.key_intervals import Interval, IntervalSet, key_names
from raycdc.source.snapshot.log.log_rows import HeldRows, LogRows, removes, split_moves, take
from raycdc.source.split import ChunkId, SnapshotSplit
from raycdc.source.tables.table_life import AsOf, InSnapshot, Reading, TableStates, reading


class DroppedRows:
    """Dropped rows, in the order in which they were dropped. A SELECT may not see a row for up to `window_s`."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._rows: deque[tuple[float, LogRows]] = deque()
        self.bytes = 0
        #: The time from which the forgotten rows are visible.
        self.visible_from_s = 0.0

    def __repr__(self) -> str:
        return f"DroppedRows({len(self._rows)} batches, {self.bytes} bytes)"

    def __bool__(self) -> bool:
        return bool(self._rows)

    def __iter__(self) -> Iterator[LogRows]:
        return (rows for _, rows in self._rows)

    def add(self, dropped: Iterable[LogRows], *, now_s: float) -> None:
        """Remember rows that are dropped now."""
        for rows in dropped:
            self._rows.append((now_s, rows))
            self.bytes += rows.batch.nbytes

    def trim(self, *, now_s: float) -> None:
        """Forget rows that are visible by now."""
        while self._rows and self._rows[0][0] < now_s - self._window_s:
            self._forget_oldest()

    def evict(self) -> None:
        """Forget the oldest row before it is visible."""
        self.visible_from_s = max(self.visible_from_s, self._forget_oldest() + self._window_s)

    def lose(self, *, now_s: float) -> None:
        """Note that a row was dropped now that cannot be remembered."""
        self.visible_from_s = now_s + self._window_s

    def clear(self) -> None:
        """Forget all rows, because they are visible."""
        self._rows.clear()
        self.bytes = 0

    def _forget_oldest(self) -> float:
        dropped_s, rows = self._rows.popleft()
        self.bytes -= rows.batch.nbytes
        return dropped_s


class Removals:
    """Records if the open epoch has removed rows of a table. A chunk that is published in this epoch would come before
    these removals.
    """

    def __init__(self, *, movable: bool) -> None:
        """Make an empty record. If `movable` is True, a row may be in several chunks over time, so each removal counts;
        otherwise only truncations count.
        """
        self._movable = movable
        self._removed = False
        self._truncated = False

    def begin_epoch(self) -> None:
        self._removed = self._truncated = False

    def truncate(self) -> None:
        self._truncated = True

    def note(self, emitted: LogRows) -> None:
        """Note the removals among these rows of the open epoch."""
        if self._movable and not self._removed:
            self._removed = removes(emitted)

    @property
    def keep_chunks_waiting(self) -> bool:
        """Return True if a chunk published now would come before a removal that it follows."""
        return self._truncated or (self._movable and self._removed)


class TableChunks:
    """The chunks of one table; see the module's docstring.

    `ring_s` is how long a dropped row may be invisible to a SELECT.
    """

    def __init__(
        self, table: TableId, table_states: TableStates, order: KeyOrder, *, primary_key: Sequence[str], ring_s: float
    ) -> None:
        self._table, self._table_states, self._order, self._ring_s = table, table_states, order, ring_s
        snapshot = self.state.snapshot
        #: The closed ranges of the table's state, with the sort keys by which they are compared.
        self._closed = IntervalSet()
        for lower, upper in snapshot.closed:
            self._closed.add(self._interval(lower, upper))
        #: The primary key if the chunk key is not part of it, so that a row may be in several chunks over time; else
        #: empty.
        self._movable = () if set(key_names(snapshot.key)) <= set(primary_key) else tuple(primary_key)
        self._open: dict[str, HeldChunk] = {}
        self._index: KeyIndex | None = None
        self.removals = Removals(movable=bool(self._movable))
        self.dropped = DroppedRows(ring_s)

    def __repr__(self) -> str:
        return f"TableChunks({self._table}, open={list(self._open)}, closed={len(self._closed)} ranges)"

    @property
    def state(self) -> Reading:
        """Return the table's state, in which chunks are read."""
        state = reading(self._table_states[self._table])
        assert state is not None, f"{self._table} is in the hand-off and is {self._table_states[self._table]}"
        return state

    @property
    def held(self) -> list[HeldRows]:
        """The held rows of each open chunk."""
        return [chunk.rows for chunk in self._open.values()]

    @property
    def is_complete(self) -> bool:
        """Return True if every key is published."""
        snapshot = self.state.snapshot
        return self._closed.covers_all and (snapshot.null_closed or not snapshot.needs_null)

    def attempt(self, chunk_id: ChunkId) -> HeldChunk | None:
        """Return the open chunk, if this attempt is the current one."""
        chunk = self._open.get(chunk_id.split_id)
        return None if chunk is None or chunk.split.attempt != chunk_id.attempt else chunk

    def would_be_read_again(self, *, now_s: float) -> bool:
        """Return True if a chunk that is opened now would have to be read again. The reason is that recently dropped
        rows cannot be folded into it.
        """
        if self.state.snapshot.foldable:
            return False
        self.dropped.trim(now_s=now_s)
        return bool(self.dropped)

    def open(self, split: SnapshotSplit, *, now_s: float, ordinal: int) -> bool:
        """Hold the chunk's keys from the ordinal `ordinal` on. Returns False if a newer attempt is open."""
        current = self._open.get(split.split_id)
        if current is not None and current.split.attempt >= split.attempt:
            return current.split.attempt == split.attempt
        if current is not None:
            self.void(current, now_s=now_s)
        if split.as_of is not None and isinstance(self.state, InSnapshot):
            self._table_states.opened_as_of(split.table, max(split.as_of, ordinal))
        interval = None if split.only_null else self._interval(split.lower, split.upper)
        chunk = HeldChunk(split, interval, split.includes_null)
        self._open[split.split_id] = chunk
        self._index = None
        self.dropped.trim(now_s=now_s)
        for rows in self.dropped:
            mine = take(rows, self._codes(rows) == self._key_index().code_of(split.split_id))
            if mine is not None:
                chunk.rows.recall(mine)
        return True

    def schema_mismatch(self, chunk: HeldChunk, *, high: int, reason: str, now_s: float) -> None:
        """Record that the chunk's SELECT found another table. From now on the chunk holds no rows. The log has the
        reason before `high`.
        """
        self._let_go(chunk, now_s)
        chunk.schema_mismatch(high=high, reason=reason)
        if isinstance(self.state, AsOf):
            self._table_states.lost(self._table, high)

    def void(self, chunk: HeldChunk, *, now_s: float) -> None:
        """Make the chunk unopened again."""
        del self._open[chunk.split.split_id]
        self._let_go(chunk, now_s)

    def void_all(self, *, now_s: float) -> list[SnapshotSplit]:
        """Void every open chunk, because the table's schema changed; rows dropped before are visible by now."""
        voided = list(self._open.values())
        for chunk in voided:
            self.void(chunk, now_s=now_s)
        self.dropped.clear()
        return [chunk.split for chunk in voided]

    def drop(self) -> list[SnapshotSplit]:
        """Stop reading chunks of the table. Returns those that were open."""
        self._order.forget(self._table)
        for chunk in self._open.values():
            chunk.let_go().clear()
        return [chunk.split for chunk in self._open.values()]

    def pass_on(self, rows: LogRows, *, now_s: float) -> LogRows | None:
        """Return the rows among `rows` that are emitted now; hold or drop the rest."""
        state = self.state
        if isinstance(state, AsOf):
            if rows.ordinals.size and state.bars(int(rows.ordinals[-1])):
                raise ProtocolError(f"The log was passed on before {rows.table} was read as of {state.at}")
            return None
        codes = self._codes(rows)
        if not self._movable and codes.size and (codes == EMIT).all():
            return rows
        moved = LogRows(rows.table, split_moves(rows.batch, codes, self._movable), rows.ordinals)
        for number, chunk in enumerate(self._open.values()):
            held = take(moved, codes == HOLD + number)
            if held is not None:
                chunk.rows.hold(held)
        if self._ring_s > 0:
            dropped = take(moved, codes == DROP)
            if dropped is not None:
                self.dropped.trim(now_s=now_s)
                self.dropped.add((dropped,), now_s=now_s)
        emitted = take(moved, codes == EMIT)
        if emitted is not None:
            self.removals.note(emitted)
        return emitted

    def awaits(self, rows: LogRows) -> list[bool]:
        """Return for each row whether its chunk is unopened and will contain it."""
        if isinstance(self.state, AsOf):
            return [True] * rows.batch.num_rows
        awaited: list[bool] = (self._codes(rows) == DROP).tolist()
        return awaited

    def advance(self, ordinal: int, *, now_s: float, barred: bool) -> list[Decision]:
        """Decide every closed chunk whose reading the log has passed; see `HandOff.advance`."""
        decisions: list[Decision] = []
        state = self.state
        stands = isinstance(state, AsOf) and (barred or state.lost is not None)
        for chunk in list(self._open.values()):
            at = chunk.decided_at
            if at is not None and not self.removals.keep_chunks_waiting and (at <= ordinal or stands):
                decisions.append(self._decide(chunk, now_s))
        return decisions

    def _decide(self, chunk: HeldChunk, now_s: float) -> Decision:
        state = self.state
        if isinstance(state, AsOf) and state.lost is not None and not isinstance(chunk.state, SelectMismatched):
            self.void(chunk, now_s=now_s)
            return RetryChunkRequest(chunk.split, "the table was another one for a later chunk")
        decision = chunk.decide(foldable=state.snapshot.foldable, movable=bool(self._movable))
        match decision:
            case RetryChunkRequest():
                self.void(chunk, now_s=now_s)
            case PublishChunkRequest():
                del self._open[chunk.split.split_id]
                if chunk.interval is not None:
                    self._closed.add(chunk.interval)
                closed = tuple((interval.lower_raw, interval.upper_raw) for interval in self._closed)
                null_closed = state.snapshot.null_closed or chunk.split.includes_null
                self._table_states.published(self._table, closed, null_closed=null_closed)
                self._index = None
            case FoldChunkRequest():
                pass  # The reader closes it again after folding.
            case _:
                assert_never(decision)
        return decision

    def _let_go(self, chunk: HeldChunk, now_s: float) -> None:
        """Treat the chunk's keys as unopened from now on."""
        self._index = None
        held = chunk.let_go()
        if self._ring_s > 0:
            # The held rows are dropped now. Like other dropped rows, they may be invisible to the next SELECT, so they
            # are remembered. Rows that were recalled from the dropped rows are still remembered, or have become visible
            # meanwhile.
            self.dropped.add(held.newest, now_s=now_s)
            if held.spilled:
                # Rows on disk are not read back: the next SELECT waits until they are visible.
                self.dropped.lose(now_s=now_s)
        held.clear()

    def _interval(self, lower: Any, upper: Any) -> Interval:
        first, end = (None if raw is None else self._order.bound(self._table, raw) for raw in (lower, upper))
        return Interval(first, end, lower, upper)

    def _key_index(self) -> KeyIndex:
        if self._index is None:
            self._index = KeyIndex.of(self._closed, self._open, null_closed=self.state.snapshot.null_closed)
        return self._index

    def _codes(self, rows: LogRows) -> np.ndarray:
        return self._key_index().judge(rows, self.state.snapshot.key, self._order)
