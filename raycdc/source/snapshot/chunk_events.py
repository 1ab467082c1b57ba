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

The enumerator relays all events between two readers. Each event names the attempt (`ChunkId`). An event about an
attempt that is over changes nothing.
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
    """A request to open a chunk. The answer is `ChunkOpened` or `ChunkVoided`; it may come much later."""

    split: SnapshotSplit


@dataclass(frozen=True, slots=True)
class ChunkOpened(SourceEvent):
    """The chunk is open. `document` is the schema document of the table at `opened_at`."""

    chunk: ChunkId
    opened_at: OpenedAt
    document: SchemaDocument


@dataclass(frozen=True, slots=True)
class CloseChunkRequest(SourceEvent):
    """The chunk was read.

    Its SELECT saw no row after the ordinal `high`, and no statement after `log_end` decided which table it read.
    `exact` is True if the SELECT saw exactly the rows up to `high`.

    `segments` are durable on the reader's node and belong to no epoch yet.
    """

    chunk: ChunkId
    high: int
    log_end: int
    exact: bool
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class ChunkSchemaMismatch(SourceEvent):
    """The chunk has no rows, because its table's schema differs.

    The log has the reason (a schema change) before the ordinal `high`. When the log reader has passed `high`, the chunk
    is read again.
    """

    chunk: ChunkId
    high: int
    reason: str


@dataclass(frozen=True, slots=True)
class ChunkRefused(SourceEvent):
    """The chunk has no rows, and no later attempt can have any. `reason` becomes the reason for parking the whole
    table.
    """

    chunk: ChunkId
    reason: str


@dataclass(frozen=True, slots=True)
class ChunkLocked(SourceEvent):
    """The chunk has no rows, because its table is locked. The attempt ends as if its reader were gone."""

    chunk: ChunkId


@dataclass(frozen=True, slots=True)
class ChunkDelta(SourceEvent):
    """Rows to fold into the chunk: `segments` hold the log's rows of its keys up to H, in order."""

    chunk: ChunkId
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class ChunkPublished(SourceEvent):
    """The chunk's segments belong to the log reader from now on: they are sealed with its epoch, or lost with it."""

    chunk: ChunkId


class Fate(Enum):
    """The fate of a chunk whose attempt is over."""

    READ_AGAIN = "read_again"
    #: The table was dropped, so none of its chunks is read any more.
    TABLE_DROPPED = "table_gone"
    #: The table is parked or resnapshotted; the next manifest says which of the two. Until then none of its chunks is
    #: assigned.
    NEXT_MANIFEST = "next_manifest"
    #: The backfill of the chunk is over. The table itself is unaffected.
    BACKFILL_OVER = "backfill_over"


@dataclass(frozen=True, slots=True)
class ChunkVoided(SourceEvent):
    """The attempt is over for this `reason`. The segments that its reader wrote are deleted."""

    chunk: ChunkId
    reason: str
    fate: Fate = Fate.READ_AGAIN


@dataclass(frozen=True, slots=True)
class ResnapshotBegan(SourceEvent):
    """A parked table, or another table with its name, is resnapshotted. The event is shown to people. Manifests would
    not be enough for that: if a table is parked and resnapshotted within one epoch, no manifest says that it was
    parked.
    """

    table: TableId
    was: Parked


@dataclass(frozen=True, slots=True)
class VoidChunkRequest(SourceEvent):
    """A request to end the attempt if the chunk is still open."""

    chunk: ChunkId


@dataclass(frozen=True, slots=True)
class StopAt(SourceEvent):
    """The position of the end of the input: the log reader stops when it is at `ordinal` or after it.

    `changes` is the number of parkings and resnapshots that the sender knows of (`raycdc.source.tables.parking`). If
    the sender does not know of the newest one, it also does not know that a table has more to read, and the log reader
    ignores the message.
    """

    ordinal: int
    changes: int = 0


@dataclass(frozen=True, slots=True)
class ParkTable(SourceEvent):
    """A request to park a table that its target refused. It is repeated after a restart, which is harmless."""

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class DiscardSegments(SourceEvent):
    """A request to delete segments, on any node, of chunks that are read again."""

    segments: tuple[Segment, ...]


#: The events that the log reader acts on.
LogEvent = (
    OpenChunkRequest | CloseChunkRequest | ChunkSchemaMismatch | ChunkRefused | VoidChunkRequest | StopAt | ParkTable
)
#: The events that a reader of chunks acts on.
ChunkReaderEvent = ChunkOpened | ChunkDelta | ChunkPublished | ChunkVoided | DiscardSegments
#: The events that the enumerator reads and relays. Instead of `ChunkLocked` it sends `VoidChunkRequest`.
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
