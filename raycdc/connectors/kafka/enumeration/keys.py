"""Detects keys that occur in two partitions, and ends the job with an error, because their changes have no order.

Each reader sends the enumerator the keys that it has not sent before, as 64-bit hashes, just before it reports a seal;
the enumerator knows the partition of each key. A key that comes from a second partition therefore ends the job before
the epoch has a manifest. Keys are sent from the first message on, even with a single partition, because an additional
partition moves keys.

*Limits:* A key is not detected if only an earlier run read its changes in the first partition. Keys beyond the first
`KEYS_MAX` of a table, or the first `ALL_KEYS_MAX` of all tables, are not detected either; ``problems`` in ``run
--json`` names these tables. Two keys with the same hash end the job wrongly. With `KEYS_MAX` keys, this happens to one
table in some hundred thousand. No class here does I/O.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from raycdc.connectors.kafka.events import KeysRead
from raycdc.errors import DataError
from raycdc.model import TableId

#: Keys remembered of one table, and of all tables: twelve bytes each in the enumerator, eight in a reader.
KEYS_MAX = 4_000_000
ALL_KEYS_MAX = 16_000_000

Hashes = npt.NDArray[np.uint64]
_NONE = np.array([], np.uint64)


class NewKeys:
    """The keys of each partition that a reader has not reported yet."""

    def __init__(self, *, keys_max: int = KEYS_MAX, all_keys_max: int = ALL_KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._all_keys_max = all_keys_max
        self._full: set[tuple[str, str]] = set()
        self._reported: dict[tuple[str, str], Hashes] = {}
        self._read: dict[tuple[str, str], list[Hashes]] = {}

    def read(self, table: TableId, split_id: str, hashes: Hashes) -> None:
        """Add the key hashes of rows that were read from a partition."""
        if (str(table), split_id) not in self._full:
            self._read.setdefault((str(table), split_id), []).append(np.unique(hashes))

    def take(self) -> list[KeysRead]:
        """Return events with the keys that were read since the last call."""
        events = []
        for (table, split_id), parts in self._read.items():
            reported = self._reported.get((table, split_id), _NONE)
            fresh = _missing(np.unique(np.concatenate(parts)), reported)
            if not len(fresh):
                continue
            others = sum(map(len, self._reported.values())) - len(reported)
            room = min(self._keys_max, self._all_keys_max - others) - len(reported)
            if len(fresh) > room:
                # The partition has too many keys. They are sent one last time, and then forgotten together with the
                # earlier ones.
                self._full.add((table, split_id))
                self._reported.pop((table, split_id), None)
            else:
                self._reported[table, split_id] = np.sort(np.concatenate([reported, fresh]), kind="stable")
            events.append(KeysRead(table, split_id, fresh.tobytes(), all_reported=len(fresh) <= room))
        self._read.clear()
        return events


class KeyOwners:
    """The partition of each reported key, in the enumerator."""

    def __init__(self, *, keys_max: int = KEYS_MAX, all_keys_max: int = ALL_KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._all_keys_max = all_keys_max
        self._known: dict[str, tuple[Hashes, npt.NDArray[np.int32]]] = {}
        self._splits: list[str] = []
        #: True if readers were asked to send the keys that they read.
        self.asked = False
        #: Tables with more keys than are remembered. Their further keys are not checked.
        self.full: set[str] = set()

    def add(self, table: str, split_id: str, data: bytes, *, all_reported: bool = True) -> None:
        """Record the keys (sorted, without duplicates) of a partition.

        Raises `DataError` if another partition has one of the keys. Unless `all_reported`, the reader will not report
        further keys of this partition.
        """
        if not all_reported:
            self.full.add(table)
        hashes: Hashes = np.frombuffer(data, np.uint64)
        if split_id not in self._splits:
            self._splits.append(split_id)
        number = self._splits.index(split_id)
        keys, owners = self._known.get(table, (_NONE, np.array([], np.int32)))
        indexes = np.searchsorted(keys, hashes)
        there = np.zeros(len(hashes), bool)
        inside = indexes < len(keys)
        there[inside] = keys[indexes[inside]] == hashes[inside]
        others = owners[indexes[there]]
        if (others != number).any():
            other = self._splits[int(others[others != number][0])]
            raise DataError(
                f"Changes of one row of {table} lie in two partitions, {other} and {split_id}: nothing says which is "
                "the later one. Produce them by the table's key (a partition added later moves keys), name the column "
                'that says so in source.order_by, or accept any order with source.same_key = "trust".'
            )
        fresh = hashes[~there]
        known = sum(len(entry[0]) for entry in self._known.values())
        if len(keys) + len(fresh) > self._keys_max or known + len(fresh) > self._all_keys_max:
            self.full.add(table)
            return
        merged = np.concatenate([keys, fresh])
        order = np.argsort(merged, kind="stable")
        numbers = np.concatenate([owners, np.full(len(fresh), number, np.int32)])
        self._known[table] = (merged[order], numbers[order])


def _missing(wanted: Hashes, known: Hashes) -> Hashes:
    """Return the elements of `wanted` that are not in `known`. Both are sorted."""
    if not len(known):
        return wanted
    indexes = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    fresh: Hashes = wanted[known[indexes] != wanted]
    return fresh
