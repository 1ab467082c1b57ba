"""The rows that a later round reads: those whose keys differed and are named by the log, asked for by their keys.

The log has the values of each key that is looked at again, because only a key that it names is not judged at once. So
no side is read as a whole for their sake: the source is asked by lists of keys, the target by what its reader can push
down (`raycdc.verify.targets.api.Wanted`). Either may give more rows than were asked for; which of them count is told
by the hashes of their keys, as in the first round.

A row that moves to another key changes two keys, and the log names both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.model import TableId, TableSchema
from raycdc.source.snapshot.key_list import lists_of_keys
from raycdc.source.split import RowsAgain, SnapshotSplit
from raycdc.verify.canonical import Compared, ComparedColumn, Family

#: Where more keys are looked at again both sides are read whole: their values are in memory, and in statements.
KEYS_MAX = 50_000

#: Forms of keys whose values every server finds by a literal. Floats have none; moments depend on the session.
_ASKED = (Family.WHOLE, Family.DECIMAL, Family.DAY, Family.TEXT, Family.BYTES)


@dataclass(frozen=True, slots=True)
class SomeRows:
    """The rows with the key hashes `hashes` (uint64, ascending).

    `lists` of keys (`raycdc.source.snapshot.key_list`) ask the source for them; empty: it is read whole. `values` are
    those that the columns of the compared key have, by name; a column that is not there may have any.
    """

    hashes: np.ndarray
    lists: tuple[str, ...] = ()
    values: Mapping[str, pa.Array] = field(default_factory=dict)

    @property
    def is_narrow(self) -> bool:
        """Whether a side is not read whole."""
        return bool(self.lists or self.values)

    def whole(self) -> SomeRows:
        """The same rows, for which both sides are read whole."""
        return replace(self, lists=(), values={})

    def wanted(self) -> WantedOnce:
        """Which rows of a source that is asked for them count."""
        return WantedOnce(self.hashes, once=len(self.lists) > 1)

    def splits(self, table: TableId) -> Iterator[SnapshotSplit]:
        """Of the source, with a list of keys each."""
        for number, keys in enumerate(self.lists):
            yield SnapshotSplit(table, number, None, None, None, includes_null=True, again=RowsAgain("", keys=keys))


class WantedOnce:
    """Rows of the keys with these hashes; each key `once` where it is the source's own, and asked for by several lists:
    a server whose texts are equal in upper and lower case gives a row to every list that has its key in some spelling,
    while the target is asked for all of them together.
    """

    def __init__(self, hashes: np.ndarray, *, once: bool) -> None:
        self._hashes = hashes
        self._once = once
        self._left = np.ones(len(hashes), np.bool_)

    def among(self, hashes: np.ndarray) -> np.ndarray:
        """Which of the rows with these key hashes (uint64) count: a mask."""
        places = np.searchsorted(self._hashes, hashes)
        found = places < len(self._hashes)
        found[found] = self._hashes[places[found]] == hashes[found]
        chosen = found.copy()
        chosen[found] = self._left[places[found]]
        if self._once:
            self._left[places[found]] = False
        return chosen


class NamedKeys:
    """The values of keys that the log names, by their hashes; at most `KEYS_MAX` of them, or none.

    `asked_by` are the columns of the source's own key, in the order of the compared key, if that is made of them as
    they are. Used by one thread.
    """

    def __init__(self, compared: Compared, schema: TableSchema, asked_by: Sequence[str]) -> None:
        self._compared = compared
        asked = asked_by and all(column.form.family in _ASKED for column in compared.key)
        columns = [(name, schema.column(name).type.arrow()) for name in asked_by] if asked else []
        self._source = pa.schema(columns)
        self._hashes = np.zeros(0, np.uint64)
        self._asked: list[pa.Table] = []
        self._made: list[pa.Table] = []
        self._too_many = False

    def look(
        self, wanted: np.ndarray, hashes: np.ndarray, batch: pa.RecordBatch, columns: Mapping[str, pa.Array]
    ) -> None:
        """Rows of the log with the key hashes `hashes`: as the source has them, and as the target has their columns.
        Those in `wanted` are kept.
        """
        if self._too_many:
            return
        fresh = np.isin(hashes, wanted) & ~np.isin(hashes, self._hashes)
        new, places = np.unique(hashes[fresh], return_index=True)
        if not len(new):
            return
        if len(self._hashes) + len(new) > KEYS_MAX:
            self._too_many = True
            self._asked, self._made, self._hashes = [], [], np.zeros(0, np.uint64)
            return
        taken = pa.array(np.flatnonzero(fresh)[places])
        self._hashes = np.concatenate([self._hashes, new])
        asked = [_plain(batch.column(part.name)).take(taken).cast(part.type) for part in self._source]
        self._asked.append(pa.Table.from_arrays(asked, schema=self._source))
        keys = self._compared.key
        made = [_plain(columns[column.name]).take(taken) for column in keys]
        self._made.append(pa.Table.from_arrays(made, names=[column.name for column in keys]))

    def rows(self, hashes: np.ndarray) -> SomeRows:
        """The rows with these key hashes (ascending); those of keys that were not seen are read with all others."""
        everything = SomeRows(hashes)
        if self._too_many or not len(hashes) or not np.isin(hashes, self._hashes).all():
            return everything
        chosen = pa.array(np.flatnonzero(np.isin(self._hashes, hashes)))
        lists: tuple[str, ...] = ()
        if self._source.names:
            lists = lists_of_keys(pa.concat_tables(self._asked).take(chosen))
        made = pa.concat_tables(self._made, promote_options="permissive").take(chosen)
        values = {
            column.name: found
            for column in self._compared.key
            if (found := _askable(made.column(column.name), column)) is not None
        }
        return replace(everything, lists=lists, values=values)


def _plain(array: pa.Array) -> pa.Array:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array.cast(array.type.value_type) if pa.types.is_dictionary(array.type) else array


def _askable(array: pa.ChunkedArray, column: ComparedColumn) -> pa.Array | None:
    """The distinct values, ascending, as int64, decimal128(38, 0) or string; None where values that are compared as
    equal may be unequal for who finds them.
    """
    form, kind = column.form, array.type
    if array.null_count:
        return None
    if form.family is Family.WHOLE and pa.types.is_integer(kind):
        wanted = pa.int64()
    elif form.family is Family.DECIMAL and form.scale == 0 and (pa.types.is_decimal(kind) or pa.types.is_integer(kind)):
        wanted = pa.decimal128(38, 0)
    elif form.family is Family.TEXT and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        wanted = pa.string()
    else:
        return None
    values = pc.unique(array.combine_chunks().cast(wanted))
    return values.take(pc.sort_indices(values))
