"""Finds the tables with rows in XA transactions that were prepared before the job began.

`XaRows` calls `PreparedSearch` when such a transaction is committed, in the log fetcher's thread, which waits
meanwhile. The job never read the transaction's rows, but its XA PREPARE may still be in the log. The search reads the
log file by file, the newest file first, without decoding a row. The result is not stored: after a crash, the same XA
COMMIT causes the same search. If the log was purged since, the search returns this reason as a `str`.

`check_prepared` has the findings of ``raycdc check`` about presently prepared transactions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt
from pymysql.connections import Connection

from raycdc.clients.mysql import query
from raycdc.config.checks import CheckResult
from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.session import dialect_of, dialect_of_session
from raycdc.connectors.mysql.binlog.tables.map_plans import MapSchemas
from raycdc.connectors.mysql.binlog.wire.stream import BinlogStream
from raycdc.connectors.mysql.binlog.xa_transactions import Preparing
from raycdc.connectors.mysql.ddl.apply import affected_tables
from raycdc.connectors.mysql.server.client import MySqlServerInfo, log_files
from raycdc.errors import CorruptLogError, DataError, SchemaError, SourceError, SourceUnavailableError
from raycdc.model import TableId

_log = logging.getLogger(__name__)

#: The longest search, because all tables wait for it. A server sends about 100 GiB of its log in this time.
SEARCH_S_MAX = 600.0
_READ_BYTES, _READ_TIMEOUT_S = 4 << 20, 30.0
#: The most transactions that ``raycdc check`` names.
_SHOWN = 8


class PreparedSearch:
    """The search for a prepared transaction; see the module's docstring.

    `connect` opens a connection to the server whose log is read.
    """

    def __init__(self, connect: Callable[[], Connection[Any]], info: MySqlServerInfo) -> None:
        self._connect = connect
        self._info = info
        #: Returns True if the answer is not needed any more. May be replaced.
        self.is_stopped: Callable[[], bool] = lambda: False

    def __call__(self, xid: str, before: BinlogOffset) -> tuple[TableId, ...] | str:
        """Return the tables with rows of the transaction, or why they cannot be known for sure.

        `before` is the start of its XA COMMIT. Raises `SourceUnavailableError`.
        """
        try:
            return self._tables(xid, before)
        except SourceUnavailableError:
            raise
        except (SourceError, CorruptLogError, DataError, SchemaError) as cause:
            return f"the older log could not be searched for its XA PREPARE ({cause})"

    def _tables(self, xid: str, before: BinlogOffset) -> tuple[TableId, ...] | str:
        with closing(self._connect()) as connection:
            files = [name for name, _ in log_files(connection, self._info)]
        older = files[: files.index(before.file) + 1] if before.file in files else []
        changed, has_unread = set[TableId | str](), False
        deadline = time.monotonic() + SEARCH_S_MAX
        for file in reversed(older):
            _log.warning(
                "%s: XA COMMIT %s is of a transaction that was prepared before this job began: %s is searched for the "
                "tables that it has rows of", before, xid, file,
            )  # fmt: skip
            search = _FileSearch(self._info, xid, file, before)
            if not self._read(search, deadline):
                return f"{SEARCH_S_MAX:g} s of the log before it do not have its XA PREPARE"
            changed |= search.changed
            has_unread = has_unread or search.has_unread
            if search.has_statement:
                return "it changed rows by a statement, which may concern any table"
            if search.tables is not None:
                if has_unread:
                    return "a statement after its XA PREPARE cannot be read, which may have changed any table"
                # The server's locks prevent such changes, but a restarted server may have lost these.
                again = [table for table in search.tables if table in changed or table.db in changed]
                return f"{again[0]}, of which it has rows, was changed since" if again else search.tables
        return f"its XA PREPARE is not in the log any more, which begins with {files[0]}"

    def _read(self, search: _FileSearch, deadline: float) -> bool:
        """Return True if the relevant part of the file was read in time."""
        start = BinlogOffset(search.file, 4)
        with closing(BinlogStream(self._connect(), server_id=0, offset=start, connect_again=self._connect)) as stream:
            while not (stream.ended or search.is_over):
                if self.is_stopped():
                    raise SourceUnavailableError("The reading of the log was ended.")
                if time.monotonic() > deadline:
                    return False
                data = stream.read(bytes_max=_READ_BYTES, timeout_s=_READ_TIMEOUT_S)
                if len(data) == 0 and not stream.ended:
                    raise SourceUnavailableError(f"{stream} sent nothing of its log for {_READ_TIMEOUT_S:g} s")
                search.take(np.frombuffer(data, np.uint8))
        return True


class _FileSearch:
    """The search in one `file` for the newest preparation of the transaction `xid`, before its commit."""

    def __init__(self, info: MySqlServerInfo, xid: str, file: str, before: BinlogOffset) -> None:
        self.file = file
        #: The tables with rows of the XA transaction; None until it is found.
        self.tables: tuple[TableId, ...] | None = None
        #: True if the XA transaction changed rows by a statement.
        self.has_statement = False
        #: Tables and databases that a later statement changed.
        self.changed: set[TableId | str] = set()
        #: True if a later statement's names cannot be read.
        self.has_unread = False
        self._xid, self._before = xid, before
        self._dialect = dialect_of(info)
        self._decoder = BinlogDecoder(
            MapSchemas.from_the_log(), wanted=lambda _: False, start=BinlogOffset(file, 4), log=info.log_kind
        )
        self._decoder.xa.on_prepare = self._prepared
        #: The start of the transaction with the last statement that may have changed rows.
        self._statement_in: BinlogOffset | None = None

    @property
    def is_over(self) -> bool:
        """Return True if nothing relevant follows in the file."""
        cursor = self._decoder.cursor
        return cursor.file != self.file or cursor.event_position >= self._before

    def take(self, events: npt.NDArray[np.uint8]) -> None:
        """Process the next events of the file."""
        for item in self._decoder.items(events):
            if isinstance(item, DdlItem) and item.position <= self._before:
                self._statement_in = item.before
                dialect = dialect_of_session(self._dialect, item.session)
                affected = affected_tables(item.statement, item.db, dialect=dialect)
                self.changed |= {*affected.tables, *affected.databases}
                self.has_unread = self.has_unread or bool(affected.unread)

    def _prepared(self, step: Preparing) -> None:
        cursor = self._decoder.cursor
        if step.xid != self._xid or cursor.event_position >= self._before:
            return
        self.tables, self.has_statement = step.others, cursor.position == self._statement_in
        self.changed.clear()
        self.has_unread = False


def check_prepared(connection: Connection[Any], info: MySqlServerInfo, account: str) -> CheckResult:
    """Report the XA transactions that are prepared now, as XA RECOVER lists them."""
    name = "prepared"
    try:
        rows = query(connection, "XA RECOVER FORMAT = 'SQL'" if info.is_mariadb else "XA RECOVER CONVERT XID")
    except SourceUnavailableError:
        raise
    except SourceError:
        return CheckResult(
            name,
            f"{account} may not ask {info.address} for prepared XA transactions (XA RECOVER); to let it: GRANT "
            f"XA_RECOVER_ADMIN ON *.* TO {account};",
            ok=True,
        )
    if not rows:
        return CheckResult(name, f"No XA transaction is prepared on {info.address}.", ok=True)
    xids = [_xid(row, mariadb=info.is_mariadb) for row in rows]
    more = f" and {len(xids) - _SHOWN} more" if len(xids) > _SHOWN else ""
    return CheckResult(
        name,
        f"XA RECOVER of {info.address} shows prepared transactions: {'; '.join(xids[:_SHOWN])}{more}. A first start "
        "does not see their rows: when one is committed later, the captured tables that it has rows of are parked; all "
        "tables are where the log does not have its XA PREPARE any more.",
        "End them before a pipeline's first start (XA COMMIT, XA ROLLBACK); one that has begun knows those that were "
        "prepared since.",
        required=False,
    )


def _xid(row: tuple[Any, ...], *, mariadb: bool) -> str:
    """Return a transaction's name as XA COMMIT expects it."""
    format_, gtrid_length, _, data = row
    text = data.decode("ascii", "replace") if isinstance(data, bytes) else str(data)
    if mariadb:
        return text
    digits, end = text.removeprefix("0x"), 2 * int(gtrid_length)
    return f"X'{digits[:end]}',X'{digits[end:]}',{format_}"
