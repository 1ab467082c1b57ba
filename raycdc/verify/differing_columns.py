"""Finds the columns in which rows of both sides differ, and columns of the target that have the values instead.

For people. A comparison knows only one hash of each row. So both sides are read once more for some of the differing
keys (`KEYS_MAX`), and each column is hashed separately. `raycdc.verify.table` uses this module only if rows differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from raycdc.verify.canonical import Compared, ComparedColumn
from raycdc.verify.changelog import EMPTIED, Fold

#: The maximum number of keys whose columns are compared: enough to find a column that differs in few of them.
KEYS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class DifferingColumn:
    """A column whose values differ between source and target.

    `moved_to` is a column that only the target has and that has all values of the source's column, as after a rename;
    empty if there is none.
    """

    name: str
    moved_to: str = ""


@dataclass(slots=True)
class SideByColumns:
    """The rows of one side with the keys `wanted` (hashes, ascending).

    It has, for each row, a hash of each of the `columns`. Each column is a pair of its comparison form and its name on
    this side.
    """

    compared: Compared
    columns: Sequence[tuple[ComparedColumn, str]]
    wanted: np.ndarray
    _keys: list[np.ndarray] = field(default_factory=list)
    _hashes: list[np.ndarray] = field(default_factory=list)
    _folds: list[Fold] = field(default_factory=list)
    _seen: int = 0

    @property
    def is_complete(self) -> bool:
        """Return True if each key was seen. For changes it is False, because more may always follow."""
        return not self._folds and self._seen >= len(self.wanted)

    def add(
        self, key: Mapping[str, pa.Array], values: Mapping[str, pa.Array], changes: tuple[pa.Array, pa.Array] | None
    ) -> None:
        """Add a batch.

        `key` are the columns of the compared key, `values` all columns by their names on this side, and `changes` the
        kind and order of changes.
        """
        rows = len(next(iter(key.values())))
        keys = self.compared.key_hashes(key, rows)
        chosen = np.isin(keys, self.wanted)
        if changes is not None:
            chosen |= changes[0].cast(pa.string()).to_numpy(zero_copy_only=False) == EMPTIED
        if not chosen.any():
            return
        mask = pa.array(chosen)
        count = int(chosen.sum())
        hashes = [
            Compared((column,), ()).row_hashes({column.name: values[name].filter(mask)}, count)[1]
            for column, name in self.columns
        ]
        if changes is None:
            self._seen += count
            self._keys.append(keys[chosen])
            self._hashes.append(np.stack(hashes))
            return
        self._folds = self._folds or [Fold() for _ in self.columns]
        for fold, of_column in zip(self._folds, hashes, strict=True):
            fold.add(keys[chosen], of_column, changes[0].filter(mask), changes[1].filter(mask))

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the keys, ascending, and an array of hashes for each column."""
        if self._folds:
            found = [fold.rows() for fold in self._folds]
            return found[0][0], np.stack([hashes for _, hashes in found])
        if not self._keys:
            return np.zeros(0, np.uint64), np.zeros((len(self.columns), 0), np.uint64)
        keys, hashes = np.concatenate(self._keys), np.concatenate(self._hashes, axis=1)
        order = np.argsort(keys, kind="stable")
        return keys[order], hashes[:, order]


def differing_columns(source: SideByColumns, target: SideByColumns) -> list[DifferingColumn]:
    """Return the columns of the `source` whose values differ in the `target`, in their order.

    The target may have additional columns with the same form as a source column: These are searched for the values of
    differing columns.
    """
    keys, ours = source.rows()
    their_keys, theirs = target.rows()
    _, at, their_at = np.intersect1d(keys, their_keys, return_indices=True)
    ours, theirs = ours[:, at], theirs[:, their_at]
    found = []
    for number, (column, _) in enumerate(source.columns):
        if not len(at) or not (ours[number] != theirs[number]).any():
            continue
        # A column with one value in all rows, such as NULL, would match any other.
        others = range(len(source.columns), len(target.columns)) if len(np.unique(ours[number])) > 1 else ()
        same = (
            target.columns[other][1]
            for other in others
            if target.columns[other][0] == column and (ours[number] == theirs[other]).all()
        )
        found.append(DifferingColumn(column.name, next(same, "")))
    return found
