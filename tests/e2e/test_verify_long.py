"""``raycdc verify`` of millions of rows under load, and a hundred times of rows that change all the time.

Played by ``make test-verify`` alone, with as many rows and comparisons as RAYCDC_VERIFY_ROWS and RAYCDC_VERIFY_ROUNDS
say; an emulated MongoDB, which has its documents in the memory of one small process, holds fewer. Prints its figures:
rows per second of a comparison, of reading alone, and of the checksums alone.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from raycdc.config import load_config
from raycdc.errors import ExitCode
from raycdc.model import Column, LogicalType, TypeKind
from raycdc.testing.jobs import Job, catch_up
from raycdc.testing.servers import MongoDbServer
from raycdc.verify.canonical import Compared, ComparedColumn, Form
from raycdc.verify.digests import Digests
from raycdc.verify.table import Terms
from raycdc.verify.verifier import Verifier
from tests.e2e.verified import counts, verified
from tests.e2e.verify_worlds import (
    DocumentWorld,
    IcebergTarget,
    PostgresTarget,
    SqlWorld,
    World,
    into_iceberg,
    into_postgres,
)

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(3600)]

ROWS = int(os.environ.get("RAYCDC_VERIFY_ROWS", "5000000"))
ALARMS_LOOKED_FOR = int(os.environ.get("RAYCDC_VERIFY_ROUNDS", "100"))
#: An emulated replica set has 512 MiB of memory, and looks at every document for each change.
EMULATED_DOCUMENTS_MAX = 50_000
#: Rows of the table that a hundred comparisons are made of.
CHANGING_ROWS = 50_000


@pytest.fixture(params=["delta", "iceberg", "postgresql", "mongodb"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """MariaDB into a lake of each kind and into PostgreSQL, and MongoDB into Delta."""
    if request.param == "mongodb":
        server, database = request.getfixturevalue("mongodb"), request.getfixturevalue("mongodb_database")
        rows = min(ROWS, EMULATED_DOCUMENTS_MAX) if isinstance(server, MongoDbServer) else ROWS
        yield DocumentWorld(rows, server=server, database=database)
        return
    source = SqlWorld(
        ROWS, server=request.getfixturevalue("mariadb"), database=request.getfixturevalue("mariadb_database")
    )
    if request.param == "iceberg":
        source.aim, source.opened = into_iceberg, lambda job: IcebergTarget(job, "id")
    if request.param == "postgresql":
        postgres = request.getfixturevalue("postgres")
        with postgres.fresh_database() as home:
            source.aim, source.keeps_doubles = partial(into_postgres, postgres, home), False
            source.opened = lambda job: PostgresTarget(job, "id", postgres, home)
            yield source
        return
    yield source


def caught_up(world: World, folder: Path, *, chunk_rows: int) -> Job:
    folder.mkdir(exist_ok=True)
    job = world.job(folder, chunk_rows=chunk_rows)
    catch_up(job)
    return job


def test_planted_rows_among_millions_are_found_under_load(world: World, tmp_path: Path) -> None:
    rows, chunk_rows = world.rows, max(1000, world.rows // 25)
    world.fill()
    job = caught_up(world, tmp_path, chunk_rows=chunk_rows)
    code, lines = verified(job)
    assert (code, counts(lines["t"])) == (ExitCode.DONE, {}), lines
    assert lines["t"]["source_rows"] == rows
    tell(f"{rows:,} rows, stopped", lines["t"]["source_rows"] / lines["t"]["seconds"])
    tell("reading the source alone", reading_alone(job))

    target = world.target(job)
    target.delete(77, rows // 2)
    # Values of two rows change hands: each column has the values that it had.
    target.change({1000: 1001 % 97, 1001: 1000 % 97})
    target.change({rows - 1: -5})
    target.add(rows + 1)
    planted = {"missing": 2, "extra": 1, "changed": 3}
    if world.keeps_doubles:
        # One row twice and another not at all: as many rows as there were.
        target.delete(500)
        target.add(501)
        planted = {"missing": 3, "extra": 2, "changed": 3}
    code, lines = verified(job, "--show-keys")
    keys = lines["t"]["keys"]
    assert code == ExitCode.DIFFERENT
    assert keys["changed"] == sorted(["1000", "1001", str(rows - 1)])
    assert keys["missing"] == sorted(["77", str(rows // 2), *(["500"] if world.keeps_doubles else [])])
    assert keys["extra"] == sorted([str(rows + 1), *(["501"] if world.keeps_doubles else [])])
    assert counts(lines["t"]) == planted


def test_nothing_but_rows_of_others_is_found_under_load(world: World, tmp_path: Path) -> None:
    world.fill()
    job = caught_up(world, tmp_path, chunk_rows=max(1000, world.rows // 25))
    # A run of a lake notices rows that others took away, so that only those that they added are there to be found.
    world.target(job).add(world.rows + 1, world.rows + 2)
    run = job.start()
    run.wait_for_start()
    with world.anywhere(job, random.Random(7)):
        for _ in range(3):
            code, lines = verified(job)
            line = lines["t"]
            tell(f"under load, {line['rounds']} rounds", line["source_rows"] / line["seconds"])
            assert (code, line["missing"], line["extra"], line["changed"]) == (ExitCode.DIFFERENT, 0, 2, 0), line
    assert run.interrupt() == ExitCode.INTERRUPTED


def test_no_alarm_in_a_hundred_comparisons_under_load(world: World, tmp_path: Path) -> None:
    world.rows = min(world.rows, CHANGING_ROWS)
    world.fill()
    job = caught_up(world, tmp_path, chunk_rows=10_000)
    run = job.start()
    run.wait_for_start()
    kept_changing = 0
    with world.back_and_forth(job):
        for number in range(ALARMS_LOOKED_FOR):
            code, lines = verified(job)
            assert (code, lines["t"]["reason"]) == (ExitCode.DONE, ""), (number, lines)
            assert counts(lines["t"]).keys() <= {"kept_changing"}, (number, lines)
            kept_changing += lines["t"]["kept_changing"] > 0
    assert run.interrupt() == ExitCode.INTERRUPTED
    sys.stderr.write(f"{ALARMS_LOOKED_FOR} comparisons, no alarm; in {kept_changing} some rows kept changing\n")


def reading_alone(job: Job) -> float:
    """Rows per second of the source's reader, of which nothing is made."""
    environment = {**os.environ, "RAYCDC_TEST_PASSWORD": getattr(job.server, "cdc_user", "")}
    verifier = Verifier(load_config(job.configuration(), environment=environment), Terms(), lambda _: None)
    table = verifier.tables(())[0]
    rows, begun = 0, time.monotonic()
    for batch in verifier.source_batches(table):
        rows += batch.num_rows
    return rows / (time.monotonic() - begun)


