"""The common part of all source readers: FLIP-27's `SourceReaderBase`.

A reader is one class without a thread of its own. The shell (`raycdc.runtime.reader.reader_worker`, or a simulation)
calls `handle` with each message and `poll_next` until it returns NOTHING_AVAILABLE, and then waits for `is_available`.
Blocking work runs in fetchers (`raycdc.source.reader.fetcher_manager`), which are polled.

| message | effect |
|---|---|
| `Registered` | rows read from now on belong to the epoch it names |
| `AddSplits`, `RemoveSplits` | `add_splits`, `remove_splits` |
| `NoMoreSplits` | the reader may come to its end |
| `SourceEventWrapper` | `handle_source_event` |
| `SealEpoch` | at the next possible point, the reader cuts the epoch and sends positions and segments together |
| `CheckpointComplete` | segment files that are no longer needed are deleted |

Two kinds of readers derive from it: `raycdc.source.snapshot.reader.incremental_reader.IncrementalReader` for chunks and
a log, and `raycdc.source.partitions.partition_source_reader.PartitionSourceReader` for many logs with a position each.

`ReaderContext` has everything that a reader is created with: its output, its link to the coordinator, and fetcher
threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeVar

from raycdc.core.failpoints import reach
from raycdc.errors import ProtocolError
from raycdc.source.protocol.api import Availability, ChunkSource, InputStatus, ReaderOutput
from raycdc.source.protocol.metrics import ReaderMetrics
from raycdc.source.protocol.source_event import (
    AddSplits,
    CheckpointComplete,
    EpochSealed,
    Heartbeat,
    Message,
    NoMoreSplits,
    Registered,
    RemoveSplits,
    SealEpoch,
    SourceEvent,
    SourceEventWrapper,
)
from raycdc.source.reader.fetcher_manager import FetcherManager, ThreadingModel
from raycdc.source.reader.split_reader import FetchedSplit, SplitReader
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.reader.reading import ChunkReader
from raycdc.source.split import SourceSplit
from raycdc.state.manifests.manifest import TableEpoch
from raycdc.state.manifests.sealed_state import Patch
from raycdc.state.opaque import SealedSplit

ItemT = TypeVar("ItemT")
SplitT = TypeVar("SplitT", bound=FetchedSplit)


class FetcherThreads(Protocol):
    """Starts the threads that block on a source instead of its reader, and counts their time."""

    def start(
        self, open_reader: Callable[[], SplitReader[SplitT, ItemT]], *, name: str, threading: ThreadingModel
    ) -> FetcherManager[SplitT, ItemT]:
        """Return a manager whose fetchers each open a reader; `name` names the threads in figures and stack traces."""

    def chunks(self, open_chunks: Callable[[], ChunkReader], *, threading: ThreadingModel) -> ChunkSource:
        """Return fetchers that read chunks into segments, each over its own connection."""


@dataclass(frozen=True, slots=True)
class ReaderContext:
    """The objects and limits that a reader is created with: output, link to the coordinator, wake-up of its thread,
    clock, and fetchers.

    `now_s` is a monotonic clock in seconds. After `epoch_bytes_max` bytes the reader requests a seal. `parking` is True
    if single tables may be parked. `fetchers` is the number of fetchers that may read splits concurrently
    (``readers.fetchers``).
    """

    output: ReaderOutput
    send: Callable[[Message], None]
    availability: Availability
    now_s: Callable[[], float]
    epoch_bytes_max: int
    threads: FetcherThreads
    parking: bool = True
    fetchers: int = 1


@dataclass(frozen=True, slots=True)
class ReaderCheckpoint:
    """The reader's part of a checkpoint: the fields of `EpochSealed` without the segments."""

    splits: Mapping[str, SealedSplit] = field(default_factory=dict)
    changes: Mapping[str, Patch] = field(default_factory=dict)
    tables: Mapping[str, TableEpoch] = field(default_factory=dict)
    schemas: Mapping[str, SchemaDocument] = field(default_factory=dict)
    finished: tuple[str, ...] = ()
    watermark_ms: int | None = None
    end_of_input: bool = False


@dataclass(frozen=True, slots=True)
class SealState:
    """The seal state of the open epoch. `wanted` is True if the epoch should end now. `dirty` is True if a cut now
    would differ from the last one.
    """

    wanted: bool = False
    dirty: bool = False


