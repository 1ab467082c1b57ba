"""Transactions of the log, looked at to their end before any of their rows is given out.

A transaction of the log may take back a part of itself, and in the end all of it. Servers write one that they roll back
where it changed something that cannot be rolled back: a table that is not transactional, a temporary table. What each
event does, after MySQL's sql/binlog.cc and MariaDB's sql/log.cc:

| in the log | rows of the transaction | the transaction |
|---|---|---|
| GTID; BEGIN; XA START | | begins |
| row events | count, if nothing takes them back | begins, if none has |
| SAVEPOINT a | | an older savepoint of this name is no more, if no trigger or function set the new one |
| ROLLBACK TO a | those since SAVEPOINT a never were | savepoints that are younger than a are no more |
| RELEASE SAVEPOINT a (no server logs it) | | goes on |
| COMMIT; XID | count | ends |
| ROLLBACK | none of them ever was | ends, and its GTID counts as executed |
| XA END | | goes on |
| XA PREPARE | wait for XA COMMIT (`xa_transactions`) | ends |
| XA COMMIT, XA ROLLBACK of a prepared one | of that one: count, never were | ends |
| another statement, behind a GTID that announces one | | ends |
| another statement inside | | goes on |
| a file of a server that has started | none of them ever was: the server died while it wrote them | is forgotten |

Changes of tables that are not transactional are never among the rows that are taken back: servers write their rows as a
transaction of their own, ahead of the one that was open (``binlog_commit_flush_stmt_cache``). What stays of a
transaction that was rolled back are its statements, and those are looked at wherever they stand.

*Doubt*: where ROLLBACK TO may mean several savepoints, or none that is known, and where a statement about the
transaction is not understood, nobody knows which rows were taken back; nor are rows known that MariaDB has cut into
parts (PARTIAL_ROW_DATA). Several savepoints are meant where only some servers take two names for one
(`transaction_statements`), or where a trigger or function sets one under the same name. That one has its own level and
is gone behind the statement that called it; in the log it stands behind a table map, or rows, of a statement that has
not ended. No row of such a transaction is given, and `WholeEvents.doubt` says why: its tables are parked. What
no log shows is a savepoint that a function sets before its statement writes anything, under a name that is in use.

*Bound*: a transaction is held as its events, up to `HELD_BYTES_MAX`. A larger one is looked at to its end and dropped;
then `reads_again` says so, and its events are to be given once more, from its beginning. Nothing of it touches a disk,
as values may be in it that are to be hidden.

A log that is read from the server, transaction by transaction.

Called by `MySqlLogReader` in the fetcher's thread; `wake_up` by any. It opens the stream again where a transaction is
too large to be held until its end is known.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from raycdc.connectors.mysql.binlog import transaction_loops as ahead
from raycdc.connectors.mysql.binlog.event_types import EVENT_TYPES, PARTIAL_ROW_DATA, event_name
from raycdc.connectors.mysql.binlog.events import Bytes, as_array, parse_format_description, parse_query
from raycdc.connectors.mysql.binlog.index_loops import COMPRESSED_FIRST, HEADER_BYTES, ROTATE, TX_NONE
from raycdc.connectors.mysql.binlog.positions.binlog_cursor import BinlogCursor
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.query_loops import (
    Q_DOUBT,
    Q_NOTHING,
    Q_OTHER,
    Q_ROLLBACK,
    Q_ROLLBACK_TO,
    Q_SAVEPOINT,
)
from raycdc.connectors.mysql.binlog.transaction_statements import (
    TransactionStatement,
    is_same_name,
    may_be_same_name,
    rules_of,
    transaction_statement,
)
from raycdc.connectors.mysql.binlog.wire.expand import mariadb_plain_event
from raycdc.connectors.mysql.binlog.wire.stream import BinlogStream
from raycdc.connectors.mysql.ddl.parse.statement_text import shown
from raycdc.errors import DataError

#: The events of a transaction that are held until its end is known: many times what is read at once, so that only bulk
#: loads are read twice.
HELD_BYTES_MAX = 64 << 20
#: Bytes of a transaction that are given out at once at most, where one event is not larger.
PIECE_BYTES = 4 << 20
_ALL = 1 << 62

_Events = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class WholeEvents:
    """Complete events whose transactions are known to their ends. `taken_back`: their rows never were.

    `doubt` is why nobody knows which of the rows were; they are `taken_back`, too.
    """

    data: _Events
    taken_back: bool = False
    doubt: str = ""


@dataclass(slots=True)
class OpenTransaction:
    """What is known of a transaction before its end: what was taken back, by numbers of events, and its savepoints.

    Savepoints are looked for where something is rolled back to one, as most never are: `unseen` are the events that
    were not looked at, behind `seen` others.
    """

    #: Savepoints that ROLLBACK TO may still name, each with the number of its event.
    savepoints: list[tuple[str, int]] = field(default_factory=list)
    #: (first, behind the last), ascending; they do not overlap.
    taken_back: list[tuple[int, int]] = field(default_factory=list)
    #: Why nobody knows what was taken back; empty where that is known.
    doubt: str = ""
    unseen: list[_Events] = field(default_factory=list)
    seen: int = 0
    #: At the last event that was looked at: a statement has begun to write rows, and has not ended.
    in_statement: bool = False

    @property
    def is_plain(self) -> bool:
        """True if nothing seen so far takes back a row, or leaves that in doubt."""
        return not self.taken_back and not self.doubt

    def set_savepoint(self, name: str, number: int) -> None:
        """SAVEPOINT is the event of this number."""
        if not self.in_statement:
            self.savepoints = [one for one in self.savepoints if not is_same_name(one[0], name)]
        self.savepoints.append((name, number))

    def roll_back(self, number: int) -> None:
        """ROLLBACK is the event of this number."""
        self._take_back(0, number)

    def roll_back_to(self, name: str, number: int) -> None:
        """ROLLBACK TO is the event of this number."""
        indexes = [index for index, (known, _) in enumerate(self.savepoints) if may_be_same_name(known, name)]
        if len(indexes) != 1:
            how_many = f"{len(indexes)} savepoints that this may mean" if indexes else "no such savepoint"
            self.doubt = self.doubt or f"the log has ROLLBACK TO {name!r} in a transaction that has {how_many}"
            return
        self._take_back(self.savepoints[indexes[0]][1], number)
        del self.savepoints[indexes[0] + 1 :]

    def range_at(self, number: int) -> tuple[bool, int]:
        """Whether the event of this number was taken back, and the number of the first for which that is otherwise."""
        for first, end in self.taken_back:
            if number < first:
                return False, first
            if number < end:
                return True, end
        return False, _ALL

    def _take_back(self, first: int, end: int) -> None:
        # Of two ranges one lies in the other, or behind it: what was taken back has no savepoints any more.
        self.taken_back = [one for one in self.taken_back if one[0] < first]
        self.taken_back.append((first, end))


class BinlogTransactionAssembler:
    """See the module's docstring. One for each log that is read; it begins between transactions."""

    def __init__(self, *, held_bytes_max: int = HELD_BYTES_MAX, piece_bytes: int = PIECE_BYTES) -> None:
        """`piece_bytes`: of a transaction that was held, at most so many are given out at once."""
        #: The transaction that is too large has ended: what comes next must be another dump, from its beginning.
        self.reads_again = False
        self._held_bytes_max = held_bytes_max
        self._piece_bytes = piece_bytes
        self._state = np.zeros(ahead.L_SIZE, np.int64)
        self._state[ahead.L_MEANING] = -1
        self._open = OpenTransaction()
        #: The beginning of the open transaction, from earlier calls.
        self._held: list[_Events] = []
        self._held_bytes = 0
        self._too_large = False
        #: Of one that is too large: the last name of a file among what was dropped.
        self._rotation: _Events | None = None
        #: Events that were given out of the transaction under way, and of one that is read again, those that are left.
        self._given = self._left = 0

    def __repr__(self) -> str:
        return f"WholeTransactions(held={self._held_bytes}, too_large={self._too_large}, left={self._left})"

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction has begun that has not ended."""
        return int(self._state[ahead.L_TX]) != TX_NONE

    def restart(self) -> None:
        """What comes next is another dump, from the end of the last transaction that was given."""
        self.reads_again = False

    def of(self, events: Bytes) -> Iterator[WholeEvents]:
        """The events that may be decoded now that these have come. Consume it before the next call.

        The memory of `events` is used until then. Raises `CorruptLogError` without place.
        """
        data = as_array(events)
        start = at = (yield from self._again(data)) if self._left else 0
        # Behind the last format, and behind the last statement that takes back: `start` where there is none.
        formatted = seen = start
        while True:
            self._state[ahead.L_STOPS] = int(bool(self._held or self._too_large or not self._open.is_plain))
            code, at, boundary = ahead.scan_ahead(data, at, len(data), self._state)
            boundary = boundary if boundary >= 0 else formatted
            if boundary > start:
                # Ordinary transactions, one behind the other, and maybe the beginning of the next one.
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
                    # The decoder says what it is.
                    yield from self._as_they_are(data[start:])
                    return
                case _:
                    self._hold(data[start:], unseen=len(data) - seen)
                    return

    def _statement(self, data: _Events, at: int, seen: int) -> int:
        """Tell the compiled walk what the statement means, and note what it takes back.

        Up to `seen` nothing is left to look at for savepoints; returns what is so now.
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
        """(what it means, its text for people)."""
        length = int.from_bytes(data[at + 9 : at + 13].tobytes(), "little")
        event = data[at : at + length - int(self._state[ahead.L_CHECKSUM])].tobytes()
        try:
            if event[4] == COMPRESSED_FIRST:
                event = mariadb_plain_event(event[:HEADER_BYTES], event[HEADER_BYTES:])
            query = parse_query(event[HEADER_BYTES:])
            return transaction_statement(query.text, rules_of(query.session)), shown(query.statement)
        except DataError:
            # The decoder stops at it, and says why.
            return TransactionStatement(Q_OTHER), ""

    def _see(self) -> None:
        """Look for savepoints where nobody has."""
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
        """A format description, behind events that were not given: what is to be given of them now. None: nothing."""
        description = parse_format_description(event)
        self._state[ahead.L_CHECKSUM] = description.checksum_bytes
        if not self.in_transaction:
            return None
        if not description.started:
            # The decoder says that a file ends in the middle of a transaction.
            return list(self._as_they_are(before))
        # The server died while it wrote the transaction. Only the name of the new file is of use.
        rotation = _last_rotation([*self._held, before])
        rotation = self._rotation if rotation is None else rotation
        self._reset()
        return [] if rotation is None else [WholeEvents(rotation)]

    def _ended(self, rest: _Events) -> Iterator[WholeEvents]:
        """`rest` ends the transaction."""
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
        """The transaction that was too large, of another dump; returns where its last event ends, as far as it came."""
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
        """Events of one transaction, in parts of one kind."""
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
        """Keep the beginning of a transaction, or what goes on with it; the last `unseen` bytes may have savepoints."""
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
        """Between transactions."""
        self._state[ahead.L_TX] = TX_NONE
        self._state[ahead.L_EVENTS] = 0
        self._open = OpenTransaction()
        self._held, self._held_bytes, self._too_large, self._rotation = [], 0, False, None
        self._given = 0


def _last_rotation(pieces: list[_Events]) -> _Events | None:
    """The last ROTATE among the events."""
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
    """See the module's docstring. `cursor` stands where what was given out ends. Opens the stream at once.

    `bytes_max`: at most so many are read, and given out of a transaction, at once.
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
        #: What may be decoded of the events that were read last.
        self._known: Iterator[WholeEvents] = iter(())
        #: `wake_up` was called.
        self.is_woken = False
        #: The connection that is read now.
        self.stream = open_stream(start)

    def next_known(self) -> WholeEvents | None:
        """Events of transactions that are known to their ends, of those that were read."""
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
        """Read on; False when the server had nothing new for a moment, and says so, or after `wake_up`."""
        data = self.stream.read(bytes_max=self._bytes_max, timeout_s=timeout_s)
        if len(data) == 0:
            return self.stream.is_silent and not self.stream.closed
        self._known = self._transactions.of(data)
        return True

    def wake_up(self) -> None:
        """End the reading, whatever it waits for."""
        self.is_woken = True  # Before the look at the stream, which may be another one in a moment.
        self.stream.close()
