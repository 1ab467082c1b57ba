"""The interface of a source: everything that the author of a connector implements.

A connector is a package with an entry point in ``raycdc.sources``: a `raycdc.plugins.Plugin` that names the model of
its ``[source]`` section (a `raycdc.config.SourceConfig`) and its `Source`. raycdc makes the source again in every
process that needs it, from the section and a `SourceContext`, so it is picklable and holds no connection.

| the connector reads | it implements |
|---|---|
| tables: a snapshot in chunks, then one log | `IncrementalSource`; the enumerator and the reader are raycdc's |
| independent logs (partitions) | `Source`; enumerator and reader are its own (`raycdc.source.protocol`, `…reader`) |

To copy: `raycdc/connectors/datagen` for the first kind, ``examples/custom_source`` for one without a snapshot, and
``examples/custom_events`` for the second kind, with events of its own in both directions.

The nouns are those of Flink's FLIP-27 and of Flink CDC: `Boundedness`; an enumerator, created or restored; a reader,
created in each reader process; and `acknowledge` for ``notifyCheckpointComplete``. Optional abilities are the second
half of `Source`; the default of each of these methods means that the source lacks the ability.

| called in | methods |
|---|---|
| ``raycdc check`` and ``plan`` | `check`, `tables` |
| the driver before it starts anything, and ``check`` | `selection`, `preflight`, `restart`, `has_before_images` |
| the same, if a state exists | `unfollowable`, `require_as_begun` |
| the coordinator's process | `create_enumerator`, `acknowledge` |
| every reader's process | `create_reader`, `warm_up`, `statistics` |

All of them may block, except `create_enumerator` and `create_reader`. They raise `raycdc.errors.SourceError` with what
happened and what to do, `SourceUnavailableError` if a retry may help, and `LogLostError` if the log no longer reaches
back to the state's position.

A `check` returns each problem that it finds as a ``CheckResult(ok=False)`` with the fix, and the later checks (of
tables, transforms and the sink) go on. It raises `SourceError` only if the source cannot be reached; the later checks
are then skipped, because they need the source, too.

A source of tables imports, beside this page:

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
    """What a source knows of its pipeline.

    It is given to the source when that is made. Picklable; its ``repr`` shows no key.

    `rules` say what targets can follow and hold; `left_out` are the kinds of schema changes that are ignored; `masking`
    says which values no state may store in the clear; `sink` is the sink's type, empty if a Python caller takes the
    epochs. With `needs_before_images`, every change must come with the row before it, and a table with a change that
    lacks it is parked. `read_statement` parses DDL statements of another connector's database in messages.
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
    """A table as it is captured, with its schema and estimated numbers of rows, bytes and chunks (0: not known).

    `note` explains an unexpected cut into chunks.
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
    """The position from which a log can be read after its present position was lost, and all tables at that position,
    which are read again.
    """

    position: Position
    ordinal: int
    tables: Sequence[str]


@dataclass(frozen=True, slots=True)
class LogRetention:
    """The unread size of a log, and the shortest time for which the source keeps the log; None if unknown.

    `forever`: the log is kept until it is deleted by hand.
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

        `last` is the newest manifest of the state, None before the first epoch. If `names_reported` is True, configured
        tables that do not exist were already reported. Raises `SourceError` only if the source cannot be reached.
        """

    @abstractmethod
    def preflight(self, last: Manifest | None) -> None:
        """Raise the problems that `check` finds as errors, before a run goes on after the epoch `last` (None at a first
        start).

        Raises `SourceError` with the fix, and `LogLostError` if the log no longer reaches back.
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
        """Accept that the sink durably holds everything before these positions of the unbounded splits, by split id.

        Use it for logs that are kept until they are acknowledged (a replication slot), and to show progress (a consumer
        group). Called after commits, one call at a time and in their order. Calls may skip commits, and may repeat
        positions after a restart. An error is reported and ends nothing: the next commit's call covers it.
        """

    def selection(self) -> TableSelection | None:
        """Return the selected tables that exist; None if tables are known only by reading."""
        return None

    def restart(self, last: Manifest) -> Restart | None:
        """Return where to go on if the log was lost; None if the source cannot take snapshots.

        Raises `LogLostError` if the source was replaced by another one, because its data may be anything.
        """
        return None

    def unfollowable(self, stream: StreamState) -> list[Refusal]:
        """Return the tables of a sealed state that can no longer be followed; they are parked."""
        return []

    def require_as_begun(self, split: StreamSplit) -> None:
        """Raise `ConfigError` if a followed table would be read in another way than its written rows were."""

    def has_before_images(self) -> bool:
        """Return True if every change comes with the previous row now. Only then `needs_before_images` may be set."""
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

        Called while a run goes on; blocks on a connection of its own. Raises `SourceError`.
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

    `raycdc.source.snapshot.handoff.hand_off` merges the two; a connector says how to cut, read and compare. Ordinals,
    the positions of the log as numbers, must order all rows that one chunk can see
    (`raycdc.source.snapshot.reader.reading.HighWatermark`).
    """

    def incremental(self) -> IncrementalSource[ConfigT]:
        return self

    @property
    @abstractmethod
    def ring_s(self) -> float:
        """Return for how many seconds dropped rows are remembered, because the server cannot say when they become
        visible; 0 if it can.
        """

    @abstractmethod
    def enumerator_dialect(self) -> EnumeratorDialect:
        """Return the dialect that finds and cuts tables, and gives the start of the log."""

    @abstractmethod
    def log_reader(self, split: StreamSplit) -> BlockingLog:
        """Connect, and return a reader of the log from the position of `split`.

        Blocks. Raises `LogLostError` if the position is gone.

        If a table in ``split.state.parked`` is marked ``again``, the log begins it
        (`raycdc.source.tables.resnapshots.begin`), or parks it again if that fails; ``raycdc tables resnapshot`` waits
        for this. The log delivers no rows of other parked tables, but its positions advance past their changes
        (`LogProgress`), because a bounded run ends at `EnumeratorDialect.current_ordinal`.

        A split with `is_catch_up` set is opened while this process reads the same log at a later position, unless the
        configuration rules that out (`SourceConfig.why_read_once`).
        """

    @abstractmethod
    def chunk_reader(self) -> ChunkReader:
        """Connect, and return a reader of chunks. Blocks."""

    @abstractmethod
    def key_order(self, split: StreamSplit) -> KeyOrder:
        """Return how keys of log rows are compared with the bounds of chunks."""

    def is_complete(self, notes: LogNotes, up_to: int) -> bool:
        """Return True if the log's `notes` (`LogPosition.notes`) hold nothing pending up to the ordinal `up_to`.

        Pending means: still to be delivered, although the log has passed its position. While something is pending, the
        reported ordinal may stay before that position. A table is not moved from one stream to the other, and a bounded
        run does not end, until neither stream has anything pending.
        """
        return True

    @property
    def takes_snapshot(self) -> bool:
        """Return True if existing rows are read when a pipeline begins. If False, targets lack older rows."""
        return True

    def planner(self, table: TableId, document: SchemaDocument) -> PlannerState | None:
        """Return how to cut the followed `table` with the shape of `document` for a reread; None: in one piece.

        Blocks.
        """
        return None

    def split_trials(self) -> Sequence[SplitTrial[IncrementalSource[Any]]]:
        """Return the strategies by which tables can be cut, for ``raycdc bench splits``; empty if there is only one
        way.
        """
        return ()

    def require_rows(self, table: TableId, document: SchemaDocument, again: BackfillRows) -> None:
        """Raise `ConfigError` with the reason if the rows of `table` that `again` names cannot be read.

        The table is followed and has the shape of `document`; its `ChunkReader` reads the rows. Queries the server and
        blocks.
        """
        raise ConfigError(f"Rows of a {self.config.type} source cannot be asked for by a predicate or by their keys.")

    def create_enumerator(self, context: SplitEnumeratorContext, start: EnumeratorStart) -> SplitEnumerator:
        return restore_or_create(context, self.enumerator_dialect(), start)

    def threading(self, fetchers: int) -> ThreadingModel:
        """Return how one reader reads chunks, with at most one chunk for each of `fetchers` threads.

        If the source limits how many readers have work (`SourceConfig.readers_max`), a reader has one connection.
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
        # The server is queried once the reader runs, so an unreachable server ends one incarnation and not the job.
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
        # Done here and not where the log is opened, because that happens in the background, and a run may end first.
        self.require_as_begun(split)
        return self._source.key_order(split)

    def require_as_begun(self, split: StreamSplit) -> None:
        self._source.require_as_begun(split)

    def is_complete(self, notes: LogNotes, up_to: int) -> bool:
        return self._source.is_complete(notes, up_to)