class SourceReaderBase(ABC):
    """The base of readers; see the module's docstring. All methods are called by one thread, and none blocks."""

    #: True if `work` continues while a seal waits, because it leads to a point where the reader can cut.
    advances_cut: ClassVar[bool] = True

    def __init__(self, context: ReaderContext) -> None:
        self.context = context
        #: The open epoch, and True once the coordinator said that no further split will come.
        self.epoch = 0
        self.no_more_splits = False
        self._seal: int | None = None

    @abstractmethod
    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        """Take over these splits, and send `SplitsAdded`."""

    @abstractmethod
    def remove_splits(self, split_ids: Sequence[str]) -> None:
        """Give these splits up, and send `SplitsRemoved` as soon as no row of them is in the open epoch."""

    @abstractmethod
    def work(self) -> bool:
        """Do one piece of work other than cutting. Returns False if there is none now."""

    @abstractmethod
    def report(self) -> ReaderCheckpoint:
        """Return the states of the splits after the rows of the epoch that is being cut. Events that this method sends
        arrive before the report.
        """

    @abstractmethod
    def metrics(self) -> ReaderMetrics:
        """Return figures for people."""

    def handle_source_event(self, event: SourceEvent) -> None:
        """Handle an event of the connector's enumerator."""
        raise ProtocolError(f"A reader does not know the event {type(event).__name__}")

    def epoch_opened(self) -> None:
        """Called when `epoch` is open: after the registration, and after each report. The default does nothing."""
        return

    def can_cut(self) -> bool:
        """Return True if the epoch may end here. Called repeatedly while a seal waits."""
        return True

    @property
    def seal_state(self) -> SealState:
        """Return the seal state of the open epoch."""
        return SealState()

    @property
    def end_of_input(self) -> bool:
        """Return True if no more input will ever come. Called while the reader is idle."""
        return False

    def handle(self, message: Message) -> None:
        """Handle one message of the coordinator. Raises `ProtocolError` for a message that is unknown or not for
        readers.
        """
        match message:
            case Registered(epoch):
                self.epoch = epoch
                self.epoch_opened()
            case AddSplits(splits):
                self.add_splits(splits)
            case RemoveSplits(split_ids):
                self.remove_splits(split_ids)
            case NoMoreSplits():
                self.no_more_splits = True
            case SourceEventWrapper(event):
                self.handle_source_event(event)
            case SealEpoch(epoch):
                self._seal = epoch
            case CheckpointComplete(_, release, elsewhere):
                self.context.output.release(release)
                self.context.output.discard(elsewhere)
            case _:
                raise ProtocolError(f"{type(message).__name__} is not a message for a reader")

    def poll_next(self) -> InputStatus:
        """Do one piece of work. Cutting the epoch comes before other work."""
        if self._seal is not None:
            if self.can_cut():
                self._cut(self._seal)
                return InputStatus.MORE_AVAILABLE
            if not self.advances_cut:
                return InputStatus.NOTHING_AVAILABLE
        if self.work():
            return InputStatus.MORE_AVAILABLE
        return InputStatus.END_OF_INPUT if self.end_of_input else InputStatus.NOTHING_AVAILABLE

    @property
    def is_available(self) -> Availability:
        """The availability that the shell waits for when `poll_next` has nothing."""
        return self.context.availability

    def heartbeat(self) -> Heartbeat:
        """Return the reader's present figures for the coordinator."""
        return Heartbeat(
            open_bytes=self.context.output.open_bytes,
            wants_seal=self.seal_state.wanted,
            dirty=self.seal_state.dirty,
            metrics=self.metrics(),
        )

    @property
    def seal_matters(self) -> tuple[bool, bool]:
        """Return facts whose change the coordinator should learn immediately: the epoch should end, or it has rows."""
        return self.seal_state.wanted, self.context.output.open_bytes > 0

    def close(self) -> None:
        """Close the reader. A subclass closes its fetchers before."""
        self.context.output.close()

    def send_event(self, event: SourceEvent) -> None:
        """Send an event to the connector's enumerator."""
        self.context.send(SourceEventWrapper(event))

    def _cut(self, epoch: int) -> None:
        self._seal = None
        if epoch < self.epoch:
            return  # The epoch was sealed before; the report is on its way or was handled.
        reach("before_seal")
        report = self.report()
        segments = self.context.output.cut(epoch)
        self.context.send(
            EpochSealed(
                epoch=epoch,
                splits=report.splits,
                changes=report.changes,
                segments=segments,
                tables=report.tables,
                schemas=report.schemas,
                finished=report.finished,
                watermark_ms=report.watermark_ms,
                end_of_input=report.end_of_input,
            )
        )
        reach("after_seal")
        self.epoch = epoch + 1
        self.epoch_opened()
