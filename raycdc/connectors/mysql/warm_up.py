"""Compiles all loops of the connector, so that no command or reader compiles at its first row.

`make setup` calls it once per machine. It decodes a generated log of one transaction.
"""

from __future__ import annotations

import struct

import numpy as np

from raycdc.connectors.mysql.binlog import transaction_loops
from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.event_types import LogKind
from raycdc.connectors.mysql.binlog.index_loops import complete_events
from raycdc.connectors.mysql.binlog.positions.gtid import gtid_text
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.tables.map_plans import MapSchemas
from raycdc.connectors.mysql.binlog.tables.table_decoding import BatchForm
from raycdc.connectors.mysql.binlog.wire import packet_loops
from raycdc.connectors.mysql.snapshot import resultset, sort_keys
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.model import TableId

_TABLE = MySqlTable(TableId("d", "t"), (MySqlColumn("id", "int"),), ("id",))


def compile_all() -> None:
    """Compile every loop of the connector, or load it from the cache. Takes about a minute the first time."""
    events = _event(19, struct.pack("<IHH", 1, 0, 0) + b"\x01d\x00\x01t\x00\x01\x03\x00\x01")
    events += _event(30, struct.pack("<IHHH", 1, 0, 0, 2) + b"\x01\x01\x00\x07\x00\x00\x00") + _event(16, b"\0" * 8)
    data = np.frombuffer(events, np.uint8)
    decoder = BinlogDecoder(
        MapSchemas({_TABLE.id: _TABLE}),
        wanted=lambda _: True,
        start=BinlogOffset("warm.000001", 4),
        log=LogKind(),
        form=BatchForm(with_pos=True),
    )
    complete_events(data, 0, decoder.cut(data))
    decoder.feed(data)
    ahead = np.zeros(transaction_loops.L_SIZE, np.int64)
    transaction_loops.scan_ahead(data, 0, len(data), ahead)
    transaction_loops.first_of_a_transaction(data, 0, len(data))
    transaction_loops.next_savepoint(data, 0, len(data), 0, 0)
    transaction_loops.some_events(data, 0, len(data), 1, 1)
    compressed = _event(40, b"\x01\x01" + bytes([len(events)]) + b"\x02\x03\xfc\xff\x00\x00" + events)
    for _ in decoder.pieces(compressed):
        pass
    whole = _event(31, struct.pack("<IHHH", 1, 0, 0, 2) + b"\x01\x01\x01\x00\x07\x00\x00\x00")
    partial = whole[:4] + b"\x27" + whole[5:] + b"\x00\x00\x08\x00\x00\x00"
    partial = partial[:9] + struct.pack("<I", len(partial)) + partial[13:]
    decoder.feed(np.frombuffer(partial, np.uint8))
    gtid_text(_event(42, b"")[:19], b"\x02\x02\x00", mariadb=False)
    state = np.zeros(packet_loops.P_SIZE, np.int64)
    packet_loops.strip_packets(data, 0, 0, np.empty(8, np.uint8), state)
    resultset.warm_up()
    sort_keys.warm_up()


def _event(kind: int, body: bytes) -> bytes:
    return struct.pack("<IBIIIH", 1, kind, 1, 19 + len(body), 0, 0) + body
