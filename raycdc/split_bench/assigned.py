"""Assignments of partitions to readers, by the rules with which a job gives them out and moves them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from raycdc.source.partitions.assigner import place
from raycdc.source.partitions.loads import EACH, moves_by_load, overloaded


class Assignment(StrEnum):
    """How partitions come to readers: `NUMBER`, as a run gives them out, so that each has as many; `BYTES`, as it has
    moved them when it knows what each of them brings.
    """

    NUMBER = "number"
    BYTES = "bytes"

    def of(self, sizes: Mapping[str, int], readers: int) -> list[list[str]]:
        """The partitions of each reader; `sizes`: bytes of each."""
        placed = place(sizes, {reader: [] for reader in range(readers)})
        owned = {reader: placed.get(reader, []) for reader in range(readers)}
        if self is Assignment.BYTES:
            each = EACH * sum(sizes.values()) / max(1, len(sizes))
            weight = {name: size + each for name, size in sizes.items()}
            # Each round makes the most loaded reader less loaded, so that there are not more of them than partitions.
            for _ in sizes:
                moved = moves_by_load(owned, weight, overloaded(owned, weight))
                if not moved:
                    break
                for name, (giver, taker) in moved.items():
                    owned[giver].remove(name)
                    owned[taker].append(name)
        return [sorted(owned[reader]) for reader in range(readers)]


def longest_s(groups: Sequence[Sequence[str]], times_s: Mapping[str, float]) -> tuple[float, float]:
    """Seconds until the last reader is done, and the share of all readers' time in which they have nothing to do."""
    busy = [sum(times_s[name] for name in group) for group in groups]
    whole = max(busy, default=0.0)
    return whole, 1 - sum(busy) / (len(busy) * whole) if whole else 0.0
