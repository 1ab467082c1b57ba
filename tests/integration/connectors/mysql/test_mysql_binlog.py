"""The binlog path on real servers: the log gives what SELECT gives, and refusals say what to do."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from raycdc.cli.inspect.inspect_binlog import inspect_binlog
from raycdc.clients.mysql import connect, query
from raycdc.config.tls import TlsMode
from raycdc.connectors.mysql.binlog.decoder import BinlogDecoder
from raycdc.connectors.mysql.binlog.event_types import LogKind
from raycdc.connectors.mysql.binlog.events import BinlogRowsItem
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.tables.map_plans import MapSchemas
from raycdc.connectors.mysql.binlog.tables.table_decoding import BatchForm
from raycdc.connectors.mysql.binlog.wire import log_dump
from raycdc.connectors.mysql.binlog.wire.stream import BinlogStream
from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.connectors.mysql.server.client import current_position, probe
from raycdc.connectors.mysql.snapshot.resultset import stream_query
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import ExitCode, LogLostError, SourceError
from raycdc.model import RowKind, TableId
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, MySqlServer
from tests.integration.connectors.mysql.test_mysql_resultset import make_types_table
from tests.support.forked_commands import completed
from tests.support.sessions import session, settings_of

pytestmark = pytest.mark.server


def log_end(connection: Any) -> BinlogOffset:
    return current_position(connection, probe(connection))


@contextmanager
def stream_from(
    server: DatabaseServer, offset: BinlogOffset, *, server_id: int = 8001, user: str = "cdc", **changes: Any
) -> Iterator[BinlogStream]:
    stream = BinlogStream(
        connect(settings_of(server, user, **changes)), server_id=server_id, offset=offset, heartbeat_s=1
    )
    try:
        yield stream
    finally:
        stream.close()


def log_kind(server: DatabaseServer) -> LogKind:
    with session(server) as connection:
        return probe(connection).log_kind


def read_log(
    server: DatabaseServer, tables: list[MySqlTable], start: BinlogOffset, end: BinlogOffset, **changes: Any
) -> list[BinlogRowsItem]:
    """All row items of `tables` between the positions."""
    known = {table.id: table for table in tables}
    decoder = BinlogDecoder(
        MapSchemas(known),
        wanted=lambda table: table in known,
        start=start,
        log=log_kind(server),
        form=BatchForm(with_pos=True),
    )
    items: list[BinlogRowsItem] = []
    with stream_from(server, start, **changes) as stream:
        while decoder.cursor.position < end:
            events = stream.read(bytes_max=1 << 20, timeout_s=60)
            assert events, f"nothing came after {decoder.cursor.position}"
            items += [item for item in decoder.feed(events) if isinstance(item, BinlogRowsItem)]
    return items


def snapshot(connection: Any, table: MySqlTable) -> pa.Table:
    names = ", ".join(f"`{column.name}`" for column in table.columns)
    sql = f"SELECT {names} FROM `{table.id.db}`.`{table.id.table}` ORDER BY id"
    return pa.Table.from_batches(list(stream_query(connection, sql, table)), table.schema().arrow())


def replay(items: list[BinlogRowsItem], table: MySqlTable) -> pa.Table:
    """The table as the log leaves it; each update's before-image must be the row as it was."""
    rows: dict[Any, dict[str, Any]] = {}
    for item in items:
        item.batch.validate(full=True)
        for row in item.batch.to_pylist():
            image = {name: row[name] for name in table.schema().arrow().names}
            match RowKind(row["_op"]):
                case RowKind.INSERT | RowKind.UPDATE_AFTER:
                    rows[row["id"]] = image
                case _:
                    assert rows.pop(row["id"]) == image
    return pa.Table.from_pylist([rows[key] for key in sorted(rows)], table.schema().arrow())


def check_every_type(server: DatabaseServer, database: str) -> None:
    with session(server, "root") as connection:
        start = log_end(connection)
        table = make_types_table(connection, database)
        name = f"`{database}`.types"
        columns = ", ".join(f"c{n} = NULL" for n in range(0, len(table.columns) - 1, 3))
        query(connection, f"UPDATE {name} SET {columns} WHERE id % 5 = 0")
        query(connection, f"UPDATE {name} SET id = id + 1000 WHERE id % 7 = 0")
        query(connection, f"DELETE FROM {name} WHERE id % 11 = 0")
        items = read_log(server, [table], start, log_end(connection))
        assert replay(items, table).equals(snapshot(connection, table))


