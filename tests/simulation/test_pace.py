"""All readers of a source keep to one budget together, under random deaths, pauses, moves and restarts.

As in `test_rules`, each rule that matters is switched off once, and must be missed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from raycdc.model.rules.rate_limit import RateLimit
from raycdc.source.protocol.rate_budget import (
    CHUNKS_LEAST,
    LEASE_S,
    POLL_EVERY_S,
    WHOLE,
    Grant,
    Holder,
    Lane,
    LaneDemand,
    RateDemand,
    RateLimiter,
    divided,
)
from raycdc.source.reader.reader_quota import SLACK_S, WINDOW_S, ReaderRateLimiter
from tests.support.simulation import SimulationError
from tests.support.simulation.network import SimulatedClock
from tests.support.simulation.partition_job import PartitionJob, PartitionSettings

#: Seeds of an ordinary test run, and runs after which a rule counts as not needed.
SEEDS = 6
SEEDS_MAX = 30

Switch = Callable[[pytest.MonkeyPatch], None]

#: Fewer records a second than come.
PACED = PartitionSettings(
    readers=3, partitions=7, steps=900, network_faults=0.05, crashes=0.01, scaling=0.02, pace=RateLimit(rows_per_s=20)
)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_shares_of_all_who_may_still_read_are_never_more_than_the_whole(seed: int) -> None:
    settings = replace(PACED, readers=1 + seed % 4, network_faults=(0.0, 0.05, 0.15)[seed % 3])
    PartitionJob(seed, settings=settings).run()


def test_the_budget_is_really_used_and_fought_for() -> None:
    """A simulation in which nobody wants more than there is proves nothing."""
    used = []
    for seed in range(2):
        job = PartitionJob(seed, settings=PACED)
        job.run()
        used.append(job.budget_used)
    assert max(used) > 0.9 * WHOLE


# -- without a rule --------------------------------------------------------------------------------------------------


def give_what_a_dead_reader_had_at_once(patch: pytest.MonkeyPatch) -> None:
    def lost(self: RateLimiter, reader: Holder, *, heard_s: float) -> None:
        self._readers.pop(reader, None)

    patch.setattr(RateLimiter, "lost", lost)


def give_what_a_reader_was_told_to_leave_at_once(patch: pytest.MonkeyPatch) -> None:
    real = RateLimiter._notify

    def tell(self: RateLimiter, reader: Holder, held: object, shares: object, told: dict[Holder, Grant]) -> bool:
        happened = real(self, reader, held, shares, told)  # type: ignore[arg-type]
        while len(held.grants) > 1:  # type: ignore[attr-defined]
            held.grants.popleft()  # type: ignore[attr-defined]
        return happened

    patch.setattr(RateLimiter, "_notify", tell)


def read_on_without_the_coordinator(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReaderRateLimiter, "_lease_ends_s", property(lambda self: math.inf))


def forget_the_generation_before(patch: pytest.MonkeyPatch) -> None:
    real = RateLimiter.__init__
    patch.setattr(RateLimiter, "__init__", lambda self, *, after_another: real(self, after_another=False))


@pytest.mark.parametrize(
    "switch",
    [
        give_what_a_dead_reader_had_at_once,
        give_what_a_reader_was_told_to_leave_at_once,
        read_on_without_the_coordinator,
        forget_the_generation_before,
    ],
)
def test_a_run_without_the_rule_is_noticed(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    switch(monkeypatch)
    assert any(is_noticed(seed) for seed in range(SEEDS_MAX)), f"{SEEDS_MAX} runs passed without the rule"


def is_noticed(seed: int) -> bool:
    try:
        PartitionJob(seed, settings=PACED).run()
    except SimulationError as error:
        return "parts of the budget" in str(error)
    return False


# -- what the keeper gives -------------------------------------------------------------------------------------------


class Table:
    """A keeper and readers that confirm at once."""

    def __init__(self, *readers: int) -> None:
        self.keeper = RateLimiter(after_another=False)
        self.now_s = 0.0
        self.grants = {(n, 1): self.keeper.join((n, 1)) for n in readers}

    def poll(self, **wanted: LaneDemand) -> dict[int, int]:
        """The readers' shares of the log once all has settled; `wanted` by reader, as ``r1=…``."""
        for _ in range(4):
            self.now_s += POLL_EVERY_S
            for reader, grant in self.grants.items():
                lane = wanted.get(f"r{reader[0]}")
                lanes = {} if lane is None else {str(Lane.LOG): lane}
                self.keeper.heard(reader, RateDemand(grant.number, lanes))
            self.grants |= self.keeper.poll(now_s=self.now_s)
        return {n: grant.quotas.get(Lane.LOG, 0) for (n, _), grant in self.grants.items()}


HELD = LaneDemand(used=0, held=WHOLE)
IDLE = LaneDemand(used=0, held=0)


