"""Binlog backlog to Arrow: raycdc against mysql-replication, over the wire from the same server in the same run.

Cases: ``standard`` (multi-row inserts of the standard table), ``single_row_transactions`` (one-row updates, each with
its own GTID, BEGIN, table map and XID), ``wide`` (sixty columns). The peer reads a part of the same log, because it
is too slow for all of it; both are measured in rows per CPU-second.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench import tables
from bench.measure import Measurement, Options, best_of, measure, measured, progress

CASES = ("standard", "single_row_transactions", "wide")

_ROWS = 2_000_000
#: Rows the peer reads: some seconds of its work.
_PEER_ROWS = {"standard": 100_000, "single_row_transactions": 20_000, "wide": 10_000}
_READ_BYTES = 4 << 20


def run(options: Options) -> Iterator[Measurement]:
    """Start a server, write the log of each case, measure."""
    from raycdc.testing.servers import MariaDbServer, MySqlServer

    settings: dict[str, str | None] = {"binlog_row_metadata": "FULL"}
    rows = options.rows or _ROWS
    progress(f"starting {options.server} ...")
    with (
        MySqlServer(version="8.0", options=settings) if options.server == "mysql" else MariaDbServer(settings) as server
    ):
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


def _write_log(connection: Any, case: str, rows: int) -> dict[str, Any]:
    """Write the case's log; returns where it begins and ends and how many row changes it has."""
    if case == "standard":
        _execute(connection, tables.STANDARD)
    elif case == "wide":
        _execute(connection, tables.wide_table())
    _execute(connection, "FLUSH LOGS")
    first, first_pos = _position(connection)
    match case:
        case "standard":
            tables.fill(connection, "bench.standard", tables.STANDARD_VALUES, rows, done=_Progress(rows))
            count = rows
        case "single_row_transactions":
            count = max(rows // 20, 1)
            progress(f"single_row_transactions: writing {count:,d} ...")
            tables.update_single_rows(connection, rows, count)
        case _:
            count = max(rows // 10, 1)
            progress(f"wide: writing {count:,d} rows ...")
            tables.fill(connection, "bench.wide", tables.wide_values(), count)
    last, last_pos = _position(connection)
    return {"file": first, "pos": first_pos, "end_file": last, "end_pos": last_pos, "rows": count}


class _Progress:
    """A line for each tenth of the rows."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._next = rows // 10

    def __call__(self, done: int) -> None:
        if done >= self._next:
            progress(f"standard: {done:,d} of {self._rows:,d} rows written")
            self._next += max(self._rows // 10, 1)


def _execute(connection: Any, sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def _position(connection: Any) -> tuple[str, int]:
    with connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        file, pos, *_ = cursor.fetchone()
    return str(file), int(pos)


def _stream(port: int, file: str, pos: int) -> Any:
    from raycdc.connectors.mysql.binlog_stream import BinlogStream
    from raycdc.connectors.mysql.connection import MySqlSettings, connect
    from raycdc.connectors.mysql.offset import BinlogOffset

    settings = MySqlSettings(host="127.0.0.1", port=port, user="root", password="root")
    return BinlogStream(connect(settings), server_id=7101, offset=BinlogOffset(file, pos))


def read_raycdc(
    *, port: int, flavor: str, file: str, pos: int, end_file: str, end_pos: int, rows: int
) -> dict[str, Any]:
    """Stream, decode to Arrow batches with all metadata columns, count."""
    from raycdc.connectors.mysql import warm_up
    from raycdc.connectors.mysql.binlog_decoder import BinlogDecoder
    from raycdc.connectors.mysql.binlog_events import RowsItem
    from raycdc.connectors.mysql.offset import BinlogOffset

    warm_up()
    figures: dict[str, Any] = {"rows": rows}
    start, end = BinlogOffset(file, pos), BinlogOffset(end_file, end_pos)
    arrow_rows = arrow_bytes = 0
    for timed in (False, True):
        # The first, untimed round loads the machine code for this table's types.
        stream = _stream(port, file, pos)
        decoder = BinlogDecoder(
            {},
            wanted=lambda table: table.db == "bench",
            start=start,
            flavor="mariadb" if flavor == "mariadb" else "mysql",
            infer=True,
            with_pos=True,
        )
        arrow_rows = arrow_bytes = 0
        with measured(figures):
            while decoder.position < end:
                for item in decoder.feed(stream.read(bytes_max=_READ_BYTES, timeout_s=10)):
                    if isinstance(item, RowsItem):
                        arrow_rows += item.rows
                        arrow_bytes += item.batch.nbytes
                if not timed and arrow_rows:
                    break
        stream.close()
    figures |= {
        "arrow_rows": arrow_rows,
        "arrow_mb": round(arrow_bytes / 1e6, 1),
        "log_mb": round(stream.received_bytes / 1e6, 1),
    }
    return figures


def receive_only(
    *, port: int, flavor: str, file: str, pos: int, end_file: str, end_pos: int, rows: int
) -> dict[str, Any]:
    """The same stream without decoding: what the wire itself costs."""
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
    """The peer, as its README shows it: iterate over row events and their rows."""
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
