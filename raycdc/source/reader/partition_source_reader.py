"""A reader of many logs with a position each, such as partitions of topics or files that grow.

A connector gives it a `FetcherManager`, which reads the splits, and a `RecordEmitter`, which puts what was fetched into
the open epoch and moves the state of its split. The reader seals states and rows together: a split's state in a report
is behind exactly the rows of it that are in sealed epochs. A split that is taken away goes at the next cut
(`raycdc.source.partitions.partition_set`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from raycdc.checkpoint.opaque import SealedSplit
from raycdc.source.partitions.partition_set import PartitionSet
from raycdc.source.protocol.metrics import ReaderMetrics
from raycdc.source.reader.context import ReaderContext
from raycdc.source.reader.fetcher_manager import FetcherManager
from raycdc.source.reader.records import RecordEmitter, SplitRecords
from raycdc.source.reader.source_reader_base import ReaderReport, SealState, SourceReaderBase
from raycdc.source.reader.split_reader import FetchedSplit
from raycdc.source.split import PartitionSplit, SourceSplit


class SplitState(Protocol):
    """The reader's own mutable state of a split, which its emitter moves."""

    @property
    def split_id(self) -> str: ...

    @property
    def ended(self) -> bool:
        """Whether everything before the split's end was emitted; False for one without an end."""

    def sealed(self) -> SealedSplit:
        """The state as manifests keep it, and as a `PartitionSplit` has it again."""


SplitT = TypeVar("SplitT", bound=FetchedSplit)
ItemT = TypeVar("ItemT")
StateT = TypeVar("StateT", bound=SplitState)


class PartitionSourceReader(SourceReaderBase, Generic[SplitT, ItemT, StateT]):
    """See the module's docstring."""

    def __init__(
        self,
        context: ReaderContext,
        fetchers: FetcherManager[SplitT, ItemT],
        emitter: RecordEmitter[ItemT, StateT] | None = None,
    ) -> None:
        """Without an `emitter`, the connector's reader overrides `emit`."""
        super().__init__(context)
        self.fetchers = fetchers
        self.splits: PartitionSet[StateT] = PartitionSet(
            context.send,
            open_split=self._open,
            state_of=lambda state: state.sealed(),
            close_split=self._close,
        )
        #: Whether something was emitted since the last cut, and whether that should come soon.
        self.dirty = False
        self.wants_seal = False
        self._emitter = emitter
        self._fetched: deque[SplitRecords[ItemT]] = deque()
        self._ended: set[str] = set()
        #: The number of the addition by which the reader has each split.
        self._additions: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(epoch={self.epoch}, {self.splits!r}, dirty={self.dirty})"

    # -- what a connector says

    @abstractmethod
    def initialized_state(self, split: PartitionSplit) -> StateT:
        """The state to begin with."""

    @abstractmethod
    def to_fetch(self, state: StateT) -> Sequence[SplitT]:
        """The splits that the fetchers read now, from the state on; none where there is nothing to read yet."""

    def emit(self, batch: ItemT, state: StateT) -> None:
        """Emit a batch of a split that this reader has and that did not end."""
        assert self._emitter is not None, "a reader without an emitter emits by itself"
        self._emitter.emit_record(batch, self.context.output, state)
        self.dirty = True
        self.note_end(state)

    def split_done(self, state: StateT) -> None:
        """Nothing more of the split will be emitted: it has ended, or it is this reader's no more, or both."""

    def metrics(self) -> ReaderMetrics:
        return ReaderMetrics()

    # -- what the base asks

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        self.splits.add(splits)

    def remove_splits(self, split_ids: Sequence[str]) -> None:
        self.splits.remove(split_ids)
        self.fetchers.remove_splits(split_ids)

    def work(self) -> bool:
        """Take one batch of one split."""
        if self.context.output.open_bytes >= self.context.epoch_bytes_max:
            return False
        if not self._fetched:
            fetch = self.fetchers.poll()
            if fetch is None:
                return False
            self._fetched.extend(fetch.records)
        if self._fetched:
            part = self._fetched.popleft()
            state = self.splits.read(part.split_id, part.addition)
            if state is not None and not state.ended:
                self.emit(part.batch, state)
        return True

    def report(self) -> ReaderReport:
        return ReaderReport(splits=self.splits.states())

    def epoch_opened(self) -> None:
        self.dirty = self.wants_seal = False
        self.splits.after_cut()

    @property
    def seal_state(self) -> SealState:
        return SealState(wanted=self.wants_seal or self.splits.wants_seal, dirty=self.dirty)

    @property
    def end_of_input(self) -> bool:
        ended = len(self.splits) > 0 and all(state.ended for _, state in self.splits.active())
        return self.no_more_splits and ended and not self.dirty

    def close(self) -> None:
        self.fetchers.close()
        super().close()

    def fetch_more(self, split_id: str) -> None:
        """Have the fetchers read what `to_fetch` says now; nothing happens for a split that this reader has not."""
        addition = self._additions.get(split_id, 0)
        state = self.splits.read(split_id, addition)
        if state is not None and not state.ended:
            self.fetchers.add_splits(self.to_fetch(state), addition=addition)

    def note_end(self, state: StateT) -> None:
        """Stop reading the split if the emitted batch was its last one, and have that sealed."""
        if state.ended and state.split_id not in self._ended:
            self._ended.add(state.split_id)
            self.wants_seal = True
            self.split_done(state)
            self.fetchers.remove_splits((state.split_id,))

    def _open(self, split: PartitionSplit, addition: int) -> StateT:
        state = self.initialized_state(split)
        self._additions[split.split_id] = addition
        self.fetchers.add_splits(self.to_fetch(state), addition=addition)
        self.note_end(state)
        return state

    def _close(self, state: StateT) -> None:
        self._ended.discard(state.split_id)
        del self._additions[state.split_id]
        self.split_done(state)
