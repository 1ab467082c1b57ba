"""``raycdc verify`` of millions of rows under load, and a hundred times of rows that change all the time.

Played by the suite ``verify`` alone, with as many rows and comparisons as RAYCDC_VERIFY_ROWS and RAYCDC_VERIFY_ROUNDS
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
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from raycdc.config import load_config
from raycdc.errors import ExitCode
from raycdc.model import Column, LogicalType, TypeKind
from raycdc.sandbox.servers import MariaDbServer, MongoDbServer
from raycdc.verify.canonical import CanonicalForm, Compared, ComparedColumn
from raycdc.verify.digests import Digests
from raycdc.verify.table import ComparisonTimeouts
from raycdc.verify.verifier import Verifier
from tests.e2e.verified import counts, verified
from tests.e2e.verify_worlds import (
    DocumentWorld,
    IcebergTarget,
    PostgresTarget,
    SqlWorld,
    Target,
    VerifiedSource,
    into_iceberg,
    into_postgres,
)
from tests.support.jobs import Job, catch_up

pytestmark = [pytest.mark.server, pytest.mark.long(suite="verify"), pytest.mark.timeout(3600)]

ROWS = int(os.environ.get("RAYCDC_VERIFY_ROWS", "5000000"))
ALARMS_LOOKED_FOR = int(os.environ.get("RAYCDC_VERIFY_ROUNDS", "100"))
#: An emulated replica set has 512 MiB of memory, and looks at every document for each change.
EMULATED_DOCUMENTS_MAX = 50_000
#: Rows of the table that a hundred comparisons are made of.
CHANGING_ROWS = 6_000


PAIRS = pytest.mark.parametrize("pair", ["delta", "iceberg", "postgresql", "mongodb"])


@pytest.fixture(scope="module")
def large(mariadb: MariaDbServer) -> Iterator[str]:
    """A database with the large table, which the pairs whose source it is share: no test takes rows from it."""
    with mariadb.fresh_database() as database:
        SqlWorld(ROWS, server=mariadb, database=database).fill()
        tell(f"a table of {ROWS:,} rows is there")
        yield database


@contextmanager
def world_of(request: pytest.FixtureRequest, pair: str, database: str, rows: int) -> Iterator[VerifiedSource]:
    """MariaDB into a lake of each kind and into PostgreSQL, and MongoDB into Delta."""
    if pair == "mongodb":
        server = request.getfixturevalue("mongodb")
        most = min(rows, EMULATED_DOCUMENTS_MAX) if isinstance(server, MongoDbServer) else rows
        yield DocumentWorld(most, server=server, database=database)
        return
    source = SqlWorld(rows, server=request.getfixturevalue("mariadb"), database=database)
    if pair == "iceberg":
        source.aim, source.opened = into_iceberg, lambda job: IcebergTarget(job, "id")
    if pair == "postgresql":
        postgres = request.getfixturevalue("postgres")
        with postgres.fresh_database() as home:
            source.aim, source.keeps_doubles = partial(into_postgres, postgres, home), False
            source.opened = lambda job: PostgresTarget(job, "id", postgres, home)
            yield source
        return
    yield source


def caught_up(world: VerifiedSource, folder: Path, *, chunk_rows: int) -> Job:
    folder.mkdir(exist_ok=True)
    job = world.job(folder, chunk_rows=chunk_rows)
    begun = time.monotonic()
    catch_up(job)
    tell(f"snapshot of {world.rows:,} rows", world.rows / (time.monotonic() - begun))
    return job


@PAIRS
def test_planted_rows_among_millions_are_found(request: pytest.FixtureRequest, pair: str, tmp_path: Path) -> None:
    database = request.getfixturevalue("mongodb_database" if pair == "mongodb" else "large")
    with world_of(request, pair, database, ROWS) as world:
        if pair == "mongodb":
            world.fill()
        job = caught_up(world, tmp_path, chunk_rows=max(1000, world.rows // 25))
        require_nothing(job, world.rows)
        target = world.target(job)
        # A run of a lake notices rows that others took away, so that only those that they added are there to be found.
        target.add(world.rows + 1, world.rows + 2)
        require_found_under_load(job, world)
        catch_up(job)
        require_planted_found(job, world, target)


def require_nothing(job: Job, rows: int) -> None:
    code, lines = verified(job)
    assert (code, counts(lines["t"])) == (ExitCode.DONE, {}), lines
    assert lines["t"]["source_rows"] == rows
    tell(f"{rows:,} rows, stopped", lines["t"]["source_rows"] / lines["t"]["seconds"])
    tell("reading the source alone", reading_alone(job))


def require_found_under_load(job: Job, world: VerifiedSource) -> None:
    """Nothing but the two rows that were added, while the source changes."""
    run = job.start()
    run.wait_for_start()
    with world.anywhere(job, random.Random(7)):
        for _ in range(2):
            code, lines = verified(job)
            line = lines["t"]
            took = ", ".join(f"{seconds:.1f}" for seconds in line["round_seconds"])
            tell(f"under load, rounds of {took} s", line["source_rows"] / line["seconds"])
            assert (code, line["missing"], line["extra"], line["changed"]) == (ExitCode.DIFFERENT, 0, 2, 0), line
    assert run.interrupt() == ExitCode.INTERRUPTED


def require_planted_found(job: Job, world: VerifiedSource, target: Target) -> None:
    """Beside the two rows that were added, each kind of difference, and pairs that cancel out."""
    rows = world.rows
    target.delete(77, rows // 2)
    # Values of two rows change hands: each column has the values that it had.
    target.change({1000: 1001 % 97, 1001: 1000 % 97})
    target.change({rows - 1: -5})
    doubled = ["501"] if world.keeps_doubles else []
    lost = ["500"] if world.keeps_doubles else []
    if world.keeps_doubles:
        # One row twice and another not at all: as many rows as there were.
        target.delete(500)
        target.add(501)
    code, lines = verified(job, "--show-keys")
    keys = lines["t"]["keys"]
    assert code == ExitCode.DIFFERENT
    assert keys["changed"] == sorted(["1000", "1001", str(rows - 1)])
    assert keys["missing"] == sorted(["77", str(rows // 2), *lost])
    assert keys["extra"] == sorted([str(rows + 1), str(rows + 2), *doubled])
    assert counts(lines["t"]) == {"missing": 2 + len(lost), "extra": 2 + len(doubled), "changed": 3}


@PAIRS
def test_no_alarm_in_a_hundred_comparisons_under_load(
    request: pytest.FixtureRequest, pair: str, tmp_path: Path
) -> None:
    database = request.getfixturevalue("mongodb_database" if pair == "mongodb" else "mariadb_database")
    kept_changing = rounds = 0
    with world_of(request, pair, database, min(ROWS, CHANGING_ROWS)) as world:
        world.fill()
        job = caught_up(world, tmp_path, chunk_rows=2_000)
        run = job.start()
        run.wait_for_start()
        begun = time.monotonic()
        with world.back_and_forth(job):
            for number in range(1, ALARMS_LOOKED_FOR + 1):
                code, lines = verified(job)
                line = lines["t"]
                assert (code, line["reason"]) == (ExitCode.DONE, ""), (number, line)
                assert counts(line).keys() <= {"kept_changing"}, (number, line)
                kept_changing += line["kept_changing"] > 0
                rounds += line["rounds"]
                if number % 10 == 0:
                    left = (time.monotonic() - begun) / number * (ALARMS_LOOKED_FOR - number)
                    tell(f"{pair}: {number} of {ALARMS_LOOKED_FOR} comparisons, about {left:,.0f} s left")
        assert run.interrupt() == ExitCode.INTERRUPTED
    tell(
        f"{pair}: {ALARMS_LOOKED_FOR} comparisons in {time.monotonic() - begun:,.0f} s, no alarm; {rounds} rounds; in "
        f"{kept_changing} some rows kept changing"
    )


def reading_alone(job: Job) -> float:
    """Rows per second of the source's reader, of which nothing is made."""
    environment = {**os.environ, "RAYCDC_TEST_PASSWORD": getattr(job.server, "cdc_user", "")}
    verifier = Verifier(load_config(job.configuration(), environment=environment), ComparisonTimeouts(), lambda _: None)
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
    columns = tuple(ComparedColumn(kind.name, CanonicalForm.of(kind.type)) for kind in kinds)
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


def tell(what: str, rate: float | None = None) -> None:
    rows = "" if rate is None else f": {rate:,.0f} rows/s"
    sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S} {what}{rows}\n")
