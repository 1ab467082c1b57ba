"""Completes updates that log JSON values as differences (``binlog_row_value_options = PARTIAL_JSON``).

Called by `BinlogDecoder` when its compiled pass meets such an update of a wanted table: the update and the events after
it are copied, each such update is completed from its own before-image, and the copy is decoded like the log itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from raycdc.connectors.mysql.binlog.event_types import EventEnds
from raycdc.connectors.mysql.binlog.index_loops import HEADER_BYTES, PARTIAL_UPDATE_ROWS, TABLE_MAP
from raycdc.connectors.mysql.binlog.json_diff_loops import KEY_BYTES, LEVELS_SHAPE
from raycdc.connectors.mysql.binlog.partial_update_loops import WHOLE_CORRUPT, WHOLE_NO_ROOM, whole_update
from raycdc.connectors.mysql.binlog.tables.map_plans import MapPlans
from raycdc.connectors.mysql.binlog.tables.plan import WirePlan
from raycdc.errors import CorruptLogError, SchemaMismatchError

#: The size at which the copy is returned.
_PIECE_BYTES = 4 << 20
_SCRATCH_FIRST = 1 << 16
#: The result of applying diffs consists of the event's data, in containers that were rewritten. It is less than this
#: many times as long as the event.
_GROWTH_MAX = 16


class PartialUpdates:
    """The copies of one decoder's partial updates, and their scratch memory. `maps` are its table maps.

    `at` is the offset after the last `piece`.
    """

    def __init__(self, maps: MapPlans) -> None:
        self._maps = maps
        self._out = np.empty(_SCRATCH_FIRST, np.uint8)
        self._scratch = [np.empty(_SCRATCH_FIRST, np.uint8) for _ in range(3)]
        self._levels = np.zeros(LEVELS_SHAPE, np.int64)
        self._key = np.empty(KEY_BYTES, np.uint8)
        self._before = np.zeros((64, 2), np.int64)
        self.at = 0

    def piece(self, data: npt.NDArray[np.uint8], at: int, ends: EventEnds, *, proven: bool) -> npt.NDArray[np.uint8]:
        """Return the events from `at` on without checksums, while their table maps are known and the copy is not large.

        At least the first event is copied. Recorded end positions are checked here, because the copies have other
        lengths. The result is valid until the next call.

        If the first event is damaged, raises `CorruptLogError` without a position. If the first event is `proven`
        undamaged and does not fit its table, raises `SchemaMismatchError`. If a later event has such an error, the copy
        ends before it.
        """
        used, position = 0, ends.position
        numbers: dict[int, int] = {}
        for start, end, kind in _events(data, at):
            size = end - start - ends.checksum_bytes
            body = start + HEADER_BYTES
            plan: WirePlan | None = None
            if kind in (PARTIAL_UPDATE_ROWS, TABLE_MAP) and body + 8 <= start + size:
                table_id = int.from_bytes(data[body : body + 6].tobytes(), "little")
                if kind == TABLE_MAP:
                    numbers[table_id] = self._maps.registry.number_of(data[body + 8 : start + size])
                    if numbers[table_id] < 0:
                        break
                else:
                    number = numbers[table_id] if table_id in numbers else self._maps.registry.number_of_id(table_id)
                    plan = self._maps.plan_of(number)
            if start > at and (kind not in _COPIED or used >= _PIECE_BYTES):
                break
            if start > at and ends.verify and ends.checksum_bytes and not _intact(data, start, end):
                break  # The compiled pass will report the checksum.
            if position >= 0:
                position = (position + end - start) & 0xFFFFFFFF
                if start > at and int.from_bytes(data[start + 13 : start + 17].tobytes(), "little") != position:
                    break  # The compiled pass will report the position.
            before = used
            try:
                used = (
                    self._copy(data, start, start + size, used)
                    if plan is None
                    else (self._complete(data, start, start + size, used, plan, proven=proven))
                )
            except (CorruptLogError, SchemaMismatchError):
                if start == at:
                    raise
                used = before
                break
            self.at = end
        return self._out[:used]

    def _copy(self, data: npt.NDArray[np.uint8], start: int, end: int, used: int) -> int:
        size = end - start
        self._room(used, size)
        self._out[used : used + size] = data[start:end]
        self._out[used + 9 : used + 13] = np.frombuffer(size.to_bytes(4, "little"), np.uint8)
        return used + size

    def _complete(
        self, data: npt.NDArray[np.uint8], start: int, end: int, used: int, plan: WirePlan, *, proven: bool
    ) -> int:
        if plan.optional.any():
            raise SchemaMismatchError(
                "PARTIAL_JSON updates of a table with a functional index cannot be followed. Set "
                "binlog_row_value_options = '' on the source (for new sessions too), and take a new snapshot of it."
            )
        if len(plan.steps) > len(self._before):
            self._before = np.zeros((len(plan.steps), 2), np.int64)
        while True:
            one, other, third = self._scratch
            code = whole_update(
                data, start, end, plan.steps, plan.json, self._out, used,
                self._before, self._levels, self._key, one, other, third,
            )  # fmt: skip
            if code >= 0:
                return int(code)
            if code == WHOLE_CORRUPT or len(self._scratch[0]) > _GROWTH_MAX * (end - start) + (1 << 20):
                if proven:
                    raise SchemaMismatchError(
                        "a PARTIAL_UPDATE_ROWS event does not fit its table, though its checksum matches; take a new "
                        "snapshot of the table."
                    )
                raise CorruptLogError("a PARTIAL_UPDATE_ROWS event is damaged, or does not fit its before image")
            assert code == WHOLE_NO_ROOM
            size = max(2 * len(self._scratch[0]), 2 * (end - start))
            self._scratch = [np.empty(size, np.uint8) for _ in range(3)]
            self._room(used, 2 * size)

    def _room(self, used: int, count: int) -> None:
        if used + count > len(self._out):
            bigger = np.empty(max(used + count, min(2 * len(self._out), 2 * _PIECE_BYTES)), np.uint8)
            bigger[:used] = self._out[:used]
            self._out = bigger


#: A piece of the log is copied event by event. Its first event may have any type, and the others have one of these
#: types: GTID, statements, row events and similar ones. An event of a new file or format ends the piece.
_COPIED = frozenset({2, 16, 19, 23, 24, 25, 27, 28, 29, 30, 31, 32, 33, 34, 36, 37, 38, 39, 41, 42})


def _events(data: npt.NDArray[np.uint8], at: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, type) of the complete events from `at` on."""
    while at + HEADER_BYTES <= len(data):
        head = data[at : at + HEADER_BYTES].tobytes()
        length = int.from_bytes(head[9:13], "little")
        if length < HEADER_BYTES + 4 or at + length > len(data):
            return
        yield at, at + length, head[4]
        at += length


def _intact(data: npt.NDArray[np.uint8], start: int, end: int) -> bool:
    return zlib.crc32(data[start : end - 4].data) == int.from_bytes(data[end - 4 : end].tobytes(), "little")
