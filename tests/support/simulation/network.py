"""Virtual time and a network that loses, repeats, reorders and delays packets.

Readers without threads: what blocks in production is stepped by the simulation, and polled.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Never

from raycdc.source.reader.fetcher_manager import ThreadingModel
from raycdc.source.reader.split_reader import SplitReader
from raycdc.source.snapshot.reader.reading import ChunkReader

#: The (subtask, incarnation) of a reader.
Address = tuple[int, int]


class SimulatedClock:
    """A clock whose time, in seconds, only moves when a test moves it."""

    def __init__(self) -> None:
        self.now_s = 1.0

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass(frozen=True, slots=True)
class Datagram:
    """A packet under way between the coordinator and the reader at `reader`; `began_s` is when the reader's call began,
    of its answer, too.
    """

    reader: Address
    to_coordinator: bool
    data: bytes
    began_s: float = 0.0


@dataclass(slots=True)
class FaultyNetwork:
    """The packets under way. `faults` is the probability of each kind of fault, per packet."""

    chance: random.Random
    faults: float
    under_way: list[Datagram] = field(default_factory=list)

    def send(self, datagram: Datagram) -> None:
        if self.chance.random() < self.faults:
            return
        self.under_way.append(datagram)
        if self.chance.random() < self.faults:
            self.under_way.append(datagram)

    def take(self) -> Datagram | None:
        """Return the next packet to arrive: mostly the oldest, sometimes any."""
        if not self.under_way:
            return None
        index = 0 if self.chance.random() > self.faults else self.chance.randrange(len(self.under_way))
        return self.under_way.pop(index)


class NoThreads:
    """Fetchers without threads, for `raycdc.source.reader.source_reader_base.FetcherThreads` in a simulation."""

    def start(self, open_reader: Callable[[], SplitReader[Any, Any]], *, name: str, threading: ThreadingModel) -> Never:
        raise AssertionError("simulated splits need no thread")

    def chunks(self, open_chunks: Callable[[], ChunkReader], *, threading: ThreadingModel) -> Never:
        raise AssertionError("simulated chunks need no thread")
