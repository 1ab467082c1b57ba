"""The values of the source coordinator: its settings, the readers it knows, and the epoch it is sealing.

Mutable records with one owner, `raycdc.source.protocol.coordinator.SourceCoordinator`; the rules are there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from raycdc.checkpoint.manifest import Manifest
from raycdc.source.protocol.link import Link
from raycdc.source.protocol.source_event import EpochSealed, Heartbeat
from raycdc.source.split import PartitionSplit, SnapshotSplit, SourceSplit


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Cadence and patience. Times in seconds, sizes in bytes.

    An idle sink gets an epoch of `epoch_bytes_idle` already, so that it writes while the next one is read. A reader
    whose process says nothing for `reader_timeout_s` is dead; one whose process answers while its main thread makes no
    progress for `progress_timeout_s` hangs, and would keep a seal waiting for ever. Syncing files is progress, file by
    file.
    """

    epoch_interval_s: float = 2.0
    epoch_bytes_max: int = 256 << 20
    epoch_bytes_idle: int = 64 << 20
    in_flight_max: int = 2
    reader_timeout_s: float = 10.0
    progress_timeout_s: float = 60.0


class ManifestWriter(Protocol):
    """The durable side of an epoch (`raycdc.checkpoint.store`)."""

    def put_document(self, fingerprint: str, document: dict[str, Any]) -> None: ...

    def document(self, fingerprint: str) -> dict[str, Any]: ...

    def write_manifest(self, manifest: Manifest) -> None: ...


@dataclass(slots=True)
class LiveReader:
    """One live incarnation. `leaving`: it gets no more splits and goes when it has none; `asked_back` are under way."""

    link: Link
    node: str
    pid: int
    last_heard_s: float
    last_spoke_s: float
    registered: bool = False
    leaving: bool = False
    splits: dict[str, SourceSplit] = field(default_factory=dict)
    asked_back: set[str] = field(default_factory=set)
    heartbeat: Heartbeat = field(default_factory=lambda: Heartbeat(0, wants_seal=False, metrics={}))

    def figures(self, subtask_id: int) -> dict[str, Any]:
        """The reader's figures for people, JSON-able."""
        return {
            "subtask": subtask_id,
            "incarnation": self.link.identity.incarnation,
            "pid": self.pid,
            "node": self.node,
            "splits": sorted(self.splits),
            "chunks": sum(isinstance(split, SnapshotSplit) for split in self.splits.values()),
            "partitions": sum(isinstance(split, PartitionSplit) for split in self.splits.values()),
            "leaving": self.leaving,
            "open_bytes": self.heartbeat.open_bytes,
            "metrics": self.heartbeat.metrics,
        }


@dataclass(slots=True)
class Sealing:
    """An epoch on its way to its manifest: who has still to report, and what was reported."""

    epoch: int
    waiting: set[int]
    reported: set[int] = field(default_factory=set)
    reports: list[EpochSealed] = field(default_factory=list)
    #: The log reader if it reported and died before the manifest: what it sealed counts, so the stream goes back after.
    stream_lost_by: int | None = None
    #: Partition splits without a reader, and who had them: they go back in the state that this manifest gives them.
    given_up: list[tuple[int, list[PartitionSplit]]] = field(default_factory=list)
