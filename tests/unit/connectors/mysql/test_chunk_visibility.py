"""How a chunk is read depends on what its server and its engine can promise. The waits themselves need servers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from pymysql.connections import Connection

from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.server.client import Flavor, MySqlServerInfo
from raycdc.connectors.mysql.snapshot import chunk_reader as visibility
from raycdc.connectors.mysql.snapshot.consistent import SnapshotPosition
from raycdc.connectors.mysql.snapshot.planning.chunk_plan import ChunkRange
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.model import TableId

TABLE = MySqlTable(TableId("shop", "orders"), (MySqlColumn("id", "int", nullable=False),), ("id",))
WHOLE = ChunkRange.from_json({"lower": None, "upper": None, "includes_null": False, "only_null": False, "key": "id"})
PLACE = BinlogOffset("binlog.000001", 4, "a" * 8 + "-0000-0000-0000-000000000000:1-9")
MYSQL = MySqlServerInfo(
    Flavor.MYSQL, (8, 0, 40), "8.0.40", "db:3306", 1, "uuid", True, True, "ROW", "FULL", "FULL", "CRC32", 0.0, {}
)
MARIADB = replace(MYSQL, flavor=Flavor.MARIADB, version=(11, 4, 2), version_text="11.4.2-MariaDB")


class Server:
    """Notes what is asked of it, in order; its engine says whether it has `transactions`."""

    def __init__(self, patch: pytest.MonkeyPatch, *, transactions: str = "YES") -> None:
        self.asked: list[str] = []
        patch.setattr(visibility, "wait_for_gtid_set", lambda _c, _i, gtids, timeout_s: self.asked.append(gtids))
        patch.setattr(visibility, "query", lambda *_: [(transactions,)])
        patch.setattr(visibility, "stream_query", self._stream)
        patch.setattr(visibility, "current_end", lambda *_: replace(PLACE, pos=900))
        patch.setattr(visibility, "open_snapshot", self._snapshot)

    def _stream(self, *_: Any, **__: Any) -> Iterator[Any]:
        self.asked.append("SELECT")
        yield from ()

    def _snapshot(self, *_: Any, **__: Any) -> Any:
        self.asked.append("snapshot")
        return SnapshotPosition(replace(PLACE, pos=800), exact=True)

    def read(self, info: MySqlServerInfo) -> visibility.ChunkRows:
        read = visibility.read_chunk(cast("Connection[Any]", None), info, visibility.ChunkSelect(TABLE, WHOLE), PLACE)
        assert list(read) == []
        return read


def test_mysql_waits_for_what_was_dropped_before_it_selects(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    read = server.read(MYSQL)
    assert server.asked == [PLACE.gtid_set, "SELECT"]
    assert not read.end.exact
    assert read.end.high_watermark == replace(PLACE, pos=900)


@pytest.mark.parametrize("engine", ["NO", None])
def test_a_table_whose_engine_has_no_snapshots_is_read_between_two_places(
    monkeypatch: pytest.MonkeyPatch, engine: str | None
) -> None:
    """MyISAM and Aria: what a snapshot of them would show is not what there was at its place."""
    server = Server(monkeypatch, transactions=str(engine))
    assert not server.read(MARIADB).end.exact
    assert server.asked == ["SELECT"]


def test_a_table_of_an_engine_with_snapshots_is_read_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    read = server.read(MARIADB)
    assert server.asked == ["snapshot", "SELECT"]
    assert (read.end.exact, read.end.high_watermark) == (True, replace(PLACE, pos=800))
