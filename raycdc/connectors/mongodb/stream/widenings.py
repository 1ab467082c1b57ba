"""Which inferred collections get more columns while they are followed, and when; `drift` says which columns.

Each time is the end of an epoch, and chunks that are being read are read again. So a collection that widened often
lately waits: until then the column of the rest has everything that has no other.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from raycdc.connectors.mongodb.layout import Layout, OnConflict
from raycdc.connectors.mongodb.stream.drift import Widening, kinds_of, widened
from raycdc.connectors.mongodb.stream.events import RowWriter
from raycdc.model import TableId

_log = logging.getLogger(__name__)

#: Times a collection may widen within so many seconds.
_WIDENED_MAX, _LATELY_S = 10, 60.0


class Widenings:
    """See the module's docstring. `how` says how a collection gets more columns; None: it does not."""

    def __init__(
        self, how: Callable[[TableId], Widening | None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._how = how
        self._clock = clock
        #: Collections that have more columns from the next place between two transactions on, with those they had.
        self._wider: dict[TableId, tuple[Layout, Layout]] = {}
        #: When collections widened lately.
        self._widened_s: dict[TableId, deque[float]] = {}
        self._told: set[TableId] = set()

    def watches(self, table: TableId) -> bool:
        """Whether the collection's documents are looked at."""
        return self._how(table) is not None

    def look_at(self, table: TableId, writer: RowWriter, data: bytes, *, at_once: bool, fixed: bool) -> Layout | None:
        """Look at the fields that the rows last made of `data` showed; the layout by which they are made again, if any.

        That is where they have more columns `at_once`; others are due later. The columns of a `fixed` collection keep
        their types, because its targets could not follow a new beginning.
        """
        met = writer.met(data)
        how = self._how(table)
        if not met or how is None:
            return None
        if fixed and how.on_conflict is OnConflict.TEXT:
            how = replace(how, on_conflict=OnConflict.UNION)
        begun, layout = self._wider.get(table, (writer.layout, writer.layout))
        wider = widened(table, layout, kinds_of(met), how)
        if (wider.left or writer.met_all) and table not in self._told:
            self._told.add(table)
            shown = ", ".join(map(repr, wider.left[:5])) or "and more"
            _log.warning("%s: fields, or values of another type, stay in the column _rest: %.300s", table, shown)
        if wider.layout == layout:
            return None
        self._wider[table] = begun, wider.layout
        return wider.layout if at_once and self._may_widen(table) else None

    def take_due(self, writers: Mapping[TableId, RowWriter]) -> Iterator[tuple[TableId, Layout, Layout]]:
        """Collections that have more columns from here on, each once, with the layout before and the one now.

        Those without one of the `writers` are followed no more.
        """
        for table, (before, layout) in list(self._wider.items()):
            writer = writers.get(table)
            if writer is not None and writer.layout != layout and not self._may_widen(table):
                continue
            del self._wider[table]
            if writer is not None:
                self._widened_s.setdefault(table, deque(maxlen=_WIDENED_MAX)).append(self._clock())
                yield table, before, layout

    def _may_widen(self, table: TableId) -> bool:
        lately = self._widened_s.get(table)
        return lately is None or len(lately) < _WIDENED_MAX or self._clock() - lately[0] >= _LATELY_S
