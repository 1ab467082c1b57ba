"""The state of cutting one table into chunks, as a value from which planning continues after a restart.

`raycdc.connectors.mysql.snapshot.planning.chunks` decides where chunks end; this module stores the decisions. The state
has a plan as JSON of constant size (`ChunkPlan.to_json`), however large the table.

A `ChunkRange` describes the rows of one chunk: a half-open range of the chunk key. The planner makes ranges; states and
messages have them as splits; the chunk's reader turns them into SQL.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from raycdc.connectors.mysql.snapshot import keys
from raycdc.connectors.mysql.snapshot.keys import Bound
from raycdc.connectors.mysql.snapshot.planning.chunk_keys import KeyColumns
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.core.typed_codec import JsonObject, read, stored
from raycdc.errors import StateError
from raycdc.model import TableId
from raycdc.source.snapshot.key_intervals import ChunkKey, key_from_json, key_names
from raycdc.source.split import SnapshotSplit
from raycdc.transform.masks import Masking

_BOUND = stored(write=keys.bound_to_json, read=keys.bound_from_json)
_MAX = stored("max", write=keys.bound_to_json, read=keys.bound_from_json)


@dataclass(frozen=True, slots=True)
class ChunkRange(JsonObject):
    """The rows of one chunk: keys in [lower, upper); None is unbounded.

    `includes_null` adds the rows with NULL: (None, None, includes_null=True) is the whole table. `only_null` is the
    chunk of NULL alone. `key` names the chunk key's columns; it is None if the table is one chunk because it has no
    usable key.
    """

    lower: Bound | None = field(default=None, metadata=_BOUND)
    upper: Bound | None = field(default=None, metadata=_BOUND)
    includes_null: bool = False
    only_null: bool = False
    key: ChunkKey | None = None

    @property
    def is_whole_table(self) -> bool:
        return self.includes_null and self.lower is None and self.upper is None

    def condition(self, table: MySqlTable) -> str:
        """Return the SQL condition for this chunk's rows; ``1 = 1`` for the whole table."""
        if self.key is None or self.is_whole_table:
            return "1 = 1"
        columns = KeyColumns.named(table, self.key)
        if self.only_null:
            return columns.null_condition()
        condition = columns.range_condition(self.lower, self.upper)
        return f"({condition} OR {columns.null_condition()})" if self.includes_null else condition


def split_of(chunk: ChunkRange, table: TableId, index: int, masking: Masking) -> SnapshotSplit:
    """Return the chunk as split number `index` of `table`. Bounds that a mask hides are sealed."""

    def bound(value: Bound | None) -> Any:
        return None if value is None else masking.seal_json(table, key_names(chunk.key), keys.bound_to_json(value))

    return SnapshotSplit(
        table,
        index,
        chunk.key,
        bound(chunk.lower),
        bound(chunk.upper),
        includes_null=chunk.includes_null or chunk.only_null,
        only_null=chunk.only_null,
    )


def range_of(split: SnapshotSplit, masking: Masking) -> ChunkRange:
    """Return the inverse of `split_of`."""
    lower, upper = (keys.bound_from_json(masking.open_json(bound)) for bound in (split.lower, split.upper))
    return ChunkRange(lower, upper, split.includes_null and not split.only_null, split.only_null, split.key)


STATE_VERSION = 1


class ChunkPlanPhase(StrEnum):
    """The phase of the planning: begun, the strategy that cuts the inside, or done."""

    START = "start"
    EVEN = "even"
    UNEVEN = "uneven"
    SAMPLED = "sampled"
    DONE = "done"


def _key_to_json(key: KeyColumns | None) -> ChunkKey | None:
    return None if key is None else key.name


@dataclass(frozen=True, slots=True)
class ChunkPlan(JsonObject):
    """The state of the planning of one table.

    The `queue` holds chunks that were cut and not returned yet; `planned` is the number of returned chunks. The part
    [`next`, `last`) of the inside is not cut yet; its chunks will have about `rows` rows. `step` is the length of a
    chunk in keys, and `factor` the number of estimated rows per real row (0: unknown). `estimate` is the expected
    number of chunks.
    """

    key: KeyColumns | None = field(metadata=stored(write=_key_to_json, read=lambda _: None))
    rows: int = field(metadata=stored(before="planned"))
    phase: ChunkPlanPhase = field(default=ChunkPlanPhase.START, metadata=stored(before="key"))
    queue: tuple[ChunkRange, ...] = ()
    next: Bound | None = field(default=None, metadata=_BOUND)
    last: Bound | None = field(default=None, metadata=_MAX)
    step: int = 0
    planned: int = 0
    estimate: int = 1
    #: States of earlier versions have no factor.
    factor: float = field(default=0.0, metadata=stored(older=0.0))

    version = STATE_VERSION
    written_first = ("version",)

    @property
    def done(self) -> bool:
        """Return True if every chunk was returned."""
        return self.phase is ChunkPlanPhase.DONE and not self.queue

    @property
    def estimated_total(self) -> int:
        """Return the number of chunks that the table will have, as far as known; exact when planning is done."""
        return self.planned if self.done else max(self.planned + 1, self.estimate)

    @property
    def inside(self) -> tuple[Bound, Bound]:
        """Return the beginning and end of the part that is not cut yet."""
        assert self.next is not None
        assert self.last is not None
        return self.next, self.last

    def cut(self, upper: Bound) -> ChunkPlan:
        """Return the plan with one more chunk of the inside, which ends at `upper`."""
        assert self.key is not None
        return replace(self, queue=(*self.queue, ChunkRange(self.next, upper, key=self.key.name)), next=upper)

    def with_rest_as_one(self) -> ChunkPlan:
        """Return the plan with all remaining rows as one last chunk."""
        if self.phase is ChunkPlanPhase.START:
            return self.with_whole_table()
        if self.phase is ChunkPlanPhase.DONE:
            return self
        return self.cut(self.inside[1]).finished()

    def with_whole_table(self) -> ChunkPlan:
        """Return the plan of a table that is one chunk."""
        whole = ChunkRange(includes_null=True, key=None if self.key is None else self.key.name)
        return replace(self, queue=(*self.queue, whole), estimate=1).finished()

    def finished(self) -> ChunkPlan:
        """Return the plan with nothing of the inside left."""
        return replace(self, phase=ChunkPlanPhase.DONE, next=None, last=None)

    def returned(self, count: int) -> tuple[list[ChunkRange], ChunkPlan]:
        """Return up to `count` chunks of the queue, and the plan without them."""
        chunks = list(self.queue[:count])
        return chunks, replace(self, queue=self.queue[count:], planned=self.planned + len(chunks))

    @classmethod
    def restored(cls, data: Any, table: MySqlTable, *, rows: int) -> ChunkPlan:
        """Return the plan of a state. Its key counts, not that of the present configuration.

        Before the first chunk, the state has only the key, because the log's reader already compares by it. The plan
        then begins, with chunks of `rows` rows. Raises `StateError` for an unreadable plan.
        """
        named = key_from_json(data["key"])
        key = None if named is None else KeyColumns.named(table, named)
        if set(data) == {"key"}:
            return cls(key, rows)
        if data["version"] != STATE_VERSION:
            raise StateError(f"{table.id}: the chunk plan has version {data['version']}, not {STATE_VERSION}")
        if data["phase"] not in list(ChunkPlanPhase):
            raise StateError(f"{table.id}: the chunk plan has the unknown phase {data['phase']!r}")
        plan: ChunkPlan = read(cls, data)
        return replace(plan, key=key)
