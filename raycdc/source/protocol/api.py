"""The FLIP-27 interfaces of a source's two sides, enumerator and reader.

The source as a whole is `raycdc.source.connector`.

Vocabulary and division of work follow Flink's FLIP-27 and ``flink-cdc-base``. The enumerator discovers and assigns
splits, and acts only through its context. Readers read splits, and do not know of each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

import pyarrow as pa

from raycdc.core.activity import Stalled
from raycdc.model import TableId
from raycdc.model.rules.rate_limit import Until
from raycdc.source.protocol.metrics import ReaderMetrics, SplitLoad
from raycdc.source.protocol.source_event import Heartbeat, Message, SourceEvent
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.log.log_rows import LogRows, SpilledRows
from raycdc.source.split import OpenedAt, SnapshotSplit, SourceSplit
from raycdc.source.tables.parking import Refusal, Requests
from raycdc.source.tables.table_life import Parked
from raycdc.state.manifests.manifest import Manifest, Segment, TableEpoch
from raycdc.state.opaque import EnumeratorState, SealedSplit


class Availability:
    """Wakes one waiting thread.

    Any thread may call `notify`. A notification that came before a wait ends the wait immediately. The waiting thread
    clears the notification (`begin`) *before* it reads its queues and inboxes. If something arrives after that, the new
    notification ends the next wait, so no polling is needed.
    """

    def __init__(self) -> None:
        self._available = threading.Event()
        self._due_s: float | None = None

    def __repr__(self) -> str:
        return f"Availability({self._available.is_set()}, due_s={self._due_s})"

    @property
    def due_s(self) -> float | None:
        """Return the earliest time that was passed to `at` since `begin`."""
        return self._due_s

    def notify(self) -> None:
        """Wake the waiting thread, because there is work. Callable from any thread; never blocks."""
        self._available.set()

    def at(self, due_s: float) -> None:
        """Let the wait end at the monotonic time `due_s`. Called by the waiting thread."""
        self._due_s = due_s if self._due_s is None else min(self._due_s, due_s)

    def begin(self) -> None:
        """Clear the notification; the waiting thread then checks all its queues and inboxes."""
        self._available.clear()
        self._due_s = None

    def wait(self, *, now_s: float, until_s: float) -> bool:
        """Block until notified, or until a time given to `at`, or until `until_s`. Returns True if notified."""
        due_s = until_s if self._due_s is None else min(self._due_s, until_s)
        return self._available.wait(max(0.0, due_s - now_s))


class InputStatus(Enum):
    """The result of `SourceReader.poll_next`: more work now, nothing now, or nothing ever again."""

    MORE_AVAILABLE = auto()
    NOTHING_AVAILABLE = auto()
    END_OF_INPUT = auto()


class SplitEnumeratorContext(Protocol):
    """The only way in which an enumerator acts on readers and on the source.

    Called from the coordinator's thread only.
    """

    @property
    def now_s(self) -> float:
        """Return the time of the packet or tick that the coordinator handles, in seconds of a clock that never goes
        back.
        """

    def registered_readers(self) -> Sequence[int]:
        """Return the readers that may be given splits: those that are alive and not about to leave."""

    def may_have_splits(self, subtask_id: int) -> bool:
        """Return True if the reader is one of `registered_readers`, in constant time."""

    def split_loads(self) -> Mapping[str, SplitLoad]:
        """Return the last reported load of each partition. The duration grows with the number of readers."""

    def assign_splits(self, assignment: Mapping[int, Sequence[SourceSplit]]) -> None: ...

    def send_event(self, subtask_id: int, event: SourceEvent) -> None: ...

    def end_split(self, split_id: str, *, attempt: int) -> None:
        """Record that no reader works at this attempt of a bounded split any more. Has no effect if no reader did."""

    def remove_splits(self, subtask_id: int, split_ids: Sequence[str]) -> None:
        """Take partitions from a live reader; after its next seal they are passed to `add_splits_back`.

        Repeating the call, or naming splits that the reader does not have, is harmless.
        """

    def signal_no_more_splits(self, subtask_id: int) -> None: ...

    @property
    def open_epoch(self) -> int:
        """Return the first epoch whose seal was not requested yet. A message sent now is handled before that seal."""

    def call_async(self, call: Callable[[], Any], handler: Callable[[Any], None], *, after_s: float = 0.0) -> None:
        """Run `call` off the coordinator's thread, `after_s` from now, and then call `handler` with its result on that
        thread.

        While the source is unreachable, the call is retried; any other error fails the job. Periodic work (discovery)
        schedules itself again from its handler, so two calls of one kind never run at the same time.
        """


@dataclass(frozen=True, slots=True)
class EnumeratorPart:
    """The enumerator's part of a manifest.

    `tables` are the schemas and changes that begin with this epoch, for tables of any reader. `schemas` are the schema
    documents that `tables` refers to. `final` is True if the run ends with the epoch; if it is None, the
    ``end_of_input`` of the readers decides.
    """

    tables: Mapping[TableId, TableEpoch] = field(default_factory=dict)
    schemas: Mapping[str, SchemaDocument] = field(default_factory=dict)
    final: bool | None = None


@dataclass(frozen=True, slots=True)
class EnumeratorStart:
    """The inputs of an enumerator that starts. It continues from the manifest `last`; None at a first start. `until`
    bounds the run (None: it goes on until it is stopped). `document` returns schema documents by their fingerprint.
    `requests` are users' requests about tables, and `refusals` are tables to park immediately.
    """

    until: Until | None
    last: Manifest | None
    document: Callable[[str], SchemaDocument]
    requests: Requests | None = None
    refusals: Sequence[Refusal] = ()


@dataclass(frozen=True, slots=True)
class SnapshotAmount:
    """The number of rows of a table that its chunks have delivered, and the source's `estimate` of the table's total
    number.
    """

    rows: int = 0
    bytes: int = 0
    estimate: int | None = None


NO_AMOUNT = SnapshotAmount()


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """The progress of a backfill: chunks and rows in manifests, and the known number of chunks (0: not yet known)."""

    chunks_done: int = 0
    chunks_total: int = 0
    rows: int = 0

    @property
    def percent(self) -> float | None:
        """Return the finished share by chunks; None while the number of chunks is unknown."""
        return min(99.9, 100 * self.chunks_done / self.chunks_total) if self.chunks_total else None


@dataclass(frozen=True, slots=True)
class TableProgress:
    """The progress of a table, for people. Its phase is ``"snapshot"`` or ``"stream"``; if it is `parked`, there is a
    reason. `backfill` is the progress of a running backfill. If the table was resnapshotted in this run, `begun` is the
    reason for which it was parked before that.
    """

    phase: str
    chunks_done: int = 0
    chunks_total: int = 0
    parked: Parked | None = None
    amount: SnapshotAmount | None = None
    backfill: BackfillProgress | None = None
    begun: Parked | None = None


@dataclass(frozen=True, slots=True)
class TableCounts:
    """Counts of all tables together: the number of tables, the number of tables in their snapshot, and the numbers of
    chunks that are read and left. Chunks that are read are counted for all tables. Chunks that are left are counted for
    tables in their snapshot, as far as they are known.
    """

    tables: int = 0
    in_snapshot: int = 0
    chunks_done: int = 0
    chunks_left: int = 0
    chunks_out: int = 0


NO_TABLES = TableCounts()


class TablesProgress(Protocol):
    """The progress of an enumerator's tables."""

    def counts(self) -> TableCounts:
        """Return the counts of all tables together.

        Called several times a second, so its duration must not grow with the number of tables.
        """

    def tables(self) -> Mapping[TableId, TableProgress]:
        """Return the progress of each table, for people.

        The duration grows with the number of tables, so callers with many tables call it less often.
        """


