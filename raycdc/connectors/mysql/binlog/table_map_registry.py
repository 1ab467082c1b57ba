"""The table maps seen so far, in arrays that the compiled pass searches: by table id, and by content."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from raycdc.connectors.mysql.binlog.index_loops import S_TABLE_IDS
from raycdc.connectors.mysql.binlog.table_map_loops import find_map, hash_bytes

#: Table ids kept; a server gives a table a new id whenever it is reopened, so old ones are dropped between feeds.
_TABLE_IDS_MAX = 1 << 16


class TableMapRegistry:
    """`maps` holds (offset, length) of each map's bytes in `content`; a forgotten map has length -1."""

    def __init__(self) -> None:
        self.count = 0
        self.maps = np.zeros((64, 2), np.int64)
        self.wanted = np.zeros(64, np.uint8)
        self.content = np.zeros(16_384, np.uint8)
        self._used = 0
        self.map_keys = np.full(256, -1, np.int64)
        self.map_values = np.zeros(256, np.int64)
        self.id_keys = np.full(1024, -1, np.int64)
        self.id_values = np.zeros(1024, np.int64)

    def add(self, content: npt.NDArray[np.uint8], *, wanted: bool) -> int:
        """Register a map's bytes and return its number."""
        number = self.count
        size = len(content)
        if number == len(self.maps):
            self.maps = np.concatenate([self.maps, np.zeros_like(self.maps)])
            self.wanted = np.concatenate([self.wanted, np.zeros_like(self.wanted)])
        while self._used + size > len(self.content):
            self.content = np.concatenate([self.content, np.zeros_like(self.content)])
        self.content[self._used : self._used + size] = content
        self.maps[number] = (self._used, size)
        self.wanted[number] = wanted
        self._used += size
        self.count += 1
        if self.count * 2 >= len(self.map_keys):
            self._rehash_maps()
        else:
            self._insert_map(number)
        return number

    def number_of(self, content: npt.NDArray[np.uint8]) -> int:
        """Number of the map with exactly these bytes, -1 if there is none."""
        copied = np.ascontiguousarray(content)
        return int(find_map(copied, 0, len(copied), self.maps, self.content, self.map_keys, self.map_values))

    def number_of_id(self, table_id: int) -> int:
        """Number of the map that a table id stands for now, -1 if it was not announced."""
        mask = len(self.id_keys) - 1
        slot = (table_id * 0x9E3779B1) & mask
        while self.id_keys[slot] != -1:
            if self.id_keys[slot] == table_id:
                return int(self.id_values[slot])
            slot = (slot + 1) & mask
        return -1

    def forget(self, number: int) -> None:
        """The next TABLE_MAP with these bytes is new again."""
        self.maps[number, 1] = -1

    def grow_ids(self, state: npt.NDArray[np.int64]) -> None:
        """Double the table of ids."""
        self._reset_ids(len(self.id_keys) * 2, state)

    def trim_ids(self, state: npt.NDArray[np.int64]) -> None:
        """Drop all ids when there are too many; only between transactions, where each table is announced again."""
        if int(state[S_TABLE_IDS]) > _TABLE_IDS_MAX:
            self.id_keys[:] = -1
            state[S_TABLE_IDS] = 0

    def _reset_ids(self, size: int, state: npt.NDArray[np.int64]) -> None:
        old = [(int(k), int(v)) for k, v in zip(self.id_keys, self.id_values, strict=True) if k != -1]
        self.id_keys = np.full(size, -1, np.int64)
        self.id_values = np.zeros(size, np.int64)
        for key, value in old:
            slot = _free_slot(self.id_keys, key)
            self.id_keys[slot], self.id_values[slot] = key, value
        state[S_TABLE_IDS] = len(old)

    def _rehash_maps(self) -> None:
        self.map_keys = np.full(len(self.map_keys) * 2, -1, np.int64)
        self.map_values = np.zeros(len(self.map_keys), np.int64)
        for number in range(self.count):
            if self.maps[number, 1] >= 0:
                self._insert_map(number)

    def _insert_map(self, number: int) -> None:
        start, size = (int(n) for n in self.maps[number])
        key = int(hash_bytes(self.content, start, size))
        slot = _free_slot(self.map_keys, key)
        self.map_keys[slot], self.map_values[slot] = key, number


def _free_slot(keys: npt.NDArray[np.int64], key: int) -> int:
    """First free slot for `key`, probing as `index_loops` does (int64 product, wrapped)."""
    mask = len(keys) - 1
    slot = (key * 0x9E3779B1) & mask
    while keys[slot] != -1:
        slot = (slot + 1) & mask
    return slot
