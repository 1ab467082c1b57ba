"""Plans the chunks of a table: key ranges that cover it exactly once, found with the server's help.

`ChunkPlanner` plans a table of 100,000 chunks while its first chunks are read, and continues after a restart
(`chunk_plan`).

Chunks are half-open ranges of a key: of one column, or of the first columns of the primary key, compared one after the
other (`chunk_keys`). Their bounds may name fewer columns than the key has.

The first chunks are the chunk of NULL, if there can be one, and the two outer ranges: below the smallest key, and from
the largest key on. Rows that are inserted outside of the present keys later belong to the outer ranges, so every other
chunk is bounded on both sides. Then the *inside*, between the outer ranges, is cut by one of the strategies:

* ``even``: arithmetic steps over an integer key. This costs no query per chunk, but if keys are sparse or skewed,
  chunks have different sizes.
* ``uneven``: the server walks its index to find the end of each chunk of `chunk_rows` rows. The sizes are exact, but
  the whole index is read once, chunk by chunk.
* ``sampled``: the optimizer's estimates give the end of each chunk. This costs some queries per chunk, however large
  the table is.
* ``auto``: one chunk for a small table, ``even`` for a dense integer primary key, ``sampled`` for a large table, and
  ``uneven`` for all other tables.

An index must begin with the key, or every chunk would scan the table. Only the server compares and orders bounds.
Planning twice from the same state may give other bounds (the table changed); chunks are final once they are in the
enumerator's state.

``sampled`` finds the end of a chunk without reading it, by the optimizer's estimate of the rows in a key range.
``EXPLAIN`` of a range over an index makes InnoDB read a few pages at both ends of it ("index dive"), so its cost does
not grow with the table. The estimate is accurate up to a constant factor of the server (InnoDB doubles its
extrapolation), which is found by counting the rows of one chunk once. A bound is guessed with `keys.to_number`,
estimated, and guessed again; the step of the last chunk usually fits at the first attempt. Estimates affect only the
sizes of chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

from pymysql.connections import Connection

from raycdc.clients.mysql import query, query_dict, quote_name
from raycdc.connectors.mysql.server.catalog import TableSize, table_sizes
from raycdc.connectors.mysql.snapshot import keys
from raycdc.connectors.mysql.snapshot import keys as key_space
from raycdc.connectors.mysql.snapshot.keys import Bound, KeyValue
from raycdc.connectors.mysql.snapshot.planning.chunk_keys import KeyColumns, chunk_key, index_of, usable_key
from raycdc.connectors.mysql.snapshot.planning.chunk_plan import ChunkPlan, ChunkPlanPhase, ChunkRange
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.errors import ConfigError, SourceUnavailableError

#: The most estimates for one bound. If they do not suffice, the index is walked for that chunk.
TRIES_MAX = 24
#: The factor by which a chunk may be larger or smaller than requested.
TOLERANCE = 1.4
#: To calibrate the estimates, the rows of one chunk are counted, up to this many times the rows that it should have.
_COUNTED_FACTOR = 6
#: The greatest factor by which the step grows or shrinks between two estimates.
_STEP_FACTOR_MAX = 16


@dataclass(frozen=True, slots=True)
class IndexedKey:
    """A chunk key with the table and the index that begins with it, as SQL names.

    If `prefix` has values of the first columns, only keys that begin with them are included, and bounds are values of
    the next column.
    """

    table: str
    columns: KeyColumns
    index: str
    prefix: tuple[KeyValue, ...] = ()

    @property
    def column(self) -> MySqlColumn:
        return self.columns.columns[len(self.prefix)]

    def bound(self, value: KeyValue) -> Bound:
        return value if self.columns.alone else (*self.prefix, value)

    @property
    def source(self) -> str:
        return f"{self.table} FORCE INDEX ({quote_name(self.index)})"


def estimate(connection: Connection[Any], key: IndexedKey, lower: Bound, upper: Bound | None) -> int:
    """Return the optimizer's estimate of the rows with keys in [lower, upper)."""
    condition = key.columns.range_condition(lower, upper)
    row = query_dict(connection, f"EXPLAIN FORMAT=TRADITIONAL SELECT 1 FROM {key.source} WHERE {condition}")
    return int((row or {}).get("rows") or 0)


def count(connection: Connection[Any], key: IndexedKey, lower: Bound, upper: Bound, *, most: int) -> int:
    """Return the number of rows with keys in [lower, upper), counted up to `most`."""
    condition = key.columns.range_condition(lower, upper)
    rows = query(
        connection, f"SELECT COUNT(*) FROM (SELECT 1 FROM {key.source} WHERE {condition} LIMIT {most}) counted"
    )
    return int(rows[0][0])


