"""``raycdc inspect binlog`` on files of real servers: every decoded row is printed, values as the server prints them.


How many changes there are is asked three times: the server counts what each statement changed, MySQL's own
``mysqlbinlog`` counts what its file holds, and mysql-replication what the server sends.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raycdc.cli.inspect import inspect_binlog as command
from raycdc.cli.inspect.inspect_binlog import inspect_binlog
from raycdc.clients.mysql import query
from raycdc.errors import ExitCode, RowsNotPrintedError
from raycdc.sandbox.cache import cache_dir
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, MySqlNewestServer, MySqlServer
from tests.support.sessions import session

pytestmark = pytest.mark.server


def inspected(path: Path, schema: Path | None = None) -> list[dict[str, Any]]:
    out, errors = io.StringIO(), io.StringIO()
    assert inspect_binlog([path], schema, out, errors) == ExitCode.DONE, errors.getvalue()
    return [json.loads(line) for line in out.getvalue().splitlines()]


def changes(path: Path, schema: Path | None = None) -> list[dict[str, Any]]:
    return [line for line in inspected(path, schema) if "op" in line]


@contextmanager
def compressed(server: DatabaseServer) -> Iterator[None]:
    """Sessions opened inside write what the server compresses."""
    on, off = (
        (
            ("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10"),
            ("SET GLOBAL log_bin_compress = OFF",),
        )
        if isinstance(server, MariaDbServer)
        else (
            ("SET GLOBAL binlog_transaction_compression = ON",),
            ("SET GLOBAL binlog_transaction_compression = OFF",),
        )
    )
    server.execute(*on)
    try:
        yield
    finally:
        server.execute(*off)


def changed(connection: Any, statement: str) -> int:
    """Run it; how many rows the server says it changed."""
    with connection.cursor() as cursor:
        return int(cursor.execute(statement))


def counted_by_mysqlbinlog(path: Path) -> int:
    home = cache_dir() / "mysql-newest" / "usr"
    libraries = home / "lib/x86_64-linux-gnu"
    found = f"{libraries}:{home}/lib/mysql/private"
    program: list[str | Path] = [libraries / "ld-linux-x86-64.so.2", "--library-path", found, home / "bin/mysqlbinlog"]
    bare = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
    done = subprocess.run([*program, "-v", path], capture_output=True, text=True, check=True, env=bare)
    return len(re.findall(r"^### (?:INSERT INTO|UPDATE|DELETE FROM) ", done.stdout, re.MULTILINE))


def counted_by_mysql_replication(server: DatabaseServer, file: str) -> int:
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

    # Of a MariaDB it reads from a GTID position on, whatever file it is told.
    mariadb = isinstance(server, MariaDbServer)
    begin = {"auto_position": str(server.execute(f"SELECT BINLOG_GTID_POS('{file}', 4)")[0][0])} if mariadb else {}
    reader = BinLogStreamReader(
        connection_settings={"host": server.host, "port": server.port, "user": "root", "passwd": "root"},
        server_id=8102,
        log_file=file,
        log_pos=4,
        resume_stream=True,
        is_mariadb=mariadb,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        **begin,
    )
    try:
        return sum(len(event.rows) for event in reader)
    finally:
        reader.close()


def change_columns_often(connection: Any, database: str) -> int:
    """A table that goes back and forth between shapes, so that the log repeats table maps it had; rows changed."""
    query(connection, f"CREATE TABLE {database}.t (id INT PRIMARY KEY AUTO_INCREMENT, name VARCHAR(20), at DATETIME)")
    count = 0
    for number in range(4):
        count += changed(connection, f"INSERT INTO {database}.t (name, at) VALUES ('n{number}', '2024-01-02 03:04:05')")
        query(connection, f"ALTER TABLE {database}.t ADD extra JSON FIRST, ADD more INT")
        count += changed(connection, f"INSERT INTO {database}.t (extra, more) VALUES ('{{\"a\": 1}}', 1), (NULL, 2)")
        count += changed(connection, f"UPDATE {database}.t SET name = 'u{number}', more = {number}")
        query(connection, f"ALTER TABLE {database}.t DROP extra, DROP more")
        count += changed(connection, f"UPDATE {database}.t SET name = 'v{number}'")
        count += changed(connection, f"DELETE FROM {database}.t WHERE id % 5 = {number}")
    return count


def test_every_row_of_a_table_that_changed_its_columns_is_printed(any_server: DatabaseServer) -> None:
    with any_server.fresh_database() as database, session(any_server, "root") as connection:
        change_columns_often(connection, database)
        query(connection, f"DROP TABLE {database}.t")
        query(connection, "FLUSH LOGS")
        count = change_columns_often(connection, database)
        path = any_server.binlog_paths()[-1]
        theirs = counted_by_mysql_replication(any_server, path.name)

    found = changes(path)

    assert (len(found), theirs) == (count, count)
    for change in found:
        for image in (change["before"], change["after"]):
            assert image is None or set(image) in (
                {"id", "name", "at"},
                {"id", "name", "at", "extra", "more"},
            )


@pytest.mark.parametrize("server_name", ["mariadb", "mysql_newest"])
def test_every_row_of_compressed_transactions_is_printed(server_name: str, request: pytest.FixtureRequest) -> None:
    """Of tables that the file does not create, of a transaction larger than a piece, and of the file's last one."""
    server: DatabaseServer = request.getfixturevalue(server_name)
    with server.fresh_database() as database, compressed(server), session(server, "root") as connection:
        query(connection, f"CREATE TABLE {database}.a (id INT PRIMARY KEY AUTO_INCREMENT, x TEXT)")
        query(connection, f"CREATE TABLE {database}.b (id INT PRIMARY KEY AUTO_INCREMENT, x TEXT)")
        query(connection, "FLUSH LOGS")
        count = changed(connection, f"INSERT INTO {database}.a (x) VALUES ('one'), ('two'), ('three')")
        count += changed(connection, f"INSERT INTO {database}.b (x) SELECT x FROM {database}.a")
        query(connection, "BEGIN")
        for _ in range(60):
            count += changed(connection, f"INSERT INTO {database}.b (x) VALUES (REPEAT('y', 200000)), ('z')")
        count += changed(connection, f"UPDATE {database}.a SET x = CONCAT(x, '!')")
        query(connection, "COMMIT")
        count += change_columns_often(connection, database)
        count += changed(connection, f"DELETE FROM {database}.a WHERE id < 3")
        path = server.binlog_paths()[-1]
        query(connection, "FLUSH LOGS")

    lines = inspected(path)

    assert sum("op" in line for line in lines) == count
    assert [line.get("op") for line in lines[-5:]] == [None, "delete", "delete", None, None]
    assert all(line["gtid"] for line in lines if "op" in line)
    if isinstance(server, MySqlNewestServer):
        assert counted_by_mysqlbinlog(path) == count
    ids = [line["after"]["id"] for line in lines if line.get("op") == "insert" and line["table"] == "b"]
    assert ids == sorted(ids)


