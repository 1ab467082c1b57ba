"""How far a run is: the figures of its tables, its readers and its lags, which `Progress` brings together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raycdc.source.protocol.api import BackfillProgress, SnapshotAmount
    from raycdc.source.table_life import Parked

#: `Progress.bottleneck`: the rate at which the source is to be read at most.
PACE = "pace"


@dataclass(frozen=True, slots=True)
class TableFigures:
    """One table: how far it is, and its counts in this run (`bad_rows`, rows left out, in all runs).

    `source_counts` are figures that only this source has, by their names.
    """

    table: str
    phase: str
    chunks_done: int = 0
    chunks_total: int = 0
    rows: int = 0
    rows_per_s: int = 0
    lost_values: int = 0
    bad_rows: int | None = None
    source_counts: Mapping[str, int] = field(default_factory=dict)
    parked: Parked | None = None
    #: How much of the table its chunks have brought, in all runs; None of a table without a snapshot.
    amount: SnapshotAmount | None = None
    #: Of its rows that are read again, if some are.
    backfill: BackfillProgress | None = None

    @property
    def rows_about(self) -> int | None:
        """The rows of its snapshot, as far as they can be estimated: at least those that were read."""
        if self.amount is None or self.amount.estimate is None:
            return None
        return max(self.amount.estimate, self.amount.rows)

    @property
    def percent(self) -> float | None:
        """How much of the snapshot is done: by rows where they are known, else by chunks; 100 only at its end."""
        if self.phase != "snapshot" and self.chunks_total and self.chunks_done >= self.chunks_total:
            return 100.0
        about = self.rows_about
        if about and self.amount is not None:
            return min(99.9, 100 * self.amount.rows / about)
        return min(99.9, 100 * self.chunks_done / self.chunks_total) if self.chunks_total else None


@dataclass(frozen=True, slots=True)
class Lags:
    """FLIP-33's lags in milliseconds; None while there is nothing to measure."""

    fetch_ms: int | None = None
    emit_ms: int | None = None
    idle_ms: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionLags:
    """The lags of all partitions together, how many messages are unread, and how far behind the slowest is."""

    common: Lags
    pending_records: int | None
    watermark_ms: int | None


@dataclass(frozen=True, slots=True)
class ReaderFigures:
    """One reader: its splits, and where its seconds went.

    `sealing` is the place of a cut that takes long, in files and bytes on disk; `paused` are partitions that wait for
    slower ones. Both are None where the reader tells nothing of the kind. `node` is its spool's name: ``state`` on the
    driver's node, host name and a number on any other.
    """

    subtask: int
    pid: int
    splits: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    sealing: Mapping[str, int] | None = None
    paused: tuple[str, ...] | None = None
    node: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the run is. `bottleneck` is what holds it back, where that is known: ``pace``, that of the source."""

    tables: tuple[TableFigures, ...]
    lags: Lags | PartitionLags
    readers: tuple[ReaderFigures, ...]
    bottleneck: str = ""
    #: Now minus the time up to which the source is in the sink, also while nothing happens; None while unknown.
    behind_ms: int | None = None
