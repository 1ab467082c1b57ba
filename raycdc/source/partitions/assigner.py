"""Who reads which of many unbounded splits: given out, taken back, moved for balance. For an enumerator to hold.

Pure but for the context it acts through. A split has at most one owner at any time, whatever dies:

| a split is | then |
|---|---|
| waiting | given to the reader with the fewest, as soon as there is one |
| owned | its state is sealed with each epoch; waiting again when `back` says that the coordinator has it |
| moving | asked back from a reader with more to do than others; owned until it is `back`, then given to its target |

More to do means more bytes, where readers tell how many (`raycdc.source.partitions.loads`), for two looks in a row;
otherwise two more partitions.

Asking back takes effect at the reader's next seal (`raycdc.source.partitions.partition_set`), so a moved split goes on
exactly where the old owner's rows end. Nothing of this is state: after a restart every split simply waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import heapify, heapreplace

from raycdc.source.partitions.loads import LoadLook, moves_by_load, overloaded, weights
from raycdc.source.protocol.api import SplitEnumeratorContext
from raycdc.source.split import PartitionSplit


class PartitionAssigner:
    """See the module's docstring. `split_of` makes the split to send, in the state last sealed."""

    def __init__(self, context: SplitEnumeratorContext, split_of: Callable[[str], PartitionSplit]) -> None:
        self._context = context
        self._split_of = split_of
        self._waiting: set[str] = set()
        self._owners: dict[str, int] = {}
        self._moving: dict[str, int] = {}
        #: The readers among which the splits are balanced, unless one was given, taken or forgotten since.
        self._balanced: Sequence[int] | None = None
        self._loads = LoadLook()

    def __repr__(self) -> str:
        return f"PartitionAssigner(waiting={sorted(self._waiting)}, owners={self._owners}, moving={self._moving})"

    @property
    def waiting(self) -> frozenset[str]:
        """Splits that nobody reads."""
        return frozenset(self._waiting)

    def add(self, split_ids: Iterable[str]) -> None:
        """New splits, or those of a restored state."""
        self._waiting.update(s for s in split_ids if s not in self._owners)
        self.give()

    def back(self, split_ids: Iterable[str]) -> None:
        """The coordinator has these: their reader is gone, or let them go at a seal."""
        for split_id in split_ids:
            self._owners.pop(split_id, None)
            self._waiting.add(split_id)
            self._balanced = None
        self.give()

    def forget(self, split_ids: Iterable[str]) -> None:
        """Nobody needs to read these any more."""
        for split_id in split_ids:
            self._waiting.discard(split_id)
            self._moving.pop(split_id, None)
            if self._owners.pop(split_id, None) is not None:
                self._balanced = None

    def give(self) -> None:
        """Give what waits; a split that was moved to the reader it was taken for, if that is still there."""
        readers = self._context.registered_readers()
        if not readers or not self._waiting:
            return
        self._balanced = None
        there = set(readers)
        aimed = {s: self._moving[s] for s in self._waiting if self._moving.get(s) in there}
        given = place(self._waiting - set(aimed), self._load(readers, aimed))
        for split_id, reader in aimed.items():
            given.setdefault(reader, []).append(split_id)
        for reader, split_ids in given.items():
            for split_id in split_ids:
                self._owners[split_id] = reader
                self._waiting.discard(split_id)
                self._moving.pop(split_id, None)
            self._context.assign_splits({reader: [self._split_of(split_id) for split_id in sorted(split_ids)]})

    def balance(self) -> None:
        """Ask splits back from readers with more to do than others. Call it when a reader came, and at seals.

        One round at a time: who counts before the last move has arrived moves the same splits to and fro.
        """
        if any(split_id in self._owners for split_id in self._moving):
            return
        self._moving.clear()
        readers = self._context.registered_readers()
        looks = self._loads.is_due(self._context.now_s)
        if readers == self._balanced and not looks:
            return
        # Only a reader that came, or an uneven number, is balanced by what was told last.
        weight = weights(self._context.split_loads()) if looks or self._loads.known else {}
        self._loads.known = bool(weight)
        load = self._load(readers, {})
        if weight:
            found = moves_by_load(load, weight, self._loads.lasting(overloaded(load, weight), looks=looks))
        else:
            found = moves(load) if readers != self._balanced else {}
        self._balanced = readers
        for split_id, (source, target) in found.items():
            self._moving[split_id] = target
            self._context.remove_splits(source, [split_id])

    def _load(self, readers: Sequence[int], aimed: Mapping[str, int]) -> dict[int, list[str]]:
        load: dict[int, list[str]] = {reader: [] for reader in readers}
        for split_id, reader in (*self._owners.items(), *aimed.items()):
            if reader in load:
                load[reader].append(split_id)
        return load


def place(splits: Iterable[str], load: Mapping[int, Collection[str]]) -> dict[int, list[str]]:
    """Give `splits` to the readers of `load` (reader → splits it has), each to the one that has the fewest."""
    counts = [(len(owned), reader) for reader, owned in load.items()]
    heapify(counts)
    placed: dict[int, list[str]] = {}
    for split_id in sorted(splits):
        count, reader = counts[0]
        placed.setdefault(reader, []).append(split_id)
        heapreplace(counts, (count + 1, reader))
    return placed


def moves(load: Mapping[int, Collection[str]]) -> dict[str, tuple[int, int]]:
    """Splits to move (split → from, to) so that no reader has two more than another; the fewest that do.

    Whoever has the most gives to whoever has the fewest until they are less than two apart. A giver never has the
    fewest before that, and a taker never the most, so each is in a heap of its own.
    """
    givers = [(-len(splits), reader) for reader, splits in load.items()]
    takers = [(len(splits), reader) for reader, splits in load.items()]
    heapify(givers)
    heapify(takers)
    left: dict[int, list[str]] = {}
    moved: dict[str, tuple[int, int]] = {}
    while givers and -givers[0][0] - takers[0][0] >= 2:
        most, giver = -givers[0][0], givers[0][1]
        fewest, taker = takers[0]
        if giver not in left:
            left[giver] = sorted(load[giver])
        moved[left[giver].pop()] = (giver, taker)
        heapreplace(givers, (1 - most, giver))
        heapreplace(takers, (fewest + 1, taker))
    return moved
