"""Decides which requested chunks the log reader opens now, which ones wait, and which ones are refused."""

from __future__ import annotations

import math
from dataclasses import dataclass

from raycdc.source.snapshot.chunk_events import Fate
from raycdc.source.snapshot.handoff.hand_off import HandOff
from raycdc.source.snapshot.handoff.open_chunk import Retries
from raycdc.source.split import ChunkId, SnapshotSplit
from raycdc.source.tables.table_life import AsOf, Behind, CatchingUp, Dropped, InSnapshot, Parked, TableStates, Unknown


@dataclass(frozen=True, slots=True)
class OpeningRequest:
    """A request of a chunk's reader, made at `asked_s`, to open the chunk."""

    split: SnapshotSplit
    asked_s: float


@dataclass(frozen=True, slots=True)
class OpeningGranted:
    """The decision that the chunk is open. The hand-off holds log rows with the chunk's keys from here on."""


@dataclass(frozen=True, slots=True)
class OpeningDeferred:
    """The chunk will be opened later."""


@dataclass(frozen=True, slots=True)
class OpeningRefused:
    """The decision that the attempt at the chunk is over. `gives_up` is True if the chunk's table cannot be read at
    all.
    """

    reason: str
    fate: Fate
    gives_up: bool = False


Opening = OpeningGranted | OpeningDeferred | OpeningRefused


class ChunkOpenings:
    """Opens chunks, and remembers chunks that must wait. If the source does not report when a transaction becomes
    visible, chunks are opened only after the log reader has run for `ring_s`. Transactions from before its start are
    visible by then.
    """

    def __init__(self, table_states: TableStates, hand_off: HandOff, *, ring_s: float, now_s: float) -> None:
        self._table_states, self._hand_off = table_states, hand_off
        self.ring_s = ring_s
        #: How often chunks were opened and read without a result.
        self.retries = Retries()
        self._opens_from_s = now_s + ring_s
        #: Each with the time from which it may be opened; infinity if it waits for an event.
        self._waiting: list[tuple[OpeningRequest, float]] = []

    def withdraw(self, chunk: ChunkId) -> None:
        """Forget a waiting chunk, because its reader was lost."""
        self._waiting = [waiting for waiting in self._waiting if waiting[0].split.chunk_id != chunk]

    def take_due(self, *, now_s: float) -> list[OpeningRequest]:
        """Return requests that may now be granted, each once."""
        due, self._waiting = (self._waiting, []) if now_s >= self._opens_from_s else ([], self._waiting)
        return [request for request, _ in due]

    def next_due_s(self) -> float | None:
        """Return the earliest time from which a waiting chunk may be opened; None if no chunk waits for a time."""
        due_s = min((due_s for _, due_s in self._waiting), default=math.inf)
        return due_s if due_s < math.inf else None

    def ask(self, request: OpeningRequest, *, ordinal: int, now_s: float) -> Opening:
        """Decide if the chunk is opened now. The log reader is at `ordinal`, between two transactions."""
        split = request.split
        if split.again is not None:
            return self._ask_backfill(request, ordinal=ordinal, now_s=now_s)
        state = self._table_states[split.table]
        if not isinstance(state, Unknown | Parked) and state.incarnation < split.incarnation:
            # Incarnation numbers ascend. A table that was found in the log has the number 0.
            return OpeningRefused("the table was dropped, and another one has its name", Fate.TABLE_DROPPED)
        if not isinstance(state, Unknown) and (isinstance(state, Parked) or state.incarnation != split.incarnation):
            return OpeningRefused("the table begins again", Fate.NEXT_MANIFEST)
        if isinstance(state, AsOf) and state.lost is not None:
            if ordinal >= state.lost:
                why = (
                    f"{split.table} is no longer the table that it was when its snapshot began, and the log does not "
                    f"say what happened. Read it anew with: raycdc tables resnapshot CONFIG {split.table}"
                )
                return OpeningRefused(why, Fate.NEXT_MANIFEST, gives_up=True)
            return self._wait(request, due_s=math.inf)
        hopeless = self._hand_off.would_be_read_again(split.table, now_s=now_s)
        opens_from_s = max(self._opens_from_s, self._hand_off.opens_from_s(split.table))
        if hopeless:
            opens_from_s = max(opens_from_s, request.asked_s + self.ring_s)
        if now_s < opens_from_s:
            return self._wait(request, due_s=opens_from_s)
        if not self._hand_off.open(split, now_s=now_s, ordinal=ordinal):
            return OpeningRefused("the table was dropped", Fate.TABLE_DROPPED)
        return OpeningGranted()

    def _ask_backfill(self, request: OpeningRequest, *, ordinal: int, now_s: float) -> Opening:
        """Decide about the opening of a backfill's chunk (`raycdc.source.snapshot.rereading.backfill`).

        If the source does not report when a transaction becomes visible, the SELECT waits for `ring_s` after the
        opening.
        """
        split, state = request.split, self._table_states[request.split.table]
        if isinstance(state, Unknown | Dropped):
            return OpeningRefused("the table was dropped", Fate.BACKFILL_OVER)
        if isinstance(state, Parked):
            return OpeningRefused(f"the table is {state.word}: {state.reason}", Fate.BACKFILL_OVER)
        if state.incarnation != split.incarnation:
            return OpeningRefused("the table began again, which reads all of it", Fate.BACKFILL_OVER)
        if isinstance(state, InSnapshot | AsOf | CatchingUp) or (isinstance(state, Behind) and ordinal < state.at):
            return self._wait(request, due_s=math.inf)
        visible_s = request.asked_s + self.ring_s
        if now_s > request.asked_s and self.ring_s and self._hand_off.backfills.attempt(split.chunk_id) is None:
            return OpeningRefused("the table's schema changed while the chunk waited", Fate.READ_AGAIN)
        self._hand_off.open(split, now_s=now_s, ordinal=ordinal)
        return OpeningGranted() if now_s >= visible_s else self._wait(request, due_s=visible_s)

    def _wait(self, request: OpeningRequest, *, due_s: float) -> OpeningDeferred:
        self._waiting.append((request, due_s))
        return OpeningDeferred()
