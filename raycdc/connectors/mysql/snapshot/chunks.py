"""Planning the chunks of a table: key ranges that cover it exactly once, found by the server.

`ChunkPlanner` plans a table of 100,000 chunks while its first chunks are read, and a restart goes on where planning
stopped (`chunk_plan`).

Chunks are half-open ranges of a key: of one column, or of the first ones of the primary key, compared one after the
other (`key_columns`). Their bounds may name fewer columns than the key has. The first ones are the chunk of NULL (when
there can be one) and the two outer ranges below the smallest and from the largest key seen: whatever is inserted
outside later belongs to them, so every other chunk is bounded on both sides. Then the inside is cut, by one of the
strategies:

* ``even``: arithmetic steps over an integer key; no query per chunk, but sparse or skewed keys make uneven chunks.
* ``uneven``: the server walks its index and says where each chunk of `chunk_rows` rows ends: exact sizes, and by the
  end it has read the whole index once, chunk by chunk.
* ``sampled``: the optimizer's estimates say where (`range_estimates`); some probes per chunk, however large the table.
* ``auto``: one chunk for a small table, ``even`` for a dense integer primary key, ``sampled`` for a large table, else
  ``uneven``.

An index must begin with the key, or every chunk would scan the table. Bounds are compared and ordered by the server
alone. A planner that is asked twice from the same state may give other bounds (the table changed); chunks count from
the moment they are in the enumerator's state.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from pymysql.connections import Connection

from raycdc.clients.mysql import quote_name
from raycdc.connectors.mysql.catalog import TableSize, table_sizes
from raycdc.connectors.mysql.snapshot.chunk_keys import chunk_key, index_of, settled
from raycdc.connectors.mysql.snapshot.chunk_plan import ChunkPlan, Phase
from raycdc.connectors.mysql.snapshot.chunk_range import ChunkRange
from raycdc.connectors.mysql.snapshot.index_walk import bound_behind, end_key, has_more_than
from raycdc.connectors.mysql.snapshot.key_columns import KeyColumns
from raycdc.connectors.mysql.snapshot.range_estimates import IndexedKey, estimate, even_step, factor_of, next_bound
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import ConfigError

#: ``auto`` takes arithmetic steps when the keys are spread over at most this many times the rows (a chunk then has
#: at most this many times `chunk_rows` rows, however the keys are clustered).
EVEN_SPREAD_MAX = 4.0
#: Tables of more chunks than this are not walked by ``auto``; below it the estimates are too coarse to be better.
WALKED_CHUNKS_MAX = 16
#: InnoDB never estimates more than half of a table, so a table of so few chunks cannot be probed at all.
_PROBED_CHUNKS_MIN = 4


class Strategy(StrEnum):
    """How the inside of a table is cut."""

    AUTO = "auto"
    EVEN = "even"
    UNEVEN = "uneven"
    SAMPLED = "sampled"


@dataclass(frozen=True, slots=True)
class ChunkSettings:
    """The user's settings about chunks. `chunk_bytes`, when given, lowers `chunk_rows` for wide rows.

    `key` names the chunk key (default: `chunk_keys.best_key`).
    """

    strategy: Strategy = Strategy.AUTO
    chunk_rows: int = 100_000
    chunk_bytes: int | None = None
    key: str | None = None


class NoIndexError(ConfigError):
    """No index leads to a chunk of the table."""

    cure = "Name a column with an index in `source.snapshot.key`, or add an index to the table."


class ChunkPlanner:
    """Plans one table's chunks, by queries that `next_chunks` makes on what `connect` gives it. Not thread-safe.

    `plan`, after a call of `next_chunks`, is the planning behind the chunks that were returned.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[Connection[Any]]],
        table: MySqlTable,
        settings: ChunkSettings,
        plan: ChunkPlan | None = None,
    ) -> None:
        named = chunk_key(table, settings.key)
        key = None if named is None else KeyColumns((named,))
        self.plan = plan or ChunkPlan(key, settings.chunk_rows)
        self._connect = connect
        self._table = table
        self._settings = settings
        self._source = quote_name(table.id.db, table.id.table)
        self._index: str | None = None
        #: The server's estimate of the table's rows, where planning began with this call.
        self.rows: int | None = None

    def next_chunks(self, count: int) -> list[ChunkRange]:
        """Up to `count` more chunks; fewer only when planning is done. Blocks on queries.

        On an error nothing was consumed, so the call may be repeated.
        """
        plan = self.plan
        if len(plan.queue) < count and plan.phase is not Phase.DONE:
            with self._connect() as connection:
                if plan.phase is Phase.START:
                    plan = self._begun(connection, plan)
                while plan.phase is not Phase.DONE and len(plan.queue) < count:
                    plan = self._cut_on(connection, plan, count - len(plan.queue))
        chunks, self.plan = plan.returned(count)
        return chunks

    def leave_whole(self) -> None:
        """Make one chunk of what is left: the server cannot be asked where to cut it."""
        self.plan = self.plan.with_rest_as_one()

    def _begun(self, connection: Connection[Any], plan: ChunkPlan) -> ChunkPlan:
        """The plan with the outer chunks, and the strategy that cuts the inside."""
        size = table_sizes(connection, [self._table.id]).get(self._table.id, TableSize(0, 0, ""))
        self.rows = size.rows or None
        if self._settings.chunk_bytes is not None:
            plan = replace(plan, rows=max(1, min(plan.rows, self._settings.chunk_bytes // size.row_bytes)))
        key = settled(connection, self._table, plan.key, named=self._settings.key is not None)
        plan = replace(plan, key=key)
        if key is None or self._is_small(connection, key, size, plan.rows):
            return plan.with_whole_table()
        lowest = end_key(connection, self._source, key, "ASC")
        highest = end_key(connection, self._source, key, "DESC")
        if lowest is None or highest is None:
            return plan.with_whole_table()
        if isinstance(lowest, tuple):
            # In front of all rows of this first value, so that rows that are inserted there later have a bounded chunk.
            lowest = lowest[:1]
        nulls = (ChunkRange(only_null=True, key=key.name),) if key.has_null_chunk else ()
        outer = (*nulls, ChunkRange(None, lowest, key=key.name), ChunkRange(highest, None, key=key.name))
        self._indexed(connection, key)
        plan = self._chosen(replace(plan, queue=outer, next=lowest, last=highest), key, size)
        return plan.finished() if lowest == highest else plan

    def _is_small(self, connection: Connection[Any], key: KeyColumns, size: TableSize, chunk_rows: int) -> bool:
        """Whether one chunk holds the table; the server's estimate may be off by half, so it is asked again."""
        return size.rows <= 4 * chunk_rows and not has_more_than(connection, self._source, key, rows=chunk_rows)

    def _chosen(self, plan: ChunkPlan, key: KeyColumns, size: TableSize) -> ChunkPlan:
        """The plan with the strategy that cuts the inside, and with an estimate of how many chunks it makes."""
        strategy = self._settings.strategy
        # Not YEAR: the server reads a year below 100 as one of this century or the last.
        years = any(column.shape.base == "year" for column in key.columns)
        lowest, highest = plan.inside
        whole_numbers = isinstance(lowest, int) and isinstance(highest, int) and not years
        if strategy is Strategy.EVEN and not whole_numbers:
            named = ", ".join(f"{column.name} {column.column_type}" for column in key.columns)
            raise ConfigError(
                f'source.snapshot.strategy = "even" needs an integer chunk key; that of {self._table.id} is {named}. '
                f'Use "uneven", "sampled" or "auto".'
            )
        rows = max(1, size.rows)
        if whole_numbers and isinstance(lowest, int) and isinstance(highest, int):
            spread = (highest - lowest + 1) / rows
            unique = self._table.primary_key == tuple(column.name for column in key.columns)
            if strategy is Strategy.EVEN or (strategy is Strategy.AUTO and unique and spread <= EVEN_SPREAD_MAX):
                step = max(1, int(plan.rows * max(1.0, spread)))
                chunks = len(plan.queue) + -(-(highest - lowest) // step)
                return replace(plan, phase=Phase.EVEN, step=step, estimate=chunks)
        chunks = len(plan.queue) + -(-rows // plan.rows)
        large = strategy is Strategy.AUTO and rows > WALKED_CHUNKS_MAX * plan.rows
        wanted = large or (strategy is Strategy.SAMPLED and rows > _PROBED_CHUNKS_MIN * plan.rows)
        if not wanted or years:
            return replace(plan, phase=Phase.UNEVEN, estimate=chunks)
        step = even_step(key, lowest, highest, chunk_rows=plan.rows, rows=rows)
        return replace(plan, phase=Phase.SAMPLED, step=step, estimate=chunks)

    def _cut_on(self, connection: Connection[Any], plan: ChunkPlan, count: int) -> ChunkPlan:
        """The plan with at least one more chunk of the inside."""
        if plan.phase is Phase.EVEN:
            return _cut_evenly(plan, count)
        assert plan.key is not None
        indexed = self._indexed(connection, plan.key)
        if plan.phase is Phase.SAMPLED:
            return _cut_by_estimates(connection, plan, indexed)
        return _cut_by_index(connection, plan, indexed)

    def _indexed(self, connection: Connection[Any], key: KeyColumns) -> IndexedKey:
        if self._index is None:
            # Several columns are the first ones of the primary key.
            self._index = index_of(connection, self._table, key.columns[0].name) if key.alone else "PRIMARY"
        if self._index is None:
            raise NoIndexError(
                f"source.snapshot: no index of {self._table.id} begins with {key.columns[0].name}, so each chunk would "
                f"scan the whole table. Add one, or name another column in source.snapshot.key."
            )
        return IndexedKey(self._source, key, self._index)


def _cut_evenly(plan: ChunkPlan, count: int) -> ChunkPlan:
    """Up to `count` chunks, each a step long."""
    for _ in range(count):
        lower, last = plan.inside
        assert isinstance(lower, int)
        assert isinstance(last, int)
        if lower + plan.step >= last:
            return plan.with_rest_as_one()
        plan = plan.cut(lower + plan.step)
    return plan


def _cut_by_index(connection: Connection[Any], plan: ChunkPlan, key: IndexedKey) -> ChunkPlan:
    """One chunk of `rows` rows."""
    bound = bound_behind(connection, key, *plan.inside, rows=plan.rows)
    return plan.with_rest_as_one() if bound is None else plan.cut(bound)


def _cut_by_estimates(connection: Connection[Any], plan: ChunkPlan, key: IndexedKey) -> ChunkPlan:
    """One chunk that the optimizer takes for one of `rows` rows; by the index where it has no idea."""
    lower, last = plan.inside
    factor = plan.factor or factor_of(connection, key, lower, last, rows=plan.rows, step=plan.step)
    plan = replace(plan, factor=factor)
    wanted = max(1, round(plan.rows * factor))
    if estimate(connection, key, lower, last) <= wanted:
        return plan.with_rest_as_one()
    bound = next_bound(connection, key, lower, last, wanted=wanted, step=plan.step)
    if bound is None:
        return _cut_by_index(connection, plan, key)
    return replace(plan.cut(bound[0]), step=bound[1])
