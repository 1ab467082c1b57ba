"""Divides a source's rate limit among its readers (`source.rows_per_second`, `bytes_per_second`).

The *budget* is the whole rate limit. Each reader has two *lanes*, for its log or partitions and for its chunks. The
coordinator's `RateLimiter` gives each lane of each reader a *quota*, in millionths of the budget. A reader keeps to its
quotas (`raycdc.source.reader.reader_quota`). A quota applies to both limits, rows and bytes; only readers compute rates
from it.

| step | message |
|---|---|
| a reader registers | `RateQuotas` number 0: no quota yet; it may read one fetch on credit |
| it reports how much of the budget it used, and how long it was held back | `RateDemand`, with each heartbeat |
| the limiter gives each lane a quota | `RateQuotas` with the next number |
| the reader keeps to it from here on | the number in its next `RateDemand` |

**The rule: the quotas in use never add up to more than the budget.** When a quota shrinks, the old quota counts until
the reader has confirmed the new one; then the difference is given to other readers. When a reader has not reached the
coordinator for `LEASE_S`, its quotas expire; then they are given to other readers. They are not given away earlier,
because a reader that counts as lost may still read on the other side of a broken network. The first quotas of a new
generation wait for `LEASE_S`, too, because readers of the previous generation may still use theirs.

A lane that was not held back gets twice what it used, so that idle readers leave their parts to busy ones. The rest is
divided evenly among the lanes that were held back. Logs come first, because unread parts of a log may be deleted at the
server; `CHUNKS_LEAST` of the budget is reserved for chunks of a snapshot.

Pure: no clock, no thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

#: The whole budget.
WHOLE = 1_000_000
#: The time in seconds for which a reader may use its quotas without reaching the coordinator: several heartbeats of a
#: job with a thousand readers. After a reader's death, its part of the budget is unused for this time.
LEASE_S = 5.0
#: The shortest time between two distributions of quotas; the readers' figures cover about a second.
POLL_EVERY_S = 0.5
#: A quota is sent again when it has changed by more than this fraction.
WORTH_TELLING = 0.1
#: The part of the budget that is reserved for chunks, even if logs could use everything.
CHUNKS_LEAST = WHOLE // 10


class Lane(StrEnum):
    """The two parts of a reader with separate quotas: its log or partitions, and its chunks."""

    LOG = "log"
    CHUNKS = "chunks"


@dataclass(frozen=True, slots=True)
class LaneDemand:
    """A lane's recent use in millionths of the whole budget, and the time for which it was held back, in millionths of
    the whole time.
    """

    used: int
    held: int

    @property
    def is_held_back(self) -> bool:
        """Return True if the lane would read more with a larger quota, because little else delays it."""
        return 2 * self.held > WHOLE

    @property
    def wanted(self) -> int:
        """Return the quota that the lane could use."""
        return WHOLE if self.is_held_back else min(WHOLE, 2 * self.used)


@dataclass(frozen=True, slots=True)
class RateDemand:
    """A reader's report: the `number` of the quotas that it keeps to, and the demands of its lanes."""

    number: int
    lanes: Mapping[str, LaneDemand] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Grant:
    """A reader's quotas by lane. A lane without an entry has none."""

    number: int
    quotas: Mapping[str, int] = field(default_factory=dict)


#: The identity of a reader's incarnation: subtask and incarnation number.
Holder = tuple[int, int]


@dataclass(slots=True)
class _UsableGrants:
    """The grants that a reader may be using: the grant that it confirmed last, and all grants that were sent since."""

    grants: deque[Grant]
    wanted: Mapping[str, int] = field(default_factory=dict)

    def at_most(self, lane: str) -> int:
        """Return the greatest quota that is in force at the moment."""
        return max((grant.quotas.get(lane, 0) for grant in self.grants), default=0)

    @property
    def lanes(self) -> set[str]:
        return {lane for grant in self.grants for lane in grant.quotas}

    @property
    def all(self) -> int:
        return sum(map(self.at_most, self.lanes))


