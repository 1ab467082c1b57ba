"""`raycdc run` and the Python API on real servers, nobody killed: hand-off, schema changes, who reads what."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from raycdc.config import load_config
from raycdc.observe.events import CaughtUp, Starting, Stopped
from raycdc.pipeline import Pipeline
from raycdc.sandbox.compare import check_changelog, compare_lake, final_rows, read_changelog, read_source
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer
from raycdc.sandbox.shop import HotRange, ShopSize, ShopWorkload, create_shop
from tests.run_lines import known_tables
from tests.support.jobs import Job, catch_up

pytestmark = pytest.mark.server

SIZE = ShopSize(customers=500, products=100, orders=5_000)
TABLES = ("customers", "products", "orders")
PASSWORD = "RAYCDC_TEST_PASSWORD"


def workload(server: DatabaseServer, database: str) -> AbstractContextManager[ShopWorkload]:
    """Transactions in the background, half of them on the first quarter of the orders."""
    work = ShopWorkload(
        lambda: server.connect(database=database),
        seed=1,
        database=database,
        size=SIZE,
        hot=lambda: HotRange(1, SIZE.orders // 4),
    )
    return work.running(pause_s=0.005)


def shop(server: DatabaseServer, name: str) -> None:
    with server.connect() as connection:
        create_shop(connection, name, SIZE)


def streaming(run: Any) -> bool:
    """Whether every table has been handed over to the log."""
    tables = known_tables(list(run.events))
    return bool(tables) and all(table["phase"] == "stream" for table in tables.values())


def test_snapshot_and_log_meet_without_a_seam_on_every_kind_of_server(
    any_server: DatabaseServer, tmp_path: Path
) -> None:
    database = "seam"
    any_server.execute(f"DROP DATABASE IF EXISTS {database}")
    shop(any_server, database)
    job = Job(tmp_path, any_server, database, TABLES, sink="jsonl", write="changelog", local=True, chunk_rows=250)
    with workload(any_server, database) as work:
        run = job.start()
        assert run.wait_for(lambda: streaming(run)), run.story()
        assert run.interrupt() == 130, run.story()
        assert sum(work.counts.values()) > 0
    catch_up(job)
    for table in TABLES:
        assert check_changelog(read_changelog(job.lake / database / table, "jsonl"), ["id"]) == []


def test_a_service_manager_that_ends_a_run_is_told_that_it_ended_well(mariadb: MariaDbServer, tmp_path: Path) -> None:
    mariadb.execute("CREATE OR REPLACE DATABASE ended", "CREATE TABLE ended.t (id INT PRIMARY KEY)")
    mariadb.execute("INSERT INTO ended.t VALUES (1)")
    run = Job(tmp_path, mariadb, "ended", ("t",), local=True).start()
    assert run.wait_for(lambda: streaming(run)), run.story()
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 0, run.story()


def test_a_column_added_mid_stream_reaches_the_lake(mariadb: MariaDbServer, tmp_path: Path) -> None:
    database = "added"
    shop(mariadb, database)
    job = Job(tmp_path, mariadb, database, TABLES, local=True)
    with workload(mariadb, database) as work:
        run = job.start()
        assert run.wait_for(lambda: streaming(run)), run.story()
        before = work.counts.total()
        mariadb.execute("ALTER TABLE customers ADD COLUMN points INT NOT NULL DEFAULT 7", database=database)
        assert run.wait_for(lambda: work.counts.total() > before + 100), run.story()
        assert run.interrupt() == 130, run.story()
    mariadb.execute("UPDATE customers SET points = id WHERE id <= 50", database=database)
    catch_up(job)
    with mariadb.connect() as connection:
        results = compare_lake(connection, job.lake, [(database, table) for table in TABLES])
    assert [problem for result in results for problem in result.problems] == []


@pytest.mark.long(suite="stories")
@pytest.mark.spark
def test_three_processes_read_the_chunks_of_one_table(mariadb: MariaDbServer, tmp_path: Path) -> None:
    database = "three"
    shop(mariadb, database)
    job = Job(tmp_path, mariadb, database, ("orders",), readers=3, chunk_rows=20)
    run = job.start("--until", "caught-up")
    assert run.wait() == 0, run.story()
    progress = [event for event in run.events if event["event"] == "progress"]
    readers = {
        reader["pid"]
        for event in progress
        for reader in event["readers"]
        if any(split.startswith(f"{database}.orders#") for split in reader["splits"])
    }
    assert len(readers) == 3
    assert run.pids()["driver"] not in readers
    for old, new in (
        ("currentFetchEventTimeLag", "current_fetch_event_time_lag_ms"),
        ("sourceIdleTime", "source_idle_time_ms"),
    ):
        assert progress[-1]["lag"][old] == progress[-1]["lag"][new]
    assert (progress[-1]["lag_ms"] or 0) >= 0
    with mariadb.connect() as connection:
        assert compare_lake(connection, job.lake, [(database, "orders")])[0].problems == ()


def test_epochs_give_every_change_once_to_people_with_a_sink_of_their_own(
    mariadb: MariaDbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = "own_sink"
    shop(mariadb, database)
    monkeypatch.setenv(PASSWORD, mariadb.cdc_user)
    job = Job(tmp_path, mariadb, database, ("orders",), sink="jsonl", write="changelog")
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []

    def consume() -> None:
        pipeline = Pipeline.from_config(load_config(job.configuration()))
        for epoch in pipeline.epochs(until="caught-up"):
            numbers.append(epoch.number)
            for table in epoch.tables:
                rows.extend(row for batch in epoch.batches(table) for row in batch.to_pylist())
            epoch.ack()

    consume()
    mariadb.execute("UPDATE orders SET quantity = quantity + 1 WHERE id <= 100", database=database)
    consume()
    assert numbers == sorted(set(numbers))
    assert check_changelog(rows, ["id"]) == []
    with mariadb.connect() as connection:
        columns = pa.schema([(name, pa.int64()) for name in ("id", "quantity")])
        source = read_source(connection, database, "orders", like=columns)
    held = final_rows(rows, ["id"], columns)
    assert sorted(held.to_pylist(), key=lambda row: row["id"]) == sorted(source.to_pylist(), key=lambda row: row["id"])


def test_a_pipeline_stopped_before_it_began_starts_nothing_and_may_run_again(
    mariadb: MariaDbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = "again"
    shop(mariadb, database)
    monkeypatch.setenv(PASSWORD, mariadb.cdc_user)
    job = Job(tmp_path, mariadb, database, ("products",), sink="jsonl", write="changelog")
    pipeline = Pipeline.from_config(load_config(job.configuration()))
    told: list[type] = []
    pipeline.stop()
    pipeline.run(until="caught-up", local=True, listener=lambda event: told.append(type(event)))
    assert set(told) <= {Starting, Stopped}
    for _ in range(2):
        pipeline.run(until="caught-up", local=True, listener=lambda event: told.append(type(event)))
    assert told.count(CaughtUp) == 2
    assert len(read_changelog(job.lake / database / "products", "jsonl")) == SIZE.products


def test_a_server_that_restarts_in_the_middle_of_the_snapshot_is_waited_for(tmp_path: Path) -> None:
    database = "restarted"
    with MariaDbServer() as server:
        shop(server, database)
        job = Job(tmp_path, server, database, TABLES, sink="jsonl", write="changelog", local=True, chunk_rows=20)
        run = job.start("--until", "caught-up")

        def outages() -> int:
            return sum(event["event"] == "warning" for event in list(run.events))

        assert run.wait_for(lambda: any(event["event"] == "commit" for event in list(run.events))), run.story()
        server.stop()
        assert run.wait_for(lambda: outages() > 0), run.story()  # Told once, however often it is tried.
        server.start()
        assert run.wait() == 0, run.story()
        for table in TABLES:
            rows = read_changelog(job.lake / database / table, "jsonl")
            assert check_changelog(rows, ["id"]) == []
            assert len(rows) == getattr(SIZE, table)


def test_a_statement_that_cannot_be_followed_ends_the_run_and_names_itself(
    mariadb: MariaDbServer, tmp_path: Path
) -> None:
    database = "emptied"
    shop(mariadb, database)
    job = Job(tmp_path, mariadb, database, ("products",), sink="jsonl", write="changelog", local=True)
    catch_up(job)
    mariadb.execute("ALTER TABLE products DROP PRIMARY KEY, ADD PRIMARY KEY (id, price)", database=database)
    run = job.start("--until", "caught-up")
    assert run.wait() == 4, run.story()
    errors = [event["text"] for event in run.events if event["event"] == "error"]
    assert "ALTER TABLE products DROP PRIMARY KEY" in errors[0]
