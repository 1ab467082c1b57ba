"""The data source for Spark on a real server: streams across kills (jobs in processes), bounded reads, views."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from raycdc.sandbox.servers import MariaDbServer, MongoDb
from raycdc.sandbox.servers.private import wait_until
from tests.e2e import spark_job

pytestmark = [
    pytest.mark.server,
    pytest.mark.spark,
    pytest.mark.timeout(1800),
    # pyspark closes sockets of its own only when they are garbage.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

PROJECT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 900.0


class Jobs:
    """A configuration, and the jobs that read by it."""

    def __init__(self, folder: Path, server: MariaDbServer, database: str) -> None:
        self.folder = folder
        self.server = server
        self.database = database
        self.config = folder / "shop.toml"
        self.config.write_text(
            f"""
[pipeline]
name = "shop"
state = "{folder}/state"
epoch_interval = "200ms"

[source]
type = "mysql"
port = {server.port}
user = "{server.cdc_user}"
password = "{server.cdc_password}"
tables = ['{database}\\..*']
snapshot = {{ chunk_rows = 500, filter = {{ "{database}.other" = "id > 0" }} }}

[sink]
type = "delta"
path = "unused"

[[route]]
table = '{database}\\.(.*)'
to = "elsewhere.$1"
"""
        )
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.started: list[subprocess.Popen[str]] = []

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.server.execute(f"USE {self.database}", *statements)]

    def options(self, table: str, **more: str) -> dict[str, str]:
        return {"config": str(self.config), "table": f"{self.database}.{table}", **more}

    def start(self, job: str, **given: Any) -> subprocess.Popen[str]:
        argument = json.dumps({"job": job, "warehouse": str(self.folder / "warehouse"), **given})
        log = (self.folder / f"job-{len(self.started)}.log").open("w")
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.spark_job", argument],
            cwd=PROJECT,
            env={
                **os.environ,
                "PYTHONPATH": str(PROJECT),
                "PYSPARK_PYTHON": sys.executable,
                "TMPDIR": str(self.temporary),
            },
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        log.close()
        self.started.append(process)
        return process

    def answer(self, job: str, **given: Any) -> dict[str, Any]:
        """What a job that ends well prints last."""
        process = self.start(job, **given)
        out, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, self.log()
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    def log(self) -> str:
        return (self.folder / f"job-{len(self.started) - 1}.log").read_text()

    def kill(self, process: subprocess.Popen[str]) -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                self.kill(process)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    session = spark_job.session(str(tmp_path_factory.mktemp("warehouse")))
    gateway: Any = session.sparkContext._gateway
    yield session
    session.stop()
    # A process keeps the first JVM that it starts, and other tests want one with Delta's jars.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(300)
    SparkContext._gateway = SparkContext._jvm = None


def plain(answer: Any) -> Any:
    """As a job in a process prints it."""
    return json.loads(json.dumps(answer, default=str))


@pytest.fixture
def jobs(tmp_path: Path, mariadb: MariaDbServer, mariadb_database: str) -> Iterator[Jobs]:
    jobs = Jobs(tmp_path, mariadb, mariadb_database)
    jobs.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, name VARCHAR(40), weight DECIMAL(10,2), at DATETIME(3), "
        "seen TIMESTAMP(3) NULL, customer INT)",
        "INSERT INTO orders SELECT seq, CONCAT('n', seq), seq / 4, '2024-01-02 03:04:05.678', "
        "'2024-01-02 03:04:05.678', seq % 10 FROM seq_1_to_2000",
    )
    yield jobs
    jobs.close()


def wait_for(what: str, found: Callable[[], bool], process: subprocess.Popen[str], jobs: Jobs) -> None:
    def done() -> bool:
        assert process.poll() is None, jobs.log()
        return found()

    wait_until(done, timeout_s=TIMEOUT_S, what=what)


def has_rows(out: Path) -> bool:
    """Whether Spark committed a batch with rows: it names its files then."""
    return any("part-" in log.read_text() for log in (out / "_spark_metadata").glob("[0-9]*"))


def change(jobs: Jobs, number: int) -> None:
    """Updates, a moved key, deletions and inserts that differ by `number`."""
    jobs.execute(
        "BEGIN",
        f"UPDATE orders SET weight = weight + {number} WHERE id % 7 = {number % 7}",
        f"UPDATE orders SET id = id + 100000 WHERE id = {20 + number}",
        f"DELETE FROM orders WHERE id = {200 + number}",
        f"INSERT INTO orders VALUES ({300000 + number}, 'new', 1.25, NULL, NULL, {number})",
        "COMMIT",
    )


def replayed(rows: list[dict[str, Any]]) -> dict[int, tuple[str, str]]:
    """The table after a changelog in order; each change must fit the rows before it."""
    table: dict[int, tuple[str, str]] = {}
    for row in rows:
        image = (row["name"], row["weight"])
        if row["_op"] in ("+I", "+U"):
            assert row["id"] not in table, row
            table[row["id"]] = image
        else:
            assert table.pop(row["id"]) == image, row
    return table


def table_now(jobs: Jobs) -> dict[int, tuple[str, str]]:
    return {row[0]: (row[1], str(row[2])) for row in jobs.execute("SELECT id, name, weight FROM orders")}


@pytest.mark.long(suite="stories")
def test_a_stream_has_every_change_once_across_kills_and_restarts(spark: Any, jobs: Jobs, tmp_path: Path) -> None:
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    given = {"out": str(out), "checkpoint": str(checkpoint)}

    epochs = tmp_path / "state.spark" / f"{jobs.database}.orders" / "epochs"

    def committed() -> int:
        return sum(1 for path in (checkpoint / "commits").glob("*") if path.name.isdigit())

    def newest() -> str:
        return max((path.name for path in epochs.glob("*.json")), default="")

    for life in range(2):
        before = committed()
        process = jobs.start("stream", options=jobs.options("orders"), **given)
        wait_for("a batch", lambda before=before: committed() > before and has_rows(out), process, jobs)  # type: ignore[misc]
        for number in range(4):
            last = newest()
            change(jobs, life * 10 + number)
            if number < 3:
                wait_for("an epoch", lambda last=last: newest() > last, process, jobs)  # type: ignore[misc]
        jobs.kill(process)
        change(jobs, life * 10 + 5)
    answer = plain(spark_job.stream(spark, {"options": jobs.options("orders", until="caught-up"), **given}))
    rows = answer["rows"]
    assert len({row["_seq"] for row in rows}) == len(rows)
    assert replayed(rows) == table_now(jobs)
    assert answer["sum"] == str(jobs.execute("SELECT SUM(weight) FROM orders")[0][0])
    assert [kind for _, kind in answer["columns"]] == [
        "int", "string", "decimal(10,2)", "timestamp_ntz", "timestamp", "int",
        "string", "bigint", "bigint", "string", "string", "string", "int", "bigint",
    ]  # fmt: skip
    first = rows[0]
    assert (first["at"], first["seen"]) == ("2024-01-02 03:04:05.678000", "2024-01-02 03:04:05.678000")
    assert {row["_sign"] for row in rows} == {1, -1}
    # Event time: no row of the log is newer than the watermark of its epoch says it may be, and it goes on.
    ends = [ast.literal_eval(source["endOffset"]) for source in answer["sources"]]
    assert ends[-1]["watermark_ms"] >= rows[-1]["_ts_ms"]
    assert rows[-1]["_watermark_ms"] is not None
    # What Spark committed is not kept: one last batch is, as nothing came after it.
    spool = list((tmp_path / "state.spark" / f"{jobs.database}.orders" / "spool").iterdir())
    assert len(spool) < 10


@pytest.mark.long(suite="stories")
def test_a_checkpoint_and_a_state_that_do_not_belong_together_are_refused(
    spark: Any, jobs: Jobs, tmp_path: Path
) -> None:
    options = jobs.options("orders", until="caught-up", state=str(tmp_path / "mine"))
    first = {"options": options, "out": str(tmp_path / "out"), "checkpoint": str(tmp_path / "first")}
    for number in range(2):
        change(jobs, number)
        answer = plain(spark_job.stream(spark, first))
    assert replayed(answer["rows"]) == table_now(jobs)
    second = {**first, "out": str(tmp_path / "out2"), "checkpoint": str(tmp_path / "second")}
    with pytest.raises(Exception, match="Spark has no checkpoint that knows"):
        spark_job.stream(spark, second)
    change(jobs, 2)
    with pytest.raises(Exception, match="belongs to another state"):
        spark_job.stream(spark, {**first, "options": {**options, "state": str(tmp_path / "other")}})


def test_a_column_that_comes_ends_the_query_and_is_there_after_a_restart(
    spark: Any, jobs: Jobs, tmp_path: Path
) -> None:
    given = {"out": str(tmp_path / "out"), "checkpoint": str(tmp_path / "checkpoint")}
    query = spark_job.started(spark, {"options": jobs.options("orders"), **given})

    def has_batch() -> bool:
        nonlocal query
        if spark_job.started_too_slowly(query):
            query = spark_job.started(spark, {"options": jobs.options("orders"), **given})
        return has_rows(tmp_path / "out")

    wait_until(has_batch, timeout_s=TIMEOUT_S, what="a batch")
    jobs.execute("ALTER TABLE orders ADD COLUMN late INT", "UPDATE orders SET late = 5 WHERE id = 1")
    with pytest.raises(Exception, match="other columns than the query: late"):
        query.awaitTermination(int(TIMEOUT_S))
    answer = plain(spark_job.stream(spark, {"options": jobs.options("orders", until="caught-up"), **given}))
    assert [row["_op"] for row in answer["rows"] if row["id"] == 1] == ["+I", "-U", "+U"]
    assert replayed(answer["rows"]) == table_now(jobs)
    late = spark.read.option("mergeSchema", "true").parquet(given["out"]).where("late IS NOT NULL").collect()
    assert [(row["id"], row["late"], row["_op"]) for row in late] == [(1, 5, "+U")]


@pytest.mark.long(suite="stories")
def test_a_truncation_is_no_row_of_a_sum_unless_asked_for(spark: Any, jobs: Jobs, tmp_path: Path) -> None:
    options = jobs.options("orders", until="caught-up")
    given = {"out": str(tmp_path / "out"), "checkpoint": str(tmp_path / "checkpoint")}
    spark_job.stream(spark, {"options": options, **given})
    jobs.execute("TRUNCATE TABLE orders", "INSERT INTO orders (id, weight) VALUES (1, 2)")
    with pytest.raises(Exception, match="was emptied"):
        spark_job.stream(spark, {"options": options, **given})
    answer = plain(spark_job.stream(spark, {"options": {**options, "truncate": "row"}, **given}))
    assert [(row["_op"], row["_sign"]) for row in answer["rows"][-2:]] == [("T", None), ("+I", 1)]


def test_a_bounded_read_is_the_table_as_it_is(jobs: Jobs) -> None:
    change(jobs, 1)
    answer = jobs.answer("read", options=jobs.options("orders"))
    assert {row["id"]: (row["name"], row["weight"]) for row in answer["rows"]} == table_now(jobs)
    assert len(answer["rows"]) == len(table_now(jobs))
    assert {(row["_op"], row["_sign"], row["_table"]) for row in answer["rows"]} == {("+I", 1, "orders")}
    # What was read is gone with the job.
    assert list(jobs.temporary.glob("raycdc-read-*")) == []


def test_a_bounded_read_whose_column_was_renamed_or_dropped_after_its_load_is_refused(spark: Any, jobs: Jobs) -> None:
    loaded = [
        spark.read.format("raycdc").options(**jobs.options("orders", changelog=changelog)).load()
        for changelog in ("false", "true")
    ]
    jobs.execute("ALTER TABLE orders RENAME COLUMN name TO title, DROP COLUMN customer")
    for rows in loaded:
        with pytest.raises(Exception, match="changed its columns: name, customer"):
            rows.collect()


def test_a_schema_of_ones_own_chooses_columns_or_is_refused_by_name(spark: Any, jobs: Jobs) -> None:
    def read(schema: str, **more: str) -> list[Any]:
        options = jobs.options("orders", **more)
        found: list[Any] = spark.read.format("raycdc").schema(schema).options(**options).load().collect()
        return found

    names = sorted(name for name, _ in table_now(jobs).values())
    assert sorted(row.name for row in read("name STRING, _op STRING")) == names
    assert {row._op for row in read("name STRING, _op STRING", changelog="true")} == {"+I"}
    for schema, why in {
        "id BIGINT, name STRING": "id is int in the table and bigint in the schema",
        "id INT, nope STRING": "the table has no column nope",
        "_sign BIGINT": "_sign is int in the table and bigint in the schema",
    }.items():
        with pytest.raises(Exception, match=f"The schema that was given does not fit .*: {why}"):
            read(schema)


def test_views_take_part_in_sql(spark: Any, jobs: Jobs) -> None:
    jobs.execute(
        "CREATE TABLE customers (id INT PRIMARY KEY, name VARCHAR(20))",
        "INSERT INTO customers SELECT seq, CONCAT('c', seq) FROM seq_0_to_9",
    )
    statements = [
        "CREATE TABLE totals (name STRING, total DECIMAL(20,2)) USING parquet",
        "INSERT INTO totals SELECT c.name, sum(weight) FROM orders JOIN customers c ON customer = c.id GROUP BY c.name",
        "SELECT * FROM totals ORDER BY name",
    ]
    tables = [f"{jobs.database}.{name}" for name in ("orders", "customers")]
    answer = plain(spark_job.sql(spark, {"config": str(jobs.config), "tables": tables, "statements": statements}))
    wanted = jobs.execute(
        "SELECT c.name, SUM(o.weight) FROM orders o JOIN customers c ON o.customer = c.id GROUP BY 1 ORDER BY 1"
    )
    assert [(row["name"], row["total"]) for row in answer["rows"]] == [(name, str(total)) for name, total in wanted]


def test_a_read_of_a_collection_says_what_the_server_is_to_leave_out(
    spark: Any, mongodb: MongoDb, mongodb_database: str, tmp_path: Path
) -> None:
    name = f"{mongodb_database}.orders"
    with mongodb.client() as client:
        client[mongodb_database].orders.insert_many(
            {"_id": n, "n": n * 2, "s": f"s{n % 5}", "address": {"city": "C", "street": "S"}} for n in range(1000)
        )
        client[mongodb_database].others.insert_one({"_id": 1})
    (tmp_path / "shop.toml").write_text(
        f"""
