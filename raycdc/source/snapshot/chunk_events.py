"""The source events of incremental snapshots: the hand-off of a chunk between its reader and the reader of the log.

| event | from | to | meaning |
|---|---|---|---|
| `OpenChunkRequest` | reader of the chunk | log reader | hold the keys of the chunk from now on; send your position |
| `ChunkOpened` | log reader | reader of the chunk | the SELECT may start once everything up to there is visible |
| `CloseChunkRequest` | reader of the chunk | log reader | the chunk was read, or folded; H bounds what its SELECT saw |
| `ChunkSchemaMismatch` | reader of the chunk | log reader | the table's schema differs from the log's |
| `ChunkRefused` | reader of the chunk | log reader | no target can take one of its rows: the table is parked |
| `ChunkLocked` | reader of the chunk | enumerator | another session has the table locked, so the chunk has no rows |
| `ChunkDelta` | log reader | reader of the chunk | fold these held rows into the chunk, and close it again |
| `ChunkPublished` | log reader | reader of the chunk | the chunk is part of the log reader's open epoch |
| `ChunkVoided` | log reader | reader of the chunk | the attempt is over; `fate` says what comes next |
| `VoidChunkRequest` | enumerator | log reader | the chunk's reader is gone or cannot read it; the answer is \
`ChunkVoided` |
| `ResnapshotBegan` | log reader | enumerator | a parked table is resnapshotted; it has the reason of the parking |
| `StopAt` | enumerator | log reader | the input ends at this position |
| `ParkTable` | enumerator | log reader | the table's target refused an epoch, so its rows are no longer passed on |
| `DiscardSegments` | enumerator | any reader | delete segments that are not used |

The enumerator relays all events between two readers. An event about an attempt that is over changes nothing: `ChunkId`
names the attempt.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from raycdc.model import TableId
from raycdc.source.protocol.source_event import SourceEvent
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.split import ChunkId, OpenedAt, SnapshotSplit
from raycdc.source.tables.parking import Refusal
from raycdc.source.tables.table_life import Parked
from raycdc.state.manifests.manifest import Segment


@dataclass(frozen=True, slots=True)
class OpenChunkRequest(SourceEvent):
    """Answered by `ChunkOpened` or `ChunkVoided`, maybe only after some time."""

    split: SnapshotSplit


@dataclass(frozen=True, slots=True)
class ChunkOpened(SourceEvent):
    """`document` is the schema document of the table at `opened_at`."""

    chunk: ChunkId
    opened_at: OpenedAt
    document: SchemaDocument


@dataclass(frozen=True, slots=True)
class CloseChunkRequest(SourceEvent):
    """The SELECT saw no row after the ordinal `high` and no table after `log_end`; `exact`: it saw exactly `high`.

    `segments` are durable on the reader's node and belong to no epoch yet.
    """

    chunk: ChunkId
    high: int
    log_end: int
    exact: bool
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class ChunkSchemaMismatch(SourceEvent):
    """The chunk has no rows; the log says why before the ordinal `high`, where the chunk is read again."""

    chunk: ChunkId
    high: int
    reason: str


@dataclass(frozen=True, slots=True)
class ChunkRefused(SourceEvent):
    """The chunk has no rows, nor will any later attempt; `reason` is the table's."""

    chunk: ChunkId
    reason: str


@dataclass(frozen=True, slots=True)
class ChunkLocked(SourceEvent):
    """The chunk has no rows because its table is locked; the attempt ends as if its reader were gone."""

    chunk: ChunkId


@dataclass(frozen=True, slots=True)
class ChunkDelta(SourceEvent):
    """`segments` hold the log's rows of the chunk's keys up to H, in order."""

    chunk: ChunkId
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class ChunkPublished(SourceEvent):
    """The segments belong to the log reader from here on: they are sealed with its epoch, or lost with it."""

    chunk: ChunkId


class Fate(Enum):
    """The fate of a chunk whose attempt is over."""

    READ_AGAIN = "read_again"
    #: The table was dropped: no chunk of it is left to read.
    TABLE_DROPPED = "table_gone"
    #: The table is parked or begins again; the next manifest says which, and until then its chunks are left alone.
    NEXT_MANIFEST = "next_manifest"
    #: The backfill that the chunk is of is over; nothing becomes of its table.
    BACKFILL_OVER = "backfill_over"


@dataclass(frozen=True, slots=True)
class ChunkVoided(SourceEvent):
    """The attempt is over, for this `reason`; what its reader wrote is deleted."""

    chunk: ChunkId
    reason: str
    fate: Fate = Fate.READ_AGAIN


@dataclass(frozen=True, slots=True)
class ResnapshotBegan(SourceEvent):
    """For people: a table may be parked and begin again within one epoch, of which no manifest says that it was."""

    table: TableId
    was: Parked


@dataclass(frozen=True, slots=True)
class VoidChunkRequest(SourceEvent):
    """Make the chunk unopened, if it is still open."""

    chunk: ChunkId


@dataclass(frozen=True, slots=True)
class StopAt(SourceEvent):
    """The input ends when the log reader is at `ordinal` or after it.

    `changes` are the parkings and resnapshots that the sender knows of (`raycdc.source.tables.parking`): a sender that
    misses one does not know that a table has more to read.
    """

    ordinal: int
    changes: int = 0


@dataclass(frozen=True, slots=True)
class ParkTable(SourceEvent):
    """Said again after a restart; saying it twice changes nothing."""

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class DiscardSegments(SourceEvent):
    """Segments of chunks that are read again, on whatever node they are."""

    segments: tuple[Segment, ...]


#: The events that the log reader acts on.
LogEvent = (
    OpenChunkRequest | CloseChunkRequest | ChunkSchemaMismatch | ChunkRefused | VoidChunkRequest | StopAt | ParkTable
)
#: The events that a reader of chunks acts on.
ChunkReaderEvent = ChunkOpened | ChunkDelta | ChunkPublished | ChunkVoided | DiscardSegments
#: The events that the enumerator reads and relays; for a locked table's, it sends `VoidChunkRequest` instead.
RelayedEvent = (
    OpenChunkRequest
    | CloseChunkRequest
    | ChunkSchemaMismatch
    | ChunkRefused
    | ChunkLocked
    | ChunkOpened
    | ChunkDelta
    | ChunkPublished
    | ChunkVoided
)
