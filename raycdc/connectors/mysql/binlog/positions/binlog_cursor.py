"""The decoder's position in the log, and the number of rows that it has emitted.

`BinlogCursor` owns the state vector that the compiled pass advances (`index_loops`), the name of the file, and the
numbers of rows. Every part of the decoder gets its position here. Only this class makes positions for a restart, which
are always the end of a transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from raycdc.connectors.mysql.binlog import index_loops as index
from raycdc.connectors.mysql.binlog.event_types import EventEnds, LogKind
from raycdc.connectors.mysql.binlog.positions.gtid import ExecutedGtids
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset, Marks
from raycdc.connectors.mysql.binlog.tables.table_decoding import log_damage
from raycdc.connectors.mysql.binlog.xa_transactions import XaTransactions
from raycdc.errors import CorruptLogError, DataError, SchemaError


class BinlogCursor:
    """The position in one log; see the module's docstring.

    It begins at `start`. `transactions` are the XA transactions that are prepared there.
    """

    def __init__(self, start: BinlogOffset, log: LogKind, transactions: XaTransactions) -> None:
        self.state = np.zeros(index.S_SIZE, np.int64)
        self.state[index.S_POS] = self.state[index.S_TX_POS] = start.pos
        self.state[index.S_GTID_SLOT] = -1
        self.state[index.S_VERIFY] = int(log.verify_checksums)
        self.state[index.S_SEEK] = int(start.by_gtid)
        self.state[index.S_SKIP] = start.skip_events
        self.state[index.S_EXACT] = int(log.whole_file)
        self.state[index.S_MEANING] = -1
        # A file on disk is decoded without looking ahead, including rolled-back rows.
        self.state[index.S_FORESEEN] = int(log.whole_file)
        self.gtids = ExecutedGtids(start.gtid_set, mariadb=log.mariadb)
        self.file = start.file
        #: The `_seq` of the next row.
        self.next_seq = 0
        #: Inside `without_checksums`: True if a checksum proved the events before it was removed.
        self._were_proven = False
        #: The number of rows to leave out of the next event.
        self.skip_rows = start.skip_rows
        self._start = start
        self.marks = Marks((start.file, start.pos), start.mark)
        self._boundary_file = start.file
        self._transactions = transactions

    @property
    def position(self) -> BinlogOffset:
        """Return the end of the last complete transaction, with the GTID set up to it."""
        return self._offset(self._boundary_file, int(self.state[index.S_TX_POS]))

    @property
    def statement_position(self) -> BinlogOffset:
        """Return the end of the last event, a statement. A restart is possible there unless a transaction is open."""
        return self._offset(self.file, int(self.state[index.S_POS]))

    @property
    def event_position(self) -> BinlogOffset:
        """Return the end of the last event. Inside a transaction, a restart is not possible there."""
        return BinlogOffset(self.file, int(self.state[index.S_POS]))

    @property
    def in_transaction(self) -> bool:
        return int(self.state[index.S_TX]) != index.TX_NONE

    @property
    def last_ts_ms(self) -> int:
        """Return the commit time of the last event that has one, 0 before the first."""
        return int(self.state[index.S_LAST_MS])

    @property
    def checksum_bytes(self) -> int:
        """Return the size of the checksum after each event."""
        return int(self.state[index.S_CHECKSUM])

    @property
    def proven(self) -> bool:
        """Return True if a checksum has proved that the server wrote the events being read."""
        state = self.state
        return self._were_proven or bool(state[index.S_VERIFY] and state[index.S_CHECKSUM])

    @property
    def ends(self) -> EventEnds:
        """Return the form of the ends of the following events."""
        state = self.state
        position = int(state[index.S_POS]) & 0xFFFFFFFF if state[index.S_EXACT] else -1
        return EventEnds(int(state[index.S_CHECKSUM]), bool(state[index.S_VERIFY]), position)

    def note_boundary(self) -> None:
        """Note that the compiled pass has moved: if it is between transactions, this is in the present file."""
        if int(self.state[index.S_TX]) == index.TX_NONE:
            self._boundary_file = self.file

    def begin_file(self, file: str) -> None:
        """Continue the log in `file`, of which nothing is known before its format event."""
        if file != self.file:
            self.marks.begin_file(self.position.mark)
        self.file = file

    def move_to(self, pos: int) -> None:
        """Set the end of the last event; between transactions, also that of the last transaction."""
        self.state[index.S_POS] = pos
        if not self.in_transaction:
            if pos != self.state[index.S_TX_POS]:
                self.state[index.S_TX_LENGTH] = 0
            self.state[index.S_TX_POS] = pos
            self._boundary_file = self.file

    def forget_transaction(self) -> None:
        """Forget the open transaction, because the server died while it wrote the transaction, and has rolled it back.

        Raises `CorruptLogError` if rows of it were emitted.
        """
        state = self.state
        if int(state[index.S_TX_ROWS]) > 0:
            state[index.S_ERROR] = index.ERROR_TAKEN_BACK
            raise self.damage()
        state[index.S_TX], state[index.S_GTID_SLOT] = index.TX_NONE, -1
        state[index.S_TX_MS] = state[index.S_XA] = state[index.S_ALTER] = 0
        self._transactions.forget_open()

    def end_of(self, event: bytes) -> int:
        """Return the end of the event that follows here, from the lower 32 bits in its header.

        For a virtual event, the present position.
        """
        before, end = int(self.state[index.S_POS]), int.from_bytes(event[13:17], "little")
        return before + (end - before) % (1 << 32) if end else before

    @contextmanager
    def without_checksums(self) -> Iterator[None]:
        """Within the block, walk events that have no checksums any more. Several may end at one position."""
        state = self.state
        before, were_proven = (int(state[index.S_CHECKSUM]), int(state[index.S_STRIPPED])), self._were_proven
        self._were_proven = self.proven
        state[index.S_CHECKSUM], state[index.S_STRIPPED] = 0, 1
        yield
        state[index.S_CHECKSUM], state[index.S_STRIPPED] = before
        self._were_proven = were_proven

    @contextmanager
    def foreseen(self, *, taken_back: bool) -> Iterator[None]:
        """Within the block, the caller knows if the rows of transactions are rolled back."""
        state = self.state
        before = int(state[index.S_FORESEEN])
        state[index.S_FORESEEN], state[index.S_TAKEN_BACK] = 1, int(taken_back)
        yield
        state[index.S_FORESEEN], state[index.S_TAKEN_BACK] = before, 0

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Decode rows within the block and restore the cursor afterwards."""
        state = self.state
        before, first_seq, skip_rows = state.copy(), self.next_seq, self.skip_rows
        state[index.S_SKIP] = self.skip_rows = 0
        yield
        self.next_seq, self.skip_rows = first_seq, skip_rows
        before[index.S_TABLE_IDS] = state[index.S_TABLE_IDS]
        state[:] = before

    @contextmanager
    def locating_errors(self) -> Iterator[None]:
        """Add the position in the log to errors raised within the block."""
        try:
            yield
        except (CorruptLogError, SchemaError, DataError) as cause:
            raise type(cause)(f"{self.event_position}: {cause}") from cause

    def damage(self) -> CorruptLogError:
        """Return the error at which the compiled pass stopped."""
        return CorruptLogError(f"{self.event_position}: {log_damage(int(self.state[index.S_ERROR]))}")

    def _offset(self, file: str, pos: int) -> BinlogOffset:
        self.gtids.merge(self.state)
        start, left = self._start, (0, 0)
        if start.skip_events or start.skip_rows:
            read = int(self.state[index.S_SKIP]), self.skip_rows
            left = (start.skip_events, start.skip_rows) if (file, pos) == (start.file, start.pos) else read
        length = int(self.state[index.S_TX_LENGTH]) if pos == self.state[index.S_TX_POS] else 0
        return BinlogOffset(
            file,
            pos,
            str(self.gtids),
            server=start.server,
            by_gtid=start.by_gtid,
            prepared=self._transactions.stored,
            skip_events=left[0],
            skip_rows=left[1],
            mark=self.marks.at((file, pos), length, int(self.state[index.S_TX_CRC])),
        )
