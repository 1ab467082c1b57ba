"""A source is read at no more than its pace, the log included, whoever reads it."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Producer

from raycdc.model.rules.rate_limit import FETCH_S
from raycdc.sandbox.compare import read_changelog
from raycdc.sandbox.servers import KafkaServer, MariaDbServer, MongoDb
from raycdc.source.reader.reader_quota import SLACK_S
from tests.support.forked_commands import completed
from tests.support.jobs import CollectionJob, Job, TopicJob

pytestmark = pytest.mark.server

RATE = 400
#: What a lane may read ahead of its time: a fetch, and a little.
CREDIT = RATE * (FETCH_S + SLACK_S)


def test_two_readers_keep_to_one_pace_in_the_snapshot_and_in_the_log(
    mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    fill = "INSERT INTO t SELECT seq, REPEAT('x', 40) FROM {}"
    mariadb.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, note VARCHAR(50))", fill.format("seq_1_to_800"), database=mariadb_database
    )
    job = Job(
        tmp_path,
        mariadb,
        mariadb_database,
        ["t"],
        sink="jsonl",
        write="changelog",
        local=True,
        readers=2,
        readers_min=2,
        chunk_rows=100,
        source=f"rows_per_second = {RATE}",
    )
    run = job.start()
    run.wait_for_rows(lambda: len(read_changelog(job.lake, "jsonl")) == 800)
    read_ms = sorted(row["_ts_ms"] for row in read_changelog(job.lake, "jsonl"))
    # Each chunk says when it began to be read: all before the last one were read since the first.
    before = sum(ms < read_ms[-1] for ms in read_ms)
    assert before <= RATE * (read_ms[-1] - read_ms[0]) / 1000 + 2 * CREDIT
    began_s = time.monotonic()
    mariadb.execute(fill.format("seq_2001_to_4000"), database=mariadb_database)
    run.wait_for_rows(lambda: len(read_changelog(job.lake, "jsonl")) == 2800)
    assert time.monotonic() - began_s >= (2000 - CREDIT) / RATE
    assert run.interrupt() in (0, 130), run.story()
    progress = [event for event in run.events if event["event"] == "progress"]
    assert any(event.get("bottleneck") == "rate_limit" for event in progress)
    assert {reader["subtask"] for event in progress for reader in event["readers"]} >= {0, 1}


class ReadRows:
    """How many rows of a table the server itself has read, looked at while the block runs."""

    def __init__(self, server: MariaDbServer, database: str) -> None:
        self._server = server
        self._database = database
        #: Times before and after each look, and the rows.
        self.seen: list[tuple[float, float, int]] = []
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def rows(self) -> int:
        return self.seen[-1][2] if self.seen else 0

    def _look(self) -> None:
        words = "SELECT COALESCE(SUM(ROWS_READ), 0) FROM information_schema.TABLE_STATISTICS WHERE TABLE_SCHEMA = %s"
        with closing(self._server.connect()) as connection, connection.cursor() as cursor:
            while not self._ended.wait(0.1):
                before_s = time.monotonic()
                cursor.execute(words, (self._database,))
                (rows,) = cursor.fetchone() or (0,)
                self.seen.append((before_s, time.monotonic(), int(rows)))

    def excess(self) -> float:
        """The most rows above the rate between any two looks."""
        return max(
            later - rows - RATE * (after_s - before_s)
            for n, (before_s, _, rows) in enumerate(self.seen)
            for _, after_s, later in self.seen[n:]
        )


@pytest.mark.long(suite="balance")
def test_the_server_reads_no_more_rows_than_the_pace_while_a_reader_is_killed(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with MariaDbServer() as server, server.fresh_database() as database:
        server.execute("SET GLOBAL userstat = 1")
        server.execute(
            "CREATE TABLE t (id INT PRIMARY KEY, note VARCHAR(50))",
            "INSERT INTO t SELECT seq, REPEAT('x', 40) FROM seq_1_to_6000",
            database=database,
        )
        job = Job(
            tmp_path,
            server,
            database,
            ["t"],
            sink="jsonl",
            write="changelog",
            readers=2,
            readers_min=2,
            chunk_rows=100,
            source=f"rows_per_second = {RATE}",
        )
        run = job.start("--until", "caught-up")
        run.wait_for_start()
        server.execute("FLUSH TABLE_STATISTICS")
        with ReadRows(server, database) as read:
            run.wait_for(lambda: read.rows > 1500)
            os.kill(run.pids()["readers"][1], signal.SIGKILL)
            assert run.wait() == 0, run.story()
        assert (
            len({row["id"] for row in read_changelog(job.lake, "jsonl")})
            == len(read_changelog(job.lake, "jsonl"))
            == 6000
        )
        assert read.rows > 4000
        record_property("excess", read.excess())
        record_property("rows read", read.rows)
        record_property("seconds", read.seen[-1][0] - read.seen[0][0])
        # The two readers and the successor of one; a SELECT is for a whole chunk.
        assert read.excess() <= 3 * (CREDIT + 100)


def takes_as_long_as_the_pace(job: Job, write: Callable[[range], None]) -> None:
    """Rows that are written while the job runs reach the target no faster than they may be read."""
    write(range(1))
    run = job.start()
    run.wait_for_rows(lambda: len(read_changelog(job.lake, "jsonl")) == 1)
    began_s = time.monotonic()
    write(range(1, 1201))
    run.wait_for_rows(lambda: len(read_changelog(job.lake, "jsonl")) == 1201)
    assert time.monotonic() - began_s >= (1200 - CREDIT) / RATE
    assert run.interrupt() in (0, 130), run.story()
    assert any(event.get("bottleneck") == "rate_limit" for event in run.events)


@pytest.mark.long(suite="balance")
def test_a_change_stream_keeps_to_its_pace(mongodb: MongoDb, mongodb_database: str, tmp_path: Path) -> None:
    nobody: Any = None
    job = CollectionJob(
        tmp_path,
        nobody,
        mongodb_database,
        ("orders",),
        sink="jsonl",
        write="changelog",
        local=True,
        readers=1,
        uri=mongodb.uri,
        startup="initial",
        source=f"rows_per_second = {RATE}",
    )
    with mongodb.client() as client:

        def write(ids: range) -> None:
            client[mongodb_database]["orders"].insert_many({"_id": n} for n in ids)

        takes_as_long_as_the_pace(job, write)


@pytest.mark.long(suite="balance")
def test_a_topic_keeps_to_its_pace(kafka: KafkaServer, tmp_path: Path) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    def write(ids: range) -> None:
        for n in ids:
            message = {"database": "shop", "table": "product", "type": "insert", "ts": 1_700_000_000, "data": {"id": n}}
            producer.produce(topic, json.dumps(message).encode())
        producer.flush()

    with kafka.fresh_topic(partitions=2) as topic:
        broker: Any = kafka
        job = TopicJob(
            tmp_path,
            broker,
            "shop",
            ("product",),
            sink="jsonl",
            write="changelog",
            local=True,
            readers=1,
            topic=topic,
            columns="id BIGINT",
            source=f"rows_per_second = {RATE}",
        )
        takes_as_long_as_the_pace(job, write)


class Generated(Job):
    """More rows than are read while the test lasts, each reader slowly."""

    def source_section(self) -> str:
        table = 'type = "datagen"\ntables = ["shop.orders"]\nrows = 20_000\nchunk_rows = 10\nevents = 0'
        return f"{table}\nfaults = {{ chunk_rows_per_second = 10 }}\n{self.source}"


@pytest.mark.parametrize(
    ("pace", "begins"), [("rows_per_second = 20_000", 1), ('bytes_per_second = "60MB"', 3), ("", 4)]
)
def test_a_source_that_has_a_pace_begins_with_the_readers_that_it_feeds(pace: str, begins: int, tmp_path: Path) -> None:
    nobody: Any = None
    job = Generated(
        tmp_path, nobody, "shop", ["orders"], sink="jsonl", write="changelog", local=True, readers=4, source=pace
    )
    run = job.start()
    assert run.wait_for(lambda: any(event["event"] == "scaling" for event in list(run.events))), run.story()
    told = next(event for event in run.events if event["event"] == "scaling")
    assert told["readers"] == begins
    assert ("the source's pace (" in told["reason"]) == bool(pace)
    assert run.interrupt() in (0, 130), run.story()


def test_check_and_plan_say_the_pace(tmp_path: Path) -> None:
    path = tmp_path / "made.toml"
    path.write_text(
        f"""
        [pipeline]
        name = "made"
        state = "{tmp_path / "state"}"
        [source]
        type = "datagen"
        tables = ["shop.orders"]
        rows_per_second = 2000
        bytes_per_second = "1MB"
        [sink]
        type = "jsonl"
        path = "{tmp_path / "lake"}"
        write = "changelog"
        """
    )
    environment = {**os.environ}
    text = "All readers together read at most 2,000 rows and 1,000,000 bytes a second of the source"
    checked = completed(("check", str(path), "--local"), environment=environment, folder=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert text in checked.stdout
    planned = completed(("plan", str(path)), environment=environment, folder=tmp_path)
    assert f"Pace: {text}" in planned.stderr
