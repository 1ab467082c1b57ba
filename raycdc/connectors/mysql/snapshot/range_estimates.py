"""Finding the end of a chunk without reading it: the optimizer is asked how many rows a range of keys has.

``EXPLAIN`` of a range over an index makes InnoDB look at a few pages at both ends of it ("index dive"), so its cost
does not grow with the table. The answer is near the truth up to a constant of the server (InnoDB doubles what it
extrapolates), which is found by counting the rows of one chunk once.

A bound is aimed at with `key_space`, estimated, and aimed at again: a step as long as the last chunk's is usually
right at once. An estimate decides how large a chunk is, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from pymysql.connections import Connection

from raycdc.clients.mysql import query, query_dict, quote_name
from raycdc.connectors.mysql.snapshot import key_space, keys
from raycdc.connectors.mysql.snapshot.key_columns import KeyColumns
from raycdc.connectors.mysql.snapshot.keys import Bound, KeyValue
from raycdc.connectors.mysql.values.types import MySqlColumn
from raycdc.errors import SourceUnavailableError

#: Estimates for one bound; who needs more walks the index for that chunk.
TRIES_MAX = 24
#: A chunk may be this many times as large as asked for, or smaller by as much.
TOLERANCE = 1.4
#: Rows of one chunk are counted, up to this many times as many as it should have, to learn what estimates are worth.
_COUNTED_FACTOR = 6
#: The step grows or shrinks at most so much from one estimate to the next.
_STEP_FACTOR_MAX = 16


@dataclass(frozen=True, slots=True)
class IndexedKey:
    """A chunk key with the table and the index that begins with it, as SQL names.

    `prefix` are values of the first columns: then only the keys that begin with them are meant, and bounds are values
    of the column behind.
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
    """About how many rows have keys in [lower, upper), as the optimizer counts."""
    condition = key.columns.range_condition(lower, upper)
    row = query_dict(connection, f"EXPLAIN FORMAT=TRADITIONAL SELECT 1 FROM {key.source} WHERE {condition}")
    return int((row or {}).get("rows") or 0)


def count(connection: Connection[Any], key: IndexedKey, lower: Bound, upper: Bound, *, most: int) -> int:
    """How many rows have keys in [lower, upper), counted up to `most`."""
    condition = key.columns.range_condition(lower, upper)
    rows = query(
        connection, f"SELECT COUNT(*) FROM (SELECT 1 FROM {key.source} WHERE {condition} LIMIT {most}) counted"
    )
    return int(rows[0][0])


def factor_of(
    connection: Connection[Any], key: IndexedKey, lower: Bound, last: Bound, *, rows: int, step: int
) -> float:
    """How many estimated rows a row is, from one chunk of `rows` rows behind `lower`; see `next_bound`."""
    chunk = next_bound(connection, key, lower, last, wanted=rows, step=step)
    if chunk is None:
        return 1.0
    bound, _ = chunk
    most = _COUNTED_FACTOR * rows
    counted = count(connection, key, lower, bound, most=most)
    estimated = estimate(connection, key, lower, bound)
    return 1.0 if not counted or counted == most else max(0.1, estimated / counted)


def even_step(key: KeyColumns, lower: Bound, last: Bound, *, chunk_rows: int, rows: int) -> int:
    """How far a chunk reaches in the first column, if the keys of the `rows` rows are spread evenly."""
    ends = (end[0] if isinstance(end, tuple) else end for end in (lower, last))
    low, high = (key_space.to_number(key.columns[0], end) for end in ends)
    return 1 if low is None or high is None else max(1, (high - low) * chunk_rows // rows)


def next_bound(
    connection: Connection[Any], key: IndexedKey, lower: Bound, last: Bound, *, wanted: int, step: int
) -> tuple[Bound, int] | None:
    """A bound between `lower` and `last` with about `wanted` (estimated) rows from `lower` to it, and the step taken.

    Of a key of several columns the first that has such a bound counts: behind one value of it, or, where that value has
    too many rows, among them. None when the index must be walked.
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
            # Not beyond `last`, whatever was inserted behind it.
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
    """Where the keys that begin with `values` end: in front of the next ones, or at `last`."""
    rows = query(
        connection,
        f"SELECT {key.columns.select_list()} FROM {key.source} WHERE {key.columns.behind(values)} "
        f"AND {key.columns.range_condition(None, last)} ORDER BY {key.columns.order()} LIMIT 1",
    )
    bound = key.columns.bound_of(rows[0]) if rows else None
    return bound[: len(values)] if isinstance(bound, tuple) else last


def _first_value(connection: Connection[Any], key: IndexedKey, direction: Literal["ASC", "DESC"]) -> KeyValue:
    """The least or the greatest value of the column behind the prefix, of which there are rows."""
    rows = query(
        connection,
        f"SELECT {keys.select_expression(key.column)} FROM {key.source} WHERE {key.columns.within(key.prefix)} "
        f"AND {key.columns.range_condition(None, None)} ORDER BY {key.columns.order(direction)} LIMIT 1",
    )
    value = keys.from_server(key.column, rows[0][0]) if rows else None
    if value is None:
        raise SourceUnavailableError(f"{key.table}: the rows of a key went while its chunks were planned. Try again.")
    return value


def find_bound(
    connection: Connection[Any], key: IndexedKey, lower: KeyValue, last: KeyValue, *, wanted: int, step: int
) -> tuple[KeyValue, int] | None:
    """A key between `lower` and `last` with about `wanted` (estimated) rows from `lower` to it, and the step taken.

    `step` is the distance in `key_space` to try first. None when there is none, or it was not found.
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
            # Nothing up to here: steps count from where keys go on.
            origin = max(origin, first)
        low = max(low, at, origin)
        grown = min(_STEP_FACTOR_MAX, max(1.5, wanted / max(rows, 1)))
        ahead = origin + int(max(step, at - origin) * (grown if rows > 1 else 1))
        aim = ahead if high == end else min(ahead, (low + high) // 2)
    return None


def _bound_at(
    connection: Connection[Any], key: IndexedKey, at: int, lower: KeyValue, last: KeyValue
) -> tuple[KeyValue, int] | None:
    """A bound at or behind `at`, strictly between `lower` and `last`, and where it is."""
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
    """Where the first key at or behind `bound` is."""
    rows = query(
        connection,
        f"SELECT {keys.select_expression(key.column)} FROM {key.source} "
        f"WHERE {key.columns.range_condition(key.bound(bound), key.bound(last))} "
        f"ORDER BY {key.columns.order()} LIMIT 1",
    )
    value = keys.from_server(key.column, rows[0][0]) if rows else None
    return None if value is None else key_space.to_number(key.column, value)
