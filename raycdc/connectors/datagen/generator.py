"""A server defined by a formula: the content of its tables after n transactions depends only on the seed and n.

Transaction n (from 0) changes one row of every table: ``hash(seed, table, n)`` gives its key and whether it is deleted.
A row is described by its *version*, the last transaction that wrote it: `INITIAL` if there was none, `ABSENT` if there
is no row. Its values are a hash of table, key and version. After every `alter_every` transactions, one transaction
changes no row but alters all tables: it adds a column, and the next such transaction drops it.

A position of this log is a number of transactions: position n is after transaction n - 1. Only `end` reads a clock; all
other methods are pure.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.connectors.datagen.plugin import DatagenSourceConfig
from raycdc.model import Column, LogicalType, RowKind, TableId, TableSchema, TypeKind
from raycdc.model.evolution.events import AddColumnEvent, DropColumnEvent, SchemaChangeEvent

Numbers = npt.NDArray[np.int64]

#: Versions of rows that no transaction wrote, and of keys without a row.
INITIAL, ABSENT = -1, -2
#: The number of transactions processed in one step when a table's content is computed.
_STEP = 1 << 20
_COLUMNS = (
    Column("id", LogicalType(TypeKind.INT64), nullable=False),
    Column("name", LogicalType(TypeKind.STRING)),
    Column("quantity", LogicalType(TypeKind.INT32)),
    Column("price", LogicalType(TypeKind.DECIMAL, precision=10, scale=2)),
    Column("changed_at", LogicalType(TypeKind.TIMESTAMP, fsp=6)),
)


@dataclass(frozen=True, slots=True)
class GeneratedChanges:
    """The log of one table as arrays: the kind, the key, the version and the transaction of each row."""

    kinds: npt.NDArray[np.int8]
    keys: Numbers
    versions: Numbers
    transactions: Numbers


class Generator:
    """A generated server: the content and the log of its tables; see the module's docstring."""

    def __init__(self, config: DatagenSourceConfig) -> None:
        self._config = config
        self.keys = config.rows + config.new_rows

    def end(self, began_ms: int) -> int:
        """Return the number of transactions so far, if the first was at `began_ms`."""
        most, per_second = self._config.events, self._config.per_second
        if not per_second:
            return most or 0
        happened = int(max(0, time.time_ns() // 1_000_000 - began_ms) * per_second / 1000)
        return happened if most is None else min(most, happened)

    def time_ms(self, began_ms: int, transaction: int) -> int:
        """Return when a transaction was committed, in Unix milliseconds."""
        return began_ms + int(transaction * 1000 / (self._config.per_second or 1000))

    # --- schemas --------------------------------------------------------------------------------------------------

    def alters(self, transaction: int) -> bool:
        every = self._config.alter_every
        return bool(every) and transaction > 0 and transaction % every == 0

    def next_alter(self, position: int) -> int:
        """Return the first transaction from `position` on that alters tables.

        If no transaction alters tables, the result is greater than any position.
        """
        every = self._config.alter_every
        return max(1, -(-position // every)) * every if every else 1 << 62

    def schema(self, position: int) -> TableSchema:
        """Return the schema of every table after `position` transactions."""
        altered = self._altered(position)
        more = (_added(altered),) if altered % 2 else ()
        return TableSchema((*_COLUMNS, *more), ("id",))

    def alteration(self, table: TableId, transaction: int) -> SchemaChangeEvent:
        """Return the change of a table by an altering transaction."""
        altered = self._altered(transaction + 1)
        if altered % 2:
            return AddColumnEvent(table, _added(altered))
        return DropColumnEvent(table, _added(altered - 1).name)

    def _altered(self, position: int) -> int:
        every = self._config.alter_every
        return max(0, position - 1) // every if every else 0

    # --- rows -----------------------------------------------------------------------------------------------------

    def versions(self, table: TableId, lower: int, upper: int, position: int) -> Numbers:
        """Return the version of each key in [lower, upper), after `position` transactions."""
        versions = np.where(np.arange(lower, upper) < self._config.rows, INITIAL, ABSENT).astype(np.int64)
        for first in range(0, position, _STEP):
            numbers, keys, deleted = self._written(table, first, min(position, first + _STEP))
            here = (keys >= lower) & (keys < upper)
            # If several transactions have one key, the last one wins.
            versions[keys[here] - lower] = np.where(deleted[here], ABSENT, numbers[here])
        return versions

    def changes(self, table: TableId, first: int, last: int, versions: Numbers) -> GeneratedChanges:
        """Return the table's log of the transactions [first, last), and update `versions` of all its keys from first to
        last.
        """
        numbers, keys, deleted = self._written(table, first, last)
        after = np.where(deleted, ABSENT, numbers)
        by_key = np.lexsort((numbers, keys))
        repeated = np.flatnonzero(keys[by_key][1:] == keys[by_key][:-1])
        before = versions[keys]
        before[by_key[repeated + 1]] = after[by_key[repeated]]
        versions[keys] = after
        there, stays = before != ABSENT, after != ABSENT
        # Each change gives the row before it, then the row after it; missing ones are left out.
        shown = np.stack([there, stays], axis=1).ravel()
        was = np.where(stays, np.int8(RowKind.UPDATE_BEFORE), np.int8(RowKind.DELETE))
        becomes = np.where(there, np.int8(RowKind.UPDATE_AFTER), np.int8(RowKind.INSERT))
        return GeneratedChanges(
            np.stack([was, becomes], axis=1).ravel()[shown],
            np.repeat(keys, 2)[shown],
            np.stack([before, after], axis=1).ravel()[shown],
            np.repeat(numbers, 2)[shown],
        )

    def columns(self, table: TableId, keys: Numbers, versions: Numbers, position: int) -> list[pa.Array]:
        """Return the values of rows after `position` transactions."""
        drawn = self._hash(table, versions, salt=2) ^ self._hash(table, keys, salt=3)
        texts = [pa.array(keys).cast(pa.string()), pa.array(versions).cast(pa.string())]
        values = [
            pa.array(keys),
            pc.binary_join_element_wise(pa.scalar(table.table), *texts, "-"),
            pa.array((drawn % 1000).astype(np.int32), mask=drawn % 10 == 0),
            _decimals((drawn % 1_000_000).astype(np.int64)),
            pa.array((1_700_000_000 + versions) * 1_000_000, pa.timestamp("us", tz="UTC")),
        ]
        altered = self._altered(position)
        if altered % 2:
            since = altered * self._config.alter_every
            values.append(pa.array((drawn % 100).astype(np.int64), mask=versions < since))
        return values

    def _written(self, table: TableId, first: int, last: int) -> tuple[Numbers, Numbers, npt.NDArray[np.bool_]]:
        """Return the numbers, keys and deletions of the row changes in transactions [first, last)."""
        numbers = np.arange(first, last, dtype=np.int64)
        if self._config.alter_every:
            numbers = numbers[(numbers == 0) | (numbers % self._config.alter_every != 0)]
        keys = (self._hash(table, numbers, salt=0) % self.keys).astype(np.int64)
        deleted = self._hash(table, numbers, salt=1) % 10_000 < round(self._config.deletes * 10_000)
        return numbers, keys, deleted

    def _hash(self, table: TableId, numbers: Numbers, *, salt: int) -> npt.NDArray[np.uint64]:
        """Return the SplitMix64 hash (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
        2014).
        """
        name = int.from_bytes(str(table).encode()[-6:], "little")
        offset = (self._config.seed * 8 + salt + name * 0x1_0001) % (1 << 64)
        with np.errstate(over="ignore"):
            mixed = (numbers.astype(np.uint64) + np.uint64(offset)) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found: npt.NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
        return found


def _added(number: int) -> Column:
    """Return the column that the alteration with this number adds."""
    return Column(f"added_{number}", LogicalType(TypeKind.INT64))


def _decimals(hundredths: Numbers) -> pa.Array:
    """Return ``decimal128(10, 2)`` values: two words of 64 bits each, the lower first."""
    words = np.stack([hundredths, np.zeros_like(hundredths)], axis=1)
    return pa.Array.from_buffers(pa.decimal128(10, 2), len(hundredths), [None, pa.py_buffer(words.tobytes())])
