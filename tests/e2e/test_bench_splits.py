"""``raycdc bench splits CONFIG`` on real servers: what it reads, what it says, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from bson import Int64
from confluent_kafka import Producer

from raycdc.config import load_config
from raycdc.connectors.mysql import source as planning_costs
from raycdc.connectors.mysql.plugin import MySqlSourceConfig
from raycdc.connectors.mysql.source import MeteredConnections
from raycdc.errors import ExitCode, SourceError
from raycdc.sandbox.servers import KafkaServer, MariaDbServer, MongoDb
from tests.support.forked_commands import completed
from tests.support.jobs import CollectionJob, Job, TopicJob

pytestmark = pytest.mark.server
ROWS = 3000


@pytest.fixture
def job(mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path) -> Job:
    """A table whose keys are denser and denser, and one with text as its key; chunks of 100 rows."""
    mariadb.execute(
        "CREATE TABLE skewed (id BIGINT PRIMARY KEY, v INT)",
        f"INSERT INTO skewed SELECT CAST(POW(seq / 10, 3) AS SIGNED) * 10 + seq % 10, seq FROM seq_1_to_{ROWS}",
        "CREATE TABLE named (name VARCHAR(36) PRIMARY KEY, v INT)",
        f"INSERT INTO named SELECT MD5(seq), seq FROM seq_1_to_{ROWS}",
        "ANALYZE TABLE skewed, named",
        database=mariadb_database,
    )
    return Job(tmp_path, mariadb, mariadb_database, ("skewed", "named"), local=True, chunk_rows=100)


def command_of(job: Job, *words: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """The words of the command, and its environment."""
    environment = {**os.environ, "RAYCDC_TEST_PASSWORD": getattr(job.server, "cdc_user", "")}
    return ("bench", "splits", str(job.configuration()), *words), environment


def compared(job: Job, *words: str) -> tuple[int, str, str]:
    words, environment = command_of(job, *words)
    done = completed(words, environment=environment, folder=job.folder)
    return done.returncode, done.stdout, done.stderr


def by_strategy(table: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {result["strategy"]: result for result in table["strategies"]}


def test_each_strategy_reads_all_rows_and_one_is_recommended(job: Job) -> None:
    code, out, errors = compared(job, "--json", "--html", str(job.folder / "page.html"))
    assert code == ExitCode.DONE, errors
    assert f"{job.database}.skewed: about" in errors
    assert "Nothing is written." in errors
    report = json.loads(out)
    tables = {table["table"].partition(".")[2]: by_strategy(table) for table in report["tables"]}
    measured = [result for results in tables.values() for result in results.values() if not result["refused"]]
    assert {run["rows"] for result in measured for run in result["runs"]} == {ROWS}
    assert "integer chunk key" in tables["named"]["even"]["refused"]
    # A walk reads the whole index, arithmetic reads nothing, and makes one large chunk where most keys are.
    assert tables["skewed"]["uneven"]["planning_rows_read"] >= ROWS
    assert tables["skewed"]["even"]["planning_rows_read"] < 100
    assert (
        tables["skewed"]["even"]["chunk_rows"]["max_over_mean"]
        > tables["skewed"]["uneven"]["chunk_rows"]["max_over_mean"]
    )
    assert report["advice"]["settings"].startswith("[source.snapshot]\nstrategy = ")
    assert report["advice"]["strategy"] != "even"
    assert "</html>" in (job.folder / "page.html").read_text(encoding="utf-8")
    assert not job.state.exists()
    assert not job.lake.exists()


@pytest.mark.long(suite="stories")
def test_a_share_of_the_chunks_is_read_and_the_screen_says_what_to_type(job: Job) -> None:
    code, out, errors = compared(
        job, f"{job.database}.skewed", "--rows", "500", "--strategies", "uneven", "--readers", "3"
    )
    assert code == ExitCode.DONE, errors
    assert 'strategy = "uneven"' in out
    if (os.cpu_count() or 1) <= 4:  # There is a column for each number of readers that is really run.
        assert max(map(len, out.splitlines()[:4])) <= 80
    code, out, errors = compared(job, f"{job.database}.skewed", "--rows", "500", "--strategies", "uneven", "--json")
    (result,) = json.loads(out)["tables"][0]["strategies"]
    assert 16 <= result["chunks_read"] < result["chunks"]
    assert result["runs"][0]["rows"] < ROWS


@pytest.mark.long(suite="stories")
def test_a_named_table_is_compared_where_another_one_of_the_file_is_gone(job: Job) -> None:
    job.tables = (*job.tables, "dropped")
    code, out, err = compared(job, f"{job.database}.named", "--strategies", "auto", "--json")
    assert code == 0, err
    assert [table["table"] for table in json.loads(out)["tables"]] == [f"{job.database}.named"]
    code, _, err = compared(job, f"{job.database}.dropped", "--strategies", "auto")
    assert (code, f"{job.database}.dropped" in err) == (2, True)


def test_ctrl_c_ends_it_and_shows_what_is_known(job: Job) -> None:
    # Slow enough to be met in the middle of the second strategy, which cuts these keys otherwise than the first one.
    job.source = "rows_per_second = 500"
    words, environment = command_of(job, "--json", "--strategies", "even,uneven", f"{job.database}.skewed")
    command, pipe = [sys.executable, "-m", "raycdc.cli", *words], subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)
    assert process.stderr is not None
    while ", uneven: cutting" not in (line := process.stderr.readline()):
        assert line, "it ended before"
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=900)
    assert process.returncode == ExitCode.INTERRUPTED, errors
    report = json.loads(out)
    assert report["ended_early"]
    assert [result["strategy"] for result in report["tables"][0]["strategies"]] == ["even"]


def test_costs_that_cannot_be_asked_hide_nothing(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of a statement leaves a connection that answers no other one."""
    monkeypatch.setenv("RAYCDC_TEST_PASSWORD", job.server.cdc_user)
    source = load_config(job.configuration()).source
    assert isinstance(source, MySqlSourceConfig)

    def lost(*_: object) -> None:
        raise SourceError("nobody reads this")

    monkeypatch.setattr(planning_costs, "query", lost)
    with pytest.raises(KeyboardInterrupt), closing(MeteredConnections(source).connect()):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["shop.nothing"], "none of the tables that the source captures"),
        (["--strategies", "odd"], '"odd" is none of auto, even, uneven, sampled'),
        (["--readers", "two"], "no list of numbers"),
        (["--html", "nowhere/page.html"], "there is no folder nowhere"),
    ],
)
def test_a_wrong_word_is_named_before_anything_is_read(words: list[str], told: str, job: Job) -> None:
    code, out, errors = compared(job, *words)
    assert (code, out) == (ExitCode.CONFIG, "")
    assert told in errors


