"""Two sides' rows as hashes: what differs is found in memory and in files, whatever cancels out in a sum."""

from __future__ import annotations

import numpy as np
import pytest

from raycdc.verify.digests import Digests

#: Rows that hold in memory, and a limit at which all of them go to files.
ROWS = 20_000
MEMORY = (1 << 30, 100_000)


def rows() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    return tuple(generator.integers(0, 1 << 64, ROWS, np.uint64) for _ in range(2))  # type: ignore[return-value]


def filled(digests: Digests, keys: np.ndarray, values: np.ndarray) -> Digests:
    order = np.random.default_rng(2).permutation(len(keys))
    for part in np.array_split(order, 7):
        digests.add(keys[part], values[part])
    return digests


@pytest.mark.parametrize("memory", MEMORY)
def test_rows_in_another_order_are_equal(memory: int) -> None:
    keys, values = rows()
    with Digests(memory) as ours, Digests(memory) as theirs:
        filled(ours, keys, values)
        filled(theirs, keys[::-1].copy(), values[::-1].copy())
        assert ours.checksum == theirs.checksum
        assert ours.checksum.rows == ROWS
        assert ours.differing(theirs).count == 0


@pytest.mark.parametrize("memory", MEMORY)
def test_each_difference_is_found_by_its_key(memory: int) -> None:
    keys, values = rows()
    held, shown = keys.copy(), values.copy()
    shown[[3, 4]] = values[[4, 3]]
    held = np.append(np.delete(held, [10, 11]), [keys[20], np.uint64(12345)])
    shown = np.append(np.delete(shown, [10, 11]), [values[20], np.uint64(1)])
    with Digests(memory) as ours, Digests(memory) as theirs:
        found = filled(ours, keys, values).differing(filled(theirs, held, shown))
        # As many rows as there were: the sums tell.
        assert ours.checksum.rows == theirs.checksum.rows
        assert ours.checksum != theirs.checksum
    assert set(found.missing) == set(keys[[10, 11]])
    assert set(found.extra) == {keys[20], np.uint64(12345)}
    assert set(found.changed) == set(keys[[3, 4]])
    assert found.without(keys[[3, 10]]).count == 4
