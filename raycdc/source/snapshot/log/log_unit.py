"""The units of a log: rows, and changes of tables. A connector reads its log as a sequence of units, and a `LogSource`
returns them. There are four kinds of units, and `LogUnit` is their union:

| unit | meaning |
|---|---|
| `LogTransactions` | whole transactions: their rows, and tables whose rows do not match the schema |
| `TransactionPart` | a part of a transaction that is too large, or whose end is not known yet |
| `SchemaChange` | changes of tables, with the resulting truncations |
| `LogProgress` | a new position of the log, without rows or changes |

A `SchemaChange` has changes of tables. There are four kinds of them, and `SchemaUpdate` is their union:

| update | meaning |
|---|---|
| `AlterTableUpdate` | another schema is in force from here on, or a table of this name appeared |
| `DropTableUpdate` | the table was dropped |
| `ParkTableUpdate` | the table is not followed from here on (`raycdc.source.tables.parking`) |
| `BeginTableUpdate` | a parked table, or another one under its name, is resnapshotted, with every chunk unopened |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol, assert_never

from raycdc.model import TableId
from raycdc.model.evolution.events import SchemaChangeEvent
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.log.log_rows import LogRows
from raycdc.source.tables.table_life import ParkingCause, SnapshotState
from raycdc.state.missing import MissingRow
from raycdc.state.opaque import LogNotes, Position

#: An ordinal that is after every position of a log.
NOWHERE = 1 << 64


@dataclass(frozen=True, slots=True)
class AlterTableUpdate:
    """A table gets a new schema. `document` is the schema document in force from here on. `changes` are the elementary
    changes that lead to this schema, in order.
    """

    table: TableId
    changes: tuple[SchemaChangeEvent, ...]
    document: SchemaDocument

    @property
    def fingerprint(self) -> str:
        fingerprint: str = self.document.fingerprint
        return fingerprint


@dataclass(frozen=True, slots=True)
class DropTableUpdate:
    """The table was dropped. `changes` are the events for its targets; empty if there are none."""

    table: TableId
    changes: tuple[SchemaChangeEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class ParkTableUpdate:
    """The table is parked for this reason. No rows of the table follow."""

    table: TableId
    parking: ParkingCause


@dataclass(frozen=True, slots=True)
class BeginTableUpdate:
    """The table is resnapshotted with the schema in `document`. `snapshot` says how it is cut into chunks, all of which
    are unread. If there are no `changes`, no target knows the table yet, and the epoch creates it in its present form.
    """

    table: TableId
    changes: tuple[SchemaChangeEvent, ...]
    document: SchemaDocument
    snapshot: SnapshotState

    @property
    def fingerprint(self) -> str:
        fingerprint: str = self.document.fingerprint
        return fingerprint


SchemaUpdate = AlterTableUpdate | DropTableUpdate | ParkTableUpdate | BeginTableUpdate


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The log's position after a unit, and the delay of fetching it.

    `position` is the position in the connector's form, and `ordinal` is its number in the log's total order. Inside a
    transaction, both are those of the last boundary between transactions. `event_ms` is the commit time of the last
    event, and `fetched_ms` is the time when the event came. `notes` is the connector's additional data for going on
    from here; None if unchanged.
    """

    position: Position
    ordinal: int
    event_ms: int | None = None
    fetched_ms: int | None = None
    notes: LogNotes | None = None


@dataclass(frozen=True, slots=True)
class TransactionPart:
    """A part of a transaction: rows after which more rows of the transaction follow. No epoch ends after them, and no
    table is parked there.
    """

    log_position: LogPosition
    rows: tuple[LogRows, ...] = ()
    bytes: int = 0

    @property
    def end(self) -> int:
        """Return the ordinal of the unit's last row. (`log_position` is before the rows.) If the unit has no rows, its
        position is unknown, and `NOWHERE` is returned; such a unit may be ignored.
        """
        return (
            NOWHERE
            if not self.rows and self.log_position.notes is None
            else _last(self.log_position.ordinal, self.rows)
        )


