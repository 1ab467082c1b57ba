"""A chunk sees everything before it was opened, and nothing behind its high watermark, while writers commit.

One writer's n-th transaction sets row ``n % KEYS`` to n, so the rows a SELECT saw say which n was the last it saw, and
the server's own log says which transactions lie before a position.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from raycdc.clients.mysql import query
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.connectors.mysql.server.client import MySqlServerInfo, current_position, probe, start_position
from raycdc.connectors.mysql.snapshot import chunk_reader as visibility
from raycdc.connectors.mysql.snapshot import consistent
from raycdc.connectors.mysql.snapshot.chunk_reader import ChunkSelect, read_chunk
from raycdc.connectors.mysql.snapshot.planning.chunk_plan import ChunkRange
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import SourceError
from raycdc.model import TableId
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, MySqlServer
from tests.support.sessions import session

pytestmark = pytest.mark.server

KEYS = 40
#: Between two transactions of a writer, so that the log does not outgrow the test.
PACE_S = 0.001
WHOLE = ChunkRange(includes_null=True)
#: Believing the server's answer fails in one of five such runs on two cores.
CROWDED_READS = 40


class LoggedTransactions:
    """The transactions on ``t`` in the server's log since construction, as (end position, GTID)."""

    def __init__(self, server: DatabaseServer, database: str) -> None:
        self._server = server
        self._table = f"({database}.t)"
        server.execute("FLUSH BINARY LOGS")
        self._file = server.execute("SHOW BINARY LOGS")[-1][0]
        self._next = 4
        self._found: list[tuple[BinlogOffset, str]] = []

    def all(self) -> list[tuple[BinlogOffset, str]]:
        """Reads on from the last transaction it knows."""
        ours, gtid = False, ""
        statement = f"SHOW BINLOG EVENTS IN '{self._file}' FROM {self._next} LIMIT 20000"
        for _, _, kind, _, end, info in self._server.execute(statement):
            if kind == "Gtid":
                gtid, ours = str(info).partition("'")[2].rstrip("'"), False
            elif kind == "Table_map":
                ours = ours or self._table in str(info)
            elif kind == "Xid":
                self._next = end
                if ours:
                    self._found.append((BinlogOffset(self._file, end), gtid))
                ours = False
        return self._found

    def count(self, offset: BinlogOffset) -> int:
        return sum(end <= offset for end, _ in self.all())


def make_table(server: DatabaseServer, database: str) -> MySqlTable:
    server.execute(
        f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, v INT NOT NULL)",
        f"CREATE TABLE `{database}`.noise (id INT PRIMARY KEY AUTO_INCREMENT, v INT)",
        f"INSERT INTO `{database}`.t VALUES " + ", ".join(f"({key}, 0)" for key in range(KEYS)),
    )
    with session(server) as connection:
        return load_table(connection, TableId(database, "t"))


@contextmanager
def writers(server: DatabaseServer, database: str) -> Iterator[None]:
    """Commit as fast as the server takes it: numbered transactions on ``t``, others on ``noise``."""
    stop = threading.Event()
    started = threading.Barrier(4)

    def numbered(connection: Any) -> None:
        number = 0
        while not stop.wait(PACE_S):
            number += 1
            query(connection, f"UPDATE `{database}`.t SET v = {number} WHERE id = {number % KEYS}")

    def noise(connection: Any) -> None:
        while not stop.wait(PACE_S):
            query(connection, f"INSERT INTO `{database}`.noise (v) VALUES (1)")

    def run(work: Any) -> None:
        with session(server, "root") as connection:
            started.wait()
            work(connection)

    threads = [threading.Thread(target=run, args=(work,)) for work in (numbered, noise, noise)]
    for thread in threads:
        thread.start()
    started.wait()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def last_seen(rows: list[dict[str, int]]) -> int:
    """The number of the last transaction in these rows, which must be those of exactly that moment."""
    last = max(row["v"] for row in rows)
    expected = {
        key: max((n for n in range(max(0, last - KEYS + 1), last + 1) if n % KEYS == key), default=0)
        for key in range(KEYS)
    }
    assert {row["id"]: row["v"] for row in rows} == {key: max(0, value) for key, value in expected.items()}
    return last


def all_rows(connection: Any, info: MySqlServerInfo, table: MySqlTable, opened: BinlogOffset) -> list[dict[str, int]]:
    return [
        row for batch in read_chunk(connection, info, ChunkSelect(table, WHOLE), opened) for row in batch.to_pylist()
    ]


