"""One incarnation of a reader: the source's plain reader, with threads for the connector and the coordinator.

| thread | does |
|---|---|
| main (`run`) | handles messages, polls the reader and sends heartbeats; no other thread uses the reader |
| receiver | always has one long call to the coordinator open |
| log fetcher, chunk fetchers | block on the source |

When idle, the main thread waits for `SourceReader.is_available`: fetchers and the receiver notify it, and it wakes up
for the next heartbeat or at the time that the reader set. Any error in the reader ends the worker. The coordinator gets
it as `ReaderFailed`, unless a retry may help. An error that is not one of raycdc's own becomes an `UnexpectedError`. A
fenced worker ends without a report, because its successor is at work.

`TimedThreads` creates a reader's `raycdc.source.reader.source_reader_base.FetcherThreads` and measures their time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from raycdc.core.activity import ActivityTracker, Stage
from raycdc.errors import FencedError, RaycdcError
from raycdc.model.rules.mask import Masks
from raycdc.runtime.reader.chunk_fetcher import ChunkFiles, ChunkSplitReader, FetchedChunks
from raycdc.runtime.reader.coordinator_connection import CoordinatorClient, CoordinatorConnection
from raycdc.runtime.reader.heartbeats import Heartbeats, Stopwatch
from raycdc.runtime.reader.limited_fetchers import ProcessRateLimiter, RateLimitedChunks, RateLimitedSplits, gate_of
from raycdc.runtime.reader.output import EpochOutput
from raycdc.runtime.unexpected import unexpected
from raycdc.segments.access import SegmentAccess, SpoolAddress
from raycdc.source.connector import Source
from raycdc.source.protocol.api import Availability, ChunkSource, InputStatus
from raycdc.source.protocol.link import Link, SenderIdentity
from raycdc.source.protocol.metrics import CutProgress
from raycdc.source.protocol.source_event import RateQuotas, ReaderFailed, ReaderRegistration, Shutdown
from raycdc.source.reader.fetcher_manager import FetcherManager, SplitFetcherManager, ThreadingModel
from raycdc.source.reader.source_reader_base import ReaderContext
from raycdc.source.reader.split_reader import FetchedSplit, RecordsWithSplitIds, SplitReader, SplitsChange
from raycdc.source.snapshot.reader.reading import ChunkReader

ItemT = TypeVar("ItemT")
SplitT = TypeVar("SplitT", bound=FetchedSplit)
OpenedT = TypeVar("OpenedT")


class TimedThreads:
    """Creates fetchers' threads with measured times; see the module's docstring.

    If there is a `gate`, all fetches pass it.
    """

    def __init__(
        self,
        *,
        availability: Availability,
        stopwatch: Stopwatch,
        tracker: ActivityTracker,
        chunk_files: ChunkFiles,
        gate: ProcessRateLimiter | None,
    ) -> None:
        self._gate = gate
        self._tracker = tracker
        self._availability = availability
        self._stopwatch = stopwatch
        self._chunk_files = chunk_files

    def start(
        self, open_reader: Callable[[], SplitReader[SplitT, ItemT]], *, name: str, threading: ThreadingModel
    ) -> FetcherManager[SplitT, ItemT]:
        return SplitFetcherManager(
            lambda: _TimedReader(self._rate_limited(self._opened(open_reader)), self._stopwatch, self._tracker, name),
            threading=threading,
            name=name,
            notify=self._availability.notify,
        )

    def chunks(self, open_chunks: Callable[[], ChunkReader], *, threading: ThreadingModel) -> ChunkSource:
        files = self._chunk_files  # The chunk reader measures its own times of reading and writing.
        fetchers = SplitFetcherManager(
            lambda: ChunkSplitReader(partial(self._opened_chunks, open_chunks), files),
            threading=threading,
            name="chunk-fetcher",
            notify=self._availability.notify,
        )
        return FetchedChunks(fetchers, files)

    def _opened(self, open_reader: Callable[[], OpenedT]) -> OpenedT:
        """Open the reader, on the fetcher's thread."""
        with self._tracker.doing(Stage.OPEN, "waits for the server to let it in"):
            return open_reader()

    def _opened_chunks(self, open_chunks: Callable[[], ChunkReader]) -> ChunkReader:
        reader = self._opened(open_chunks)
        return reader if self._gate is None else RateLimitedChunks(reader, self._gate)

    def _rate_limited(self, reader: SplitReader[SplitT, ItemT]) -> SplitReader[SplitT, ItemT]:
        return reader if self._gate is None else RateLimitedSplits(reader, self._gate)


class _TimedReader(Generic[SplitT, ItemT]):
    """A `SplitReader` with the time of its fetches counted under `name`."""

    def __init__(
        self, reader: SplitReader[SplitT, ItemT], stopwatch: Stopwatch, tracker: ActivityTracker, name: str
    ) -> None:
        self._reader = reader
        self._work = tracker.lasting(Stage.LOG, "fetches and decodes")
        self._stopwatch = stopwatch
        self._name = name

    def fetch(self) -> RecordsWithSplitIds[ItemT] | None:
        with self._stopwatch.running(self._name), self._work.turn():
            return self._reader.fetch()

    def handle_splits_changes(self, change: SplitsChange[SplitT]) -> None:
        self._reader.handle_splits_changes(change)

    def wake_up(self) -> None:
        self._reader.wake_up()

    def close(self) -> None:
        self._work.close()
        self._reader.close()