def test_one_busy_reader_has_all_and_gives_half_back_when_another_is_busy() -> None:
    table = Table(1, 2, 3)
    assert table.poll(r1=HELD, r2=IDLE, r3=IDLE) == {1: WHOLE, 2: 0, 3: 0}
    assert table.poll(r1=HELD, r2=HELD, r3=IDLE) == {1: WHOLE // 2, 2: WHOLE // 2, 3: 0}
    assert table.poll(r1=IDLE, r2=HELD, r3=IDLE) == {1: 0, 2: WHOLE, 3: 0}


def test_a_reader_that_is_not_held_back_gets_twice_what_it_uses_and_the_rest_goes_to_others() -> None:
    table = Table(1, 2)
    assert table.poll(r1=LaneDemand(used=WHOLE // 10, held=0), r2=HELD) == {1: WHOLE // 5, 2: 4 * WHOLE // 5}


def test_the_share_of_a_dead_reader_is_nobodys_until_its_lease_is_over() -> None:
    table = Table(1, 2)
    assert table.poll(r1=HELD, r2=HELD) == {1: WHOLE // 2, 2: WHOLE // 2}
    table.keeper.lost((1, 1), heard_s=table.now_s)
    died_s = table.now_s
    del table.grants[1, 1]
    while table.now_s + 4 * POLL_EVERY_S < died_s + LEASE_S:
        assert table.poll(r2=HELD) == {2: WHOLE // 2}
    table.poll(r2=HELD)
    assert table.poll(r2=HELD) == {2: WHOLE}


def test_chunks_keep_a_tenth_beside_a_log_that_would_take_all() -> None:
    keeper = RateLimiter(after_another=False)
    keeper.join((1, 1))
    keeper.heard((1, 1), RateDemand(0, {Lane.LOG: HELD, Lane.CHUNKS: HELD}))
    granted = keeper.poll(now_s=1.0)[1, 1]
    assert granted.quotas == {Lane.LOG: WHOLE - CHUNKS_LEAST, Lane.CHUNKS: CHUNKS_LEAST}


def test_parts_are_divided_without_one_too_many() -> None:
    chance = random.Random(1)
    for _ in range(200):
        wanted = {((n, 1), "log"): chance.randrange(WHOLE + 1) for n in range(chance.randrange(1, 9))}
        given = divided(wanted, WHOLE)
        assert sum(given.values()) <= WHOLE
        assert all(given[key] <= most for key, most in wanted.items())
        least = min(given.values())
        assert all(given[key] == most or given[key] - least <= WHOLE for key, most in wanted.items())


# -- what a reader reads ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_reader_never_reads_more_than_its_share_its_slack_and_one_fetch(seed: int) -> None:
    """With a clock that is moved: over each span from the beginning on."""
    chance = random.Random(seed)
    clock = SimulatedClock()
    pace = ReaderRateLimiter(RateLimit(rows_per_s=1000, bytes_per_s=50_000), lambda: clock.now_s)
    assert pace.free_in_s(Lane.LOG) == math.inf  # Nobody has told it anything yet.
    pace.grant(1, {Lane.LOG: WHOLE // 4}, LEASE_S)
    pace.reached(clock.now_s)
    began_s, rows, size = clock.now_s, 0, 0
    while clock.now_s < began_s + 60:
        if pace.free_in_s(Lane.LOG) == 0:
            count, width = chance.randrange(1, 500), chance.randrange(10, 200)
            pace.fetched(Lane.LOG, rows=count, size=count * width)
            rows, size = rows + count, size + count * width
            passed_s = clock.now_s - began_s
            assert rows <= 250 * passed_s + 1000 * SLACK_S + 500
            assert size <= 12_500 * passed_s + 50_000 * SLACK_S + 500 * 200
        step_s = chance.uniform(0, 0.2)
        clock.advance(step_s)
        pace.held(Lane.LOG, step_s)
        pace.reached(clock.now_s)
    assert size > 0.9 * 12_500 * 60  # It uses what it has.
    assert pace.demand().lanes[Lane.LOG].is_held_back


def test_a_reader_stands_still_when_its_lease_is_over_and_pays_nothing_meanwhile() -> None:
    clock = SimulatedClock()
    pace = ReaderRateLimiter(RateLimit(rows_per_s=100), lambda: clock.now_s)
    pace.grant(3, {Lane.LOG: WHOLE}, LEASE_S)
    pace.reached(clock.now_s)
    pace.fetched(Lane.LOG, rows=1000, size=0)
    clock.advance(LEASE_S + 60)
    assert pace.quotas == {}
    assert pace.free_in_s(Lane.LOG) == math.inf
    pace.reached(clock.now_s)
    assert pace.free_in_s(Lane.LOG) == pytest.approx(10 - LEASE_S - SLACK_S)
    clock.advance(WINDOW_S)
    assert pace.demand().number == 3
