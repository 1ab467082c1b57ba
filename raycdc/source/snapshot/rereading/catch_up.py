"""Lets paused tables continue from their position, by a second reader of the log: the catch-up stream.

Theory of operation. The catch-up stream begins at the position of the paused tables, with the tables' schemas and the
connector's notes at that position, and delivers only these tables. Meanwhile, the log reader drops their rows in the
main log. Units of the catch-up stream go into the open epoch like units of the log, and an epoch begins with each
statement. The position of the catch-up stream is sealed with every epoch, in the states of its tables (`CatchingUp`),
so nothing is repeated or skipped after a crash.

Let M be the position of the log reader, between two transactions. A unit of the catch-up stream that ends at M or
before is passed on. The first unit with rows after M proves that everything before M was delivered. Its rows up to M
are passed on, and the tables *join* the log: they become live, the epoch ends, and both streams are opened again from
the sealed state, as after a restart. The log then delivers all rows after M. The log must be opened again, because it
was read ahead, and rows of these tables after M were skipped.

| the catch-up stream | effect |
|---|---|
| has a unit up to M | it is passed on |
| has a unit without a position | the unit is empty; the next one of its transaction has the position |
| has rows after M, or is at M itself | all tables join; a table that is `dropped` has ended |
| is not settled, or the log is not | it waits until M is after its unit |
| parks or resnapshots a table | the others go on; both streams are opened again after the next cut |
| reports that a table has ended | the log probes the name, because it skipped everything about a newer table of that \
name |
| fails temporarily, between two transactions | it alone is opened again at its position, and the log goes on |
| cannot go on | its tables are parked with the reason; the log goes on (`catch_up_stream.py`) |

A stream is *settled* if its notes have nothing pending before its position (`ReaderDialect.is_complete`). Until it is
settled, its reported ordinal may be smaller than the ordinal of the position at which it would be opened again. The
notes of the catch-up stream concern only its tables, and are dropped when the stream ends.

At most one unit of the catch-up stream waits, and while it waits, the stream is not polled. A join therefore covers
everything that was read, and everything that it leaves to the log is after M. Tables with the same position are read
together; tables with different positions are read one after the other. At most one of the two streams is inside a
transaction, because a cut needs both to be between transactions.

`RowNumbers` renumbers the rows (`_seq`) of the log and of the catch-up stream into one order within an epoch. Each
reader of a log counts from 0. A log that is opened again goes on after the previous numbers, because earlier rows may
still be held for a chunk. In each epoch, the numbers of the catch-up stream's rows are shifted to the range of the
log's numbers, because all numbers of an epoch must be close to each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.core.failpoints import reach
from raycdc.model import TableId
from raycdc.source.snapshot.log.log_rows import LogRows, take
from raycdc.source.snapshot.log.log_unit import (
    NOWHERE,
    LogProgress,
    LogTransactions,
    LogUnit,
    ParkTableUpdate,
    SchemaChange,
    SchemaUpdate,
    TransactionPart,
    in_transaction,
    narrowed,
    rows_of,
)
from raycdc.source.snapshot.log.open_epoch import OpenEpoch
from raycdc.source.snapshot.log.stream_state import LogCursor, StreamState
from raycdc.source.snapshot.log.table_changes import TableChanges
from raycdc.source.split import StreamSplit
from raycdc.source.tables.parked_tables import ended
from raycdc.source.tables.table_life import CatchingUp, ParkedPhase, ParkingCause, TableStates, asleep, followed_from
from raycdc.state.opaque import LogNotes


class RowNumbers:
    """Renumbers rows of the log and of the catch-up stream; see the module's docstring.

    Owned by the reader's thread.
    """

    def __init__(self) -> None:
        #: The number after all rows of the log so far.
        self._next = 0
        #: The offsets that are added to the row numbers of the log and of the catch-up stream. The second offset is
        #: chosen at the stream's first row in an epoch.
        self._log = 0
        self._catch_up_number: int | None = None
        #: The number after the open epoch's rows of the catch-up stream.
        self._behind = 0

    def reopen(self) -> None:
        """Note that a new reader of the log counts from 0."""
        self._log = self._next

    def begin_epoch(self) -> None:
        """Note that the previous rows are in an epoch that was cut."""
        self._catch_up_number, self._behind = None, 0

    def read_again(self) -> None:
        """Note that a new reader of the catch-up stream counts from 0; the open epoch may have rows of the previous
        one.
        """
        self._catch_up_number = None

    def of_log(self, unit: LogUnit) -> LogUnit:
        """Return a unit of the log with its rows renumbered."""
        unit = _moved(unit, self._log)
        self._next = max([self._next, *(_last_number(rows) + 1 for rows in rows_of(unit))])
        return unit

    def of_catch_up(self, unit: LogUnit) -> LogUnit:
        """Return a unit of the catch-up stream with its rows renumbered."""
        if self._catch_up_number is None:
            firsts = [int(rows.batch.column("_seq")[0].as_py()) for rows in rows_of(unit)]
            if not firsts:
                return unit
            self._catch_up_number = max(self._next, self._behind) - min(firsts)
        unit = _moved(unit, self._catch_up_number)
        self._behind = max([self._behind, *(_last_number(rows) + 1 for rows in rows_of(unit))])
        return unit


def _last_number(rows: LogRows) -> int:
    return int(rows.batch.column("_seq")[-1].as_py())


def _moved(unit: LogUnit, shift: int) -> LogUnit:
    if not shift:
        return unit
    match unit:
        case SchemaChange(truncations=rows):
            return replace(unit, truncations=tuple(_numbered(part, shift) for part in rows))
        case TransactionPart(rows=rows) | LogTransactions(rows=rows):
            return replace(unit, rows=tuple(_numbered(part, shift) for part in rows))
        case LogProgress():
            return unit
        case _:
            assert_never(unit)


def _numbered(rows: LogRows, shift: int) -> LogRows:
    index = rows.batch.schema.get_field_index("_seq")
    numbers = pc.add(rows.batch.column(index), pa.scalar(shift, pa.int64()))
    return replace(rows, batch=rows.batch.set_column(index, rows.batch.schema.field(index), numbers))


class CatchUpFallback(Enum):
    """The fate of tables that cannot continue from their position."""

    #: If the stream fails, the tables can be resumed by command, unless an epoch already has a part of a transaction
    #: after their position.
    RESUME = (
        "Let it go on with: raycdc tables resume CONFIG {0}; or read it anew with: raycdc tables resnapshot CONFIG {0}"
    )
    RESNAPSHOT = "Read it anew with: raycdc tables resnapshot CONFIG {0}"
    BY_ITSELF = "It is read anew, as pipeline.on_log_lost says."


class CatchUp:
    """The catch-up of paused tables; see the module's docstring.

    Owned by the log reader, whose position in the log is `log`.
    """

    def __init__(
        self,
        log: LogCursor,
        table_states: TableStates,
        changes: TableChanges,
        epoch: OpenEpoch,
        *,
        is_complete: Callable[[LogNotes, int], bool],
    ) -> None:
        """Begin with the tables of the state that are `CatchingUp`.

        For `is_complete` see `raycdc.source.snapshot.reader.incremental_reader.ReaderDialect`.
        """
        self._log, self._table_states, self._changes, self._epoch = log, table_states, changes, epoch
        self._is_complete = is_complete
        self.numbers = RowNumbers()
        #: The tables that are read now; all of them have the same position.
        self.tables: frozenset[TableId] = frozenset()
        self._cursor: LogCursor | None = None
        #: The unit that was not passed on yet. It waits for a cut, or for the log.
        self._unit: LogUnit | None = None
        #: True if tables were removed from the catch-up stream while it still reads them.
        self._is_left = False
        #: True if the next epoch begins with the waiting unit.
        self.awaits_cut = False
        #: True if both streams are to be opened again after the next cut.
        self.reopens = False
        self.begin()

    def __repr__(self) -> str:
        return f"CatchUp({sorted(map(str, self.tables))}, {self._cursor}, waits={self._waits})"

    @property
    def is_over(self) -> bool:
        """Return True if there is no table to catch up."""
        return not self.tables and not any(
            isinstance(self._table_states[table], CatchingUp) for table in self._table_states
        )

    @property
    def in_transaction(self) -> bool:
        return self._cursor is not None and self._cursor.in_transaction

    @property
    def moved(self) -> bool:
        """Return True if the stream's position has changed since the last cut."""
        return self._cursor is not None and self._cursor.moved

    @property
    def wants_cut(self) -> bool:
        """Return True if both streams wait for the epoch to be cut."""
        return self.awaits_cut or self.reopens

    @property
    def ready(self) -> bool:
        """Return True if a unit may be passed in, while the log is between two transactions."""
        if not self.tables or self.wants_cut or self._waits:
            return False
        return self.in_transaction or not self._epoch.is_full

    @property
    def _waits(self) -> bool:
        """Return True if a unit waits for the log, or for the next epoch."""
        return self._unit is not None

    def log_is_complete(self, up_to: int) -> bool:
        """Return True if the log has nothing pending up to the ordinal `up_to`."""
        return self._is_complete(self._log.notes, up_to)

    def begin(self) -> None:
        """Choose the tables with the earliest position to be read next."""
        states = [
            (table, state) for table in self._table_states if isinstance(state := self._table_states[table], CatchingUp)
        ]
        self._unit = None
        self.awaits_cut = self.reopens = False
        if not states:
            self.tables, self._cursor = frozenset(), None
            return
        _, first = min(states, key=lambda entry: entry[1].ordinal)
        position = first.position, first.ordinal, first.left.notes
        self.tables = frozenset(
            table for table, state in states if (state.position, state.ordinal, state.left.notes) == position
        )
        self._cursor = LogCursor(StreamState(first.position, first.ordinal, notes=first.left.notes))

    def splits(self, state: StreamState) -> tuple[StreamSplit, StreamSplit | None]:
        """Return the split of the log with `state`, and the split of the catch-up stream, if there is one."""
        documents = self._epoch.tables.documents
        log = StreamSplit(without_caught_up(state), documents)
        if self._cursor is None:
            return log, None
        followed = {}
        for table in self.tables:
            known = state.catching_up[table]
            if not known.dropped:
                followed[table] = followed_from(known)
        cursor = self._cursor
        everyone = {**state.followed, **state.parked, **state.catching_up}
        others = {t: asleep(one, cursor.position) for t, one in everyone.items() if t not in self.tables}
        beside = StreamState(cursor.position, cursor.ordinal, followed, others, state.changes, cursor.notes)
        schemas = {one.schema: documents[one.schema] for one in followed.values()}
        return log, StreamSplit(beside, schemas, is_catch_up=True)

    def on_unit(self, unit: LogUnit, *, now_s: float) -> None:
        """Pass one unit on, if it is before the log's position. Call this method only if `ready` is True and the log is
        between two transactions.
        """
        assert self._unit is None, f"{self} is given {unit}, and another one waits"
        if unit.end != NOWHERE:
            self._unit = unit
            self._pass_or_join(unit, now_s=now_s)

    def meet(self, *, now_s: float) -> None:
        """Join the tables if both streams are at the same position. Called when the log is between two transactions."""
        cursor = self._cursor
        if self._unit is not None and not self.wants_cut and not self._epoch.is_full:
            self._pass_or_join(self._unit, now_s=now_s)
        if cursor is None or not self.ready or cursor.in_transaction:
            return
        if cursor.ordinal == self._log.ordinal and self._may_join(cursor.notes):
            self._end_tables()

    def leave(self) -> None:
        """Remove tables that were parked or resnapshotted.

        If a transaction of the remaining tables is open, it is passed on to its end, because no epoch can be sealed
        inside a transaction.
        """
        staying = frozenset(table for table in self.tables if isinstance(self._table_states[table], CatchingUp))
        self._is_left = self._is_left or staying != self.tables
        self.tables = staying
        if self._is_left and not (staying and self.in_transaction):
            self.seal()
            self._stop()

    def give_up(self, reason: str, way_out: CatchUpFallback, *, now_s: float) -> None:
        """Park the tables at their position, because the catch-up stream cannot go on. `reason` is a sentence."""
        cursor = self._cursor
        assert cursor is not None, "nothing is read"
        if way_out is CatchUpFallback.RESUME and self.in_transaction:
            way_out = CatchUpFallback.RESNAPSHOT
        if not self.in_transaction:
            self.seal()
        for table in sorted(self.tables, key=str):
            text = f"{table} cannot go on from where it was left: {reason} {way_out.value.format(table)}"
            parking = ParkingCause(
                text,
                cursor.position,
                cursor.event_ms or 0,
                again=way_out is CatchUpFallback.BY_ITSELF,
                goes_on=way_out is CatchUpFallback.RESUME,
            )
            if parking.again:
                self._changes.leave(table, parking)
            else:
                self._changes.apply(ParkTableUpdate(table, parking), now_s=now_s)
        self._stop()

    def read_again(self) -> None:
        """Record that only the catch-up stream is opened again, at its position. Called only if it is between two
        transactions and no unit waits.
        """
        assert not self.in_transaction, f"{self} is inside a transaction"
        assert not self._waits, f"{self} was looked at, and a unit waits"
        self.numbers.read_again()

    def seal(self) -> None:
        """Store the stream's position in the states of its tables, because the epoch is about to be cut."""
        cursor = self._cursor
        if cursor is None or not cursor.moved:
            return
        for table in self.tables:
            self._table_states.caught_up_to(table, cursor.position, cursor.ordinal, cursor.notes)

    def after_cut(self, *, now_s: float) -> None:
        """Begin a new epoch with the statement that waited for it, if there is one."""
        self.numbers.begin_epoch()
        if self._cursor is not None:
            self._cursor.moved = False
        if self.awaits_cut:
            self.awaits_cut = False
            self._pass_on(now_s=now_s)

    def _pass_or_join(self, unit: LogUnit, *, now_s: float) -> None:
        """Pass on the waiting `unit`, or join the tables, or let the unit wait."""
        if unit.end <= self._log.ordinal:
            self._pass_on(now_s=now_s)
            self.meet(now_s=now_s)
        elif self._may_join(unit.log_position.notes):
            self._join(unit, now_s=now_s)

    def _may_join(self, notes: LogNotes | None) -> bool:
        """Return True if nothing is pending before the log's position, nor in `notes` of the catch-up stream."""
        cursor = self._cursor
        assert cursor is not None, "nothing is read"
        before = self.log_is_complete(NOWHERE) and self._is_complete(cursor.notes, NOWHERE)
        return before and (notes is None or self._is_complete(notes, NOWHERE))

    def _pass_on(self, *, now_s: float) -> None:
        cursor = self._cursor
        assert cursor is not None, "nothing is read"
        assert self._unit is not None, "nothing waits"
        unit = narrowed(self._unit, self.tables.__contains__)
        if isinstance(unit, SchemaChange) and (self._epoch.changed or self._log.moved or cursor.moved):
            # The next epoch begins with this change.
            self.awaits_cut = True
            return
        self._unit = None
        self._take(unit, now_s=now_s)
        cursor.move(unit.log_position, in_transaction=in_transaction(unit))
        self.leave()
        reach("while_catching_up")

    def _take(self, unit: LogUnit, *, now_s: float) -> None:
        unit = self.numbers.of_catch_up(unit)
        match unit:
            case SchemaChange(_, updates, truncations):
                for update in updates:
                    self._changes.apply(_as_probe(update), now_s=now_s)
                for rows in truncations:
                    self._epoch.collect(rows)
            case TransactionPart(_, rows):
                for part in rows:
                    self._epoch.collect(part)
            case LogTransactions(_, rows, parked, missing):
                if missing:
                    self._epoch.note_missing(missing)
                for part in rows:
                    self._epoch.collect(part)
                for update in parked:
                    self._changes.apply(_as_probe(update), now_s=now_s)
            case LogProgress():
                return
            case _:
                assert_never(unit)

    def _join(self, unit: LogUnit, *, now_s: float) -> None:
        """Join the tables: `unit` has content after the log's position."""
        known = narrowed(unit, self.tables.__contains__)
        if isinstance(known, TransactionPart | LogTransactions):
            self._take(_up_to(known, self._log.ordinal), now_s=now_s)
        self._end_tables()

    def _end_tables(self) -> None:
        """End the catch-up of all tables, because everything before the log's position was delivered."""
        for table in self.tables:
            match self._table_states[table]:
                case CatchingUp(dropped=False):
                    self._table_states.joined(table)
                    self._epoch.touch(table)
                case CatchingUp():
                    why = ended(table, "table", had_rows=True)
                    self._changes.leave(table, ParkingCause(why, self._log.position, 0, phase=ParkedPhase.ENDED))
                case _:
                    pass  # Parked by a row of this unit that does not fit.
        self._stop()
        reach("after_join")

    def _stop(self) -> None:
        """Pass nothing more on, here or in the log, until both streams are opened again."""
        self._unit = None
        self._is_left = self.awaits_cut = False
        self.tables = frozenset(table for table in self.tables if isinstance(self._table_states[table], CatchingUp))
        self._epoch.changed = True
        self.reopens = True
        if self._cursor is not None:
            self._cursor.in_transaction = False