@dataclass(frozen=True, slots=True)
class ReaderIdentity:
    """The identity of a reader's incarnation."""

    subtask_id: int
    generation: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """The settings that all readers of a job share. Picklable.

    `access` gives access to segments on other nodes. `epoch_bytes_max` is the size of an epoch at which the reader
    requests its end. `fetchers` is the number of threads of one reader that may each read a split. If `parking` is
    False, a table that cannot be followed ends the run. `partitioned` is True if the sink needs the order of each key's
    changes, but no order between keys. `masks` are applied to columns; they contain keys.
    """

    access: SegmentAccess
    epoch_bytes_max: int
    fetchers: int = 1
    parking: bool = True
    partitioned: bool = False
    masks: Masks = field(default_factory=Masks, repr=False)


class ReaderWorker:
    """The worker of one incarnation; see the module's docstring.

    `run` blocks until the worker is asked to leave, is fenced, or fails.
    """

    def __init__(
        self,
        identity: ReaderIdentity,
        *,
        source: Source[Any],
        coordinator: CoordinatorClient,
        spool: SpoolAddress,
        settings: ReaderSettings,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identity = identity
        self._source = source
        self._spool = spool
        self._now_s = now_s
        availability, stopwatch, masks = Availability(), Stopwatch(), settings.masks
        tracker = ActivityTracker()
        link = Link(SenderIdentity(identity.generation, identity.incarnation))
        self._connection = CoordinatorConnection(coordinator, identity.subtask_id, link, notify=availability.notify)
        connection = self._connection
        gate = gate_of(source.config.rate_limit, stopwatch, reached_s=lambda: connection.reached_s)
        self._gate = gate
        self._heartbeats = Heartbeats(
            stopwatch, tracker, source.statistics, lambda: None if gate is None else gate.demand()
        )
        output = EpochOutput(
            spool,
            stopwatch,
            partitioned=settings.partitioned,
            masks=masks,
            on_progress=self._report_progress,
            access=settings.access,
        )
        files = ChunkFiles(spool, stopwatch=stopwatch, tracker=tracker, access=settings.access, masks=masks)
        self._reader = source.create_reader(
            ReaderContext(
                output,
                send=self._connection.send,
                availability=availability,
                now_s=now_s,
                epoch_bytes_max=settings.epoch_bytes_max,
                threads=TimedThreads(
                    availability=availability, stopwatch=stopwatch, tracker=tracker, chunk_files=files, gate=gate
                ),
                parking=settings.parking,
                fetchers=settings.fetchers,
            )
        )

    def __repr__(self) -> str:
        return f"ReaderWorker({self._identity}, {self._connection!r}, {self._reader!r})"

    def run(self) -> None:
        """Run the reader until it ends. Raises the error that ended it, except being fenced."""
        self._connection.send(ReaderRegistration(self._spool.node, os.getpid(), self._spool.flight))
        self._connection.open()
        try:
            while self._step():
                continue
        except FencedError:
            return
        except RaycdcError as error:
            self._report(error)
            raise
        except Exception as error:
            raise unexpected(error, self._source) from error
        finally:
            # The receiver ends, too, because a reader that has stopped must not send messages any more.
            self._connection.end("ended")
            self._reader.close()

    def close(self) -> None:
        """Make `run` return soon; callable from any thread."""
        self._connection.end("closed")

    def _step(self) -> bool:
        """Handle received messages, do one piece of work, send messages, and wait if there is no work.

        Return False if the reader must end.
        """
        available = self._reader.is_available
        available.begin()
        messages = self._connection.take()
        if messages is None:
            return False
        for message in messages:
            match message:
                case Shutdown():
                    return False
                case RateQuotas(number, quotas, lease_s):
                    assert self._gate is not None, "the coordinator and the reader have the same configuration"
                    self._gate.grant(number, quotas, lease_s)
                case _:
                    self._reader.handle(message)
        status = self._reader.poll_next()
        heartbeat = self._heartbeats.of(self._reader, now_s=self._now_s())
        if heartbeat is not None:
            self._connection.send(heartbeat)
        called_s = self._now_s()
        self._connection.flush()
        if heartbeat is not None:
            now_s = self._now_s()
            self._heartbeats.took(now_s - called_s, now_s=now_s)
        if status is not InputStatus.MORE_AVAILABLE:
            available.wait(now_s=self._now_s(), until_s=self._heartbeats.due_s)
        return True

    def _report_progress(self, progress: CutProgress) -> None:
        """Send a heartbeat in the middle of a cut."""
        heartbeat = self._heartbeats.of_cut(progress, now_s=self._now_s())
        if heartbeat is not None:
            self._connection.send(heartbeat)
            self._connection.flush()

    def _report(self, error: RaycdcError) -> None:
        """Report the error to the coordinator, unless a retry may help.

        In that case a new incarnation retries after a pause.
        """
        if not error.retryable:
            self._connection.send(ReaderFailed(type(error).__name__, str(error)))
            self._connection.flush()
