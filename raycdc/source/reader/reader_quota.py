"""Keeps a reader within its quotas of the source's budget (`raycdc.source.protocol.rate_budget`).

The cost of a fetch is known only after it came. Its rows and bytes become a debt of its lane, which the lane's quota
reduces over time. The lane's next fetch waits until the debt is at most `SLACK_S`. Reading is therefore ahead of the
limit by at most `SLACK_S` and one fetch per lane. Unused time is not saved up. A lane without a quota may make one
fetch to check for data. If the coordinator was not reached for `lease_s`, debts are not reduced, because other readers
may have the quota by then.

Pure: the clock is a parameter. `raycdc.runtime.reader.limited_fetchers` does the waiting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raycdc.model.rules.rate_limit import RateLimit
from raycdc.source.protocol.rate_budget import WHOLE, LaneDemand, RateDemand

#: The allowed debt, in seconds of the whole budget, so that occasional small fetches do not wait.
SLACK_S = 0.1
#: The shortest time over which figures are averaged.
WINDOW_S = 1.0


_NOTHING = LaneDemand(0, 0)


@dataclass(slots=True)
class _Lane:
    """One lane's debts, costs and quota. Debts and costs are measured in seconds of the whole budget. `quota` is the
    lane's fraction of the budget.
    """

    quota: float = 0.0
    rows_s: float = 0.0
    bytes_s: float = 0.0
    # The costs of the current window.
    cost_rows_s: float = 0.0
    cost_bytes_s: float = 0.0
    held_s: float = 0.0
    reported: LaneDemand = _NOTHING

    @property
    def debt_s(self) -> float:
        return max(self.rows_s, self.bytes_s)


class ReaderRateLimiter:
    """A reader's rate limiter; see the module's docstring. Not thread-safe.

    Nothing may be read before the first `grant`.
    """

    def __init__(self, rate_limit: RateLimit, now_s: Callable[[], float]) -> None:
        self._rate_limit = rate_limit
        self._now_s = now_s
        self._lanes: dict[str, _Lane] = {}
        self._number = 0
        self._lease_s: float | None = None
        self._reached_s = -math.inf
        self._paid_s = self._window_s = now_s()

    def __repr__(self) -> str:
        return f"ReaderRateLimiter({self._rate_limit}, number={self._number}, {self._lanes})"

    @property
    def quotas(self) -> dict[str, int]:
        """Return the quotas that the reader keeps to now; empty if its lease has expired."""
        if self._now_s() > self._lease_ends_s:
            return {}
        return {name: round(lane.quota * WHOLE) for name, lane in self._lanes.items()}

    def grant(self, number: int, quotas: Mapping[str, int], lease_s: float) -> None:
        """Replace the quotas of all lanes by the coordinator's newest ones."""
        self._pay()
        self._number, self._lease_s = number, lease_s
        for name in {*self._lanes, *quotas}:
            self._lane(name).quota = quotas.get(name, 0) / WHOLE

    def reached(self, began_s: float) -> None:
        """Record that the coordinator answered a call that began at `began_s`."""
        self._pay()
        self._reached_s = max(self._reached_s, began_s)

    def free_in_s(self, lane: str) -> float:
        """Return the seconds until the lane may fetch: 0 for now, infinity if that depends on the coordinator."""
        self._pay()
        if self._now_s() > self._lease_ends_s:
            return math.inf
        owner = self._lane(lane)
        excess_s = owner.debt_s - SLACK_S
        if excess_s <= 0:
            return 0.0
        return excess_s / owner.quota if owner.quota else math.inf

    def fetched(self, lane: str, *, rows: int, size: int) -> None:
        """Record a fetch of this many rows and bytes."""
        self._pay()
        owner = self._lane(lane)
        rows_s, bytes_s = self._rate_limit.seconds_of_rows(rows), self._rate_limit.seconds_of_bytes(size)
        owner.rows_s += rows_s
        owner.bytes_s += bytes_s
        owner.cost_rows_s += rows_s
        owner.cost_bytes_s += bytes_s

    def held(self, lane: str, seconds: float) -> None:
        """Record that the lane waited for this many seconds."""
        self._lane(lane).held_s += seconds

    def demand(self) -> RateDemand:
        """Return the demand to report to the coordinator."""
        passed_s = self._now_s() - self._window_s
        if passed_s >= WINDOW_S:
            self._window_s += passed_s
            for lane in self._lanes.values():
                used = max(lane.cost_rows_s, lane.cost_bytes_s) / passed_s
                held = min(1.0, lane.held_s / passed_s)
                lane.reported = LaneDemand(math.ceil(used * WHOLE), round(held * WHOLE))
                lane.cost_rows_s = lane.cost_bytes_s = lane.held_s = 0.0
        return RateDemand(self._number, {name: lane.reported for name, lane in self._lanes.items()})

    @property
    def _lease_ends_s(self) -> float:
        return -math.inf if self._lease_s is None else self._reached_s + self._lease_s

    def _lane(self, name: str) -> _Lane:
        return self._lanes.setdefault(name, _Lane())

    def _pay(self) -> None:
        now_s = self._now_s()
        passed_s = min(now_s, self._lease_ends_s) - self._paid_s
        self._paid_s = now_s
        if passed_s > 0:
            for lane in self._lanes.values():
                lane.rows_s = max(0.0, lane.rows_s - passed_s * lane.quota)
                lane.bytes_s = max(0.0, lane.bytes_s - passed_s * lane.quota)
