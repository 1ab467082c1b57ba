"""Reads each transaction of the log to its end before any of its rows is emitted.

A transaction in the log may roll back a part of itself, or all of it. Servers log a transaction that they roll back if
it changed something that cannot be rolled back: a non-transactional or a temporary table. The effect of each event,
from MySQL's sql/binlog.cc and MariaDB's sql/log.cc:

| in the log | rows of the transaction | the transaction |
|---|---|---|
| GTID; BEGIN; XA START | | begins |
| row events | count, unless rolled back | begins, if none is open |
| SAVEPOINT a | | an older savepoint of this name is removed, if no trigger or function set the new one |
| ROLLBACK TO a | rows since SAVEPOINT a are void | savepoints younger than a are removed |
| RELEASE SAVEPOINT a (no server logs it) | | goes on |
| COMMIT; XID | count | ends |
| ROLLBACK | all are void | ends, and its GTID counts as executed |
| XA END | | goes on |
| XA PREPARE | wait for XA COMMIT (`xa_transactions`) | ends |
| XA COMMIT, XA ROLLBACK of a prepared one | rows of the prepared transaction count, or are void | ends |
| another statement, after a GTID that announces one | | ends |
| another statement inside | | goes on |
| a file of a server that has started | all are void: the server died while it wrote them | is dropped |

Rows of non-transactional tables are never rolled back here: servers write them as a separate transaction, ahead of the
open one (``binlog_commit_flush_stmt_cache``). Statements inside a rolled-back transaction stay in effect, and are
always handled.

*Doubt*: it is unknown which rows were rolled back if ROLLBACK TO may refer to several savepoints or to no known one, or
if a statement about the transaction is not understood. If MariaDB has cut rows into parts (PARTIAL_ROW_DATA), the rows
themselves are unknown. ROLLBACK TO may refer to several savepoints if only some servers treat two names as equal
(`transaction_statements`), or if a trigger or function sets a savepoint of the same name. The savepoint of a trigger or
function has its own level, and ends with the calling statement; in the log it comes after a table map, or rows, of an
unfinished statement. No row of a transaction in doubt is emitted, `WholeEvents.doubt` has the reason, and its tables
are parked. One case is invisible in the log: a function sets a savepoint, under a name in use, before its statement
writes anything.

*Bound*: the events of a transaction are held in memory, up to `HELD_BYTES_MAX`. A larger one is read to its end and
dropped; then `reads_again` is set, and the caller must pass in the transaction's events again from its beginning.
Nothing of a transaction is written to disk, because it may have values that must be masked.

`WholeLog` reads a log from the server transaction by transaction, and opens the stream again if a transaction is too
large to be held. It is called by `MySqlLogReader` in the fetcher's thread; `wake_up` by any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from raycdc.connectors.mysql.binlog import transaction_loops as ahead
from raycdc.connectors.mysql.binlog.event_loops import (
    Q_DOUBT,
    Q_NOTHING,
    Q_OTHER,
    Q_ROLLBACK,
    Q_ROLLBACK_TO,
    Q_SAVEPOINT,
)
from raycdc.connectors.mysql.binlog.event_types import EVENT_TYPES, PARTIAL_ROW_DATA, event_name
from raycdc.connectors.mysql.binlog.events import Bytes, as_array, parse_format_description, parse_query
from raycdc.connectors.mysql.binlog.index_loops import COMPRESSED_FIRST, HEADER_BYTES, ROTATE, TX_NONE
from raycdc.connectors.mysql.binlog.positions.binlog_cursor import BinlogCursor
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.transaction_statements import (
    TransactionStatement,
    is_same_name,
    may_be_same_name,
    rules_of,
    transaction_statement,
)
from raycdc.connectors.mysql.binlog.wire.expand import mariadb_plain_event
from raycdc.connectors.mysql.binlog.wire.stream import BinlogStream
from raycdc.connectors.mysql.ddl.parse.tokens import shown
from raycdc.errors import DataError

#: The most bytes of a transaction that are held until its end is known: many times the size of one read, so that only
#: bulk loads are read twice.
HELD_BYTES_MAX = 64 << 20
#: The most bytes of a transaction that are emitted at a time, unless one event is larger.
PIECE_BYTES = 4 << 20
_ALL = 1 << 62

_Events = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class WholeEvents:
    """Complete events of transactions whose ends are known. If `taken_back`, their rows are void.

    `doubt` is the reason why it is unknown which rows are void; then `taken_back` is set for all.
    """

    data: _Events
    taken_back: bool = False
    doubt: str = ""


@dataclass(slots=True)
class OpenTransaction:
    """An unfinished transaction: its savepoints, and the ranges of event numbers that were rolled back.

    Savepoints are searched only when something is rolled back to one, which is rare: `unseen` are the events not yet
    searched, after `seen` others.
    """

    #: The savepoints that ROLLBACK TO may still name, each with the number of its event.
    savepoints: list[tuple[str, int]] = field(default_factory=list)
    #: The rolled-back ranges of event numbers (first, after the last), ascending and disjoint.
    taken_back: list[tuple[int, int]] = field(default_factory=list)
    #: The reason why it is unknown what was rolled back; empty if it is known.
    doubt: str = ""
    unseen: list[_Events] = field(default_factory=list)
    seen: int = 0
    #: True if, at the last searched event, a statement has begun to write rows and has not ended.
    in_statement: bool = False

    @property
    def is_plain(self) -> bool:
        """Return True if nothing seen so far rolls back a row, or may do so."""
        return not self.taken_back and not self.doubt

    def set_savepoint(self, name: str, number: int) -> None:
        """Add the savepoint that the event of this number sets."""
        if not self.in_statement:
            self.savepoints = [one for one in self.savepoints if not is_same_name(one[0], name)]
        self.savepoints.append((name, number))

    def roll_back(self, number: int) -> None:
        """Roll back all rows, because of the ROLLBACK in the event of this number."""
        self._take_back(0, number)

    def roll_back_to(self, name: str, number: int) -> None:
        """Roll back rows, because of the ROLLBACK TO in the event of this number."""
        indexes = [index for index, (known, _) in enumerate(self.savepoints) if may_be_same_name(known, name)]
        if len(indexes) != 1:
            how_many = f"{len(indexes)} savepoints that this may mean" if indexes else "no such savepoint"
            self.doubt = self.doubt or f"the log has ROLLBACK TO {name!r} in a transaction that has {how_many}"
            return
        self._take_back(self.savepoints[indexes[0]][1], number)
        del self.savepoints[indexes[0] + 1 :]

    def range_at(self, number: int) -> tuple[bool, int]:
        """Return True if the event of this number was rolled back, and the next number with another answer."""
        for first, end in self.taken_back:
            if number < first:
                return False, first
            if number < end:
                return True, end
        return False, _ALL

    def _take_back(self, first: int, end: int) -> None:
        # Two ranges are nested or disjoint, because rolled-back events have no savepoints any more.
        self.taken_back = [one for one in self.taken_back if one[0] < first]
        self.taken_back.append((first, end))


class BinlogTransactionAssembler:
    """The assembler of one log's transactions; see the module's docstring. It begins between transactions."""

    def __init__(self, *, held_bytes_max: int = HELD_BYTES_MAX, piece_bytes: int = PIECE_BYTES) -> None:
        """Begin between transactions.

        `piece_bytes` is the most bytes of a held transaction that are emitted at a time.
        """
        #: True once a transaction that is too large has ended: the next input must be another dump from its beginning.
        self.reads_again = False
        self._held_bytes_max = held_bytes_max
        self._piece_bytes = piece_bytes
        self._state = np.zeros(ahead.L_SIZE, np.int64)
        self._state[ahead.L_MEANING] = -1
        self._open = OpenTransaction()
        #: The events of the open transaction from earlier calls.
        self._held: list[_Events] = []
        self._held_bytes = 0
        self._too_large = False
        #: The last file name among the dropped events of a transaction that is too large.
        self._rotation: _Events | None = None
        #: The number of events emitted of the present transaction; and the number of events left of a transaction that
        #: is read again.
        self._given = self._left = 0

    def __repr__(self) -> str:
        return f"WholeTransactions(held={self._held_bytes}, too_large={self._too_large}, left={self._left})"

    @property
    def in_transaction(self) -> bool:
        """Return True if a transaction has begun and has not ended."""
        return int(self._state[ahead.L_TX]) != TX_NONE

    def restart(self) -> None:
        """Expect another dump next, from the end of the last emitted transaction."""
        self.reads_again = False

    def of(self, events: Bytes) -> Iterator[WholeEvents]:
        """Yield the events whose transaction's end is known, now that `events` have come. Consume it before the next
        call.

        The memory of `events` is used until then. Raises `CorruptLogError` without a position.
        """
        data = as_array(events)
        start = at = (yield from self._again(data)) if self._left else 0
        # The offsets after the last format event, and after the last searched statement; `start` if there is none.
        formatted = seen = start
        while True:
            self._state[ahead.L_STOPS] = int(bool(self._held or self._too_large or not self._open.is_plain))
            code, at, boundary = ahead.scan_ahead(data, at, len(data), self._state)
            boundary = boundary if boundary >= 0 else formatted
            if boundary > start:
                # Ordinary transactions, one after the other, possibly followed by the beginning of the next one.
                yield WholeEvents(data[start:boundary])
                start = seen = boundary
                self._open = OpenTransaction()
            match code:
                case ahead.AHEAD_BOUNDARY:
                    yield from self._ended(data[start:at])
                    if self.reads_again:
                        return
                    start = seen = at
                case ahead.AHEAD_STATEMENT:
                    seen = self._statement(data, at, seen)
                case ahead.AHEAD_FORMAT:
                    length = int.from_bytes(data[at + 9 : at + 13].tobytes(), "little")
                    if (before := self._format(data[at : at + length].tobytes(), data[start:at])) is not None:
                        yield from before
                        start = seen = at
                    at += length
                    formatted = at
                case ahead.AHEAD_DAMAGE:
                    # The decoder reports the damage.
                    yield from self._as_they_are(data[start:])
                    return
                case _:
                    self._hold(data[start:], unseen=len(data) - seen)
                    return

    def _statement(self, data: _Events, at: int, seen: int) -> int:
        """Tell the compiled walk what the statement means, and record what it rolls back.

        Everything before `seen` has been searched for savepoints. Returns the new value.
        """
        transaction, number = self._open, int(self._state[ahead.L_EVENTS])
        if data[at + 4] == PARTIAL_ROW_DATA:
            transaction.doubt = (
                transaction.doubt or f"{event_name(PARTIAL_ROW_DATA)}: {EVENT_TYPES[PARTIAL_ROW_DATA].why}"
            )
            self._state[ahead.L_MEANING] = Q_NOTHING
            return seen
        statement, text = self._statement_at(data, at)
        self._state[ahead.L_MEANING] = Q_OTHER if statement.meaning == Q_DOUBT else statement.meaning
        if statement.meaning == Q_DOUBT:
            transaction.doubt = transaction.doubt or f"a statement about the transaction is not understood: {text}"
        if statement.meaning == Q_ROLLBACK:
            transaction.roll_back(number)
        if statement.meaning != Q_ROLLBACK_TO:
            return seen
        transaction.unseen.append(data[seen:at])
        self._see()
        transaction.roll_back_to(statement.savepoint, number)
        return at

    def _statement_at(self, data: _Events, at: int) -> tuple[TransactionStatement, str]:
        """Return the statement's meaning, and its text for people."""
        length = int.from_bytes(data[at + 9 : at + 13].tobytes(), "little")
        event = data[at : at + length - int(self._state[ahead.L_CHECKSUM])].tobytes()
        try:
            if event[4] == COMPRESSED_FIRST:
                event = mariadb_plain_event(event[:HEADER_BYTES], event[HEADER_BYTES:])
            query = parse_query(event[HEADER_BYTES:])
            return transaction_statement(query.text, rules_of(query.session)), shown(query.statement)
        except DataError:
            # The decoder will stop at this statement with the reason.
            return TransactionStatement(Q_OTHER), ""

    def _see(self) -> None:
        """Search the unsearched events for savepoints."""
        transaction, checksum = self._open, int(self._state[ahead.L_CHECKSUM])
        for piece in transaction.unseen:
            at = 0
            while at < len(piece):
                found, count, begun = ahead.next_savepoint(
                    piece, at, len(piece), checksum, int(transaction.in_statement)
                )
                at, transaction.in_statement = int(found), bool(begun)
                transaction.seen += int(count)
                if at < len(piece):
                    statement, _ = self._statement_at(piece, at)
                    if statement.meaning == Q_SAVEPOINT:
                        transaction.set_savepoint(statement.savepoint, transaction.seen)
                    transaction.seen += 1
                    at += int.from_bytes(piece[at + 9 : at + 13].tobytes(), "little")
        transaction.unseen = []

    def _format(self, event: bytes, before: _Events) -> list[WholeEvents] | None:
        """Return the events to emit now that a format event came after held events; None if there are none."""
        description = parse_format_description(event)
        self._state[ahead.L_CHECKSUM] = description.checksum_bytes
        if not self.in_transaction:
            return None
        if not description.started:
            # The decoder reports a file that ends in the middle of a transaction.
            return list(self._as_they_are(before))
        # The server died while it wrote the transaction. Only the name of the new file is needed.
        rotation = _last_rotation([*self._held, before])
        rotation = self._rotation if rotation is None else rotation
        self._reset()
        return [] if rotation is None else [WholeEvents(rotation)]

    def _ended(self, rest: _Events) -> Iterator[WholeEvents]:
        """Yield the transaction that ends with `rest`. If it was too large to hold, request another dump instead."""
        if self._too_large:
            self.reads_again, self._left = True, int(self._state[ahead.L_EVENTS])
            taken_back = self._open
            self._reset()
            self._open = taken_back
            return
        pieces = [*self._held, rest]
        if self._held_bytes + len(rest) <= self._piece_bytes:
            pieces = [np.concatenate(pieces)] if self._held else pieces
        for piece in pieces:
            yield from self._cut(piece)
        self._reset()

    def _again(self, data: _Events) -> Generator[WholeEvents, None, int]:
        """Yield the events of a transaction that was too large, from another dump.

        Returns the end of its last event received so far.
        """
        at = 0
        if self._given == 0:
            at = int(ahead.first_of_a_transaction(data, 0, len(data)))
            if at > 0:
                yield WholeEvents(data[:at])
        end, count = ahead.some_events(data, at, len(data), _ALL, self._left) if at < len(data) else (at, 0)
        if end > at:
            yield from self._cut(data[at:end])
        self._left -= int(count)
        if self._left == 0:
            self._reset()
        return int(end)

    def _cut(self, piece: _Events) -> Iterator[WholeEvents]:
        """Yield the events of one transaction in pieces: each is either rolled back, or not."""
        at = 0
        while at < len(piece):
            taken_back, end = self._open.range_at(self._given)
            to, count = ahead.some_events(piece, at, len(piece), self._piece_bytes, end - self._given)
            doubt = self._open.doubt
            yield WholeEvents(piece[at:to], taken_back or bool(doubt), doubt)
            self._given += int(count)
            at = int(to)

    def _as_they_are(self, rest: _Events) -> Iterator[WholeEvents]:
        for piece in (*self._held, rest):
            if len(piece):
                yield WholeEvents(piece)
        self._reset()

    def _hold(self, data: _Events, *, unseen: int) -> None:
        """Hold the beginning or a further part of a transaction.

        Its last `unseen` bytes were not searched for savepoints.
        """
        if not len(data):
            return
        piece = data.copy()
        self._open.unseen.append(piece[len(piece) - unseen :])
        self._held_bytes += len(data)
        if self._too_large or self._held_bytes > self._held_bytes_max:
            self._too_large = True
            rotation = _last_rotation([*self._held, piece])
            self._rotation = self._rotation if rotation is None else rotation
            self._held.clear()
            self._see()
        else:
            self._held.append(piece)

    def _reset(self) -> None:
        """Forget the transaction that has ended."""
        self._state[ahead.L_TX] = TX_NONE
        self._state[ahead.L_EVENTS] = 0
        self._open = OpenTransaction()
        self._held, self._held_bytes, self._too_large, self._rotation = [], 0, False, None
        self._given = 0


