"""Which partitions go from an overloaded reader to one with less to do, by what each of them brings. Pure.

The load of a partition is what its reader does for it: the bytes that it brings now, and its backlog, as if that were
to be read within `DRAIN_S`. Partitions without any count a little, so that they are shared out as well. A partition
that brings more than its reader's others together keeps the reader, and the others go: a hot one gets a reader of its
own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from heapq import heapify, heapreplace

from raycdc.source.protocol.metrics import SplitLoad

#: The time in which a backlog should be gone.
DRAIN_S = 60.0
#: Below this all partitions together are no work: they are shared out by their number.
LEAST_BYTES_PER_S = 256 << 10
#: Part of the mean load that each partition counts in any case.
EACH = 0.02
#: A reader is overloaded that has so much more than the mean, and can give so much of it away; a move is made only
#: where the one that takes has so much less afterwards than the one that gives had.
GAIN = 0.1
#: How often loads are looked at: a few of the windows of which readers tell them, however often epochs are sealed.
LOOK_EVERY_S = 10.0
#: Most moves of one round; each costs a seal and a new fetch.
MOVES_MAX = 64


def weights(loads: Mapping[str, SplitLoad]) -> dict[str, float]:
    """Each partition's load, in bytes per second; empty where they are no work."""
    brought = {split_id: load.bytes_per_s + load.backlog_bytes / DRAIN_S for split_id, load in loads.items()}
    total = sum(brought.values())
    if total < LEAST_BYTES_PER_S:
        return {}
    each = EACH * total / len(brought)
    return {split_id: weight + each for split_id, weight in brought.items()}


def overloaded(owned: Mapping[int, Collection[str]], weight: Mapping[str, float]) -> set[int]:
    """Readers that have more than the mean, and more than one partition to give."""
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
    """Partitions to move (split → from, to) from `givers`, each to whoever has the least to do then.

    Of a giver the largest that fit go first, and never its last.
    """
    splits = {reader: sorted(names, key=lambda name: (weight.get(name, 0.0), name)) for reader, names in owned.items()}
    load = {reader: sum(weight.get(name, 0.0) for name in names) for reader, names in splits.items()}
    takers = [(load[reader], reader) for reader in load]
    heapify(takers)
    mean = sum(load.values()) / max(1, len(load))
    moved: dict[str, tuple[int, int]] = {}
    for giver in sorted(givers, key=lambda reader: -load[reader]):
        for name in reversed(splits[giver][:]):
            while takers[0][0] != load[takers[0][1]]:
                heapreplace(takers, (load[takers[0][1]], takers[0][1]))
            least, taker = takers[0]
            alone = len(splits[giver]) < 2 or load[giver] <= mean or len(moved) >= MOVES_MAX
            if alone or taker == giver:
                break
            if least + weight.get(name, 0.0) > (1 - GAIN) * load[giver]:
                continue
            splits[giver].remove(name)
            load[giver] -= weight.get(name, 0.0)
            load[taker] += weight.get(name, 0.0)
            moved[name] = (giver, taker)
    return moved


class LoadLook:
    """When loads are looked at, and which readers were overloaded the last time. Held by an assigner."""

    def __init__(self) -> None:
        self._looked_s: float | None = None
        self._before: set[int] = set()
        #: Whether the partitions were some work at the last look.
        self.known = False

    def is_due(self, now_s: float) -> bool:
        """Now and then, because a look asks every reader. True says that it is made now."""
        if self._looked_s is None:
            self._looked_s = now_s
        if now_s - self._looked_s < LOOK_EVERY_S:
            return False
        self._looked_s = now_s
        return True

    def lasting(self, now: set[int], *, looks: bool) -> set[int]:
        """Of these those that were overloaded at the last look, too; all, where a reader came (no regular look)."""
        if not looks:
            return now
        still, self._before = now & self._before, now
        return still
