"""Splits. They are immutable values on the wire; the one reader that has a split keeps a mutable state of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from raycdc.core.typed_codec import LEFT_OUT, PACKED, JsonObject, stored
from raycdc.model import TableId
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.key_intervals import ChunkKey
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.state.manifests.manifest import STREAM_SPLIT_ID
from raycdc.state.opaque import Position, SealedSplit

__all__ = [
    "STREAM_SPLIT_ID",
    "BackfillRows",
    "ChunkId",
    "OpenedAt",
    "PartitionSplit",
    "SnapshotSplit",
    "SourceSplit",
    "StreamSplit",
]


@dataclass(frozen=True, slots=True)
class ChunkId:
    """An attempt at a chunk. Messages about another attempt are out of date."""

    table: TableId
    split_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class OpenedAt:
    """The position at which the log reader opened a chunk: the chunk's SELECT must see everything up to `position`.

    `ring_s` is the time for which the log reader remembers dropped rows, if the source does not report when a
    transaction becomes visible; 0 otherwise. If all chunks of the table are read as of one position, `as_of` is that
    position.
    """

    position: Position
    ring_s: float = 0.0
    as_of: int | None = None


@dataclass(frozen=True, slots=True)
class BackfillRows(JsonObject):
    """Rows of a followed table that are read again, parallel to its log, for a backfill.

    `backfill` is the id of the backfill's command (`raycdc.source.snapshot.rereading.backfill`). Rows in the chunk's
    range are read if they match `where`, a predicate in the source's language (empty: all rows). If there are `keys`
    (`raycdc.source.snapshot.rereading.backfill_keys`), rows with these keys are read, and keys that the source does not
    have are deleted. `order` is the order of the chunk key when the range was cut (`PlannedChunks.order`); in another
    order, the range would contain different rows.
    """

    backfill: str
    where: str = ""
    keys: str = ""
    order: str = field(default="", metadata=LEFT_OUT)


@dataclass(frozen=True, slots=True)
class SnapshotSplit(JsonObject):
    """One chunk of a table: the rows with chunk keys in [lower, upper); None means unbounded. If `includes_null` is
    True, the chunk also has the rows with NULL keys; if `only_null` is True, it has only these. Bounds are JSON values
    in the form that the dialect writes. `attempt` counts how often the chunk was assigned; messages of earlier attempts
    have no effect. `incarnation` is the incarnation of the table. It changes when the table is dropped, truncated or
    created again, and voids older chunks. `as_of` is set if all chunks of the table are read as of one position of the
    log (`raycdc.source.snapshot.handoff.as_of`), which is not before this ordinal. `again` is set for a chunk of a
    backfill, whose table is followed at the same time.
    """

    table: TableId
    index: int
    key: ChunkKey | None
    lower: Any
    upper: Any
    includes_null: bool = field(default=False, metadata=stored(older=False))
    only_null: bool = field(default=False, metadata=stored(older=False))
    incarnation: int = field(default=0, metadata=stored(older=0))
    attempt: int = field(default=0, metadata=stored(older=0))
    as_of: int | None = field(default=None, metadata=LEFT_OUT)
    again: BackfillRows | None = field(default=None, metadata=stored("again", left_out=True))

    kind = "snapshot"
    written_first = ("kind",)
    refuses_unknown_keys = True

    @property
    def split_id(self) -> str:
        backfill = "" if self.again is None else f".{self.again.backfill}"
        return f"{self.table}#{self.incarnation}{backfill}.{self.index}"

    @property
    def chunk_id(self) -> ChunkId:
        """Return the identity of this attempt at the chunk."""
        return ChunkId(self.table, self.split_id, self.attempt)


@dataclass(frozen=True, slots=True)
class StreamSplit:
    """A log from `state` on. `schemas` holds the schema documents (by fingerprint) that `state` refers to.

    For example, the schema of the followed table ``t`` is ``split.schemas[split.state.followed[t].schema].schema``.

    If `is_catch_up` is True, it is a catch-up stream of paused tables, which is read at the same time as the log of all
    other tables. Only the reader makes such a split; the enumerator does not know it.
    """

    state: StreamState
    schemas: Mapping[str, SchemaDocument] = field(default_factory=dict, metadata=PACKED)
    is_catch_up: bool = False

    @classmethod
    def of(cls, state: StreamState, document: Callable[[str], SchemaDocument]) -> StreamSplit:
        """Return the split with the documents that `state` refers to, by fingerprint.

        Many tables may share one schema, and each document may be a file, so each is loaded once.
        """
        left = [parked for parked in state.parked.values() if parked.left is not None]
        names = {table.schema for table in (*state.followed.values(), *state.catching_up.values(), *left)}
        return cls(state, {name: document(name) for name in names if name is not None})

    @property
    def split_id(self) -> str:
        return STREAM_SPLIT_ID


@dataclass(frozen=True, slots=True)
class PartitionSplit:
    """One of many independent logs (a partition of a topic), from `state` on.

    `state` is sealed with every epoch and has at least ``position``. `until` is the end of the split in this run, in
    the connector's own form. It is no part of the state.
    """

    split_id: str
    state: SealedSplit
    until: int | None = None


SourceSplit = SnapshotSplit | StreamSplit | PartitionSplit
