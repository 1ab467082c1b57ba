"""``raycdc verify`` on real servers: what others did to a target is found, and what a run has still to write is not."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from raycdc.cli import main
from raycdc.clients.mysql import query
from raycdc.errors import ExitCode
from raycdc.testing.jobs import Job, catch_up
from raycdc.testing.servers import DatabaseServer, MariaDbServer, MySqlServer
from raycdc.testing.sessions import session
from tests.e2e.test_jdbc import write_rows
from tests.integration.connectors.mysql.test_mysql_types import cases_of

pytestmark = pytest.mark.server

#: Rounds of a table that is written to all the time.
LIVE_ROUNDS = 5


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYCDC_TEST_PASSWORD", "cdc")


def verified(job: Job, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and the lines by table."""
    capsys.readouterr()
    code = main(["verify", str(job.configuration()), "--json", *words])
    said = capsys.readouterr()
    lines = [json.loads(line) for line in said.out.splitlines()]
    assert lines, said.err
    return code, {line["table"].partition(".")[2]: line for line in lines}


def counts(line: dict[str, Any]) -> dict[str, int]:
    names = ("missing", "extra", "changed", "kept_changing", "behind")
    return {name: line[name] for name in names if line[name]}


@pytest.fixture
def job(mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path) -> Job:
    """A caught-up pipeline of 3,000 rows in chunks of 500."""
    mariadb.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(50))",
        "INSERT INTO t SELECT seq, seq % 7, CONCAT('row ', seq) FROM seq_1_to_3000",
        database=mariadb_database,
    )
    made = Job(tmp_path, mariadb, mariadb_database, ("t",), local=True, epoch_interval="200ms")
    catch_up(made)
    return made


def append(job: Job, *rows: tuple[int, int | None, str | None]) -> None:
    """Rows that somebody else adds to the target."""
    schema = pa.schema([("id", pa.int32()), ("a", pa.int32()), ("b", pa.string())])
    columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)]
    write_deltalake(str(job.lake / job.database / "t"), pa.table(columns, schema=schema), mode="append")


def delta(job: Job) -> DeltaTable:
    return DeltaTable(str(job.lake / job.database / "t"))


def test_what_others_did_to_a_target_is_found(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = verified(job, capsys)
    assert (code, counts(lines["t"])) == (ExitCode.DONE, {})
    assert lines["t"]["source_rows"] == lines["t"]["target_rows"] == 3000
    assert lines["t"]["source_checksum"] == lines["t"]["target_checksum"]
    assert lines["t"]["ranges"] > 3

    delta(job).delete("id IN (7, 8)")
    append(job, (5000, 1, "nobody's"))
    delta(job).update(updates={"b": "''"}, predicate="id = 9")
    code, lines = verified(job, capsys, "--show-keys")
    assert (code, counts(lines["t"])) == (ExitCode.DIFFERENT, {"missing": 2, "extra": 1, "changed": 1})
    assert lines["t"]["keys"] == {"missing": ["7", "8"], "extra": ["5000"], "changed": ["9"]}


def test_differences_that_cancel_out_are_found(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    # The values of two rows change hands: each column has the values that it had.
    delta(job).update(updates={"a": "CASE WHEN id = 1 THEN 2 ELSE 1 END"}, predicate="id IN (1, 2)")
    assert counts(verified(job, capsys)[1]["t"]) == {"changed": 2}
    # One row twice and another not at all: as many rows as there were.
    delta(job).update(updates={"a": "id % 7"}, predicate="id IN (1, 2)")
    append(job, (3, 3, "row 3"))
    delta(job).delete("id = 4")
    assert counts(verified(job, capsys)[1]["t"]) == {"missing": 1, "extra": 1}


def test_null_and_nothing_are_two_values(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.server.execute(
        "UPDATE t SET b = '' WHERE id = 1", "UPDATE t SET b = NULL, a = NULL WHERE id = 2", database=job.database
    )
    catch_up(job)
    assert verified(job, capsys)[0] == ExitCode.DONE
    delta(job).update(updates={"b": "NULL"}, predicate="id = 1")
    delta(job).update(updates={"b": "''", "a": "0"}, predicate="id = 2")
    assert counts(verified(job, capsys)[1]["t"]) == {"changed": 2}


def test_a_stopped_pipeline_is_behind_and_not_different(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.server.execute(
        "UPDATE t SET a = a + 1 WHERE id <= 10",
        "DELETE FROM t WHERE id = 20",
        "INSERT INTO t VALUES (4000, 1, 'new')",
        database=job.database,
    )
    code, lines = verified(job, capsys)
    assert (code, counts(lines["t"])) == (ExitCode.DONE, {"behind": 12})
    assert lines["t"]["verdict"] == "unsettled"
    # Beside them, a row that nobody changed at the source is known to differ.
    delta(job).delete("id = 30")
    code, lines = verified(job, capsys)
    assert (code, counts(lines["t"])) == (ExitCode.DIFFERENT, {"missing": 1, "behind": 12})


@contextmanager
def writing(server: DatabaseServer, database: str, statements: Sequence[str]) -> Iterator[None]:
    """The statements, again and again."""
    ended = threading.Event()

    def work() -> None:
        with session(server, "root") as connection:
            query(connection, f"USE `{database}`")
            while not ended.is_set():
                for statement in statements:
                    query(connection, statement)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_no_alarm_while_rows_go_back_and_forth(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    run = job.start()
    run.wait_for_start()
    back_and_forth = (
        "UPDATE t SET a = -a WHERE id BETWEEN 100 AND 140",
        "DELETE FROM t WHERE id = 500",
        "UPDATE t SET id = id + 10000 WHERE id = 600",
        "UPDATE t SET a = -a WHERE id BETWEEN 100 AND 140",
        "INSERT INTO t VALUES (500, 3, 'row 500')",
        "UPDATE t SET id = id - 10000 WHERE id = 10600",
    )
    with writing(job.server, job.database, back_and_forth):
        for _ in range(LIVE_ROUNDS):
            code, lines = verified(job, capsys)
            found = counts(lines["t"])
            assert (code, lines["t"]["reason"]) == (ExitCode.DONE, "")
            assert found.keys() <= {"kept_changing"}, lines
        # A row too many is found beside them. The run itself would park the table for one that was taken away.
        append(job, (9000, 1, "nobody's"))
        assert counts(verified(job, capsys)[1]["t"])["extra"] == 1
    assert run.interrupt() == ExitCode.INTERRUPTED


@pytest.mark.parametrize("kind", ["mysql80", "mariadb"])
def test_every_type_is_equal(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server: MySqlServer | MariaDbServer = request.getfixturevalue(kind)
    generator = random.Random(5)
    cases = cases_of(server)
    columns = ", ".join(f"c{n} {case.sql}" for n, case in enumerate(cases))
    with server.fresh_database() as database, session(server, "root") as connection:
        table = f"`{database}`.t"
        query(connection, f"CREATE TABLE {table} (id INT PRIMARY KEY, {columns})")
        write_rows(connection, table, cases, generator, range(24))
        job = Job(tmp_path, server, database, ("t",), local=True)
        catch_up(job)
        write_rows(connection, table, cases, generator, range(16, 40))
        query(connection, f"DELETE FROM {table} WHERE id % 7 = 0")
        catch_up(job)
        code, lines = verified(job, capsys)
        assert (code, counts(lines["t"]), lines["t"]["notes"]) == (ExitCode.DONE, {}, [])
        assert lines["t"]["source_rows"] > 30
