"""What the enumerator and a connector tell each other about a snapshot, and what the enumerator notes about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from raycdc.checkpoint.manifest import Segment
from raycdc.errors import ProtocolError, SchemaError
from raycdc.model import TableId
from raycdc.source.parking import progress_of
from raycdc.source.snapshot.stream_state import StreamState
from raycdc.source.split import SnapshotSplit
from raycdc.source.table_life import Followed, Parked, Parking, SnapshotState, Unknown, parked_from
from raycdc.source.table_life import first_state as first_table_state

#: Chunks planned ahead of demand; keeps the enumerator's state and the server's planning queries small.
PLANNED_AHEAD = 32


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A table at the start position: its schema document and how it is cut into chunks.

    `snapshot` is None for a table that is followed without one. `refused` says why its targets cannot hold it: it is
    parked from there.
    """

    table: TableId
    fingerprint: str
    document: dict[str, Any]
    snapshot: SnapshotState | None
    refused: str = ""

    def followed(self) -> Followed:
        """The table in the first state of a stream split, unless it is `refused`."""
        return first_table_state(self.fingerprint, self.snapshot)

    def parked(self, start: Mapping[str, Any]) -> Parked:
        """The `refused` table in the first state of a stream split that begins at the position `start`."""
        return parked_from(Unknown(), Parking(self.refused, start, 0))


@dataclass(frozen=True, slots=True)
class StartPoint:
    """Where the log starts and what tables look like there; `source` is the first `LogPlace.source_state`.

    `parks` is False where a table that its targets cannot hold is to end the run: `SchemaError`.
    """

    position: Mapping[str, Any]
    ordinal: int
    tables: tuple[TablePlan, ...]
    source: Mapping[str, Any] | None = None
    parks: bool = True

    def __post_init__(self) -> None:
        refused = [plan.refused for plan in self.tables if plan.refused]
        if refused and not self.parks:
            raise SchemaError("\n".join([*refused, 'The run ends for it, as pipeline.on_table_error = "fail" says.']))


@dataclass(frozen=True, slots=True)
class PlannedChunks:
    """More chunks of a table: splits, the planner's new state (None: planned to the end), estimated total."""

    splits: tuple[SnapshotSplit, ...]
    planner: dict[str, Any] | None
    estimate: int


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a log goes on at another server: the place and the log's end, as that server counts them."""

    position: Mapping[str, Any]
    ordinal: int
    end: int


@runtime_checkable
class FailoverDialect(Protocol):
    """What a dialect has more if another server may take over: its positions are no places in the old one's log."""

    def resume_point(self, position: Mapping[str, Any]) -> ResumePoint | None:
        """Where the log goes on at the server that answers now; None if that is the one of `position`. Blocks."""


class EnumeratorDialect(Protocol):
    """What a connector gives the enumerator. Every method blocks and runs off the coordinator's thread."""

    def start_point(self) -> StartPoint: ...

    def plan(
        self, document: dict[str, Any], table: TableId, planner: dict[str, Any], first_index: int
    ) -> PlannedChunks: ...

    def current_ordinal(self) -> int:
        """The log's end now."""

    def captures(self, table: TableId) -> bool:
        """Whether the configuration selects the table. Does not block."""

    @property
    def chunk_readers_max(self) -> int:
        """How many readers may have a connection for chunks; 0: all. Does not block."""


@dataclass(slots=True)
class TablePlanning:
    """How far a table's planning and reading are, as the enumerator counts."""

    fingerprint: str
    planner: dict[str, Any] | None
    planned: int = 0
    finished: int = 0
    estimate: int = 0
    incarnation: int = 0
    #: Why the table is not followed, as the stream's state has it.
    parked: Parked | None = None

    def to_json(self, document: dict[str, Any] | None) -> dict[str, Any]:
        """As manifests have it; `document` is the schema's, while it is needed for planning."""
        return {
            "schema": self.fingerprint,
            "document": document,
            "planner": self.planner,
            "planned": self.planned,
            "finished": self.finished,
            "estimate": self.estimate,
            "incarnation": self.incarnation,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TablePlanning:
        """Inverse of `to_json`, but for the document."""
        counts = data["planned"], data["finished"], data["estimate"]
        return cls(data["schema"], data["planner"], *counts, incarnation=data.get("incarnation", 0))


@dataclass(slots=True)
class OutChunk:
    """A chunk that a reader has, or had until it died."""

    split: SnapshotSplit
    owner: int | None
    published: bool = False
    #: What its reader wrote last. Once it is published, or its reader is gone, no reader remembers it.
    segments: Sequence[Segment] = ()


def snapshot_progress(tables: Mapping[TableId, TablePlanning], out: Iterable[OutChunk]) -> dict[str, Any]:
    """How far each table is, for people."""
    published = Counter(chunk.split.table for chunk in out if chunk.published)
    told = {}
    for table, state in tables.items():
        if state.parked is not None:
            told[str(table)] = progress_of(state.parked)
            continue
        done = state.finished + published[table]
        complete = state.planner is None and done >= state.planned
        told[str(table)] = {
            "phase": "stream" if complete else "snapshot",
            "chunks_done": done,
            "chunks_total": state.planned if state.planner is None else max(state.estimate, state.planned),
        }
    return told


def first_state(start: StartPoint) -> StreamState:
    """The stream split's state where reading begins."""
    followed = {plan.table: plan.followed() for plan in start.tables if not plan.refused}
    parked = {plan.table: plan.parked(start.position) for plan in start.tables if plan.refused}
    return StreamState(start.position, start.ordinal, followed, parked, source=start.source or {})


def captured_of(tables: Mapping[str, Any], dialect: EnumeratorDialect) -> dict[str, Any]:
    """What of a state by table names is still selected."""
    return {name: table for name, table in tables.items() if dialect.captures(TableId.parse(name))}


def captured_state(state: Mapping[str, Any], dialect: EnumeratorDialect) -> dict[str, Any]:
    """What of an enumerator's state is about tables that are still selected."""
    unfinished = [split for split in state["unfinished"] if dialect.captures(TableId.parse(split["table"]))]
    return {**state, "tables": captured_of(state["tables"], dialect), "unfinished": unfinished}


@dataclass(slots=True)
class ChunkReaders:
    """The readers that ask for chunks, oldest first, and those that were given some: each keeps a connection for them.

    One that was told that there are no more goes on asking: a table may begin again.
    """

    asking: list[int] = field(default_factory=list)
    known: set[int] = field(default_factory=set)
    _told: set[int] = field(default_factory=set)

    def keep(self, registered: Iterable[int]) -> None:
        """Others are gone."""
        self.asking = [subtask for subtask in self.asking if subtask in registered]
        self._told &= set(self.asking)

    def next_of(self, registered: Iterable[int], *, most: int) -> int | None:
        """Whom to give a chunk: the first that has a connection or may get one, as `most` may (0: any number)."""
        self.known &= set(registered)
        full = most and len(self.known) >= most
        found = next((subtask for subtask in self.asking if not full or subtask in self.known), None)
        if found is not None:
            self.known.add(found)
            self.asking.remove(found)
            self._told.discard(found)
        return found

    def take_untold(self, *, but: int | None) -> list[int]:
        """Who asks and was not told yet that there are no more, once; never `but`."""
        untold = sorted(set(self.asking) - self._told - {but})
        self._told.update(untold)
        return untold


def unknown_document(fingerprint: str) -> dict[str, Any]:
    """Where no schema documents are."""
    raise ProtocolError(f"The schema {fingerprint} is not known here")
