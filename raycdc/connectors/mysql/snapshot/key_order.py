"""The key order of MySQL, a `raycdc.source.snapshot.handoff.hand_off.KeyOrder`: compares bounds and changed keys.

It compares like the server, and is used by the log reader's thread only. Text keys are compared by their weights in the
collation, which the server returns over a separate connection. This connection is opened for the first text key, and
again if it was lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import total_ordering
from typing import Any, cast

import numpy as np
import pyarrow as pa
from pymysql.connections import Connection

from raycdc.clients.mysql import close_quietly
from raycdc.connectors.mysql.snapshot import keys, sort_keys
from raycdc.connectors.mysql.snapshot.keys import KeyKind, KeyValue, StoredBound
from raycdc.connectors.mysql.snapshot.planning.chunk_keys import KeyColumns
from raycdc.connectors.mysql.values.documents import table_of
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.errors import SourceUnavailableError
from raycdc.model import TableId
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.key_intervals import ChunkKey
from raycdc.transform.masks import Masking


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class PaddedKey:
    """A text bound's weight. A shorter weight is compared as if it continued with `pad` (empty: shorter is less)."""

    data: bytes
    pad: bytes

    def _continued(self, length: int) -> bytes:
        missing = max(0, length - len(self.data))
        return self.data + (self.pad * (missing // max(1, len(self.pad)) + 1))[:missing] if self.pad else self.data

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PaddedKey):
            return NotImplemented
        length = max(len(self.data), len(other.data))
        return self._continued(length) == other._continued(length)

    def __lt__(self, other: PaddedKey) -> bool:
        length = max(len(self.data), len(other.data))
        return self._continued(length) < other._continued(length)

    def __hash__(self) -> int:
        data = self.data
        while self.pad and data.endswith(self.pad):
            data = data[: -len(self.pad)]
        return hash(data)


#: The form of one column's value for comparing.
ValueKey = int | PaddedKey
#: The form of a bound. Bounds of several columns compare like tuples: a shorter one is less than all that begin with
#: it.
BoundKey = ValueKey | tuple[ValueKey, ...]


class MySqlKeyOrder:
    """The key order of the tables in their snapshots; see the module's docstring."""

    def __init__(
        self, connect: Callable[[], Connection[Any]], tables: dict[TableId, MySqlTable], masking: Masking | None = None
    ) -> None:
        """Begin with the `tables` of the log. Bounds that `masking` has sealed are opened to be compared."""
        self._connect = connect
        self._masking = masking or Masking()
        self._tables = dict(tables)
        self._keys: dict[TableId, ChunkKey] = {}
        self._used: Counter[TableId] = Counter()
        #: The number of `use` calls for a table until it was forgotten; read by other threads meanwhile.
        self.over: dict[TableId, int] = {}
        self._connection: Connection[Any] | None = None

    def use(self, table: TableId, key: ChunkKey | None, document: SchemaDocument | None = None) -> None:
        """Set the chunk `key` of `table`, before any bound or key of it is compared.

        Called again, with the table's schema at that time, when the table is resnapshotted.
        """
        self._used[table] += 1
        if document is not None:
            self._tables[table] = table_of(document)
        if key is None:
            self._keys.pop(table, None)
        else:
            self._keys[table] = key

    def forget(self, table: TableId) -> None:
        """Forget the chunk key of `table`, because its snapshot is over."""
        self._keys.pop(table, None)
        self.over[table] = self._used[table]

    def bound(self, table: TableId, raw: StoredBound) -> BoundKey:
        """Return the sort key of a bound from `bound_to_json`, maybe sealed by `masking`."""
        columns = self._columns(table)
        value = keys.bound_from_json(self._masking.open_json(raw))
        assert value is not None
        if isinstance(value, tuple):
            return tuple(self._single_bound(column, part) for column, part in zip(columns, value, strict=False))
        return self._single_bound(columns[0], value)

    def _single_bound(self, column: MySqlColumn, value: KeyValue) -> ValueKey:
        key = self._ask(column, lambda connection: sort_keys.bound_keys(connection, column, [value]))
        if key.numbers is not None:
            return int(key.numbers[0])
        assert key.data is not None
        assert key.offsets is not None
        return PaddedKey(key.data[key.offsets[0] : key.offsets[1]].tobytes(), key.pad)

    def classify(self, table: TableId, keys_of_rows: pa.Array, bounds: Sequence[BoundKey]) -> np.ndarray:
        """Return the chunk of each key; see `KeyOrder.classify`."""
        if not bounds:
            parts = keys_of_rows.flatten() if pa.types.is_struct(keys_of_rows.type) else [keys_of_rows]
            null = np.logical_or.reduce([np.asarray(part.is_null()) for part in parts])
            return np.where(null, sort_keys.NULL_INTERVAL, 0)
        columns = self._columns(table)
        if isinstance(bounds[0], tuple):
            tuples = cast("Sequence[tuple[ValueKey, ...]]", bounds)
            return self._classify_tuples(columns, keys_of_rows.flatten(), tuples)
        values = cast("Sequence[ValueKey]", bounds)
        return sort_keys.classify(self._sort_keys(columns[0], keys_of_rows), _as_sort_keys(values)).astype(np.int64)

    def _classify_tuples(
        self, columns: Sequence[MySqlColumn], arrays: Sequence[pa.Array], bounds: Sequence[tuple[ValueKey, ...]]
    ) -> np.ndarray:
        """Compare keys of several columns. After each column, bounds and keys have ranks, which are small integers."""
        indexes = np.zeros(len(bounds), np.int64)
        cells = np.zeros(len(arrays[0]), np.int64)
        valid = np.ones(len(cells), np.bool_)
        for number, (column, array) in enumerate(zip(columns, arrays, strict=True)):
            valid &= np.asarray(array.is_valid())
            values = sorted({bound[number] for bound in bounds if len(bound) > number})
            if not values:
                continue
            rank_of = {value: index for index, value in enumerate(values)}
            # The ranks count as in `ranks`. A bound that ends before this column has a rank below all others.
            own = np.array([2 * rank_of[b[number]] + 1 if len(b) > number else -1 for b in bounds], np.int64)
            ranks = sort_keys.ranks(self._sort_keys(column, array), _as_sort_keys(values))
            width = 2 * len(values) + 2
            indexes, cells = indexes * width + own + 1, cells * width + ranks + 1
            # The ranks become small integers again, so that any number of columns is possible.
            distinct = np.unique(indexes)
            indexes = 2 * np.searchsorted(distinct, indexes) + 1
            cells = np.searchsorted(distinct, cells, "left") + np.searchsorted(distinct, cells, "right")
        return np.where(valid, np.searchsorted(indexes, cells, side="right"), sort_keys.NULL_INTERVAL)

    def close(self) -> None:
        if self._connection is not None:
            close_quietly(self._connection)
            self._connection = None

    def _columns(self, table: TableId) -> tuple[MySqlColumn, ...]:
        return KeyColumns.named(self._tables[table], self._keys[table]).columns

    def _sort_keys(self, column: MySqlColumn, array: pa.Array) -> sort_keys.SortKeys:
        return self._ask(column, lambda connection: sort_keys.sort_keys(connection, column, array))

    def _ask(
        self, column: MySqlColumn, question: Callable[[Connection[Any] | None], sort_keys.SortKeys]
    ) -> sort_keys.SortKeys:
        """Get sort keys, over a connection if the server knows the order.

        If it was lost, try once more with a new one.
        """
        if keys.key_kind(column) is not KeyKind.TEXT:
            return question(None)
        with suppress(SourceUnavailableError):
            return question(self._open())
        self.close()
        return question(self._open())

    def _open(self) -> Connection[Any]:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection


def _as_sort_keys(bounds: Sequence[ValueKey]) -> sort_keys.SortKeys:
    valid = np.ones(len(bounds), np.bool_)
    if isinstance(bounds[0], PaddedKey):
        padded = cast("Sequence[PaddedKey]", bounds)
        lengths = [len(bound.data) for bound in padded]
        data = np.frombuffer(b"".join(bound.data for bound in padded), np.uint8)
        return sort_keys.SortKeys(valid, offsets=np.cumsum([0, *lengths]), data=data, pad=padded[0].pad)
    return sort_keys.SortKeys(valid, numbers=np.array(bounds, np.int64))
