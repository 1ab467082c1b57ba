"""Decides the number of readers of a job, the readers that end, and the node of the next reader.

Pure: observations (`raycdc.runtime.observing`) and the time are parameters, and the result is a `Decision` with its
reason.

| unread data | number of readers |
|---|---|
| not known yet | as many as the limits and the rate limit allow, because a snapshot begins with many chunks |
| chunks | the same while chunks wait for a reader, unless they will be read before another reader could start; \
without waiting chunks, the readers that have a chunk |
| one log | `ReaderLimits.least`: only one reader can read it |
| partitions | as many as keep the backlog below `BACKLOG_S` seconds, but no more than there are partitions |
| any, and the rate limit is used up | no more than at present |
| any, and there is a rate limit | no more than the rate limit should need, until the present readers prove unable to \
use it up |

A new phase that needs fewer readers releases them immediately. All other reasons must last, because the start of a
reader costs seconds and moves splits: readers are added after `GROW_AFTER_S`, and one ends after `SHRINK_AFTER_S`.
Readers that wait for a node end first, then readers on silent nodes, then readers whose nodes can be released soonest.
The driver's own node keeps its readers. If a new node has at least two readers fewer than another node, a reader moves
to it (`Move`). If a job only follows its log, its reader moves to the driver's node. A move that finds no free node is
abandoned, and retried after growing pauses.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

from raycdc.model.rules.rate_limit import UNLIMITED, RateLimit

#: Seconds of backlog that justify the start of another reader.
BACKLOG_S = 10.0
#: The assumed records per second of a reader whose rate is unknown.
RECORDS_PER_S = 200_000
#: The minimum rate that is assumed of a reader: a lower rate limit needs only one reader. Most readers reach several
#: times as much.
ROWS_PER_S_LEAST = 50_000
BYTES_PER_S_LEAST = 20 << 20
GROW_AFTER_S = 5.0
SHRINK_AFTER_S = 60.0
#: Readers that are busy for less than this fraction wait for the source or the sink. More readers would only wait, too.
BUSY_LEAST = 0.2
#: A reader may leave if the remaining ones are then busy for less than this fraction.
BUSY_MOST = 0.7
#: The longest wait of a move for its node, and the first pause after a move.
MOVE_S = 30.0
MOVE_PAUSE_S = 30.0
MOVE_PAUSE_MAX_S = 960.0


class ReadPhase(Enum):
    """The kind of work that a job has to read."""

    UNKNOWN = "nothing is known of the source yet"
    CHUNKS = "chunks"
    LOG = "one log"
    PARTITIONS = "partitions"


@dataclass(frozen=True, slots=True)
class SeenReader:
    """A reader. `node` is empty while it waits for a node; `busy` is the fraction of a core that it used recently."""

    subtask: int
    node: str = ""
    has_process: bool = True
    leaving: bool = False
    log: bool = False
    chunks: int = 0
    partitions: int = 0
    busy: float | None = None


@dataclass(frozen=True, slots=True)
class SeenLog:
    """The unread part of a log, or of a reader's partitions; None if unknown."""

    records: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A node that may have readers; `own` is True for the driver's node.

    A `silent` node gets no readers until it has answered again.
    """

    name: str
    cpus: float
    cpus_free: float
    own: bool = False
    silent: bool = False
    #: The node's name for people.
    label: str = ""


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """The limits on the number of readers.

    `most` is the configured maximum; None means the number of cores. `source` is the maximum of the source; 0 means no
    limit. Each reader takes `cpus` of its node. All readers together keep the source's rate limit `rate_limit`.
    """

    least: int
    most: int | None
    source: int = 0
    cpus: float = 1.0
    rate_limit: RateLimit = UNLIMITED

    def bounds(self, nodes: Sequence[SeenNode]) -> tuple[int, int]:
        """Return the minimum and maximum number of readers on these nodes, within the limit of the source."""
        most = self.most
        if most is None:
            most = sum(math.floor(node.cpus / (self.cpus or 1.0)) for node in nodes)
        most = max(1, self.least, most)
        if self.source:
            most = min(most, self.source)
        return min(self.least, most), most

    def first(self, nodes: Sequence[SeenNode]) -> int:
        """Return the initial number of readers on these nodes. With a rate limit it may be less than the maximum."""
        least, most = self.bounds(nodes)
        fed = [most]
        if self.rate_limit.rows_per_s is not None:
            fed.append(math.ceil(self.rate_limit.rows_per_s / ROWS_PER_S_LEAST))
        if self.rate_limit.bytes_per_s is not None:
            fed.append(math.ceil(self.rate_limit.bytes_per_s / BYTES_PER_S_LEAST))
        return max(least, min(fed))


@dataclass(frozen=True, slots=True)
class Observation:
    """The present state of a job.

    `chunk_seconds` is the time to read the remaining chunks at the present rate. `is_rate_limited` is True if the rate
    limit is used up, so that another reader would read no more.
    """

    phase: ReadPhase
    readers: tuple[SeenReader, ...]
    nodes: tuple[SeenNode, ...]
    logs: tuple[SeenLog, ...] = ()
    chunks_waiting: int = 0
    chunk_seconds: float | None = None
    partitions: int = 0
    is_rate_limited: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision: the number of `readers`, without the readers of `leave`, which must end.

    If `node` is not empty, the next reader starts there; such a node always has a free core.
    """

    readers: int
    reason: str
    leave: tuple[int, ...] = ()
    node: str = ""


