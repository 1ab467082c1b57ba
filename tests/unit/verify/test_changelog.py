"""The rows that a changelog adds up to, in whatever order its changes are read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from raycdc.verify.changelog import Fold

#: key, row, kind, order
CHANGES = [
    (1, 10, "+I", 1),
    (2, 20, "+I", 2),
    (9, 90, "+I", 3),
    (0, 0, "T", 4),
    (1, 11, "+I", 5),
    (2, 21, "+I", 6),
    (1, 11, "-U", 7),
    (1, 12, "+U", 8),
    (2, 21, "-D", 9),
    (3, 30, "+I", 10),
    (3, 30, "-D", 11),
    (3, 31, "+I", 12),
]


def test_the_last_change_of_each_key_counts() -> None:
    for seed in range(5):
        fold = Fold()
        order = np.random.default_rng(seed).permutation(len(CHANGES))
        for part in np.array_split(order, 3):
            keys, rows, kinds, orders = zip(*(CHANGES[n] for n in part), strict=True)
            fold.add(np.array(keys, np.uint64), np.array(rows, np.uint64), pa.array(kinds), pa.array(orders))
        held = (part.tolist() for part in fold.rows())
        assert dict(zip(*held, strict=True)) == {1: 12, 3: 31}


def test_an_empty_changelog_has_no_rows() -> None:
    assert [len(part) for part in Fold().rows()] == [0, 0]