class RateLimiter:
    """Divides the budget among readers; see the module's docstring.

    Owned by the coordinator.

    If `after_another` is True, readers of a previous generation may still be running.
    """

    def __init__(self, *, after_another: bool) -> None:
        self._readers: dict[Holder, _UsableGrants] = {}
        #: Parts of the budget of lost readers, each with the time until which it stays unused.
        self._owed: list[tuple[float, int]] = []
        self._after_another = after_another
        self._polled_s: float | None = None

    def __repr__(self) -> str:
        return f"RateLimiter({self._readers}, owed={self._owed})"

    def join(self, reader: Holder) -> Grant:
        """Add a new reader, and return its first grant, which is empty."""
        grant = Grant(0)
        self._readers[reader] = _UsableGrants(deque([grant]))
        return grant

    def heard(self, reader: Holder, demand: RateDemand) -> None:
        """Record a reader's demand, and the number of the quotas that it keeps to."""
        held = self._readers[reader]
        while held.grants[0].number < demand.number:
            held.grants.popleft()
        held.wanted = {lane: reported.wanted for lane, reported in demand.lanes.items()}

    def lost(self, reader: Holder, *, heard_s: float) -> None:
        """Remove a reader that was lost or fenced; its last message came at `heard_s`."""
        held = self._readers.pop(reader, None)
        if held is not None and held.all:
            self._owed.append((heard_s + LEASE_S, held.all))

    def poll(self, *, now_s: float) -> Mapping[Holder, Grant]:
        """Return the grants to send now."""
        if self._polled_s is None and self._after_another:
            self._owed.append((now_s + LEASE_S, WHOLE))
        if self._polled_s is not None and now_s < self._polled_s + POLL_EVERY_S:
            return {}
        self._polled_s = now_s
        self._owed = [(until_s, part) for until_s, part in self._owed if now_s < until_s]
        reported: dict[Holder, Grant] = {}
        targets = self._targets()
        # Smaller quotas first, because they need no free part of the budget.
        for reader, held in self._readers.items():
            last = held.grants[-1]
            quotas = {lane: min(quota, targets.get((reader, lane), 0)) for lane, quota in last.quotas.items()}
            self._notify(reader, held, quotas, reported)
        room = WHOLE - sum(held.all for held in self._readers.values()) - sum(part for _, part in self._owed)
        for (reader, lane), target in sorted(targets.items(), key=lambda entry: entry[1]):
            held = self._readers[reader]
            # A quota that the reader may already use is counted as used, even if a smaller one was sent since.
            quota = min(target, held.at_most(lane) + max(0, room))
            before = held.grants[-1].quotas
            if quota > before.get(lane, 0):
                taken = held.at_most(lane)
                if self._notify(reader, held, {**before, lane: quota}, reported):
                    room -= max(0, quota - taken)
        return reported

    def _notify(
        self, reader: Holder, held: _UsableGrants, quotas: Mapping[str, int], reported: dict[Holder, Grant]
    ) -> bool:
        quotas = {lane: quota for lane, quota in quotas.items() if quota}
        last = held.grants[-1]
        if not any(_is_worth(last.quotas.get(lane, 0), quotas.get(lane, 0)) for lane in {*last.quotas, *quotas}):
            return False
        grant = Grant(last.number + 1, quotas)
        held.grants.append(grant)
        reported[reader] = grant
        return True

    def _targets(self) -> dict[tuple[Holder, str], int]:
        wanted = {(reader, lane): w for reader, held in self._readers.items() for lane, w in held.wanted.items() if w}
        chunks = {key: w for key, w in wanted.items() if key[1] == Lane.CHUNKS}
        logs = {key: w for key, w in wanted.items() if key[1] != Lane.CHUNKS}
        for_logs = divided(logs, WHOLE - min(CHUNKS_LEAST, sum(chunks.values())))
        return {**for_logs, **divided(chunks, WHOLE - sum(for_logs.values()))}


def divided(wanted: Mapping[tuple[Holder, str], int], parts: int) -> dict[tuple[Holder, str], int]:
    """Return `parts` divided among `wanted`.

    No lane gets more than it wants, and unsatisfied lanes get equal parts.

    This is max-min fairness (Bertsekas and Gallager, Data Networks, 6.5.2).
    """
    given: dict[tuple[Holder, str], int] = {}
    left = len(wanted)
    for key, most in sorted(wanted.items(), key=lambda entry: (entry[1], entry[0])):
        given[key] = min(most, parts // left)
        parts -= given[key]
        left -= 1
    return given


def holds_back(demands: Iterable[RateDemand | None]) -> bool:
    """Return True if the budget holds any of these readers back."""
    return any(lane.is_held_back for demand in demands if demand is not None for lane in demand.lanes.values())


def _is_worth(before: int, after: int) -> bool:
    return abs(after - before) > WORTH_TELLING * before