@dataclass(frozen=True, slots=True)
class Scaled:
    """The decision in force, for people.

    `nodes` has the number of readers of each node. `waiting` is the number of readers without a node.
    """

    readers: int
    waiting: int
    nodes: Mapping[str, int]
    reason: str

    @classmethod
    def of(cls, decision: Decision, seen: Observation) -> Scaled:
        """Return the event of a decision and its observation."""
        labels = {node.name: node.label or node.name for node in seen.nodes}
        nodes = Counter(labels.get(reader.node, reader.node) for reader in seen.readers if reader.has_process)
        waiting = sum(not reader.has_process for reader in seen.readers)
        return cls(decision.readers, waiting, dict(sorted(nodes.items())), decision.reason)

    @property
    def key(self) -> tuple[object, ...]:
        """Return the part of the decision whose changes are reported.

        A different text of the reason alone is no change.
        """
        return (self.readers, self.waiting, tuple(self.nodes.items()))


@dataclass(frozen=True, slots=True)
class Demand:
    """The number of readers that could have work, the wanted number, and the reason."""

    useful: int
    wanted: int
    why: str


@dataclass(frozen=True, slots=True)
class Move:
    """A move of a reader: a new one starts on the node `target`, and the reader `victim` ends.

    The new one starts first if the limits allow an additional reader.
    """

    victim: int
    target: str
    why: str
    since_s: float
    extra: int
    #: True if the victim was asked to end. A new reader may have its number by now.
    reported: bool = False