@pytest.mark.long(suite="stories")
def test_collections_are_compared_too(mongodb: MongoDb, mongodb_database: str, tmp_path: Path) -> None:
    with mongodb.client() as client:
        client[mongodb_database].shop.insert_many({"_id": Int64(n), "t": "x" * 3000} for n in range(ROWS))
    job = CollectionJob(tmp_path, None, mongodb_database, ("shop",), local=True, uri=mongodb.uri)  # type: ignore[arg-type]
    job.source = 'snapshot = { chunk_size = "1MiB" }'
    code, out, errors = compared(job, "--json")
    assert code == ExitCode.DONE, errors
    results = by_strategy(json.loads(out)["tables"][0])
    assert set(results) == {"auto", "sharded", "splitVector", "sample", "single"}
    assert {run["rows"] for result in results.values() for run in result["runs"]} == {ROWS}
    assert results["single"]["chunks"] == 1
    assert min(results[strategy]["chunks"] for strategy in ("splitVector", "sample", "auto")) > 2


def test_partitions_are_read_by_one_reader_and_by_more(kafka: KafkaServer, tmp_path: Path) -> None:
    """Two of four partitions have nearly all messages; two readers share them by their bytes."""
    heavy, light = 300, 10
    counts = {0: heavy, 1: light, 2: heavy, 3: light}
    with kafka.fresh_topic(partitions=4) as topic:
        fill(kafka, topic, counts)
        job = TopicJob(tmp_path, kafka, "", (), local=True, topic=topic, columns="id BIGINT, note TEXT")  # type: ignore[arg-type]
        words, environment = command_of(job, "--json", "--readers", "1,2,4")
        done = completed(words, environment=environment, folder=tmp_path)
        assert done.returncode == ExitCode.DONE, done.stderr
        assert f"{topic}: about {sum(counts.values()):,} messages in 4 partitions" in done.stderr
        assert "Nothing is written, and no offset is committed." in " ".join(done.stderr.split())
        report = json.loads(done.stdout)
        assert {each["partition"]: each["messages_read"] for each in report["partitions"]} == {
            f"{topic}:{number}": count for number, count in counts.items()
        }
        assert all(each["rows_read"] == each["messages_read"] for each in report["partitions"])
        runs = report["runs"]
        assert {run["messages"] for run in runs} == {sum(counts.values())}
        assert {frozenset(name for group in run["partitions"] for name in group) for run in runs} == {
            frozenset(f"{topic}:{number}" for number in counts)
        }
        if (os.cpu_count() or 1) >= 2:
            assert [run["readers"] for run in runs[:2]] == [1, 2]
            assert not any({f"{topic}:0", f"{topic}:2"} <= set(group) for group in runs[1]["partitions"])
        assert [each["readers"] for each in report["scheduled"]] == [1, 2, 4]
        readers = report["advice"]["readers"]
        assert report["advice"]["settings"] == f"[readers]\nmax = {readers}"
        assert not job.state.exists()
        # The lines are a part of a configuration.
        code, out, errors = compared(job, "--rows", "200", "--readers", "1", topic)
        assert code == ExitCode.DONE, errors
        assert "[readers]\nmax = " in out
        assert "messages/s" in out
        code, out, errors = compared(job, "--strategies", "bytes")
        assert (code, out) == (ExitCode.CONFIG, "")
        code, out, errors = compared(job, "--html", "page.html")
        assert (code, out) == (ExitCode.CONFIG, "")
        assert "--html: there is no page of the partitions of a kafka source." in " ".join(errors.split())
        code, out, errors = compared(job, "nowhere")
        assert (code, out) == (ExitCode.CONFIG, "")
        assert f"nowhere is none of the topics that the source reads (it has {topic})" in errors


