"""A change stream as `LogUnit`s: events of one cluster time are one transaction, passed on when it is whole.

| part | decides |
|---|---|
| `ReopenedStream` | when the stream is opened anew, and with which documents |
| `WholeTransactions` | which events are whole transactions |
| `FollowedCollections` | the effect of events about collections |
| `ChangeRows`, `DocumentReads` | the rows of all other events, and the documents that these came without |

The reader makes units of all that, each with its place. The log's ordinal is the cluster time. Where a transaction is
longer than an answer, its parts are units that leave it open.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

import numpy as np

from raycdc.checkpoint.missing import MissingRow
from raycdc.checkpoint.opaque import LogNotes
from raycdc.connectors.mongodb.bson import code_loops as codes
from raycdc.connectors.mongodb.stream.change_rows import ChangeRows
from raycdc.connectors.mongodb.stream.document_reads import DocumentReads
from raycdc.connectors.mongodb.stream.events import Batch, Scanner
from raycdc.connectors.mongodb.stream.followed import FollowedCollections
from raycdc.connectors.mongodb.stream.reopened_stream import ReopenedStream
from raycdc.connectors.mongodb.stream.resume_token import ResumeToken
from raycdc.connectors.mongodb.stream.token import seconds_of
from raycdc.connectors.mongodb.stream.whole_transactions import Part, Reached, Whole, WholeTransactions
from raycdc.source.new_beginnings import Place, TableChange
from raycdc.source.snapshot.log_rows import LogRows
from raycdc.source.snapshot.log_unit import (
    LogPlace,
    LogUnit,
    Progress,
    SchemaChange,
    TableAltered,
    TableParked,
    TransactionPart,
    Transactions,
)


class ChangeStreamReader:
    """`raycdc.source.snapshot.reading.BlockingLog` of a stream split; see the module's docstring."""

    def __init__(
        self,
        stream: ReopenedStream,
        *,
        transactions: WholeTransactions,
        scanner: Scanner,
        followed: FollowedCollections,
        document_reads: DocumentReads,
        rows: ChangeRows,
    ) -> None:
        self._stream = stream
        self._transactions = transactions
        self._scanner = scanner
        self._followed = followed
        self._document_reads = document_reads
        self._rows = rows
        #: The place up to which everything was passed on.
        self._position = stream.start
        self._told = self._ordinal
        #: Events about collections of a transaction whose end has not come.
        self._late: list[tuple[Batch, int]] = []
        #: The last unit left a transaction open.
        self._open = False
        self._units: list[LogUnit] = []
        self._closed = threading.Event()

    def __repr__(self) -> str:
        return f"ChangeStreamReader({seconds_of(self._position.cluster_time)}, {self._followed})"

    def fetch(self) -> LogUnit | None:
        """The next unit; None when the server had nothing new for a moment."""
        if not self._units and not self._closed.is_set():
            self._begin_again()
        if not self._units and not self._closed.is_set():
            self._read()
        if not self._units and not self._open and (self._told < self._ordinal or self._document_reads.changed):
            # Whoever waits for a change to be settled hears of that where no row does.
            notes = _notes(self._document_reads)
            self._units.append(Progress(LogPlace(self._position.sealed(), self._ordinal, notes=notes)))
        if not self._units:
            return None
        unit = self._units.pop(0)
        self._told = unit.place.ordinal
        return unit

    @property
    def _ordinal(self) -> int:
        """All up to it was read, and no change before it is absent any more, so that nobody ends too early."""
        return min(self._position.cluster_time, self._document_reads.settled_to)

    def wake_up(self) -> None:
        self._closed.set()

    def close(self) -> None:
        self._stream.close()

    # -- reading

    def _read(self) -> None:
        answer = self._stream.next(self._transactions.read_to(self._position))
        if answer is None:
            return
        ready: list[Whole | Part | Reached] = []
        if answer.data:
            events = self._scanner.scan(answer.data)
            ready = self._transactions.take(events, answer.token, after=self._position.cluster_time)
        elif answer.token is not None:
            ready = self._transactions.idle(answer.token, answer.server_time)
        for one in ready:
            match one:
                case Whole():
                    self._pass(one)
                case Part():
                    self._pass_part(one)
                case Reached():
                    self._move(one)
                case _:
                    assert_never(one)

    def _move(self, reached: Reached) -> None:
        before = self._position.cluster_time
        moved_to = max(reached.cluster_time, before)
        self._position = replace(self._position, token=reached.token, cluster_time=moved_to)
        if moved_to != before:
            notes = _notes(self._document_reads)
            place = LogPlace(self._position.sealed(), self._ordinal, fetched_ms=_now_ms(), notes=notes)
            self._units.append(Progress(place))

    # -- passing on

    def _pass_part(self, part: Part) -> None:
        self._late += _abouts(part.batch)
        rows = self._rows_of(part.batch, rank=part.rank)
        if rows:
            self._open = True
            place = LogPlace(self._position.sealed(), self._ordinal, fetched_ms=_now_ms())
            self._units.append(TransactionPart(place, rows, _bytes(rows)))

    def _pass(self, whole: Whole) -> None:
        """Whole transactions: up to each with events about collections, which are passed before its rows.

        So the place behind such a transaction is passed last: whoever goes on from the one before hears all of it
        again, and a collection that is gone, or waits, is not changed by hearing that twice.
        """
        batch, rank = whole.batch, whole.rank
        first = 0
        while first < len(batch):
            stop = self._next_stop(batch, first)
            part = batch.part(first, stop)
            self._pass_up_to(part, whole.token if stop == len(batch) else batch.token(stop - 1), rank=rank)
            first, rank = stop, 0

    def _pass_up_to(self, part: Batch, behind: ResumeToken, *, rank: int) -> None:
        """Events whose place `behind` is the next one between two transactions."""
        moment, event_ms = int(part.times[-1]), _event_ms(part)
        place = Place(self._position.sealed(), moment, event_ms)
        parked: list[TableParked] = []
        abouts, self._late = [*self._late, *_abouts(part)], []
        for batch, number in abouts:
            changes = self._followed.change(batch.collection_event(number), place, whole=not self._open)
            if self._open:
                parked += [change.update for change in changes if isinstance(change.update, TableParked)]
            else:
                self._changed(changes, event_ms)
        rows = self._rows_of(part, rank=rank)
        self._position = replace(self._position, token=behind, cluster_time=moment)
        self._append(rows, event_ms=event_ms, parked=parked)

    def _next_stop(self, batch: Batch, first: int) -> int:
        """Up to where events are passed in one go: an open transaction, or one with events about collections, alone."""
        times = batch.times
        about = np.flatnonzero(batch.events[first:, codes.E_KIND] == codes.OTHER)
        if self._open or (about.size and times[first + about[0]] == times[first]):
            return int(np.searchsorted(times, times[first], side="right"))
        return int(np.searchsorted(times, times[first + about[0]])) if about.size else len(batch)

    def _append(
        self,
        rows: tuple[LogRows, ...],
        *,
        event_ms: int | None,
        parked: Sequence[TableParked] = (),
        missing: tuple[MissingRow, ...] = (),
    ) -> None:
        """Pass on rows with which no transaction is open any more."""
        self._open = False
        new = self._rows.take_parked(self._place(event_ms or _now_ms()))
        notes = _notes(self._document_reads)
        place = LogPlace(self._position.sealed(), self._ordinal, event_ms, _now_ms(), notes)
        self._units.append(Transactions(place, rows, (*parked, *new), missing, _bytes(rows)))

    def _changed(self, changes: Sequence[TableChange], event_ms: int | None) -> None:
        """Pass on changes of collections, where the stream is now."""
        for change in changes:
            update = change.update
            if not isinstance(update, TableAltered):
                self._document_reads.forget(update.table)
            place = LogPlace(self._position.sealed(), self._ordinal, event_ms, _now_ms())
            self._units.append(SchemaChange(place, (update,), change.rows))

    def _begin_again(self) -> None:
        """Between two transactions: collections begin again whose look holds here."""
        if not self._open:
            self._widen()
            self._changed(self._followed.begun_again(self._place(_now_ms())), None)
            self._look_again()

    def _look_again(self) -> None:
        """Between two transactions: changes whose document was not found, and nothing says why."""
        at = self._position.cluster_time
        due = self._document_reads.unexplained(at, self._followed.writer)
        if not due and self._document_reads.full:
            idle = self._transactions.whole_when_idle
            with self._stream.ahead(self._position) as stream:
                self._document_reads.read_ahead(
                    stream, self._scanner.scan, whole_when_idle=idle, stopped=self._closed.is_set
                )
        for settled in self._document_reads.again(due, at=at):
            rows = self._rows_of(self._scanner.scan(settled.events), rank=0)
            missing = {table: iter(told) for table, told in settled.missing.items()}
            told = [next(missing[part.table]) for part in rows for _ in range(part.batch.num_rows)] if missing else []
            self._document_reads.settled(settled)
            self._append(rows, event_ms=None, missing=tuple(told))

    def _rows_of(self, batch: Batch, *, rank: int) -> tuple[LogRows, ...]:
        """Rows of changes. Columns that these show to be wanting are passed on before them, or behind a transaction
        that is open already.
        """
        if self._open:
            return self._rows.of(batch, rank=rank, widen=False)
        self._widen()
        rows = self._rows.of(batch, rank=rank, widen=True)
        self._widen()
        return rows

    def _widen(self) -> None:
        """Between two transactions: collections have the columns from here on that were wanting."""
        self._changed(self._followed.widenings(self._place(_now_ms())), None)

    def _place(self, ts_ms: int) -> Place:
        return Place(self._position.sealed(), self._position.cluster_time, ts_ms)


def _abouts(batch: Batch) -> list[tuple[Batch, int]]:
    """The events about collections, each as a batch and its number there."""
    return [(batch, int(n)) for n in np.flatnonzero(batch.events[:, codes.E_KIND] == codes.OTHER)]


def _bytes(rows: Sequence[LogRows]) -> int:
    return sum(part.batch.nbytes for part in rows)


def _event_ms(batch: Batch) -> int:
    wall = int(batch.events[-1, codes.E_WALL])
    return wall if wall >= 0 else seconds_of(int(batch.times[-1]))[0] * 1000


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _notes(reads: DocumentReads) -> LogNotes | None:
    """Documents that are still to be read; None where they are as they were when last asked for."""
    state = reads.state()
    return None if state is None else LogNotes.from_json(state)
