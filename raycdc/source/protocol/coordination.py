"""The parts of a source coordinator: settings, environment, seal timer, acknowledgements, enumerator context.

`Acknowledgements` reports to the source up to which positions the sink holds everything. It makes one call at a time,
with the newest positions, and never before the commit. `EnumeratorContext` turns the enumerator's decisions about
splits and events into messages to live readers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from raycdc.errors import RaycdcError
from raycdc.source.protocol.epochs import PendingEpochs
from raycdc.source.protocol.live_readers import LiveReader, LiveReaders
from raycdc.source.protocol.metrics import SplitLoad
from raycdc.source.protocol.source_event import AddSplits, NoMoreSplits, SourceEvent, SourceEventWrapper
from raycdc.source.split import PartitionSplit, SnapshotSplit, SourceSplit, StreamSplit
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.opaque import Position, SealedSplit, positions_in

#: ``(call, handler, after_s)``: runs `call` on another thread, and then `handler` with the result on the coordinator's
#: thread.
CallAsync = Callable[[Callable[[], Any], Callable[[Any], None], float], None]


class Acknowledgements:
    """Calls `raycdc.source.connector.Source.acknowledge` for the coordinator. Used by one thread; never blocks. Commits
    that come during a call are combined in the next call.
    """

    def __init__(self, acknowledge: Callable[[Mapping[str, Position]], None], call_async: CallAsync) -> None:
        self._acknowledge = acknowledge
        self._call_async = call_async
        self._positions: Mapping[str, Position] | None = None
        self._under_way = False
        #: The error of the last call, for people; empty if it succeeded.
        self.problems: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Acknowledgements(idle={self.idle})"

    @property
    def idle(self) -> bool:
        """Return True if no call to the source is pending or running."""
        return not self._under_way and self._positions is None

    def committed(self, splits: Mapping[str, SealedSplit]) -> None:
        """Report to the source that the sink holds an epoch.

        `splits` are the states of the unbounded splits in its manifest.
        """
        positions = positions_in(splits)
        if positions:
            self._positions = positions
            self._notify()

    def _notify(self) -> None:
        if self._under_way or self._positions is None:
            return
        positions, self._positions = self._positions, None
        self._under_way = True
        self._call_async(lambda: self._problem_of(positions), self._acknowledged, 0.0)

    def _problem_of(self, positions: Mapping[str, Position]) -> str:
        try:
            self._acknowledge(positions)
        except RaycdcError as error:
            return str(error)
        return ""

    def _acknowledged(self, problem: str) -> None:
        self._under_way = False
        self.problems = {"acknowledge": problem} if problem else {}
        self._notify()


def no_acknowledgements() -> Acknowledgements:
    """Return acknowledgements that do nothing, for a source that does not need them."""
    return Acknowledgements(lambda _: None, lambda call, handler, _: handler(call()))


#: A position that moved without rows is sealed at most this often.
IDLE_SEAL_INTERVAL_S = 10.0
#: An early epoch collects changes for this long, so that one transaction is not split into two epochs.
EARLY_S = 0.1
#: Unused early epochs are saved up for at most this time.
EARLY_KEPT_S = 600.0


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Intervals, limits and timeouts. Times are in seconds, sizes in bytes.

    While the sink is idle, an epoch of `epoch_bytes_idle` is sealed, so that the sink writes it while the next epoch is
    read. While an earlier epoch is uncommitted, a smaller epoch is not sealed. It would only wait for the sink, and
    changes that come meanwhile can still become part of it. The second rule does not apply if a Python caller takes the
    epochs (`hand_taken`), because the caller may report the commit of one epoch only after it got the next one.

    A reader whose process is silent for `reader_timeout_s` counts as dead. If its process answers, but its main thread
    makes no progress for `progress_timeout_s`, the reader hangs and would delay a seal forever. Each synced file counts
    as progress. If the source is `is_rate_limited`, readers share one budget.

    While the sink is idle, an epoch with changes may be sealed before `epoch_interval_s` is over. The number of epochs
    then stays at most `epochs_per_hour` on average (0: no early epochs). No epoch is sealed early while a chunk is
    being read, because rows of a snapshot are better written in large epochs.
    """

    epoch_interval_s: float = 2.0
    epoch_bytes_max: int = 256 << 20
    epoch_bytes_idle: int = 64 << 20
    in_flight_max: int = 2
    reader_timeout_s: float = 10.0
    progress_timeout_s: float = 60.0
    is_rate_limited: bool = False
    epochs_per_hour: int = 0
    hand_taken: bool = False


class ManifestWriter(Protocol):
    """The writer of the durable side of an epoch (`raycdc.state.store`)."""

    def put_documents(self, documents: Mapping[str, dict[str, Any]]) -> None:
        """Keep schema documents by their fingerprints."""

    def document(self, fingerprint: str) -> dict[str, Any]: ...

    def write_manifest(self, manifest: Manifest) -> None: ...


@dataclass(frozen=True, slots=True)
class CoordinatorEnvironment:
    """The outside world of a coordinator: its state, background calls, clock, and acknowledgements of commits."""

    writer: ManifestWriter
    call_async: CallAsync
    wall_ms: Callable[[], int]
    acknowledgements: Acknowledgements = field(default_factory=no_acknowledgements)


