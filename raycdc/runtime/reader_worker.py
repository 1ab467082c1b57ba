"""A reader incarnation: the source's plain reader with threads for the connector and the coordinator.

| thread | does |
|---|---|
| main (`run`) | handles messages, polls the reader, heartbeats; the only one that touches the reader |
| receiver | a long call to the coordinator, always one under way |
| log fetcher, chunk fetcher | block on the source |

Messages leave with an exchange of their own as soon as the reader has said something. An error in the reader is
reported as `ReaderFailed` when naming it helps the user, and ends the worker in any case; being fenced ends it
silently: its successor is at work.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar

from raycdc.bridge.access import SegmentAccess
from raycdc.errors import FencedError, RaycdcError
from raycdc.model.mask import Masks
from raycdc.runtime.chunk_fetcher import ChunkFetcher
from raycdc.runtime.client import CoordinatorClient
from raycdc.runtime.output import CutProgress, EpochOutput, SpoolAddress
from raycdc.runtime.stopwatch import Stopwatch
from raycdc.source.connector import ReaderContext, Source
from raycdc.source.protocol.api import ChunkSource, InputStatus
from raycdc.source.protocol.link import Identity, Link, read_packet
from raycdc.source.protocol.source_event import Heartbeat, Message, ReaderFailed, ReaderRegistration, Shutdown
from raycdc.source.reader.fetcher import SplitFetcher, SplitReader
from raycdc.source.snapshot.reading import ChunkReader

#: A reader that has nothing to say still speaks this often, so that the coordinator knows it lives and how much it has
#: read. What decides about sealing is told at once; each call costs both sides about a millisecond.
HEARTBEAT_S = 0.25
#: Longest a call to the coordinator waits for something to say.
LONG_POLL_S = 1.0
#: Longest the main thread sleeps when nothing wakes it.
IDLE_S = 0.05


ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class ReaderIdentity:
    """Which incarnation of which reader this is."""

    subtask_id: int
    generation: int
    incarnation: int


class _Fetchers:
    """`raycdc.source.connector.FetcherManager`: a thread for each; the time of all is counted."""

    def __init__(
        self, spool: SpoolAddress, access: SegmentAccess, notify: Callable[[], None], stopwatch: Stopwatch, masks: Masks
    ) -> None:
        self._masks = masks
        self._spool = spool
        self._access = access
        self._notify = notify
        self._stopwatch = stopwatch

    def start(
        self, open_reader: Callable[[], SplitReader[ItemT]], *, name: str, size: Callable[[ItemT], int]
    ) -> SplitFetcher[ItemT]:
        return SplitFetcher(
            lambda: _TimedReader(open_reader(), self._stopwatch, name), name=name, size=size, notify=self._notify
        )

    def chunks(self, open_chunks: Callable[[], ChunkReader]) -> ChunkSource:
        return ChunkFetcher(
            open_chunks,
            spool=self._spool,
            access=self._access,
            notify=self._notify,
            stopwatch=self._stopwatch,
            masks=self._masks,
        )


class _TimedReader(Generic[ItemT]):
    """A `SplitReader` with its time counted under `name`."""

    def __init__(self, reader: SplitReader[ItemT], stopwatch: Stopwatch, name: str) -> None:
        self._reader = reader
        self._stopwatch = stopwatch
        self._name = name
        self.wake_up = reader.wake_up
        self.close = reader.close

    def fetch(self) -> ItemT | None:
        with self._stopwatch.running(self._name):
            return self._reader.fetch()


class ReaderWorker:
    """See the module's docstring. `run` blocks until the worker is told to leave, fenced, or failed."""

    def __init__(
        self,
        identity: ReaderIdentity,
        *,
        source: Source[Any],
        coordinator: CoordinatorClient,
        spool: SpoolAddress,
        access: SegmentAccess,
        epoch_bytes_max: int,
        parking: bool = True,
        partitioned: bool = False,
        masks: Masks | None = None,
    ) -> None:
        self._identity = identity
        self._coordinator = coordinator
        self._spool = spool
        self._condition = threading.Condition()
        self._link = Link(Identity(identity.generation, identity.incarnation))
        self._inbox: deque[Message] = deque()
        self._stop: BaseException | str | None = None
        self._awake = False
        self._unsent = False
        self._stopwatch = Stopwatch()
        self._statistics = source.statistics
        masks = masks or Masks()
        output = EpochOutput(
            spool, self._stopwatch, partitioned=partitioned, masks=masks, on_progress=self._tell_progress, access=access
        )
        self._next_heartbeat_s = 0.0
        self._told = Heartbeat(0, wants_seal=False, metrics={})
        context = ReaderContext(
            output,
            send=self._send,
            notify=self._wake,
            now_s=time.monotonic,
            epoch_bytes_max=epoch_bytes_max,
            parking=parking,
            fetchers=_Fetchers(spool, access, self._wake, self._stopwatch, masks),
        )
        self._reader = source.create_reader(context)

    def run(self) -> None:
        """The reader's life. Raises what ended it, if that was an error other than being fenced."""
        self._send(ReaderRegistration(self._spool.node, os.getpid(), self._spool.flight))
        self._exchange(wait_s=0.0)
        receiver = threading.Thread(target=self._receive, name="receiver", daemon=True)
        receiver.start()
        try:
            self._loop()
        except FencedError:
            return
        except Exception as error:
            self._report(error)
            raise
        finally:
            # The receiver leaves too: a reader that works no more must not be heard any more.
            self._end("ended")
            self._reader.close()

    def close(self) -> None:
        """Make `run` return soon; callable from any thread."""
        self._end("closed")

    def _loop(self) -> None:
        told: tuple[bool, bool] | None = None
        while True:
            with self._condition:
                messages, stop = list(self._inbox), self._stop
                self._inbox.clear()
                self._awake = False
            if isinstance(stop, BaseException):
                raise stop
            if stop is not None:
                return
            for message in messages:
                if isinstance(message, Shutdown):
                    return
                self._reader.handle(message)
            status = self._reader.poll_next()
            now_s = time.monotonic()
            if now_s >= self._next_heartbeat_s or self._reader.seal_matters != told:
                told = self._reader.seal_matters
                self._told = self._heartbeat()
                self._send(self._told)
                self._next_heartbeat_s = now_s + HEARTBEAT_S
            if self._unsent:
                self._exchange(wait_s=0.0)
            if status is not InputStatus.MORE_AVAILABLE:
                with self._condition:
                    if not self._awake and not self._inbox:
                        self._condition.wait(IDLE_S)

    def _tell_progress(self, progress: CutProgress) -> None:
        """In the middle of a cut, which may take minutes on a slow disk: what was said last, and where the cut is."""
        now_s = time.monotonic()
        if now_s >= self._next_heartbeat_s:
            self._next_heartbeat_s = now_s + HEARTBEAT_S
            self._send(replace(self._told, metrics={**self._told.metrics, "sealing": asdict(progress)}))
            self._exchange(wait_s=0.0)

    def _heartbeat(self) -> Heartbeat:
        heartbeat = self._reader.heartbeat()
        return replace(
            heartbeat, metrics={**heartbeat.metrics, "seconds": self._stopwatch.seconds(), "source": self._statistics()}
        )

    def _send(self, message: Message) -> None:
        with self._condition:
            self._link.send(message)
            self._unsent = True

    def _exchange(self, *, wait_s: float) -> None:
        with self._condition:
            packet = self._link.packet()
            self._unsent = False
        answer = self._coordinator.exchange(
            self._identity.subtask_id, self._identity.incarnation, packet, wait_s=wait_s
        )
        with self._condition:
            self._inbox.extend(self._link.receive(read_packet(answer)))
            if self._inbox:
                self._awake = True
                self._condition.notify_all()

    def _receive(self) -> None:
        while self._stop is None:
            try:
                self._exchange(wait_s=LONG_POLL_S)
            except BaseException as error:  # noqa: BLE001 - raised again by the main thread
                self._end(error)
                return

    def _end(self, why: BaseException | str) -> None:
        with self._condition:
            self._stop = self._stop or why
            self._condition.notify_all()

    def _wake(self) -> None:
        with self._condition:
            self._awake = True
            self._condition.notify_all()

    def _report(self, error: Exception) -> None:
        """Tell the coordinator why, unless trying again may help: then a new incarnation does, after a pause."""
        if isinstance(error, RaycdcError) and not error.retryable:
            self._send(ReaderFailed(type(error).__name__, str(error)))
            self._exchange(wait_s=0.0)

    def statistics(self) -> dict[str, Any]:
        return {"identity": self._identity, "link": repr(self._link), "reader": repr(self._reader)}
