"""The schema of the rows behind a TABLE_MAP: the one followed, one given, or one made from the map itself."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from raycdc.connectors.mysql.binlog.plan import WirePlan, wire_plan, with_logged_labels
from raycdc.connectors.mysql.binlog.table_map import TableMap, infer_table
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import SchemaError
from raycdc.model import TableId


class MapSchemas:
    """`tables` are those followed, each with the schema in force where the log begins to be read."""

    def __init__(self, tables: Mapping[TableId, MySqlTable]) -> None:
        self._tables = {name: table.as_logged() for name, table in tables.items()}
        self._given: Mapping[TableId, MySqlTable] = {}
        #: Tables are made from their maps, so that no schema is known for sure.
        self.inferred = False

    @classmethod
    def from_the_log(cls, given: Mapping[TableId, MySqlTable] | None = None) -> MapSchemas:
        """No table is followed: each is made from its maps, where none of `given` fits."""
        schemas = cls({})
        schemas._given = given or {}
        schemas.inferred = True
        return schemas

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
        if self.inferred:
            return self._from_map(table_map)
        followed = self._tables.get(table_map.table)
        if followed is None:
            raise SchemaError(f"rows of table {table_map.table}, whose schema is not known here.")
        table = with_logged_labels(table_map, followed)
        return table, wire_plan(table_map, table)

    def _from_map(self, table_map: TableMap) -> tuple[MySqlTable, WirePlan]:
        given = self._given.get(table_map.table)
        if given is not None:
            with suppress(SchemaError):  # it was written for another version of the table
                return given, wire_plan(table_map, given)
        table = infer_table(table_map)
        return table, wire_plan(table_map, table)
