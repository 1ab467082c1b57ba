"""The interface of a source: everything that the author of a connector implements.

A connector is a package with an entry point in ``raycdc.sources``: a `raycdc.plugins.Plugin` that names the model of
its ``[source]`` section (a `raycdc.config.SourceConfig`) and its `Source`. raycdc makes the source in every process
that needs it, from the section and a `SourceContext`. A source is therefore picklable and holds no connection.

| the connector reads | it implements |
|---|---|
| tables: a snapshot in chunks, then one log | `IncrementalSource`; the enumerator and the reader are raycdc's |
| independent logs (partitions) | `Source`; enumerator and reader are its own (`raycdc.source.protocol`, `…reader`) |

To copy: `raycdc/connectors/datagen` for the first kind, ``examples/custom_source`` for one without a snapshot, and
``examples/custom_events`` for the second kind, with events of its own in both directions.

The nouns are those of Flink's FLIP-27 and of Flink CDC. For example, an enumerator is created or restored, and a reader
is created in each reader process; ``notifyCheckpointComplete`` is called `acknowledge` here. The methods in the second
half of `Source` are optional abilities. The default of such a method means that the source lacks the ability.

| called in | methods |
|---|---|
| ``raycdc check`` and ``plan`` | `check`, `tables` |
| the driver before it starts anything, and ``check`` | `selection`, `preflight`, `restart`, `has_before_images` |
| the same, if a state exists | `unfollowable`, `require_as_begun` |
| the coordinator's process | `create_enumerator`, `acknowledge` |
| every reader's process | `create_reader`, `warm_up`, `statistics` |

All of these methods may block, except `create_enumerator` and `create_reader`. They raise `raycdc.errors.SourceError`
with a text about the problem and the solution. It is a `SourceUnavailableError` if a retry may help, and a
`LogLostError` if the log no longer reaches back to the state's position.

A `check` returns each problem that it finds as a ``CheckResult(ok=False)`` with the fix, and the later checks (of
tables, transforms and the sink) go on. It raises `SourceError` only if the source cannot be reached; the later checks
are then skipped, because they need the source, too.

A source of tables needs the following names, in addition to those of this module:

| you will import | for |
|---|---|
| `raycdc.model` | tables, columns, types and schemas; `changelog_schema`, and `as_inserts` for the rows of a chunk |
| `raycdc.state.opaque` | `Position`: a position in a log, encoded and decoded by the source's own codec |
| `raycdc.source.schema_document` | `SchemaDocument.of`: a table's schema as the state has it |
| `raycdc.source.snapshot.enumerator.snapshot_plan` | `EnumeratorDialect`; it gives `StartPoint`, `TablePlan`, \
`PlannedChunks` |
| `raycdc.source.tables.resnapshots` | `unread` (of one column, the chunk key), or `without_chunks`; `begin` for the \
log |
| `raycdc.source.snapshot.reader.reading` | `BlockingLog`, `ChunkReader`, `HighWatermark` |
| `raycdc.source.snapshot.log.log_unit` | the units of a log (`LogUnit`), their `LogPosition`, and the changes of \
tables |
| `raycdc.source.snapshot.log.log_rows` | `LogRows`: the rows of one table in a unit, each with its position as \
``_pos`` |
| `raycdc.source.snapshot.handoff.open_chunk` | `KeyOrder` |
| `raycdc.source.split` | `StreamSplit`, `SnapshotSplit`, `OpenedAt` |
| `raycdc.source.snapshot.log.stream_state` | `stream_of`: the log's state in the manifest that `preflight` is given |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Generic, TypeVar

from raycdc.config import SourceConfig
from raycdc.config.checks import CheckResult
from raycdc.errors import ConfigError, SourceError
from raycdc.model import TableId, TableSchema
from raycdc.model.evolution.events import SchemaChangeEvent
from raycdc.source.protocol.api import (
    ChunkSource,
    EnumeratorStart,
    SourceReader,
    SplitEnumerator,
    SplitEnumeratorContext,
)
from raycdc.source.reader.fetcher_manager import MultiThreaded, Sequential, ThreadingModel
from raycdc.source.reader.source_reader_base import FetcherThreads, ReaderContext
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.selection import TableSelection
from raycdc.source.snapshot.enumerator.incremental_enumerator import restore_or_create
from raycdc.source.snapshot.enumerator.snapshot_plan import EnumeratorDialect
from raycdc.source.snapshot.handoff.open_chunk import KeyOrder
from raycdc.source.snapshot.log.fetched_log import FetchedLog
from raycdc.source.snapshot.log.log_unit import LogSource
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.snapshot.reader.incremental_reader import IncrementalReader
from raycdc.source.snapshot.reader.reading import BlockingLog, ChunkReader
from raycdc.source.split import BackfillRows, StreamSplit
from raycdc.source.tables.parking import Refusal
from raycdc.source.trials import PartitionTrial, SplitTrial
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.opaque import LogNotes, PlannerState, Position
from raycdc.transform.masks import Masking
from raycdc.transform.target_rules import TargetRules

ConfigT = TypeVar("ConfigT", bound=SourceConfig)

#: Takes ``(statement, default database)``, and returns the schema changes of the statement. Raises `SchemaError` with
#: the reason if it cannot be parsed.
ReadStatement = Callable[[str, str], tuple[SchemaChangeEvent, ...]]


class Boundedness(StrEnum):
    """Says if a source ends by itself, in FLIP-27's words."""

    BOUNDED = "bounded"
    CONTINUOUS_UNBOUNDED = "continuous-unbounded"