def test_checksums_of_both_sides_at_once_are_equal() -> None:
    kinds = [
        Column("id", LogicalType(TypeKind.INT64)),
        Column("a", LogicalType(TypeKind.INT32)),
        Column("b", LogicalType(TypeKind.STRING)),
        Column("c", LogicalType(TypeKind.DECIMAL, precision=12, scale=2)),
        Column("at", LogicalType(TypeKind.DATETIME, fsp=6)),
    ]
    columns = tuple(ComparedColumn(kind.name, Form.of(kind.type)) for kind in kinds)
    compared = Compared(columns, columns[:1])
    batch_rows = 131_072
    numbers = pa.array(np.arange(batch_rows))
    values = {"id": numbers, "a": numbers.cast(pa.int32()), "b": numbers.cast(pa.string())}
    values["c"] = numbers.cast(pa.decimal128(19, 0)).cast(pa.decimal128(21, 2))
    values["at"] = numbers.cast(pa.timestamp("us"))

    def checksum(batches: int) -> tuple[str, float]:
        with Digests() as digests:
            begun = time.thread_time()
            for _ in range(batches):
                digests.add(*compared.row_hashes(values, batch_rows))
            return str(digests.checksum), time.thread_time() - begun

    checksum(1)  # compiles
    batches = max(1, ROWS // batch_rows)
    begun = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        (ours, of_ours), (theirs, of_theirs) = pool.map(checksum, (batches, batches))
    rows = batches * batch_rows
    tell("checksums of both sides, rows of each", rows / (time.monotonic() - begun))
    tell("checksums, rows of one side per second of CPU", 2 * rows / (of_ours + of_theirs))
    assert ours == theirs


def tell(what: str, rate: float) -> None:
    sys.stderr.write(f"{what}: {rate:,.0f} rows/s\n")