def opened_like_a_log_reader(info: MySqlServerInfo, log: LoggedTransactions) -> tuple[BinlogOffset, int]:
    """The end of the log as its reader knows it, with its GTID set, and how many transactions it has read."""
    found = log.all()
    end, gtid = found[-1]
    if info.is_mariadb or not info.gtid_mode:
        return end, len(found)
    source, _, number = gtid.partition(":")
    return BinlogOffset(end.file, end.pos, f"{source}:1-{number}"), len(found)


def test_a_chunk_sees_all_before_its_opening_and_nothing_behind_its_end(
    any_server: DatabaseServer, any_database: str
) -> None:
    table = make_table(any_server, any_database)
    log = LoggedTransactions(any_server, any_database)
    with session(any_server) as connection, writers(any_server, any_database):
        info = probe(connection)
        for _ in range(4):
            if not log.all():
                continue
            opened, before = opened_like_a_log_reader(info, log)
            read = read_chunk(connection, info, ChunkSelect(table, WHOLE), opened)
            seen = last_seen([row for batch in read for row in batch.to_pylist()])
            behind = log.count(read.end.high_watermark)
            assert seen <= behind
            assert read.end.high_watermark >= opened
            if info.gtid_mode:
                assert seen >= before
            if read.end.exact:
                assert info.is_mariadb
                assert seen == behind
        assert query(connection, "SELECT @@in_transaction" if info.is_mariadb else "SELECT 0") == [(0,)]


@contextmanager
def status_readers(server: DatabaseServer) -> Iterator[None]:
    """Sessions that ask how far snapshots opened now would show, again and again, as monitoring agents do."""
    stop = threading.Event()
    look = "SELECT COUNT(*) INTO @found FROM information_schema.SESSION_STATUS WHERE VARIABLE_NAME LIKE 'binlog_snap%'"

    def ask() -> None:
        with session(server, "root") as connection:
            while not stop.is_set():
                query(connection, f"BEGIN NOT ATOMIC FOR n IN 1 .. 100 DO {look}; END FOR; END")

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        try:
            yield
        finally:
            stop.set()
    for each in asking:
        each.result()


def test_sessions_that_ask_for_the_place_of_snapshots_do_not_move_a_chunk(mariadb: MariaDbServer) -> None:
    """MariaDB answers with the place of another session's snapshot then."""
    with mariadb.fresh_database() as database:
        table = make_table(mariadb, database)
        log = LoggedTransactions(mariadb, database)
        # Rows without a key cannot be matched to changes, so they should be those of one place.
        keyless = replace(table, primary_key=())
        exact = 0
        with session(mariadb) as connection, writers(mariadb, database), status_readers(mariadb):
            info = probe(connection)
            for number in range(CROWDED_READS):
                if not log.all():
                    continue
                opened, before = opened_like_a_log_reader(info, log)
                read = read_chunk(connection, info, ChunkSelect(keyless if number % 2 else table, WHOLE), opened)
                seen = last_seen([row for batch in read for row in batch.to_pylist()])
                behind = log.count(read.end.high_watermark)
                assert before <= seen <= behind
                if read.end.exact:
                    assert seen == behind
                    exact += number % 2
        assert exact


@pytest.mark.parametrize("keyed", [True, False])
def test_a_commit_while_a_snapshot_is_opened_is_not_taken_for_seen(
    mariadb: MariaDbServer, monkeypatch: pytest.MonkeyPatch, keyed: bool
) -> None:
    opened_snapshots = 0

    def query_and_commit(connection: Any, sql: str, *values: Any) -> Any:
        nonlocal opened_snapshots
        found = query(connection, sql, *values)
        if sql.startswith("START TRANSACTION"):
            opened_snapshots += 1
            if opened_snapshots < 3:
                mariadb.execute(f"INSERT INTO `{database}`.t VALUES ({1000 + opened_snapshots}, 0)")
        return found

    monkeypatch.setattr(consistent, "query", query_and_commit)
    with mariadb.fresh_database() as database, session(mariadb) as connection:
        table = make_table(mariadb, database)
        info = probe(connection)
        opened = current_position(connection, info)
        described = replace(table, primary_key=table.primary_key if keyed else ())
        read = read_chunk(connection, info, ChunkSelect(described, WHOLE), opened)
        seen = {row["id"] for batch in read for row in batch.to_pylist()} - set(range(KEYS))
        # With a key, what the log has up to there is folded in; without, the third snapshot is at one known place.
        assert (read.end.exact, opened_snapshots, seen) == ((False, 1, set()) if keyed else (True, 3, {1001, 1002}))
        assert read.end.high_watermark == current_position(connection, info)
        assert read.end.high_watermark > opened


