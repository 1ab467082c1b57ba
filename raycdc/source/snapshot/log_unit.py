"""What a log says, unit by unit: rows, and what becomes of tables. A connector's `LogSource` gives it.

A change of a table is one of four, and `SchemaUpdate` is their union:

| update | means |
|---|---|
| `TableAltered` | another schema is in force from here on, or a table of this name appeared |
| `TableDropped` | the table is no more |
| `TableParked` | the table is not followed from here on (`raycdc.source.parking`) |
| `TableBegun` | a parked table, or another one under its name, begins again with every chunk unopened |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from raycdc.checkpoint.missing import MissingRow
from raycdc.model import TableId
from raycdc.source.snapshot.log_rows import LogRows
from raycdc.source.table_life import Parking, SnapshotState

#: Behind every place of a log.
NOWHERE = 1 << 64


@dataclass(frozen=True, slots=True)
class TableAltered:
    """`document` is the schema document in force from here on; `changes` lead to it, as elementary events in order."""

    table: TableId
    changes: tuple[dict[str, Any], ...]
    document: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        fingerprint: str = self.document["fingerprint"]
        return fingerprint


@dataclass(frozen=True, slots=True)
class TableDropped:
    """`changes` are what targets are told, if anything."""

    table: TableId
    changes: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class TableParked:
    """Nothing of the table follows, for this reason."""

    table: TableId
    parking: Parking


@dataclass(frozen=True, slots=True)
class TableBegun:
    """The table as `document` describes it, of which `snapshot` says how it is cut; its chunks are all unread."""

    table: TableId
    changes: tuple[dict[str, Any], ...]
    document: dict[str, Any]
    snapshot: SnapshotState

    @property
    def fingerprint(self) -> str:
        fingerprint: str = self.document["fingerprint"]
        return fingerprint


SchemaUpdate = TableAltered | TableDropped | TableParked | TableBegun


@dataclass(frozen=True, slots=True)
class LogUnit:
    """A run of the log, cut at the end of a transaction unless `in_transaction`.

    `position` and `ordinal` (the log's total order) say where the log stands after the unit; inside a transaction they
    repeat the last boundary. A unit holds either rows or `schema` updates; the rows beside a schema update are what it
    does itself (truncations), and follow it. `parked` are tables whose rows turned out not to fit: they are parked with
    the unit's own position, in the same step, never in a unit that leaves a transaction open.
    `bytes` bounds memory. `source_state` is what the source itself must know to go on after the unit, beside position
    and schemas; None when that is as it was. `missing` are rows that the source cannot give, one for each of the unit's
    `rows` in their order, which are their deletions then.
    """

    position: Mapping[str, Any]
    ordinal: int
    rows: tuple[LogRows, ...] = ()
    schema: tuple[SchemaUpdate, ...] = ()
    in_transaction: bool = False
    event_ms: int | None = None
    fetched_ms: int | None = None
    bytes: int = 0
    source_state: Mapping[str, Any] | None = None
    parked: tuple[TableParked, ...] = ()
    missing: tuple[MissingRow, ...] = ()

    @property
    def end(self) -> int:
        """The last place that the unit says anything of: its rows' may be behind its own, within a transaction.

        One that begins a transaction and has nothing of it does not tell where that is: it is `NOWHERE`.
        """
        if self.in_transaction and not self.rows and self.source_state is None:
            return NOWHERE
        return max(self.ordinal, *(int(rows.ordinals[-1]) for rows in self.rows if rows.ordinals.size), 0)


class LogSource(Protocol):
    """A log being read from a position on. `poll` is called from the reader's thread and never blocks."""

    def poll(self) -> LogUnit | None:
        """The next unit, or None when there is none now. Raises what went wrong in the background."""

    def close(self) -> None: ...