@dataclass(frozen=True, slots=True)
class SourceContext:
    """The parts of a pipeline's configuration that its source needs. The source gets it when it is made. Picklable; its
    ``repr`` shows no key.

    `rules` are the rules about rows and changes that targets can hold and follow. `left_out` are the kinds of schema
    changes that are ignored. `masking` encrypts values that the state must not contain in plain text. `sink` is the
    sink's type, empty if a Python caller takes the epochs. If `needs_before_images` is True, every change must come
    with the row before it, and a table with a change that lacks this row is parked. `read_statement` parses DDL
    statements of another connector's database in messages.
    """

    rules: TargetRules = field(default_factory=TargetRules)
    masking: Masking = field(default_factory=Masking)
    sink: str = ""
    needs_before_images: bool = False
    read_statement: ReadStatement | None = None

    @property
    def left_out(self) -> frozenset[str]:
        """Return the types of schema changes that reach no target. No rows for these changes reach a target either."""
        return self.rules.left_out


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A captured table, with its schema and estimated numbers of rows, bytes and chunks (0: unknown). If the table is
    cut into chunks in an unexpected way, `note` explains the reason.
    """

    schema: TableSchema
    rows: int = 0
    chunks: int = 0
    note: str = ""
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class SourceFindings:
    """The findings of `Source.check`, and the tables that the source captures now."""

    results: Sequence[CheckResult]
    tables: Sequence[TableId]


@dataclass(frozen=True, slots=True)
class Restart:
    """The position from which a log can be read after the state's position was lost, and all tables at that position.
    These tables are resnapshotted.
    """

    position: Position
    ordinal: int
    tables: Sequence[str]


@dataclass(frozen=True, slots=True)
class LogRetention:
    """The unread size of a log, and the shortest time for which the source keeps the log; None if unknown. `forever` is
    True if the log is kept until it is deleted by hand.
    """

    unread_bytes: int | None = None
    kept_s: float | None = None
    forever: bool = False


class Source(ABC, Generic[ConfigT]):
    """A source: the interface of a connector. See the module's docstring."""

    #: True if `tables` returns all existing tables. False if tables are known only by reading messages.
    knows_tables: ClassVar[bool] = True

    def __init__(self, config: ConfigT, context: SourceContext | None = None) -> None:
        self.config = config
        self.context = context or SourceContext()

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED if self.config.bounded else Boundedness.CONTINUOUS_UNBOUNDED

    @abstractmethod
    def check(self, last: Manifest | None, *, names_reported: bool) -> SourceFindings:
        """Return all findings about the source before a run, good and bad.

        Changes nothing anywhere.

        `last` is the newest manifest of the state, None before the first epoch. If `names_reported` is True, the caller
        has already reported configured tables that do not exist. Raises `SourceError` only if the source cannot be
        reached.
        """

    @abstractmethod
    def preflight(self, last: Manifest | None) -> None:
        """Raise an error for a problem that `check` would find, before a run goes on after the epoch of the manifest
        `last` (None at a first start).

        Raises `SourceError` with the solution, and `LogLostError` if the log no longer reaches back to the position in
        `last`.
        """

    @abstractmethod
    def tables(self) -> dict[TableId, SourceTable]:
        """Return the tables that a run which starts now would capture, for ``raycdc plan``; see `knows_tables`."""

    @abstractmethod
    def create_enumerator(self, context: SplitEnumeratorContext, start: EnumeratorStart) -> SplitEnumerator:
        """Return the enumerator, new or restored (FLIP-27's ``createEnumerator`` and ``restoreEnumerator``)."""

    @abstractmethod
    def create_reader(self, context: ReaderContext) -> SourceReader: ...

    def acknowledge(self, positions: Mapping[str, Position]) -> None:
        """Take note that the sink durably holds everything before these positions of the unbounded splits, by split id.

        Use it for logs that are kept until they are acknowledged (a replication slot), and to show progress (a consumer
        group). Called after commits, one call at a time and in their order. Not every commit has a call, and after a
        restart positions may be repeated. An error is reported and does not end the run, because the call after the
        next commit includes these positions.
        """

    def selection(self) -> TableSelection | None:
        """Return the selected tables that exist; None if tables are known only by reading."""
        return None

    def restart(self, last: Manifest) -> Restart | None:
        """Return the position at which to go on if the log was lost; None if the source cannot take snapshots. Raises
        `LogLostError` if another source answers at the address, because its data may be entirely different.
        """
        return None

    def unfollowable(self, stream: StreamState) -> list[Refusal]:
        """Return the tables of a sealed state that can no longer be followed; they are parked."""
        return []

    def require_as_begun(self, split: StreamSplit) -> None:
        """Raise `ConfigError` if a followed table would be read in another way than its written rows were."""

    def has_before_images(self) -> bool:
        """Return True if, with its present settings, the source sends the previous row with every change. Only then
        `needs_before_images` may be set.
        """
        return False

    def incremental(self) -> IncrementalSource[Any] | None:
        """Return this source as an `IncrementalSource`, whose tables can be read at any time; None if rows come only
        from a log.
        """
        return None

    def warm_up(self) -> None:
        """Load, ahead of any work, what reading needs (compiled loops): some hundred milliseconds."""

    def log_retention(self, last: Manifest) -> LogRetention | None:
        """Return the size and retention of the source's log after the epoch `last`; None if unknown.

        Called during a run. Blocks, and uses a connection of its own. Raises `SourceError`.
        """
        return None

    def partition_trial(self) -> PartitionTrial | None:
        """Return how partitions are read for ``raycdc bench splits``; None if the source does not support it."""
        return None

    def statistics(self) -> Mapping[str, Mapping[str, int]]:
        """Return counts of this process since it began, by name and table, for people."""
        return {}


