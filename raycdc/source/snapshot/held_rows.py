"""Rows of the log that are held for one open chunk: the newest in memory, those before them in the spool.

How long a chunk is open is the server's matter, and how much is written meanwhile the users': memory must not depend on
it. Where all chunks together hold more than may be in memory (`HandOff`), the one that has most of it puts it down.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from raycdc.source.snapshot.log_rows import LogRows


class SpilledRows(Protocol):
    """Rows that were put down; they come back in their order, as often as wanted, a batch at a time."""

    def __iter__(self) -> Iterator[LogRows]: ...

    def delete(self) -> None:
        """They are not wanted any more; harmless when called again."""


#: Puts rows down.
Spill = Callable[[Sequence[LogRows]], SpilledRows]


class HeldRows:
    """In log order: what was recalled when the chunk was opened, what was put down since, and the newest."""

    def __init__(self) -> None:
        self.recalled: list[LogRows] = []
        self.spilled: list[SpilledRows] = []
        self.newest: list[LogRows] = []
        #: Of what is in memory.
        self.bytes = 0

    def __repr__(self) -> str:
        return f"HeldRows({self.bytes} bytes in memory, {len(self.spilled)} times put down)"

    def __iter__(self) -> Iterator[LogRows]:
        return itertools.chain(self.recalled, itertools.chain.from_iterable(self.spilled), self.newest)

    def recall(self, rows: LogRows) -> None:
        """Something dropped before the chunk was opened; before anything is held."""
        self.recalled.append(rows)
        self.bytes += rows.batch.nbytes

    def hold(self, rows: LogRows) -> None:
        self.newest.append(rows)
        self.bytes += rows.batch.nbytes

    @property
    def can_spill(self) -> bool:
        return bool(self.newest)

    def spill(self, put_down: Spill) -> None:
        """Put the newest down. Recalled rows stay, because the ring, which has them, too, is in memory."""
        self.spilled.append(put_down(self.newest))
        self.bytes -= sum(rows.batch.nbytes for rows in self.newest)
        self.newest = []

    def clear(self) -> None:
        for rows in self.spilled:
            rows.delete()
        self.recalled, self.spilled, self.newest, self.bytes = [], [], [], 0