class ScalingPolicy:
    """The scaling policy of one job; see the module's docstring. `readers` is the wanted number, not counting moves."""

    def __init__(self, limits: ReaderLimits) -> None:
        self._limits = limits
        self._since_s: float | None = None
        self._direction = 0
        self._move: Move | None = None
        self._move_after_s = 0.0
        self._pause_s = MOVE_PAUSE_S
        self._why = ReadPhase.UNKNOWN.value
        self.readers = limits.most or limits.least

    def __repr__(self) -> str:
        return f"ScalingPolicy(readers={self.readers}, {self._limits}, move={self._move})"

    def restart(self, seen: Observation) -> Decision:
        """Return the decision for a new coordinator from what is known of the job, without waiting."""
        self._since_s, self._move = None, None
        least, most = self._limits.bounds(seen.nodes)
        demand = self.demand(seen)
        useful, first = max(least, min(most, demand.useful)), self._limits.first(seen.nodes)
        self.readers, self._why = min(useful, first), demand.why if useful <= first else self._fed(demand.why, first)
        return Decision(self.readers, self._why)

    def poll(self, seen: Observation, *, now_s: float) -> Decision:
        """Take an observation; return the decision."""
        self._count(seen, now_s)
        staying = [reader for reader in seen.readers if not reader.leaving]
        if self._move is not None:
            return self._go_on(self._move, seen, staying, now_s)
        surplus = len(staying) - self.readers
        if surplus > 0:
            return Decision(self.readers, self._why, leave=_first_to_leave(seen, staying)[:surplus])
        self._move = self._worth_moving(seen, staying, now_s)
        if self._move is not None:
            return self._go_on(self._move, seen, staying, now_s)
        return Decision(self.readers, self._why)

    def demand(self, seen: Observation) -> Demand:
        """Return the demand for readers by the table in the module's docstring."""
        least, most = self._limits.bounds(seen.nodes)
        match seen.phase:
            case ReadPhase.UNKNOWN:
                first = self._limits.first(seen.nodes)
                why = seen.phase.value if first == most else self._fed(seen.phase.value, first)
                return Demand(first, first, why)
            case ReadPhase.LOG:
                return Demand(least, least, _of_one_log(seen))
            case ReadPhase.CHUNKS:
                demand = self._of_chunks(seen, most)
            case ReadPhase.PARTITIONS:
                demand = self._of_partitions(seen, most)
            case _:
                assert_never(seen.phase)
        return self._under_rate_limit(seen, demand) if demand.wanted > self.readers else demand

    def _under_rate_limit(self, seen: Observation, demand: Demand) -> Demand:
        """Limit the demand by the rate limit.

        No reader is added if it could not read more. Until that is known, no more readers are demanded than the rate
        limit should need.
        """
        if seen.is_rate_limited:
            why = f"{demand.why}; the source's pace is used up, and another reader would read no more"
            return Demand(demand.useful, self.readers, why)
        first = self._limits.first(seen.nodes)
        if self._limits.rate_limit and demand.wanted > first and not _shows_its_rate(seen):
            return Demand(demand.useful, max(first, self.readers), self._fed(demand.why, first))
        return demand

    def _fed(self, why: str, first: int) -> str:
        return f"{why}; the source's pace ({self._limits.rate_limit}) feeds {first}"

    def _of_chunks(self, seen: Observation, most: int) -> Demand:
        busy = max(1, sum(reader.chunks > 0 for reader in seen.readers))
        if not seen.chunks_waiting:
            # Chunks may wait a second time: if the log's reader dies, its chunks are read again.
            return Demand(most, busy, f"no chunk waits, and readers that have one: {busy}")
        if seen.chunk_seconds is not None and seen.chunk_seconds < BACKLOG_S:
            return Demand(most, min(most, self.readers), f"the last chunks take {seen.chunk_seconds:.0f} s")
        left = "" if seen.chunk_seconds is None else f", {seen.chunk_seconds:.0f} s at the present rate"
        return Demand(most, most, f"chunks wait ({seen.chunks_waiting} at least{left})")

    def _of_partitions(self, seen: Observation, most: int) -> Demand:
        useful = max(1, seen.partitions)
        seconds = sum(map(_seconds_of, seen.logs))
        by_backlog = max(1, math.ceil(seconds / BACKLOG_S))
        busy = [reader.busy for reader in seen.readers if reader.busy is not None and reader.partitions]
        said = f"{seen.partitions} partitions are {seconds:.0f} s of reading behind in all"
        if by_backlog > self.readers and busy and max(busy) < BUSY_LEAST:
            said = f"{said}; their readers are busy for {max(busy):.0%} only: they wait for the source or the sink"
            return Demand(useful, min(self.readers, by_backlog), said)
        if by_backlog < self.readers and busy and sum(busy) / max(1, self.readers - 1) > BUSY_MOST:
            return Demand(useful, self.readers, f"{said}; their readers are busy for {sum(busy) / len(busy):.0%}")
        return Demand(useful, by_backlog, said)

    def _count(self, seen: Observation, now_s: float) -> None:
        least, most = self._limits.bounds(seen.nodes)
        demand = self.demand(seen)
        useful = max(least, min(most, demand.useful))
        if self.readers > useful:
            self._since_s = None
            self.readers, self._why = useful, demand.why
            return
        wanted = max(least, min(useful, demand.wanted))
        direction = (wanted > self.readers) - (wanted < self.readers)
        if direction == 0:
            self._since_s = None
            self._why = demand.why
        elif self._since_s is None or direction != self._direction:
            self._since_s, self._direction = now_s, direction
        elif now_s - self._since_s >= (GROW_AFTER_S if direction > 0 else SHRINK_AFTER_S):
            self._since_s = None
            self.readers, self._why = wanted if direction > 0 else self.readers - 1, demand.why

    def _worth_moving(self, seen: Observation, staying: Sequence[SeenReader], now_s: float) -> Move | None:
        is_complete = len(seen.readers) == len(staying) == self.readers and all(
            reader.has_process for reader in staying
        )
        if not is_complete or now_s < self._move_after_s or self._since_s is not None:
            return None
        _, most = self._limits.bounds(seen.nodes)
        extra = 1 if self.readers < most else 0
        counts = Counter(reader.node for reader in staying)
        free = [n for n in seen.nodes if not n.silent and n.cpus_free >= self._limits.cpus]
        if seen.phase is ReadPhase.LOG:
            target = next((node for node in free if node.own), None)
            elsewhere = [reader for reader in staying if target is not None and reader.node != target.name]
            # If there is no log to read, no reader needs to move to the driver's node, and all other nodes are
            # released.
            if target is None or not elsewhere:
                return None
            victim = min(elsewhere, key=lambda reader: (counts[reader.node], reader.subtask))
            why = f"reader {victim.subtask} comes back to the driver's node, so that its own can be given back"
            return Move(victim.subtask, target.name, why, now_s, extra)
        target = min(free, key=lambda node: counts[node.name], default=None)
        if target is None or not counts or seen.phase is ReadPhase.UNKNOWN:
            return None
        fullest = max(counts, key=lambda name: counts[name])
        movable = [reader.subtask for reader in staying if reader.node == fullest and not reader.log]
        if not movable or counts[fullest] - counts[target.name] < 2:
            return None
        why = f"a reader goes to node {target.name[:12]}, which has {counts[target.name]}, {fullest[:12]} has "
        return Move(max(movable), target.name, f"{why}{counts[fullest]}", now_s, extra)

    def _go_on(self, move: Move, seen: Observation, staying: Sequence[SeenReader], now_s: float) -> Decision:
        """Continue the move: start the new reader, and then end the victim.

        If the limits allow no additional reader, end the victim first.
        """
        has_process = sum(reader.has_process for reader in staying)
        there = not move.reported and any(reader.subtask == move.victim for reader in staying)
        if move.extra and there and has_process > self.readers:
            self._end_move(now_s, MOVE_PAUSE_S)
            return Decision(self.readers, move.why, leave=(move.victim,))
        if not move.extra and not there and has_process >= self.readers:
            self._end_move(now_s, MOVE_PAUSE_S)
            return Decision(self.readers, self._why)
        lost = not any(node.name == move.target and not node.silent for node in seen.nodes)
        if now_s - move.since_s > MOVE_S or lost or (move.extra and not there):
            self._end_move(now_s, min(2 * self._pause_s, MOVE_PAUSE_MAX_S))
            # A reader that waits for that node is started again for any node.
            waiting = tuple(reader.subtask for reader in staying if not reader.has_process)
            surplus = max(0, len(staying) - self.readers)
            return Decision(self.readers, self._why, leave=waiting or _first_to_leave(seen, staying)[:surplus])
        leave = (move.victim,) if there and not move.extra else ()
        if leave:
            self._move = replace(move, reported=True)
        return Decision(self.readers + move.extra, move.why, leave=leave, node=move.target)

    def _end_move(self, now_s: float, pause_s: float) -> None:
        self._move, self._pause_s = None, pause_s
        self._move_after_s = now_s + pause_s


