"""Figures that readers send with their heartbeats, for people and for choosing the number of readers.

Nothing else depends on them. Lags are milliseconds, and None while there is nothing to measure; their names are those
of FLIP-33.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raycdc.core.activity import Stalled
from raycdc.model import TableId


@dataclass(frozen=True, slots=True)
class LogMetrics:
    """A reader's figures of the log: its ordinal, the time of its last event, and the delay of fetching that event.

    Every change that the log had at `seen_ms`, a wall time, is in the open epoch or an earlier one.
    """

    ordinal: int
    event_ms: int | None = None
    fetch_lag_ms: int | None = None
    seen_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SplitLoad:
    """The bytes per second that a partition brings now, and the number of its records that are still to be read, if
    known.
    """

    bytes_per_s: float
    backlog_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class PartitionMetrics:
    """A reader's figures of all its partitions together. `paused` counts those that wait for slower ones."""

    #: ``currentFetchEventTimeLag``
    fetch_lag_ms: int | None = None
    #: ``currentEmitEventTimeLag``
    emit_lag_ms: int | None = None
    #: ``sourceIdleTime``
    idle_ms: int | None = None
    #: ``watermarkLag``
    watermark_lag_ms: int | None = None
    #: ``pendingRecords``: messages that are still to be read
    pending_records: int | None = None
    #: Messages that could not be decoded
    bad_messages: int = 0
    paused: tuple[str, ...] = ()
    #: By partition, for balancing the load of readers. In a heartbeat, None means unchanged: loads change rarely, and a
    #: reader may have a thousand partitions.
    loads: Mapping[str, SplitLoad] | None = None


@dataclass(frozen=True, slots=True)
class HandOffWait:
    """A chunk that waits for the log's reader, and what it waits for, in words."""

    table: TableId
    split: str
    doing: str


@dataclass(frozen=True, slots=True)
class CatchUpOutage:
    """An outage of the catch-up stream (`raycdc.source.snapshot.rereading.catch_up_stream`), which is opened again;
    `text` describes it.

    The other fields are the number of attempts, and the seconds for which it is still retried before its tables are
    parked.
    """

    tries: int
    text: str
    left_s: int


@dataclass(frozen=True, slots=True)
class ReaderMetrics:
    """The figures of one reader.

    They are about the log, the partitions, chunks that wait for the log, and an outage of the catch-up stream.
    """

    log: LogMetrics | None = None
    partitions: PartitionMetrics | None = None
    waits: tuple[HandOffWait, ...] = ()
    catch_up_outage: CatchUpOutage | None = None


@dataclass(frozen=True, slots=True)
class CutProgress:
    """The progress of syncing the segments of `epoch` to disk: synced files, all `files`, and their `bytes`."""

    epoch: int
    synced: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ProcessMetrics:
    """The figures of a reader's process since it began.

    `seconds` has its time by activity; `source` are the source's own counts by table
    (`raycdc.source.connector.Source.statistics`). `sealing` is a cut that takes long. `stalled` is stalled work, and
    `moves` counts how often any of it resumed.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    source: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    sealing: CutProgress | None = None
    stalled: tuple[Stalled, ...] = ()
    moves: int = 0


#: The metrics of a reader that has not reported any yet.
NO_METRICS = ReaderMetrics()
NO_PROCESS_METRICS = ProcessMetrics()
