"""The first transaction since a time, in logs that say when transactions were committed and in such that do not."""

from __future__ import annotations

from typing import cast

import pytest

from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.log.startup import OpenLog, first_since
from raycdc.connectors.mysql.server.client import Flavor, MySqlServerInfo
from tests.unit.connectors.mysql.binlog_bytes import LogWriter

FILE = "binlog.000001"
SECOND = LogWriter().seconds

INFO = MySqlServerInfo(
    Flavor.MYSQL, (8, 0, 36), "8.0.36", "127.0.0.1:3306", 1, "", gtid_mode=False, log_bin=True, binlog_format="ROW",
    row_image="FULL", row_metadata="FULL", checksum="CRC32", expire_logs_s=0.0, variables={},
)  # fmt: skip


class Log:
    """A connection that sends these bytes once."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, **_: object) -> bytes:
        data, self._data = self._data, b""
        return data

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("micros", "since_ms", "first"),
    [
        # A commit time that happens to have no milliseconds is as exact as any other.
        ((SECOND * 1_000_000, SECOND * 1_000_000 + 5_000), SECOND * 1000 + 4, 1),
        ((SECOND * 1_000_000, SECOND * 1_000_000 + 5_000), SECOND * 1000, 0),
        # Whole seconds stand for any moment in them.
        ((0, 0), SECOND * 1000 + 4, 0),
        ((0, 0), SECOND * 1000 + 1000, 2),
    ],
)
def test_a_transaction_counts_by_the_time_that_the_log_has(micros: tuple[int, int], since_ms: int, first: int) -> None:
    log = LogWriter().format()
    begins = []
    for number, at in enumerate(micros):
        begins.append(log.position)
        log.gtid(number + 1, micros=at).begin().xid()
    begins.append(log.position)
    data = log.take()
    opened = cast("OpenLog", lambda _: Log(data))

    place = first_since(INFO, BinlogOffset(FILE, 4), since_ms, opened, end=BinlogOffset(FILE, log.position))

    assert place.pos == begins[first]
