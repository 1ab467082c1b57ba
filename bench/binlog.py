"""Binlog backlog to Arrow: raycdc against its peers, over the wire from the same server in the same run.

Cases: ``standard`` (multi-row inserts of the standard table), ``single_row_transactions`` (one-row updates, each with
its own GTID, BEGIN, table map and XID), ``wide`` (sixty columns), ``narrow`` (two integers), ``string_heavy`` (ten
texts of some fifty characters) and ``json_heavy`` (documents of some 300 bytes). mysql-replication reads a part of the
same log, because it is too slow for all of it; all are measured in rows per CPU-second. The compiled peers
(`compiled_peers`) are there where they can be had. ``first_row_s`` is the time from the start of a process to its first
decoded row.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import tables
from bench.compiled_peers import mysqlbinlog_command, rust_program
from bench.measure import Measurement, Options, best_of, measure, measured, progress

CASES = ("standard", "single_row_transactions", "wide", "narrow", "string_heavy", "json_heavy")

_ROWS = 2_000_000
#: The number of rows that the peer reads: some seconds of its work.
_PEER_ROWS = {
    "standard": 100_000,
    "single_row_transactions": 20_000,
    "wide": 10_000,
    "narrow": 200_000,
    "string_heavy": 50_000,
    "json_heavy": 20_000,
}
#: For each case: the table, its definition, expressions of the row number, and the fraction of the standard case's
#: rows.
_TABLES = {
    "standard": ("bench.standard", tables.STANDARD, tables.STANDARD_VALUES, 1),
    "wide": ("bench.wide", tables.wide_table(), tables.wide_values(), 10),
    "narrow": ("bench.narrow", tables.NARROW, tables.NARROW_VALUES, 1),
    "string_heavy": ("bench.string_heavy", tables.STRING_HEAVY, tables.STRING_HEAVY_VALUES, 5),
    "json_heavy": ("bench.json_heavy", tables.JSON_HEAVY, tables.JSON_HEAVY_VALUES, 10),
}
_READ_BYTES = 4 << 20


def run(options: Options) -> Iterator[Measurement]:
    """Start a server, write the log of each case, and measure."""
    settings: dict[str, str | None] = {"binlog_row_metadata": "FULL"}
    rows = options.rows or _ROWS
    with tables.server_of(options.server, settings) as server:
        connection = tables.connect(server.port)
        tables.prepare(connection)
        for case in CASES:
            if case not in options.cases and not (case == "standard" and "single_row_transactions" in options.cases):
                continue
            arguments = _write_log(connection, case, rows) | {"port": server.port, "flavor": options.server}
            if case not in options.cases:
                continue
            for system in ("raycdc", "raycdc-receive-only"):
                function = "bench.binlog:read_raycdc" if system == "raycdc" else "bench.binlog:receive_only"
                yield best_of(3, lambda s=system, f=function, a=arguments, c=case: measure(c, s, f, a))
            peer = arguments | {"rows": min(arguments["rows"], _PEER_ROWS[case])}
            yield measure(case, "mysql-replication", "bench.binlog:read_mysql_replication", peer)
            yield from _compiled_peers(case, arguments)


def _compiled_peers(case: str, arguments: dict[str, Any]) -> Iterator[Measurement]:
    """Return the available peers; a compiled peer decodes the whole case."""
    common = {name: arguments[name] for name in ("port", "file", "pos", "rows")}
    if program := rust_program():
        rust = common | {"program": str(program)}
        yield best_of(3, lambda: measure(case, "rust-mysql", "bench.compiled_peers:read_rust", rust))
    if command := mysqlbinlog_command(arguments["flavor"]):
        text = common | {"command": command, "end_pos": arguments["end_pos"]}
        yield measure(case, "mysqlbinlog -v", "bench.compiled_peers:read_mysqlbinlog", text)


def _write_log(connection: Any, case: str, rows: int) -> dict[str, Any]:
    """Write the case's log; return its start, its end and the number of row changes."""
    if case in _TABLES:
        _execute(connection, _TABLES[case][1])
    _execute(connection, "FLUSH LOGS")
    first, first_pos = _position(connection)
    if case == "single_row_transactions":
        count = max(rows // 20, 1)
        progress(f"single_row_transactions: writing {count:,d} ...")
        tables.update_single_rows(connection, rows, count)
    else:
        table, _, values, part = _TABLES[case]
        count = max(rows // part, 1)
        progress(f"{case}: writing {count:,d} rows ...")
        tables.fill(connection, table, values, count)
    last, last_pos = _position(connection)
    return {"file": first, "pos": first_pos, "end_file": last, "end_pos": last_pos, "rows": count}


def _execute(connection: Any, sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def _position(connection: Any) -> tuple[str, int]:
    with connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        file, pos, *_ = cursor.fetchone()
    return str(file), int(pos)


def _stream(port: int, file: str, pos: int) -> Any:
    from raycdc.clients.mysql import MySqlSettings, connect
    from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
    from raycdc.connectors.mysql.binlog.wire.stream import BinlogStream

    settings = MySqlSettings(host="127.0.0.1", port=port, user="root", password="root")
    return BinlogStream(connect(settings), server_id=7101, offset=BinlogOffset(file, pos))


def read_raycdc(
    *, port: int, flavor: str, file: str, pos: int, end_file: str, end_pos: int, rows: int
) -> dict[str, Any]:
    """Stream the log, decode it to Arrow batches with all metadata columns, and count the rows."""
    from raycdc.connectors.mysql import warm_up
    from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
    from raycdc.connectors.mysql.binlog.event_types import LogKind
    from raycdc.connectors.mysql.binlog.events import BinlogRowsItem
    from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
    from raycdc.connectors.mysql.binlog.tables.map_plans import MapSchemas
    from raycdc.connectors.mysql.binlog.tables.table_decoding import BatchForm

    warm_up()
    figures: dict[str, Any] = {"rows": rows}
    first_row_s = 0.0
    start, end = BinlogOffset(file, pos), BinlogOffset(end_file, end_pos)
    arrow_rows = arrow_bytes = 0
    for timed in (False, True):
        # The first, untimed round loads the machine code for this table's types.
        stream = _stream(port, file, pos)
        decoder = BinlogDecoder(
            MapSchemas.from_the_log(),
            wanted=lambda table: table.db == "bench",
            start=start,
            log=LogKind(mariadb=flavor == "mariadb"),
            form=BatchForm(with_pos=True),
        )
        arrow_rows = arrow_bytes = 0
        with measured(figures):
            while decoder.cursor.position < end:
                for item in decoder.feed(stream.read(bytes_max=_READ_BYTES, timeout_s=10)):
                    if isinstance(item, BinlogRowsItem):
                        arrow_rows += item.rows
                        arrow_bytes += item.batch.nbytes
                if not timed and arrow_rows:
                    first_row_s = _process_age_s()
                    break
        stream.close()
    figures |= {
        "first_row_s": round(first_row_s, 3),
        "arrow_rows": arrow_rows,
        "arrow_mb": round(arrow_bytes / 1e6, 1),
        "log_mb": round(stream.received_bytes / 1e6, 1),
    }
    return figures


def _process_age_s() -> float:
    """Return the seconds since this process was started (proc(5): field 22 of stat, in clock ticks since boot)."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def receive_only(
    *, port: int, flavor: str, file: str, pos: int, end_file: str, end_pos: int, rows: int
) -> dict[str, Any]:
    """Receive the same stream without decoding, to measure the cost of the protocol alone."""
    del flavor, end_file
    from raycdc.connectors.mysql import warm_up

    warm_up()
    figures: dict[str, Any] = {"rows": rows}
    stream = _stream(port, file, pos)
    with measured(figures):
        while stream.received_bytes < end_pos - pos:
            stream.read(bytes_max=_READ_BYTES, timeout_s=10)
    stream.close()
    return figures


def read_mysql_replication(
    *, port: int, flavor: str, file: str, pos: int, end_file: str, end_pos: int, rows: int
) -> dict[str, Any]:
    """Read with the peer as its README shows: iterate over row events and their rows."""
    del end_file, end_pos
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

    figures: dict[str, Any] = {}
    stream = BinLogStreamReader(
        connection_settings={"host": "127.0.0.1", "port": port, "user": "root", "passwd": "root"},
        server_id=7102,
        log_file=file,
        log_pos=pos,
        resume_stream=True,
        blocking=False,
        only_events=[DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent],
        is_mariadb=flavor == "mariadb",
    )
    seen = 0
    with measured(figures):
        for event in stream:
            for _ in event.rows:
                seen += 1
            if seen >= rows:
                break
    stream.close()
    return figures | {"rows": seen}