_STREAMED = TableProgress("stream")


@dataclass(frozen=True, slots=True)
class Streamed:
    """The `TablesProgress` of tables without a snapshot."""

    names: Collection[TableId]

    def counts(self) -> TableCounts:
        return TableCounts(len(self.names))

    def tables(self) -> dict[TableId, TableProgress]:
        return dict.fromkeys(self.names, _STREAMED)


@dataclass(frozen=True, slots=True)
class EnumeratorStatistics:
    """An enumerator's progress, for choosing the number of readers, and for people.

    `chunks_waiting` is a lower bound of the number of bounded splits without a reader; it is positive while there are
    any. `problems` are harmless errors that are kept until they are resolved, each under the name of the work that
    failed. `stalled` are descriptions of work that waits for a user. `owing` are the names of spools with segments of
    bounded splits that are in no report yet. `chunks_out` is the number of bounded splits that were given to readers
    and are in no manifest yet.
    """

    progress: TablesProgress
    chunks_waiting: int = 0
    problems: Mapping[str, str] = field(default_factory=dict)
    owing: frozenset[str] = frozenset()
    stalled: Sequence[Stalled] = ()
    chunks_out: int = 0


class SplitEnumerator(Protocol):
    """Discovers splits and gives them to readers.

    Used by one thread. It never blocks: blocking work goes through `call_async`.
    """

    def start(self) -> None: ...

    def handle_split_request(self, subtask_id: int) -> None: ...

    def add_splits_back(self, splits: Sequence[SourceSplit], subtask_id: int) -> None:
        """Take back splits at their last sealed state, because reader `subtask_id` was lost."""

    def add_reader(self, subtask_id: int) -> None: ...

    def handle_source_event(self, subtask_id: int, event: SourceEvent) -> None: ...

    def handle_splits_finished(self, split_ids: Sequence[str]) -> None:
        """Note that the rows of these bounded splits are part of the epoch whose manifest is being written."""

    def epoch_sealed(self, epoch: int, splits: Mapping[str, SealedSplit]) -> EnumeratorPart:
        """Return the enumerator's part of the manifest of `epoch`, which is being written.

        `splits` are the states of unbounded splits in it.

        Called right before `snapshot_state`.
        """

    @property
    def wants_seal(self) -> bool:
        """Return True if the open epoch should end even if no reader requests it."""

    def snapshot_state(self, checkpoint_id: int) -> EnumeratorState: ...

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None: ...

    def park_tables(self, refusals: Sequence[Refusal]) -> None:
        """Stop reading these tables, because the driver commits no more of their rows. If the source cannot park single
        tables, their rows may still come.
        """

    def statistics(self) -> EnumeratorStatistics:
        """Return the progress.

        Called several times a second, so its duration must not grow with the number of tables.
        """