def test_replaying_the_log_gives_what_the_snapshot_reads(any_server: DatabaseServer, any_database: str) -> None:
    check_every_type(any_server, any_database)


def test_mysql57_without_metadata_gives_the_same(mysql57: MySqlServer) -> None:
    with mysql57.fresh_database() as database:
        check_every_type(mysql57, database)


def test_json_is_the_servers_own_text(mysql80: MySqlServer) -> None:
    documents = [
        'CAST(\'{"b": 1, "a": [1, -2, 3.5, 1e100, true, null, "q\\\\"\\\\n\\\\u0001ä😀"], "": {}}\' AS JSON)',
        "JSON_ARRAY(0e0, 1e15, 1e14, 1e-15, 1e-16, 0.1e0 + 0.2e0, 1e308, 5e-324, -12345.678e0)",
        "JSON_ARRAY(18446744073709551615, -9223372036854775808, 65536, -32769, 70000)",
        "JSON_ARRAY(CAST('2020-01-02 03:04:05.5' AS DATETIME(6)), CAST('-100:11:12.5' AS TIME(1)), DATE'2020-01-02')",
        "JSON_ARRAY(1.50, -0.05, CAST(1 AS DECIMAL(65,30)), x'0102ff', b'101')",
        "JSON_OBJECT('long', REPEAT('z', 70000), 'deep', CAST('[[[[[[]]]]]]' AS JSON))",
        "JSON_QUOTE(REPEAT('\"', 200))",
        "CAST('null' AS JSON)",
    ]
    with mysql80.fresh_database() as database, session(mysql80, "root") as connection:
        start = log_end(connection)
        query(connection, f"CREATE TABLE {database}.t (id INT PRIMARY KEY AUTO_INCREMENT, j JSON)")
        for document in documents:
            query(connection, f"INSERT INTO {database}.t (j) VALUES ({document})")
        table = load_table(connection, TableId(database, "t"))
        items = read_log(mysql80, [table], start, log_end(connection))
        ours = [text for item in items for text in item.batch["j"].to_pylist()]
        theirs = [row[0] for row in query(connection, f"SELECT CAST(j AS CHAR) FROM {database}.t ORDER BY id")]
        assert ours == theirs


def test_mysql_replication_sees_the_same_rows(mysql80: MySqlServer) -> None:
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import WriteRowsEvent

    with mysql80.fresh_database() as database, session(mysql80, "root") as connection:
        start = log_end(connection)
        query(
            connection,
            f"CREATE TABLE {database}.t (id INT PRIMARY KEY, a BIGINT, b VARCHAR(20), c DECIMAL(20,4), d DATETIME(3))",
        )
        for n in range(50):
            query(
                connection,
                f"INSERT INTO {database}.t VALUES ({n}, {n << 40}, 'text {n}', {n}.25, '2024-01-01 00:00:{n:02d}.5')",
            )
        table = load_table(connection, TableId(database, "t"))
        items = read_log(mysql80, [table], start, log_end(connection))
    ours = [tuple(row.values())[:5] for item in items for row in item.batch.to_pylist()]
    reader = BinLogStreamReader(
        connection_settings={"host": mysql80.host, "port": mysql80.port, "user": "root", "passwd": "root"},
        server_id=8002,
        log_file=start.file,
        log_pos=start.pos,
        resume_stream=True,
        only_events=[WriteRowsEvent],
        only_schemas=[database],
    )
    theirs = [tuple(row["values"].values()) for event in reader for row in event.rows]
    reader.close()
    assert ours == theirs


def test_values_of_many_packets_arrive_whole(mariadb: MariaDbServer, mariadb_database: str) -> None:
    with session(mariadb, "root") as connection:
        start = log_end(connection)
        query(connection, f"CREATE TABLE {mariadb_database}.t (id INT PRIMARY KEY, body LONGTEXT)")
        query(connection, "SET GLOBAL max_allowed_packet = 67108864")
        with session(mariadb, "root") as large:
            query(large, f"INSERT INTO {mariadb_database}.t VALUES (1, REPEAT('0123456789', 3500000)), (2, 'small')")
        table = load_table(connection, TableId(mariadb_database, "t"))
        items = read_log(mariadb, [table], start, log_end(connection))
    assert [len(body) for item in items for body in item.batch["body"].to_pylist()] == [35_000_000, 5]


