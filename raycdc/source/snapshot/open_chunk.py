"""One chunk while it is open: what is held for it, and what becomes of it once the log is past its reading.

The rules are `raycdc.source.snapshot.hand_off`'s, which owns these; nothing here knows of other chunks. An open chunk
is in one of four states, and `CHUNK_TRANSITIONS` says what may follow which:

| state | means |
|---|---|
| `Held` | its SELECT is on its way |
| `Read` | it was read, or folded; once the log is past its reading, it is published, folded, or read again |
| `Folding` | its reader folds what was held up to H into its rows, and closes it again |
| `Misfit` | its SELECT found another table; it is read again once the log has said why |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from raycdc.checkpoint.manifest import Segment
from raycdc.source.snapshot.held_rows import HeldRows
from raycdc.source.snapshot.intervals import Interval
from raycdc.source.snapshot.log_rows import LogRows, behind, removes, up_to
from raycdc.source.split import SnapshotSplit

#: Times a chunk is read again because its rows changed meanwhile, before its table is parked.
RETRIES_MAX = 50
#: Times a chunk of a backfill is read for nothing before the backfill is over: its table goes on.
BACKFILL_RETRIES_MAX = 3


@dataclass(frozen=True, slots=True)
class PublishChunk:
    """The chunk's `segments` go out now, then `released`, in order and once; from here its keys are emitted."""

    split: SnapshotSplit
    segments: tuple[Segment, ...]
    released: Iterable[LogRows]


@dataclass(frozen=True, slots=True)
class FoldChunk:
    """The chunk's reader must fold `delta` (held rows up to H, in log order) into its rows and close again."""

    split: SnapshotSplit
    delta: Iterable[LogRows]


@dataclass(frozen=True, slots=True)
class RetryChunk:
    """The chunk cannot be used and must be read again; it is unopened from here on."""

    split: SnapshotSplit
    reason: str


Decision = PublishChunk | FoldChunk | RetryChunk


class Retries:
    """How often chunks were read for nothing, with their readers alive."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def forget(self, split: SnapshotSplit) -> None:
        del self._counts[split.split_id]

    def count(self, retry: RetryChunk) -> str:
        """Why the chunk's table is parked now, if it was read too often; else empty."""
        table, split_id = retry.split.table, retry.split.split_id
        self._counts[split_id] += 1
        if retry.split.again is not None:
            return retry.reason if self._counts[split_id] > BACKFILL_RETRIES_MAX else ""
        if self._counts[split_id] <= RETRIES_MAX:
            return ""
        self.forget(retry.split)
        return (
            f"Rows of {table} (chunk {split_id}) were read {RETRIES_MAX} times and not once usable: {retry.reason}. "
            "Give the table a primary key, or wait until fewer of its rows change. Then read it anew with: "
            f"raycdc tables resnapshot CONFIG {table}"
        )


@dataclass(frozen=True, slots=True)
class Held:
    """Its SELECT is on its way, so that nobody knows yet what it sees."""


@dataclass(frozen=True, slots=True)
class Read:
    """Its SELECT saw no row after `high` and no table after `log_end`; it saw exactly `high` if it is `exact`."""

    high: int
    log_end: int
    exact: bool
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Folding:
    """Its reader folds what was held up to H into its rows."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """Its SELECT found another table, and holds nothing; the log says why up to `high`."""

    high: int
    reason: str


ChunkState = Held | Read | Folding | Misfit

#: The states that may follow each state of an open chunk; from all of them it may be voided.
CHUNK_TRANSITIONS: Mapping[type[ChunkState], frozenset[type[ChunkState]]] = {
    Held: frozenset({Read, Misfit}),
    Read: frozenset({Folding}),
    Folding: frozenset({Read}),
    Misfit: frozenset(),
}


@dataclass(slots=True)
class OpenChunk:
    """Its keys are `interval`, but NULL (None: no others), and NULL where it `holds_null`."""

    split: SnapshotSplit
    interval: Interval | None
    holds_null: bool
    #: Dropped rows it was opened over, and rows held since.
    rows: HeldRows = field(default_factory=HeldRows)
    state: ChunkState = Held()

    def close(self, *, high: int, log_end: int, exact: bool, segments: Sequence[Segment]) -> None:
        """It was read, or folded."""
        folded = isinstance(self.state, Folding)
        self._become(Read(high, max(high, log_end), exact or folded, tuple(segments)))

    def misfit(self, *, high: int, reason: str) -> None:
        """It found another table; the caller has let go of its rows."""
        self._become(Misfit(high, reason))

    def let_go(self) -> HeldRows:
        """It holds nothing from here on; what it held, for the caller to clear."""
        held, self.rows = self.rows, HeldRows()
        self.interval, self.holds_null = None, False
        return held

    @property
    def decided_at(self) -> int | None:
        """The ordinal at which the log says all that matters to the chunk; None while its reader works at it."""
        match self.state:
            case Held() | Folding():
                return None
            case Read(log_end=log_end):
                return log_end
            case Misfit(high=high):
                return high
            case _:
                assert_never(self.state)

    def retry(self) -> RetryChunk | None:
        """The decision about a chunk that found another table; None for one that was read."""
        return RetryChunk(self.split, self.state.reason) if isinstance(self.state, Misfit) else None

    def fold(self, delta: Iterable[LogRows]) -> FoldChunk:
        """Its reader is to do with `delta` what folding means for it, and to close it again."""
        self._become(Folding())
        return FoldChunk(self.split, delta)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Of a chunk that was read."""
        assert isinstance(self.state, Read), f"{self.split.split_id} is {self.state} and was asked for its segments"
        return self.state.segments

    def decide(self, *, foldable: bool, movable: bool) -> Decision:
        """The decision about the chunk, now that the log is past its reading."""
        if (again := self.retry()) is not None:
            return again
        assert isinstance(self.state, Read), f"{self.split.split_id} is {self.state} and was decided about"
        high, exact = self.state.high, self.state.exact
        early = next(up_to(self.rows, high), None) is not None
        if early and not exact and not foldable:
            return RetryChunk(
                self.split, "rows changed while a table without primary key was read, and cannot be matched to them"
            )
        if movable and any(removes(rows) for rows in behind(self.rows, high)):
            return RetryChunk(self.split, "a row left the chunk before it was published")
        if early and not exact:
            return self.fold(as_needed(self.rows, up_to(self.rows, high)))
        return PublishChunk(self.split, self.state.segments, as_needed(self.rows, _released(self.rows, high)))

    def _become(self, state: ChunkState) -> None:
        allowed = CHUNK_TRANSITIONS[type(self.state)]
        assert type(state) in allowed, f"{self.split.split_id} is {self.state} and cannot become {state}"
        self.state = state


def _released(rows: HeldRows, high: int) -> Iterator[LogRows]:
    yield from behind(rows, high)
    rows.clear()


def as_needed(rows: HeldRows, parts: Iterator[LogRows]) -> Iterable[LogRows]:
    """At once where all is in memory; else one after the other, so that it never is."""
    return parts if rows.spilled else tuple(parts)
