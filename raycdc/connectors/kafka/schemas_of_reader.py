"""The schemas that one reader may write rows with, as the enumerator said, and what it has asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from raycdc.connectors.kafka.events import SchemaChangeRequest, SchemasInForce
from raycdc.connectors.kafka.schemas import fits
from raycdc.model import TableId, TableSchema
from raycdc.source.protocol.source_event import SourceEvent


class SchemasOfReader:
    """A schema holds from the epoch on that its update names. Owned by the reader's thread."""

    def __init__(self, send_event: Callable[[SourceEvent], None]) -> None:
        self._send_event = send_event
        self._in_force: dict[TableId, tuple[TableSchema, str]] = {}
        self._updates: list[SchemasInForce] = []
        self._asked: set[tuple[TableId, str]] = set()

    def hear(self, update: SchemasInForce, *, epoch: int) -> None:
        """An update came while `epoch` is open."""
        self._updates.append(update)
        self.apply(epoch)

    def apply(self, epoch: int) -> None:
        """`epoch` is open: what holds from it on, holds."""
        due = [update for update in self._updates if update.from_epoch <= epoch]
        self._updates = [update for update in self._updates if update.from_epoch > epoch]
        for update in due:
            self._in_force.update({table: (s, s.fingerprint()) for table, s in update.schemas.items()})
        if due:
            self._asked.clear()

    def all_in_force(self) -> dict[TableId, TableSchema]:
        return {table: schema for table, (schema, _) in self._in_force.items()}

    def get(self, table: TableId) -> TableSchema | None:
        """The table's schema in force, if there is one."""
        known = self._in_force.get(table)
        return known[0] if known else None

    def __getitem__(self, table: TableId) -> tuple[TableSchema, str]:
        """The schema in force and its fingerprint, of a table that has one."""
        return self._in_force[table]

    def lacking(self, needed: Iterable[tuple[TableId, TableSchema]]) -> list[tuple[TableId, TableSchema]]:
        """Those of `needed` that rows cannot be written with yet."""
        return [(table, schema) for table, schema in needed if not fits(self.get(table), schema)]

    def ask_for(self, lacking: Sequence[tuple[TableId, TableSchema]]) -> None:
        """Ask the enumerator, for each of them once until something changes."""
        for table, schema in lacking:
            question = (table, schema.fingerprint())
            if question not in self._asked:
                self._asked.add(question)
                self._send_event(SchemaChangeRequest(table, schema))
