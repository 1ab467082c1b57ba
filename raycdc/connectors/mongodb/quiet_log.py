"""A log in which nothing happens but that collections begin again: on request, or because rows of an epoch were lost.

A snapshot without a change stream has it for a log. A collection that is to begin again
(`raycdc.source.parking`) is looked at when the log is opened: there is no place to wait for, so its new beginning comes
at once, with the columns that the configuration now gives it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from raycdc.connectors.mongodb.layout import COLLECTION, ID, Layout
from raycdc.connectors.mongodb.snapshot.chunk_reader import NO_LOG
from raycdc.connectors.mongodb.stream.position import NoLogPosition
from raycdc.model import TableId
from raycdc.source.new_beginnings import Place, begin, unread
from raycdc.source.parked_tables import ended
from raycdc.source.snapshot.log_unit import LogPlace, LogUnit, SchemaChange, TableParked
from raycdc.source.table_life import Parking, Phase

#: Longest that a log without entries keeps its thread from leaving.
_IDLE_S = 1.0


class QuietLog:
    """`raycdc.source.snapshot.reading.BlockingLog` of the units that let `wanted` begin again; then silence.

    `look` asks the source for a collection's layout, None where there is none such. It blocks, in the fetcher's thread.
    """

    def __init__(
        self, look: Callable[[TableId], Layout | None], wanted: Iterable[TableId], position: NoLogPosition
    ) -> None:
        self._look = look
        self._waiting = deque(wanted)
        self._position = position.sealed()
        self._rows = 0
        self._woken = threading.Event()

    def __repr__(self) -> str:
        return f"QuietLog({list(map(str, self._waiting))})"

    def fetch(self) -> LogUnit | None:
        if not self._waiting:
            self._woken.wait(_IDLE_S)
            return None
        table = self._waiting.popleft()
        layout = self._look(table)
        place = Place(self._position, NO_LOG, time.time_ns() // 1_000_000)
        if layout is None:
            parking = Parking(ended(table, COLLECTION), self._position, place.ts_ms, phase=Phase.ENDED)
            return SchemaChange(LogPlace(self._position, NO_LOG), (TableParked(table, parking),))
        change = begin(table, layout.version(), unread(ID), place, seq=self._rows)
        self._rows += 1
        return SchemaChange(LogPlace(self._position, NO_LOG), (change.update,), change.rows)

    def wake_up(self) -> None:
        self._woken.set()

    def close(self) -> None:
        """Nothing is open."""
