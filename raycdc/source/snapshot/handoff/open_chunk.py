"""One open chunk: its held rows, and the decision about it after the log reader has passed H and D.

`raycdc.source.snapshot.handoff.hand_off` has the rules, and owns the chunks. Chunks do not know of each other.
`CHUNK_TRANSITIONS` lists the allowed transitions between four states:

| state | meaning |
|---|---|
| `AwaitingSelect` | its SELECT has not finished |
| `Read` | it was read, or folded; once the log has passed H and D, it is published, folded, or read again |
| `Folding` | its reader folds the rows held up to H into its rows, and closes it again |
| `SelectMismatched` | its SELECT found another table; it is read again once the log has explained that |

The module also has the order of chunk keys, and an index that finds the chunk of a row in that order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, assert_never

import numpy as np
import pyarrow as pa

from raycdc.model import TableId
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.key_intervals import ChunkKey, Interval, SortKey, cells
from raycdc.source.snapshot.log.log_rows import HeldRows, LogRows, behind, key_values, removes, up_to
from raycdc.source.split import SnapshotSplit
from raycdc.state.manifests.manifest import Segment

#: How often a chunk is read again because its rows changed meanwhile, before its table is parked.
RETRIES_MAX = 50
#: After this many fruitless reads of one of its chunks, a backfill ends; its table goes on.
BACKFILL_RETRIES_MAX = 3


@dataclass(frozen=True, slots=True)
class PublishChunkRequest:
    """A decision to publish the chunk: its `segments` are emitted, then the `released` rows, in order and once. From
    now on, log rows with its keys are emitted.
    """

    split: SnapshotSplit
    segments: tuple[Segment, ...]
    released: Iterable[LogRows]


@dataclass(frozen=True, slots=True)
class FoldChunkRequest:
    """A decision to fold: the chunk's reader must fold `delta` (held rows up to H, in log order) into its rows and
    close the chunk again.
    """

    split: SnapshotSplit
    delta: Iterable[LogRows]


@dataclass(frozen=True, slots=True)
class RetryChunkRequest:
    """A decision to read the chunk again, because its rows cannot be used. From now on the chunk is unopened."""

    split: SnapshotSplit
    reason: str


Decision = PublishChunkRequest | FoldChunkRequest | RetryChunkRequest


class Retries:
    """Counts how often each chunk was read without a usable result although its reader was alive."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def forget(self, split: SnapshotSplit) -> None:
        del self._counts[split.split_id]

    def count(self, retry: RetryChunkRequest) -> str:
        """Return why the chunk's table is parked now, if it was read too often; otherwise an empty text."""
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
class AwaitingSelect:
    """The chunk's SELECT has not finished, so it is not known what the SELECT sees."""


@dataclass(frozen=True, slots=True)
class Read:
    """The SELECT saw no row after `high`, and no statement after `log_end` decided which table it read. If `exact` is
    True, it saw exactly the rows up to `high`.
    """

    high: int
    log_end: int
    exact: bool
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Folding:
    """The reader folds the rows held up to H into its rows."""


@dataclass(frozen=True, slots=True)
class SelectMismatched:
    """The SELECT found another table, so the chunk holds no rows. The log has the reason before `high`."""

    high: int
    reason: str


ChunkState = AwaitingSelect | Read | Folding | SelectMismatched

#: The states that may follow each state of an open chunk. In every state the chunk may be voided.
CHUNK_TRANSITIONS: Mapping[type[ChunkState], frozenset[type[ChunkState]]] = {
    AwaitingSelect: frozenset({Read, SelectMismatched}),
    Read: frozenset({Folding}),
    Folding: frozenset({Read}),
    SelectMismatched: frozenset(),
}


