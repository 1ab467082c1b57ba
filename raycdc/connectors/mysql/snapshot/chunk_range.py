"""One chunk of a table as the rows that it has: a half-open range of the chunk key.

The planner makes ranges, state and messages have them as splits, and the chunk's reader makes SQL of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

from raycdc.connectors.mysql.snapshot import keys
from raycdc.connectors.mysql.snapshot.key_columns import KeyColumns
from raycdc.connectors.mysql.snapshot.keys import Bound, StoredBound
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model import TableId
from raycdc.source.snapshot.chunk_key import ChunkKey, key_from_json, key_names
from raycdc.source.split import SnapshotSplit
from raycdc.transform.hiding import Hiding


class StoredRange(TypedDict):
    """A range as the state has it."""

    lower: StoredBound | None
    upper: StoredBound | None
    includes_null: bool
    only_null: bool
    key: ChunkKey | list[str] | None


@dataclass(frozen=True, slots=True)
class ChunkRange:
    """Rows whose key lies in [lower, upper); None is unbounded.

    `includes_null` adds the rows of NULL key: (None, None, includes_null=True) is the whole table. `only_null` is the
    chunk of NULL alone. `key` names the chunk key's columns, None when the table is one chunk because it has no usable
    key.
    """

    lower: Bound | None = None
    upper: Bound | None = None
    includes_null: bool = False
    only_null: bool = False
    key: ChunkKey | None = None

    @property
    def is_whole_table(self) -> bool:
        return self.includes_null and self.lower is None and self.upper is None

    def condition(self, table: MySqlTable) -> str:
        """SQL condition for this chunk's rows; ``1 = 1`` for the whole table."""
        if self.key is None or self.is_whole_table:
            return "1 = 1"
        columns = KeyColumns.named(table, self.key)
        if self.only_null:
            return columns.null_condition()
        condition = columns.range_condition(self.lower, self.upper)
        return f"({condition} OR {columns.null_condition()})" if self.includes_null else condition

    def to_json(self) -> StoredRange:
        return {
            "lower": keys.bound_to_json(self.lower),
            "upper": keys.bound_to_json(self.upper),
            "includes_null": self.includes_null,
            "only_null": self.only_null,
            "key": self.key,
        }

    @classmethod
    def from_json(cls, data: StoredRange) -> ChunkRange:
        return cls(
            keys.bound_from_json(data["lower"]),
            keys.bound_from_json(data["upper"]),
            data["includes_null"],
            data["only_null"],
            key_from_json(data["key"]),
        )


def split_of(chunk: ChunkRange, table: TableId, index: int, hiding: Hiding) -> SnapshotSplit:
    """The chunk as number `index` of `table`; bounds that a mask hides are sealed."""

    def bound(value: Bound | None) -> Any:
        return None if value is None else hiding.seal_json(table, key_names(chunk.key), keys.bound_to_json(value))

    return SnapshotSplit(
        table,
        index,
        chunk.key,
        bound(chunk.lower),
        bound(chunk.upper),
        includes_null=chunk.includes_null or chunk.only_null,
        only_null=chunk.only_null,
    )


def range_of(split: SnapshotSplit, hiding: Hiding) -> ChunkRange:
    """Inverse of `split_of`."""
    lower, upper = (keys.bound_from_json(hiding.open_json(bound)) for bound in (split.lower, split.upper))
    return ChunkRange(lower, upper, split.includes_null and not split.only_null, split.only_null, split.key)
