"""One budget for all readers of a source: who may use which part of it (`source.rows_per_second`, `bytes_per_second`).

The coordinator's `RateLimiter` holds the budget and hands out shares of it, millionths, by reader and lane; a reader
keeps to its shares (`raycdc.source.reader.reader_quota`). Rates are the readers' business: a share is a part of both
limits.

| step | message |
|---|---|
| a reader registers | `RateQuotas` number 0: it has none yet, and may read one fetch on credit |
| it tells what it used of the budget, and how long it was held back | `RateDemand`, with each heartbeat |
| the keeper gives each lane a share | `RateQuotas` with the next number |
| the reader keeps to it from here on | the number in its next `RateDemand` |

**The rule: the shares that readers keep to are never more than the whole.** So a smaller share counts in full until the
reader has confirmed it, and nobody gets the difference before. A share ends by itself when its reader has not reached
the coordinator for `LEASE_S`, and is given to others only then: a reader that was given up may live on for as long
behind a broken network. The first shares of a new generation wait for that, too, as somebody may have some of the
generation before.

A lane that was not held back gets twice what it used, so that idle readers leave their parts to busy ones; the rest is
divided evenly among those that were. Logs come first, because what is not read of a log may be deleted at the server:
chunks of a snapshot keep `CHUNKS_LEAST` of the budget beside them.

Pure: no clock, no thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

#: The whole budget.
WHOLE = 1_000_000
#: How long a reader keeps to its shares without having reached the coordinator. Several heartbeats of a job of a
#: thousand readers; after a death a part of the budget is nobody's for so long.
LEASE_S = 5.0
#: How often shares are given, at most: the readers' figures are those of about a second.
LOOK_EVERY_S = 0.5
#: A share is told anew when it becomes another one by more than this part of it.
WORTH_TELLING = 0.1
#: What is left to chunks while logs would take everything.
CHUNKS_LEAST = WHOLE // 10


class Lane(StrEnum):
    """What of a reader shares a part of the budget: its log or partitions, and its chunks."""

    LOG = "log"
    CHUNKS = "chunks"


@dataclass(frozen=True, slots=True)
class LaneDemand:
    """Lately a lane used so many millionths of the whole budget, and was held back for so many of the time."""

    used: int
    held: int

    @property
    def is_held_back(self) -> bool:
        """Whether it would read more if it might: nothing else stops it for as long."""
        return 2 * self.held > WHOLE

    @property
    def wanted(self) -> int:
        """The share that it could use."""
        return WHOLE if self.is_held_back else min(WHOLE, 2 * self.used)


@dataclass(frozen=True, slots=True)
class RateDemand:
    """A reader keeps to the shares with this `number`, and its lanes want so much."""

    number: int
    lanes: Mapping[str, LaneDemand] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Grant:
    """A reader's shares, by lane; it has no other ones."""

    number: int
    shares: Mapping[str, int] = field(default_factory=dict)


#: A reader's incarnation: subtask and number.
Holder = tuple[int, int]


@dataclass(slots=True)
class _UsableGrants:
    """Grants that a reader may keep to: the one it confirmed, and all that were sent since."""

    grants: deque[Grant]
    wanted: Mapping[str, int] = field(default_factory=dict)

    def at_most(self, lane: str) -> int:
        """No more than this is kept to now."""
        return max((grant.shares.get(lane, 0) for grant in self.grants), default=0)

    @property
    def lanes(self) -> set[str]:
        return {lane for grant in self.grants for lane in grant.shares}

    @property
    def all(self) -> int:
        return sum(map(self.at_most, self.lanes))


