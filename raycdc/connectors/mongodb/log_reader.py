"""A change stream as `LogUnit`s: the events of one cluster time are a transaction, which is passed on when it is
complete.

| part | decides |
|---|---|
| `ReopenedStream` | when the stream is opened again, and with which documents |
| `MongoDbTransactionAssembler` | which events are complete transactions |
| `FollowedCollections` | the effect of events about collections |
| `ChangeRows`, `DocumentReads` | the rows of all other events, and their missing documents |

The reader turns the results of these parts into units with positions. The log's ordinal is the cluster time. If a
transaction is larger than an answer, its parts are units that leave it open.

`QuietLog` is the log of a snapshot without a change stream: its only events are resnapshots, on request, or because
rows of an epoch were lost. A collection to be resnapshotted (`raycdc.source.tables.parking`) is probed when the log is
opened: there is no position to wait for, so its resnapshot begins immediately, with the columns that the configuration
gives it now.

`ChangeRows` makes the rows of changes, and parks collections whose changes cannot be followed. An update comes with the
document at the time of the server's answer, which may be later than the event, or, if every collection keeps images,
with the documents before and after it. If the event has no document, the document is read by its key, as of the event
or later (`raycdc.connectors.mongodb.stream.document_reads`). A document that does not fit its columns parks its
collection; other collections go on.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import assert_never

import numpy as np
import numpy.typing as npt

from raycdc.connectors.mongodb.bson import code_loops as codes
from raycdc.connectors.mongodb.large_documents import LargeDocuments
from raycdc.connectors.mongodb.layout import COLLECTION, ID, CollectionLayout
from raycdc.connectors.mongodb.snapshot.chunk_reader import NO_LOG
from raycdc.connectors.mongodb.stream.document_reads import DocumentReads
from raycdc.connectors.mongodb.stream.events import (
    ClusterTimeReached,
    EventBatch,
    MongoDbTransactionAssembler,
    PartialTransaction,
    Scanner,
    Whole,
)
from raycdc.connectors.mongodb.stream.followed import FollowedCollections
from raycdc.connectors.mongodb.stream.reopened_stream import ReopenedStream
from raycdc.connectors.mongodb.stream.resume_token import NoLogPosition, ResumeToken
from raycdc.connectors.mongodb.stream.token import seconds_of
from raycdc.errors import DataError
from raycdc.model import TableId
from raycdc.source.snapshot.log.log_rows import LogRows
from raycdc.source.snapshot.log.log_unit import (
    AlterTableUpdate,
    LogPosition,
    LogProgress,
    LogTransactions,
    LogUnit,
    ParkTableUpdate,
    SchemaChange,
    TransactionPart,
)
from raycdc.source.tables.parked_tables import ended
from raycdc.source.tables.resnapshots import StatementPosition, TableChange, begin, unread
from raycdc.source.tables.table_life import ParkedPhase, ParkingCause
from raycdc.state.missing import MissingRow
from raycdc.state.opaque import LogNotes

Ints = npt.NDArray[np.int64]

_NO_IMAGES = (
    'a change of {0} came without the documents before and after it, which source.changelog = "full" was begun with: '
    "its images were switched off or have expired, or it is too large to come with them. Switch them on, and have it "
    "read again: raycdc tables resnapshot"
)


class ChangeRows:
    """The maker of one stream's rows; see the module's docstring. One thread."""

    def __init__(
        self,
        followed: FollowedCollections,
        document_reads: DocumentReads,
        large: LargeDocuments,
        *,
        needs_before_images: bool = False,
    ) -> None:
        """Take the followed collections and the document reads.

        If `needs_before_images`, a change without the documents before and after it parks its collection.
        """
        self._followed = followed
        self._document_reads = document_reads
        self._large = large
        self._needs_before_images = needs_before_images
        #: The collections that appeared in an unfinished transaction, and the collections that cannot be followed
        #: because of it, with the reason.
        self._new: dict[TableId, None] = {}
        self._unfit: dict[TableId, str] = {}

    def of(self, batch: EventBatch, *, rank: int, widen: bool) -> tuple[LogRows, ...]:
        """Return the rows of followed collections.

        `rank` is the number of earlier events with the cluster time of the first event. `widen` is True if new columns
        for these changes can be announced before their rows.
        """
        kinds, named = batch.events[:, codes.E_KIND], batch.events[:, codes.E_NAMESPACE]
        first = self._followed.numbers.take(2 * len(batch))
        numbers = first + 2 * np.arange(len(batch), dtype=np.int64)
        ranks = 2 * _ranks(batch.times, rank)
        rows: list[LogRows] = []
        for number in np.unique(named[(kinds != codes.OTHER) & (named >= 0)]):
            table = batch.names[int(number)]
            if table is None:
                continue
            writer = self._followed.writer(table)
            if writer is None:
                if self._followed.is_new(table):
                    self._new[table] = None
                continue
            own = (named == number) & (kinds != codes.OTHER)
            data, events = self._document_reads.filled(batch, np.flatnonzero(own), writer)
            self._large.count_at(table, data, events[:, codes.E_AFTER])
            if self._needs_before_images and _lacks_images(batch.events[own]):
                self._unfit.setdefault(table, _NO_IMAGES.format(table))
            if table in self._unfit:
                continue
            try:
                rows += self._written(table, data, events, numbers[own], ranks[own], widen=widen)
            except DataError as mismatch:
                # The rows of these events are dropped, because a resnapshot reads the whole collection again.
                self._unfit[table] = str(mismatch)
        return tuple(rows)

    def take_parked(self, position: StatementPosition) -> list[ParkTableUpdate]:
        """Return the collections to park because of their changes, each once.

        Called between two transactions, at `position`.
        """
        parked = [self._followed.first_seen(table, position) for table in self._new if self._followed.is_new(table)]
        parked += [self._followed.unfit(table, why, position) for table, why in self._unfit.items()]
        self._new.clear()
        self._unfit.clear()
        return parked

    def _written(
        self, table: TableId, data: bytes, events: Ints, numbers: Ints, ranks: Ints, *, widen: bool
    ) -> list[LogRows]:
        """Return the rows of `events`.

        If the layout gets more columns, the rows are made again with it, if `widen` permits it.
        """
        while True:
            writer = self._followed.writer(table)
            assert writer is not None
            rows = list(writer.rows(data, events, numbers=numbers, ranks=ranks))
            if not self._followed.widen(table, data, at_once=widen):
                return rows


def _lacks_images(events: Ints) -> bool:
    """Return True if a document before or after one of these changes is missing."""
    kinds = events[:, codes.E_KIND]
    return bool(
        ((kinds != codes.INSERT) & (events[:, codes.E_BEFORE] == 0)).any()
        or ((kinds != codes.DELETE) & (events[:, codes.E_AFTER] == 0)).any()
    )


def _ranks(times: Ints, first: int) -> Ints:
    """Return the number of each event among the events of its cluster time.

    The numbers of the first cluster time begin at `first`.
    """
    if not len(times):
        return np.zeros(0, np.int64)
    begins = np.searchsorted(times, times)
    ranks: Ints = np.arange(len(times)) - begins + np.where(times == times[0], first, 0)
    return ranks


class ChangeStreamReader:
    """The log of a change stream, a `raycdc.source.snapshot.reader.reading.BlockingLog`; see the module's docstring."""

    def __init__(
        self,
        stream: ReopenedStream,
        *,
        transactions: MongoDbTransactionAssembler,
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
        #: The position up to which everything was passed on.
        self._position = stream.start
        self._reported = self._ordinal
        #: Events about collections in a transaction whose end has not come.
        self._late: list[tuple[EventBatch, int]] = []
        #: True if the last unit left a transaction open.
        self._open = False
        self._units: list[LogUnit] = []
        self._closed = threading.Event()

    def __repr__(self) -> str:
        return f"ChangeStreamReader({seconds_of(self._position.cluster_time)}, {self._followed})"

    def fetch(self) -> LogUnit | None:
        """Return the next unit; None if the server had nothing new within a short wait."""
        if not self._units and not self._closed.is_set():
            self._resnapshot_parked()
        if not self._units and not self._closed.is_set():
            self._read()
        if not self._units and not self._open and (self._reported < self._ordinal or self._document_reads.changed):
            # A change may have been settled without a row; the new state must be reported, too.
            notes = _notes(self._document_reads)
            self._units.append(LogProgress(LogPosition(self._position.sealed(), self._ordinal, notes=notes)))
        if not self._units:
            return None
        unit = self._units.pop(0)
        self._reported = unit.log_position.ordinal
        return unit

    @property
    def _ordinal(self) -> int:
        """Return the cluster time up to which everything was read and no change is absent.

        A later ordinal would end a run before the absent changes are settled.
        """
        return min(self._position.cluster_time, self._document_reads.resolved_to)

    def wake_up(self) -> None:
        self._closed.set()

    def close(self) -> None:
        self._stream.close()

    def _read(self) -> None:
        answer = self._stream.next(self._transactions.read_to(self._position))
        if answer is None:
            return
        ready: list[Whole | PartialTransaction | ClusterTimeReached] = []
        if answer.data:
            events = self._scanner.scan(answer.data)
            ready = self._transactions.take(events, answer.token, after=self._position.cluster_time)
        elif answer.token is not None:
            ready = self._transactions.idle(answer.token, answer.server_time)
        for one in ready:
            match one:
                case Whole():
                    self._pass(one)
                case PartialTransaction():
                    self._pass_part(one)
                case ClusterTimeReached():
                    self._move(one)
                case _:
                    assert_never(one)

    def _move(self, reached: ClusterTimeReached) -> None:
        before = self._position.cluster_time
        moved_to = max(reached.cluster_time, before)
        self._position = replace(self._position, token=reached.token, cluster_time=moved_to)
        if moved_to != before:
            notes = _notes(self._document_reads)
            position = LogPosition(self._position.sealed(), self._ordinal, fetched_ms=_now_ms(), notes=notes)
            self._units.append(LogProgress(position))

    def _pass_part(self, part: PartialTransaction) -> None:
        self._late += _abouts(part.batch)
        rows = self._rows_of(part.batch, rank=part.rank)
        if rows:
            self._open = True
            position = LogPosition(self._position.sealed(), self._ordinal, fetched_ms=_now_ms())
            self._units.append(TransactionPart(position, rows, _bytes(rows)))

    def _pass(self, whole: Whole) -> None:
        """Pass on complete transactions, and stop before and after each one with events about collections.

        The rows before such a transaction are passed on first. The position after the transaction is passed on last. If
        the log is read again from the previous position, all of the transaction comes again, which changes nothing for
        a collection that was dropped or parked.
        """
        batch, rank = whole.batch, whole.rank
        first = 0
        while first < len(batch):
            stop = self._next_stop(batch, first)
            part = batch.part(first, stop)
            self._pass_up_to(part, whole.token if stop == len(batch) else batch.token(stop - 1), rank=rank)
            first, rank = stop, 0

    def _pass_up_to(self, part: EventBatch, behind: ResumeToken, *, rank: int) -> None:
        """Pass on the events of `part`; `behind` is the next position between two transactions."""
        moment, event_ms = int(part.times[-1]), _event_ms(part)
        position = StatementPosition(self._position.sealed(), moment, event_ms)
        parked: list[ParkTableUpdate] = []
        abouts, self._late = [*self._late, *_abouts(part)], []
        for batch, number in abouts:
            changes = self._followed.change(batch.collection_event(number), position, whole=not self._open)
            if self._open:
                parked += [change.update for change in changes if isinstance(change.update, ParkTableUpdate)]
            else:
                self._changed(changes, event_ms)
        rows = self._rows_of(part, rank=rank)
        self._position = replace(self._position, token=behind, cluster_time=moment)
        self._append(rows, event_ms=event_ms, parked=parked)

    def _next_stop(self, batch: EventBatch, first: int) -> int:
        """Return the number of the event up to which events are passed on together.

        An open transaction, or one with events about collections, is passed on alone.
        """
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
        parked: Sequence[ParkTableUpdate] = (),
        missing: tuple[MissingRow, ...] = (),
    ) -> None:
        """Pass on rows that end between two transactions."""
        self._open = False
        new = self._rows.take_parked(self._as_statement_position(event_ms or _now_ms()))
        notes = _notes(self._document_reads)
        position = LogPosition(self._position.sealed(), self._ordinal, event_ms, _now_ms(), notes)
        self._units.append(LogTransactions(position, rows, (*parked, *new), missing, _bytes(rows)))

    def _changed(self, changes: Sequence[TableChange], event_ms: int | None) -> None:
        """Pass on changes of collections at the stream's present position."""
        for change in changes:
            update = change.update
            if not isinstance(update, AlterTableUpdate):
                self._document_reads.forget(update.table)
            position = LogPosition(self._position.sealed(), self._ordinal, event_ms, _now_ms())
            self._units.append(SchemaChange(position, (update,), change.rows))

    def _resnapshot_parked(self) -> None:
        """Pass on the resnapshots of collections whose probe holds at this position, if no transaction is open."""
        if not self._open:
            self._widen()
            self._changed(self._followed.take_probed(self._as_statement_position(_now_ms())), None)
            self._recheck_absent()

    def _recheck_absent(self) -> None:
        """Read documents of absent changes again, between two transactions, and pass on their changes."""
        at = self._position.cluster_time
        due = self._document_reads.unexplained(at, self._followed.writer)
        if not due and self._document_reads.full:
            idle = self._transactions.whole_when_idle
            with self._stream.ahead(self._position) as stream:
                self._document_reads.read_ahead(
                    stream, self._scanner.scan, whole_when_idle=idle, stopped=self._closed.is_set
                )
        for resolved in self._document_reads.again(due, at=at):
            rows = self._rows_of(self._scanner.scan(resolved.events), rank=0)
            missing = {table: iter(reported) for table, reported in resolved.missing.items()}
            reported = (
                [next(missing[part.table]) for part in rows for _ in range(part.batch.num_rows)] if missing else []
            )
            self._document_reads.resolved(resolved)
            self._append(rows, event_ms=None, missing=tuple(reported))

    def _rows_of(self, batch: EventBatch, *, rank: int) -> tuple[LogRows, ...]:
        """Return the rows of changes.

        New columns that they need are passed on before them, or after an open transaction.
        """
        if self._open:
            return self._rows.of(batch, rank=rank, widen=False)
        self._widen()
        rows = self._rows.of(batch, rank=rank, widen=True)
        self._widen()
        return rows

    def _widen(self) -> None:
        """Pass on the schema changes of collections that get more columns, between two transactions."""
        self._changed(self._followed.widenings(self._as_statement_position(_now_ms())), None)

    def _as_statement_position(self, ts_ms: int) -> StatementPosition:
        return StatementPosition(self._position.sealed(), self._position.cluster_time, ts_ms)


