"""The readers that a coordinator knows: the live incarnation of each reader, and the readers that were lost.

| a packet from | result |
|---|---|
| the current incarnation | accepted |
| an older incarnation or generation | refused with `FencedError`; that process must end |
| a newer incarnation | accepted as the first of a new link |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from raycdc.errors import FencedError
from raycdc.source.protocol.job_status import ReaderStatus
from raycdc.source.protocol.link import Link, SenderIdentity
from raycdc.source.protocol.rate_budget import Holder
from raycdc.source.protocol.source_event import Heartbeat, RemoveSplits, Shutdown
from raycdc.source.split import STREAM_SPLIT_ID, PartitionSplit, SnapshotSplit, SourceSplit


@dataclass(slots=True)
class LiveReader:
    """One live incarnation of a reader.

    If it is `leaving`, it gets no more splits, and ends when it has no split any more. `asked_back` are splits that it
    was asked to give back.
    """

    link: Link
    node: str
    pid: int
    last_heard_s: float
    last_spoke_s: float
    registered: bool = False
    leaving: bool = False
    splits: dict[str, SourceSplit] = field(default_factory=dict)
    asked_back: set[str] = field(default_factory=set)
    heartbeat: Heartbeat = field(default_factory=Heartbeat)

    def holder(self, subtask_id: int) -> Holder:
        """Return the identity under which the rate limiter knows the reader."""
        return subtask_id, self.link.identity.incarnation

    def ask_back(self, split_ids: Iterable[str]) -> None:
        """Ask the reader to give these splits back. Splits that it does not have, or was already asked to give back,
        are skipped.
        """
        fresh = [split_id for split_id in split_ids if split_id in self.splits and split_id not in self.asked_back]
        if fresh:
            self.asked_back.update(fresh)
            self.link.send(RemoveSplits(tuple(fresh)))

    def status(self, subtask_id: int) -> ReaderStatus:
        return ReaderStatus(
            subtask=subtask_id,
            incarnation=self.link.identity.incarnation,
            pid=self.pid,
            node=self.node,
            splits=tuple(sorted(self.splits)),
            chunks=sum(isinstance(split, SnapshotSplit) for split in self.splits.values()),
            partitions=sum(isinstance(split, PartitionSplit) for split in self.splits.values()),
            leaving=self.leaving,
            open_bytes=self.heartbeat.open_bytes,
            metrics=self.heartbeat.metrics,
            process=self.heartbeat.process,
            rate_demand=self.heartbeat.rate_demand,
        )


class ChunkOwners:
    """The owner of each attempt at a chunk, so that it is found without a search through all readers."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, int], LiveReader] = {}

    def give(self, reader: LiveReader, split: SnapshotSplit) -> None:
        """Record that the reader has the chunk from now on."""
        self._owners[split.split_id, split.attempt] = reader

    def end(self, split_id: str, attempt: int) -> None:
        """Record that no reader works at this attempt any more. Has no effect if no reader did."""
        owner = self._owners.pop((split_id, attempt), None)
        split = None if owner is None else owner.splits.get(split_id)
        if owner is not None and isinstance(split, SnapshotSplit) and split.attempt == attempt:
            del owner.splits[split_id]

    def lose(self, splits: Iterable[SourceSplit]) -> None:
        """Remove the splits of a lost reader."""
        for split in splits:
            if isinstance(split, SnapshotSplit):
                self._owners.pop((split.split_id, split.attempt), None)

    @property
    def under_way(self) -> bool:
        """Return True if any attempt has an owner."""
        return bool(self._owners)

    def clear(self) -> None:
        """Remove all owners."""
        self._owners.clear()