[pipeline]
name = "shop"
[source]
type = "mongodb"
uri = "{mongodb.uri}"
collections = ['{mongodb_database}\\..*']
startup = "snapshot"
snapshot = {{ strategy = "single", limit = {{ "{mongodb_database}.others" = 1 }} }}
"""
    )
    options = {"config": str(tmp_path / "shop.toml"), "table": name, "metadata": "false"}

    def rows(**more: str) -> Any:
        return spark.read.format("raycdc").options(**options, **more).load()

    assert rows().count() == 1000
    some = rows(filter='{"n": {"$gte": 1000}, "s": {"$in": ["s1", "s2"]}}', fields="n, address.city")
    assert some.columns == ["_id", "n", "address", "_rest"]
    found = some.collect()
    assert {row["_id"] for row in found} == {n for n in range(500, 1000) if n % 5 in (1, 2)}
    assert {row["address"] for row in found} == {'{"city":"C"}'}
    # A filter of the query is Spark's: what it leaves out is there for the next one.
    assert (some.where("n = 1002").count(), some.where("n = 1004 OR n = 1012").count(), some.count()) == (1, 2, 200)
    assert rows(limit="7").count() == 7
    with pytest.raises(Exception, match=r"snapshot.filter: .*orders: 'n = 1' is no JSON"):
        rows(filter="n = 1")


def test_options_that_are_wrong_are_named_together(spark: Any, jobs: Jobs) -> None:
    options = {"config": str(jobs.config), "tabel": "a.b", "truncate": "no"}
    with pytest.raises(Exception, match="did you mean") as raised:
        spark_job.read(spark, {"options": options})
    assert "option 'table' is missing" in str(raised.value)
    assert "truncate = 'no'" in str(raised.value)
