"""The treatment of a table map's rows: decoded by a plan, passed over, or reported as unbelievable.

Used by `decoder` alone, at each TABLE_MAP that was not seen before. Whether a table's rows are wanted is asked first:
of other tables nothing but the name is looked at, so that none of them can end a run.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from raycdc.connectors.mysql.binlog.map_schemas import MapSchemas
from raycdc.connectors.mysql.binlog.rows import RowBatches
from raycdc.connectors.mysql.binlog.table_decoding import ReadyMap
from raycdc.connectors.mysql.binlog.table_map import TableMap, parse_table_map, require_possible
from raycdc.connectors.mysql.binlog.table_map_registry import TableMapRegistry
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import DataError, SchemaError
from raycdc.model import TableId


class MapPlans:
    """See the module's docstring. `placed` says where in the log an error happened."""

    def __init__(
        self,
        schemas: MapSchemas,
        registry: TableMapRegistry,
        rows: RowBatches,
        *,
        wanted: Callable[[TableId], bool],
        mariadb: bool,
    ) -> None:
        self.schemas = schemas
        self._registry = registry
        self._rows = rows
        self.wanted = wanted
        self._mariadb = mariadb

    def add(
        self, content: npt.NDArray[np.uint8], *, on_misfit: Callable[[TableId, DataError], None] | None = None
    ) -> None:
        """A table map not seen before. Where it does not fit its table, `on_misfit` is told and the rows passed over;
        without it, that is an error.
        """
        table_map = parse_table_map(content.tobytes(), mariadb=self._mariadb)
        ready = None
        if self.wanted(table_map.table):
            require_possible(table_map)
            try:
                ready = self._ready(table_map)
            except SchemaError as error:
                if on_misfit is None:
                    raise
                on_misfit(table_map.table, error)
        number = self._registry.add(content, wanted=ready is not None)
        self._rows.know(number, table_map.table, ready)

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
        for number in self._rows.pass_over(table):
            self._registry.wanted[number] = False

    def _ready(self, table_map: TableMap) -> ReadyMap:
        table, plan = self.schemas.of(table_map)
        return ReadyMap(table.id, self._rows.decoding(table), plan, self._rows.scratch(len(plan.steps)))

    def _forget(self, table: TableId) -> None:
        for number in self._rows.forget(table):
            self._registry.forget(number)
