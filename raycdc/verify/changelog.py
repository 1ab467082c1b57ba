"""The rows that result from a changelog: the last change of each key, unless it deletes the row. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.model.batch import SYMBOLS, RowKind

#: The names of the columns of a changelog that have the kind of a change, and the order of changes.
KIND = "_op"
ORDER = "_seq"

#: Kinds of changes after which the key has a row.
_THERE = (SYMBOLS[RowKind.INSERT], SYMBOLS[RowKind.UPDATE_AFTER])
#: The kind of a row without a key, which records that the table was emptied.
EMPTIED = SYMBOLS[RowKind.TRUNCATE]


@dataclass(slots=True)
class Fold:
    """Collects changes by the hashes of their keys, in any order; each takes 25 bytes of memory."""

    _keys: list[np.ndarray] = field(default_factory=list)
    _rows: list[np.ndarray] = field(default_factory=list)
    _orders: list[np.ndarray] = field(default_factory=list)
    _there: list[np.ndarray] = field(default_factory=list)
    #: The order of the last change that emptied the table.
    _emptied: int = -1

    def add(self, keys: np.ndarray, rows: np.ndarray, kinds: pa.Array, orders: pa.Array) -> None:
        """Add a batch: hashes of keys and of rows (uint64), and the columns `KIND` and `ORDER`."""
        numbers = orders.cast(pa.int64()).to_numpy(zero_copy_only=False)
        emptied = pc.equal(kinds, EMPTIED).to_numpy(zero_copy_only=False)
        if emptied.any():
            self._emptied = max(self._emptied, int(numbers[emptied].max()))
        kept = ~emptied
        self._keys.append(keys[kept])
        self._rows.append(rows[kept])
        self._orders.append(numbers[kept])
        self._there.append(pc.is_in(kinds, pa.array(_THERE)).to_numpy(zero_copy_only=False)[kept])

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the hashes of the keys that have a row, and of these rows."""
        if not self._keys:
            return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
        keys, rows, orders, there = map(np.concatenate, (self._keys, self._rows, self._orders, self._there))
        later = orders > self._emptied
        keys, rows, orders, there = keys[later], rows[later], orders[later], there[later]
        order = np.lexsort((orders, keys))
        keys, rows, there = keys[order], rows[order], there[order]
        last = np.append(keys[1:] != keys[:-1], [True])[: len(keys)]
        kept = last & there
        return keys[kept], rows[kept]
