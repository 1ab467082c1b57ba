"""A log file beyond 4 GiB, as one huge transaction makes it: one with holes in it, put in the place of a real one."""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from raycdc.clients.mysql import connect, query
from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.event_types import LogKind
from raycdc.connectors.mysql.binlog.events import BinlogRowsItem
from raycdc.connectors.mysql.binlog.index_loops import ROTATE, XID
from raycdc.connectors.mysql.binlog.positions.file_offsets import WRAP, PositionFinder
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.tables.map_plans import MapSchemas
from raycdc.connectors.mysql.binlog.wire.stream import BinlogStream
from raycdc.connectors.mysql.log.startup import PastStart, event_bounds, past_position
from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.connectors.mysql.server.client import ensure_available, log_files, probe
from raycdc.errors import ConfigError, LogLostError
from raycdc.model import TableId
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer
from tests.integration.connectors.mysql.test_mysql_binlog import log_end, read_log
from tests.support.sessions import session, settings_of

pytestmark = pytest.mark.server

_IGNORABLE, _IGNORABLE_FLAG = 28, 0x80
_FILLER_BYTES = 8 << 20


def grow(path: Path, *, by: int) -> list[int]:
    """Put `by` bytes of events that say nothing into the first transaction; returns where transactions end then."""
    data = path.read_bytes()
    grown, ends, at, shift = path.with_suffix(".grown"), [], 4, 0
    zeros = bytes(_FILLER_BYTES)
    with grown.open("wb") as file:
        file.write(data[:4])
        for start, end, kind in event_bounds(data[4:]):
            if kind == XID and not shift:
                while shift < by:
                    at += _FILLER_BYTES
                    head = struct.pack("<IBIIIH", 1, _IGNORABLE, 1, _FILLER_BYTES, at % WRAP, _IGNORABLE_FLAG)
                    file.write(head)
                    file.seek(_FILLER_BYTES - 19 - 4, os.SEEK_CUR)
                    crc = zlib.crc32(zeros[: _FILLER_BYTES - 23], zlib.crc32(head))
                    file.write(struct.pack("<I", crc))
                    shift += _FILLER_BYTES
            at += end - start
            event = bytearray(data[4 + start : 4 + end])
            event[13:17] = struct.pack("<I", at % WRAP)
            file.write(event[:-4] + struct.pack("<I", zlib.crc32(event[:-4])))
            ends += [at] if kind == XID else []
    os.chown(grown, path.stat().st_uid, path.stat().st_gid)
    grown.chmod(path.stat().st_mode)
    grown.replace(path)
    return ends


def places(server: DatabaseServer, table: Any, start: BinlogOffset, end: BinlogOffset) -> tuple[list[int], list[int]]:
    """(ids of the rows, positions after each event) of a log read by GTID."""
    decoder = BinlogDecoder(
        MapSchemas({table.id: table}),
        wanted=lambda name: name == table.id,
        start=start,
        log=LogKind(mariadb=isinstance(server, MariaDbServer)),
    )
    decoder.files.find_position = PositionFinder(partial(connect, settings_of(server, "root")))
    ids: list[int] = []
    seen: list[int] = []
    with closing(BinlogStream(connect(settings_of(server, "cdc")), server_id=8002, offset=start)) as stream:
        while decoder.cursor.position < end:
            data = bytes(stream.read(bytes_max=1 << 20, timeout_s=30))
            assert data, f"nothing came after {decoder.cursor.position}"
            for first, last, kind in event_bounds(data):
                rows = [item for item in decoder.feed(data[first:last]) if isinstance(item, BinlogRowsItem)]
                ids += [row for item in rows for row in item.batch["id"].to_pylist()]
                place = decoder.cursor.position
                seen += [place.pos] if kind != ROTATE and place.file == end.file else []
    return ids, seen


@pytest.mark.long(suite="races")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["mariadb", "mysql80"])
def test_places_beyond_4_gib_are_true_after_a_start_by_gtid(request: pytest.FixtureRequest, name: str) -> None:
    server = request.getfixturevalue(name)
    with server.fresh_database() as database, session(server, "root") as connection:
        query(connection, f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
        query(connection, "FLUSH LOGS")
        table = load_table(connection, TableId(database, "t"))
        query(connection, f"INSERT INTO {database}.t VALUES (1)")
        after = [log_end(connection)]
        for key in (2, 3):
            query(connection, f"INSERT INTO {database}.t VALUES ({key})")
            after.append(log_end(connection))
        query(connection, "FLUSH LOGS")
        try:
            file = after[0].file
            ends = grow(server.data_dir / file, by=WRAP)
            true = [replace(place, pos=end) for place, end in zip(after, ends, strict=True)]
            assert true[0].pos > WRAP

            # Read up to the huge transaction; what comes next may be here, or 4 GiB before.
            start = BinlogOffset(file, 4, after[0].gtid_set, by_gtid=True)
            ids, seen = places(server, table, start, true[-1])
            assert ids == [2, 3]
            assert seen[-1] == true[-1].pos
            assert true[1].pos in seen

            info = probe(connection)
            ensure_available(connection, info, true[1])
            with pytest.raises(LogLostError):
                ensure_available(connection, info, replace(true[1], gtid_set=f"{_other(after[1].gtid_set)}"))
            assert [
                row["id"] for item in read_log(server, [table], true[1], true[-1]) for row in item.batch.to_pylist()
            ] == [3]

            def open_log(offset: BinlogOffset) -> BinlogStream:
                return BinlogStream(connect(settings_of(server, "cdc")), server_id=8002, offset=offset)

            for place in true[1:]:
                found = past_position(connection, info, PastStart(file=file, pos=place.pos), open_log)
                assert (found, found.gtid_set) == (place, place.gtid_set)
            with pytest.raises(ConfigError, match=f"nearest position before it is {true[0]}"):
                past_position(connection, info, PastStart(file=file, pos=true[0].pos + 1), open_log)
        finally:
            query(connection, f"PURGE BINARY LOGS TO '{log_files(connection, probe(connection))[-1][0]}'")


def _other(gtid_set: str) -> str:
    """A set that says something else about the last transaction."""
    head, _, number = gtid_set.rpartition("-")
    return f"{head}-{int(number) + 100}"
