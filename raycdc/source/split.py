"""Splits: immutable on the wire; the mutable state of a split lives in the one reader that has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

from raycdc.model import TableId
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.key_intervals import ChunkKey, key_from_json
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


class BackfillRowsJson(TypedDict):
    """`BackfillRows` in a state and in messages."""

    backfill: str
    where: str
    keys: str
    order: NotRequired[str]


@dataclass(frozen=True, slots=True)
class ChunkId:
    """One attempt at one chunk: whatever is said of another attempt is out of date."""

    table: TableId
    split_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class OpenedAt:
    """Where the log reader opened a chunk: its SELECT must see everything up to `position`.

    `ring_s` is how long the log reader remembers rows that it dropped, where nothing tells when a transaction becomes
    visible; 0 elsewhere. `as_of` is the place that all chunks of the table are read as of, if there is one.
    """

    position: Position
    ring_s: float = 0.0
    as_of: int | None = None


@dataclass(frozen=True, slots=True)
class BackfillRows:
    """Rows of a table that is followed, read once more beside its log for the backfill `backfill`, its command's id
    (`raycdc.source.snapshot.rereading.backfill`).

    Of the chunk's range those are read that meet `where`, a predicate as the source takes it; all where it is empty.
    With `keys` (`raycdc.source.snapshot.rereading.backfill_keys`) those of these keys are read, and keys that the
    source has not are deleted. Empty: nothing is deleted. `order` is that of the chunk key when the range was cut, as
    `PlannedChunks` has it: in another one, the range is of other rows.
    """

    backfill: str
    where: str = ""
    keys: str = ""
    order: str = ""

    def to_json(self) -> BackfillRowsJson:
        again = BackfillRowsJson(backfill=self.backfill, where=self.where, keys=self.keys)
        if self.order:
            again["order"] = self.order
        return again

    @classmethod
    def from_json(cls, data: BackfillRowsJson) -> BackfillRows:
        """Inverse of `to_json`; older states have no order."""
        return cls(data["backfill"], data["where"], data["keys"], data.get("order", ""))


@dataclass(frozen=True, slots=True)
class SnapshotSplit:
    """One chunk of a table: chunk keys in [lower, upper), None meaning unbounded.

    `includes_null` makes it (also) the chunk of NULL keys, `only_null` the chunk of nothing else. Bounds are JSON-able
    values as the dialect writes them. `attempt` counts how often the chunk was handed out; messages of an earlier
    attempt are void. `incarnation` is the table's: it changes when the table is dropped, truncated or created again,
    and voids older chunks. `as_of` is of tables whose chunks are all read as they were at one place of the log
    (`raycdc.source.snapshot.handoff.as_of`): that place is not before this ordinal. `again` is of chunks that are read
    beside the log of a table that is followed.
    """

    table: TableId
    index: int
    key: ChunkKey | None
    lower: Any
    upper: Any
    includes_null: bool = False
    only_null: bool = False
    incarnation: int = 0
    attempt: int = 0
    as_of: int | None = None
    again: BackfillRows | None = None

    @property
    def split_id(self) -> str:
        backfill = "" if self.again is None else f".{self.again.backfill}"
        return f"{self.table}#{self.incarnation}{backfill}.{self.index}"

    @property
    def chunk_id(self) -> ChunkId:
        """The attempt at the chunk that this is."""
        return ChunkId(self.table, self.split_id, self.attempt)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "snapshot",
            "table": str(self.table),
            **{name: getattr(self, name) for name in self.__slots__ if name not in ("table", "as_of", "again")},
            **({} if self.as_of is None else {"as_of": self.as_of}),
            **({} if self.again is None else {"again": self.again.to_json()}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SnapshotSplit:
        values = {name: value for name, value in data.items() if name != "kind"}
        if "again" in data:
            values["again"] = BackfillRows.from_json(data["again"])
        return cls(**{**values, "table": TableId.parse(data["table"]), "key": key_from_json(data["key"])})


@dataclass(frozen=True, slots=True)
class StreamSplit:
    """A log from `state` on. `schemas` holds the schema documents (by fingerprint) that `state` refers to.

    So the schema of the followed table ``t`` is ``split.schemas[split.state.followed[t].schema].schema``.

    It is read `beside` the log of all other tables, for those that were paused; that is known in the reader alone.
    """

    state: StreamState
    schemas: Mapping[str, SchemaDocument] = field(default_factory=dict)
    beside: bool = False

    @classmethod
    def of(cls, state: StreamState, document: Callable[[str], SchemaDocument]) -> StreamSplit:
        """With the documents that `state` refers to, by fingerprint. Many tables have one schema, and each document may
        be a file: it is asked for once.
        """
        left = [parked for parked in state.parked.values() if parked.left is not None]
        names = {table.schema for table in (*state.followed.values(), *state.catching_up.values(), *left)}
        return cls(state, {name: document(name) for name in names if name is not None})

    @property
    def split_id(self) -> str:
        return STREAM_SPLIT_ID


@dataclass(frozen=True, slots=True)
class PartitionSplit:
    """One of many logs that know nothing of each other (a partition of a topic), from `state` on.

    `state` is sealed with every epoch and holds at least ``position``. `until` ends the split for this run alone; it is
    in the connector's own terms and no part of the state.
    """

    split_id: str
    state: SealedSplit
    until: int | None = None


SourceSplit = SnapshotSplit | StreamSplit | PartitionSplit
