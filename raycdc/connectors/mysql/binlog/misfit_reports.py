"""Reports of tables whose rows the log does not give, or not as their schema says."""

from __future__ import annotations

from collections.abc import Callable

from raycdc.connectors.mysql.binlog.binlog_cursor import BinlogCursor
from raycdc.connectors.mysql.binlog.position import BinlogOffset
from raycdc.errors import DataError
from raycdc.model import TableId

#: Told of a table, why its rows cannot be decoded, and where the transaction before them ended.
MisfitListener = Callable[[TableId, DataError, BinlogOffset], None]


class MisfitReports:
    """See the module's docstring. Without a listener, a table that does not fit is an error that ends the run."""

    def __init__(self, cursor: BinlogCursor) -> None:
        self._cursor = cursor
        #: Told of each table that does not fit; the table's rows are passed over from there.
        self.listener: MisfitListener | None = None

    @property
    def heard(self) -> bool:
        """Whether a table that does not fit is passed over; else that is an error."""
        return self.listener is not None

    def report(self, table: TableId, error: DataError, before: BinlogOffset | None = None) -> None:
        """Rows of the table cannot be given. Raises `error` where nobody listens.

        `before` is where the transaction before them ended: the last one before the cursor, unless said otherwise.
        """
        if self.listener is None:
            raise error
        self.listener(table, error, before or self._cursor.position)
