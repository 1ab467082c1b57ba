"""How many readers there should be, and where: by the phase, by backlogs that last, by the nodes there are.

`SimCluster` plays the policy against nodes that come and go, with an autoscaler that brings nodes while readers wait.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from raycdc.model.rules.rate_limit import UNLIMITED, RateLimit
from raycdc.runtime.scaling import (
    BACKLOG_S,
    BYTES_PER_S_LEAST,
    GROW_AFTER_S,
    MOVE_S,
    RECORDS_PER_S,
    ROWS_PER_S_LEAST,
    SHRINK_AFTER_S,
    Decision,
    Observation,
    ReaderLimits,
    ReadPhase,
    Scaled,
    ScalingPolicy,
    SeenLog,
    SeenNode,
    SeenReader,
)

OWN = SeenNode("own", cpus=2, cpus_free=2, own=True)
BEHIND = SeenLog(records=7 * int(RECORDS_PER_S * BACKLOG_S))


def seen(phase: ReadPhase, readers: int = 0, **figures: object) -> Observation:
    own = tuple(SeenReader(subtask, "own") for subtask in range(readers))
    return replace(Observation(phase, own, (OWN,)), **figures)  # type: ignore[arg-type]


def lasting(policy: ScalingPolicy, told: Observation, *, seconds: float, start_s: float = 0.0) -> list[int]:
    """Decisions while the observation stays as it is, one per second."""
    return [policy.poll(told, now_s=start_s + second).readers for second in range(int(seconds) + 1)]


def test_a_snapshot_begins_with_all_readers_and_the_log_needs_the_fewest() -> None:
    policy = ScalingPolicy(ReaderLimits(1, 4))
    assert policy.restart(seen(ReadPhase.UNKNOWN)).readers == 4
    assert policy.poll(seen(ReadPhase.CHUNKS, 4, chunks_waiting=7), now_s=1).readers == 4
    last = policy.poll(seen(ReadPhase.LOG, 4, logs=(SeenLog(seconds=42.0),)), now_s=2)
    assert last == Decision(1, "one log is left, which one reader reads (42 s behind)", leave=(3, 2, 1))


def test_without_a_setting_there_are_as_many_readers_as_cores() -> None:
    many = replace(seen(ReadPhase.UNKNOWN), nodes=(OWN, SeenNode("other", 4, 4)))
    assert ScalingPolicy(ReaderLimits(1, None)).restart(seen(ReadPhase.UNKNOWN)).readers == 2
    assert ScalingPolicy(ReaderLimits(1, None)).restart(many).readers == 6
    assert ScalingPolicy(ReaderLimits(1, None, cpus=2)).restart(many).readers == 3


def test_the_source_lets_no_more_readers_read_whatever_the_settings_say() -> None:
    assert ScalingPolicy(ReaderLimits(4, 8, source=2)).restart(seen(ReadPhase.UNKNOWN)).readers == 2


def test_readers_come_back_when_a_table_is_added_to_a_running_job() -> None:
    policy = ScalingPolicy(ReaderLimits(1, 4))
    assert policy.restart(seen(ReadPhase.LOG)).readers == 1
    added = seen(ReadPhase.CHUNKS, 1, chunks_waiting=9)
    assert lasting(policy, added, seconds=GROW_AFTER_S - 1)[-1] == 1
    assert lasting(policy, added, seconds=1, start_s=GROW_AFTER_S)[-1] == 4


def test_nobody_is_started_for_the_last_chunks() -> None:
    policy = ScalingPolicy(ReaderLimits(1, 4))
    policy.restart(seen(ReadPhase.LOG))
    few = seen(ReadPhase.CHUNKS, 1, chunks_waiting=9, chunk_seconds=4.0)
    assert lasting(policy, few, seconds=20)[-1] == 1
    assert policy.poll(few, now_s=30).reason == "the last chunks take 4 s"


def test_a_backlog_that_lasts_brings_more_readers_but_no_more_than_there_are_partitions() -> None:
    policy = ScalingPolicy(ReaderLimits(1, 8))
    policy.restart(seen(ReadPhase.LOG))
    behind = seen(ReadPhase.PARTITIONS, 1, partitions=5, logs=(BEHIND,))
    assert lasting(policy, behind, seconds=GROW_AFTER_S) == [1] * int(GROW_AFTER_S) + [5]


def test_readers_that_wait_for_the_source_or_the_sink_get_no_help() -> None:
    policy = ScalingPolicy(ReaderLimits(1, 8))
    policy.restart(seen(ReadPhase.LOG))
    idle = replace(
        seen(ReadPhase.PARTITIONS, partitions=5, logs=(BEHIND,)),
        readers=(SeenReader(0, "own", partitions=5, busy=0.05),),
    )
    assert lasting(policy, idle, seconds=60)[-1] == 1
    assert "they wait for the source or the sink" in policy.poll(idle, now_s=61).reason


@pytest.mark.parametrize("phase", [ReadPhase.CHUNKS, ReadPhase.PARTITIONS])
def test_a_source_whose_pace_is_used_up_gets_no_more_readers(phase: ReadPhase) -> None:
    policy = ScalingPolicy(ReaderLimits(1, 4))
    policy.restart(seen(ReadPhase.LOG))
    waiting = seen(phase, 1, chunks_waiting=9, partitions=9, logs=(BEHIND,), is_rate_limited=True)
    assert set(lasting(policy, waiting, seconds=20)) == {1}
    assert policy.poll(waiting, now_s=21).reason.endswith(
        "the source's pace is used up, and another reader would read no more"
    )
    assert lasting(policy, replace(waiting, is_rate_limited=False), seconds=6, start_s=22)[-1] == 4


@pytest.mark.parametrize(
    ("pace", "first"),
    [
        (RateLimit(rows_per_s=20_000), 1),
        (RateLimit(rows_per_s=2 * ROWS_PER_S_LEAST + 1), 3),
        (RateLimit(bytes_per_s=2 * BYTES_PER_S_LEAST), 2),
        (RateLimit(rows_per_s=10**9, bytes_per_s=1), 1),
        (RateLimit(rows_per_s=10**9), 4),
        (UNLIMITED, 4),
    ],
)
def test_a_source_that_has_a_pace_begins_with_the_readers_that_it_feeds(pace: RateLimit, first: int) -> None:
    policy = ScalingPolicy(ReaderLimits(1, 4, rate_limit=pace))
    for phase in (ReadPhase.UNKNOWN, ReadPhase.CHUNKS, ReadPhase.PARTITIONS):
        begun = policy.restart(seen(phase, chunks_waiting=9, partitions=9, logs=(BEHIND,)))
        assert begun.readers == first
        assert begun.reason.endswith(f"feeds {first}") == (first < 4)
    assert ScalingPolicy(ReaderLimits(2, 4, rate_limit=pace)).restart(seen(ReadPhase.UNKNOWN)).readers == max(2, first)


def test_readers_that_do_not_use_the_pace_up_get_help_once_they_are_seen_to_read() -> None:
    policy = ScalingPolicy(ReaderLimits(1, 4, rate_limit=RateLimit(rows_per_s=1_000)))
    policy.restart(seen(ReadPhase.UNKNOWN))
    begun = seen(ReadPhase.CHUNKS, 1, chunks_waiting=9)
    assert set(lasting(policy, begun, seconds=60)) == {1}
    assert policy.poll(begun, now_s=61).reason == (
        "chunks wait (9 at least); the source's pace (1,000 rows a second) feeds 1"
    )
    assert lasting(policy, replace(begun, chunk_seconds=99.0), seconds=6, start_s=62)[-1] == 4

    topics = ScalingPolicy(ReaderLimits(1, 4, rate_limit=RateLimit(bytes_per_s=1_000)))
    topics.restart(seen(ReadPhase.UNKNOWN))
    behind = seen(ReadPhase.PARTITIONS, partitions=9, logs=(BEHIND,))
    new = replace(behind, readers=(SeenReader(0, "own", partitions=9),))
    assert set(lasting(topics, new, seconds=60)) == {1}
    at_work = replace(behind, readers=(SeenReader(0, "own", partitions=9, busy=0.9),))
    assert lasting(topics, at_work, seconds=6, start_s=61)[-1] == 4


def test_a_backlog_that_does_not_last_changes_nothing() -> None:
    policy = ScalingPolicy(ReaderLimits(1, 8))
    policy.restart(seen(ReadPhase.LOG))
    behind = seen(ReadPhase.PARTITIONS, 1, partitions=5, logs=(BEHIND,))
    fine = seen(ReadPhase.PARTITIONS, 1, partitions=5, logs=(replace(BEHIND, records=1),))
    for round_s in range(0, 100, 4):
        lasting(policy, behind, seconds=2, start_s=round_s)
        assert policy.poll(fine, now_s=round_s + 3).readers == 1


def test_readers_without_a_backlog_leave_one_at_a_time_and_late_unless_those_that_stay_would_be_too_busy() -> None:
    policy = ScalingPolicy(ReaderLimits(2, 4))
    idle = seen(ReadPhase.PARTITIONS, partitions=6, logs=(replace(BEHIND, records=0),))
    policy.restart(idle)
    decisions = lasting(policy, idle, seconds=4 * SHRINK_AFTER_S)
    assert [decisions.index(n) for n in (3, 2)] == [int(SHRINK_AFTER_S), int(2 * SHRINK_AFTER_S) + 1]
    assert decisions[-1] == 2

    busy = ScalingPolicy(ReaderLimits(2, 4))
    readers = tuple(SeenReader(subtask, "own", partitions=2, busy=0.6) for subtask in range(4))
    busy.restart(idle)
    assert lasting(busy, replace(idle, readers=readers), seconds=4 * SHRINK_AFTER_S)[-1] == 4


def test_who_leaves_first_waits_or_is_on_a_node_that_can_be_given_back_and_the_log_may_be_among_them() -> None:
    policy = ScalingPolicy(ReaderLimits(1, 5))
    policy.restart(seen(ReadPhase.UNKNOWN))
    readers = (
        SeenReader(0, "own"),
        SeenReader(1, "a", log=True),
        SeenReader(2, "b"),
        SeenReader(3, "b"),
        SeenReader(4, "", has_process=False),
    )
    nodes = (OWN, SeenNode("a", 1, 0), SeenNode("b", 2, 0))
    decision = policy.poll(Observation(ReadPhase.LOG, readers, nodes), now_s=0)
    assert decision.leave == (4, 1, 3, 2)


def test_a_node_that_came_gets_one_of_the_readers_of_a_fuller_one() -> None:
    policy = ScalingPolicy(ReaderLimits(1, 4))
    policy.restart(seen(ReadPhase.UNKNOWN))
    four = tuple(SeenReader(subtask, "own", partitions=2, log=subtask == 3) for subtask in range(4))
    at_work = Observation(ReadPhase.PARTITIONS, four, (OWN, SeenNode("new", 2, 2)), (BEHIND,), partitions=8)
    began = policy.poll(at_work, now_s=0)
    # No more than four are allowed: one goes before another one comes.
    assert (began.readers, began.leave, began.node) == (4, (2,), "new")
    going = replace(at_work, readers=(*four[:2], replace(four[2], leaving=True), four[3]))
    assert policy.poll(going, now_s=1).node == "new"
    moved = replace(at_work, readers=(*four[:2], SeenReader(2, "new", partitions=2), four[3]))
    assert policy.poll(moved, now_s=2) == Decision(4, policy._why)
    # The next move waits a while, so that the first one shows.
    assert policy.poll(moved, now_s=3).leave == ()
    assert policy.poll(moved, now_s=100).leave == (1,)


def test_a_log_alone_comes_back_to_the_drivers_node() -> None:
    policy = ScalingPolicy(ReaderLimits(1, 4))
    away = Observation(ReadPhase.LOG, (SeenReader(1, "far", log=True),), (OWN, SeenNode("far", 2, 1)))
    policy.restart(away)
    began = policy.poll(away, now_s=0)
    assert (began.readers, began.leave, began.node) == (2, (), "own")
    there = replace(away, readers=(SeenReader(0, "own"), *away.readers))
    assert policy.poll(there, now_s=1).leave == (1,)
    assert policy.poll(replace(away, readers=there.readers[:1]), now_s=2).readers == 1


def test_a_move_that_finds_no_place_is_given_up() -> None:
    policy = ScalingPolicy(ReaderLimits(1, 4))
    away = Observation(ReadPhase.LOG, (SeenReader(1, "far", log=True),), (OWN, SeenNode("far", 2, 1)))
    policy.restart(away)
    policy.poll(away, now_s=0)
    waiting = replace(away, readers=(SeenReader(0, "", has_process=False), *away.readers))
    assert policy.poll(waiting, now_s=MOVE_S).leave == ()
    assert policy.poll(waiting, now_s=MOVE_S + 1) == Decision(1, policy._why, leave=(0,))
    assert policy.poll(away, now_s=MOVE_S + 2).node == ""


def test_a_silent_node_gets_no_reader_by_a_move() -> None:
    policy = ScalingPolicy(ReaderLimits(1, 2))
    policy.restart(seen(ReadPhase.UNKNOWN))
    two = tuple(SeenReader(subtask, "own", partitions=1) for subtask in range(2))
    cut = SeenNode("cut", 4, 4, silent=True)
    assert policy.poll(Observation(ReadPhase.PARTITIONS, two, (OWN, cut), partitions=2), now_s=0).node == ""


def test_a_decision_is_told_with_its_places_and_with_who_waits() -> None:
    readers = (SeenReader(0, "own"), SeenReader(1, "far"), SeenReader(2, "", has_process=False))
    told = Scaled.of(Decision(3, "why"), Observation(ReadPhase.CHUNKS, readers, (replace(OWN, label="10.0.0.1/a"),)))
    assert told == Scaled(3, 1, {"10.0.0.1/a": 1, "far": 1}, "why")


# -- a cluster whose nodes come and go -------------------------------------------------------------------------------


@dataclass
class SimCluster:
    """Readers get a place where CPUs are free. While some wait, an autoscaler brings nodes; idle ones it takes back."""

    chance: random.Random
    limits: ReaderLimits
    nodes_max: int
    own_cpus: int
    phase: ReadPhase = ReadPhase.CHUNKS
    nodes: dict[str, int] = field(default_factory=dict)
    readers: dict[int, SeenReader] = field(default_factory=dict)
    places: dict[int, str] = field(default_factory=dict)
    idle_since: dict[str, float] = field(default_factory=dict)
    starts: int = 0
    counts: list[int] = field(default_factory=list)
    named: int = 0

    def __post_init__(self) -> None:
        self.nodes["own"] = self.own_cpus

    def observation(self) -> Observation:
        used = Counter(reader.node for reader in self.readers.values())
        nodes = tuple(SeenNode(n, cpus, cpus - used[n], own=n == "own") for n, cpus in self.nodes.items())
        waiting = 5 if self.phase is ReadPhase.CHUNKS else 0
        partitions = 12 if self.phase is ReadPhase.PARTITIONS else 0
        logs = (SeenLog(seconds=200.0),) if partitions else ()
        readers = tuple(replace(r, subtask=s, partitions=min(1, partitions)) for s, r in sorted(self.readers.items()))
        return Observation(self.phase, readers, nodes, logs, chunks_waiting=waiting, partitions=partitions)

    def step(self, policy: ScalingPolicy, *, now_s: float) -> None:
        decision = policy.poll(self.observation(), now_s=now_s)
        for subtask in decision.leave:
            self.readers[subtask] = replace(self.readers[subtask], leaving=True)
        for subtask, reader in list(self.readers.items()):
            if reader.leaving and (not reader.has_process or self.chance.random() < 0.4):
                del self.readers[subtask]
        for _ in range(decision.readers - len(self.readers)):
            subtask = next(n for n in range(100) if n not in self.readers)
            self.readers[subtask] = SeenReader(subtask, "", has_process=False)
            self.places[subtask] = decision.node
            self.starts += 1
        self._schedule()
        self._autoscale(now_s)
        if self.readers and not any(reader.log for reader in self.readers.values() if reader.has_process):
            first = next((s for s, r in self.readers.items() if r.has_process and not r.leaving), None)
            if first is not None:
                self.readers[first] = replace(self.readers[first], log=True)
        self.counts.append(len(self.readers))

    def _schedule(self) -> None:
        for subtask, reader in self.readers.items():
            if reader.has_process or self.chance.random() < 0.3:
                continue
            used = Counter(r.node for r in self.readers.values())
            free = [n for n, cpus in self.nodes.items() if cpus - used[n] >= 1]
            node = self.places[subtask]
            target = node if node in free else self.chance.choice(free) if free and not node else None
            if target is not None:
                self.readers[subtask] = replace(reader, node=target, has_process=True)
            elif node not in self.nodes:
                self.places[subtask] = ""

    def _autoscale(self, now_s: float) -> None:
        used = {reader.node for reader in self.readers.values()}
        some_wait = any(not r.has_process for r in self.readers.values())
        if some_wait and len(self.nodes) < self.nodes_max and self.chance.random() < 0.1:
            self.named += 1
            self.nodes[f"n{self.named}"] = 1
        for node in [n for n in self.nodes if n != "own"]:
            if node in used:
                self.idle_since.pop(node, None)
            elif now_s - self.idle_since.setdefault(node, now_s) > 60:
                del self.nodes[node]

    def lose_a_node(self) -> None:
        """Without a word."""
        others = [node for node in self.nodes if node != "own"]
        if others:
            lost = self.chance.choice(others)
            del self.nodes[lost]
            self.readers = {s: r for s, r in self.readers.items() if r.node != lost}


def most_ever(limits: ReaderLimits, cluster: SimCluster) -> int:
    """What the limits allow on the nodes that there may be."""
    cores = SeenNode("all", cpus=cluster.own_cpus + cluster.nodes_max, cpus_free=0)
    return limits.bounds([cores])[1]


@pytest.mark.parametrize("seed", range(16))
def test_readers_follow_nodes_that_come_and_go_never_above_the_limits_and_never_to_and_fro(seed: int) -> None:
    chance = random.Random(seed)
    most = chance.choice([1, 2, 4, 6])
    limits = ReaderLimits(1, chance.choice([most, None]), source=chance.choice([0, 0, 3]))
    cluster = SimCluster(chance, limits, nodes_max=chance.randint(1, 5), own_cpus=chance.choice([0, 1, 2, 4]))
    policy = ScalingPolicy(limits)
    policy.restart(cluster.observation())
    now_s = 0.0

    def play(seconds: int, *, troubles: float) -> None:
        nonlocal now_s
        for _ in range(seconds):
            now_s += 1.0
            if chance.random() < troubles:
                cluster.lose_a_node()
            cluster.step(policy, now_s=now_s)
            assert len(cluster.readers) <= most_ever(limits, cluster)

    cluster.phase = chance.choice([ReadPhase.CHUNKS, ReadPhase.PARTITIONS])
    play(300, troubles=0.03)
    play(400, troubles=0.0)
    began = cluster.starts
    play(300, troubles=0.0)
    assert cluster.starts == began, "nothing changed, and readers were started"
    assert len({*cluster.counts[-200:]}) == 1
    spread = Counter({node: 0 for node, cpus in cluster.nodes.items() if cpus})
    spread.update(r.node for r in cluster.readers.values() if r.has_process)
    full = {node for node, cpus in cluster.nodes.items() if spread[node] >= cpus}
    assert all(max(spread.values()) - n < 2 for node, n in spread.items() if node not in full)

    cluster.phase = ReadPhase.LOG
    play(400, troubles=0.0)
    began = cluster.starts
    play(300, troubles=0.0)
    assert cluster.starts == began
    (left,) = cluster.readers.values()
    assert left.node == "own" or not cluster.own_cpus
    assert len(cluster.nodes) == (1 if cluster.own_cpus else 2 if cluster.nodes_max > 1 else 1)
