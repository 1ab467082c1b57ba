"""A change stream as `LogUnit`s: events of one cluster time are one transaction, passed on when it is whole.

A transaction's events have its commit's cluster time, and so may those of several shards. The events of the last time
in an answer wait here, as bytes, until something shows that no more of them come:

| what follows | it is whole |
|---|---|
| an event of a later time | always |
| a token of a later time behind the answer | always |
| an answer without events | at a replica set, whose log has a transaction as a whole; never behind a ``mongos`` |

So what waits is one answer at most; where a transaction is longer, its parts are units that leave it open. The log's
ordinal is the cluster time. A token behind an answer without events (`postBatchResumeToken`) moves the position, so
that a quiet collection keeps its place; behind a ``mongos`` it says that all *before* its time was sent.

A document that does not fit its columns parks its collection; others go on.

An update comes with the document as the server has it when it answers, which may be later than the event, or, where
every collection keeps images, with the documents before and after it. Where neither is there the document is read
by its key, not before the event (`raycdc.connectors.mongodb.stream.document_reads`).

An event too large for any answer comes without its documents: the stream is opened lean for one answer, whose documents
are read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from pymongo.errors import PyMongoError

from raycdc.checkpoint.missing import MissingRow
from raycdc.connectors.mongodb.bson import code_loops as codes
from raycdc.connectors.mongodb.large import LargeDocuments
from raycdc.connectors.mongodb.stream.document_reads import DocumentReads, Stream
from raycdc.connectors.mongodb.stream.events import Batch, Scanner
from raycdc.connectors.mongodb.stream.followed import FollowedCollections
from raycdc.connectors.mongodb.stream.fragments import Fragments
from raycdc.connectors.mongodb.stream.position import StreamPosition
from raycdc.connectors.mongodb.stream.raw_stream import EventTooLargeError, RawBatch, StreamEndedError
from raycdc.connectors.mongodb.stream.resume_token import ResumeToken
from raycdc.connectors.mongodb.stream.token import seconds_of
from raycdc.errors import DataError, SourceError, SourceUnavailableError
from raycdc.model import TableId
from raycdc.source.new_beginnings import Place, TableChange
from raycdc.source.snapshot.hand_off import LogRows
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

_log = logging.getLogger(__name__)

#: Times a stream is opened anew without an answer in between, before the pipeline hears of it.
_REOPENED_MAX = 3


_NO_IMAGES = (
    'a change of {0} came without the documents before and after it, which source.changelog = "full" was begun with: '
    "its images were switched off or have expired, or it is too large to come with them. Switch them on, and have it "
    "read again: raycdc tables resnapshot"
)


class OpenStream(Protocol):
    """Opens a stream behind a place; a `lean` one has no documents in its events, and few events in an answer."""

    def __call__(self, position: StreamPosition, *, lean: bool) -> Stream: ...


@dataclass(slots=True)
class _Waiting:
    """Events of one cluster time that may have more; `rank` is how many of that time were passed on before."""

    batch: Batch
    token: ResumeToken
    rank: int


class ChangeStreamReader:
    """`raycdc.source.snapshot.reading.BlockingLog` of a stream split; see the module's docstring."""

    def __init__(
        self,
        *,
        open_stream: OpenStream,
        start: StreamPosition,
        followed: FollowedCollections,
        scanner: Scanner,
        document_reads: DocumentReads,
        large: LargeDocuments,
        whole_when_idle: bool,
        close: Callable[[], None],
        demands_images: bool = False,
    ) -> None:
        """`whole_when_idle`: an answer without events shows that all before it came whole. `close` is called last.
        `demands_images`: a collection is parked at a change without the documents before and after it.
        """
        self._demands_images = demands_images
        self._close = close
        self._open_stream = open_stream
        self._followed = followed
        self._scanner = scanner
        self._document_reads = document_reads
        self._large = large
        self._whole_when_idle = whole_when_idle
        #: The position up to which everything was passed on, from which the stream is opened anew; changes that wait
        #: are behind it.
        self._position = start
        self._read_to = start
        self._told = self._ordinal
        self._waiting: _Waiting | None = None
        self._fragments = Fragments()
        #: Events about collections, and collections first seen, of a transaction whose end has not come.
        self._late: list[tuple[Batch, int]] = []
        self._new: dict[TableId, None] = {}
        #: Collections with a document that does not fit, and why: parked at the end of the transaction.
        self._unfit: dict[TableId, str] = {}
        #: The last unit left a transaction open.
        self._open = False
        self._units: list[LogUnit] = []
        self._numbered = 0
        self._reopened = 0
        self._lean = False
        self._closed = threading.Event()
        self._stream: Stream | None = open_stream(start, lean=False)

    def __repr__(self) -> str:
        return f"ChangeStreamReader({seconds_of(self._position.cluster_time)}, {self._followed})"

    def fetch(self) -> LogUnit | None:
        """The next unit; None when the server had nothing new for a moment."""
        if not self._units and not self._closed.is_set():
            self._begin_again()
        if not self._units and not self._closed.is_set():
            self._read()
        if not self._units and not self._open and self._told < self._ordinal:
            state = self._document_reads.state()
            self._units.append(Progress(LogPlace(self._position.to_json(), self._ordinal, source_state=state)))
        if not self._units:
            return None
        unit = self._units.pop(0)
        self._told = unit.place.ordinal
        return unit

    @property
    def _ordinal(self) -> int:
        """All up to it was read, and what became of each change is known: so nobody ends before that."""
        return min(self._position.cluster_time, self._document_reads.settled_to)

    def wake_up(self) -> None:
        self._closed.set()

    def close(self) -> None:
        self._end_stream()
        self._close()

    # -- reading

    def _read(self) -> None:
        try:
            if self._stream is None:
                self._stream = self._open_stream(self._read_to, lean=self._lean)
            answer = self._stream.next()
        except StreamEndedError as ended:
            self._end_stream()
            self._reopened += 1
            if self._reopened > _REOPENED_MAX:
                raise SourceUnavailableError(str(ended)) from ended
            return
        except EventTooLargeError as refused:
            self._end_stream()
            if self._lean:
                raise SourceError(str(refused)) from refused
            self._lean = True
            _log.warning("%s The next documents are read by their keys.", refused)
            return
        self._reopened = 0
        read_to = self._read_to
        if answer.data:
            self._take(answer)
        elif answer.token is not None:
            self._idle(answer.token, answer.server_time)
        if answer.ended:
            # Invalidated, by a collection or a database that went: it goes on behind that.
            self._end_stream()
        if self._lean and self._read_to != read_to:
            # Whatever was too large may be over. Where it is not, the next lean answer is one further.
            self._lean = False
            self._end_stream()

    def _end_stream(self) -> None:
        stream, self._stream = self._stream, None
        self._fragments.forget()
        if stream is not None:
            # Its cursor may be gone already, and the server with it.
            with suppress(PyMongoError):
                stream.close()

    def _take(self, answer: RawBatch) -> None:
        batch = self._scanner.scan(self._fragments.whole(answer.data))
        if not len(batch):
            return
        last = len(batch) - 1
        times = batch.times
        begun = self._waiting.batch.times[-1] if self._waiting else self._position.cluster_time
        if times[0] < begun or (np.diff(times) < 0).any():
            raise DataError(
                f"The change stream goes back in time, from {seconds_of(int(max(begun, times.max())))} to "
                f"{seconds_of(int(times.min()))}: the server's log is not the one that was read before."
            )
        rank = 0
        if self._waiting is not None:
            goes_on = int(times[0]) == int(begun)
            rank = self._waiting.rank + len(self._waiting.batch) if goes_on else 0
            self._pass_waiting(whole=not goes_on)
        # A token behind a part of an event is no place to go on from.
        token = batch.token(last) if self._fragments or answer.token is None else answer.token
        ends_later = token.cluster_time > int(times[-1])
        cut = len(batch) if ends_later else int(np.searchsorted(times, times[-1]))
        if cut:
            self._pass(batch.part(0, cut), batch.token(cut - 1), rank=rank)
        if cut < len(batch):
            first_rank = rank if times[0] == times[-1] else 0
            self._waiting = _Waiting(batch.part(cut, len(batch)), batch.token(last), first_rank)
            self._read_to = replace(self._position, token=batch.token(last), cluster_time=int(times[-1]))
        else:
            self._move(token, token.cluster_time - 1)

    def _idle(self, token: ResumeToken, server_time: int) -> None:
        passed = token.cluster_time
        if self._fragments:
            # The rest of an event, of the time that waits, is still to come.
            return
        if self._waiting is not None and (self._whole_when_idle or passed > self._waiting.batch.times[-1]):
            self._pass_waiting(whole=True)
        if self._waiting is None:
            # Of a time that has not come nothing has passed, and no read could wait for it.
            self._move(token, passed if self._whole_when_idle and passed <= server_time else passed - 1)

    def _move(self, token: ResumeToken, passed: int) -> None:
        """All up to the cluster time `passed` came."""
        passed = max(passed, self._position.cluster_time)
        moved = passed != self._position.cluster_time
        self._position = self._read_to = replace(self._position, token=token, cluster_time=passed)
        if moved:
            state = self._document_reads.state()
            place = LogPlace(self._position.to_json(), self._ordinal, fetched_ms=_now_ms(), source_state=state)
            self._units.append(Progress(place))

    # -- passing on

    def _pass_waiting(self, *, whole: bool) -> None:
        waiting, self._waiting = self._waiting, None
        assert waiting is not None
        if whole:
            self._pass(waiting.batch, waiting.token, rank=waiting.rank)
            return
        self._late += self._abouts(waiting.batch)
        rows, known_bytes = self._rows(waiting.batch, rank=waiting.rank)
        if rows:
            self._append(rows, known_bytes, event_ms=None, open_=True)

    def _pass(self, batch: Batch, token: ResumeToken, *, rank: int) -> None:
        """Whole transactions: up to each with events about collections, which are passed before its rows.

        So the place behind such a transaction is passed last: whoever goes on from the one before hears all of it
        again, and a collection that is gone, or waits, is not changed by hearing that twice.
        """
        first = 0
        while first < len(batch):
            stop = self._next_stop(batch, first)
            part = batch.part(first, stop)
            behind = token if stop == len(batch) else batch.token(stop - 1)
            moment, event_ms = int(part.times[-1]), _event_ms(part)
            abouts, self._late = [*self._late, *self._abouts(part)], []
            place = Place(self._position.to_json(), moment, event_ms)
            parked: list[TableParked] = []
            for of, number in abouts:
                changes = self._followed.change(
                    of.collection_event(number), place, seq=self._numbered, whole=not self._open
                )
                if self._open:
                    parked += [change.update for change in changes if isinstance(change.update, TableParked)]
                else:
                    self._changed(changes, event_ms)
            rows, known_bytes = self._rows(part, rank=rank)
            self._position = self._read_to = replace(self._position, token=behind, cluster_time=moment)
            self._append(rows, known_bytes, event_ms=event_ms, parked=parked)
            first, rank = stop, 0

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
        known_bytes: int,
        *,
        event_ms: int | None,
        parked: Sequence[TableParked] = (),
        open_: bool = False,
        missing: tuple[MissingRow, ...] = (),
    ) -> None:
        self._open = open_
        new: list[TableParked] = []
        if not open_:
            place = self._place(event_ms or _now_ms())
            new = [self._followed.first_seen(table, place) for table in self._new if self._followed.is_new(table)]
            new += [self._followed.unfit(table, why, place) for table, why in self._unfit.items()]
            self._new.clear()
            self._unfit.clear()
        state = None if open_ else self._document_reads.state()
        at = LogPlace(self._position.to_json(), self._ordinal, event_ms, _now_ms(), state)
        if open_:
            self._units.append(TransactionPart(at, rows, known_bytes))
        else:
            self._units.append(Transactions(at, rows, (*parked, *new), missing, known_bytes))

    def _abouts(self, batch: Batch) -> list[tuple[Batch, int]]:
        return [(batch, int(n)) for n in np.flatnonzero(batch.events[:, codes.E_KIND] == codes.OTHER)]

    def _changed(self, changes: Sequence[TableChange], event_ms: int | None) -> None:
        """Pass on what changed, where the stream is now."""
        for change in changes:
            self._numbered += len(change.rows)
            update = change.update
            if not isinstance(update, TableAltered):
                self._document_reads.forget(update.table)
            place = LogPlace(self._position.to_json(), self._ordinal, event_ms, _now_ms())
            self._units.append(SchemaChange(place, (update,), change.rows))

    def _begin_again(self) -> None:
        """Between two transactions: collections begin again whose look holds here."""
        if not self._open:
            self._widen()
            self._changed(self._followed.begun_again(self._place(_now_ms()), seq=self._numbered), None)
            self._look_again()

    def _look_again(self) -> None:
        """Between two transactions: changes whose document was not found, and nothing says why."""
        at = self._position.cluster_time
        due = self._document_reads.unexplained(at, self._followed.writer)
        if not due and self._document_reads.full:
            stream = self._open_stream(self._position, lean=True)
            # Where it breaks it is read again, as the stream itself is.
            with closing(stream), suppress(StreamEndedError):
                self._document_reads.read_ahead(
                    stream, self._scanner.scan, whole_when_idle=self._whole_when_idle, stopped=self._closed.is_set
                )
        for settled in self._document_reads.again(due, at=at):
            rows, known_bytes = self._rows(self._scanner.scan(settled.events), rank=0)
            missing = {table: iter(told) for table, told in settled.missing.items()}
            told = [next(missing[part.table]) for part in rows for _ in range(part.batch.num_rows)] if missing else []
            self._document_reads.settled(settled)
            self._append(rows, known_bytes, event_ms=None, missing=tuple(told))

    def _widen(self) -> None:
        """Between two transactions: collections have the columns from here on that were wanting."""
        self._changed(self._followed.widenings(self._place(_now_ms()), seq=self._numbered), None)

    def _place(self, ts_ms: int) -> Place:
        return Place(self._position.to_json(), self._position.cluster_time, ts_ms)

    # -- rows

    def _rows(self, batch: Batch, *, rank: int) -> tuple[tuple[LogRows, ...], int]:
        """Rows of the changes of followed collections, and about how many bytes they have.

        Columns that these show to be wanting are passed on before them, or behind a transaction that is open already.
        """
        if not self._open:
            self._widen()
        kinds, named = batch.events[:, codes.E_KIND], batch.events[:, codes.E_NAMESPACE]
        numbers = self._numbered + 2 * np.arange(len(batch), dtype=np.int64)
        self._numbered += 2 * len(batch)
        ranks = 2 * _ranks(batch.times, rank)
        found: list[LogRows] = []
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
            self._large.look_at(table, data, events[:, codes.E_AFTER])
            if self._demands_images and _lacks_images(batch.events[own]):
                self._unfit.setdefault(table, _NO_IMAGES.format(table))
            if table in self._unfit:
                continue
            try:
                found += self._written(table, data, events, numbers[own], ranks[own])
            except DataError as misfit:
                # Nothing of these events is passed on: all of the collection is read again when it begins again.
                self._unfit[table] = str(misfit)
        if not self._open:
            self._widen()
        return tuple(found), sum(rows.batch.nbytes for rows in found)

    def _written(
        self, table: TableId, data: bytes, events: np.ndarray, numbers: np.ndarray, ranks: np.ndarray
    ) -> list[LogRows]:
        """Rows of `events` with all the columns that they want, where those can be told before them."""
        while True:
            writer = self._followed.writer(table)
            assert writer is not None
            rows = list(writer.rows(data, events, numbers=numbers, ranks=ranks))
            if not self._followed.widen(table, data, at_once=not self._open):
                return rows


def _lacks_images(events: np.ndarray) -> bool:
    """Whether a document before or after one of these changes is not there."""
    kinds = events[:, codes.E_KIND]
    return bool(
        ((kinds != codes.INSERT) & (events[:, codes.E_BEFORE] == 0)).any()
        or ((kinds != codes.DELETE) & (events[:, codes.E_AFTER] == 0)).any()
    )


def _ranks(times: np.ndarray, first: int) -> np.ndarray:
    """The number of each event among those of its cluster time; those of the first time count from `first`."""
    if not len(times):
        return np.zeros(0, np.int64)
    begins = np.searchsorted(times, times)
    return np.arange(len(times)) - begins + np.where(times == times[0], first, 0)


def _event_ms(batch: Batch) -> int:
    wall = int(batch.events[-1, codes.E_WALL])
    return wall if wall >= 0 else seconds_of(int(batch.times[-1]))[0] * 1000


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
