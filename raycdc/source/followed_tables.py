"""The tables that a log reader follows, and what its open epoch says of them. Owned by `raycdc.source.log_reader`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from raycdc.checkpoint.manifest import TableEpoch
from raycdc.model import TableId


@dataclass(slots=True)
class FollowedTable:
    """One table: the schema in force, whether an epoch has announced it, and whether it is gone with the open one."""

    fingerprint: str
    announced: bool
    gone: bool = False
    incarnation: int = 0


class FollowedTables(dict[TableId, FollowedTable]):
    """By name. `documents` are the schemas by fingerprint; those known at the start count as reported."""

    def __init__(self, documents: Mapping[str, dict[str, Any]]) -> None:
        super().__init__()
        self.documents = dict(documents)
        #: Tables that the open epoch names.
        self.touched: set[TableId] = set()
        self._reported = set(self.documents)
        self._changes: dict[TableId, list[dict[str, Any]]] = {}

    def document(self, table: TableId) -> dict[str, Any]:
        """The schema in force."""
        return self.documents[self[table].fingerprint]

    def touch(self, table: TableId) -> None:
        """The open epoch has something of the table; a table's first epoch carries its CreateTableEvent."""
        if not self[table].announced and table not in self._changes:
            document = self.document(table)
            schema = {"columns": document["columns"], "primary_key": document["primary_key"]}
            created = {"type": "create_table", "db": table.db, "table": table.table, "schema": schema}
            self._changes[table] = [created]
        self.touched.add(table)

    def note_changes(self, table: TableId, changes: Iterable[dict[str, Any]]) -> None:
        """Schema changes that the open epoch begins with."""
        self._changes.setdefault(table, []).extend(changes)

    def announce_all(self) -> None:
        """Rows or not: an empty table has an empty target."""
        for name, table in self.items():
            if not table.announced and name not in self.touched:
                self.touch(name)

    def report(self, in_snapshot: Callable[[TableId], bool]) -> tuple[dict[str, TableEpoch], dict[str, dict[str, Any]]]:
        """What `EpochSealed` says of the tables of the open epoch, and the schemas that it is the first to name."""
        self.announce_all()
        told = [table for table in self.touched if table in self]
        tables = {
            str(t): TableEpoch(self[t].fingerprint, in_snapshot(t), tuple(self._changes.get(t, ()))) for t in told
        }
        schemas = {name: document for name, document in self.documents.items() if name not in self._reported}
        self._reported.update(schemas)
        for table in told:
            self[table].announced = True
        return tables, schemas

    def begin_epoch(self) -> None:
        """Tables that are gone stay known until the epoch that says so is cut."""
        self._changes.clear()
        self.touched.clear()
        for name in [name for name, table in self.items() if table.gone]:
            del self[name]
