"""The units of a log: rows, and the changes of tables. A connector's `LogSource` gives them.

A unit is one of four, and `LogUnit` is their union:

| unit | means |
|---|---|
| `Transactions` | transactions are whole: their rows, and tables whose rows did not fit |
| `TransactionPart` | the log is cut inside a transaction, because that is too large, or not known to be whole |
| `SchemaChange` | tables changed, with the truncations that this meant |
| `Progress` | the log went on without anything to tell |

A change of a table is one of four, too, and `SchemaUpdate` is their union:

| update | means |
|---|---|
| `TableAltered` | another schema is in force from here on, or a table of this name appeared |
| `TableDropped` | the table is no more |
| `TableParked` | the table is not followed from here on (`raycdc.source.parking`) |
| `TableBegun` | a parked table, or another one under its name, begins again with every chunk unopened |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol, assert_never

from raycdc.checkpoint.missing import MissingRow
from raycdc.checkpoint.opaque import LogNotes, Position
from raycdc.model import TableId
from raycdc.schema.events import SchemaChangeEvent
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.log_rows import LogRows
from raycdc.source.table_life import Parking, SnapshotState

#: Behind every place of a log.
NOWHERE = 1 << 64


@dataclass(frozen=True, slots=True)
class TableAltered:
    """`document` is the schema document in force from here on; `changes` lead to it, as elementary events in order."""

    table: TableId
    changes: tuple[SchemaChangeEvent, ...]
    document: SchemaDocument

    @property
    def fingerprint(self) -> str:
        fingerprint: str = self.document.fingerprint
        return fingerprint


@dataclass(frozen=True, slots=True)
class TableDropped:
    """`changes` are what targets are told, if anything."""

    table: TableId
    changes: tuple[SchemaChangeEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class TableParked:
    """Nothing of the table follows, for this reason."""

    table: TableId
    parking: Parking


@dataclass(frozen=True, slots=True)
class TableBegun:
    """The table as `document` describes it, of which `snapshot` says how it is cut; its chunks are all unread."""

    table: TableId
    changes: tuple[SchemaChangeEvent, ...]
    document: SchemaDocument
    snapshot: SnapshotState

    @property
    def fingerprint(self) -> str:
        fingerprint: str = self.document.fingerprint
        return fingerprint


SchemaUpdate = TableAltered | TableDropped | TableParked | TableBegun


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where the log stands after a unit, and how late that came.

    `position` is in the connector's terms, `ordinal` in the log's total order; inside a transaction they repeat the
    last boundary. `event_ms` is the commit time of the last event, `fetched_ms` the time when it came. `notes` are
    everything that the source itself must know to go on from here, beside position and schemas; None where they are as
    they were.
    """

    position: Position
    ordinal: int
    event_ms: int | None = None
    fetched_ms: int | None = None
    notes: LogNotes | None = None


@dataclass(frozen=True, slots=True)
class TransactionPart:
    """Rows of a transaction of which more is to come: no epoch ends behind them, and no table is parked there."""

    place: LogPlace
    rows: tuple[LogRows, ...] = ()
    bytes: int = 0

    @property
    def end(self) -> int:
        """The last place that the unit says anything of; its rows' are behind its own.

        A unit that begins a transaction and has nothing of it does not tell where that is: it is `NOWHERE`.
        """
        return NOWHERE if not self.rows and self.place.notes is None else _last(self.place.ordinal, self.rows)


