"""The compiled pass over events (`index_loops`), with the arrays that it reads and fills.

It lists row events of wanted tables (`events`), learns table ids and GTIDs, and moves the cursor. Where one of its
arrays is full, more room is made here, and it goes on; all other stops are the decoder's.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from raycdc.connectors.mysql.binlog import index_loops as index
from raycdc.connectors.mysql.binlog.binlog_cursor import BinlogCursor
from raycdc.connectors.mysql.binlog.table_map_registry import TableMapRegistry

#: Row events listed before they are decoded: 72 bytes each, so 4.5 MiB of list at most.
_EVENTS_FIRST = 4096
_EVENTS_MAX = 65_536


class EventPass:
    """See the module's docstring. `mariadb`: the log is one of MariaDB."""

    def __init__(self, cursor: BinlogCursor, registry: TableMapRegistry, *, mariadb: bool) -> None:
        self.events = np.zeros((_EVENTS_FIRST, index.E_SIZE), np.int64)
        self._cursor = cursor
        self._registry = registry
        self._mariadb = mariadb

    def run(self, data: npt.NDArray[np.uint8], at: int, count: int) -> tuple[int, int, int, int]:
        """Walk the events from `at`, of which `count` are listed already.

        Returns (STOP_…, offset of the stopping event, its length, events listed).
        """
        return self._run(data, at, len(data), count)

    def count_event(self, data: npt.NDArray[np.uint8], at: int, length: int) -> None:
        """Move over an event that the pass stopped at. Raises `CorruptLogError`."""
        state = self._cursor.state
        state[index.S_PASS] = 1
        code = self._run(data, at, at + length, 0)[0]
        state[index.S_PASS] = 0
        if code == index.STOP_ERROR:
            raise self._cursor.damage()

    def _run(self, data: npt.NDArray[np.uint8], at: int, end: int, count: int) -> tuple[int, int, int, int]:
        registry, gtids, state = self._registry, self._cursor.gtids, self._cursor.state
        while True:
            code, at, length, count = index.index_events(
                data, at, end, self._mariadb, state, self.events, count,
                registry.maps, registry.wanted, registry.content, registry.map_keys, registry.map_values,
                registry.id_keys, registry.id_values, gtids.keys, gtids.first, gtids.last, gtids.runs,
            )  # fmt: skip
            self._cursor.note_boundary()
            match code:
                case index.STOP_GTIDS:
                    gtids.make_room(state)
                case index.STOP_TABLE_IDS:
                    registry.grow_ids(state)
                case index.STOP_FULL if len(self.events) < _EVENTS_MAX:
                    self.events = np.concatenate([self.events, np.zeros_like(self.events)])
                case _:
                    return int(code), int(at), int(length), int(count)