def test_everything_before_a_start_position_is_visible(any_server: DatabaseServer, any_database: str) -> None:
    make_table(any_server, any_database)
    log = LoggedTransactions(any_server, any_database)
    with session(any_server) as connection, writers(any_server, any_database):
        info = probe(connection)
        for _ in range(3):
            start = start_position(connection, info)
            seen = query(connection, f"SELECT MAX(v) FROM `{any_database}`.t")[0][0]
            if not info.is_mariadb:
                assert seen >= log.count(start)


def test_the_position_of_a_quiet_server_has_every_transaction_before_it(any_server: DatabaseServer) -> None:
    with any_server.fresh_database() as database, session(any_server) as connection:
        info = probe(connection)
        any_server.execute(f"CREATE TABLE `{database}`.x (id INT PRIMARY KEY)")
        start = start_position(connection, info)
        assert start == current_position(connection, info)
        if info.is_mariadb:
            assert start.gtid_set == any_server.scalar("SELECT @@GLOBAL.gtid_binlog_pos")
        elif info.gtid_mode:
            assert start.gtid_set == any_server.scalar("SELECT @@GLOBAL.gtid_executed").replace("\n", "")
        else:
            assert start.gtid_set == ""


def test_a_chunk_waits_for_what_its_log_reader_has_read_already(mariadb: MariaDbServer, mysql80: MySqlServer) -> None:
    """A log reader gets a transaction before SELECTs see it; here it claims one that is still to come."""
    for server in (mariadb, mysql80):
        with server.fresh_database() as database, session(server) as connection, ThreadPoolExecutor(1) as pool:
            table = make_table(server, database)
            info = probe(connection)
            now = current_position(connection, info)
            ahead = now.gtid_set
            if not info.is_mariadb:
                source, _, last = server.scalar("SELECT @@GLOBAL.gtid_executed").rpartition(":")
                ahead = f"{source}:1-{int(last.rpartition('-')[2]) + 1}"
            opened = BinlogOffset(now.file, now.pos + 1, ahead)
            rows = pool.submit(all_rows, connection, info, table, opened)
            with pytest.raises(TimeoutError):
                rows.result(timeout=0.3)
            server.execute(f"INSERT INTO `{database}`.t VALUES (1000, 7)")
            assert {"id": 1000, "v": 7} in rows.result(timeout=120)


def test_reading_a_chunk_blocks_no_writer(any_server: DatabaseServer, any_database: str) -> None:
    table = make_table(any_server, any_database)
    with session(any_server) as connection, session(any_server, "root") as writer:
        info = probe(connection)
        query(writer, "SET SESSION innodb_lock_wait_timeout = 1")
        read = read_chunk(connection, info, ChunkSelect(table, WHOLE), current_position(connection, info))
        batches = iter(read)
        first = next(batches)
        query(writer, f"UPDATE `{any_database}`.t SET v = -1")
        query(writer, f"DELETE FROM `{any_database}`.t")
        assert [set(first["v"].to_pylist()), list(batches)] == [{0}, []]


def test_columns_and_filter_limit_what_is_read(any_server: DatabaseServer, any_database: str) -> None:
    table = make_table(any_server, any_database)
    with session(any_server) as connection:
        info = probe(connection)
        chunk = ChunkRange(10, 20, key="id")
        opened = current_position(connection, info)
        read = read_chunk(connection, info, ChunkSelect(table, chunk, ["id"], "id % 2 = 1 OR id = 12"), opened)
        assert [batch.to_pydict() for batch in read] == [{"id": [11, 12, 13, 15, 17, 19]}]
        assert read.end.high_watermark >= opened


def test_a_position_that_never_becomes_visible_is_a_named_error(
    mariadb: MariaDbServer, mysql80: MySqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visibility, "VISIBILITY_TIMEOUT_S", 0.2)
    with mariadb.fresh_database() as database, session(mariadb) as connection:
        table = make_table(mariadb, database)
        opened = BinlogOffset("binlog.999999", 4)
        with pytest.raises(SourceError, match=r"shows rows of binlog\.\d+:\d+ only, while its log was read up to"):
            list(read_chunk(connection, probe(connection), ChunkSelect(table, WHOLE), opened))
        assert query(connection, "SELECT @@in_transaction") == [(0,)]
    with mysql80.fresh_database() as database, session(mysql80) as connection:
        table = make_table(mysql80, database)
        info = probe(connection)
        now = current_position(connection, info)
        opened = BinlogOffset(now.file, now.pos, f"{info.server_uuid}:1-999999999")
        with pytest.raises(SourceError, match="did not make the transactions"):
            list(read_chunk(connection, info, ChunkSelect(table, WHOLE), opened))
        assert query(connection, "SELECT 1") == [(1,)]
