"""One generation of the job: the real coordinator, enumerator, readers and links, on a faulty network.

Each method lets one process do one thing. A process that dies is simply not called any more; one that was paused past
its fencing goes on being called, and must not get anything accepted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raycdc.core.retry import RetryPolicy
from raycdc.core.typed_codec import Json
from raycdc.errors import FencedError, SourceUnavailableError
from raycdc.model import TableId
from raycdc.model.rules.rate_limit import Until
from raycdc.runtime.reader.output import EpochOutput, OpenSegment
from raycdc.segments.access import SpoolAddress
from raycdc.segments.writing import SegmentContents
from raycdc.source.protocol.api import Availability, EnumeratorStart, InputStatus
from raycdc.source.protocol.coordination import Acknowledgements, EnumeratorContext
from raycdc.source.protocol.coordinator import (
    CoordinatorEnvironment,
    CoordinatorSettings,
    RecoveryPoint,
    SourceCoordinator,
)
from raycdc.source.protocol.link import Link, SenderIdentity, read_packet
from raycdc.source.protocol.source_event import Message, ReaderRegistration, Shutdown
from raycdc.source.reader.source_reader_base import ReaderCheckpoint, ReaderContext
from raycdc.source.snapshot.enumerator.incremental_enumerator import IncrementalSnapshotEnumerator, restore_or_create
from raycdc.source.snapshot.handoff.hand_off import LogRows
from raycdc.source.snapshot.reader.incremental_reader import IncrementalReader
from raycdc.source.split import STREAM_SPLIT_ID
from raycdc.source.tables.table_requests import refusals_of
from raycdc.state.manifests.manifest import Segment
from tests.support.simulation.chunk_source import SimChunkSource
from tests.support.simulation.database import SimDatabase
from tests.support.simulation.network import Address, Datagram, FaultyNetwork, NoThreads, SimulatedClock
from tests.support.simulation.source import SimEnumeratorDialect, SimFailoverDialect, SimReaderDialect
from tests.support.simulation.state import Author, MemorySegmentWriter, MemorySpool, MemoryState

#: The intervals of the simulated job: short, so that a run has many epochs.
SETTINGS = CoordinatorSettings(
    epoch_interval_s=0.7,
    epoch_bytes_max=6_000,
    epoch_bytes_idle=1_500,
    in_flight_max=2,
    reader_timeout_s=3.0,
    progress_timeout_s=18.0,
)
HEARTBEAT_S = 0.3
#: The time limit of a catch-up stream: short, so that its tables are given up in some of the runs.
PATIENCE = RetryPolicy(longest_s=1.0, jitter=0.0, retry_s=2.0)
#: A few rows.
HELD_BYTES_MAX = 300
NODE = "sim"


class MemoryRows:
    """Held rows that were spilled; they cannot be read after they are deleted."""

    def __init__(self, rows: Sequence[LogRows]) -> None:
        self._rows: Sequence[LogRows] | None = list(rows)

    def __iter__(self) -> Iterator[LogRows]:
        assert self._rows is not None, "held rows are read that were deleted"
        return iter(self._rows)

    def delete(self) -> None:
        self._rows = None


class MemoryOutput(EpochOutput):
    """The real output, with segments in memory."""

    def __init__(self, spool: MemorySpool, author: Author) -> None:
        super().__init__(SpoolAddress(Path("memory"), "memory"))
        self._counts = random.Random(str(author))
        self._memory = spool
        self._author = author

    def release(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._memory.delete(path)

    def spill(self, rows: Sequence[LogRows]) -> MemoryRows:
        return MemoryRows(rows)

    def discard(self, segments: Sequence[Segment]) -> None:
        self.release([segment.path for segment in segments])

    def _partitions_of(self, table: TableId, key: Sequence[str]) -> int:
        """Return any number of partitions; the real one depends on sizes, which the simulation does not have."""
        return self._open.partitions.setdefault(table, self._counts.choice([1, 2, 4]) if key else 1)

    def _writer(self, contents: SegmentContents) -> OpenSegment:
        return MemorySegmentWriter(self._memory, self._author, contents)


class CheckedReader(IncrementalReader):
    """A reader whose sealed changes are compared with the state that they lead to."""

    def report(self) -> ReaderCheckpoint:
        report = super().report()
        if self._log is not None:
            whole = self._log.state().to_json()
            change = report.changes.get(STREAM_SPLIT_ID)
            sealed = report.splits[STREAM_SPLIT_ID].to_json() if change is None else change.onto(self._sealed)
            assert sealed == whole, f"{change} was sealed, which makes {sealed} and not {whole}"
            self._sealed: dict[str, Json] = sealed
        return report


class SimReaderProcess:
    """A reader process."""

    def __init__(
        self,
        address: Address,
        generation: int,
        database: SimDatabase,
        spool: MemorySpool,
        clock: SimulatedClock,
        chance: random.Random,
    ) -> None:
        self.address = address
        self.author: Author = (generation, *address)
        self.ended = False
        self.paused_until_s = 0.0
        self.dialect = SimReaderDialect(database, spool, self.author, chance)
        self.link = Link(SenderIdentity(generation, address[1]))
        context = ReaderContext(
            MemoryOutput(spool, self.author),
            send=self.link.send,
            availability=Availability(),
            now_s=lambda: clock.now_s,
            epoch_bytes_max=SETTINGS.epoch_bytes_max,
            threads=NoThreads(),
        )
        self.reader = CheckedReader(context, self.dialect, held_bytes_max=HELD_BYTES_MAX, retry_policy=PATIENCE)
        self._clock = clock
        self._next_heartbeat_s = 0.0
        self.link.send(ReaderRegistration(NODE, address[0] + 1, ""))

    def __repr__(self) -> str:
        return f"SimReader({self.address}, ended={self.ended}, {self.reader!r}, {self.link!r})"

    @property
    def runs(self) -> bool:
        return not self.ended and self._clock.now_s >= self.paused_until_s

    @property
    def has_changes(self) -> bool:
        """Return True if the reader has messages to send, or if its heartbeat is due."""
        return self.link.has_unacknowledged or self._clock.now_s >= self._next_heartbeat_s

    def receive(self, data: bytes) -> None:
        try:
            messages = self.link.receive(read_packet(data))
        except FencedError:
            self.ended = True
            return
        for message in messages:
            self._handle(message)

    def poll(self) -> InputStatus:
        try:
            status = self.reader.poll_next()
        except SourceUnavailableError:
            self.ended = True
            return InputStatus.NOTHING_AVAILABLE
        self.ended = self.ended or self.dialect.cut_off
        return status

    def speak(self) -> bytes:
        if self._clock.now_s >= self._next_heartbeat_s:
            self.link.send(self.reader.heartbeat())
            self._next_heartbeat_s = self._clock.now_s + HEARTBEAT_S
        return self.link.packet()

    def _handle(self, message: Message) -> None:
        if isinstance(message, Shutdown):
            self.ended = True
        elif not self.ended:
            self.reader.handle(message)


@dataclass(slots=True)
class _Call:
    """A blocking call of the enumerator: first it is made, later its result is handed back."""

    call: Callable[[], Any]
    handler: Callable[[Any], None]
    done: bool = False
    result: Any = None


class SimCluster:
    """See the module's docstring."""

    def __init__(
        self,
        *,
        database: SimDatabase,
        state: MemoryState,
        spool: MemorySpool,
        clock: SimulatedClock,
        chance: random.Random,
        readers: int,
        until: Until | None,
        faults: float,
        committed: int,
    ) -> None:
        state.generation += 1
        self.generation = state.generation
        self.until = until
        self.network = FaultyNetwork(chance, faults)
        self.readers: dict[Address, SimReaderProcess] = {}
        self._database = database
        self._spool = spool
        self._clock = clock
        self._random = chance
        self._calls: list[_Call] = []
        #: Reports of commits to the source; one is made at each tick.
        self._telling: list[_Call] = []
        self._incarnations: dict[int, int] = {}
        self._leaving: set[int] = set()
        self.enumerator: IncrementalSnapshotEnumerator | None = None
        state.require_log()
        last = state.last
        self.coordinator = SourceCoordinator(
            lambda context: self._enumerator(context, state),
            recovered=RecoveryPoint(self.generation, last, committed, state.next_epoch),
            settings=SETTINGS,
            surroundings=CoordinatorEnvironment(
                state,
                lambda call, handler, _: self._calls.append(_Call(call, handler)),
                lambda: int(clock.now_s * 1000),
                Acknowledgements(state.acknowledge, self._acknowledge_later),
            ),
        )
        for epoch, manifest in state.manifests.items():
            if epoch > committed:
                self.coordinator.epochs.adopt(manifest)
        self.coordinator.start()
        for subtask in range(readers):
            self.start_reader(subtask)

    def __repr__(self) -> str:
        return f"Cluster({self.coordinator!r}, {self.enumerator!r}, {list(self.readers.values())})"

    def _enumerator(self, context: EnumeratorContext, state: MemoryState) -> IncrementalSnapshotEnumerator:
        dialect = SimFailoverDialect if self._database.fails_over else SimEnumeratorDialect
        self.enumerator = restore_or_create(
            context,
            dialect(self._database),
            EnumeratorStart(self.until, state.last, state.schema_document, state.requests, refusals_of(state.parked)),
        )
        return self.enumerator

    @property
    def current(self) -> list[SimReaderProcess]:
        """Return the newest incarnation of each reader, dead or alive."""
        return [r for (subtask, inc), r in self.readers.items() if self._incarnations.get(subtask) == inc]

    def start_reader(self, subtask: int) -> None:
        incarnation = self._incarnations.get(subtask, 0) + 1
        self._incarnations[subtask] = incarnation
        address = (subtask, incarnation)
        self.readers[address] = SimReaderProcess(
            address, self.generation, self._database, self._spool, self._clock, self._random
        )

    def supervise(self, *, zombies: bool) -> None:
        """Replace what ended or was fenced; with `zombies` a fenced process is left running."""
        for subtask, incarnation, _ in self.coordinator.readers.take_lost():
            fenced = self.readers.get((subtask, incarnation))
            if fenced is not None and not zombies:
                fenced.ended = True
            if self._incarnations.get(subtask) == incarnation:
                self._replace(subtask)
        for reader in self.current:
            if reader.ended:
                self.coordinator.reader_lost(*reader.address, "ended")
                if self._incarnations.get(reader.address[0]) == reader.address[1]:
                    self.coordinator.readers.take_lost()
                    self._replace(reader.address[0])
        for subtask in sorted(self._leaving):
            self._let_go(subtask)
        for address in [a for a, r in self.readers.items() if r.ended]:
            del self.readers[address]

    def retire(self, subtask: int) -> bool:
        """Release a reader like the supervisor, which asks repeatedly; never the last reader."""
        staying = {reader.address[0] for reader in self.current} - self._leaving
        if subtask not in staying or len(staying) < 2:
            return False
        self._leaving.add(subtask)
        return self._let_go(subtask)

    def _let_go(self, subtask: int) -> bool:
        if not self.coordinator.retire(subtask):
            return False
        self._leaving.discard(subtask)
        self.readers.pop((subtask, self._incarnations[subtask]), None)
        return True

    def _replace(self, subtask: int) -> None:
        """Replace an ended reader, unless it was leaving."""
        if subtask in self._leaving:
            self._leaving.discard(subtask)
        else:
            self.start_reader(subtask)

    def deliver(self) -> None:
        datagram = self.network.take()
        if datagram is None:
            return
        if datagram.to_coordinator:
            self._to_coordinator(datagram)
        else:
            reader = self.readers.get(datagram.reader)
            if reader is not None and reader.runs:
                reader.receive(datagram.data)

    def _to_coordinator(self, datagram: Datagram) -> None:
        subtask, incarnation = datagram.reader
        try:
            self.coordinator.receive(subtask, datagram.data, now_s=self._clock.now_s)
        except FencedError:
            self._tell_fenced(datagram.reader)
            return
        answer = self.coordinator.readers.outgoing(subtask, incarnation)
        if answer is not None:
            self.network.send(Datagram(datagram.reader, to_coordinator=False, data=answer))

    def _tell_fenced(self, address: Address) -> None:
        reader = self.readers.get(address)
        if reader is not None and reader.runs and self._random.random() < 0.5:
            reader.ended = True

    def tick(self) -> None:
        self.coordinator.tick(now_s=self._clock.now_s)
        if self._telling:
            self._advance(self._telling, self._telling[0])

    def call(self) -> None:
        """Make a blocking call of the enumerator, or let its result arrive."""
        if not self._calls:
            return
        self._advance(self._calls, self._random.choice(self._calls))

    def _acknowledge_later(self, call: Callable[[], Any], handler: Callable[[Any], None], _: float) -> None:
        self._telling.append(_Call(call, handler))

    def _advance(self, calls: list[_Call], call: _Call) -> None:
        if not call.done:
            call.result, call.done = call.call(), True
            return
        calls.remove(call)
        call.handler(call.result)

    def step_reader(self, reader: SimReaderProcess, action: str) -> None:
        match action:
            case "poll":
                reader.poll()
            case "speak":
                self.network.send(Datagram(reader.address, to_coordinator=True, data=reader.speak()))
            case _:
                if reader.dialect.chunks is not None:
                    self._step_chunks(reader, reader.dialect.chunks)

    def _step_chunks(self, reader: SimReaderProcess, chunks: SimChunkSource) -> None:
        try:
            chunks.step()
        except FileNotFoundError:
            # The job deletes the rows that a lost reader had read. A reader that still folds them fails, which is
            # ignored.
            if self._incarnations.get(reader.address[0]) == reader.address[1]:
                raise
            reader.ended = True
