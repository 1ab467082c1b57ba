"""Reads a table into Arrow over one connection: raycdc against the bytes alone, connectorx and pymysql, on the same
server.

Cases: ``standard`` (ten mixed columns) and ``wide`` (sixty). ``receive-only`` reads the same result set over the same
protocol and throws it away: the rate the server and the wire allow; ``receive-only-text`` is the text protocol's.
pymysql (SSCursor) reads a part, because it is too slow for all; all are measured in rows per CPU-second and in rows
per second. CPU-seconds are the client's; the server needs a core beside it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from bench import tables
from bench.measure import Measurement, Options, measure, measured, progress

CASES = ("standard", "wide")

_ROWS = 2_000_000
#: The number of rows that pymysql reads: some seconds of its work.
_PEER_ROWS = {"standard": 200_000, "wide": 20_000}
_SYSTEMS = {
    "raycdc": "read_raycdc",
    "receive-only": "receive_only",
    "receive-only-text": "receive_only_text",
    "connectorx": "read_connectorx",
}
_ROUNDS = 3
_BUFFER_BYTES = 1 << 20


def run(options: Options) -> Iterator[Measurement]:
    """Start a server, fill the tables, and measure each system in a separate process."""
    rows = options.rows or _ROWS
    # The table stays in memory, so that the server answers as fast as possible.
    settings: dict[str, str | None] = {"innodb_buffer_pool_size": "1G"}
    with tables.server_of(options.server, settings) as server:
        connection = tables.connect(server.port)
        tables.prepare(connection)
        for case in options.cases:
            count = rows if case == "standard" else max(rows // 10, 1)
            progress(f"{case}: writing {count:,d} rows ...")
            with connection.cursor() as cursor:
                cursor.execute("SET sql_log_bin = 0")
                cursor.execute(tables.STANDARD if case == "standard" else tables.wide_table())
            values = tables.STANDARD_VALUES if case == "standard" else tables.wide_values()
            tables.fill(connection, f"bench.{case}", values, count)
            arguments = {"port": server.port, "table": case, "rows": count}
            yield from _least_disturbed(case, arguments)
            peer = arguments | {"rows": min(count, _PEER_ROWS[case])}
            yield measure(case, "pymysql", "bench.snapshot:read_pymysql", peer)


def _least_disturbed(case: str, arguments: dict[str, Any]) -> Iterator[Measurement]:
    """Return the least wall time and the least CPU time of several runs of each system.

    The systems run alternately, so that other load disturbs all of them equally; it only ever adds to either time.
    """
    runs: dict[str, list[Measurement]] = {system: [] for system in _SYSTEMS}
    for _ in range(_ROUNDS):
        for system, function in _SYSTEMS.items():
            runs[system].append(measure(case, system, f"bench.snapshot:{function}", arguments))
    for found in runs.values():
        quickest = min(found, key=lambda m: m.wall_s)
        yield replace(quickest, cpu_s=min(m.cpu_s for m in found))


def read_raycdc(*, port: int, table: str, rows: int) -> dict[str, Any]:
    """Read like a chunk reader: the connector's connection, one SELECT, Arrow batches."""
    from raycdc.connectors.mysql.server.catalog import load_table
    from raycdc.connectors.mysql.snapshot.resultset import arena_for, stream_query
    from raycdc.model import TableId

    connection = _connect(port)
    described = load_table(connection, TableId("bench", table))
    names = ", ".join(f"`{column.name}`" for column in described.columns)
    sql = f"SELECT {names} FROM bench.{table}"
    arena = arena_for(described)
    for batch in stream_query(connection, f"{sql} LIMIT 1000", described, arena=arena):
        # This loads the machine code.
        assert batch.num_rows
    figures: dict[str, Any] = {}
    seen = size = batches = 0
    with measured(figures):
        for batch in stream_query(connection, sql, described, arena=arena):
            seen += batch.num_rows
            size += batch.nbytes
            batches += 1
    assert seen == rows
    return figures | {"rows": seen, "arrow_mb": round(size / 1e6, 1), "batches": batches}


def receive_only(*, port: int, table: str, rows: int) -> dict[str, Any]:
    """Receive the bytes of the binary protocol, and drop them."""
    from pymysql.constants import COMMAND

    connection = _connect(port)
    connection._execute_command(COMMAND.COM_STMT_PREPARE, f"SELECT * FROM bench.{table}")
    statement = struct.unpack("<I", connection._read_packet()._data[1:5])[0]
    while not connection._read_packet().is_eof_packet():
        pass
    return _receive(
        connection,
        lambda: connection._execute_command(COMMAND.COM_STMT_EXECUTE, struct.pack("<IBI", statement, 0, 1)),
        rows,
    )


def receive_only_text(*, port: int, table: str, rows: int) -> dict[str, Any]:
    """Receive the bytes of the text protocol, and drop them."""
    from pymysql.constants import COMMAND

    connection = _connect(port)
    return _receive(
        connection, lambda: connection._execute_command(COMMAND.COM_QUERY, f"SELECT * FROM bench.{table}"), rows
    )


def _receive(connection: Any, execute: Callable[[], None], rows: int) -> dict[str, Any]:
    """Receive until the EOF packet that ends the rows."""
    figures: dict[str, Any] = {"rows": rows}
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    total = 0
    tail = b""
    with measured(figures):
        execute()
        while total < rows or not (tail[0:3] == b"\x05\0\0" and tail[4:5] == b"\xfe"):
            count = connection._sock.recv_into(buffer)
            total += count
            tail = (tail + bytes(buffer[max(0, count - 9) : count]))[-9:]
    return figures | {"wire_mb": round(total / 1e6, 1)}


def read_connectorx(*, port: int, table: str, rows: int) -> dict[str, Any]:
    """Read with the peer that reads into Arrow, as its documentation shows, over its binary protocol."""
    import connectorx

    address = f"mysql://root:root@127.0.0.1:{port}/bench"
    connectorx.read_sql(address, f"SELECT * FROM {table} LIMIT 1000", return_type="arrow", protocol="binary")
    figures: dict[str, Any] = {}
    with measured(figures):
        found = connectorx.read_sql(address, f"SELECT * FROM {table}", return_type="arrow", protocol="binary")
    assert found.num_rows == rows
    return figures | {"rows": found.num_rows}


def read_pymysql(*, port: int, table: str, rows: int) -> dict[str, Any]:
    """Read with the peer that makes tuples, unbuffered, so that it does not hold all of them."""
    import pymysql

    connection = tables.connect(port)
    figures: dict[str, Any] = {}
    seen = 0
    with connection.cursor(pymysql.cursors.SSCursor) as cursor, measured(figures):
        cursor.execute(f"SELECT * FROM bench.{table} LIMIT {rows}")
        for _ in cursor:
            seen += 1
    return figures | {"rows": seen}


def _connect(port: int) -> Any:
    from raycdc.clients.mysql import MySqlSettings, connect

    return connect(MySqlSettings(port=port, user="root", password="root"))
