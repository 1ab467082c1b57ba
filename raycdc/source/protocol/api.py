"""The FLIP-27 interfaces of a source's two sides, enumerator and reader, and what each is given.

What a source is as a whole is `raycdc.source.connector`.

Vocabulary and division of work follow Flink's FLIP-27 and ``flink-cdc-base``: the enumerator discovers and assigns
splits and acts only through its context; readers read splits and know nothing of one another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

import pyarrow as pa

from raycdc.core.activity import Stalled
from raycdc.model import TableId
from raycdc.model.rules.until import Until
from raycdc.source.protocol.metrics import ReaderMetrics, SplitLoad
from raycdc.source.protocol.source_event import Heartbeat, Message, SourceEvent
from raycdc.source.reader.availability import Availability
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.log.log_rows import LogRows, SpilledRows
from raycdc.source.split import OpenedAt, SnapshotSplit, SourceSplit
from raycdc.source.tables.parking import Refusal, Requests
from raycdc.source.tables.table_life import Parked
from raycdc.state.manifests.manifest import Manifest, Segment, TableEpoch
from raycdc.state.opaque import EnumeratorState, SealedSplit


class InputStatus(Enum):
    """Answer of `SourceReader.poll_next`: more now, nothing now, or nothing ever again."""

    MORE_AVAILABLE = auto()
    NOTHING_AVAILABLE = auto()
    END_OF_INPUT = auto()


class SplitEnumeratorContext(Protocol):
    """The enumerator's only way out. Called from the coordinator's thread only."""

    @property
    def now_s(self) -> float:
        """Seconds of a clock that never goes back, as of the packet or tick that the coordinator is about."""

    def registered_readers(self) -> Sequence[int]:
        """Readers that may be given splits: alive, and not about to leave."""

    def may_have_splits(self, subtask_id: int) -> bool:
        """Whether it is one of `registered_readers`, without a look at the others."""

    def split_loads(self) -> Mapping[str, SplitLoad]:
        """The load of each partition, as readers told it last. Looks at every reader."""

    def assign_splits(self, assignment: Mapping[int, Sequence[SourceSplit]]) -> None: ...

    def send_event(self, subtask_id: int, event: SourceEvent) -> None: ...

    def end_split(self, split_id: str, *, attempt: int) -> None:
        """No reader works at this attempt of a bounded split any more; harmless where none did."""

    def remove_splits(self, subtask_id: int, split_ids: Sequence[str]) -> None:
        """Take partitions from a reader that lives: they come to `add_splits_back` after its next seal.

        Asking twice, or for what the reader does not have, is harmless.
        """

    def signal_no_more_splits(self, subtask_id: int) -> None: ...

    @property
    def open_epoch(self) -> int:
        """The epoch that no reader was asked to seal yet. A message sent now is handled before that seal."""

    def call_async(self, call: Callable[[], Any], handler: Callable[[Any], None], *, after_s: float = 0.0) -> None:
        """Run `call` off the coordinator's thread, `after_s` from now; `handler` gets its result on it.

        While the source is away the call is tried again; any other error fails the job. What is done on an interval
        (discovery) asks again from its handler: two of a kind never run at once.
        """


@dataclass(frozen=True, slots=True)
class EnumeratorPart:
    """The share of an enumerator in a manifest.

    `tables` are schemas and changes that begin with this epoch, whoever has rows of them; `schemas` the documents they
    name. `final` says whether the run ends with the epoch; None leaves that to the readers' ``end_of_input``.
    """

    tables: Mapping[TableId, TableEpoch] = field(default_factory=dict)
    schemas: Mapping[str, SchemaDocument] = field(default_factory=dict)
    final: bool | None = None


@dataclass(frozen=True, slots=True)
class EnumeratorStart:
    """Where an enumerator begins: anew (`last` is None), or as the manifest `last` left it.

    `until` bounds the run (None: it goes on until it is stopped). `document` gives schema documents by
    their fingerprint. `requests` are what people asked of tables, `refusals` tables that are to park at once.
    """

    until: Until | None
    last: Manifest | None
    document: Callable[[str], SchemaDocument]
    requests: Requests | None = None
    refusals: Sequence[Refusal] = ()


@dataclass(frozen=True, slots=True)
class SnapshotAmount:
    """How much of a table its chunks have brought; and the source's `estimate` of all its rows."""

    rows: int = 0
    bytes: int = 0
    estimate: int | None = None