def _first_to_leave(seen: Observation, staying: Sequence[SeenReader]) -> tuple[int, ...]:
    """Return all readers, in the order in which they should leave."""
    counts = Counter(reader.node for reader in staying)
    nodes = {node.name: node for node in seen.nodes}

    def worth(reader: SeenReader) -> tuple[bool, bool, bool, int, bool, int]:
        node = nodes.get(reader.node)
        # In a Ray of one node, nodes have no names, and every reader is on the driver's.
        own = node.own if node is not None else not reader.node
        silent = node is not None and node.silent
        return (reader.has_process, not silent, own, counts[reader.node], reader.log, -reader.subtask)

    return tuple(reader.subtask for reader in sorted(staying, key=worth))


def _shows_its_rate(seen: Observation) -> bool:
    """Return True if readers have read for long enough to use up the rate limit, if they can."""
    if seen.phase is ReadPhase.CHUNKS:
        return seen.chunk_seconds is not None
    return all(reader.busy is not None for reader in seen.readers if reader.partitions)


def _seconds_of(log: SeenLog) -> float:
    if log.seconds is not None:
        return log.seconds
    return (log.records or 0) / RECORDS_PER_S


def _of_one_log(seen: Observation) -> str:
    behind = max((log.seconds for log in seen.logs if log.seconds is not None), default=None)
    return "one log is left, which one reader reads" + ("" if behind is None else f" ({behind:.0f} s behind)")
