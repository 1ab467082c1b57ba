"""Which schema the rows behind a TABLE_MAP have: the one followed, one given, or one made from the map itself."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from raycdc.connectors.mysql.binlog.plan import WirePlan, wire_plan, with_logged_labels
from raycdc.connectors.mysql.binlog.table_map import TableMap, infer_table
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import SchemaError
from raycdc.model import TableId


class MapSchemas:
    """`tables` are those followed; with `infer`, tables are made from their maps where none of `given` fits."""

    def __init__(
        self, tables: Mapping[TableId, MySqlTable], *, infer: bool, given: Mapping[TableId, MySqlTable] | None
    ) -> None:
        self._tables = {name: table.as_logged() for name, table in tables.items()}
        self._infer = infer
        self._given: Mapping[TableId, MySqlTable] = given or {}

    def set(self, table: MySqlTable) -> None:
        self._tables[table.id] = table.as_logged()

    def remove(self, table: TableId) -> None:
        self._tables.pop(table, None)

    def known(self, table: TableId) -> MySqlTable | None:
        """The schema of a table that is followed."""
        return self._tables.get(table)

    @property
    def followed(self) -> tuple[TableId, ...]:
        """The tables that have a schema here."""
        return tuple(self._tables)

    def of(self, table_map: TableMap) -> tuple[MySqlTable, WirePlan]:
        """The table and how its rows lie in the log. Raises `SchemaError` where the two do not fit."""
        if self._infer:
            return self._inferred(table_map)
        known = self._tables.get(table_map.table)
        if known is None:
            raise SchemaError(f"rows of table {table_map.table}, whose schema is not known here.")
        table = with_logged_labels(table_map, known)
        return table, wire_plan(table_map, table)

    def _inferred(self, table_map: TableMap) -> tuple[MySqlTable, WirePlan]:
        given = self._given.get(table_map.table)
        if given is not None:
            with suppress(SchemaError):  # it was written for another version of the table
                return given, wire_plan(table_map, given)
        table = infer_table(table_map)
        return table, wire_plan(table_map, table)