class SealTimer:
    """Decides when the open epoch is to be sealed, by the rules of `CoordinatorSettings`."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._settings = settings
        self._last_s = 0.0
        #: A token bucket: the number of epochs that may be sealed early, as of `_last_s`.
        self._most = max(1.0, settings.epochs_per_hour * EARLY_KEPT_S / 3600) if settings.epochs_per_hour else 0.0
        self._kept = self._most

    def restart(self, *, now_s: float) -> None:
        """Note that the open epoch is being sealed."""
        self._kept = max(0.0, self._early(now_s) - 1)
        self._last_s = now_s

    def _early(self, now_s: float) -> float:
        """Return the number of epochs that may be early by now."""
        return min(self._most, self._kept + (now_s - self._last_s) * self._settings.epochs_per_hour / 3600)

    def is_due(
        self, readers: Collection[LiveReader], *, asked: bool, in_flight: int, reads_chunks: bool, now_s: float
    ) -> bool:
        """Return True if the open epoch of these registered readers should be sealed now.

        `asked` is True if the run stops or the enumerator requested a seal. If `reads_chunks` is True, no epoch is
        sealed early, because it would only make small files.
        """
        if not readers or in_flight >= self._settings.in_flight_max:
            return False
        if asked or any(reader.heartbeat.wants_seal for reader in readers):
            return True
        open_bytes = sum(reader.heartbeat.open_bytes for reader in readers)
        enough = self._settings.epoch_bytes_max if in_flight else self._settings.epoch_bytes_idle
        if open_bytes >= min(enough, self._settings.epoch_bytes_max):
            return True
        age_s = now_s - self._last_s
        if open_bytes > 0:
            if in_flight and open_bytes < self._settings.epoch_bytes_idle and not self._settings.hand_taken:
                return False
            early = not in_flight and not reads_chunks and age_s >= EARLY_S and self._early(now_s) >= 1
            return early or age_s >= self._settings.epoch_interval_s
        dirty = any(reader.heartbeat.dirty for reader in readers)
        return dirty and age_s >= max(IDLE_SEAL_INTERVAL_S, self._settings.epoch_interval_s)


class EnumeratorContext:
    """The `raycdc.source.protocol.api.SplitEnumeratorContext` of a coordinator.

    It records the owner of each split, and the state with which an unbounded split is assigned. If the owner is lost
    before an epoch seals a newer state, the split continues from that state.
    """

    def __init__(
        self, readers: LiveReaders, epochs: PendingEpochs, writer: ManifestWriter, call_async: CallAsync
    ) -> None:
        self._readers, self._epochs, self._writer = readers, epochs, writer
        self._call_async = call_async
        #: Set by the coordinator's shell, which has the clock.
        self.now_s = 0.0

    def registered_readers(self) -> Sequence[int]:
        return [subtask_id for subtask_id, reader in self._readers.registered.items() if not reader.leaving]

    def may_have_splits(self, subtask_id: int) -> bool:
        reader = self._readers.get(subtask_id)
        return reader is not None and reader.registered and not reader.leaving

    def split_loads(self) -> Mapping[str, SplitLoad]:
        reported = (reader.heartbeat.metrics.partitions for _, reader in self._readers)
        loads = (partitions.loads or {} for partitions in reported if partitions is not None)
        return {split: load for each in loads for split, load in each.items()}

    def assign_splits(self, assignment: Mapping[int, Sequence[SourceSplit]]) -> None:
        for subtask_id, splits in assignment.items():
            reader = self._readers[subtask_id]
            for split in splits:
                reader.splits[split.split_id] = split
                if isinstance(split, SnapshotSplit):
                    self._readers.chunks.give(reader, split)
                if isinstance(split, PartitionSplit):
                    self._epochs.splits[split.split_id] = split.state
                if isinstance(split, StreamSplit):
                    self._epochs.splits[split.split_id] = split.state.sealed()
                    self._writer.put_documents({name: each.to_json() for name, each in split.schemas.items()})
            reader.link.send(AddSplits(tuple(splits)))

    def send_event(self, subtask_id: int, event: SourceEvent) -> None:
        reader = self._readers.get(subtask_id)
        if reader is not None:
            reader.link.send(SourceEventWrapper(event))

    def remove_splits(self, subtask_id: int, split_ids: Sequence[str]) -> None:
        reader = self._readers.get(subtask_id)
        if reader is not None:
            reader.ask_back(split_ids)

    @property
    def open_epoch(self) -> int:
        return self._epochs.open

    def end_split(self, split_id: str, *, attempt: int) -> None:
        self._readers.chunks.end(split_id, attempt)

    def signal_no_more_splits(self, subtask_id: int) -> None:
        reader = self._readers.get(subtask_id)
        if reader is not None:
            reader.link.send(NoMoreSplits())

    def call_async(self, call: Callable[[], Any], handler: Callable[[Any], None], *, after_s: float = 0.0) -> None:
        self._call_async(call, handler, after_s)
