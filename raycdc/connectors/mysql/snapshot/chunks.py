"""Planning the chunks of a table: key ranges that cover it exactly once, found by the server.

`ChunkPlanner` is an incremental generator with JSON state of constant size, so a table of 100,000 chunks is planned
while its first chunks are read, and a restart goes on where planning stopped.

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
alone. Who asks twice from the same state may get other bounds (the table changed); chunks count from the moment they
are in the enumerator's state.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from pymysql.connections import Connection

from raycdc.clients.mysql import query, quote_name
from raycdc.connectors.mysql.catalog import TableSize, table_sizes
from raycdc.connectors.mysql.snapshot import keys
from raycdc.connectors.mysql.snapshot.chunk_keys import chunk_key, index_of, settled
from raycdc.connectors.mysql.snapshot.chunk_range import ChunkRange
from raycdc.connectors.mysql.snapshot.key_columns import KeyColumns
from raycdc.connectors.mysql.snapshot.key_space import to_number
from raycdc.connectors.mysql.snapshot.keys import Bound
from raycdc.connectors.mysql.snapshot.range_estimates import IndexedKey, count, estimate, next_bound
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import ConfigError, StateError

STATE_VERSION = 1
#: ``auto`` takes arithmetic steps when the keys are spread over at most this many times the rows (a chunk then has
#: at most this many times `chunk_rows` rows, however the keys are clustered).
EVEN_SPREAD_MAX = 4.0
#: Tables of more chunks than this are not walked by ``auto``; below it the estimates are too coarse to be better.
WALKED_CHUNKS_MAX = 16
#: InnoDB never estimates more than half of a table, so a table of so few chunks cannot be probed at all.
_PROBED_CHUNKS_MIN = 4
#: Rows of one chunk are counted, up to this many times `chunk_rows`, to learn what the estimates are worth.
_COUNTED_FACTOR = 6


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


class ChunkPlanner:
    """Plans one table's chunks. Pure bookkeeping except for the queries `next_chunks` makes on its own connection.

    `state()` after a call of `next_chunks` describes the planning behind the chunks it returned. Not thread-safe.
    """

    def __init__(
        self,
        connect: Callable[[], Connection[Any]],
        table: MySqlTable,
        settings: ChunkSettings,
        state: dict[str, Any] | None = None,
    ) -> None:
        self._connect = connect
        self._table = table
        self._settings = settings
        named = chunk_key(table, settings.key)
        self._key = None if named is None else KeyColumns((named,))
        self._queue: list[ChunkRange] = []
        self._phase = "start"
        self._next: Bound | None = None
        self._max: Bound | None = None
        self._step = 0
        self._rows = settings.chunk_rows
        self._planned = 0
        self._estimate = 1
        #: Estimated rows per row, 0 while unknown.
        self._factor = 0.0
        self._index: str | None = None
        if state is not None:
            self._restore(state)

    @property
    def done(self) -> bool:
        """Whether every chunk was returned."""
        return self._phase == "done" and not self._queue

    @property
    def estimated_total(self) -> int:
        """Chunks the table will have, as far as is known; exact once planning is done."""
        return self._planned if self.done else max(self._planned + 1, self._estimate)

    def next_chunks(self, count: int) -> list[ChunkRange]:
        """Up to `count` more chunks; fewer only when planning is done. Blocks on queries.

        On an error nothing was consumed, so the call may be repeated.
        """
        before = self.state()
        try:
            if len(self._queue) < count and self._phase != "done":
                with closing(self._connect()) as connection:
                    if self._phase == "start":
                        self._start(connection)
                    while self._phase != "done" and len(self._queue) < count:
                        self._walk(connection, count - len(self._queue))
        except Exception:
            self._restore(before)
            raise
        chunks, self._queue = self._queue[:count], self._queue[count:]
        self._planned += len(chunks)
        return chunks

    def leave_whole(self) -> None:
        """Make one chunk of what is left: the server cannot be asked where to cut it."""
        if self._phase == "start":
            self._whole_table(self._key)
        elif self._phase != "done":
            self._emit(self._max)
            self._finish()

    def state(self) -> dict[str, Any]:
        """JSON of bounded size: what is planned and not yet returned, and where planning goes on."""
        return {
            "version": STATE_VERSION,
            "phase": self._phase,
            "key": self._key.name if self._key is not None else None,
            "queue": [c.to_json() for c in self._queue],
            "next": keys.value_to_json(self._next),
            "max": keys.value_to_json(self._max),
            "step": self._step,
            "rows": self._rows,
            "planned": self._planned,
            "estimate": self._estimate,
            "factor": self._factor,
        }

    def _restore(self, state: dict[str, Any]) -> None:
        if set(state) == {"key"}:
            # Not begun: only the key is settled, because the log reader compares by it already.
            self._key = self._key_of(state)
            return
        if state["version"] != STATE_VERSION:
            raise StateError(f"{self._table.id}: the chunk plan has version {state['version']}, not {STATE_VERSION}")
        # The bounds in the state belong to this key, whatever the configuration says now.
        self._key = self._key_of(state)
        self._phase = state["phase"]
        self._queue = [ChunkRange.from_json(c) for c in state["queue"]]
        self._next = keys.value_from_json(state["next"])
        self._max = keys.value_from_json(state["max"])
        self._step = state["step"]
        self._rows = state["rows"]
        self._planned = state["planned"]
        self._estimate = state["estimate"]
        self._factor = state.get("factor", 0.0)

    def _key_of(self, state: dict[str, Any]) -> KeyColumns | None:
        return None if state["key"] is None else KeyColumns.named(self._table, state["key"])

    def _start(self, connection: Connection[Any]) -> None:
        size = table_sizes(connection, [self._table.id]).get(self._table.id, TableSize(0, 0, ""))
        if self._settings.chunk_bytes is not None:
            self._rows = max(1, min(self._rows, self._settings.chunk_bytes // size.row_bytes))
        key = self._key = settled(connection, self._table, self._key, named=self._settings.key is not None)
        if key is None or self._is_small(connection, key, size):
            self._whole_table(key)
            return
        lowest = self._boundary(connection, key, "ASC")
        highest = self._boundary(connection, key, "DESC")
        if lowest is None or highest is None:
            self._whole_table(key)
            return
        if key.has_null_chunk:
            self._queue.append(ChunkRange(only_null=True, key=key.name))
        if isinstance(lowest, tuple):
            # In front of all rows of this first value: what is inserted there later has a chunk that is bounded.
            lowest = lowest[:1]
        self._queue.append(ChunkRange(None, lowest, key=key.name))
        self._queue.append(ChunkRange(highest, None, key=key.name))
        self._next, self._max = lowest, highest
        self._indexed(connection, key)
        self._choose(key, size)
        if lowest == highest:
            self._finish()

    def _choose(self, key: KeyColumns, size: TableSize) -> None:
        """Set the phase to the strategy that cuts the inside, and estimate how many chunks it makes."""
        strategy = self._settings.strategy
        # Not YEAR: the server reads a year below 100 as one of this century or the last.
        years = any(column.shape.base == "year" for column in key.columns)
        whole_numbers = isinstance(self._next, int) and isinstance(self._max, int) and not years
        if strategy is Strategy.EVEN and not whole_numbers:
            named = ", ".join(f"{column.name} {column.column_type}" for column in key.columns)
            raise ConfigError(
                f'source.snapshot.strategy = "even" needs an integer chunk key; that of {self._table.id} is {named}. '
                f'Use "uneven", "sampled" or "auto".'
            )
        rows = max(1, size.rows)
        self._estimate = len(self._queue) + -(-rows // self._rows)
        if whole_numbers and isinstance(self._next, int) and isinstance(self._max, int):
            spread = (self._max - self._next + 1) / rows
            unique = self._table.primary_key == tuple(column.name for column in key.columns)
            if strategy is Strategy.EVEN or (strategy is Strategy.AUTO and unique and spread <= EVEN_SPREAD_MAX):
                self._phase = "even"
                self._step = max(1, int(self._rows * max(1.0, spread)))
                self._estimate = len(self._queue) + -(-(self._max - self._next) // self._step)
                return
        large = strategy is Strategy.AUTO and rows > WALKED_CHUNKS_MAX * self._rows
        wanted = large or (strategy is Strategy.SAMPLED and rows > _PROBED_CHUNKS_MIN * self._rows)
        probed = wanted and not years
        self._phase = "sampled" if probed else "uneven"
        if probed:
            self._step = self._first_step(key, rows)

    def _walk(self, connection: Connection[Any], count: int) -> None:
        """Queue at least one more chunk of the inside, or finish."""
        assert self._key is not None
        match self._phase:
            case "even":
                self._walk_even(count)
            case "uneven":
                self._walk_uneven(connection, self._key)
            case "sampled":
                self._walk_sampled(connection, self._key)
            case phase:
                raise StateError(f"{self._table.id}: the chunk plan has the unknown phase {phase!r}")

    def _walk_even(self, count: int) -> None:
        assert isinstance(self._next, int)
        assert isinstance(self._max, int)
        for _ in range(count):
            upper = min(self._next + self._step, self._max)
            self._emit(upper)
            if upper == self._max:
                self._finish()
                return

    def _walk_uneven(self, connection: Connection[Any], key: KeyColumns) -> None:
        """One chunk of `chunk_rows` rows; more where a single key value has more."""
        assert self._next is not None
        inside, after = key.range_condition(self._next, self._max), key.after(self._next)
        # Named, or the server may prefer the primary key's order and read the whole table for each bound.
        source = self._indexed(connection, key).source
        found = query(
            connection,
            f"SELECT {key.select_list()}, {after} FROM {source} WHERE {inside} "
            f"ORDER BY {key.order()} LIMIT 1 OFFSET {self._rows}",
        )
        if found and not found[0][-1]:
            found = query(
                connection,
                f"SELECT {key.select_list()} FROM {source} WHERE {inside} AND {after} ORDER BY {key.order()} LIMIT 1",
            )
        upper = key.bound_of(found[0]) if found else None
        if upper is None:
            self._emit(self._max)
            self._finish()
        else:
            self._emit(upper)

    def _walk_sampled(self, connection: Connection[Any], key: KeyColumns) -> None:
        """One chunk that the optimizer takes for one of `chunk_rows` rows; by the index where it has no idea."""
        assert self._next is not None
        assert self._max is not None
        indexed = self._indexed(connection, key)
        self._factor = self._factor or self._learned(connection, indexed)
        wanted = max(1, round(self._rows * self._factor))
        if estimate(connection, indexed, self._next, self._max) <= wanted:
            self._emit(self._max)
            self._finish()
            return
        found = next_bound(connection, indexed, self._next, self._max, wanted=wanted, step=self._step)
        if found is None:
            self._walk_uneven(connection, key)
        else:
            bound, self._step = found
            self._emit(bound)

    def _learned(self, connection: Connection[Any], key: IndexedKey) -> float:
        """How many estimated rows a row is, from one chunk."""
        assert self._next is not None
        assert self._max is not None
        found = next_bound(connection, key, self._next, self._max, wanted=self._rows, step=self._step)
        if found is None:
            return 1.0
        most = _COUNTED_FACTOR * self._rows
        counted = count(connection, key, self._next, found[0], most=most)
        estimated = estimate(connection, key, self._next, found[0])
        return 1.0 if not counted or counted == most else max(0.1, estimated / counted)

    def _first_step(self, key: KeyColumns, rows: int) -> int:
        """As far as a chunk reaches if the keys are spread evenly, in the first column."""
        ends = (end[0] if isinstance(end, tuple) else end for end in (self._next, self._max))
        low, high = (None if end is None else to_number(key.columns[0], end) for end in ends)
        return 1 if low is None or high is None else max(1, (high - low) * self._rows // rows)

    def _indexed(self, connection: Connection[Any], key: KeyColumns) -> IndexedKey:
        if self._index is None:
            # Several columns are the first ones of the primary key.
            self._index = index_of(connection, self._table, key.columns[0].name) if key.alone else "PRIMARY"
        if self._index is None:
            raise NoIndexError(
                f"source.snapshot: no index of {self._table.id} begins with {key.columns[0].name}, so each chunk would "
                f"scan the whole table. Add one, or name another column in source.snapshot.key."
            )
        return IndexedKey(self._from(), key, self._index)

    def _emit(self, upper: Bound | None) -> None:
        assert self._key is not None
        self._queue.append(ChunkRange(self._next, upper, key=self._key.name))
        self._next = upper

    def _whole_table(self, key: KeyColumns | None) -> None:
        self._queue.append(ChunkRange(includes_null=True, key=None if key is None else key.name))
        self._estimate = 1
        self._finish()

    def _finish(self) -> None:
        self._phase, self._next, self._max = "done", None, None

    def _is_small(self, connection: Connection[Any], key: KeyColumns, size: TableSize) -> bool:
        """Whether one chunk holds the table; the server's estimate may be off by half, so it is asked again."""
        if size.rows > 4 * self._rows:
            return False
        found = query(connection, f"SELECT 1 FROM {self._from()} ORDER BY {key.order()} LIMIT 1 OFFSET {self._rows}")
        return not found

    def _boundary(
        self, connection: Connection[Any], key: KeyColumns, direction: Literal["ASC", "DESC"]
    ) -> Bound | None:
        found = query(
            connection,
            f"SELECT {key.select_list()} FROM {self._from()} WHERE {key.range_condition(None, None)} "
            f"ORDER BY {key.order(direction)} LIMIT 1",
        )
        return key.bound_of(found[0]) if found else None

    def _from(self) -> str:
        return quote_name(self._table.id.db, self._table.id.table)
