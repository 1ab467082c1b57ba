"""Where a pipeline without state begins in the log: each mode of ``source.startup`` through `raycdc run --local`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from raycdc.clients.mysql import query
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.server.client import current_position, probe
from raycdc.sandbox.compare import read_changelog
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer
from tests.support.jobs import Job, catch_up
from tests.support.sessions import session

pytestmark = pytest.mark.server


def position(server: DatabaseServer) -> BinlogOffset:
    with session(server, "root") as connection:
        return current_position(connection, probe(connection))


def insert(server: DatabaseServer, database: str, *ids: int) -> None:
    server.execute(f"INSERT INTO t VALUES {', '.join(f'({n})' for n in ids)}", database=database)


def changes(
    folder: Path, server: DatabaseServer, database: str, startup: Mapping[str, object], *, again: bool = False
) -> list[int]:
    """Ids of the changelog's inserts of a pipeline that begins there and stops at the log's end."""
    options = ", ".join(f"{key} = {json.dumps(value)}" for key, value in startup.items())
    job = Job(
        folder, server, database, ["t"], sink="jsonl", write="changelog", local=True,
        source=f"startup = {{ {options} }}",
    )  # fmt: skip
    folder.mkdir()
    catch_up(job)
    if again:
        insert(server, database, 1001)
        catch_up(job)  # goes on from its state, whatever the options say
    rows = read_changelog(job.lake / database / "t", "jsonl")
    return [row["id"] for row in sorted(rows, key=lambda row: row["_seq"]) if row["_op"] == "+I"]


@pytest.fixture(params=["mariadb", "mysql80"])
def server(request: pytest.FixtureRequest) -> DatabaseServer:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, DatabaseServer)
    return found


@pytest.fixture
def database(server: DatabaseServer) -> Iterator[str]:
    with server.fresh_database() as name:
        yield name


def test_a_place_in_the_log_is_where_rows_begin(server: DatabaseServer, database: str, tmp_path: Path) -> None:
    server.execute("CREATE TABLE t (id INT PRIMARY KEY)", database=database)
    insert(server, database, 1)
    place = position(server)
    with session(server, "root") as connection:
        # MariaDB's log has whole seconds, of the session's clock; MySQL's has the commit's own time.
        query(connection, "SET SESSION timestamp = UNIX_TIMESTAMP() + 3600")
        [(now,)] = query(connection, "SELECT FLOOR(UNIX_TIMESTAMP(SYSDATE(6)) * 1000)")
        query(connection, f"INSERT INTO {database}.t VALUES (2), (3)")
        query(connection, "FLUSH LOGS")
        query(connection, f"INSERT INTO {database}.t VALUES (4)")
    since = int(now) + (1_800_000 if isinstance(server, MariaDbServer) else 0)

    skipping = {"mode": "offset", "file": place.file, "pos": place.pos, "skip_rows": 1}
    assert changes(tmp_path / "offset", server, database, skipping) == [3, 4]
    assert changes(tmp_path / "time", server, database, {"mode": "timestamp", "timestamp_ms": since}) == [2, 3, 4]
    gtids = {"mode": "offset", "gtid_set": place.gtid_set}
    assert changes(tmp_path / "gtids", server, database, gtids, again=True) == [2, 3, 4, 1001]


@pytest.mark.long_variants("mysql80", suite="servers")
def test_earliest_follows_a_table_from_its_creation(server: DatabaseServer, database: str, tmp_path: Path) -> None:
    server.execute("CREATE TABLE t (id INT PRIMARY KEY)", database=database)
    insert(server, database, 1, 2)
    insert(server, database, 3)

    assert changes(tmp_path / "job", server, database, {"mode": "earliest"}, again=True) == [1, 2, 3, 1001]
