"""Reduces the rows of several source tables for one target to the last row of each key, and checks that no key has two
owners. Pure. Called inside stage tasks. An *owner* of a target's key is a row of a source table that has this key in
the target. It is identified by its source table and its key there. The changes of an owner in the epoch show if it had
the target's key before the epoch (its first change is a before-image or a deletion), and if it has the key after the
epoch (its last change is an insert or an after-image). For each key of the target, all owners in the epoch together
decide:

| owners that had it before | … that have it after | result |
|---|---|---|
| more than one, or | more than one | refused: one target row would stand for several |
| none | none | nothing: inserted and deleted within the epoch, and the target may have another owner's row |
| none | one | inserted, and *claimed*: the commit checks that the target does not have it yet |
| one | none | deleted |
| one | one | updated, possibly by another owner than before |

Within an epoch a key may pass between owners in any order, and two owners may have it for a moment: ``UPDATE t SET
email = …`` of several rows logs one row after the other. The order of all changes of a key therefore does not show
which row has the key in the end; each owner must be followed separately. If several tables are merged by their own
keys, a key has at most one owner per table. If a transform gives rows another key (``primary_keys``), several rows of
one table may have had the same key in the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.errors import MergedKeyRefusedError
from raycdc.model import RowKind
from raycdc.model.arrays import python_rows
from raycdc.model.keys import OWNER, comparable
from raycdc.model.redaction import key_named
from raycdc.sinks.api import TableCommit
from raycdc.sinks.rows import DELETED

#: A column of compacted rows of a merged target: True if the target must not have the key yet.
CLAIMED = "_claimed"

ORIGIN = ("_db", "_table")

#: The values of a row's key columns, for people.
Key = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class MergedTarget:
    """A `target` with rows of several tables, or with rows of one table to which a transform gives another key
    (`alone`). The target has no row yet of the tables in `beginning`.
    """

    target: str
    beginning: tuple[str, ...] = ()
    alone: bool = False

    @classmethod
    def of(cls, work: TableCommit) -> MergedTarget | None:
        """Return None if the target has the rows of only one table, under the source's key."""
        if not work.merged:
            return None
        return cls(str(work.target), tuple(map(str, work.beginning)), len(work.merged) == 1)


def last_per_owner(rows: pa.Table, key: Sequence[str], columns: Sequence[str], merged: MergedTarget) -> pa.Table:
    """Reduce `rows` (with `_op` codes, absolute `_seq`, `ORIGIN` and `OWNER`) to one row per changed key.

    The result has the columns `DELETED` and `CLAIMED`. Raises `DataError` for a key that is refused according to the
    module's table. Raises it for a truncated source table, too, unless the table is the target's only one or the target
    has no row of it yet.
    """
    target, alone = merged.target, merged.alone
    rows = rows.take(pa.array(np.argsort(rows.column("_seq").to_numpy(), kind="stable")))
    rows = _since_emptied(rows, merged)
    ops = rows.column("_op").to_numpy()
    # Key columns are called by numbers, so that no name equals one of the columns added below.
    names = [str(number) for number in range(len(key))]
    keyed = comparable(rows, key).rename_columns(names)
    if alone:
        _check_not_null(keyed, key, target)
    numbered = keyed.append_column("at", pa.array(np.arange(len(ops))))
    net = np.where(np.isin(ops, (RowKind.INSERT, RowKind.UPDATE_AFTER)), 1, -1)
    numbered = numbered.append_column("net", pa.array(net))
    for column in ORIGIN:
        numbered = numbered.append_column(column, rows.column(column))
    numbered = numbered.append_column(OWNER, comparable(rows, [OWNER]).column(OWNER))
    each = numbered.group_by([*names, *ORIGIN, OWNER], use_threads=False).aggregate(
        [("at", "min"), ("at", "max"), ("net", "sum")]
    )
    first, last = each.column("at_min").to_numpy(), each.column("at_max").to_numpy()
    before = np.isin(ops[first], (RowKind.UPDATE_BEFORE, RowKind.DELETE))
    after = np.isin(ops[last], (RowKind.INSERT, RowKind.UPDATE_AFTER))
    gained = after.astype(np.int64) - before.astype(np.int64)
    # Rows of a table without a key that are the same in all columns are one owner.
    rekeyed = pc.greater(pc.binary_length(each.column(OWNER)), 0).to_numpy()
    if (twice := np.flatnonzero(rekeyed & (each.column("net_sum").to_numpy() != gained))).size:
        (row,) = python_rows(each.select(names).slice(int(twice[0]), 1))
        raise same_key(target, dict(zip(key, row.values(), strict=True)), alone=True)
    counted = each.select([*names, *ORIGIN])
    for name, values in (("before", before.astype(np.int64)), ("after", after.astype(np.int64)),
                         ("alive", np.where(after, last, -1)), ("last", last)):  # fmt: skip
        counted = counted.append_column(name, pa.array(values))
    keys = counted.group_by(names, use_threads=False).aggregate(
        [("before", "sum"), ("after", "sum"), ("alive", "max"), ("last", "max")]
        + [(name, "count_distinct") for name in ORIGIN]
    )
    had, has = keys.column("before_sum").to_numpy(), keys.column("after_sum").to_numpy()
    if (twice := np.flatnonzero((had > 1) | (has > 1))).size:
        (row,) = python_rows(keys.select(names).slice(int(twice[0]), 1))
        of_one = all(keys.column(f"{name}_count_distinct")[int(twice[0])].as_py() == 1 for name in ORIGIN)
        raise same_key(target, dict(zip(key, row.values(), strict=True)), alone=alone or of_one)
    alive = keys.column("alive_max").to_numpy()
    chosen = np.where(alive >= 0, alive, keys.column("last_max").to_numpy())
    changed = (had > 0) | (has > 0)
    order = np.argsort(chosen[changed], kind="stable")
    chosen, deleted, claimed = (part[changed][order] for part in (chosen, has == 0, (had == 0) & (has > 0)))
    kept = rows.select(list(columns)).take(pa.array(chosen))
    return kept.append_column(DELETED, pa.array(deleted)).append_column(CLAIMED, pa.array(claimed))


