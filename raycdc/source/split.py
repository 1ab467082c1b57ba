"""Splits: immutable on the wire; the mutable state of a split lives in the one reader that has it."""

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

    `ring_s` is how long the log reader remembers dropped rows, if the source does not say when a transaction becomes
    visible; 0 otherwise. `as_of` is the position as of which all chunks of the table are read, if there is one.
    """

    position: Position
    ring_s: float = 0.0
    as_of: int | None = None


@dataclass(frozen=True, slots=True)
class BackfillRows(JsonObject):
    """Rows of a followed table that are read again, parallel to its log, for a backfill.

    `backfill` is the id of the backfill's command (`raycdc.source.snapshot.rereading.backfill`). Within the chunk's
    range, rows are read that meet `where`, a predicate of the source; all if it is empty. With `keys`
    (`raycdc.source.snapshot.rereading.backfill_keys`), rows with these keys are read, and keys that the source lacks
    are deleted; without, nothing is deleted. `order` is that of the chunk key when the range was cut, as
    `PlannedChunks` has it; in another order, the range would contain other rows.
    """

    backfill: str
    where: str = ""
    keys: str = ""
    order: str = field(default="", metadata=LEFT_OUT)


@dataclass(frozen=True, slots=True)
class SnapshotSplit(JsonObject):
    """One chunk of a table: chunk keys in [lower, upper), None meaning unbounded.

    `includes_null` makes it (also) the chunk of NULL keys, `only_null` the chunk of nothing else. Bounds are JSON-able
    values as the dialect writes them. `attempt` counts how often the chunk was assigned; messages of an earlier attempt
    are void. `incarnation` is the table's: it changes when the table is dropped, truncated or created again, and voids
    older chunks. `as_of` is set if all chunks of the table are read as of one position of the log
    (`raycdc.source.snapshot.handoff.as_of`), which is not before this ordinal. `again` is set for chunks of a followed
    table, read parallel to its log.
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

    With `is_catch_up`, it is a catch-up stream of tables that were paused, parallel to the log of all others; only the
    reader knows that.
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
    the connector's own form. It is not part of the state.
    """

    split_id: str
    state: SealedSplit
    until: int | None = None


SourceSplit = SnapshotSplit | StreamSplit | PartitionSplit
