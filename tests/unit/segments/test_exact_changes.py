"""Changes of known keys as an exact changelog, against a keyed state replayed row by row."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raycdc.delivery.rows.row_store import Steps, exact_steps, key_ids
from raycdc.model import RowKind

Change = tuple[RowKind, Any, Any]
NAN = float("nan")


def replayed(known: dict[Any, Any], changes: list[Change]) -> list[tuple[str, Any, Any, int]]:
    """What the changes come to; each with the number of the change it came with."""
    there, found = dict(known), []
    for number, (kind, key, value) in enumerate(changes):
        following = changes[number + 1][:2] if number + 1 < len(changes) else None
        if kind is RowKind.TRUNCATE:
            there.clear()
            found.append(("T", None, None, number))
        elif kind is RowKind.UPDATE_BEFORE and following == (RowKind.UPDATE_AFTER, key):
            continue
        elif kind in (RowKind.INSERT, RowKind.UPDATE_AFTER):
            if key not in there:
                found.append(("+I", key, value, number))
            elif there[key] != value:
                found += [("-U", key, there[key], number), ("+U", key, value, number)]
            there[key] = value
        elif key in there:
            found.append(("-D", key, there.pop(key), number))
    return found


def steps_of(rows: pa.Table, changes: list[Change], known: int, stored: list[int]) -> Steps:
    kinds = np.array([changes[number][0] for number in stored], np.int8)
    return exact_steps(kinds, np.array(stored, np.int64), rows, ["a", "b"], known=known)


@pytest.mark.parametrize("seed", range(20))
def test_every_step_begins_with_what_the_one_before_it_left(seed: int) -> None:
    for turn in range(20):
        chosen = random.Random(100 * seed + turn)
        values = [None, 1.0, 2.0]
        known = {(n, str(n)): chosen.choice(values) for n in range(5) if chosen.random() < 0.5}
        changes: list[Change] = []
        for _ in range(chosen.randrange(16)):
            kind = chosen.choice(
                [*RowKind] if chosen.random() < 0.3 else [RowKind.INSERT, RowKind.UPDATE_AFTER, RowKind.DELETE]
            )
            n = chosen.randrange(6)
            key = (None, None) if kind is RowKind.TRUNCATE else (n, str(n))
            changes.append((kind, key, chosen.choice(values)))
        stored = list(range(len(changes)))
        chosen.shuffle(stored)
        lines = [*known.items(), *((changes[number][1], changes[number][2]) for number in stored)]
        rows = pa.table(
            {
                "a": pa.array([key[0] for key, _ in lines], pa.int64()),
                "b": pa.array([key[1] for key, _ in lines], pa.string()),
                "value": pa.array([value for _, value in lines], pa.float64()),
            }
        )
        steps = steps_of(rows, changes, len(known), stored)
        got = []
        for kind, of, place, second in zip(steps.ops, steps.of, steps.values, steps.second, strict=True):
            row = rows.slice(int(place), 1).to_pylist()[0]
            symbol = RowKind(kind).symbol
            assert second == (symbol == "+U")
            empty = symbol == "T"
            got.append((symbol, None if empty else (row["a"], row["b"]), None if empty else row["value"], stored[of]))
        assert got == replayed(known, changes)


def test_values_are_the_same_by_their_bits_and_null_is_null() -> None:
    values = [1.0, 1.0, None, None, NAN, NAN, 0.0, -0.0]
    rows = pa.table({"key": pa.array([0] * 8), "value": pa.array(values, pa.float64())})
    kinds = np.full(7, RowKind.UPDATE_AFTER, np.int8)
    steps = exact_steps(kinds, np.arange(7), rows, ["key"], known=1)
    assert [int(place) for place in steps.values] == [1, 2, 3, 4, 5, 6, 6, 7]


def test_updates_of_two_readers_stay_updates_where_their_numbers_meet() -> None:
    rows = pa.table({"key": [1, 2, 1, 1, 2, 2], "value": [1, 2, 1, 10, 2, 20]})
    kinds = np.array([RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER] * 2, np.int8)
    steps = exact_steps(kinds, np.array([5, 6, 5, 6]), rows, ["key"], known=2)
    assert [RowKind(kind).symbol for kind in steps.ops] == ["-U", "+U", "-U", "+U"]


def test_keys_are_told_apart_by_all_their_columns() -> None:
    keys = pa.table({"a": ["x", "x", None, "x", None], "b": pa.array([1, 2, None, 1, None], pa.int32())})
    ids = key_ids(keys)
    assert ids[0] == ids[3]
    assert ids[2] == ids[4]
    assert len(set(ids.tolist())) == 3
