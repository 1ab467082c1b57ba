"""Orders the messages of a topic whose keys decide about rows, if a key passed from one row to another in an epoch.

Deletes with tombstones, and compacted topics, leave the last message of each key. If a transform gives rows another key
(``primary_keys``), two rows of the source may swap their keys, or have one key for a moment. The delete of the row that
had the key may then be logged after the insert of the row that has it now. Such a key gets only the messages for the
change from its row before the epoch to its row after the epoch. All other keys get all their messages. Pure. Called
inside tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from raycdc.model import RowKind
from raycdc.model.arrays import python_rows
from raycdc.model.keys import OWNER, comparable
from raycdc.sinks.source_tables import same_key

_BEFORE = (RowKind.UPDATE_BEFORE, RowKind.DELETE)
_AFTER = (RowKind.INSERT, RowKind.UPDATE_AFTER)


def by_owner(batches: Iterable[pa.RecordBatch], key: Sequence[str], *, target: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an epoch (with `_op` codes, `_seq` and `OWNER`), without `OWNER`, in the order of `_seq`.

    A key with rows of several owners gets one deletion, insert or update. Raises `MergedKeyRefusedError` if two rows
    have a key before or after the epoch.
    """
    every = list(batches)
    if not every:
        return
    rows = pa.Table.from_batches(every)
    rows = rows.take(pa.array(np.argsort(rows.column("_seq").to_numpy(), kind="stable")))
    first = 0
    ops = rows.column("_op").to_numpy()
    for at in [*np.flatnonzero(ops == RowKind.TRUNCATE).tolist(), rows.num_rows]:
        yield from _settled(rows.slice(first, at - first), key, target).drop_columns([OWNER]).to_batches()
        yield from rows.slice(at, 1).drop_columns([OWNER]).to_batches()
        first = at + 1


def _settled(rows: pa.Table, key: Sequence[str], target: str) -> pa.Table:
    """Return the rows between two truncations, with the net change of each key that had several owners.

    A row that got a key and lost it in the epoch is one of several owners, too: a row without changes may have the key.
    """
    # Key columns are called by numbers, so that no name equals one of the columns added below.
    names = [str(number) for number in range(len(key))]
    keyed = comparable(rows, key).rename_columns(names).append_column("at", pa.array(np.arange(rows.num_rows)))
    ops = rows.column("_op").to_numpy()
    each = (
        keyed.append_column(OWNER, rows.column(OWNER))
        .group_by([*names, OWNER], use_threads=False)
        .aggregate([("at", "min"), ("at", "max")])
    )
    first, last = each.column("at_min").to_numpy(), each.column("at_max").to_numpy()
    had, has = np.isin(ops[first], _BEFORE), np.isin(ops[last], _AFTER)
    counted = each.select(names)
    for name, values in (("had", had), ("has", has), ("before", np.where(had, first, -1)),
                         ("after", np.where(has, last, -1))):  # fmt: skip
        counted = counted.append_column(name, pa.array(values.astype(np.int64)))
    keys = counted.group_by(names, use_threads=False).aggregate(
        [("had", "sum"), ("has", "sum"), ("before", "max"), ("after", "max"), ([], "count_all")]
    )
    had_by, has_by = keys.column("had_sum").to_numpy(), keys.column("has_sum").to_numpy()
    if (twice := np.flatnonzero((had_by > 1) | (has_by > 1))).size:
        (row,) = python_rows(keys.select(names).slice(int(twice[0]), 1))
        raise same_key(target, dict(zip(key, row.values(), strict=True)), alone=True)
    passed = (keys.column("count_all").to_numpy() > 1) | ((had_by == 0) & (has_by == 0))
    if not passed.any():
        return rows
    # Groups come in the order in which their keys are seen first, in both groupings.
    lists = keyed.group_by(names, use_threads=False).aggregate([("at", "list")]).column("at_list")
    affected = lists.filter(pa.array(passed)).combine_chunks().flatten().to_numpy()
    others = np.ones(rows.num_rows, bool)
    others[affected] = False
    pairs = np.stack([keys.column(name).to_numpy()[passed] for name in ("before_max", "after_max")], axis=1)
    both = (pairs >= 0).all(axis=1)
    kinds = np.empty(pairs.shape, np.int8)
    kinds[:, 0] = np.where(both, RowKind.UPDATE_BEFORE, RowKind.DELETE)
    kinds[:, 1] = np.where(both, RowKind.UPDATE_AFTER, RowKind.INSERT)
    there = pairs.ravel() >= 0
    net = rows.take(pa.array(pairs.ravel()[there]))
    net = net.set_column(net.schema.get_field_index("_op"), net.schema.field("_op"), pa.array(kinds.ravel()[there]))
    return pa.concat_tables([rows.filter(pa.array(others)), net])
