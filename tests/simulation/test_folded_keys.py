"""Changes of one epoch, folded by a key that passes from row to row, in every order of up to five changes.

Rows of a table have identities (its key) and another key that a transform gives them. Whatever the order of the changes
of one epoch, and whichever rows share the other key meanwhile, the target must have exactly the rows of the table if no
two of them have one key at the ends of epochs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pytest

from raycdc.errors import MergedKeyRefusedError
from raycdc.model import RowKind
from raycdc.model.keys import OWNER, owners
from raycdc.sinks.rows import DELETED
from raycdc.sinks.source_tables import CLAIMED, MergedTarget, last_per_owner

#: The key of each row by its identity; None if there is no such row.
Rows = tuple[int | None, ...]
#: A case's number, kind, identity and key.
Change = tuple[int, RowKind, int, int]


def is_unique(rows: Rows) -> bool:
    keys = [key for key in rows if key is not None]
    return len(keys) == len(set(keys))


def stories(identities: int, keys: int, changes: int) -> Iterator[tuple[Rows, list[Rows]]]:
    """Yield all beginnings, each with all sequences of `changes` changes that end with unique keys."""
    states: list[int | None] = [None, *range(keys)]

    def after(rows: Rows, left: int) -> Iterator[list[Rows]]:
        if not left:
            if is_unique(rows):
                yield []
            return
        for identity, key in itertools.product(range(identities), states):
            if rows[identity] != key:
                then = (*rows[:identity], key, *rows[identity + 1 :])
                for rest in after(then, left - 1):
                    yield [then, *rest]

    for rows in filter(is_unique, itertools.product(states, repeat=identities)):
        for story in after(rows, changes):
            yield rows, story


def images(case: int, before: Rows, after: Rows) -> Iterator[Change]:
    """Yield the rows of the changelog for one change."""
    (identity,) = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    old, new = before[identity], after[identity]
    if old is not None:
        yield case, RowKind.DELETE if new is None else RowKind.UPDATE_BEFORE, identity, old
    if new is not None:
        yield case, RowKind.INSERT if old is None else RowKind.UPDATE_AFTER, identity, new


def wrong_targets(told: list[tuple[Rows, list[Rows]]], owned: Sequence[str] = ("id",)) -> int:
    """Return the number of targets that differ from their table after the epoch, which all stories share."""
    changes: list[Change] = []
    target: dict[tuple[int, int], int] = {}
    expected: dict[tuple[int, int], int] = {}
    for case, (begin, story) in enumerate(told):
        target |= {(case, key): identity for identity, key in enumerate(begin) if key is not None}
        expected |= {(case, key): identity for identity, key in enumerate(story[-1]) if key is not None}
        for before, after in itertools.pairwise([begin, *story]):
            changes += images(case, before, after)
    columns = list(zip(*changes, strict=True))
    batch = pa.record_batch(
        {
            "case": pa.array(columns[0], pa.int64()),
            "_op": pa.array(np.array(columns[1], np.int8)),
            "id": pa.array(columns[2], pa.int64()),
            "key": pa.array(columns[3], pa.int64()),
            "_seq": pa.array(np.arange(len(changes))),
            "_db": pa.repeat("shop", len(changes)),
            "_table": pa.repeat("accounts", len(changes)),
        }
    )
    rows = pa.Table.from_batches([batch.append_column(OWNER, owners(batch, owned))])
    merged = MergedTarget("shop.accounts", alone=True)
    folded = last_per_owner(rows, ["case", "key"], ["case", "key", "id"], merged)
    kept = [folded.column(name).to_pylist() for name in ("case", "key", "id", DELETED, CLAIMED)]
    for case, key, identity, deleted, claimed in zip(*kept, strict=True):
        if claimed:
            assert (case, key) not in target, f"the key {key} is taken already: {told[case]}"
        if deleted:
            target.pop((case, key))
        else:
            target[case, key] = identity
    return len({case for (case, _), _ in target.items() ^ expected.items()})


@pytest.mark.parametrize(
    ("identities", "keys", "changes"), [(3, 3, 1), (3, 3, 2), (3, 3, 3), (3, 2, 4), (2, 2, 5), (2, 3, 5)]
)
def test_a_key_that_passes_between_rows_is_the_last_owners(identities: int, keys: int, changes: int) -> None:
    assert wrong_targets(list(stories(identities, keys, changes))) == 0


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_the_rows_of_one_statement_may_be_logged_in_any_order(size: int) -> None:
    """Each row gets the key of the next one, all in one statement, in every order of the rows."""
    begin: Rows = tuple(range(size))
    told = []
    for order in itertools.permutations(range(size)):
        rows, story = begin, []
        for identity in order:
            rows = (*rows[:identity], (identity + 1) % size, *rows[identity + 1 :])
            story.append(rows)
        told.append((begin, story))
    assert wrong_targets(told) == 0


def test_folding_without_owners_is_noticed() -> None:
    told: list[tuple[Rows, list[Rows]]] = [((0, 1), [(1, 1), (1, 0)]), ((None, 1), [(1, 1), (1, None)])]
    assert wrong_targets(told) == 0
    assert wrong_targets(told, owned=()) == 2


def test_two_rows_with_one_key_at_the_end_are_refused() -> None:
    with pytest.raises(MergedKeyRefusedError, match="more than one row has the same key"):
        wrong_targets([((0, 1), [(0, 0), (0, 1), (1, 1)])])


def test_equal_rows_of_a_table_without_a_key_are_refused() -> None:
    """Equal rows have one owner, which is made of their values; two rows of one owner are refused."""
    batch = pa.record_batch({"v": ["x", "x"], "w": [1.5, 1.5]})
    rows = pa.Table.from_batches([batch.append_column(OWNER, owners(batch, ["v", "w"]))])
    for name, values in (("_op", pa.array([0, 0], pa.int8())), ("_seq", pa.array([0, 1])),
                         ("_db", pa.array(["d", "d"])), ("_table", pa.array(["t", "t"]))):  # fmt: skip
        rows = rows.append_column(name, values)
    with pytest.raises(MergedKeyRefusedError, match="more than one row has the same key"):
        last_per_owner(rows, ["v"], ["v", "w"], MergedTarget("d.t", alone=True))
