"""Another server takes over: the job goes on there by GTID, and the changelog does not show it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pymysql.err import OperationalError

from raycdc.connectors.mysql.binlog.positions.gtid import MySqlGtidSet
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.server.client import current_position, probe
from raycdc.connectors.mysql.server.failover import resume_position
from raycdc.errors import LogLostError
from raycdc.sandbox.compare import check_changelog, read_changelog
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, MySqlServer
from tests.support.jobs import Job, JobRun, catch_up
from tests.support.replicas import Forwarder, ReplicatedPair
from tests.support.sessions import session

pytestmark = pytest.mark.server

ROWS = 600


class JobAt(Job):
    """A job that reaches its server by another address."""

    address: tuple[str, int] | None = None

    def source_section(self) -> str:
        section = super().source_section()
        if self.address is None:
            return section
        return section.replace(f"port = {self.server.port}\n", f"port = {self.address[1]}\n")


@pytest.fixture(scope="module", params=["mariadb", "mysql80"])
def pair(request: pytest.FixtureRequest) -> Iterator[ReplicatedPair]:
    def make_mysql(options: Mapping[str, str | None]) -> DatabaseServer:
        # Four appliers that need not keep the order: what is executed has holes meanwhile.
        parallel = {"slave_parallel_workers": "4", "slave_parallel_type": "LOGICAL_CLOCK"}
        return MySqlServer({**options, **parallel}, version="8.0")

    with ReplicatedPair(MariaDbServer if request.param == "mariadb" else make_mysql) as pair:
        # The first primary's files have greater numbers than its replica's: places of the two must not be compared.
        pair.primary.execute(*["FLUSH LOGS"] * 5)
        yield pair


@pytest.fixture
def database(pair: ReplicatedPair, request: pytest.FixtureRequest) -> str:
    """A database with a table on both; it goes with the servers."""
    name = f"failover{abs(hash(request.node.name)) % 10**9}"
    rows = ", ".join(f"({n}, 0, 'row {n}')" for n in range(1, ROWS + 1))
    pair.primary.execute(f"CREATE DATABASE {name}")
    pair.primary.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT NOT NULL, w VARCHAR(20))",
        f"INSERT INTO t VALUES {rows}",
        database=name,
    )
    pair.wait_until_replicated()
    return name


@contextmanager
def changes(server: DatabaseServer, database: str) -> Iterator[None]:
    """Rows are inserted, updated, moved and deleted by two sessions while the block runs."""
    stop = threading.Event()

    def work(lane: int) -> None:
        with server.connect(database=database) as connection, connection.cursor() as cursor:
            for n in range(100_000):
                if stop.wait(0.005):
                    return
                with suppress(OperationalError):  # A deadlock of the two: rolled back.
                    change(cursor, n, lane)

    threads = [threading.Thread(target=work, args=(lane,), daemon=True) for lane in (0, 1)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(300)


def change(cursor: Any, n: int, lane: int) -> None:
    """Transaction `n` of a session."""
    key = 1 + (n * 37 + lane * 500) % ROWS
    cursor.execute("BEGIN")
    cursor.execute(f"UPDATE t SET v = v + 1 WHERE id % 50 = {key % 50} AND id % 2 = {lane}")
    if n % 5 == 0:
        cursor.execute(f"DELETE FROM t WHERE id = {key}")
        cursor.execute(f"INSERT IGNORE INTO t VALUES ({key}, -1, 'again')")
    if n % 7 == 0:
        cursor.execute(f"UPDATE IGNORE t SET id = id + {10_000 * (lane + 1)} WHERE id = {key}")
    cursor.execute("COMMIT")


def job_at(folder: Path, server: DatabaseServer, database: str) -> JobAt:
    folder.mkdir(exist_ok=True)
    return JobAt(
        folder, server, database, ["t"], sink="jsonl", write="changelog", local=True, chunk_rows=100, readers=2,
        snapshot="rows_per_second = 200", source='heartbeat = "1s"',
    )  # fmt: skip


def check(job: Job, server: DatabaseServer) -> None:
    """The changelog is one, and adds up to the table."""
    rows = read_changelog(job.lake / job.database / "t", "jsonl")
    assert check_changelog(rows, ["id"]) == []
    present: dict[int, tuple[int, str]] = {}
    for row in sorted(rows, key=lambda each: each["_seq"]):
        if row["_op"] in ("+I", "+U"):
            present[row["id"]] = (row["v"], row["w"])
        else:
            del present[row["id"]]
    there = server.execute("SELECT id, v, w FROM t", database=job.database)
    assert present == {key: (v, w) for key, v, w in there}


def committed(run: JobRun) -> int:
    """Rows the run's commits have told of."""
    return sum(event["rows"] for event in list(run.events) if event["event"] == "commit")