@dataclass(frozen=True, slots=True)
class LogTransactions:
    """Whole transactions, or the rest of one.

    `parked` are tables whose rows do not match the schema. They are parked at the unit's position, in one step with its
    rows. If the source cannot deliver some rows, the unit has deletions of these rows, and `missing` describes them,
    one for each row of the unit in order. `bytes` is the size in memory.
    """

    log_position: LogPosition
    rows: tuple[LogRows, ...] = ()
    parked: tuple[ParkTableUpdate, ...] = ()
    missing: tuple[MissingRow, ...] = ()
    bytes: int = 0

    @property
    def end(self) -> int:
        """Return the last position that the unit covers."""
        return _last(self.log_position.ordinal, self.rows)


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A statement, or another change of tables, with which an epoch begins. If the change itself removed rows,
    `truncations` are rows that come right after the `updates`. If `in_transaction` is True, the statement begins a
    transaction whose rows follow, for example a table that is created with its rows. Its `log_position` is then before
    the transaction, and its own ordinal is `at`, or that of its truncations.
    """

    log_position: LogPosition
    updates: tuple[SchemaUpdate, ...]
    truncations: tuple[LogRows, ...] = ()
    in_transaction: bool = False
    at: int | None = None

    def __post_init__(self) -> None:
        is_somewhere = self.at is not None or self.truncations
        assert is_somewhere or not self.in_transaction, f"nobody knows where in its transaction {self} is"

    @property
    def end(self) -> int:
        """Return the last position that the unit covers."""
        return max(_last(self.log_position.ordinal, self.truncations), self.at or 0)


@dataclass(frozen=True, slots=True)
class LogProgress:
    """The log's new position between two transactions, without rows or changes."""

    log_position: LogPosition

    @property
    def end(self) -> int:
        """Return the unit's own position."""
        return self.log_position.ordinal


#: A unit of the log. A connector returns units in the order of the log, and the log reader handles each of them
#: (`raycdc.source.snapshot.log.log_reader`).
LogUnit = TransactionPart | LogTransactions | SchemaChange | LogProgress


def rows_of(unit: LogUnit) -> tuple[LogRows, ...]:
    """Return all rows of the unit, including truncations."""
    match unit:
        case TransactionPart(rows=rows) | LogTransactions(rows=rows) | SchemaChange(truncations=rows):
            return rows
        case LogProgress():
            return ()
        case _:
            assert_never(unit)


def updates_of(unit: LogUnit) -> tuple[SchemaUpdate, ...]:
    """Return all schema updates of the unit."""
    match unit:
        case SchemaChange(updates=updates) | LogTransactions(parked=updates):
            return updates
        case TransactionPart() | LogProgress():
            return ()
        case _:
            assert_never(unit)


def in_transaction(unit: LogUnit) -> bool:
    """Return True if the unit ends inside a transaction."""
    match unit:
        case TransactionPart():
            return True
        case SchemaChange(in_transaction=is_open):
            return is_open
        case LogTransactions() | LogProgress():
            return False
        case _:
            assert_never(unit)


def narrowed(
    unit: LogUnit, keeps: Callable[[TableId], bool], keeps_update: Callable[[SchemaUpdate], bool] | None = None
) -> LogUnit:
    """Return the part of the unit that concerns tables which `keeps` selects. For the updates of statements,
    `keeps_update` decides instead, if it is given. A statement of which no update remains is dropped, because no epoch
    must end for it.
    """
    match unit:
        case SchemaChange(log_position, updates, truncations):
            left = tuple(one for one in updates if (keeps(one.table) if keeps_update is None else keeps_update(one)))
            rows = tuple(part for part in truncations if keeps(part.table))
            if left:
                at = unit.end if unit.in_transaction else None
                return replace(unit, updates=left, truncations=rows, at=at)
            return TransactionPart(log_position, rows) if unit.in_transaction else LogTransactions(log_position, rows)
        case TransactionPart(rows=rows):
            return replace(unit, rows=tuple(part for part in rows if keeps(part.table)))
        case LogTransactions(rows=rows, missing=missing, parked=parked):
            return replace(
                unit,
                rows=tuple(part for part in rows if keeps(part.table)),
                missing=tuple(row for row in missing if keeps(row.table)),
                parked=tuple(one for one in parked if keeps_update is not None or keeps(one.table)),
            )
        case LogProgress():
            return unit
        case _:
            assert_never(unit)


def bytes_of(unit: LogUnit) -> int:
    """Return the memory size of the unit's rows."""
    match unit:
        case TransactionPart(bytes=size) | LogTransactions(bytes=size):
            return size
        case SchemaChange() | LogProgress():
            return 0
        case _:
            assert_never(unit)


def _last(ordinal: int, rows: Iterable[LogRows]) -> int:
    return max(ordinal, *(int(part.ordinals[-1]) for part in rows if part.ordinals.size), 0)


class LogSource(Protocol):
    """A log that is read from a position on. The reader's thread calls `poll`, which never blocks."""

    def poll(self) -> LogUnit | None:
        """Return the next unit, or None if there is none now. Raises errors of the background work."""

    @property
    def seen_ms(self) -> int | None:
        """Return a wall time such that `poll` has returned everything that the log had at that time; None if not known
        yet.
        """

    def close(self) -> None: ...