@dataclass(frozen=True, slots=True)
class Transactions:
    """Whole transactions, or the rest of one.

    `parked` are tables whose rows turned out not to fit: they are parked with the unit's own position, in one step with
    its rows. `missing` are rows that the source cannot give, one for each of the unit's `rows` in their order, which
    are their deletions then. `bytes` bounds memory.
    """

    place: LogPlace
    rows: tuple[LogRows, ...] = ()
    parked: tuple[TableParked, ...] = ()
    missing: tuple[MissingRow, ...] = ()
    bytes: int = 0

    @property
    def end(self) -> int:
        """The last place that the unit says anything of."""
        return _last(self.place.ordinal, self.rows)


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A statement, or what else changes tables; an epoch begins with it.

    `truncations` are rows that follow the `updates`, because the change itself removed rows. A statement that is
    `in_transaction` begins a transaction whose rows follow (a table that is created with its rows).
    """

    place: LogPlace
    updates: tuple[SchemaUpdate, ...]
    truncations: tuple[LogRows, ...] = ()
    in_transaction: bool = False

    @property
    def end(self) -> int:
        """The last place that the unit says anything of; as in `TransactionPart`."""
        nowhere = self.in_transaction and not self.truncations and self.place.notes is None
        return NOWHERE if nowhere else _last(self.place.ordinal, self.truncations)


@dataclass(frozen=True, slots=True)
class Progress:
    """The log stands further on, between two transactions, and there was nothing to tell."""

    place: LogPlace

    @property
    def end(self) -> int:
        """The unit's own place."""
        return self.place.ordinal


#: A run of the log. A connector gives one after the other, and the log reader acts on each (`snapshot.log_reader`).
LogUnit = TransactionPart | Transactions | SchemaChange | Progress


def rows_of(unit: LogUnit) -> tuple[LogRows, ...]:
    """All rows that the unit brings, truncations included."""
    match unit:
        case TransactionPart(rows=rows) | Transactions(rows=rows) | SchemaChange(truncations=rows):
            return rows
        case Progress():
            return ()
        case _:
            assert_never(unit)


def updates_of(unit: LogUnit) -> tuple[SchemaUpdate, ...]:
    """Everything that the unit says of tables."""
    match unit:
        case SchemaChange(updates=updates) | Transactions(parked=updates):
            return updates
        case TransactionPart() | Progress():
            return ()
        case _:
            assert_never(unit)


def in_transaction(unit: LogUnit) -> bool:
    """Whether the unit leaves a transaction open."""
    match unit:
        case TransactionPart():
            return True
        case SchemaChange(in_transaction=is_open):
            return is_open
        case Transactions() | Progress():
            return False
        case _:
            assert_never(unit)


def narrowed(
    unit: LogUnit, keeps: Callable[[TableId], bool], keeps_update: Callable[[SchemaUpdate], bool] | None = None
) -> LogUnit:
    """The part of the unit that is about tables which are to be kept; `keeps_update` may be of another mind about a
    statement's updates. A statement without any is none: no epoch has to end for it.
    """
    match unit:
        case SchemaChange(place, updates, truncations):
            left = tuple(one for one in updates if (keeps(one.table) if keeps_update is None else keeps_update(one)))
            rows = tuple(part for part in truncations if keeps(part.table))
            if left:
                return replace(unit, updates=left, truncations=rows)
            return TransactionPart(place, rows) if unit.in_transaction else Transactions(place, rows)
        case TransactionPart(rows=rows):
            return replace(unit, rows=tuple(part for part in rows if keeps(part.table)))
        case Transactions(rows=rows, missing=missing, parked=parked):
            return replace(
                unit,
                rows=tuple(part for part in rows if keeps(part.table)),
                missing=tuple(row for row in missing if keeps(row.table)),
                parked=tuple(one for one in parked if keeps_update is not None or keeps(one.table)),
            )
        case Progress():
            return unit
        case _:
            assert_never(unit)


def bytes_of(unit: LogUnit) -> int:
    """How much memory the unit's rows take."""
    match unit:
        case TransactionPart(bytes=size) | Transactions(bytes=size):
            return size
        case SchemaChange() | Progress():
            return 0
        case _:
            assert_never(unit)


def _last(ordinal: int, rows: Iterable[LogRows]) -> int:
    return max(ordinal, *(int(part.ordinals[-1]) for part in rows if part.ordinals.size), 0)


class LogSource(Protocol):
    """A log being read from a position on. `poll` is called from the reader's thread and never blocks."""

    def poll(self) -> LogUnit | None:
        """The next unit, or None when there is none now. Raises what went wrong in the background."""

    @property
    def seen_ms(self) -> int | None:
        """The wall time up to which the log was seen: all that it had then was given to `poll`. None: not known yet."""

    def close(self) -> None: ...