def fill(kafka: KafkaServer, topic: str, counts: Mapping[int, int]) -> None:
    """Write Maxwell's inserts, so many into each partition."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "acks": "all"})
    for partition, count in counts.items():
        for number in range(count):
            data = {"id": partition * 1_000_000 + number, "note": "x" * 200}
            message = {"database": "shop", "table": "product", "type": "insert", "ts": 1_700_000_000, "data": data}
            producer.produce(topic, json.dumps(message).encode(), partition=partition)
    assert producer.flush(300) == 0


@pytest.mark.long(suite="stories")
def test_generated_tables_need_no_configuration(tmp_path: Path) -> None:
    words = ["--cases", "skewed,string", "--rows", "20000", "--json", "--html", str(tmp_path / "page.html")]
    done = completed(["bench", "splits", *words], environment=os.environ, folder=tmp_path)
    assert done.returncode == ExitCode.DONE, done.stderr
    tables = {table["table"]: by_strategy(table) for table in json.loads(done.stdout)["tables"]}
    assert set(tables) == {"bench.skewed", "bench.string"}
    for results in tables.values():
        # A walk reads the whole index; estimates do not, and make chunks of about the size that was asked for.
        assert results["uneven"]["planning_rows_read"] > 20_000
        assert results["sampled"]["planning_rows_read"] < 15_000
        assert results["sampled"]["chunk_rows"]["max"] < 3 * 200
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html"]
