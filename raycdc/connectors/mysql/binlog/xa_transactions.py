"""XA transactions of the log: rows that wait, as the events they came in, for XA COMMIT.

Called by `BinlogDecoder`. XA PREPARE writes a transaction's rows to the log, under a GTID of its own; XA COMMIT or
XA ROLLBACK follows at any distance, or never. The rows take the position and time of XA COMMIT. Until then they are
part of every position (`stored`), so that they survive a restart. The server holds the tables' metadata locks
meanwhile: the schema at XA COMMIT is the one they were written with, and their table maps are checked against it.

Every prepared transaction is remembered, with or without rows of captured tables: an XA COMMIT of an unknown one was
prepared before the job began, and its rows are missing.
"""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Callable

import msgpack

from raycdc.connectors.mysql.binlog import index_loops as index
from raycdc.connectors.mysql.binlog.events import parse_query
from raycdc.connectors.mysql.binlog.index_loops import HEADER_BYTES
from raycdc.connectors.mysql.binlog.table_map import parse_table_map
from raycdc.errors import CorruptLogError, DataError
from raycdc.model import TableId

#: Bytes of rows that all prepared transactions together may hold: they are written with every checkpoint.
STORED_BYTES_MAX = 64 << 20

_FINISH = re.compile(r"XA\s+(COMMIT|ROLLBACK)\s+(.*?)\s*(ONE\s+PHASE)?\s*\Z", re.IGNORECASE | re.DOTALL)


class XaTransactions:
    """One per decoder. `stored` is the text of an earlier one."""

    def __init__(self, stored: str = "") -> None:
        self._prepared: dict[str, list[bytes]] = {}
        if stored:
            self._prepared = msgpack.unpackb(zlib.decompress(base64.b64decode(stored)))
        #: All prepared transactions as text; empty when there are none.
        self.stored = stored
        #: A transaction has begun that may be prepared: its table maps and row events come here.
        self.is_open = False
        self._open: list[bytes] = []
        self._open_bytes = 0
        self._table_ids: set[bytes] = set()

    def __repr__(self) -> str:
        return f"XaTransactions(prepared={list(self._prepared)}, open={len(self._open)} events)"

    def on_event(self, event: bytes, *, wanted: Callable[[TableId], bool], from_the_start: bool) -> bytes:
        """Take an event of an XA transaction, without checksum; returns the events whose rows count from here on.

        `from_the_start`: an unknown transaction is no error. Raises `DataError` and `CorruptLogError` without position.
        """
        body = event[HEADER_BYTES:]
        match event[4]:
            case index.XA_PREPARE:
                xid, one_phase = prepared_xid(body)
                rows, self._open, self.is_open = self._open, [], False
                if one_phase:
                    return _placed(rows, event)
                self._prepared[xid] = rows
                self._store()
            case index.QUERY:
                finished = finished_xid(parse_query(body).statement)
                if finished is None:
                    self._begin()
                    return b""
                return self._finish(*finished, event, from_the_start=from_the_start)
            case index.MARIADB_GTID:
                self._begin()
            case index.TABLE_MAP:
                self._keep(event, wanted=wanted(parse_table_map(body[8:], mariadb=False).table))
            case _:
                self._keep(event, wanted=False)
        return b""

    def _begin(self) -> None:
        self._open, self._open_bytes, self.is_open = [], 0, True
        self._table_ids.clear()

    def _keep(self, event: bytes, *, wanted: bool) -> None:
        table_id = event[HEADER_BYTES : HEADER_BYTES + 6]
        if event[4] == index.TABLE_MAP:
            (self._table_ids.add if wanted else self._table_ids.discard)(table_id)
        if table_id in self._table_ids:
            self._open.append(event)
            self._open_bytes += len(event)
            if self._open_bytes > STORED_BYTES_MAX:
                raise DataError(
                    f"an XA transaction with more than {STORED_BYTES_MAX >> 20} MiB of rows cannot be kept until its "
                    "XA COMMIT; use smaller transactions or ordinary ones"
                )

    def _finish(self, xid: str, commits: bool, event: bytes, *, from_the_start: bool) -> bytes:
        rows = self._prepared.pop(xid, None)
        if rows is None and commits and not from_the_start:
            raise DataError(
                f"XA COMMIT {xid}: the transaction was prepared before the position this job began at, so its rows "
                "were never seen. Take a new snapshot (a new pipeline.state)"
            )
        self._store()
        return _placed(rows, event) if rows and commits else b""

    def _store(self) -> None:
        if sum(len(event) for events in self._prepared.values() for event in events) > STORED_BYTES_MAX:
            raise DataError(
                f"prepared XA transactions hold more than {STORED_BYTES_MAX >> 20} MiB of rows; commit or roll back "
                "the old ones (XA RECOVER lists them)"
            )
        packed = zlib.compress(msgpack.packb(self._prepared), 1)
        self.stored = base64.b64encode(packed).decode() if self._prepared else ""


def prepared_xid(body: bytes) -> tuple[str, bool]:
    """(name, whether it is XA COMMIT ONE PHASE) of an XA_PREPARE event.

    Body: one_phase(1) format(4) gtrid_length(4) bqual_length(4) gtrid bqual.
    """
    if len(body) < 13:
        raise CorruptLogError("an XA_PREPARE event is too short")
    one_phase, format_, first, second = struct.unpack_from("<BiII", body)
    names = body[13 : 13 + first + second]
    if first > 64 or second > 64 or len(names) != first + second:
        raise CorruptLogError("an XA_PREPARE event is damaged")
    return xid_text(names[:first], names[first:], format_), one_phase != 0


def finished_xid(statement: str) -> tuple[str, bool] | None:
    """(name, whether it commits) of ``XA COMMIT X'..',X'..',1`` or ``XA ROLLBACK …``; None for anything else."""
    found = _FINISH.match(statement.strip())
    return None if found is None else (found[2].replace(" ", "").lower(), found[1].upper() == "COMMIT")


def xid_text(gtrid: bytes, bqual: bytes, format_: int) -> str:
    """A transaction's name as the log's statements write it, in lower case."""
    return f"x'{gtrid.hex()}',x'{bqual.hex()}',{format_}"


def _placed(events: list[bytes], at: bytes) -> bytes:
    """The events as if they stood where the event `at` stands: its time and end position."""
    return b"".join(at[:4] + event[4:9] + len(event).to_bytes(4, "little") + at[13:17] + event[17:] for event in events)