class IncrementalSource(Source[ConfigT]):
    """A source of tables: chunks of a snapshot without locks, and one log (Flink CDC's ``IncrementalSource``).

    `raycdc.source.snapshot.handoff.hand_off` merges chunks and log. A connector implements how tables are cut into
    chunks, how chunks and log are read, and how keys are compared. *Ordinals* are positions of the log as numbers. They
    must order all rows that one chunk can see (`raycdc.source.snapshot.reader.reading.HighWatermark`).
    """

    def incremental(self) -> IncrementalSource[ConfigT]:
        return self

    @property
    @abstractmethod
    def ring_s(self) -> float:
        """Return the number of seconds for which the log reader remembers dropped rows, because the server cannot
        report when a transaction becomes visible to a SELECT; 0 if it can.
        """

    @abstractmethod
    def enumerator_dialect(self) -> EnumeratorDialect:
        """Return the dialect that finds and cuts tables, and gives the start of the log."""

    @abstractmethod
    def log_reader(self, split: StreamSplit) -> BlockingLog:
        """Connect, and return a reader of the log from the position of `split`.

        Blocks. Raises `LogLostError` if the position is gone.

        If a table in ``split.state.parked`` is marked ``again``, the log reader resnapshots it
        (`raycdc.source.tables.resnapshots.begin`), or parks it again if that fails; ``raycdc tables resnapshot`` waits
        for this. The log reader delivers no rows of the remaining parked tables. It still reports positions after their
        changes (`LogProgress`), because a bounded run ends at `EnumeratorDialect.current_ordinal`.

        If the split has `is_catch_up` set, this process already reads the same log at a later position. This case does
        not occur if the log can be read only once at a time (`SourceConfig.why_read_once`).
        """

    @abstractmethod
    def chunk_reader(self) -> ChunkReader:
        """Connect, and return a reader of chunks. Blocks."""

    @abstractmethod
    def key_order(self, split: StreamSplit) -> KeyOrder:
        """Return how keys of log rows are compared with the bounds of chunks."""

    def is_complete(self, notes: LogNotes, up_to: int) -> bool:
        """Return True if the log's `notes` (`LogPosition.notes`) hold nothing pending up to the ordinal `up_to`.

        A change is pending if the log reader has passed its position and has not delivered it yet. While a change is
        pending, the reported ordinal may stay before the position of the change. Until nothing is pending in the log
        and in the catch-up stream, no table is moved from one to the other, and a bounded run does not end.
        """
        return True

    @property
    def takes_snapshot(self) -> bool:
        """Return True if existing rows are read when a pipeline begins. If False, targets lack older rows."""
        return True

    def planner(self, table: TableId, document: SchemaDocument) -> PlannerState | None:
        """Return the planner that cuts the followed `table` into chunks to read it again; None if it is read in one
        piece. The table has the schema in `document`. Blocks.
        """
        return None

    def split_trials(self) -> Sequence[SplitTrial[IncrementalSource[Any]]]:
        """Return the strategies by which tables can be cut, for ``raycdc bench splits``; empty if there is only one
        way.
        """
        return ()

    def require_rows(self, table: TableId, document: SchemaDocument, again: BackfillRows) -> None:
        """Raise `ConfigError` with the reason if a `ChunkReader` cannot read the rows of `table` that `again`
        describes. The table is followed and has the schema in `document`. Queries the server and blocks.
        """
        raise ConfigError(f"Rows of a {self.config.type} source cannot be asked for by a predicate or by their keys.")

    def create_enumerator(self, context: SplitEnumeratorContext, start: EnumeratorStart) -> SplitEnumerator:
        return restore_or_create(context, self.enumerator_dialect(), start)

    def threading(self, fetchers: int) -> ThreadingModel:
        """Return the threading model in which one reader reads chunks: at most one chunk at a time for each of
        `fetchers` threads. If the source limits the number of readers with work (`SourceConfig.readers_max`), a reader
        uses one connection.
        """
        return MultiThreaded(fetchers) if fetchers > 1 and not self.config.readers_max else Sequential()

    def create_reader(self, context: ReaderContext) -> SourceReader:
        threading = self.threading(context.fetchers)
        return IncrementalReader(
            context,
            _FetchedDialect(self, context.threads, threading),
            chunks_at_once=threading.fetchers,
        )