NO_AMOUNT = SnapshotAmount()


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """How far a backfill is: the chunks that are in manifests, of so many as far as is known (0: not yet), and their
    rows.
    """

    chunks_done: int = 0
    chunks_total: int = 0
    rows: int = 0

    @property
    def percent(self) -> float | None:
        """How much of it is done, by chunks; None while nobody knows how many these are."""
        return min(99.9, 100 * self.chunks_done / self.chunks_total) if self.chunks_total else None


@dataclass(frozen=True, slots=True)
class TableProgress:
    """How far a table is, for people: ``"snapshot"``, ``"stream"``, or why it is `parked`; and its `backfill`, if one
    goes on. `begun` is why it last began again in this run, as it was parked until then.
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
    """All tables together: how many they are, how many of them are in their snapshot, and the chunks: of all tables
    those that were read, and of those in their snapshot the ones that are left, as far as is known.
    """

    tables: int = 0
    in_snapshot: int = 0
    chunks_done: int = 0
    chunks_left: int = 0


NO_TABLES = TableCounts()


class TablesProgress(Protocol):
    """How far the tables of an enumerator are, as of now."""

    def counts(self) -> TableCounts:
        """All together. Asked several times a second: it must not take the longer the more tables there are."""

    def tables(self) -> Mapping[TableId, TableProgress]:
        """One by one, for people, who ask the less often the more there are."""


_STREAMED = TableProgress("stream")


@dataclass(frozen=True, slots=True)
class Streamed:
    """`TablesProgress` of tables without a snapshot."""

    names: Collection[TableId]

    def counts(self) -> TableCounts:
        return TableCounts(len(self.names))

    def tables(self) -> dict[TableId, TableProgress]:
        return dict.fromkeys(self.names, _STREAMED)


@dataclass(frozen=True, slots=True)
class EnumeratorStatistics:
    """How far an enumerator is, for the number of readers, and for people.

    `chunks_waiting` are bounded splits that nobody reads yet (a lower bound, positive while there are any). `problems`
    went wrong without harm, by place, until it is right again, and `standing` is what waits for somebody. `owing` are
    the spools, by name, of segments of bounded splits that no report has named yet.
    """

    progress: TablesProgress
    chunks_waiting: int = 0
    problems: Mapping[str, str] = field(default_factory=dict)
    owing: frozenset[str] = frozenset()
    standing: Sequence[Stalled] = ()


class SplitEnumerator(Protocol):
    """Discovers splits and gives them to readers. Single-threaded; never blocks (blocking work: `call_async`)."""

    def start(self) -> None: ...

    def handle_split_request(self, subtask_id: int) -> None: ...

    def add_splits_back(self, splits: Sequence[SourceSplit], subtask_id: int) -> None:
        """`subtask_id` is gone; these splits, at their last sealed state, need a new reader."""

    def add_reader(self, subtask_id: int) -> None: ...

    def handle_source_event(self, subtask_id: int, event: SourceEvent) -> None: ...

    def handle_splits_finished(self, split_ids: Sequence[str]) -> None:
        """The rows of these bounded splits are part of the epoch whose manifest is being written."""

    def epoch_sealed(self, epoch: int, splits: Mapping[str, SealedSplit]) -> EnumeratorPart:
        """The manifest of `epoch` is being written, `splits` are the unbounded splits' states in it.

        Called right before `snapshot_state`.
        """

    @property
    def wants_seal(self) -> bool:
        """Whether the open epoch should end even if no reader says so."""

    def snapshot_state(self, checkpoint_id: int) -> EnumeratorState: ...

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None: ...

    def park_tables(self, refusals: Sequence[Refusal]) -> None:
        """The driver commits no more of these tables: where single tables can be parked, their rows need not come."""

    def statistics(self) -> EnumeratorStatistics:
        """Asked several times a second: it must not take the longer the more tables there are."""


@dataclass(frozen=True, slots=True)
class ChunkSegments:
    """A chunk was read into finished segments that belong to no epoch yet; see
    `raycdc.source.snapshot.handoff.hand_off`.

    `high` bounds what its SELECT saw of rows, `log_end` which tables it may have seen under the name: the log's end,
    asked for after the SELECT. `misfit` says why it has none, where the table was another one than the chunk's schema
    document says; `locked`: it has none, as somebody at the source has the table locked; `refused`: why it has none and
    never will have.
    """

    split: SnapshotSplit
    high: int
    exact: bool
    segments: tuple[Segment, ...]
    log_end: int = field(kw_only=True)
    misfit: str = ""
    locked: bool = False
    refused: str = ""


class ChunkSource(Protocol):
    """Reads chunks in the background, one or several at once. Calls come from the reader's thread and never block."""

    def read(self, split: SnapshotSplit, *, opened_at: OpenedAt, document: SchemaDocument) -> None:
        """Queue a chunk that the log reader has opened at `opened_at`; `document` is the table's schema there.

        A schema document has at least ``fingerprint``, ``columns`` and ``primary_key``.
        """

    def fold(self, *, read: ChunkSegments, delta: Sequence[Segment], document: SchemaDocument) -> None:
        """Queue the folding of the held rows in the `delta` segments into what `read` has written."""

    def poll(self) -> ChunkSegments | None:
        """A finished read or fold, or None. Raises what went wrong in the background."""

    def discard(self, segments: Sequence[Segment]) -> None:
        """Delete the segments of a chunk that was voided."""

    def close(self) -> None: ...


