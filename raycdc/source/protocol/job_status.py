"""The status of a job, for the supervisor and for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raycdc.core.activity import Stalled
from raycdc.model import TableId
from raycdc.source.protocol.api import NO_TABLES, TableCounts, TableProgress
from raycdc.source.protocol.metrics import NO_METRICS, NO_PROCESS_METRICS, ProcessMetrics, ReaderMetrics
from raycdc.source.protocol.rate_budget import RateDemand, holds_back


@dataclass(frozen=True, slots=True)
class ReaderStatus:
    """One live reader; `metrics`, `process` and `rate_demand` are from its last heartbeat."""

    subtask: int
    incarnation: int
    pid: int
    node: str
    splits: tuple[str, ...] = ()
    chunks: int = 0
    partitions: int = 0
    leaving: bool = False
    open_bytes: int = 0
    metrics: ReaderMetrics = NO_METRICS
    process: ProcessMetrics = NO_PROCESS_METRICS
    rate_demand: RateDemand | None = None

    @property
    def pending_records(self) -> int:
        """Return the number of records the reader has still to read, if its source reports it; else 0."""
        partitions = self.metrics.partitions
        return 0 if partitions is None else partitions.pending_records or 0


@dataclass(frozen=True, slots=True)
class TableStatus:
    """The status of one table: its progress, the rows sealed since the coordinator began, and the total number of lost
    values.
    """

    progress: TableProgress
    rows: int | None = None
    lost_values: int | None = None


@dataclass(frozen=True, slots=True)
class SealStatus:
    """The epoch that is being sealed, and the readers that have not reported yet."""

    epoch: int
    waiting: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SealTimes:
    """The times at which an epoch was sealed: the request, the report of each reader (by its number) and the durable
    manifest, in milliseconds of the coordinator's wall clock.
    """

    epoch: int
    asked_ms: int
    sealed_ms: int
    reported_ms: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Seals:
    """The seal in progress, if any, and those of the newest epochs that this coordinator sealed."""

    under_way: SealStatus | None = None
    newest: tuple[SealTimes, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceOutages:
    """The number of outages of the source, and the reason of the last one."""

    count: int = 0
    last: str = ""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The status of a job.

    `sealed` and `committed` are the newest epochs of each kind. `tables` is empty unless requested; frequent callers
    use `counts`. `stalled` are descriptions of unanswered queries to the source, and of tables that are locked at the
    source. `owing` are the names of spools with segments that the sink does not hold yet.
    """

    generation: int
    sealed: int
    committed: int
    tables: Mapping[TableId, TableStatus] = field(default_factory=dict)
    counts: TableCounts = NO_TABLES
    chunks_waiting: int = 0
    problems: Mapping[str, str] = field(default_factory=dict)
    readers: tuple[ReaderStatus, ...] = ()
    outages: SourceOutages = SourceOutages()
    seals: Seals = Seals()
    stalled: tuple[Stalled, ...] = ()
    owing: frozenset[str] = frozenset()

    @property
    def sealing(self) -> SealStatus | None:
        """Return the epoch that is being sealed."""
        return self.seals.under_way

    @property
    def is_rate_limited(self) -> bool:
        """Return True if a rate limit keeps readers from reading more."""
        return holds_back(reader.rate_demand for reader in self.readers)
