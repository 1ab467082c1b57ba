"""How a cluster spreads a collection over its shards, as ``config.collections`` and ``config.chunks`` have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import bson
from bson.binary import Binary

from raycdc.connectors.mongodb.bson.documents import PLAIN
from raycdc.connectors.mongodb.client import Client
from raycdc.connectors.mongodb.layout import ID
from raycdc.model import TableId


@dataclass(frozen=True, slots=True)
class ShardKey:
    """The names of the fields that decide where a document is, each with its order: 1, or ``hashed``."""

    fields: tuple[tuple[str, str | float], ...]

    def __str__(self) -> str:
        return f"{{{', '.join(f'{name}: {order}' for name, order in self.fields)}}}"

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.fields]

    @property
    def ordered(self) -> bool:
        """Whether documents are spread by the values of all fields, and not by a hash of one."""
        return all(order == 1 for _, order in self.fields)

    def parts_of_id(self) -> list[str]:
        """The fields with which the key begins that are `_id`, or parts of it, by their values; there may be none."""
        own = takewhile(lambda field: field[0].split(".")[0] == ID and field[1] == 1, self.fields)
        names = [name for name, _ in own]
        return [ID] if names[:1] == [ID] else names


@dataclass(frozen=True, slots=True)
class ShardedCollection:
    """A collection that is sharded; `uuid` is None where the cluster does not tell it."""

    table: TableId
    key: ShardKey
    uuid: Binary | None

    def lower_bounds(self, client: Client) -> list[LowerBound]:
        """Where the cluster's chunks begin. Raises the driver's errors."""
        # Chunks name their collection by its UUID since 5.0, by its name before.
        own = {"$or": [{"ns": self.table.dotted}, *([] if self.uuid is None else [{"uuid": self.uuid}])]}
        chunks = client.get_database("config", codec_options=PLAIN)["chunks"].find(own, {"min": 1})
        return [LowerBound(tuple(chunk["min"][name] for name in self.key.names)) for chunk in chunks]


@dataclass(frozen=True, slots=True)
class LowerBound:
    """Where a chunk of the cluster begins: a value of any type of BSON for each field of the shard key."""

    values: tuple[Any, ...]

    def is_least(self, fields: Sequence[str]) -> bool:
        """Whether nothing comes before it by the first fields of the key, which `fields` are."""
        return all(isinstance(value, bson.MinKey) for value in self.values[: len(fields)])


def sharded(client: Client, table: TableId) -> ShardedCollection | None:
    """None where the collection is not sharded, or the server is none of a cluster. Raises the driver's errors."""
    entries = client.get_database("config", codec_options=PLAIN)["collections"]
    entry = entries.find_one({"_id": table.dotted, "dropped": {"$ne": True}})
    return None if entry is None else ShardedCollection(table, ShardKey(tuple(entry["key"].items())), entry.get("uuid"))
