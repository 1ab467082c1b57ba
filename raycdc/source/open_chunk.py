"""One chunk while it is open: what is held for it, and what becomes of it once the log is past its reading.

The rules are `raycdc.source.hand_off`'s, which owns these; nothing here knows of other chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from raycdc.checkpoint.manifest import Segment
from raycdc.source.held_rows import HeldRows
from raycdc.source.intervals import Interval
from raycdc.source.log_rows import LogRows, behind, removes, up_to
from raycdc.source.split import SnapshotSplit

#: Times a chunk is read again because its rows changed meanwhile, before its table is parked.
RETRIES_MAX = 50


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
        if self._counts[split_id] <= RETRIES_MAX:
            return ""
        self.forget(retry.split)
        return (
            f"Rows of {table} (chunk {split_id}) were read {RETRIES_MAX} times and not once usable: {retry.reason}. "
            "Give the table a primary key, or wait until fewer of its rows change. Then read it anew with: "
            f"raycdc tables resnapshot CONFIG {table}"
        )


@dataclass(slots=True)
class OpenChunk:
    """Its keys are `interval`, but NULL (None: no others), and NULL where it `holds_null`."""

    split: SnapshotSplit
    interval: Interval | None
    holds_null: bool
    #: Dropped rows it was opened over, and rows held since.
    rows: HeldRows = field(default_factory=HeldRows)
    high: int | None = None
    #: Where the log ended after the SELECT.
    log_end: int = 0
    exact: bool = False
    segments: tuple[Segment, ...] = ()
    misfit: str = ""
    folding: bool = False

    def close(self, *, high: int, log_end: int, exact: bool, segments: Sequence[Segment]) -> None:
        """It was read, or folded."""
        self.high, self.log_end, self.segments = high, max(high, log_end), tuple(segments)
        self.exact = exact or self.folding
        self.folding = False

    def let_go(self) -> HeldRows:
        """It holds nothing from here on; what it held, for the caller to clear."""
        held, self.rows = self.rows, HeldRows()
        self.interval, self.holds_null = None, False
        return held

    @property
    def is_read(self) -> bool:
        """Whether it was closed, and its reader does not have it again."""
        return self.high is not None and not self.folding

    def decide(self, *, foldable: bool, movable: bool) -> Decision:
        """What becomes of it, now that the log is past its reading."""
        assert self.high is not None
        high = self.high
        early = next(up_to(self.rows, high), None) is not None
        if early and not self.exact and not foldable:
            return RetryChunk(
                self.split, "rows changed while a table without primary key was read, and cannot be matched to them"
            )
        if movable and any(removes(rows) for rows in behind(self.rows, high)):
            return RetryChunk(self.split, "a row left the chunk before it was published")
        if early and not self.exact:
            self.folding = True
            return FoldChunk(self.split, _as_needed(self.rows, up_to(self.rows, high)))
        return PublishChunk(self.split, self.segments, _as_needed(self.rows, _released(self.rows, high)))


def _released(rows: HeldRows, high: int) -> Iterator[LogRows]:
    yield from behind(rows, high)
    rows.clear()


def _as_needed(rows: HeldRows, parts: Iterator[LogRows]) -> Iterable[LogRows]:
    """At once where all is in memory; else one after the other, so that it never is."""
    return parts if rows.spilled else tuple(parts)
