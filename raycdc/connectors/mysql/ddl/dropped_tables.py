"""Captured tables that were dropped, and of which a table of the same name may be made anew.

Their targets are emptied and keep their columns. A new table with those very columns and that key goes on there with
the log; one with others begins again (`raycdc.source.parking`), by which targets get its columns, and so does one whose
predecessor went in the middle of its snapshot: chunks of that may still be asked for. `all` goes into the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping

from raycdc.connectors.mysql.values.documents import document_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model import TableId

#: Tables remembered. Of an older one a new table is taken for the first of its name.
DROPPED_MAX = 4096


class DroppedTables:
    """By name the fingerprint of the schema when it was dropped; empty where a new one begins again in any case."""

    def __init__(self, dropped: Mapping[TableId, str]) -> None:
        self._dropped = dict(dropped)
        self.changed = False

    def all(self) -> Mapping[TableId, str]:
        """The tables and fingerprints as of now."""
        return dict(self._dropped)

    def add(self, table: MySqlTable, *, read: bool) -> None:
        """`table` was dropped, after its snapshot was `read` or in the middle of it."""
        self._dropped.pop(table.id, None)
        self._dropped[table.id] = document_of(table).fingerprint if read else ""
        while len(self._dropped) > DROPPED_MAX:
            del self._dropped[next(iter(self._dropped))]
        self.changed = True

    def differs(self, table: MySqlTable) -> bool:
        """Whether `table`, which was made, is another one than that which was dropped under its name. Asked once."""
        fingerprint = self._dropped.pop(table.id, None)
        self.changed = self.changed or fingerprint is not None
        return fingerprint is not None and fingerprint != document_of(table).fingerprint

    def forget(self, table: TableId) -> None:
        """The table begins again, whatever it was."""
        self.changed = self._dropped.pop(table, None) is not None or self.changed
