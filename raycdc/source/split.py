"""Splits: immutable on the wire; the mutable state of a split lives in the one reader that has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from raycdc.checkpoint.manifest import STREAM_SPLIT_ID
from raycdc.errors import ProtocolError
from raycdc.model import TableId

__all__ = [
    "STREAM_SPLIT_ID",
    "ChunkKey",
    "PartitionSplit",
    "SnapshotSplit",
    "SourceSplit",
    "StreamSplit",
    "decode_split",
    "key_from_json",
    "key_names",
]

#: What a table is cut by: a column, or several, compared one after the other.
ChunkKey = str | tuple[str, ...]


def key_names(key: ChunkKey | None) -> tuple[str, ...]:
    """The columns of a chunk key; none for a table that is a single chunk."""
    return () if key is None else (key,) if isinstance(key, str) else tuple(key)


def key_from_json(data: Any) -> ChunkKey | None:
    """A chunk key as state and messages hold it."""
    return data if data is None or isinstance(data, str) else tuple(data)


@dataclass(frozen=True, slots=True)
class SnapshotSplit:
    """One chunk of a table: chunk keys in [lower, upper), None meaning unbounded.

    `includes_null` makes it (also) the chunk of NULL keys, `only_null` the chunk of nothing else. Bounds are JSON-able
    values as the dialect writes them. `attempt` counts how often the chunk was handed out; messages of an earlier
    attempt are void. `incarnation` is the table's: it changes when the table is dropped, truncated or created again,
    and voids older chunks. `as_of` is of tables whose chunks are all read as they were at one place of the log
    (`raycdc.source.as_of`): that place is not before this ordinal.
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

    @property
    def split_id(self) -> str:
        return f"{self.table}#{self.incarnation}.{self.index}"

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "snapshot",
            "table": str(self.table),
            **{name: getattr(self, name) for name in self.__slots__ if name not in ("table", "as_of")},
            **({} if self.as_of is None else {"as_of": self.as_of}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SnapshotSplit:
        values = {name: value for name, value in data.items() if name != "kind"}
        return cls(**{**values, "table": TableId.parse(data["table"]), "key": key_from_json(data["key"])})


@dataclass(frozen=True, slots=True)
class StreamSplit:
    """A log from `state` on. `state` is the log reader's own (position, tables, closed key ranges).

    `schemas` holds the schema documents (by fingerprint) that `state` refers to.
    """

    state: dict[str, Any]
    schemas: dict[str, Any] = field(default_factory=dict)

    @property
    def split_id(self) -> str:
        return STREAM_SPLIT_ID

    def to_json(self) -> dict[str, Any]:
        return {"kind": "stream", "state": self.state, "schemas": self.schemas}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StreamSplit:
        return cls(data["state"], data["schemas"])


@dataclass(frozen=True, slots=True)
class PartitionSplit:
    """One of many logs that know nothing of each other (a partition of a topic), from `state` on.

    `state` is sealed with every epoch and holds at least ``position``. `until` ends the split for this run alone; it is
    in the connector's own terms and no part of the state.
    """

    split_id: str
    state: dict[str, Any]
    until: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {"kind": "partition", "id": self.split_id, "state": self.state, "until": self.until}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PartitionSplit:
        return cls(data["id"], data["state"], data["until"])


SourceSplit = SnapshotSplit | StreamSplit | PartitionSplit


def decode_split(data: dict[str, Any]) -> SourceSplit:
    """Inverse of ``to_json``; an unknown kind is a `ProtocolError`."""
    match data.get("kind"):
        case "snapshot":
            return SnapshotSplit.from_json(data)
        case "stream":
            return StreamSplit.from_json(data)
        case "partition":
            return PartitionSplit.from_json(data)
        case kind:
            raise ProtocolError(f"Unknown kind of split {kind!r}")
