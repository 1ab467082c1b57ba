"""A source of many independent logs, for the simulation: partitions that grow, and appear, while the job runs.

Enumerator and reader are made of what every such source shares (`raycdc.source.partitions.assigner`,
`raycdc.source.partitions.partition_source_reader`); what is read is a number per record, so that the oracle can see
each one once.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raycdc.errors import ProtocolError
from raycdc.model import TableId
from raycdc.model.rules.rate_limit import Until
from raycdc.source.partitions.assigner import PartitionAssigner
from raycdc.source.partitions.partition_source_reader import PartitionSet
from raycdc.source.protocol.api import EnumeratorPart, SplitEnumeratorContext
from raycdc.source.protocol.metrics import PartitionMetrics, ReaderMetrics, SplitLoad
from raycdc.source.protocol.rate_budget import Lane
from raycdc.source.protocol.source_event import (
    AddSplits,
    CheckpointComplete,
    EpochSealed,
    Heartbeat,
    Message,
    NoMoreSplits,
    RateQuotas,
    Registered,
    RemoveSplits,
    SealEpoch,
    SourceEvent,
)
from raycdc.source.reader.reader_quota import ReaderRateLimiter
from raycdc.source.split import PartitionSplit, SourceSplit
from raycdc.source.tables.parking import Refusal
from raycdc.state.manifests.manifest import Manifest, Segment, TableEpoch
from raycdc.state.opaque import EnumeratorState, SealedSplit

#: The bytes of a record in heartbeats.
RECORD_BYTES = 100
#: How likely a reader that keeps up, or is behind, takes something fetched when it works; and that this changes.
TAKES, TAKES_BEHIND, CHANGES = 0.9, 0.15, 0.05
#: The maximum time that a reader waits for the rate limit before it polls again.
HELD_S = 1.0
#: Seconds between two queries of the enumerator for new partitions.
DISCOVERY_S = 1.0


@dataclass(slots=True)
class SimTopic:
    """The number of records of each partition; records are numbered from 0."""

    lengths: dict[str, int] = field(default_factory=dict)

    def append(self, chance: random.Random) -> None:
        partition = chance.choice(sorted(self.lengths))
        self.lengths[partition] += chance.randrange(1, 4)

    def grow(self) -> None:
        """Add a partition."""
        self.lengths[f"p{len(self.lengths)}"] = 0


class PartitionEnumerator:
    """The `SplitEnumerator` of a `SimTopic`. `until` other than None ends a run where partitions end now."""

    def __init__(
        self, context: SplitEnumeratorContext, topic: SimTopic, *, until: Until | None, last: Manifest | None
    ) -> None:
        self._context = context
        self._topic = topic
        self._until = until
        self._ends: dict[str, int] | None = None
        self._states: dict[str, int] = {}
        self.assigner = PartitionAssigner(context, self._split)
        if last is not None:
            self._states = {split: _offset(state) for split, state in last.to_splits.items()}
            self._states |= dict.fromkeys(last.enumerator.to_json()["waiting"], 0) | self._states

    def _split(self, split_id: str) -> PartitionSplit:
        end = None if self._ends is None else self._ends.get(split_id)
        return PartitionSplit(split_id, sealed(self._states[split_id]), end)

    def start(self) -> None:
        """Start; nothing is assigned before the first query."""
        self._context.call_async(lambda: dict(self._topic.lengths), self._on_discovered)

    def _on_discovered(self, found: dict[str, int]) -> None:
        if self._until is not None and self._ends is None:
            self._ends = found
        for split_id in found:
            self._states.setdefault(split_id, 0)
        self.assigner.add(s for s in found if not self._ended(s))
        if self._until is None:
            self._context.call_async(lambda: dict(self._topic.lengths), self._on_discovered, after_s=DISCOVERY_S)

    def _ended(self, split_id: str) -> bool:
        return self._ends is not None and self._states[split_id] >= self._ends.get(split_id, 0)

    def handle_split_request(self, subtask_id: int) -> None:
        """Do nothing: partitions are assigned without requests."""

    def add_splits_back(self, splits: Sequence[SourceSplit], subtask_id: int) -> None:
        for split in splits:
            assert isinstance(split, PartitionSplit)
            self._states[split.split_id] = _offset(split.state)
        self.assigner.back(split.split_id for split in splits if isinstance(split, PartitionSplit))

    def add_reader(self, subtask_id: int) -> None:
        self.assigner.give()
        self.assigner.balance()

    def handle_source_event(self, subtask_id: int, event: SourceEvent) -> None:
        raise ProtocolError(f"nobody sends {event}")

    def handle_splits_finished(self, split_ids: Sequence[str]) -> None:
        assert not split_ids

    def epoch_sealed(self, epoch: int, splits: Mapping[str, SealedSplit]) -> EnumeratorPart:
        self._states.update({split: _offset(state) for split, state in splits.items()})
        self.assigner.balance()
        return EnumeratorPart(final=self._ends is not None and all(self._ended(s) for s in self._ends))

    @property
    def wants_seal(self) -> bool:
        return self._ends is not None and all(self._ended(s) for s in self._ends)

    def snapshot_state(self, checkpoint_id: int) -> EnumeratorState:
        return EnumeratorState.from_json({"waiting": sorted(self.assigner.waiting)})

    def park_tables(self, refusals: Sequence[Refusal]) -> None:
        """Do nothing: the partition is still read for its other tables, and the driver drops the rows of these."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Do nothing: the topic need not know."""

    @property
    def problems(self) -> dict[str, str]:
        return {}

    @property
    def chunks_waiting(self) -> int:
        return len(self.assigner.waiting)

    def progress(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Do nothing: nothing is open."""


@dataclass(slots=True)
class ReaderCursor:
    """A reader's own state of one partition."""

    split_id: str
    position: int
    until: int | None


@dataclass(slots=True)
class FetchCursor:
    """The position of the fetcher in one partition, which is ahead of its reader."""

    position: int
    until: int | None
    addition: int


class PartitionReader:
    """A reader of several partitions: whichever has something is next. `spool` takes finished segments' records.

    As behind a real fetcher, records wait in one queue for all partitions, and what is in it stays there when its
    partition leaves.
    """

    def __init__(
        self, topic: SimTopic, spool: dict[str, list[tuple[str, int]]], send: Callable[[Message], None], name: str
    ) -> None:
        self._topic = topic
        self._spool = spool
        self._send = send
        self._name = name
        self._epoch = 0
        self._seal: int | None = None
        self._rows: list[tuple[str, int]] = []
        self._dirty = False
        self._fetching: dict[str, FetchCursor] = {}
        self._queue: deque[tuple[str, int, range]] = deque()
        self._behind = False
        #: What it keeps to, where the topic is read at a pace.
        self.pace: ReaderRateLimiter | None = None
        self.partitions: PartitionSet[ReaderCursor] = PartitionSet(
            send,
            open_split=self._open,
            state_of=lambda cursor: sealed(cursor.position),
            close_split=lambda _: None,
        )

    def __repr__(self) -> str:
        return f"PartitionReader({self._name}, epoch={self._epoch}, rows={len(self._rows)}, {self.partitions!r})"

    def handle(self, message: Message) -> None:
        match message:
            case Registered(epoch):
                self._epoch = epoch
            case AddSplits(splits):
                self.partitions.add(splits)
            case RemoveSplits(split_ids):
                self.partitions.remove(split_ids)
                for split_id in split_ids:
                    self._fetching.pop(split_id, None)
            case SealEpoch(epoch):
                self._seal = epoch
            case RateQuotas(number, shares, lease_s) if self.pace is not None:
                self.pace.grant(number, shares, lease_s)
            case CheckpointComplete() | NoMoreSplits():
                return
            case _:
                raise ProtocolError(f"{type(message).__name__} is not a message for a reader")

    def _open(self, split: PartitionSplit, addition: int) -> ReaderCursor:
        position = _offset(split.state)
        self._fetching[split.split_id] = FetchCursor(position, split.until, addition)
        return ReaderCursor(split.split_id, position, split.until)

    def poll(self, chance: random.Random, *, calm: bool = False) -> None:
        """Fetch a little of some partition; cut if it is time, else take what was fetched first, or be slow."""
        self._fetch(chance)
        self._behind ^= chance.random() < CHANGES
        if self._seal is not None:
            self._cut(self._seal)
        elif self._queue and (calm or chance.random() < (TAKES_BEHIND if self._behind else TAKES)):
            self._take(*self._queue.popleft())

    def _fetch(self, chance: random.Random) -> None:
        readable = [split_id for split_id, cursor in self._fetching.items() if cursor.position < self._end(split_id)]
        if readable and self.pace is not None and (wait_s := self.pace.free_in_s(Lane.LOG)):
            self.pace.held(Lane.LOG, min(wait_s, HELD_S))
            return
        if readable:
            split_id = chance.choice(readable)
            cursor = self._fetching[split_id]
            stop = min(cursor.position + chance.randrange(1, 4), self._end(split_id))
            self._queue.append((split_id, cursor.addition, range(cursor.position, stop)))
            if self.pace is not None:
                self.pace.fetched(Lane.LOG, rows=stop - cursor.position, size=0)
            cursor.position = stop

    def _take(self, split_id: str, addition: int, numbers: range) -> None:
        cursor = self.partitions.read(split_id, addition)
        if cursor is None:
            return
        for number in numbers:
            if number >= cursor.position:
                self._rows.append((split_id, number))
                cursor.position = number + 1
                self._dirty = True

    def _end(self, split_id: str) -> int:
        length, until = self._topic.lengths[split_id], self._fetching[split_id].until
        return length if until is None else min(length, until)

    def heartbeat(self) -> Heartbeat:
        wants = self.partitions.wants_seal or (self._dirty and self._at_its_end())
        metrics = ReaderMetrics(partitions=PartitionMetrics(loads=self._loads()))
        pace = None if self.pace is None else self.pace.demand()
        size = len(self._rows) * RECORD_BYTES
        return Heartbeat(size, wants_seal=wants, dirty=self._dirty, metrics=metrics, rate_demand=pace)

    def _loads(self) -> dict[str, SplitLoad]:
        """One partition is hot, and another one from time to time: wrong figures must do no harm."""
        hot = f"p{self._epoch // 40 % 3}"
        return {split_id: SplitLoad(1e7 if split_id == hot else 1e5) for split_id, _ in self.partitions.active()}

    def _at_its_end(self) -> bool:
        return all(c.until is not None and c.position >= c.until for _, c in self.partitions.active())

    def _cut(self, epoch: int) -> None:
        self._seal = None
        if epoch < self._epoch:
            return
        segments = self._segments(epoch)
        report = EpochSealed(
            epoch=epoch,
            splits=self.partitions.states(),
            segments=tuple(segments),
            tables={str(s.table): TableEpoch("f", snapshot=False) for s in segments},
            schemas={},
            finished=(),
            watermark_ms=None,
            end_of_input=False,
        )
        self._send(report)
        self._epoch = epoch + 1
        self._rows, self._dirty = [], False
        self.partitions.after_cut()

    def _segments(self, epoch: int) -> list[Segment]:
        if not self._rows:
            return []
        name = f"{self._name}-{epoch}"
        self._spool[name] = self._rows
        rows = len(self._rows)
        return [Segment("sim", name, "", TableId("topic", "all"), "f", "", 0, "log", 0, rows, rows * RECORD_BYTES, 0)]


def sealed(offset: int) -> SealedSplit:
    """Return the state of a partition of which `offset` records were read."""
    return SealedSplit.from_json({"position": offset})


def _offset(state: SealedSplit) -> int:
    position = state.position
    assert position is not None
    return int(position.to_json())