def _last_rotation(pieces: list[_Events]) -> _Events | None:
    """Return the last ROTATE among the events."""
    found = None
    for piece in pieces:
        at = 0
        while at < len(piece):
            length = int.from_bytes(piece[at + 9 : at + 13].tobytes(), "little")
            if piece[at + 4] == ROTATE:
                found = piece[at : at + length].copy()
            at += length
    return found


class WholeLog:
    """The log of one server; see the module's docstring. `cursor` is at the end of the emitted events.

    Opens the stream immediately. `bytes_max`: the most bytes that are read, or emitted of a transaction, at a time.
    """

    def __init__(
        self,
        open_stream: Callable[[BinlogOffset], BinlogStream],
        start: BinlogOffset,
        cursor: BinlogCursor,
        *,
        bytes_max: int = PIECE_BYTES,
    ) -> None:
        self._open_stream = open_stream
        self._cursor = cursor
        self._bytes_max = bytes_max
        self._transactions = BinlogTransactionAssembler(piece_bytes=bytes_max)
        #: The parts of the last read that can be decoded.
        self._known: Iterator[WholeEvents] = iter(())
        #: True after a call of `wake_up`.
        self.is_woken = False
        #: The connection that is being read.
        self.stream = open_stream(start)

    def next_known(self) -> WholeEvents | None:
        """Return the next events, among those already read, of transactions whose ends are known."""
        with self._cursor.locating_errors():
            whole = next(self._known, None)
        if whole is None and self._transactions.reads_again:
            self.stream.close()
            self.stream = self._open_stream(self._cursor.position)
            self._transactions.restart()
            if self.is_woken:
                self.stream.close()
        return whole

    def read(self, *, timeout_s: float) -> bool:
        """Read more events. Returns False if the server reported that its log is idle, or after `wake_up`."""
        data = self.stream.read(bytes_max=self._bytes_max, timeout_s=timeout_s)
        if len(data) == 0:
            return self.stream.is_silent and not self.stream.closed
        self._known = self._transactions.of(data)
        return True

    def wake_up(self) -> None:
        """End a waiting `read`, from any thread."""
        self.is_woken = True  # This comes first, because the stream may be replaced in a moment.
        self.stream.close()
