"""The treatment of a table map's rows: decoded by a plan, passed over, or reported as unbelievable.

`MapPlans` is asked at each TABLE_MAP that was not seen before. Whether a table's rows are wanted is asked first: of
other tables nothing but the name is looked at, so that none of them can end a run.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from raycdc.connectors.mysql.binlog.map_schemas import MapSchemas
from raycdc.connectors.mysql.binlog.misfit_reports import MisfitReports
from raycdc.connectors.mysql.binlog.plan import WirePlan
from raycdc.connectors.mysql.binlog.table_decoding import Decodings, ReadyMap
from raycdc.connectors.mysql.binlog.table_map import TableMap, parse_table_map, require_possible
from raycdc.connectors.mysql.binlog.table_map_registry import TableMapRegistry
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import SchemaError
from raycdc.model import TableId


class MapPlans:
    """See the module's docstring. `ready` holds the table maps of wanted tables by their registered number."""

    def __init__(
        self,
        schemas: MapSchemas,
        decodings: Decodings,
        misfits: MisfitReports,
        *,
        wanted: Callable[[TableId], bool],
        mariadb: bool,
    ) -> None:
        self.schemas = schemas
        self.registry = TableMapRegistry()
        self.ready: dict[int, ReadyMap] = {}
        self.wanted = wanted
        self._decodings = decodings
        self._misfits = misfits
        self._mariadb = mariadb
        #: Numbers of table maps whose rows are not wanted: a table may be wanted again.
        self._passed_over: dict[TableId, list[int]] = {}

    def add(self, content: npt.NDArray[np.uint8], *, place: str) -> None:
        """A table map not seen before, at `place` in the log. One that does not fit its table is reported, and its rows
        are passed over; where nobody listens, that is an error.
        """
        table_map = parse_table_map(content.tobytes(), mariadb=self._mariadb)
        table, ready = table_map.table, None
        if self.wanted(table):
            require_possible(table_map)
            try:
                ready = self._ready(table_map)
            except SchemaError as error:
                if not self._misfits.heard:
                    raise
                self._misfits.report(table, type(error)(f"{place}: {error}"))
        number = self.registry.add(content, wanted=ready is not None)
        if ready is not None:
            self.ready[number] = ready
        else:
            self._passed_over.setdefault(table, []).append(number)

    def plan_of(self, number: int) -> WirePlan | None:
        """How rows of a registered table map lie in the log; None where they are not wanted."""
        ready = self.ready.get(number)
        return None if ready is None else ready.plan

    def set(self, table: MySqlTable) -> None:
        """Rows after this point have this schema; table maps seen before are checked again."""
        self.schemas.set(table)
        self._forget(table.id)

    def remove(self, table: TableId) -> None:
        """The table is gone; its rows would be refused as unknown."""
        self.schemas.remove(table)
        self._forget(table)

    def pass_over(self, table: TableId) -> None:
        """Rows of the table are of no use before it has another schema."""
        numbers = self._take_ready(table)
        for number in numbers:
            self.registry.wanted[number] = False
        self._passed_over.setdefault(table, []).extend(numbers)

    def _ready(self, table_map: TableMap) -> ReadyMap:
        table, plan = self.schemas.of(table_map)
        return ReadyMap(table.id, self._decodings.of(table), plan, self._decodings.scratch(len(plan.steps)))

    def _forget(self, table: TableId) -> None:
        for number in (*self._take_ready(table), *self._passed_over.pop(table, ())):
            self.registry.forget(number)
        self._decodings.forget(table)

    def _take_ready(self, table: TableId) -> list[int]:
        numbers = [number for number, ready in self.ready.items() if ready.table == table]
        for number in numbers:
            del self.ready[number]
        return numbers
