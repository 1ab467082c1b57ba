"""A reader of many logs with a position each, such as partitions of topics, or growing files.

A connector gives it a `FetcherManager`, which reads the splits, and a `RecordEmitter`, which puts each fetch into the
open epoch and advances the state of its split. The reader seals states and rows together, so the position in a split's
reported state is exactly the position after its rows in sealed epochs.

`RemoveSplits` takes effect at the reader's next cut. Rows of the split that were read before the cut are mixed with
rows of other splits in the segments of the epoch, so they must be part of the state that is reported with this epoch.
The reader sends `SplitsRemoved` after that report. For a split that it does not have, it sends `SplitsRemoved`
immediately. The message may be repeated, or lost with the reader; in each case the next owner continues from a sealed
position.

If the intended owner died, the next owner may be the same reader. Some fetches from before the removal may then still
be in its queue, while others were dropped, so the queue has a gap. Each addition of a split therefore has a number, and
fetchers mark their fetches with it. Only fetches with the current number are `read`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from raycdc.errors import ProtocolError
from raycdc.source.protocol.metrics import ReaderMetrics
from raycdc.source.protocol.source_event import Message, SplitsAdded, SplitsRemoved
from raycdc.source.reader.fetcher_manager import FetcherManager
from raycdc.source.reader.source_reader_base import ReaderCheckpoint, ReaderContext, SealState, SourceReaderBase
from raycdc.source.reader.split_reader import FetchedSplit, RecordEmitter, SplitRecords
from raycdc.source.split import PartitionSplit, SourceSplit
from raycdc.state.opaque import SealedSplit

S = TypeVar("S")


class PartitionSet(Generic[S]):
    """The splits of a reader, each with a mutable state that belongs to the reader. `open_split` makes this state from
    a split and the number of its addition. `state_of` returns the state in the form that is sealed.
    """

    def __init__(
        self,
        send: Callable[[Message], None],
        *,
        open_split: Callable[[PartitionSplit, int], S],
        state_of: Callable[[S], SealedSplit],
        close_split: Callable[[S], None],
    ) -> None:
        self._send = send
        self._open = open_split
        self._state_of = state_of
        self._close = close_split
        self._splits: dict[str, S] = {}
        self._leaving: set[str] = set()
        self._additions = 0
        self._numbers: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"PartitionSet({sorted(self._splits)}, leaving={sorted(self._leaving)})"

    def __len__(self) -> int:
        return len(self._splits)

    def __contains__(self, split_id: str) -> bool:
        return split_id in self._splits

    def active(self) -> Iterator[tuple[str, S]]:
        """Return the splits to read: those that are not asked back."""
        return ((s, split) for s, split in self._splits.items() if s not in self._leaving)

    def read(self, split_id: str, addition: int) -> S | None:
        """Return the split that a fetch for this `addition` belongs to; None if the fetch is to be dropped."""
        if split_id in self._leaving or self._numbers.get(split_id) != addition:
            return None
        return self._splits.get(split_id)

    @property
    def wants_seal(self) -> bool:
        """Return True if the coordinator has asked a split back, which is released at a cut."""
        return bool(self._leaving)

    def add(self, splits: Sequence[SourceSplit]) -> None:
        """Take over the splits of an `AddSplits` message."""
        for split in splits:
            if not isinstance(split, PartitionSplit):
                raise ProtocolError(f"{split.split_id} is not a partition")
            if split.split_id in self._splits:
                raise ProtocolError(f"{split.split_id} was given to its own reader")
            self._additions += 1
            self._splits[split.split_id] = self._open(split, self._additions)
            self._numbers[split.split_id] = self._additions
        self._send(SplitsAdded(tuple(split.split_id for split in splits)))

    def remove(self, split_ids: Sequence[str]) -> None:
        """Stop reading the splits of a `RemoveSplits` message."""
        unknown = [split_id for split_id in split_ids if split_id not in self._splits]
        self._leaving.update(split_id for split_id in split_ids if split_id in self._splits)
        if unknown:
            self._send(SplitsRemoved(dict.fromkeys(unknown)))

    def states(self) -> dict[str, SealedSplit]:
        """Return the states for `EpochSealed`, including released splits, whose rows are in this epoch."""
        return {split_id: self._state_of(split) for split_id, split in self._splits.items()}

    def after_cut(self) -> None:
        """Release the splits that leave, after the report of the cut was sent."""
        if not self._leaving:
            return
        states = {split_id: self._state_of(self._splits[split_id]) for split_id in sorted(self._leaving)}
        for split_id in self._leaving:
            del self._numbers[split_id]
            self._close(self._splits.pop(split_id))
        self._leaving.clear()
        self._send(SplitsRemoved(states))


class SplitState(Protocol):
    """The mutable state of a split in its reader. The emitter updates it."""

    @property
    def split_id(self) -> str: ...

    @property
    def ended(self) -> bool:
        """Return True if everything before the split's end was emitted; False for a split without an end."""

    def sealed(self) -> SealedSplit:
        """Return the state as manifests have it, and as a later `PartitionSplit` brings it back."""


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
        """Make a reader. Without an `emitter`, the connector's subclass must override `emit`."""
        super().__init__(context)
        self.fetchers = fetchers
        self.splits: PartitionSet[StateT] = PartitionSet(
            context.send,
            open_split=self._open,
            state_of=lambda state: state.sealed(),
            close_split=self._close,
        )
        #: `dirty`: rows were emitted since the last cut. `wants_seal`: the next cut should come soon.
        self.dirty = False
        self.wants_seal = False
        self._emitter = emitter
        self._fetched: deque[SplitRecords[ItemT]] = deque()
        self._ended: set[str] = set()
        #: The number of the addition by which the reader got each split.
        self._additions: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(epoch={self.epoch}, {self.splits!r}, dirty={self.dirty})"

    @abstractmethod
    def initialized_state(self, split: PartitionSplit) -> StateT:
        """Return the state of a split that this reader takes over."""

    @abstractmethod
    def to_fetch(self, state: StateT) -> Sequence[SplitT]:
        """Return the splits that the fetchers read now, from the state on; empty while there is nothing to read yet."""

    def emit(self, batch: ItemT, state: StateT) -> None:
        """Emit a batch of a split that this reader has and that did not end."""
        assert self._emitter is not None, "a reader without an emitter emits by itself"
        self._emitter.emit_record(batch, self.context.output, state)
        self.dirty = True
        self.note_end(state)

    def split_done(self, state: StateT) -> None:
        """Called when nothing more of the split will be emitted, because it has ended or another reader has it."""

    def metrics(self) -> ReaderMetrics:
        return ReaderMetrics()

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        self.splits.add(splits)

    def remove_splits(self, split_ids: Sequence[str]) -> None:
        self.splits.remove(split_ids)
        self.fetchers.remove_splits(split_ids)

    def work(self) -> bool:
        """Emit one batch of one split."""
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

    def report(self) -> ReaderCheckpoint:
        return ReaderCheckpoint(splits=self.splits.states())

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
        """Have the fetchers read what `to_fetch` returns now.

        Does nothing for a split that this reader does not have.
        """
        addition = self._additions.get(split_id, 0)
        state = self.splits.read(split_id, addition)
        if state is not None and not state.ended:
            self.fetchers.add_splits(self.to_fetch(state), addition=addition)

    def note_end(self, state: StateT) -> None:
        """Stop reading the split if the emitted batch was its last one, and request a seal of its end."""
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