@dataclass(frozen=True, slots=True)
class ChunkSegments:
    """The result of reading a chunk: finished segments that belong to no epoch yet.

    See `raycdc.source.snapshot.handoff.hand_off`. `high` is an upper bound of the log positions of the rows that its
    SELECT saw. `log_end` is the end of the log, queried after the SELECT: statements after it cannot have decided which
    table the SELECT found under the name. A chunk has no segments if one of three reasons is given: `schema_mismatch`
    if the table differs from the chunk's schema document, `locked` if another session holds a lock on the table, or
    `refused` if the chunk can never be read.
    """

    split: SnapshotSplit
    high: int
    exact: bool
    segments: tuple[Segment, ...]
    log_end: int = field(kw_only=True)
    schema_mismatch: str = ""
    locked: bool = False
    refused: str = ""


class ChunkSource(Protocol):
    """A background reader of chunks, one or several at a time.

    Calls come from the reader's thread and never block.
    """

    def read(self, split: SnapshotSplit, *, opened_at: OpenedAt, document: SchemaDocument) -> None:
        """Queue a chunk to be read. The log reader has opened the chunk at `opened_at`, and `document` is the table's
        schema document at that position. A schema document has at least ``fingerprint``, ``columns`` and
        ``primary_key``.
        """

    def fold(self, *, read: ChunkSegments, delta: Sequence[Segment], document: SchemaDocument) -> None:
        """Queue the folding of the held rows in the `delta` segments into what `read` has written."""

    def poll(self) -> ChunkSegments | None:
        """Return a finished read or fold, or None. Raises errors of the background work."""

    def discard(self, segments: Sequence[Segment]) -> None:
        """Delete the segments of a chunk that was voided."""

    def close(self) -> None: ...


class ReaderOutput(Protocol):
    """The output of a reader: the segments of the open epoch. Called from the reader's thread."""

    @property
    def open_bytes(self) -> int: ...

    def collect(
        self,
        table: TableId,
        *,
        fingerprint: str,
        batch: pa.RecordBatch,
        split_id: str,
        key: Sequence[str] = (),
    ) -> None:
        """Append rows of the log. The order of rows of a table is kept; if `key` is given, only the order of rows with
        equal values of `key`.
        """

    def publish(self, segments: Sequence[Segment]) -> None:
        """Make finished snapshot segments part of the open epoch."""

    def spill(self, rows: Sequence[LogRows]) -> SpilledRows:
        """Write held rows of one table to disk, with masks applied, so that they need no memory."""

    def write_delta(self, rows: Iterable[LogRows], *, fingerprint: str, split_id: str) -> tuple[Segment, ...]:
        """Write held rows as segments that belong to no epoch; the reader of the chunk folds them."""

    def cut(self, epoch: int) -> tuple[Segment, ...]:
        """End the open epoch as `epoch`, and open the next one.

        Returns the ended epoch's segments, which are durable on disk.
        """

    def release(self, paths: Sequence[str]) -> None:
        """Delete segment files of epochs that the sink holds."""

    def discard(self, segments: Sequence[Segment]) -> None:
        """Delete segments that are no longer needed, on any node. Does not wait for other nodes."""

    def close(self) -> None: ...


class SourceReader(Protocol):
    """A reader of splits. All methods are called by one thread, and none blocks."""

    def handle(self, message: Message) -> None:
        """Handle a message from the coordinator."""

    def poll_next(self) -> InputStatus: ...

    @property
    def is_available(self) -> Availability:
        """The availability that the shell waits for when `poll_next` has nothing."""

    def heartbeat(self) -> Heartbeat:
        """Return the reader's present figures for the coordinator."""

    @property
    def seal_matters(self) -> tuple[bool, bool]:
        """Return facts whose change the coordinator should learn immediately: the epoch should end, or it has rows."""

    def metrics(self) -> ReaderMetrics: ...

    def close(self) -> None: ...