def test_a_row_that_is_decoded_and_not_printed_ends_the_command(
    mariadb: MariaDbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mariadb.fresh_database() as database, session(mariadb, "root") as connection:
        query(connection, "FLUSH LOGS")
        query(connection, f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
        query(connection, f"INSERT INTO {database}.t VALUES (1), (2), (3)")
        path = mariadb.binlog_paths()[-1]
    printed_lines = command._FilePrinter._lines

    def forgetful(self: Any, lines: list[Any]) -> Iterator[str]:
        return printed_lines(self, lines[1:])

    monkeypatch.setattr(command._FilePrinter, "_lines", forgetful)
    with pytest.raises(RowsNotPrintedError, match=r"of 3 rows that were decoded .* 2 were printed") as raised:
        inspect_binlog([path], None, io.StringIO(), io.StringIO())
    assert raised.value.exit_code != ExitCode.DONE


def test_dates_of_no_calendar_read_as_the_server_prints_them(any_server: DatabaseServer, tmp_path: Path) -> None:
    columns = "id INT PRIMARY KEY, d DATE, dt DATETIME(3), ts TIMESTAMP(2) NULL, j JSON"
    rows = [
        "(1, '0000-00-00', '0000-00-00 00:00:00', '0000-00-00 00:00:00', '{\"at\": \"2024-01-02\"}')",
        "(2, '2024-00-00', '2024-05-00 01:02:03.4', '2024-01-02 03:04:05.6', '[]')",
        "(3, '0000-02-00', '0000-00-00 01:02:03.456', '1970-01-01 00:00:01', NULL)",
        "(4, '0001-01-01', '9999-12-31 23:59:59.999', NULL, 'null')",
    ]
    with any_server.fresh_database() as database, session(any_server, "root") as connection:
        query(connection, "SET time_zone = '+00:00', sql_mode = ''")
        query(connection, f"CREATE TABLE {database}.t ({columns})")
        query(connection, "FLUSH LOGS")
        query(connection, f"INSERT INTO {database}.t VALUES {', '.join(rows)}")
        path = any_server.binlog_paths()[-1]
        texts = "CAST(d AS CHAR), CAST(dt AS CHAR), CAST(ts AS CHAR)"
        theirs = query(connection, f"SELECT {texts} FROM {database}.t ORDER BY id")
    schema = tmp_path / "schema.sql"
    schema.write_text(f"CREATE TABLE t ({columns});\n")

    for given in (None, schema):
        ours = [tuple(change["after"][name] for name in ("d", "dt", "ts")) for change in changes(path, given)]
        assert ours == [tuple(row) for row in theirs]


def test_json_that_holds_dates_is_the_servers_text(mysql_newest: MySqlNewestServer) -> None:
    """Dates in a JSON value are opaque in the log; also in one that is logged as differences."""
    document = (
        "JSON_OBJECT('at', CAST('2020-01-02 03:04:05.5' AS DATETIME(6)), 'day', DATE'2020-01-02', "
        "'time', CAST('-10:11:12' AS TIME), 'bytes', x'0102', 'number', 1)"
    )
    with mysql_newest.fresh_database() as database, session(mysql_newest, "root") as connection:
        query(connection, "FLUSH LOGS")
        query(connection, f"CREATE TABLE {database}.t (id INT PRIMARY KEY, j JSON)")
        query(connection, f"INSERT INTO {database}.t VALUES (1, {document})")
        query(connection, "SET SESSION binlog_row_value_options = PARTIAL_JSON")
        query(connection, f"UPDATE {database}.t SET j = JSON_SET(j, '$.number', 2)")
        path = mysql_newest.binlog_paths()[-1]
        ((theirs,),) = query(connection, f"SELECT CAST(j AS CHAR) FROM {database}.t")
    inserted, updated = changes(path)
    assert updated["after"]["j"] == json.loads(theirs)
    assert inserted["after"] == updated["before"]


def test_text_of_an_unknown_character_set_gets_no_zeros(mysql57: MySqlServer) -> None:
    with mysql57.fresh_database() as database, session(mysql57, "root") as connection:
        query(connection, "FLUSH LOGS")
        query(connection, f"CREATE TABLE {database}.t (id INT PRIMARY KEY, c CHAR(10), b BINARY(4))")
        query(connection, f"INSERT INTO {database}.t VALUES (1, 'abc', 'xy')")
        path = mysql57.binlog_paths()[-1]
    (change,) = changes(path)
    assert change["after"] == {"@1": 1, "@2": "abc", "@3": "xy"}
