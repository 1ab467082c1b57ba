"""The unbounded splits one reader has, and how it lets go of them. For a reader of many splits to hold. Pure.

`RemoveSplits` takes effect at the reader's next cut: rows read until then are in the segments of the epoch being cut,
mixed with those of other splits, and belong to the state reported with it. Only behind that report the reader answers
`SplitsRemoved`; a split it does not have (any more) is answered at once. So the answer may be repeated or lost with the
reader, and the position the next owner goes on from is always a sealed one.

The next owner may be the last one: where the reader that was to have a split is gone, the split comes back, and what
was fetched of it before it left may still wait in a queue. Some of that was dropped meanwhile, so the rest lies beyond
a gap. Each addition therefore has a number, which fetchers put on what they fetch; only the current one's is `read`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from raycdc.checkpoint.opaque import SealedSplit
from raycdc.errors import ProtocolError
from raycdc.source.protocol.source_event import Message, SplitsAdded, SplitsRemoved
from raycdc.source.split import PartitionSplit, SourceSplit

S = TypeVar("S")


class PartitionSet(Generic[S]):
    """Splits with the reader's own mutable state of each, which `open_split` makes and `state_of` seals.

    `open_split` is given the number of the addition too.
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
        """The splits to read: those that nobody wants back."""
        return ((s, split) for s, split in self._splits.items() if s not in self._leaving)

    def read(self, split_id: str, addition: int) -> S | None:
        """The split that something fetched for this `addition` is of; None where it is to be dropped."""
        if split_id in self._leaving or self._numbers.get(split_id) != addition:
            return None
        return self._splits.get(split_id)

    @property
    def wants_seal(self) -> bool:
        """Whether somebody waits for a split of ours, which a cut sets free."""
        return bool(self._leaving)

    def add(self, splits: Sequence[SourceSplit]) -> None:
        """`AddSplits` arrived."""
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
        """`RemoveSplits` arrived: read nothing of them any more."""
        unknown = [split_id for split_id in split_ids if split_id not in self._splits]
        self._leaving.update(split_id for split_id in split_ids if split_id in self._splits)
        if unknown:
            self._send(SplitsRemoved(dict.fromkeys(unknown)))

    def states(self) -> dict[str, SealedSplit]:
        """For `EpochSealed`, leaving ones included: their rows are in this epoch."""
        return {split_id: self._state_of(split) for split_id, split in self._splits.items()}

    def after_cut(self) -> None:
        """The report of the cut was sent; what leaves is answered behind it."""
        if not self._leaving:
            return
        states = {split_id: self._state_of(self._splits[split_id]) for split_id in sorted(self._leaving)}
        for split_id in self._leaving:
            del self._numbers[split_id]
            self._close(self._splits.pop(split_id))
        self._leaving.clear()
        self._send(SplitsRemoved(states))
