"""``raycdc verify`` of millions of rows under load, and a hundred times of rows that change all the time.

Played by ``make test-verify`` alone, with as many rows and comparisons as RAYCDC_VERIFY_ROWS and RAYCDC_VERIFY_ROUNDS
say. Prints its figures: rows per second of a comparison, and of reading alone.
"""

from __future__ import annotations

import os
import random
import sys
import time
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from raycdc.config import load_config
from raycdc.errors import ExitCode
from raycdc.testing.jobs import Job, catch_up
from raycdc.testing.servers import MariaDbServer
from raycdc.verify.table import Terms
from raycdc.verify.verifier import Verifier
from tests.e2e.verified import counts, verified, written_to

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(3600)]

ROWS = int(os.environ.get("RAYCDC_VERIFY_ROWS", "5000000"))
ALARMS_LOOKED_FOR = int(os.environ.get("RAYCDC_VERIFY_ROUNDS", "100"))


def made(server: MariaDbServer, database: str, folder: Path, rows: int, *, chunk_rows: int) -> Job:
    server.execute(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, a INT, b VARCHAR(40), c DECIMAL(12, 2), at DATETIME(6))",
        f"INSERT INTO t SELECT seq, seq % 97, CONCAT('row number ', seq), seq / 4, '2024-01-01' + INTERVAL seq SECOND "
        f"FROM seq_1_to_{rows}",
        database=database,
    )
    job = Job(folder, server, database, ("t",), local=True, epoch_interval="500ms", chunk_rows=chunk_rows)
    catch_up(job)
    return job


def append(job: Job, *ids: int) -> None:
    """Rows that the source has already, or not."""
    target = DeltaTable(str(job.lake / job.database / "t"))
    schema = pa.schema(target.schema().to_arrow())
    columns = {"id": pa.array(ids, pa.int64()), "b": pa.array([f"row number {n}" for n in ids])}
    columns |= {"a": pa.array([n % 97 for n in ids], pa.int32())}
    nulls = {f.name: pa.nulls(len(ids), f.type) for f in schema if f.name not in columns}
    rows = pa.table({f.name: {**columns, **nulls}[f.name].cast(f.type) for f in schema})
    write_deltalake(str(job.lake / job.database / "t"), rows, mode="append")


def anywhere(generator: random.Random) -> list[str]:
    """Changes of random rows, some of which go and come again."""
    first = generator.randrange(1, ROWS - 100)
    gone = generator.randrange(1, ROWS)
    return [
        f"UPDATE t SET a = a + 1 WHERE id BETWEEN {first} AND {first + generator.randrange(20)}",
        f"REPLACE INTO t SELECT id, a + 5, b, c, at FROM t WHERE id = {gone}",
        f"UPDATE t SET c = c + 0.25 WHERE id = {generator.randrange(1, ROWS)}",
    ]


def test_planted_rows_among_millions_are_found_under_load(
    mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    job = made(mariadb, mariadb_database, tmp_path, ROWS, chunk_rows=max(1000, ROWS // 25))
    code, lines = verified(job)
    assert (code, counts(lines["t"])) == (ExitCode.DONE, {})
    tell("stopped", lines["t"]["source_rows"] / lines["t"]["seconds"])
    tell("reading alone", reading_alone(job))

    target = DeltaTable(str(job.lake / job.database / "t"))
    target.delete(f"id IN (77, {ROWS // 2})")
    target.update(updates={"b": "'row number 1'"}, predicate=f"id = {ROWS - 1}")
    target.update(
        updates={"a": "CASE WHEN id = 1000 THEN 1001 % 97 ELSE 1000 % 97 END"}, predicate="id IN (1000, 1001)"
    )
    append(job, ROWS + 1)
    planted = {"missing": 2, "extra": 1, "changed": 3}
    code, lines = verified(job, "--show-keys")
    assert (code, counts(lines["t"])) == (ExitCode.DIFFERENT, planted)
    assert lines["t"]["keys"]["changed"] == ["1000", "1001", str(ROWS - 1)]

    # A run notices rows that others took away, so under load only those that they added are there to be found.
    again = made_again(job)
    run = again.start()
    run.wait_for_start()
    append(again, ROWS + 1, ROWS + 2)
    with written_to(again, partial(anywhere, random.Random(7)), pause_s=0.002):
        for _ in range(3):
            code, lines = verified(again)
            line = lines["t"]
            tell(f"under load, {line['rounds']} rounds", line["source_rows"] / line["seconds"])
            assert (code, line["missing"], line["extra"], line["changed"]) == (ExitCode.DIFFERENT, 0, 2, 0), line
    assert run.interrupt() == ExitCode.INTERRUPTED


def made_again(job: Job) -> Job:
    """Another pipeline of the same table, whose target nobody has touched."""
    folder = job.folder / "again"
    folder.mkdir()
    again = Job(folder, job.server, job.database, job.tables, local=True, chunk_rows=job.chunk_rows)
    catch_up(again)
    return again


def reading_alone(job: Job) -> float:
    """Rows per second of the source's reader, of which nothing is made."""
    environment = {**os.environ, "RAYCDC_TEST_PASSWORD": job.server.cdc_user}
    verifier = Verifier(load_config(job.configuration(), environment=environment), Terms(), lambda _: None)
    table = verifier.tables(())[0]
    rows, begun = 0, time.monotonic()
    for batch in verifier.source_batches(table):
        rows += batch.num_rows
    return rows / (time.monotonic() - begun)


def back_and_forth() -> list[str]:
    return [
        "UPDATE t SET a = -a WHERE id BETWEEN 100 AND 300",
        "DELETE FROM t WHERE id = 5000",
        "UPDATE t SET id = id + 1000000 WHERE id BETWEEN 600 AND 610",
        "UPDATE t SET a = -a WHERE id BETWEEN 100 AND 300",
        "INSERT INTO t VALUES (5000, 3, 'row number 5000', 1, '2024-01-01')",
        "UPDATE t SET id = id - 1000000 WHERE id BETWEEN 1000600 AND 1000610",
    ]


def test_no_alarm_in_a_hundred_comparisons_under_load(
    mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    job = made(mariadb, mariadb_database, tmp_path, 50_000, chunk_rows=10_000)
    run = job.start()
    run.wait_for_start()
    kept_changing = 0
    with written_to(job, back_and_forth, pause_s=0.002):
        for number in range(ALARMS_LOOKED_FOR):
            code, lines = verified(job)
            assert (code, lines["t"]["reason"]) == (ExitCode.DONE, ""), (number, lines)
            assert counts(lines["t"]).keys() <= {"kept_changing"}, (number, lines)
            kept_changing += lines["t"]["kept_changing"] > 0
    assert run.interrupt() == ExitCode.INTERRUPTED
    sys.stderr.write(f"{ALARMS_LOOKED_FOR} comparisons, no alarm; in {kept_changing} some rows kept changing\n")


def tell(what: str, rate: float) -> None:
    sys.stderr.write(f"{what}: {rate:,.0f} rows/s\n")
