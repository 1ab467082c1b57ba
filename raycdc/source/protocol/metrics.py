"""Figures that readers send with their heartbeats. They are shown to people, and used to choose the number of readers.
Lags are milliseconds, and None while there is nothing to measure; their names are those of FLIP-33.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raycdc.core.activity import Stalled
from raycdc.model import TableId


@dataclass(frozen=True, slots=True)
class LogMetrics:
    """A reader's figures of the log: its ordinal, the time of its last event, and the delay of fetching that event.

    `seen_ms` is a wall time: every change that the log had at that time is in the open epoch or an earlier one.
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
    """A reader's figures of all its partitions together. `paused` is the number of partitions that wait for slower
    partitions.
    """

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
    #: The load of each partition, for balancing readers. In a heartbeat, None means that no load has changed. That is
    #: common, and a reader may have a thousand partitions.
    loads: Mapping[str, SplitLoad] | None = None


@dataclass(frozen=True, slots=True)
class HandOffWait:
    """A chunk that waits for the log's reader, and a text about the reason for the wait."""

    table: TableId
    split: str
    doing: str


@dataclass(frozen=True, slots=True)
class CatchUpOutage:
    """An outage of the catch-up stream (`raycdc.source.snapshot.rereading.catch_up_stream`), which `text` describes.
    The other fields are the number of attempts to open the stream again, and the seconds for which that is still
    retried before its tables are parked.
    """

    tries: int
    text: str
    left_s: int


@dataclass(frozen=True, slots=True)
class ReaderMetrics:
    """The figures of one reader: about the log, the partitions, chunks that wait for the log's reader, and an outage of
    the catch-up stream.
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

    `seconds` is the time that it has spent on each activity. `source` has the source's own counts by table
    (`raycdc.source.connector.Source.statistics`). `sealing` is the progress of a cut that takes long. `stalled`
    describes stalled work, and `moves` counts how often stalled work resumed.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    source: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    sealing: CutProgress | None = None
    stalled: tuple[Stalled, ...] = ()
    moves: int = 0


#: The metrics of a reader that has not reported any yet.
NO_METRICS = ReaderMetrics()
NO_PROCESS_METRICS = ProcessMetrics()