def without_caught_up(state: StreamState) -> StreamState:
    """Return the state for the reader of the log, in which tables of the catch-up stream are paused."""
    sleeping = {table: asleep(one, one.position) for table, one in state.catching_up.items()}
    return replace(state, parked={**state.parked, **sleeping}, catching_up={}) if sleeping else state


def _as_probe(update: SchemaUpdate) -> SchemaUpdate:
    """Return a table's end as a request to probe it, because the log may have skipped a newer table of its name."""
    if isinstance(update, ParkTableUpdate) and update.parking.phase is ParkedPhase.ENDED:
        end = update.parking
        return replace(update, parking=ParkingCause(end.reason, end.position, end.ts_ms, again=True))
    return update


def _up_to(unit: TransactionPart | LogTransactions, ordinal: int) -> LogUnit:
    """Return the part of the unit up to the ordinal in the log."""
    masks = [part.ordinals <= ordinal for part in unit.rows]
    rows = tuple(kept for part, mask in zip(unit.rows, masks, strict=True) if (kept := take(part, mask)) is not None)
    if isinstance(unit, TransactionPart):
        return replace(unit, rows=rows)
    if not unit.missing:
        return replace(unit, rows=rows)
    reported = zip(unit.missing, np.concatenate(masks), strict=True)
    return replace(unit, rows=rows, missing=tuple(row for row, kept in reported if kept))