def test_the_stream_works_over_tls(mariadb: MariaDbServer, mariadb_database: str) -> None:
    with session(mariadb, "root") as connection:
        start = log_end(connection)
        query(connection, f"CREATE TABLE {mariadb_database}.t (id INT PRIMARY KEY)")
        query(connection, f"INSERT INTO {mariadb_database}.t VALUES (1), (2)")
        table = load_table(connection, TableId(mariadb_database, "t"))
        items = read_log(mariadb, [table], start, log_end(connection), tls_mode=TlsMode.REQUIRED)
    assert sum(item.rows for item in items) == 2


def test_a_place_that_a_dump_by_position_cannot_name_is_found(
    any_server: DatabaseServer, any_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind 4 GiB: MySQL's other command has room for it, else the file is passed over up to there."""
    monkeypatch.setattr(log_dump, "_POSITION_MAX", 4)
    with session(any_server, "root") as connection:
        query(connection, f"CREATE TABLE {any_database}.t (id INT PRIMARY KEY)")
        query(connection, f"INSERT INTO {any_database}.t VALUES (1)")
        start = log_end(connection)
        query(connection, f"INSERT INTO {any_database}.t VALUES (2)")
        query(connection, "FLUSH LOGS")
        query(connection, f"INSERT INTO {any_database}.t VALUES (3)")
        table = load_table(connection, TableId(any_database, "t"))
        end = log_end(connection)
        items = read_log(any_server, [table], start, end)
        with pytest.raises(LogLostError, match="not the end of an event"):
            read_log(any_server, [table], replace(start, pos=start.pos - 1, gtid_set=""), end)
    assert [row["id"] for item in items for row in item.batch.to_pylist()] == [2, 3]


def test_closing_wakes_a_read_that_waits(any_server: DatabaseServer) -> None:
    with session(any_server, "root") as connection:
        end = log_end(connection)
    with stream_from(any_server, end) as stream:
        stream.read(bytes_max=1, timeout_s=60)
        finished = threading.Event()

        def drain() -> None:
            while not stream.closed:
                stream.read(bytes_max=1, timeout_s=60)
            finished.set()

        threading.Thread(target=drain, daemon=True).start()
        stream.close()
        assert finished.wait(120)


def read_until_error(stream: BinlogStream) -> None:
    for _ in range(30):
        stream.read(bytes_max=1, timeout_s=1)


def test_a_lost_position_a_used_server_id_and_a_missing_privilege_say_what_to_do(any_server: DatabaseServer) -> None:
    with session(any_server, "root") as connection:
        end = log_end(connection)
        query(connection, "CREATE USER IF NOT EXISTS nobody@'%' IDENTIFIED BY 'nobody'")
    with (
        stream_from(any_server, BinlogOffset("binlog.999999", 4)) as stream,
        pytest.raises(LogLostError, match=r"startup\.mode"),
    ):
        read_until_error(stream)
    with stream_from(any_server, end, server_id=8003) as first:
        first.read(bytes_max=1, timeout_s=60)
        with stream_from(any_server, end, server_id=8003) as second:
            second.read(bytes_max=1, timeout_s=60)
            with pytest.raises(SourceError, match=r"server_id 8003.*source\.server_id"):
                read_until_error(first)
    with (
        pytest.raises(SourceError, match="GRANT REPLICATION SLAVE"),
        stream_from(any_server, end, user="nobody") as third,
    ):
        read_until_error(third)


def test_inspect_prints_row_changes_with_names_and_labels(any_server: DatabaseServer, any_database: str) -> None:
    with session(any_server, "root") as connection:
        query(connection, "FLUSH LOGS")
        query(
            connection,
            f"CREATE TABLE {any_database}.t (id INT UNSIGNED PRIMARY KEY, name VARCHAR(20), price DECIMAL(10,2), "
            "at DATETIME(3), kind ENUM('a','b'), raw VARBINARY(4))",
        )
        query(
            connection,
            f"INSERT INTO {any_database}.t VALUES (4294967295, 'ä', 1.50, '2024-02-29 01:02:03.4', 'b', x'00ff')",
        )
        query(connection, f"UPDATE {any_database}.t SET name = NULL")
        query(connection, f"DELETE FROM {any_database}.t")
        path = any_server.binlog_paths()[-1]
    out, errors = io.StringIO(), io.StringIO()
    assert inspect_binlog([path], None, out, errors) == ExitCode.DONE, errors.getvalue()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    changes = [line for line in lines if "op" in line and line["db"] == any_database]
    row = {
        "id": 4294967295,
        "name": "ä",
        "price": "1.50",
        "at": "2024-02-29 01:02:03.400",
        "kind": "b",
        "raw": {"$binary": "AP8="},
    }
    assert [(c["op"], c["before"], c["after"]) for c in changes] == [
        ("insert", None, row),
        ("update", row, row | {"name": None}),
        ("delete", row | {"name": None}, None),
    ]
    assert [line["type"] for line in lines if line.get("statement", "").startswith("CREATE TABLE")] == ["ddl"]


def test_inspect_of_files_in_a_row_knows_what_was_prepared_in_the_one_before(
    any_server: DatabaseServer, any_database: str, tmp_path: Path
) -> None:
    """The last file is the open one, as it is on disk while the server writes to it."""
    with session(any_server, "root") as connection, session(any_server, "root") as other:
        query(connection, f"CREATE TABLE {any_database}.t (id INT PRIMARY KEY)")
        for statement in ("XA START 'x'", f"INSERT INTO {any_database}.t VALUES (1)", "XA END 'x'", "XA PREPARE 'x'"):
            query(other, statement)
        query(connection, "FLUSH LOGS")
        query(connection, f"INSERT INTO {any_database}.t VALUES (2)")
        query(other, "XA COMMIT 'x'")
        paths = any_server.binlog_paths()[-2:]
    command = ["inspect", "binlog"]

    done = completed([*command, *map(str, paths)], environment=os.environ, folder=tmp_path)
    cut = tmp_path / paths[1].name
    cut.write_bytes(paths[1].read_bytes()[:-30])
    damaged = completed([*command, str(paths[0]), str(cut)], environment=os.environ, folder=tmp_path)

    lines = [json.loads(line) for line in done.stdout.splitlines()]
    rows = [(line["after"]["id"], line["file"]) for line in lines if line.get("db") == any_database and "op" in line]
    assert (done.returncode, done.stderr, rows) == (0, "", [(2, paths[1].name), (1, paths[1].name)])
    assert [line["next_file"] for line in lines if line.get("type") == "rotate"] == [paths[1].name]
    assert damaged.returncode == ExitCode.DATA
    assert damaged.stderr.count("\n") == 1
    assert damaged.stderr.startswith(f"{cut.name}:")
    assert damaged.stdout
    assert done.stdout.startswith(damaged.stdout)


def test_inspect_of_a_damaged_file_prints_what_precedes_the_damage(
    mariadb: MariaDbServer, mariadb_database: str, tmp_path: Any
) -> None:
    with session(mariadb, "root") as connection:
        query(connection, "FLUSH LOGS")
        query(connection, f"CREATE TABLE {mariadb_database}.t (id INT PRIMARY KEY)")
        for n in range(100):
            query(connection, f"INSERT INTO {mariadb_database}.t VALUES ({n})")
        data = bytearray(mariadb.binlog_paths()[-1].read_bytes())
    data[len(data) // 2] ^= 0x55
    damaged = tmp_path / "binlog.000042"
    damaged.write_bytes(data)
    out, errors = io.StringIO(), io.StringIO()

    assert inspect_binlog([damaged], None, out, errors) == ExitCode.DATA

    ids = [json.loads(line)["after"]["id"] for line in out.getvalue().splitlines() if '"op"' in line]
    assert ids == list(range(len(ids)))
    assert 20 < len(ids) < 80
    assert errors.getvalue().count("\n") == 1
    assert errors.getvalue().startswith("binlog.000042:")
