"""Sorts and filters the tables of a run for the web UI, with up to a hundred thousand tables.

Sorting examines every table, so its result is remembered. The longer sorting takes, the less often it is repeated: it
uses at most the fraction `FRACTION_MAX` of the time of one core.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from raycdc.observe.status import RunStatus

#: The maximum fraction of a core's time for sorting tables.
FRACTION_MAX = 0.05
#: The number of remembered orders, the newest ones: one for each possible page, one for parked tables, and some spare
#: ones.
ORDERS_MAX = 32
#: Tables that need attention come first.
_PHASES = ("parked", "resuming", "snapshot", "pending", "new", "paused", "stream", "ended", "removed")
_RANK = {phase: rank for rank, phase in enumerate(_PHASES)}


class Sorting(StrEnum):
    """The sort key of tables; ties are sorted by name."""

    ATTENTION = "attention"
    TABLE = "table"
    PHASE = "phase"
    ROWS = "rows"
    RATE = "rate"
    DONE = "done"
    COMMIT = "commit"
    LEFT_OUT = "left_out"


@dataclass(frozen=True, slots=True)
class TableQuery:
    """A query for one page of the matching tables, and for one `table` in detail.

    A table matches if its name contains `contains`, regardless of case, and if it is in `phase`. An empty text matches
    all tables.
    """

    contains: str = ""
    phase: str = ""
    sort: Sorting = Sorting.ATTENTION
    descending: bool = False
    offset: int = 0
    limit: int = 50
    table: str = ""


@dataclass(frozen=True, slots=True)
class _Order:
    names: tuple[str, ...]
    good_until_s: float


class TableOrder:
    """Sorts the tables of a run. Used by one thread at a time. `status` returns the status of the run."""

    def __init__(self, status: Callable[[], RunStatus], clock: Callable[[], float] = time.monotonic) -> None:
        self._status = status
        self._clock = clock
        self._orders: dict[tuple[str, str, Sorting, bool], _Order] = {}

    def __repr__(self) -> str:
        return f"TableOrder({len(self._orders)} orders)"

    def page(self, wanted: TableQuery) -> tuple[int, int, tuple[str, ...]]:
        """Return the number of matching tables, the offset of the page, and the page.

        An offset beyond the end is the last page.
        """
        key = (wanted.contains.casefold(), wanted.phase, wanted.sort, wanted.descending)
        order = self._orders.pop(key, None)
        if order is None or self._clock() >= order.good_until_s:
            order = self._made(wanted, key[0])
        self._orders[key] = order
        while len(self._orders) > ORDERS_MAX:
            self._orders.pop(next(iter(self._orders)))
        names = order.names
        last = max(0, len(names) - 1) // max(1, wanted.limit) * max(1, wanted.limit)
        offset = min(wanted.offset, last)
        return len(names), offset, names[offset : offset + wanted.limit]

    def _made(self, wanted: TableQuery, contains: str) -> _Order:
        began_s, cpu_s = self._clock(), time.thread_time()
        status = self._status()
        known = status.tables.known
        names = [
            name
            for name in status.tables.names
            if (not wanted.phase or known[name].figures.phase == wanted.phase)
            and (not contains or contains in name.casefold())
        ]
        if wanted.sort is not Sorting.TABLE:
            names = _sorted(names, status, wanted, now_s=began_s)
        elif wanted.descending:
            names.reverse()
        return _Order(tuple(names), self._clock() + (time.thread_time() - cpu_s) / FRACTION_MAX)


def _sorted(names: list[str], status: RunStatus, wanted: TableQuery, *, now_s: float) -> list[str]:
    """Return `names`, which are in alphabetical order, in the wanted order. Tables without figures come last."""
    figure = _FIGURES[wanted.sort]
    keys = {name: figure(name, status, now_s) for name in names}
    there = [name for name in names if keys[name] is not None]
    there.sort(key=lambda name: keys[name] or 0, reverse=wanted.descending)
    return [*chain(there, (name for name in names if keys[name] is None))]


_Figure = Callable[[str, RunStatus, float], float | None]


def _attention(name: str, status: RunStatus, _: float) -> float | None:
    figures = status.tables.known[name].figures
    return _RANK.get(figures.phase, len(_RANK)) - (0.5 if figures.bad_rows else 0)


def _phase(name: str, status: RunStatus, _: float) -> float | None:
    return _RANK.get(status.tables.known[name].figures.phase, len(_RANK))


def _done(name: str, status: RunStatus, _: float) -> float | None:
    figures = status.tables.known[name].figures
    return figures.percent if figures.chunks_total else None


def _commit(name: str, status: RunStatus, _: float) -> float | None:
    commit = status.commits.by_table.get(name)
    return None if commit is None else commit.at_ms


_FIGURES: dict[Sorting, _Figure] = {
    Sorting.ATTENTION: _attention,
    Sorting.PHASE: _phase,
    Sorting.ROWS: lambda name, status, _: status.tables.known[name].figures.rows,
    Sorting.RATE: lambda name, status, now_s: status.tables.known[name].rows.now(now_s),
    Sorting.DONE: _done,
    Sorting.COMMIT: _commit,
    Sorting.LEFT_OUT: lambda name, status, _: status.tables.known[name].figures.bad_rows,
}
