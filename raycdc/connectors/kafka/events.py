"""The source events of topics: messages between the enumerator and the readers of partitions.

| event | direction | meaning |
|---|---|---|
| `SchemaChangeRequest` | reader → enumerator | a batch waits for this schema (Flink CDC's `SchemaChangeRequest`) |
| `SchemasInForce` | enumerator → reader | these schemas are valid from an epoch on; the answer to the request, sent \
to all readers |
| `AlignWatermarks` | enumerator → reader | partitions whose events are later than the limit wait |
| `WatermarksReached` | reader → enumerator | the watermarks of this reader's partitions |
| `CheckKeys` | enumerator → reader | from now on, report the keys of each partition |
| `KeysRead` | reader → enumerator | keys of a table that were read from a partition for the first time |
| `TablePartition` | reader → enumerator | a partition has rows of a table |
| `TableEmptied` | reader → enumerator | a message removed all rows of a table |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raycdc.model import TableId, TableSchema
from raycdc.model.evolution import DropTableEvent, TruncateTableEvent
from raycdc.source.protocol.source_event import SourceEvent


@dataclass(frozen=True, slots=True)
class SchemaChangeRequest(SourceEvent):
    """A request for a schema, which `SchemasInForce` answers, unless a fitting schema was sent already."""

    table: TableId
    schema: TableSchema


@dataclass(frozen=True, slots=True)
class SchemasInForce(SourceEvent):
    """The schemas of these tables from the epoch `from_epoch` on."""

    from_epoch: int
    schemas: Mapping[TableId, TableSchema]


@dataclass(frozen=True, slots=True)
class AlignWatermarks(SourceEvent):
    """A limit of event time in Unix milliseconds, beyond which partitions wait; None: no partition waits."""

    limit_ms: int | None


@dataclass(frozen=True, slots=True)
class WatermarksReached(SourceEvent):
    """The event time, in Unix milliseconds, that each partition has reached, idle ones left out."""

    splits: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CheckKeys(SourceEvent):
    """A request to report keys, because keys of one table may come from several partitions."""


@dataclass(frozen=True, slots=True)
class KeysRead(SourceEvent):
    """New keys of a table in a partition: sorted, distinct 64-bit hashes in this machine's byte order.

    If not `all_reported`, the partition has too many keys, and the reader reports no more of them.
    """

    table: str
    split_id: str
    hashes: bytes
    all_reported: bool


@dataclass(frozen=True, slots=True)
class TablePartition(SourceEvent):
    """A notice that a partition has rows of a table. It is sent before the reader's seal is reported."""

    table: TableId
    split_id: str


@dataclass(frozen=True, slots=True)
class TableEmptied(SourceEvent):
    """A notice that the message at `offset` emptied a table. `change` is the schema change event for the manifest."""

    table: TableId
    split_id: str
    offset: int
    change: TruncateTableEvent | DropTableEvent


#: The types of events that the enumerator handles.
EnumeratorEvent = SchemaChangeRequest | WatermarksReached | KeysRead | TablePartition | TableEmptied
#: The types of events that readers handle.
ReaderEvent = SchemasInForce | AlignWatermarks | CheckKeys