@dataclass(slots=True)
class HeldChunk:
    """An open chunk.

    Its keys are the keys in `interval` (None: no such keys). If `holds_null` is True, it also has the rows with NULL
    keys.
    """

    split: SnapshotSplit
    interval: Interval | None
    holds_null: bool
    #: Rows that were dropped before the chunk was opened and that it holds, and rows held since.
    rows: HeldRows = field(default_factory=HeldRows)
    state: ChunkState = AwaitingSelect()

    def close(self, *, high: int, log_end: int, exact: bool, segments: Sequence[Segment]) -> None:
        """Note that the chunk was read, or folded."""
        folded = isinstance(self.state, Folding)
        self._become(Read(high, max(high, log_end), exact or folded, tuple(segments)))

    def schema_mismatch(self, *, high: int, reason: str) -> None:
        """Record that the SELECT found another table. The caller has released the chunk's held rows."""
        self._become(SelectMismatched(high, reason))

    def let_go(self) -> HeldRows:
        """Stop holding rows, and return the held rows, which the caller clears."""
        held, self.rows = self.rows, HeldRows()
        self.interval, self.holds_null = None, False
        return held

    @property
    def decided_at(self) -> int | None:
        """Return the ordinal up to which the log must be read to decide about the chunk; None while its
        reader works.
        """
        match self.state:
            case AwaitingSelect() | Folding():
                return None
            case Read(log_end=log_end):
                return log_end
            case SelectMismatched(high=high):
                return high
            case _:
                assert_never(self.state)

    def retry(self) -> RetryChunkRequest | None:
        """Return the retry of a chunk that found another table; None for one that was read."""
        return RetryChunkRequest(self.split, self.state.reason) if isinstance(self.state, SelectMismatched) else None

    def fold(self, delta: Iterable[LogRows]) -> FoldChunkRequest:
        """Let the reader fold `delta` into the chunk, and close it again."""
        self._become(Folding())
        return FoldChunkRequest(self.split, delta)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Return the segments of a finished chunk."""
        assert isinstance(self.state, Read), f"{self.split.split_id} is {self.state} and was asked for its segments"
        return self.state.segments

    def decide(self, *, foldable: bool, movable: bool) -> Decision:
        """Return the decision about the chunk, after the log has passed H and D."""
        if (again := self.retry()) is not None:
            return again
        assert isinstance(self.state, Read), f"{self.split.split_id} is {self.state} and was decided about"
        high, exact = self.state.high, self.state.exact
        early = next(up_to(self.rows, high), None) is not None
        if early and not exact and not foldable:
            return RetryChunkRequest(
                self.split, "rows changed while a table without primary key was read, and cannot be matched to them"
            )
        if movable and any(removes(rows) for rows in behind(self.rows, high)):
            return RetryChunkRequest(self.split, "a row left the chunk before it was published")
        if early and not exact:
            return self.fold(as_needed(self.rows, up_to(self.rows, high)))
        return PublishChunkRequest(self.split, self.state.segments, as_needed(self.rows, _released(self.rows, high)))

    def _become(self, state: ChunkState) -> None:
        allowed = CHUNK_TRANSITIONS[type(self.state)]
        assert type(state) in allowed, f"{self.split.split_id} is {self.state} and cannot become {state}"
        self.state = state


def _released(rows: HeldRows, high: int) -> Iterator[LogRows]:
    yield from behind(rows, high)
    rows.clear()


def as_needed(rows: HeldRows, parts: Iterator[LogRows]) -> Iterable[LogRows]:
    """Return all parts if they are in memory; otherwise yield them one after the other to save memory."""
    return parts if rows.spilled else tuple(parts)


#: The judgement of a row. Numbers from `HOLD` on are `HOLD` plus the index of the open chunk.
DROP = 0
EMIT = 1
HOLD = 2


class KeyOrder(Protocol):
    """Orders chunk keys as the server orders them. May query the server, for collations of texts."""

    def use(self, table: TableId, key: ChunkKey | None, document: SchemaDocument) -> None:
        """Use `document` and the chunk key `key` for `table`, which is resnapshotted.

        Tables of the start are known without this call.
        """

    def forget(self, table: TableId) -> None:
        """Forget `table`, which is live or was dropped. Until it is resnapshotted, it is not passed to any method
        again.
        """

    def bound(self, table: TableId, raw: Any) -> SortKey:
        """Return the sort key of a chunk's bound."""

    def classify(self, table: TableId, keys: pa.Array, bounds: Sequence[SortKey]) -> np.ndarray:
        """Return for each key the number of `bounds` (ascending) that are ≤ it, or -1 for NULL; int64.

        Keys of several columns are a struct of them.
        """


@dataclass(frozen=True, slots=True, eq=False)
class KeyIndex:
    """The key range of one table, divided at every bound of a chunk, with the decision (drop, hold or emit) for each
    piece. Immutable: when a chunk is opened, released or published, a new index is built.
    """

    #: The open chunks by their index.
    split_ids: tuple[str, ...]
    bounds: Sequence[SortKey]
    #: The judgements of keys below the first bound, of keys from each bound on, and of NULL.
    codes: np.ndarray
    null_code: int

    @classmethod
    def of(cls, closed: Iterable[Interval], chunks: Mapping[str, HeldChunk], *, null_closed: bool) -> KeyIndex:
        """Return the index of the ranges that are `closed`, and of the open `chunks`."""
        layers = [(interval, EMIT) for interval in closed]
        numbered = list(enumerate(chunks.values()))
        layers += [(chunk.interval, HOLD + number) for number, chunk in numbered if chunk.interval is not None]
        bounds, codes = cells(layers, default=DROP)
        nulls = [HOLD + number for number, chunk in numbered if chunk.holds_null]
        null_code = nulls[0] if nulls else EMIT if null_closed else DROP
        return cls(tuple(chunks), bounds, np.array(codes, np.int64), null_code)

    def judge(self, rows: LogRows, key: ChunkKey | None, order: KeyOrder) -> np.ndarray:
        """Return for each row DROP, EMIT or HOLD + index of the open chunk."""
        if key is None:
            return np.full(rows.batch.num_rows, self.codes[0], np.int64)
        cell = order.classify(rows.table, key_values(rows.batch, key), self.bounds)
        judged: np.ndarray = np.where(cell < 0, self.null_code, self.codes[np.maximum(cell, 0)])
        return judged

    def code_of(self, split_id: str) -> int:
        """Return the judgement of rows that this open chunk holds."""
        return HOLD + self.split_ids.index(split_id)
