"""Assigns many unbounded splits (partitions) to readers, takes them back, and moves them to balance the readers. Used
by enumerators. It is pure, except for calls to its context. A split has at most one owner at any time, even after a
crash:

| a split is | next |
|---|---|
| waiting | it is given to the reader with the fewest splits, as soon as there is one |
| owned | its state is sealed with each epoch; it waits again when `back` reports that the coordinator has it |
| moving | it was asked back from an overloaded reader; owned until it is `back`, then given to its target |

A reader is overloaded if its splits bring more bytes than those of other readers at two checks in a row. If readers do
not report bytes, a reader is overloaded if it has two partitions more than another reader. A split that is asked back
is released at the reader's next seal (`raycdc.source.partitions.partition_source_reader`), so the new owner continues
exactly after the old owner's rows. Assignments are not stored: after a restart every split waits for a reader.

The load of a partition is its present bytes per second, plus its backlog divided by `DRAIN_S`. A partition without load
counts a little, so that such partitions are divided among the readers, too. If a partition brings more than all other
partitions of its reader together, it stays and the others are moved, so that it gets a reader of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from raycdc.source.protocol.api import SplitEnumeratorContext
from raycdc.source.protocol.metrics import SplitLoad
from raycdc.source.split import PartitionSplit

#: The time within which a backlog should be read.
DRAIN_S = 60.0
#: If all partitions together have less load than this, they are distributed by their number.
LEAST_BYTES_PER_S = 256 << 10
#: The share of the mean load that each partition counts at least.
EACH = 0.02
#: A reader is overloaded if its load exceeds the mean by this fraction, and a move can help. A move is made only if the
#: load of the receiving reader then stays below the previous load of the giving reader by this fraction.
GAIN = 0.1
#: The interval of load checks, in seconds: a few of the windows over which readers report loads, independent of the
#: epoch interval.
POLL_EVERY_S = 10.0
#: The maximum number of moves in one round; each move costs a seal and a new fetch.
MOVES_MAX = 64


def weights(loads: Mapping[str, SplitLoad]) -> dict[str, float]:
    """Return the load of each partition in bytes per second; empty if their sum is negligible."""
    brought = {split_id: load.bytes_per_s + load.backlog_bytes / DRAIN_S for split_id, load in loads.items()}
    total = sum(brought.values())
    if total < LEAST_BYTES_PER_S:
        return {}
    each = EACH * total / len(brought)
    return {split_id: weight + each for split_id, weight in brought.items()}


def overloaded(owned: Mapping[int, Collection[str]], weight: Mapping[str, float]) -> set[int]:
    """Return the readers whose load exceeds the mean, and which have more than one partition."""
    load = {reader: sum(weight.get(name, 0.0) for name in names) for reader, names in owned.items()}
    mean = sum(load.values()) / max(1, len(load))
    readers = set()
    for reader, names in owned.items():
        largest = max((weight.get(name, 0.0) for name in names), default=0.0)
        if load[reader] > (1 + 2 * GAIN) * mean and load[reader] - largest > GAIN * load[reader]:
            readers.add(reader)
    return readers


def moves_by_load(
    owned: Mapping[int, Collection[str]], weight: Mapping[str, float], givers: Collection[int]
) -> dict[str, tuple[int, int]]:
    """Return the partitions to move (split → from, to) from the readers `givers`. Each goes to the reader that then has
    the least load. The largest partitions that fit are moved first. A giver keeps at least one partition.
    """
    splits = {reader: sorted(names, key=lambda name: (weight.get(name, 0.0), name)) for reader, names in owned.items()}
    load = {reader: sum(weight.get(name, 0.0) for name in names) for reader, names in splits.items()}
    receivers = [(load[reader], reader) for reader in load]
    heapify(receivers)
    mean = sum(load.values()) / max(1, len(load))
    moved: dict[str, tuple[int, int]] = {}
    for giver in sorted(givers, key=lambda reader: -load[reader]):
        for name in reversed(splits[giver][:]):
            while receivers[0][0] != load[receivers[0][1]]:
                heapreplace(receivers, (load[receivers[0][1]], receivers[0][1]))
            least, receiver = receivers[0]
            alone = len(splits[giver]) < 2 or load[giver] <= mean or len(moved) >= MOVES_MAX
            if alone or receiver == giver:
                break
            if least + weight.get(name, 0.0) > (1 - GAIN) * load[giver]:
                continue
            splits[giver].remove(name)
            load[giver] -= weight.get(name, 0.0)
            load[receiver] += weight.get(name, 0.0)
            moved[name] = (giver, receiver)
    return moved


class LoadPoll:
    """The times of load checks, and the readers that were overloaded at the last check. Owned by an assigner."""

    def __init__(self) -> None:
        self._polled_s: float | None = None
        self._before: set[int] = set()
        #: True if the partitions had any load at the last check.
        self.known = False

    def is_due(self, now_s: float) -> bool:
        """Return True if a load check is due, and count it as made. Checks are rare, because each goes through all
        readers.
        """
        if self._polled_s is None:
            self._polled_s = now_s
        if now_s - self._polled_s < POLL_EVERY_S:
            return False
        self._polled_s = now_s
        return True

    def lasting(self, now: set[int], *, polls: bool) -> set[int]:
        """Return the readers of `now` that were also overloaded at the last check; all if this is no regular check."""
        if not polls:
            return now
        still, self._before = now & self._before, now
        return still


class PartitionAssigner:
    """Assigns partitions to readers; see the module's docstring. `split_of` returns the split to send, with its last
    sealed state.
    """

    def __init__(self, context: SplitEnumeratorContext, split_of: Callable[[str], PartitionSplit]) -> None:
        self._context = context
        self._split_of = split_of
        self._waiting: set[str] = set()
        self._owners: dict[str, int] = {}
        self._moving: dict[str, int] = {}
        #: The readers among which the splits are balanced; None if a split was given, taken back or forgotten since the
        #: last balancing.
        self._balanced: Sequence[int] | None = None
        self._loads = LoadPoll()

    def __repr__(self) -> str:
        return f"PartitionAssigner(waiting={sorted(self._waiting)}, owners={self._owners}, moving={self._moving})"

    @property
    def waiting(self) -> frozenset[str]:
        """Return the splits without a reader."""
        return frozenset(self._waiting)

    def add(self, split_ids: Iterable[str]) -> None:
        """Add new splits, or the splits of a restored state."""
        self._waiting.update(s for s in split_ids if s not in self._owners)
        self.give()

    def back(self, split_ids: Iterable[str]) -> None:
        """Take back splits whose reader was lost, or which a reader released at a seal."""
        for split_id in split_ids:
            self._owners.pop(split_id, None)
            self._waiting.add(split_id)
            self._balanced = None
        self.give()

    def forget(self, split_ids: Iterable[str]) -> None:
        """Remove splits that no longer have to be read."""
        for split_id in split_ids:
            self._waiting.discard(split_id)
            self._moving.pop(split_id, None)
            if self._owners.pop(split_id, None) is not None:
                self._balanced = None

    def give(self) -> None:
        """Assign the waiting splits; a moved split goes to its new reader, if that is still registered."""
        readers = self._context.registered_readers()
        if not readers or not self._waiting:
            return
        self._balanced = None
        there = set(readers)
        aimed = {s: self._moving[s] for s in self._waiting if self._moving.get(s) in there}
        given = distribute(self._waiting - set(aimed), self._load(readers, aimed))
        for split_id, reader in aimed.items():
            given.setdefault(reader, []).append(split_id)
        for reader, split_ids in given.items():
            for split_id in split_ids:
                self._owners[split_id] = reader
                self._waiting.discard(split_id)
                self._moving.pop(split_id, None)
            self._context.assign_splits({reader: [self._split_of(split_id) for split_id in sorted(split_ids)]})

    def balance(self) -> None:
        """Ask overloaded readers to give splits back.

        Called when a reader was added, and at seals.

        A round begins only after all moves of the previous round have arrived. Otherwise the same splits would be moved
        back and forth.
        """
        if any(split_id in self._owners for split_id in self._moving):
            return
        self._moving.clear()
        readers = self._context.registered_readers()
        polls = self._loads.is_due(self._context.now_s)
        if readers == self._balanced and not polls:
            return
        # Only a new reader, or an uneven number of splits, is balanced with the last known loads.
        weight = weights(self._context.split_loads()) if polls or self._loads.known else {}
        self._loads.known = bool(weight)
        load = self._load(readers, {})
        if weight:
            found = moves_by_load(load, weight, self._loads.lasting(overloaded(load, weight), polls=polls))
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


def distribute(splits: Iterable[str], load: Mapping[int, Collection[str]]) -> dict[int, list[str]]:
    """Distribute `splits` to the readers of `load` (reader → its splits). Each goes to the reader that has the fewest
    then.
    """
    counts = [(len(owned), reader) for reader, owned in load.items()]
    heapify(counts)
    placed: dict[int, list[str]] = {}
    for split_id in sorted(splits):
        count, reader = counts[0]
        placed.setdefault(reader, []).append(split_id)
        heapreplace(counts, (count + 1, reader))
    return placed


def moves(load: Mapping[int, Collection[str]]) -> dict[str, tuple[int, int]]:
    """Return the fewest moves (split → from, to) after which no reader has two splits more than another. The reader
    with the most splits gives one to the reader with the fewest, until their numbers differ by less than two. Until
    then, a reader that gave a split never becomes the one with the fewest, and a reader that got a split never becomes
    the one with the most, so two heaps are enough.
    """
    givers = [(-len(splits), reader) for reader, splits in load.items()]
    receivers = [(len(splits), reader) for reader, splits in load.items()]
    heapify(givers)
    heapify(receivers)
    left: dict[int, list[str]] = {}
    moved: dict[str, tuple[int, int]] = {}
    while givers and -givers[0][0] - receivers[0][0] >= 2:
        most, giver = -givers[0][0], givers[0][1]
        fewest, receiver = receivers[0]
        if giver not in left:
            left[giver] = sorted(load[giver])
        moved[left[giver].pop()] = (giver, receiver)
        heapreplace(givers, (1 - most, giver))
        heapreplace(receivers, (fewest + 1, receiver))
    return moved


#: The length of a window. Rates are those of the last complete window.
WINDOW_S = 5.0


@dataclass(slots=True)
class _Count:
    bytes: int = 0
    records: int = 0
    #: The figures of the previous window.
    bytes_per_s: float = 0.0
    bytes_per_record: float = 0.0


class SplitRates:
    """Counts the fetched bytes and records of each split. Owned by the reader's thread."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._began_s = now_s()
        self._counts: dict[str, _Count] = {}
        #: The splits whose loads were reported last.
        self._reported: set[str] | None = None

    def fetched(self, split_id: str, *, size: int, records: int) -> None:
        """Count a fetch of the split."""
        count = self._counts.setdefault(split_id, _Count())
        count.bytes += size
        count.records += records

    def forget(self, split_id: str) -> None:
        """Forget a split that another reader has taken over."""
        self._counts.pop(split_id, None)

    def loads(self, pending: Mapping[str, int | None]) -> dict[str, SplitLoad] | None:
        """Return the load of each split, with its `pending` records (None: unknown).

        Returns None if nothing has changed in this window.
        """
        passed_s = self._now_s() - self._began_s
        if passed_s >= WINDOW_S:
            self._began_s += passed_s
            for count in self._counts.values():
                count.bytes_per_s = count.bytes / passed_s
                if count.records:
                    count.bytes_per_record = count.bytes / count.records
                count.bytes = count.records = 0
        elif set(pending) == self._reported:
            return None
        self._reported = set(pending)
        loads = {}
        for split_id, records in pending.items():
            count = self._counts.get(split_id, _Count())
            loads[split_id] = SplitLoad(round(count.bytes_per_s, 1), round((records or 0) * count.bytes_per_record, 1))
        return loads
