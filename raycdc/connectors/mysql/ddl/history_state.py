"""The facts beside the tables that a restart of the log must know, and their form in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NotRequired, TypedDict

from raycdc.connectors.mysql.ddl.database_defaults import CharsetDefault
from raycdc.connectors.mysql.ddl.masked_names import FormerNames
from raycdc.connectors.mysql.ddl.shadows import Shadow, StoredShadow
from raycdc.model import TableId


class StoredHistory(TypedDict):
    """`HistoryState` in a checkpoint; where the log begins, `databases` alone."""

    shadows: NotRequired[dict[str, StoredShadow]]
    away: NotRequired[list[str]]
    databases: NotRequired[dict[str, list[str]]]
    masked: NotRequired[dict[str, list[str]]]
    masked_columns: NotRequired[dict[str, dict[str, list[str]]]]
    dropped: NotRequired[dict[str, str]]


@dataclass(frozen=True, slots=True)
class HistoryState:
    """As of the last statement: tools' tables, captured tables whose name nobody has, character sets of databases,
    names that hidden rows had, and fingerprints of dropped tables.

    `databases` is None where nobody could be asked when the log began.
    """

    shadows: Mapping[TableId, Shadow] = field(default_factory=dict)
    away: frozenset[TableId] = frozenset()
    databases: Mapping[str, CharsetDefault] | None = None
    former: FormerNames = field(default_factory=FormerNames)
    dropped: Mapping[TableId, str] = field(default_factory=dict)

    def to_json(self) -> StoredHistory:
        """Facts that say nothing are left out, but for those of tools."""
        stored: StoredHistory = {
            "shadows": {str(name): shadow.to_json() for name, shadow in self.shadows.items()},
            "away": sorted(map(str, self.away)),
        }
        if self.databases:
            stored["databases"] = _stored_databases(self.databases)
        if self.former.tables:
            stored["masked"] = {str(t): sorted(map(str, names)) for t, names in sorted(self.former.tables.items())}
        if self.former.columns:
            stored["masked_columns"] = {
                str(table): {column: sorted(names) for column, names in sorted(columns.items())}
                for table, columns in sorted(self.former.columns.items())
            }
        if self.dropped:
            stored["dropped"] = {str(name): fingerprint for name, fingerprint in self.dropped.items()}
        return stored

    @classmethod
    def from_json(cls, data: StoredHistory) -> HistoryState:
        databases = data.get("databases")
        former = FormerNames(
            {TableId.parse(t): frozenset(map(TableId.parse, names)) for t, names in data.get("masked", {}).items()},
            {
                TableId.parse(table): {column: frozenset(names) for column, names in columns.items()}
                for table, columns in data.get("masked_columns", {}).items()
            },
        )
        return cls(
            {TableId.parse(name): Shadow.from_json(shadow) for name, shadow in data.get("shadows", {}).items()},
            frozenset(map(TableId.parse, data.get("away", ()))),
            None if databases is None else {db: (charset, collation) for db, (charset, collation) in databases.items()},
            former,
            {TableId.parse(name): fingerprint for name, fingerprint in data.get("dropped", {}).items()},
        )


def begin_state(databases: Mapping[str, CharsetDefault]) -> StoredHistory | None:
    """The state where the log begins: the facts that the log does not tell, and the server only as of now."""
    return {"databases": _stored_databases(databases)} if databases else None


def _stored_databases(databases: Mapping[str, CharsetDefault]) -> dict[str, list[str]]:
    return {db: list(default) for db, default in sorted(databases.items())}
