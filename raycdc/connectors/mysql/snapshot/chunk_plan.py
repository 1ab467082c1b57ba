"""How far the cutting of one table into chunks is, as a value: planning goes on from it after a restart.

`raycdc.connectors.mysql.snapshot.chunks` decides where chunks end; here is written down what was decided. The state
has a plan as JSON of constant size (`ChunkPlan.to_json`), however large the table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypedDict

from raycdc.connectors.mysql.snapshot import keys
from raycdc.connectors.mysql.snapshot.chunk_range import ChunkRange, StoredRange
from raycdc.connectors.mysql.snapshot.key_columns import KeyColumns
from raycdc.connectors.mysql.snapshot.keys import Bound, StoredBound
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import StateError
from raycdc.source.snapshot.chunk_key import ChunkKey, key_from_json

STATE_VERSION = 1


class Phase(StrEnum):
    """Whether the cutting has begun, how the inside is cut, and whether it is over."""

    START = "start"
    EVEN = "even"
    UNEVEN = "uneven"
    SAMPLED = "sampled"
    DONE = "done"


class StoredPlan(TypedDict, total=False):
    """A plan as the state has it: the key alone before it begins; older ones have no `factor`."""

    version: int
    phase: str
    key: ChunkKey | list[str] | None
    queue: list[StoredRange]
    next: StoredBound | None
    max: StoredBound | None
    step: int
    rows: int
    planned: int
    estimate: int
    factor: float


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """The `queue` holds chunks that were cut and not returned yet; `planned` were returned.

    Of the inside [`next`, `last`) is not cut yet, into chunks of about `rows` rows. `step` is how far a chunk reaches
    in keys, and `factor` how many estimated rows a row is (0: unknown). `estimate` is how many chunks there may be.
    """

    key: KeyColumns | None
    rows: int
    phase: Phase = Phase.START
    queue: tuple[ChunkRange, ...] = ()
    next: Bound | None = None
    last: Bound | None = None
    step: int = 0
    planned: int = 0
    estimate: int = 1
    factor: float = 0.0

    @property
    def done(self) -> bool:
        """Whether every chunk was returned."""
        return self.phase is Phase.DONE and not self.queue

    @property
    def estimated_total(self) -> int:
        """Chunks the table will have, as far as is known; exact once planning is done."""
        return self.planned if self.done else max(self.planned + 1, self.estimate)

    @property
    def inside(self) -> tuple[Bound, Bound]:
        """Where the part that is not cut yet begins and ends."""
        assert self.next is not None
        assert self.last is not None
        return self.next, self.last

    def cut(self, upper: Bound) -> ChunkPlan:
        """The next chunk of the inside ends at `upper`."""
        assert self.key is not None
        return replace(self, queue=(*self.queue, ChunkRange(self.next, upper, key=self.key.name)), next=upper)

    def with_rest_as_one(self) -> ChunkPlan:
        """All that is left is one chunk, and the last one."""
        if self.phase is Phase.START:
            return self.with_whole_table()
        if self.phase is Phase.DONE:
            return self
        return self.cut(self.inside[1]).finished()

    def with_whole_table(self) -> ChunkPlan:
        """The table is one chunk."""
        whole = ChunkRange(includes_null=True, key=None if self.key is None else self.key.name)
        return replace(self, queue=(*self.queue, whole), estimate=1).finished()

    def finished(self) -> ChunkPlan:
        """Nothing of the inside is left."""
        return replace(self, phase=Phase.DONE, next=None, last=None)

    def returned(self, count: int) -> tuple[list[ChunkRange], ChunkPlan]:
        """Up to `count` chunks of the queue, and the plan without them."""
        chunks = list(self.queue[:count])
        return chunks, replace(self, queue=self.queue[count:], planned=self.planned + len(chunks))

    def to_json(self) -> StoredPlan:
        return {
            "version": STATE_VERSION,
            "phase": self.phase.value,
            "key": self.key.name if self.key is not None else None,
            "queue": [chunk.to_json() for chunk in self.queue],
            "next": keys.bound_to_json(self.next),
            "max": keys.bound_to_json(self.last),
            "step": self.step,
            "rows": self.rows,
            "planned": self.planned,
            "estimate": self.estimate,
            "factor": self.factor,
        }

    @classmethod
    def from_json(cls, data: StoredPlan, table: MySqlTable, *, rows: int) -> ChunkPlan:
        """The plan in the state, whose key counts, whatever the configuration says now.

        Before the first chunk the state has the key alone, because the log's reader compares by it already: the plan
        begins then, with chunks of `rows` rows. Raises `StateError` for a plan that is not readable.
        """
        named = key_from_json(data["key"])
        key = None if named is None else KeyColumns.named(table, named)
        if set(data) == {"key"}:
            return cls(key, rows)
        if data["version"] != STATE_VERSION:
            raise StateError(f"{table.id}: the chunk plan has version {data['version']}, not {STATE_VERSION}")
        if data["phase"] not in list(Phase):
            raise StateError(f"{table.id}: the chunk plan has the unknown phase {data['phase']!r}")
        return cls(
            key,
            data["rows"],
            Phase(data["phase"]),
            tuple(ChunkRange.from_json(chunk) for chunk in data["queue"]),
            keys.bound_from_json(data["next"]),
            keys.bound_from_json(data["max"]),
            data["step"],
            data["planned"],
            data["estimate"],
            data.get("factor", 0.0),
        )