class LiveReaders:
    """The live readers, at most one incarnation of each. A replaced incarnation never becomes live again."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self._live: dict[int, LiveReader] = {}
        self._incarnations: dict[int, int] = {}
        self._lost: list[tuple[int, int, str]] = []
        self._reported: set[int] = set()
        self.chunks = ChunkOwners()
        #: Readers whose last incarnation left as intended.
        self.ended: set[int] = set()

    def __repr__(self) -> str:
        return f"LiveReaders(generation={self.generation}, live={sorted(self._live)})"

    def __iter__(self) -> Iterator[tuple[int, LiveReader]]:
        return iter(self._live.items())

    def __getitem__(self, subtask_id: int) -> LiveReader:
        return self._live[subtask_id]

    def get(self, subtask_id: int) -> LiveReader | None:
        return self._live.get(subtask_id)

    @property
    def registered(self) -> dict[int, LiveReader]:
        """Return the readers that have registered."""
        return {subtask_id: reader for subtask_id, reader in self._live.items() if reader.registered}

    def is_live(self, subtask_id: int, incarnation: int) -> bool:
        """Return True if that incarnation is the live one."""
        return subtask_id in self._live and self._incarnations[subtask_id] == incarnation

    def check(self, subtask_id: int, identity: SenderIdentity) -> None:
        """Raise `FencedError` for a packet of a process that was replaced or given up as lost."""
        if identity.generation != self.generation:
            raise FencedError(
                f"Reader {subtask_id} belongs to generation {identity.generation}; this is {self.generation}."
            )
        current = self._incarnations.get(subtask_id, 0)
        if identity.incarnation < current:
            raise FencedError(f"Reader {subtask_id}.{identity.incarnation} was replaced by .{current}.")
        if identity.incarnation == current and subtask_id not in self._live:
            raise FencedError(f"Reader {subtask_id}.{current} was given up as lost.")

    def is_new(self, subtask_id: int, identity: SenderIdentity) -> bool:
        """Return True if a packet that passed `check` is the first of a newer incarnation."""
        return identity.incarnation > self._incarnations.get(subtask_id, 0)

    def add(self, subtask_id: int, identity: SenderIdentity, *, now_s: float) -> None:
        """Add a newer incarnation of a reader. The caller has removed the previous one."""
        self._incarnations[subtask_id] = identity.incarnation
        self.ended.discard(subtask_id)
        link = Link(identity, on_send=partial(self._reported.add, subtask_id))
        self._live[subtask_id] = LiveReader(link, node="", pid=0, last_heard_s=now_s, last_spoke_s=now_s)

    def lose(self, subtask_id: int, reason: str) -> LiveReader:
        """Fence the reader: all later packets of its process are refused."""
        reader = self._live.pop(subtask_id)
        self._reported.add(subtask_id)
        self.chunks.lose(reader.splits.values())
        self._lost.append((subtask_id, reader.link.identity.incarnation, reason))
        return reader

    def let_go(self, subtask_id: int) -> None:
        """Remove a reader that is not needed any more. Later messages of its process are refused."""
        del self._live[subtask_id]
        self.ended.add(subtask_id)
        self._reported.add(subtask_id)

    def take_changed(self) -> set[int]:
        """Return the readers that have something to be sent to them, or that were removed, since the last call."""
        reported = set(self._reported)
        self._reported.clear()
        return reported

    def take_lost(self) -> list[tuple[int, int, str]]:
        """Return (subtask, incarnation, reason) of readers that were fenced or lost since the last call.

        The shell must end and replace them.
        """
        lost, self._lost = self._lost, []
        return lost

    def silent(self, *, now_s: float, reader_timeout_s: float, progress_timeout_s: float) -> dict[int, str]:
        """Return the readers to fence, with the reason: their process is silent, or its main thread makes
        no progress.
        """
        silent = {
            subtask_id: f"silent for {reader_timeout_s:g} s"
            for subtask_id, reader in self._live.items()
            if now_s - reader.last_heard_s > reader_timeout_s
        }
        stuck = {
            subtask_id: f"stuck for {progress_timeout_s:g} s"
            for subtask_id, reader in self._live.items()
            if now_s - reader.last_spoke_s > progress_timeout_s
        }
        return silent | stuck

    def was_busy(self, seconds: float) -> None:
        """Extend all deadlines: the coordinator was busy for `seconds` (a slow disk) and could not receive."""
        for reader in self._live.values():
            reader.last_heard_s += seconds
            reader.last_spoke_s += seconds

    def outgoing(self, subtask_id: int, incarnation: int) -> bytes | None:
        """Return the packet to send to this incarnation now; None if it is not the current one."""
        reader = self._live.get(subtask_id)
        if reader is None or reader.link.identity != SenderIdentity(self.generation, incarnation):
            return None
        return reader.link.packet()

    def has_outgoing(self, subtask_id: int) -> bool:
        reader = self._live.get(subtask_id)
        return reader is not None and reader.link.has_unacknowledged

    def shutdown(self, reason: str) -> None:
        """Tell every reader to close and leave."""
        for reader in self._live.values():
            reader.link.send(Shutdown(reason))

    def statuses(self) -> tuple[ReaderStatus, ...]:
        return tuple(reader.status(subtask_id) for subtask_id, reader in sorted(self._live.items()))


def log_on_its_way(live: LiveReaders) -> int | None:
    """Return the log's reader if it is leaving and the next seal may release it. While a chunk is in progress, the
    reader is kept, because each chunk needs the log's reader.
    """
    readers = list(live)
    moving = next((s for s, reader in readers if reader.leaving and STREAM_SPLIT_ID in reader.splits), None)
    if moving is None or any(isinstance(split, SnapshotSplit) for _, r in readers for split in r.splits.values()):
        return None
    return moving
