"""A reader incarnation: the source's plain reader with threads for the connector and the coordinator.

| thread | does |
|---|---|
| main (`run`) | handles messages, polls the reader, heartbeats; the only one that touches the reader |
| receiver | a long call to the coordinator, always one under way |
| log fetcher, chunk fetchers | block on the source |

The main thread waits for `SourceReader.is_available` when there is nothing to do: fetchers and the receiver say so when
there is, and it wakes by itself for the next heartbeat or at the time that the reader named. An error in the reader is
reported as `ReaderFailed` when naming it helps the user, and ends the worker in any case, as an `UnexpectedError` where
it has no name; being fenced ends it silently: its successor is at work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from raycdc.bridge.access import SegmentAccess, SpoolAddress
from raycdc.errors import FencedError, RaycdcError
from raycdc.model.mask import Masks
from raycdc.runtime.chunk_fetcher import ChunkFiles
from raycdc.runtime.client import CoordinatorClient
from raycdc.runtime.coordinator_connection import CoordinatorConnection
from raycdc.runtime.fetcher_threads import TimedThreads
from raycdc.runtime.heartbeats import Heartbeats
from raycdc.runtime.output import EpochOutput
from raycdc.runtime.paced import gate_of
from raycdc.runtime.stopwatch import Stopwatch
from raycdc.runtime.unexpected import unexpected
from raycdc.source.connector import Source
from raycdc.source.protocol.api import InputStatus
from raycdc.source.protocol.link import Identity, Link
from raycdc.source.protocol.metrics import CutProgress
from raycdc.source.protocol.source_event import PaceShares, ReaderFailed, ReaderRegistration, Shutdown
from raycdc.source.reader.availability import Availability
from raycdc.source.reader.context import ReaderContext
from raycdc.waiting.stages import Board


@dataclass(frozen=True, slots=True)
class ReaderIdentity:
    """Which incarnation of which reader this is."""

    subtask_id: int
    generation: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """The settings that all readers of a job share. Picklable.

    `access` is how the reader reaches segments of other nodes, `epoch_bytes_max` how much an epoch may hold before the
    reader asks for its end, `fetchers` how many threads of one reader may read a split each. Without `parking` a table
    that cannot be followed ends the run. `partitioned`: the sink takes each key's changes in order, and nothing of the
    order between keys. `masks` are what readers hide of columns; they hold keys.
    """

    access: SegmentAccess
    epoch_bytes_max: int
    fetchers: int = 1
    parking: bool = True
    partitioned: bool = False
    masks: Masks = field(default_factory=Masks, repr=False)


class ReaderWorker:
    """See the module's docstring. `run` blocks until the worker is told to leave, fenced, or failed."""

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
        board = Board()
        link = Link(Identity(identity.generation, identity.incarnation))
        self._connection = CoordinatorConnection(coordinator, identity.subtask_id, link, notify=availability.notify)
        connection = self._connection
        gate = gate_of(source.config.pace, stopwatch, reached_s=lambda: connection.reached_s)
        self._gate = gate
        self._heartbeats = Heartbeats(
            stopwatch, board, source.statistics, lambda: None if gate is None else gate.demand()
        )
        output = EpochOutput(
            spool,
            stopwatch,
            partitioned=settings.partitioned,
            masks=masks,
            on_progress=self._tell_progress,
            access=settings.access,
        )
        files = ChunkFiles(spool, stopwatch=stopwatch, board=board, access=settings.access, masks=masks)
        self._reader = source.create_reader(
            ReaderContext(
                output,
                send=self._connection.send,
                availability=availability,
                now_s=now_s,
                epoch_bytes_max=settings.epoch_bytes_max,
                threads=TimedThreads(
                    availability=availability, stopwatch=stopwatch, board=board, chunk_files=files, gate=gate
                ),
                parking=settings.parking,
                fetchers=settings.fetchers,
            )
        )

    def __repr__(self) -> str:
        return f"ReaderWorker({self._identity}, {self._connection!r}, {self._reader!r})"

    def run(self) -> None:
        """The reader's life. Raises what ended it, if that was an error other than being fenced."""
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
            # The receiver leaves too: a reader that works no more must not be heard any more.
            self._connection.end("ended")
            self._reader.close()

    def close(self) -> None:
        """Make `run` return soon; callable from any thread."""
        self._connection.end("closed")

    def _step(self) -> bool:
        """Handle what came, do one piece of work, say what there is to say, and wait if there is nothing to do.

        False: the reader is to leave.
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
                case PaceShares(number, shares, lease_s):
                    assert self._gate is not None, "the coordinator and the reader have the same configuration"
                    self._gate.grant(number, shares, lease_s)
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

    def _tell_progress(self, progress: CutProgress) -> None:
        """In the middle of a cut."""
        heartbeat = self._heartbeats.of_cut(progress, now_s=self._now_s())
        if heartbeat is not None:
            self._connection.send(heartbeat)
            self._connection.flush()

    def _report(self, error: RaycdcError) -> None:
        """Tell the coordinator why, unless trying again may help: then a new incarnation does, after a pause."""
        if not error.retryable:
            self._connection.send(ReaderFailed(type(error).__name__, str(error)))
            self._connection.flush()