def factor_of(
    connection: Connection[Any], key: IndexedKey, lower: Bound, last: Bound, *, rows: int, step: int
) -> float:
    """Return the number of estimated rows per real row, from one chunk of `rows` rows after `lower`.

    See `next_bound`.
    """
    chunk = next_bound(connection, key, lower, last, wanted=rows, step=step)
    if chunk is None:
        return 1.0
    bound, _ = chunk
    most = _COUNTED_FACTOR * rows
    counted = count(connection, key, lower, bound, most=most)
    estimated = estimate(connection, key, lower, bound)
    return 1.0 if not counted or counted == most else max(0.1, estimated / counted)


def even_step(key: KeyColumns, lower: Bound, last: Bound, *, chunk_rows: int, rows: int) -> int:
    """Return the length of a chunk in the first column, if the keys of the `rows` rows are spread evenly."""
    ends = (end[0] if isinstance(end, tuple) else end for end in (lower, last))
    low, high = (key_space.to_number(key.columns[0], end) for end in ends)
    return 1 if low is None or high is None else max(1, (high - low) * chunk_rows // rows)


def next_bound(
    connection: Connection[Any], key: IndexedKey, lower: Bound, last: Bound, *, wanted: int, step: int
) -> tuple[Bound, int] | None:
    """Return a bound with about `wanted` (estimated) rows from `lower` to it, and the step taken.

    With a key of several columns, the bound is a value of the first column, if chunks can end there. If one value of
    the first column has too many rows, the bound also has a value of the next column. None if the index must be walked.
    """
    if not isinstance(lower, tuple):
        assert not isinstance(last, tuple)
        return find_bound(connection, key, lower, last, wanted=wanted, step=step)
    assert isinstance(last, tuple)
    while True:
        depth = len(lower) - 1
        group = replace(key, prefix=lower[:depth])
        end, top = last, last[0]
        if depth:
            end = _behind(connection, key, lower[:depth], last)
            left = estimate(connection, key, lower, end)
            if left <= wanted * TOLERANCE:
                return end, step
            # The step must not pass `last`, even if rows were inserted after it.
            top = last[depth] if last[:depth] == lower[:depth] else _first_value(connection, group, "DESC")
            low, high = (key_space.to_number(group.column, value) for value in (lower[depth], top))
            aimed = 1 if low is None or high is None else max(1, (high - low) * wanted // left)
        else:
            aimed = step
        cut = find_bound(connection, group, lower[depth], top, wanted=wanted, step=aimed)
        if cut is not None:
            return group.bound(cut[0]), cut[1] if depth == 0 else step
        if depth + 1 == len(key.columns.columns):
            return None
        same = _behind(connection, key, lower, last)
        rows = estimate(connection, key, lower, same)
        if rows <= wanted * TOLERANCE:
            return (same, step) if rows * TOLERANCE >= wanted else None
        lower = (*lower, _first_value(connection, replace(key, prefix=lower), "ASC"))


def _behind(
    connection: Connection[Any], key: IndexedKey, values: tuple[KeyValue, ...], last: tuple[KeyValue, ...]
) -> tuple[KeyValue, ...]:
    """Return the end of the keys that begin with `values`: the next keys, or `last`."""
    rows = query(
        connection,
        f"SELECT {key.columns.select_list()} FROM {key.source} WHERE {key.columns.behind(values)} "
        f"AND {key.columns.range_condition(None, last)} ORDER BY {key.columns.order()} LIMIT 1",
    )
    bound = key.columns.bound_of(rows[0]) if rows else None
    return bound[: len(values)] if isinstance(bound, tuple) else last


def _first_value(connection: Connection[Any], key: IndexedKey, direction: Literal["ASC", "DESC"]) -> KeyValue:
    """Return the least or the greatest existing value of the column after the prefix."""
    rows = query(
        connection,
        f"SELECT {keys.select_expression(key.column)} FROM {key.source} WHERE {key.columns.within(key.prefix)} "
        f"AND {key.columns.range_condition(None, None)} ORDER BY {key.columns.order(direction)} LIMIT 1",
    )
    value = keys.from_server(key.column, rows[0][0]) if rows else None
    if value is None:
        raise SourceUnavailableError(
            f"{key.table}: the rows of a key were deleted while its chunks were planned. Try again."
        )
    return value


def find_bound(
    connection: Connection[Any], key: IndexedKey, lower: KeyValue, last: KeyValue, *, wanted: int, step: int
) -> tuple[KeyValue, int] | None:
    """Return a key between `lower` and `last` with about `wanted` (estimated) rows from `lower` to it, and the step
    taken.

    `step` is the distance of numbers to try first. None if there is no such key, or it was not found.
    """
    start, end = key_space.to_number(key.column, lower), key_space.to_number(key.column, last)
    if start is None or end is None or end - start < 2:
        return None
    origin, low, high = start, start, end
    aim = start + max(1, step)
    for _ in range(TRIES_MAX):
        at = min(max(aim, low + 1), high - 1)
        if not low < at < high:
            return None
        reached = _bound_at(connection, key, at, lower, last)
        if reached is None:
            high = at
            aim = (low + high) // 2
            continue
        bound, at = reached
        rows = estimate(connection, key, key.bound(lower), key.bound(bound))
        if wanted / TOLERANCE <= rows <= wanted * TOLERANCE:
            return bound, at - origin
        if rows > wanted:
            high = min(high, at)
            aim = low + max(1, min((high - low) // 2, int((at - origin) * wanted / rows)))
            continue
        if rows <= 1 and (first := _next_key(connection, key, bound, last)) is not None:
            # There are no keys before this one, so steps count from it.
            origin = max(origin, first)
        low = max(low, at, origin)
        grown = min(_STEP_FACTOR_MAX, max(1.5, wanted / max(rows, 1)))
        ahead = origin + int(max(step, at - origin) * (grown if rows > 1 else 1))
        aim = ahead if high == end else min(ahead, (low + high) // 2)
    return None


def _bound_at(
    connection: Connection[Any], key: IndexedKey, at: int, lower: KeyValue, last: KeyValue
) -> tuple[KeyValue, int] | None:
    """Return a bound at or after `at`, strictly between `lower` and `last`, and its number."""
    value = key_space.from_number(key.column, at)
    if value is None:
        return None
    if key_space.exact(key.column):
        number = key_space.to_number(key.column, value)
        start = key_space.to_number(key.column, lower)
        return None if number is None or start is None or number <= start else (value, number)
    name, before, here = (
        quote_name(key.column.name),
        keys.literal(key.column, lower),
        keys.literal(key.column, value),
    )
    rows = query(
        connection,
        f"SELECT {keys.select_expression(key.column)} FROM {key.source} WHERE {key.columns.within(key.prefix)} "
        f"AND {name} >= {here} AND {name} > {before} AND {name} < {keys.literal(key.column, last)} "
        f"ORDER BY {key.columns.order()} LIMIT 1",
    )
    if not rows:
        return None
    bound = keys.from_server(key.column, rows[0][0])
    number = None if bound is None else key_space.to_number(key.column, bound)
    return None if bound is None or number is None else (bound, number)


def _next_key(connection: Connection[Any], key: IndexedKey, bound: KeyValue, last: KeyValue) -> int | None:
    """Return the number of the first key at or after `bound`."""
    rows = query(
        connection,
        f"SELECT {keys.select_expression(key.column)} FROM {key.source} "
        f"WHERE {key.columns.range_condition(key.bound(bound), key.bound(last))} "
        f"ORDER BY {key.columns.order()} LIMIT 1",
    )
    value = keys.from_server(key.column, rows[0][0]) if rows else None
    return None if value is None else key_space.to_number(key.column, value)


def end_key(connection: Connection[Any], source: str, key: KeyColumns, order: Literal["ASC", "DESC"]) -> Bound | None:
    """Return the least (ASC) or the greatest key in the table `source`; None if no row has one."""
    rows = query(
        connection,
        f"SELECT {key.select_list()} FROM {source} WHERE {key.range_condition(None, None)} "
        f"ORDER BY {key.order(order)} LIMIT 1",
    )
    return key.bound_of(rows[0]) if rows else None


def has_more_than(connection: Connection[Any], source: str, key: KeyColumns, *, rows: int) -> bool:
    """Return True if the table `source` has more than `rows` rows. The server reads that many index entries."""
    return bool(query(connection, f"SELECT 1 FROM {source} ORDER BY {key.order()} LIMIT 1 OFFSET {rows}"))


def bound_behind(connection: Connection[Any], key: IndexedKey, lower: Bound, last: Bound, *, rows: int) -> Bound | None:
    """Return the key at which a chunk of `rows` rows ends that begins at `lower`. The chunk has more rows if a single
    key value has more.

    None if fewer rows are left up to `last`.
    """
    columns = key.columns
    inside, after = columns.range_condition(lower, last), columns.after(lower)
    # The index is named, because the server may otherwise prefer the primary key's order and read the whole table for
    # each bound.
    answer = query(
        connection,
        f"SELECT {columns.select_list()}, {after} FROM {key.source} WHERE {inside} "
        f"ORDER BY {columns.order()} LIMIT 1 OFFSET {rows}",
    )
    if answer and not answer[0][-1]:
        answer = query(
            connection,
            f"SELECT {columns.select_list()} FROM {key.source} WHERE {inside} AND {after} "
            f"ORDER BY {columns.order()} LIMIT 1",
        )
    return columns.bound_of(answer[0]) if answer else None


#: ``auto`` uses arithmetic steps if the range of keys is at most this many times the number of rows. A chunk then has
#: at most this many times `chunk_rows` rows, however the keys are clustered.
EVEN_SPREAD_MAX = 4.0
#: ``auto`` does not walk tables of more chunks. For smaller tables the estimates are too coarse to be better.
WALKED_CHUNKS_MAX = 16
#: InnoDB never estimates more than half of a table, so a table of fewer chunks cannot be probed.
_PROBED_CHUNKS_MIN = 4


class MySqlChunkStrategy(StrEnum):
    """The strategies to cut the inside of a table."""

    AUTO = "auto"
    EVEN = "even"
    UNEVEN = "uneven"
    SAMPLED = "sampled"


@dataclass(frozen=True, slots=True)
class ChunkSettings:
    """The user's settings about chunks. `chunk_bytes`, when given, lowers `chunk_rows` for wide rows.

    `key` names the chunk key (default: `chunk_keys.best_key`).
    """

    strategy: MySqlChunkStrategy = MySqlChunkStrategy.AUTO
    chunk_rows: int = 100_000
    chunk_bytes: int | None = None
    key: str | None = None


class NoIndexError(ConfigError):
    """No index begins with the chunk key of the table."""

    cure = "Name a column with an index in `source.snapshot.key`, or add an index to the table."


class ChunkPlanner:
    """The planner of one table's chunks. `next_chunks` queries the server on connections from `connect`. Not
    thread-safe.

    `plan`, after a call of `next_chunks`, is the state of planning after the returned chunks.
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
        #: The server's estimate of the table's rows, if planning began with this call.
        self.rows: int | None = None

    def next_chunks(self, count: int) -> list[ChunkRange]:
        """Return up to `count` more chunks, and fewer only if planning is done. Blocks on queries.

        On an error nothing was consumed, so the call may be repeated.
        """
        plan = self.plan
        if len(plan.queue) < count and plan.phase is not ChunkPlanPhase.DONE:
            with self._connect() as connection:
                if plan.phase is ChunkPlanPhase.START:
                    plan = self._begun(connection, plan)
                while plan.phase is not ChunkPlanPhase.DONE and len(plan.queue) < count:
                    plan = self._cut_on(connection, plan, count - len(plan.queue))
        chunks, self.plan = plan.returned(count)
        return chunks

    def leave_whole(self) -> None:
        """Make one chunk of the rest, because the server cannot find bounds in it."""
        self.plan = self.plan.with_rest_as_one()

    def _begun(self, connection: Connection[Any], plan: ChunkPlan) -> ChunkPlan:
        """Return the plan with the outer chunks and a strategy for the inside."""
        size = table_sizes(connection, [self._table.id]).get(self._table.id, TableSize(0, 0, ""))
        self.rows = size.rows or None
        if self._settings.chunk_bytes is not None:
            plan = replace(plan, rows=max(1, min(plan.rows, self._settings.chunk_bytes // size.row_bytes)))
        key = usable_key(connection, self._table, plan.key, named=self._settings.key is not None)
        plan = replace(plan, key=key)
        if key is None or self._is_small(connection, key, size, plan.rows):
            return plan.with_whole_table()
        lowest = end_key(connection, self._source, key, "ASC")
        highest = end_key(connection, self._source, key, "DESC")
        if lowest is None or highest is None:
            return plan.with_whole_table()
        if isinstance(lowest, tuple):
            # The bound comes before all rows of this first value, so that rows inserted there later have a bounded
            # chunk.
            lowest = lowest[:1]
        nulls = (ChunkRange(only_null=True, key=key.name),) if key.has_null_chunk else ()
        outer = (*nulls, ChunkRange(None, lowest, key=key.name), ChunkRange(highest, None, key=key.name))
        self._indexed(connection, key)
        plan = self._chosen(replace(plan, queue=outer, next=lowest, last=highest), key, size)
        return plan.finished() if lowest == highest else plan

    def _is_small(self, connection: Connection[Any], key: KeyColumns, size: TableSize, chunk_rows: int) -> bool:
        """Return True if one chunk holds the table; the server's estimate may be off by half, so it is verified."""
        return size.rows <= 4 * chunk_rows and not has_more_than(connection, self._source, key, rows=chunk_rows)

    def _chosen(self, plan: ChunkPlan, key: KeyColumns, size: TableSize) -> ChunkPlan:
        """Return the plan with the strategy for the inside, and an estimate of the number of chunks."""
        strategy = self._settings.strategy
        # Not for YEAR, because the server treats a year below 100 as a year of this century or the last.
        years = any(column.shape.base == "year" for column in key.columns)
        lowest, highest = plan.inside
        whole_numbers = isinstance(lowest, int) and isinstance(highest, int) and not years
        if strategy is MySqlChunkStrategy.EVEN and not whole_numbers:
            named = ", ".join(f"{column.name} {column.column_type}" for column in key.columns)
            raise ConfigError(
                f'source.snapshot.strategy = "even" needs an integer chunk key; that of {self._table.id} is {named}. '
                f'Use "uneven", "sampled" or "auto".'
            )
        rows = max(1, size.rows)
        if whole_numbers and isinstance(lowest, int) and isinstance(highest, int):
            spread = (highest - lowest + 1) / rows
            unique = self._table.primary_key == tuple(column.name for column in key.columns)
            if strategy is MySqlChunkStrategy.EVEN or (
                strategy is MySqlChunkStrategy.AUTO and unique and spread <= EVEN_SPREAD_MAX
            ):
                step = max(1, int(plan.rows * max(1.0, spread)))
                chunks = len(plan.queue) + -(-(highest - lowest) // step)
                return replace(plan, phase=ChunkPlanPhase.EVEN, step=step, estimate=chunks)
        chunks = len(plan.queue) + -(-rows // plan.rows)
        large = strategy is MySqlChunkStrategy.AUTO and rows > WALKED_CHUNKS_MAX * plan.rows
        wanted = large or (strategy is MySqlChunkStrategy.SAMPLED and rows > _PROBED_CHUNKS_MIN * plan.rows)
        if not wanted or years:
            return replace(plan, phase=ChunkPlanPhase.UNEVEN, estimate=chunks)
        step = even_step(key, lowest, highest, chunk_rows=plan.rows, rows=rows)
        return replace(plan, phase=ChunkPlanPhase.SAMPLED, step=step, estimate=chunks)

    def _cut_on(self, connection: Connection[Any], plan: ChunkPlan, count: int) -> ChunkPlan:
        """Return the plan with at least one more chunk of the inside."""
        if plan.phase is ChunkPlanPhase.EVEN:
            return _cut_evenly(plan, count)
        assert plan.key is not None
        indexed = self._indexed(connection, plan.key)
        if plan.phase is ChunkPlanPhase.SAMPLED:
            return _cut_by_estimates(connection, plan, indexed)
        return _cut_by_index(connection, plan, indexed)

    def _indexed(self, connection: Connection[Any], key: KeyColumns) -> IndexedKey:
        if self._index is None:
            # A key of several columns has the first columns of the primary key.
            self._index = index_of(connection, self._table, key.columns[0].name) if key.alone else "PRIMARY"
        if self._index is None:
            raise NoIndexError(
                f"source.snapshot: no index of {self._table.id} begins with {key.columns[0].name}, so each chunk would "
                f"scan the whole table. Add one, or name another column in source.snapshot.key."
            )
        return IndexedKey(self._source, key, self._index)


def _cut_evenly(plan: ChunkPlan, count: int) -> ChunkPlan:
    """Cut up to `count` chunks, each one step long."""
    for _ in range(count):
        lower, last = plan.inside
        assert isinstance(lower, int)
        assert isinstance(last, int)
        if lower + plan.step >= last:
            return plan.with_rest_as_one()
        plan = plan.cut(lower + plan.step)
    return plan


def _cut_by_index(connection: Connection[Any], plan: ChunkPlan, key: IndexedKey) -> ChunkPlan:
    """Cut one chunk of `rows` rows."""
    bound = bound_behind(connection, key, *plan.inside, rows=plan.rows)
    return plan.with_rest_as_one() if bound is None else plan.cut(bound)


def _cut_by_estimates(connection: Connection[Any], plan: ChunkPlan, key: IndexedKey) -> ChunkPlan:
    """Cut one chunk of estimated `rows` rows; by the index if there is no estimate."""
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