def test_a_job_started_again_at_the_replica_goes_on_there(pair: ReplicatedPair, database: str, tmp_path: Path) -> None:
    job = job_at(tmp_path / "job", pair.primary, database)
    with changes(pair.primary, database):
        # Chunks are open and others in manifests when it dies.
        assert job.start(failpoints="after_manifest=kill@2").wait() != 0
    pair.promote()
    job.server = pair.primary
    catch_up(job)  # The rest of the snapshot; what the log has behind the last epoch was replicated, all of it.
    check(job, pair.primary)
    pair.swap_back()


@pytest.mark.long_variants("mysql80", suite="servers")
def test_a_running_job_follows_its_address_to_the_replica(pair: ReplicatedPair, database: str, tmp_path: Path) -> None:
    job = job_at(tmp_path / "job", pair.primary, database)
    with Forwarder((pair.primary.host, pair.primary.port)) as address:
        job.address = (address.host, address.port)
        run = job.start()
        with changes(pair.primary, database):
            assert run.wait_for(lambda: committed(run) > 0), run.story()
        pair.promote()
        address.target = (pair.primary.host, pair.primary.port)
        address.cut()
        with changes(pair.primary, database):
            assert run.wait_for(lambda: committed(run) > ROWS), run.story()
        assert run.interrupt() in (0, 130), run.story()
        catch_up(job)
        check(job, pair.primary)
    pair.swap_back()


def test_a_server_that_lacks_transactions_is_refused_by_their_names(pair: ReplicatedPair, database: str) -> None:
    with session(pair.primary, "root") as old, session(pair.replica, "root") as new:
        info = probe(new)
        before = current_position(old, probe(old))
        pair.replica.execute("STOP SLAVE")
        pair.primary.execute("INSERT INTO t VALUES (0, 0, 'late')", database=database)
        after = current_position(old, probe(old))

        with pytest.raises(LogLostError, match=f"has not executed the transactions {last_of(after, before)},"):
            resume_position(new, info, after, catch_up_s=0.1)
        threading.Thread(target=pair.replica.execute, args=("START SLAVE",)).start()  # It catches up meanwhile.
        place = resume_position(new, info, after)
        assert (place.gtid_set, place.server, place.by_gtid) == (after.gtid_set, info.identity, True)
        assert resume_position(new, info, place) == place
        with pytest.raises(LogLostError, match="without GTIDs"):
            resume_position(new, info, replace(after, gtid_set=""))

        pair.replica.purge_logs()
        with pytest.raises(LogLostError, match=f"{last_of(after, before)} come after .* and are purged"):
            resume_position(new, info, before)

        # A replica that was reset has executed nothing, also when it has a log again.
        pair.replica.execute("STOP SLAVE", "RESET SLAVE ALL", "RESET MASTER")
        for number in range(2):
            with pytest.raises(LogLostError, match="has not executed the transactions"):
                resume_position(new, probe(new), before, catch_up_s=0.1)
            pair.replica.execute(f"INSERT INTO t VALUES ({-1 - number}, 0, 'own')", database=database)


@pytest.mark.long_variants("mysql80", suite="servers")
@pytest.mark.parametrize("kind", ["mariadb", "mysql80"])
def test_a_server_that_the_same_scripts_made_is_not_the_one_that_was_read(kind: str, tmp_path: Path) -> None:
    """MySQL without GTIDs has a UUID; MariaDB, whose server id and GTIDs are the same, its log's mark."""

    def make() -> DatabaseServer:
        return MariaDbServer() if kind == "mariadb" else MySqlServer(version="8.0", gtid=False)

    def scripts(server: DatabaseServer, value: int) -> None:
        server.execute("CREATE DATABASE d")
        server.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT NOT NULL, w VARCHAR(20))", database="d")
        server.execute(*(f"INSERT INTO t VALUES ({n}, {value}, 'x')" for n in range(20)), database="d")

    with make() as one:
        scripts(one, 1)
        job = job_at(tmp_path / "job", one, "d")
        catch_up(job)
        with make() as other:
            scripts(other, 2)
            job.server = other
            run = job.run()
            assert run.wait() == 3, run.story()
            assert (
                "is another file than the one that was read" if kind == "mariadb" else "without GTIDs"
            ) in run.story()
        job.server = one
        catch_up(job)
        check(job, one)


def last_of(after: BinlogOffset, before: BinlogOffset) -> str:
    """The transactions between two positions, as the refusals name them."""
    if ":" not in after.gtid_set:
        return after.gtid_set
    return str(MySqlGtidSet.parse(after.gtid_set).without(MySqlGtidSet.parse(before.gtid_set)))
