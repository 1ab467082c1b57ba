"""MySQL without GTIDs: what is in the log is waited for by looking at who commits, while commits take very long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from raycdc.clients.mysql import query
from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.connectors.mysql.server.client import current_position, probe
from raycdc.connectors.mysql.snapshot import commits
from raycdc.connectors.mysql.snapshot.chunk_reader import ChunkSelect, read_chunk
from raycdc.connectors.mysql.snapshot.commits import CommitWatch, sees_commits, wait_until_visible
from raycdc.connectors.mysql.snapshot.planning.chunk_plan import ChunkRange
from raycdc.errors import SourceError
from raycdc.model import TableId
from raycdc.sandbox.servers import DatabaseServer, MySqlServer
from tests.support.sessions import session

pytestmark = pytest.mark.server

#: A transaction is in the log this long before it is visible.
WINDOW_MS = 400
#: What no test waits for: the time after which a wait gives up.
NEVER_S = 600.0


@pytest.fixture
def slow(mysql80_nogtid: MySqlServer) -> Iterator[MySqlServer]:
    """Every commit hangs between the log and visibility."""
    mysql80_nogtid.execute(f"SET GLOBAL binlog_group_commit_sync_delay = {WINDOW_MS * 1000}")
    try:
        yield mysql80_nogtid
    finally:
        mysql80_nogtid.execute("SET GLOBAL binlog_group_commit_sync_delay = 0")


@pytest.fixture
def database(slow: MySqlServer) -> Iterator[str]:
    with slow.fresh_database() as name:
        slow.execute(
            "SET SESSION sql_log_bin = 0",
            f"CREATE TABLE `{name}`.t (id INT PRIMARY KEY, v INT)",
            f"INSERT INTO `{name}`.t SELECT n, 0 FROM (SELECT 1 n UNION SELECT 2 UNION SELECT 3) x",
        )
        yield name


def until(condition: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        threading.Event().wait(0.002)


@contextmanager
def running(server: DatabaseServer, *statements: str) -> Iterator[None]:
    """The statements in a session of their own, in the background; waited for at the end."""

    def work() -> None:
        with session(server, "root") as connection:
            for statement in statements:
                query(connection, statement)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        yield
        done.result(timeout=300)


@contextmanager
def in_the_log_and_invisible(server: DatabaseServer, *statements: str) -> Iterator[Any]:
    """The statements commit in the background; inside, they are in the log and (with luck) nobody sees them yet."""
    with session(server, "root") as watcher:
        info = probe(watcher)
        before = current_position(watcher, info)
        with running(server, *statements):
            until(lambda: current_position(watcher, info) > before)
            yield current_position(watcher, info)


def test_what_is_in_the_log_is_visible_after_the_wait(slow: MySqlServer, database: str) -> None:
    with session(slow, "root") as connection:
        for number in range(1, 4):
            with in_the_log_and_invisible(slow, f"UPDATE `{database}`.t SET v = {number} WHERE id = 1"):
                assert wait_until_visible(connection, timeout_s=NEVER_S)
                assert query(connection, f"SELECT v FROM `{database}`.t WHERE id = 1") == [(number,)]


def test_xa_and_several_sessions_in_their_commits_are_waited_for(slow: MySqlServer, database: str) -> None:
    first = ("XA START 'a'", f"UPDATE `{database}`.t SET v = 5 WHERE id = 1", "XA END 'a'", "XA PREPARE 'a'")
    with session(slow, "root") as connection:
        with running(slow, *first):
            pass
        with (
            in_the_log_and_invisible(slow, "XA COMMIT 'a'"),
            in_the_log_and_invisible(slow, f"UPDATE `{database}`.t SET v = 6 WHERE id = 2"),
        ):
            assert wait_until_visible(connection, timeout_s=NEVER_S)
            assert query(connection, f"SELECT v FROM `{database}`.t WHERE id <= 2") == [(5,), (6,)]


def test_sessions_that_commit_nothing_hold_nobody_up(slow: MySqlServer, database: str) -> None:
    """An open transaction, a long query, one inside a long statement that waits for a lock, a prepared XA."""
    with session(slow, "root") as connection, session(slow, "root") as idle, session(slow, "root") as killer:
        query(idle, "BEGIN")
        query(idle, f"UPDATE `{database}`.t SET v = 9 WHERE id = 3")
        blocked = f"UPDATE `{database}`.t SET v = v + 1"
        with ThreadPoolExecutor(2) as pool, session(slow, "root") as waiting, session(slow, "root") as sleeping:
            pool.submit(query, waiting, blocked)
            pool.submit(query, sleeping, f"SELECT SLEEP(600) FROM `{database}`.t WHERE id = 1")
            until(lambda: len(commits._busy_sessions(killer)) >= 2)
            assert wait_until_visible(connection, timeout_s=NEVER_S)
            query(killer, f"KILL QUERY {sleeping.thread_id()}")
            query(idle, "ROLLBACK")


def test_a_chunk_sees_what_its_log_reader_has_read(slow: MySqlServer, database: str) -> None:
    with session(slow, "root") as connection:
        info = probe(connection)
        table = load_table(connection, TableId(database, "t"))
        watch = CommitWatch(connection, timeout_s=NEVER_S)
        for number in range(1, 4):
            change = f"UPDATE `{database}`.t SET v = {number} WHERE id = 2"
            with in_the_log_and_invisible(slow, change) as opened:
                read = read_chunk(
                    connection, info, ChunkSelect(table, ChunkRange(2, 3, key="id")), opened, commits=watch
                )
                assert [batch["v"].to_pylist() for batch in read] == [[number]]


def test_chunks_being_read_hold_no_other_chunk_up(slow: MySqlServer, database: str) -> None:
    """A chunk's own SELECT is known for what it is, in the binary protocol too."""
    with session(slow, "root") as connection, session(slow, "root") as reading:
        info = probe(connection)
        table = load_table(connection, TableId(database, "t"))
        slow_filter = "SLEEP(0.3) = 0"
        opened = current_position(connection, info)
        read = read_chunk(
            reading, info, ChunkSelect(table, ChunkRange(includes_null=True), row_filter=slow_filter), opened
        )
        with ThreadPoolExecutor(1) as pool:
            rows = pool.submit(lambda: [row for batch in read for row in batch.to_pylist()])
            active = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE '%SLEEP(0.3)%'"
            until(lambda: query(connection, active)[0][0] >= 2)
            assert reading.thread_id() not in commits._busy_sessions(connection)
            assert len(rows.result(timeout=300)) == 3


def test_an_older_list_of_transactions_is_not_taken_for_a_new_one(slow: MySqlServer) -> None:
    with session(slow, "root") as one, session(slow, "root") as other:
        until(lambda: commits._transactions(one) is not None)
        assert commits._transactions(other) is None
        assert query(other, "SELECT COUNT(*) FROM information_schema.innodb_trx") is not None


def test_without_the_privilege_only_time_is_waited_for(slow: MySqlServer) -> None:
    with session(slow, "cdc") as connection:
        assert not sees_commits(connection, probe(connection))
        assert not wait_until_visible(connection, timeout_s=0.01)
    with session(slow, "root") as connection:
        assert sees_commits(connection, probe(connection))


def test_a_wait_that_ends_undecided_lasted_as_long_as_was_asked(
    slow: MySqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(connection: Any) -> Any:
        raise SourceError("Access denied")

    monkeypatch.setattr(commits, "_transactions", refused)
    monkeypatch.setattr(commits, "_busy_sessions", lambda connection: {1: None})
    with session(slow, "root") as connection:
        before = time.monotonic()
        assert not wait_until_visible(connection, timeout_s=0.2)
        assert time.monotonic() - before >= 0.2