class _FetchedDialect:
    """The `ReaderDialect` of the incremental reader: runs the connector's blocking readers on fetcher threads."""

    def __init__(self, source: IncrementalSource[Any], threads: FetcherThreads, threading: ThreadingModel) -> None:
        self._source = source
        self._threads = threads
        self._threading = threading

    @property
    def ring_s(self) -> float:
        # The server is queried after the reader has started, so an unreachable server ends one incarnation of the
        # reader and not the job.
        return self._source.ring_s

    def open_log(self, split: StreamSplit) -> LogSource:
        return FetchedLog(self._threads, self._source.log_reader, split)

    @property
    def resnapshots_lost(self) -> bool:
        return self._source.context.rules.lost_rows_again

    def open_catch_up(self, split: StreamSplit) -> LogSource:
        if why := self._source.config.why_read_once:
            raise SourceError(why)
        return FetchedLog(self._threads, self._source.log_reader, split)

    def open_chunks(self) -> ChunkSource:
        return self._threads.chunks(self._source.chunk_reader, threading=self._threading)

    def key_order(self, split: StreamSplit) -> KeyOrder:
        # Done here, because the log is opened in the background, and a run may end before that.
        self.require_as_begun(split)
        return self._source.key_order(split)

    def require_as_begun(self, split: StreamSplit) -> None:
        self._source.require_as_begun(split)

    def is_complete(self, notes: LogNotes, up_to: int) -> bool:
        return self._source.is_complete(notes, up_to)