def _abouts(batch: EventBatch) -> list[tuple[EventBatch, int]]:
    """Return the events about collections, each as a batch and its number there."""
    return [(batch, int(n)) for n in np.flatnonzero(batch.events[:, codes.E_KIND] == codes.OTHER)]


def _bytes(rows: Sequence[LogRows]) -> int:
    return sum(part.batch.nbytes for part in rows)


def _event_ms(batch: EventBatch) -> int:
    wall = int(batch.events[-1, codes.E_WALL])
    return wall if wall >= 0 else seconds_of(int(batch.times[-1]))[0] * 1000


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _notes(reads: DocumentReads) -> LogNotes | None:
    """Return the absent changes as notes of the log; None if they are unchanged since the last call."""
    state = reads.state()
    return None if state is None else LogNotes.from_json(state)


#: The longest wait of a log without entries for its thread to end.
_IDLE_S = 1.0


class QuietLog:
    """The log of a snapshot without a change stream: it resnapshots the `wanted` collections, and then has no entries.

    `probe` returns a collection's layout, or None if it does not exist; it blocks, in the fetcher's thread. `wanted` is
    True for a collection of which a target may have rows.
    """

    def __init__(
        self,
        probe: Callable[[TableId], CollectionLayout | None],
        wanted: Mapping[TableId, bool],
        position: NoLogPosition,
    ) -> None:
        self._probe = probe
        self._wanted = wanted
        self._waiting = deque(wanted)
        self._position = position.sealed()
        self._rows = 0
        self._woken = threading.Event()

    def __repr__(self) -> str:
        return f"QuietLog({list(map(str, self._waiting))})"

    def fetch(self) -> LogUnit | None:
        if not self._waiting:
            self._woken.wait(_IDLE_S)
            return None
        table = self._waiting.popleft()
        layout = self._probe(table)
        position = StatementPosition(self._position, NO_LOG, time.time_ns() // 1_000_000)
        if layout is None:
            why = ended(table, COLLECTION, had_rows=self._wanted[table])
            parking = ParkingCause(why, self._position, position.ts_ms, phase=ParkedPhase.ENDED)
            return SchemaChange(LogPosition(self._position, NO_LOG), (ParkTableUpdate(table, parking),))
        change = begin(table, layout.version(), unread(ID), position, seq=self._rows)
        self._rows += 1
        return SchemaChange(LogPosition(self._position, NO_LOG), (change.update,), change.rows)

    def wake_up(self) -> None:
        self._woken.set()

    def close(self) -> None:
        """Do nothing: nothing is open."""
