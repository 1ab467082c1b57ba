"""A log that is not the one that was read is lost by name, before anything is read of it; so is a damaged one."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from raycdc.cli.planning.check import check_start
from raycdc.connectors.mysql import source
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.driver.resolve import next_run
from raycdc.errors import LogLostError
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, MySqlNewestServer, MySqlServer
from raycdc.sandbox.servers.private import wait_until
from raycdc.source.snapshot.log.stream_state import stream_of
from raycdc.state.opaque import Position
from raycdc.state.store import CheckpointStore
from tests.integration.one_table_job import Job

pytestmark = pytest.mark.server

MAKERS: Mapping[str, Callable[[], DatabaseServer]] = {
    "mariadb": MariaDbServer,
    "mysql80": lambda: MySqlServer(version="8.0"),
    "mysql80_nogtid": lambda: MySqlServer(version="8.0", gtid=False),
    "mysql_newest": lambda: MySqlNewestServer({"binlog_transaction_compression": "ON"}),
}
AGAIN = {"on_log_lost": "resnapshot"}


@pytest.fixture(scope="module", params=list(MAKERS))
def own(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    """A server whose log these tests may reset."""
    if request.param == "mysql_newest" and not MySqlNewestServer.installed():
        pytest.skip("MySQL 9 is not here")
    with MAKERS[request.param]() as server:
        yield server


@pytest.fixture
def job(own: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setenv("RAYCDC_TEST_PASSWORD", "cdc")
    with own.fresh_database() as database:
        # Without GTIDs, each start of a snapshot waits for this time.
        job = Job(own, database, tmp_path, source={"snapshot": {"visible_within": "1s"}})
        reset(own)
        job.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        yield job


def reset(server: DatabaseServer) -> None:
    newest = isinstance(server, MySqlNewestServer)
    server.execute("RESET BINARY LOGS AND GTIDS" if newest else "RESET MASTER")


def transactions(job: Job, rows: range, value: int) -> None:
    for number in rows:
        job.execute(f"REPLACE INTO t VALUES ({number}, {value})")


def position(job: Job) -> BinlogOffset:
    state = stream_of(CheckpointStore(job.folder / "state", create=False).last_manifest())
    assert state is not None
    return BinlogOffset.of(state.position)


def told(job: Job, **more: Any) -> list[str]:
    """What `raycdc check` says of a start."""
    config = job.pipeline(**more).config
    return [result.text for result in check_start(next_run(config)) if result.error is LogLostError]


def require_lost_and_read_again(job: Job, values: dict[int, int], match: str) -> None:
    assert [text for text in told(job) if re.search(match, text)]
    with pytest.raises(LogLostError, match=match):
        job.catch_up()
    assert job.catch_up(pipeline=AGAIN) == {}
    assert {row["id"]: row["v"] for row in job.rows("t")} == values
    job.execute("INSERT INTO t VALUES (1000, 1)")
    assert job.catch_up() == {}
    assert {row["id"]: row["v"] for row in job.rows("t")} == {**values, 1000: 1}


def test_a_log_that_was_reset_and_has_grown_past_the_place_is_lost(job: Job) -> None:
    transactions(job, range(1, 11), 1)
    assert job.catch_up() == {}
    transactions(job, range(11, 21), 1)
    assert job.catch_up() == {}
    place = position(job)
    assert place.mark is not None
    assert place.mark.at
    reset(job.server)
    # The same statements with other values: events begin where they began, and the GTIDs are the same.
    job.execute("CREATE TABLE other (id INT PRIMARY KEY, v INT)", "DROP TABLE other")
    transactions(job, range(1, 41), 2)
    require_lost_and_read_again(job, dict.fromkeys(range(1, 41), 2), "is another file than the one that was read")


@pytest.mark.parametrize("own", ["mariadb", "mysql80"], indirect=True)
def test_a_log_that_was_reset_before_anything_was_read_of_it_is_lost(job: Job) -> None:
    """Its place has nothing but the beginning of the file before it, which is known to the second."""
    assert job.catch_up() == {}
    mark = position(job).mark
    assert mark is not None
    wait_until(lambda: job.server.scalar("SELECT UNIX_TIMESTAMP()") > mark.begun, timeout_s=10, what="a second passed")
    reset(job.server)
    transactions(job, range(1, 41), 2)
    require_lost_and_read_again(job, dict.fromkeys(range(1, 41), 2), "is another file than the one that was read")


@pytest.mark.parametrize("own", ["mariadb", "mysql80_nogtid"], indirect=True)
def test_a_place_inside_an_event_now_is_a_lost_log_also_of_a_state_without_a_mark(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions(job, range(1, 21), 1)
    with monkeypatch.context() as patch:
        patch.setattr(BinlogOffset, "sealed", without_mark)
        assert job.catch_up() == {}
        transactions(job, range(21, 31), 1)
        assert job.catch_up() == {}
        assert position(job).mark is None
    reset(job.server)
    if job.server.flavor == "mysql":
        job.execute("CREATE TABLE longer_name_of_a_table (id INT PRIMARY KEY, v LONGTEXT)")
        job.execute("INSERT INTO longer_name_of_a_table VALUES (1, REPEAT('x', 50000))")
    else:
        transactions(job, range(1, 60), 2)
    expected = {row[0]: row[1] for row in job.server.execute("SELECT id, v FROM t", database=job.database)}
    require_lost_and_read_again(job, expected, "log was reset|has not executed")


def damage(job: Job) -> None:
    """Change a byte of the last transaction of a file that is complete."""
    job.execute("FLUSH BINARY LOGS")
    path = job.server.binlog_paths()[-2]
    content = bytearray(path.read_bytes())
    content[-60] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize("own", ["mariadb", "mysql80"], indirect=True)
def test_a_log_that_is_damaged_behind_the_place_is_lost_before_it_is_read(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions(job, range(1, 4), 1)
    assert job.catch_up() == {}
    transactions(job, range(4, 8), 1)
    damage(job)
    with monkeypatch.context() as patch:
        # Where the damage is too far ahead, the run that meets it says the same, and the next start is near enough.
        patch.setattr(source, "read_ahead", lambda *_: None)
        with pytest.raises(LogLostError, match="the log cannot be read after"):
            job.catch_up()
    require_lost_and_read_again(job, dict.fromkeys(range(1, 8), 1), "cannot be read from")


@pytest.mark.parametrize("own", ["mariadb", "mysql80"], indirect=True)
def test_a_row_event_larger_than_what_the_server_takes_from_clients_is_read(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.server.execute("SET GLOBAL max_allowed_packet = 1 << 20")
    job.execute(
        "CREATE TABLE docs (id INT PRIMARY KEY, b LONGBLOB)", "INSERT INTO docs VALUES (1, REPEAT('a', 900000))"
    )
    try:
        assert job.catch_up() == {}
        # One event of 1.8 MB, and places behind it.
        job.execute("UPDATE docs SET b = REPEAT('b', 900000)")
        assert job.catch_up() == {}
        job.execute("INSERT INTO docs VALUES (2, 'c')")
        assert job.catch_up() == {}
        # Nor is it in the way of a state without a mark, or of a first start.
        with monkeypatch.context() as patch:
            patch.setattr(BinlogOffset, "sealed", without_mark)
            job.execute("INSERT INTO docs VALUES (3, 'd')")
            assert job.catch_up() == {}
        job.execute("INSERT INTO docs VALUES (4, 'e')")
        assert job.catch_up() == {}
    finally:
        job.server.execute("SET GLOBAL max_allowed_packet = DEFAULT")
    assert [row["b"]["$binary"][:4] for row in job.rows("docs")] == [
        base64.b64encode(text)[:4].decode() for text in (b"bbb", b"c", b"d", b"e")
    ]


def without_mark(self: BinlogOffset) -> Any:
    stored = self.to_json()
    stored.pop("mark", None)
    return Position.from_json(stored)