class ReaderOutput(Protocol):
    """Where a reader's rows go: the segments of the open epoch. Called from the reader's thread."""

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
        """Append rows of the log; order per table is kept, or per value of `key` where it is given."""

    def publish(self, segments: Sequence[Segment]) -> None:
        """Make finished snapshot segments part of the open epoch."""

    def spill(self, rows: Sequence[LogRows]) -> SpilledRows:
        """Put held rows of one table down where they need no memory; masked, if they are to be."""

    def write_delta(self, rows: Iterable[LogRows], *, fingerprint: str, split_id: str) -> tuple[Segment, ...]:
        """Write held rows as segments of no epoch, for another reader to fold."""

    def cut(self, epoch: int) -> tuple[Segment, ...]:
        """End the open epoch as `epoch`: all its segments, durable on disk. The next one is open then."""

    def release(self, paths: Sequence[str]) -> None:
        """Delete segment files of epochs the sink holds."""

    def discard(self, segments: Sequence[Segment]) -> None:
        """Delete segments that nobody needs, wherever they are. Does not wait for other nodes."""

    def close(self) -> None: ...


class SourceReader(Protocol):
    """Reads splits. One thread calls everything; nothing blocks."""

    def handle(self, message: Message) -> None:
        """A message from the coordinator."""

    def poll_next(self) -> InputStatus: ...

    @property
    def is_available(self) -> Availability:
        """The availability that the shell waits for when `poll_next` has nothing."""

    def heartbeat(self) -> Heartbeat:
        """The reader's figures for the coordinator now."""

    @property
    def seal_matters(self) -> tuple[bool, bool]:
        """The facts that the coordinator should hear at once when they change: the epoch should end; it has rows."""

    def metrics(self) -> ReaderMetrics: ...

    def close(self) -> None: ...
