"""Changes of keys whose earlier rows are known, as an exact changelog: each step begins with what the last one left.

| the change | of a key that is there | of one that is not |
|---|---|---|
| an insert, or the row after an update | ``-U`` with the row that was there, ``+U``; none if equal | ``+I`` |
| a deletion, or the row before an update that moves its key | ``-D`` with the row that was there | nothing |
| an emptied table | itself; no key is there any more | the same |

Pure Arrow and numpy, no row in Python. Method: a keyed state replayed in order, as a sort by key in which each row sees
the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.model import RowKind
from raycdc.model.keys import comparable

_NOWHERE = -1
_CAME = (RowKind.INSERT, RowKind.UPDATE_AFTER)


@dataclass(frozen=True, slots=True)
class Steps:
    """The rows of an exact changelog, in order. `of` is the place of the change that a row came with, `values` the
    place of its values among the known rows and, behind them, the changes; `second` marks the later row of two.
    """

    ops: npt.NDArray[np.int8]
    of: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]
    second: npt.NDArray[np.bool_]


def key_ids(keys: pa.Table) -> npt.NDArray[np.int64]:
    """A number per row: equal for equal keys, and only for them."""
    ids = np.zeros(keys.num_rows, np.int64)
    for column in comparable(keys, keys.column_names).columns:
        codes = column.combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy().astype(np.int64)
        if len(codes):
            ids = np.unique(ids * (int(codes.max()) + 1) + codes, return_inverse=True)[1]
    return ids


def exact_steps(ops: np.ndarray, numbers: np.ndarray, rows: pa.Table, key: Sequence[str], *, known: int) -> Steps:
    """The exact changes for the changes whose codes and `_seq` are given.

    `rows` are the `known` rows there were before, each with a key of its own, and behind them those of the changes.
    """
    ids = key_ids(rows.select(list(key)))
    order = np.argsort(numbers, kind="stable")
    codes, ids_now = ops[order], ids[known:][order]
    emptied = codes == RowKind.TRUNCATE
    counts = ~emptied
    # The row before is known better than the source says it; its before-image matters only where it had another key.
    counts[_answered(codes, numbers[order], ids_now)] = False
    last = _row_before(ids[:known], ids_now, np.cumsum(emptied), counts, came=np.isin(codes, _CAME))
    # Places among the changes in order of their numbers become those in `rows`.
    places = np.concatenate([np.arange(known), known + order])
    there = last != _NOWHERE
    old = np.where(there, places[last], _NOWHERE)
    new = places[known:]
    comes = counts & np.isin(codes, _CAME)
    update = comes & there
    update[update] = ~_same(rows, old[update], new[update])
    insert, delete = comes & ~there, counts & ~comes & there
    first = np.select(
        [update, insert, delete, emptied],
        [RowKind.UPDATE_BEFORE, RowKind.INSERT, RowKind.DELETE, RowKind.TRUNCATE],
        _NOWHERE,
    )
    both = np.stack([first, np.where(update, int(RowKind.UPDATE_AFTER), _NOWHERE)], axis=1)
    values = np.stack([np.where(update | delete, old, new), new], axis=1)
    kept = both.ravel() != _NOWHERE
    of = np.repeat(order, 2)[kept]
    second = np.tile(np.array([False, True]), len(order))[kept]
    return Steps(both.ravel()[kept].astype(np.int8), of, values.ravel()[kept], second)


def _answered(codes: np.ndarray, numbers: np.ndarray, ids: np.ndarray) -> npt.NDArray[np.int64]:
    """Where the rows before updates are whose row after it has the same key."""
    if not (codes == RowKind.UPDATE_BEFORE).any():
        return np.zeros(0, np.int64)
    # Rows of one key are neighbours here; those of several readers may lie between them by their numbers.
    order = np.lexsort((np.arange(len(ids)), ids))
    here, following = order[:-1], order[1:]
    both = (codes[here] == RowKind.UPDATE_BEFORE) & (codes[following] == RowKind.UPDATE_AFTER)
    found: npt.NDArray[np.int64] = here[
        both & (ids[here] == ids[following]) & (numbers[following] == numbers[here] + 1)
    ]
    return found


def _row_before(
    known: np.ndarray, ids: np.ndarray, emptied: np.ndarray, counts: np.ndarray, *, came: np.ndarray
) -> npt.NDArray[np.int64]:
    """For each change the place of the row that its key had just before, among known rows and changes behind them."""
    changes = np.flatnonzero(counts)
    number = np.concatenate([np.arange(len(known)), len(known) + changes])
    # Known rows are there before any change, and not any more behind an emptying.
    era = np.concatenate([np.zeros(len(known), np.int64), emptied[changes]])
    whose = np.concatenate([known, ids[changes]])
    is_there = np.concatenate([np.ones(len(known), np.bool_), came[changes]])
    order = np.lexsort((number, whose, era))
    here, earlier = order[1:], order[:-1]
    follows = (era[here] == era[earlier]) & (whose[here] == whose[earlier]) & is_there[earlier]
    last = np.full(len(known) + len(ids), _NOWHERE)
    last[number[here[follows]]] = number[earlier[follows]]
    found: npt.NDArray[np.int64] = last[len(known) :]
    return found


def _same(rows: pa.Table, left: np.ndarray, right: np.ndarray) -> npt.NDArray[np.bool_]:
    """Of each pair of rows whether all values are the same ones; NULL is NULL, and numbers have the same bits."""
    equal = np.ones(len(left), np.bool_)
    if not len(left):
        return equal
    for column in rows.columns:
        one, other = (_bits(column.take(pa.array(places))) for places in (left, right))
        both_null = pc.and_(one.is_null(), other.is_null())
        alike = pc.or_(pc.fill_null(pc.equal(one, other), fill_value=False), both_null)
        equal &= alike.to_numpy()
    return equal


def _bits(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_floating(column.type):
        return column
    wanted = pa.int64() if column.type.bit_width == 64 else pa.int32()
    return pa.chunked_array([chunk.view(wanted) for chunk in column.chunks], wanted)