class RateLimiter:
    """See the module's docstring. Owned by the coordinator. `after_another`: a generation before may live on."""

    def __init__(self, *, after_another: bool) -> None:
        self._readers: dict[Holder, _UsableGrants] = {}
        #: Parts that nobody gets before a time, of readers that are gone.
        self._owed: list[tuple[float, int]] = []
        self._after_another = after_another
        self._looked_s: float | None = None

    def __repr__(self) -> str:
        return f"RateLimiter({self._readers}, owed={self._owed})"

    def join(self, reader: Holder) -> Grant:
        """A reader is new, and has no share yet."""
        grant = Grant(0)
        self._readers[reader] = _UsableGrants(deque([grant]))
        return grant

    def heard(self, reader: Holder, demand: RateDemand) -> None:
        """A reader has told its demand, and to which shares it keeps."""
        held = self._readers[reader]
        while held.grants[0].number < demand.number:
            held.grants.popleft()
        held.wanted = {lane: told.wanted for lane, told in demand.lanes.items()}

    def lost(self, reader: Holder, *, heard_s: float) -> None:
        """A reader is gone, or given up; it was heard last at `heard_s`."""
        held = self._readers.pop(reader, None)
        if held is not None and held.all:
            self._owed.append((heard_s + LEASE_S, held.all))

    def look(self, *, now_s: float) -> Mapping[Holder, Grant]:
        """The shares to tell now."""
        if self._looked_s is None and self._after_another:
            self._owed.append((now_s + LEASE_S, WHOLE))
        if self._looked_s is not None and now_s < self._looked_s + LOOK_EVERY_S:
            return {}
        self._looked_s = now_s
        self._owed = [(until_s, part) for until_s, part in self._owed if now_s < until_s]
        told: dict[Holder, Grant] = {}
        targets = self._targets()
        # Smaller ones first: they wait for no room.
        for reader, held in self._readers.items():
            last = held.grants[-1]
            shares = {lane: min(share, targets.get((reader, lane), 0)) for lane, share in last.shares.items()}
            self._tell(reader, held, shares, told)
        room = WHOLE - sum(held.all for held in self._readers.values()) - sum(part for _, part in self._owed)
        for (reader, lane), target in sorted(targets.items(), key=lambda entry: entry[1]):
            held = self._readers[reader]
            # What it may keep to already is counted, whatever it was told since.
            share = min(target, held.at_most(lane) + max(0, room))
            before = held.grants[-1].shares
            if share > before.get(lane, 0):
                taken = held.at_most(lane)
                if self._tell(reader, held, {**before, lane: share}, told):
                    room -= max(0, share - taken)
        return told

    def _tell(self, reader: Holder, held: _UsableGrants, shares: Mapping[str, int], told: dict[Holder, Grant]) -> bool:
        shares = {lane: share for lane, share in shares.items() if share}
        last = held.grants[-1]
        if not any(_is_worth(last.shares.get(lane, 0), shares.get(lane, 0)) for lane in {*last.shares, *shares}):
            return False
        grant = Grant(last.number + 1, shares)
        held.grants.append(grant)
        told[reader] = grant
        return True

    def _targets(self) -> dict[tuple[Holder, str], int]:
        wanted = {(reader, lane): w for reader, held in self._readers.items() for lane, w in held.wanted.items() if w}
        chunks = {key: w for key, w in wanted.items() if key[1] == Lane.CHUNKS}
        logs = {key: w for key, w in wanted.items() if key[1] != Lane.CHUNKS}
        for_logs = divided(logs, WHOLE - min(CHUNKS_LEAST, sum(chunks.values())))
        return {**for_logs, **divided(chunks, WHOLE - sum(for_logs.values()))}


def divided(wanted: Mapping[tuple[Holder, str], int], parts: int) -> dict[tuple[Holder, str], int]:
    """`parts` among those who want some: nobody gets more than it wants, and who gets less gets as much as any other
    (max-min fairness: Bertsekas and Gallager, Data Networks, 6.5.2).
    """
    given: dict[tuple[Holder, str], int] = {}
    left = len(wanted)
    for key, most in sorted(wanted.items(), key=lambda entry: (entry[1], entry[0])):
        given[key] = min(most, parts // left)
        parts -= given[key]
        left -= 1
    return given


def holds_back(demands: Iterable[RateDemand | None]) -> bool:
    """Whether the budget keeps any of these readers from reading."""
    return any(lane.is_held_back for demand in demands if demand is not None for lane in demand.lanes.values())


def _is_worth(before: int, after: int) -> bool:
    return abs(after - before) > WORTH_TELLING * before
