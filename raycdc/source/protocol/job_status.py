"""How far a job is, for the supervisor, for people, and for `run --json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raycdc.model import TableId
from raycdc.source.protocol.api import TableProgress


@dataclass(frozen=True, slots=True)
class ReaderStatus:
    """One live reader; `metrics` are its own figures, as its last heartbeat had them."""

    subtask: int
    incarnation: int
    pid: int
    node: str
    splits: tuple[str, ...] = ()
    chunks: int = 0
    partitions: int = 0
    leaving: bool = False
    open_bytes: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pending_records(self) -> int:
        """How far the reader is behind, where its source tells."""
        return int(self.metrics.get("pendingRecords") or 0)

    def to_json(self) -> dict[str, Any]:
        return {
            "subtask": self.subtask,
            "incarnation": self.incarnation,
            "pid": self.pid,
            "node": self.node,
            "splits": list(self.splits),
            "chunks": self.chunks,
            "partitions": self.partitions,
            "leaving": self.leaving,
            "open_bytes": self.open_bytes,
            "metrics": self.metrics,
        }


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One table: its progress, the rows sealed since the coordinator began, and values that were lost in all."""

    progress: TableProgress
    rows: int | None = None
    lost_values: int | None = None

    def to_json(self) -> dict[str, Any]:
        counts = {"rows": self.rows, "lost_values": self.lost_values}
        return {**self.progress.to_json(), **{name: count for name, count in counts.items() if count is not None}}


@dataclass(frozen=True, slots=True)
class JobStatus:
    """See the module's docstring.

    `sealed` and `committed` are the newest epochs of each kind, `final` the run's last, once that is known. `troubles`
    counts how often the source had to be asked again, and `trouble` says why last.
    """

    generation: int
    sealed: int
    committed: int
    final: int | None = None
    tables: Mapping[TableId, TableStatus] = field(default_factory=dict)
    chunks_waiting: int = 0
    problems: Mapping[str, str] = field(default_factory=dict)
    readers: tuple[ReaderStatus, ...] = ()
    troubles: int = 0
    trouble: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "sealed": self.sealed,
            "committed": self.committed,
            "final": self.final,
            "tables": {str(table): status.to_json() for table, status in self.tables.items()},
            "chunks_waiting": self.chunks_waiting,
            "problems": dict(self.problems),
            "readers": [reader.to_json() for reader in self.readers],
            "troubles": self.troubles,
            "trouble": self.trouble,
        }