def _check_not_null(keys: pa.Table, names: Sequence[str], target: str) -> None:
    for name, column in zip(names, keys.columns, strict=True):
        if column.null_count:
            raise MergedKeyRefusedError(
                f"{target}: a row has no value in {name}, which its transform's primary_keys names. Filter such rows "
                f"out ({name} IS NOT NULL), or give it a value with coalesce."
            )


def _since_emptied(rows: pa.Table, merged: MergedTarget) -> pa.Table:
    """Return `rows` (in order) without truncations, and without a table's rows before its truncation."""
    ops = rows.column("_op").to_numpy()
    for index in np.flatnonzero(ops == RowKind.TRUNCATE):
        origin = [rows.column(name)[int(index)] for name in ORIGIN]
        name = ".".join(part.as_py() for part in origin)
        if name not in merged.beginning and not merged.alone:
            raise MergedKeyRefusedError(
                f"{name} was emptied or begins again, and its rows in {merged.target} cannot be told from those of "
                f"the other tables merged there. Read all of them anew with: raycdc tables resnapshot CONFIG {name}"
            )
        own = pc.and_(*(pc.equal(rows.column(column), part) for column, part in zip(ORIGIN, origin, strict=True)))
        moot = own.to_numpy() & (np.arange(len(ops)) <= index)
        rows, ops = rows.filter(pa.array(~moot)), ops[~moot]
        return _since_emptied(rows, merged)
    return rows


def same_key(target: str, key: Iterable[str], *, alone: bool = False) -> MergedKeyRefusedError:
    """Return the error for two source rows with the same key in the target. The rows are of two tables, or of one table
    if `alone` is True. `key` has the values of the key's columns.
    """
    shown = key_named(key)
    if alone:
        return MergedKeyRefusedError(
            f"{target}: more than one row has the same key {shown}, which the table's transform gives them with "
            "primary_keys. Name columns there that are unique together, and read the table anew."
        )
    return MergedKeyRefusedError(
        f"{target}: a row of the same key {shown} comes from more than one of the tables that are merged there, and "
        "would stand for both. Find such rows with a join of the tables by the key, give one of the two another key, "
        "and read the tables anew. (To keep such rows, "
        'route the tables to targets of their own or use sink.write = "changelog", with another pipeline.state.)'
    )
