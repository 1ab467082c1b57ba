"""A reading of the log of a `SimDatabase`: units of one or a few transactions, or parts of one."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping

import numpy as np

from raycdc.errors import SourceError, SourceUnavailableError
from raycdc.model import RowKind, TableId, TableSchema
from raycdc.source.snapshot.log.log_rows import LogRows
from raycdc.source.snapshot.log.log_unit import (
    LogPosition,
    LogProgress,
    LogTransactions,
    LogUnit,
    SchemaChange,
    TransactionPart,
)
from raycdc.source.split import StreamSplit
from raycdc.source.tables.resnapshots import StatementPosition
from raycdc.state.opaque import Position
from tests.support.simulation.database import (
    Row,
    SimDatabase,
    SimPosition,
    SimRowChange,
    TableKind,
    Transaction,
    changelog_batch,
)
from tests.support.simulation.history import SimHistory

#: Looks for more of the log that a server may take to find a place by its transactions.
SEARCHES_MAX = 60
#: The errors of a reading beside the log.
LOST = (SourceUnavailableError, SourceUnavailableError, SourceError)


def is_so(probability: float, chance: random.Random) -> bool:
    """Whether something happens; nothing is drawn for what cannot, so that histories without it stay as they are."""
    return probability > 0 and chance.random() < probability


class SimLogSource:
    """`LogSource`: units of one or a few transactions, or parts of one; numbers rows from 0."""

    #: It has no wall clock.
    seen_ms: int | None = None

    def __init__(
        self, database: SimDatabase, split: StreamSplit, chance: random.Random, over: Mapping[TableId, int]
    ) -> None:
        state = split.state
        place = SimPosition.of(state.position)
        ordinal, self._server = place.ordinal, place.server
        #: At another server than before the place is found anew, and said even if nothing follows.
        self._says_place = state.ordinal != database.counted(ordinal, self._server)
        #: Times nothing comes yet while a new server looks for the place in its log.
        self._searches = chance.randrange(SEARCHES_MAX) if self._says_place else 0
        self.history = SimHistory(database, split, over, self._truncation)
        self._database = database
        self._random = chance
        self._next = next((n for n, t in enumerate(database.log) if t.ordinal > ordinal), None)
        self._started_at = ordinal
        self._boundary = ordinal
        self._seq = 0
        self._rest: deque[list[SimRowChange]] = deque()
        self.closed = False
        #: What is read of the log beside this.
        self.beside: SimLogSource | None = None

    @property
    def is_beside(self) -> bool:
        return self.history.is_beside

    @property
    def cut_off(self) -> bool:
        return bool(self._server != self._database.server)

    def poll(self) -> LogUnit | None:
        if self.cut_off:
            return None
        if self.is_beside and is_so(self._database.breaks, self._random):
            # One in three is nothing that passes by itself.
            raise self._random.choice(LOST)("The connection was lost.")
        if self._searches:
            self._searches -= 1
            return None
        is_overtaken = self.beside is not None and not self.beside.closed
        if is_overtaken and is_so(self._database.overtaken, self._random):
            return None
        # Parked tables are looked after now and then only: a real log is decoded some megabytes at a time.
        parked = any(True for _ in self.history.parked)
        busy = bool(self._rest) or (parked and self._random.random() < self._database.log_silence)
        updates, rows = ((), ()) if busy else self.history.begin_again(self._place(self._boundary))
        if updates:
            return SchemaChange(self._log_place(self._boundary, None), updates, rows)
        if self._next is None:
            index = next((n for n, t in enumerate(self._database.log) if t.ordinal > self._started_at), None)
            self._next = index
        if self._next is None or self._next >= len(self._database.log):
            return self._said_place() if self._says_place else None
        if self._random.random() < self._database.log_silence:
            return None
        self._says_place = False
        if self._rest:
            return self._part(self._database.log[self._next])
        transaction = self._database.log[self._next]
        if transaction.ddl is not None:
            return self._schema_change(transaction)
        if is_so(self._database.stretches, self._random):
            return self._stretch([])
        if len(transaction.changes) > 1 and self._random.random() < 0.7:
            cut = self._random.randrange(1, len(transaction.changes))
            self._rest.extend([transaction.changes[:cut], transaction.changes[cut:]])
            return self._part(transaction)
        return self._together(self._random.choice([1, 1, 2, 3]))

    def close(self) -> None:
        self.closed = True

    def _truncation(self, table: TableId, schema: TableSchema, position: str | None) -> LogRows:
        empty: Row = dict.fromkeys(column.name for column in schema.columns)
        batch = changelog_batch(schema, [(RowKind.TRUNCATE, empty, self._seq, position)])
        self._seq += 1
        return LogRows(table, batch, np.array([self._counted(self._boundary)], np.int64))

    def _said_place(self) -> LogUnit | None:
        if self._random.random() < self._database.log_silence:
            return None
        self._says_place = False
        return self._unit([], self._boundary, None, in_transaction=False)

    def _at(self, ordinal: int) -> Position:
        return SimPosition(ordinal, self._server).sealed()

    def _counted(self, ordinal: int) -> int:
        return self._database.counted(ordinal, self._server)

    def _part(self, transaction: Transaction) -> LogUnit:
        changes = self._rest.popleft()
        if self._rest:
            return self._unit(changes, self._boundary, transaction.event_ms, in_transaction=True)
        # Logs of tables that are read as of one place give the rest of an open transaction alone (`snapshot.as_of`).
        alone = any(table.kind is TableKind.AS_OF for table in self._database.shapes.values())
        if not alone and is_so(self._database.stretches, self._random):
            self._pass(transaction)
            return self._stretch(changes)
        return self._after(transaction, changes)

    def _pass(self, transaction: Transaction) -> None:
        """The transaction is the last one that is whole."""
        assert self._next is not None
        self._next += 1
        self._boundary = transaction.ordinal

    def _stretch(self, changes: list[SimRowChange]) -> LogUnit:
        """The `changes`, whole transactions behind them, and the beginning of another one, as one read of a server may
        have it: its end is anywhere.
        """
        assert self._next is not None
        for _ in range(self._random.choice([0, 1, 2, 4, 8])):
            following = self._database.log[self._next : self._next + 1]
            if not following or following[0].ddl is not None:
                break
            self._pass(following[0])
            changes = changes + following[0].changes
        event_ms = self._database.log[max(0, self._next - 1)].event_ms
        following = self._database.log[self._next : self._next + 1]
        if following and following[0].ddl is None and self._random.random() < 0.7:
            self._rest.extend(self._cut(following[0].changes))
            return self._unit(changes + self._rest.popleft(), self._boundary, event_ms, in_transaction=True)
        return self._unit(changes, self._boundary, event_ms, in_transaction=False)

    def _cut(self, changes: list[SimRowChange]) -> list[list[SimRowChange]]:
        """In two parts, of which one may be nothing."""
        cut = self._random.randrange(len(changes) + 1)
        return [changes[:cut], changes[cut:]]

    def _together(self, count: int) -> LogUnit:
        assert self._next is not None
        run = []
        for transaction in self._database.log[self._next : self._next + count]:
            if transaction.ddl is not None:
                break
            run.append(transaction)
        self._next += len(run) - 1
        return self._after(run[-1], [change for t in run for change in t.changes])

    def _after(self, transaction: Transaction, changes: list[SimRowChange]) -> LogUnit:
        self._pass(transaction)
        return self._unit(changes, transaction.ordinal, transaction.event_ms, in_transaction=False)

    def _unit(
        self, changes: list[SimRowChange], ordinal: int, event_ms: int | None, *, in_transaction: bool
    ) -> TransactionPart | LogTransactions:
        by_table: dict[TableId, list[tuple[SimRowChange, int]]] = {}
        for change in changes:
            if not self.history.fits(change, self._at(self._boundary)):
                continue
            by_table.setdefault(change.table, []).append((change, self._seq))
            self._seq += 2
        rows = []
        for table, entries in by_table.items():
            images: list[tuple[RowKind, Row, int, str | None]] = []
            ordinals = []
            for change, seq in entries:
                for n, (kind, row) in enumerate(change.images()):
                    images.append((kind, row, seq + n, str(change.ordinal)))
                    ordinals.append(self._counted(change.ordinal))
            rows.append(LogRows(table, changelog_batch(entries[0][0].schema, images), np.array(ordinals, np.int64)))
        place = self._log_place(ordinal, event_ms)
        size = sum(r.batch.nbytes for r in rows)
        if in_transaction:
            return TransactionPart(place, tuple(rows), size)
        return LogTransactions(place, tuple(rows), self.history.take_mismatches(), bytes=size)

    def _schema_change(self, transaction: Transaction) -> LogUnit:
        assert self._next is not None
        if transaction.with_rows:
            self._rest.extend(self._cut(transaction.changes))
        else:
            self._pass(transaction)
        updates, rows = self.history.statement(transaction, self._place(self._boundary))
        place = self._log_place(self._boundary, transaction.event_ms)
        if not updates:
            return TransactionPart(place) if transaction.with_rows else LogProgress(place)
        at = self._counted(self._boundary + 1) if transaction.with_rows else None
        return SchemaChange(place, updates, rows, in_transaction=transaction.with_rows, at=at)

    def _place(self, ordinal: int) -> StatementPosition:
        return StatementPosition(self._at(ordinal), ordinal, 0)

    def _log_place(self, ordinal: int, event_ms: int | None) -> LogPosition:
        notes = self.history.take_notes()
        return LogPosition(self._at(ordinal), self._counted(ordinal), event_ms, event_ms, notes)
