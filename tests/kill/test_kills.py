"""Kill it, anywhere: afterwards source and sink are equal, and the changelog has every change once.

Each story runs the real command against a real server, under a workload of which half hits the table being read.
``make test`` plays one seed of each; the suite ``kill`` ten (``RAYCDC_KILL_SEEDS``).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from raycdc.sandbox.compare import check_changelog, read_changelog
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, MySqlServer
from raycdc.sandbox.shop import HotRange, ShopSize, ShopWorkload, create_shop
from raycdc.testing.sink_epoch_stories import POINTS
from tests.support.comparing import require_lake_equal
from tests.support.jobs import Job, catch_up, run_through

pytestmark = [pytest.mark.server, pytest.mark.kill]

SEEDS = range(int(os.environ.get("RAYCDC_KILL_SEEDS", "1")))
IS_LONG = len(SEEDS) > 1
SIZE = ShopSize(customers=1_000, products=200, orders=6_000)
Recorder = Callable[[str, object], None]
TABLES = ("customers", "products", "orders")
#: Transactions per second and how long they go on: long enough for every fail point to be reached.
PAUSE_S = 0.01

READER_POINTS = (
    "after_open",
    "before_select",
    "after_select",
    "after_high_watermark",
    "after_close",
    "before_seal",
    "after_seal",
)
COORDINATOR_POINTS = ("before_manifest", "after_manifest")
DRIVER_POINTS = (*POINTS, "half_written")
#: Where a commit is under way. Stories without Spark die at all points of the driver; with it each seed plays two.
COMMIT_POINTS = ("in_commit", "between_tables", "after_last_commit")
#: Each process of a reader costs seconds of CPU before it reads, and each death of the coordinator replaces them all.
READERS = 2


def workload(server: DatabaseServer, database: str, seed: int) -> AbstractContextManager[ShopWorkload]:
    """Transactions in the background while the block runs."""
    work = ShopWorkload(
        lambda: server.connect(database=database),
        seed=seed,
        database=database,
        size=SIZE,
        hot=lambda: HotRange(1, SIZE.orders // 4),
    )
    return work.running(pause_s=PAUSE_S)


def shop(server: DatabaseServer, name: str) -> None:
    with server.connect() as connection:
        create_shop(connection, name, SIZE)


def plan(points: tuple[str, ...], seed: int) -> str:
    """Each point once, at the first to third time it is reached."""
    return ",".join(f"{point}=kill@{1 + (seed + number) % 3}" for number, point in enumerate(points))


def play(job: Job, seed: int, points: tuple[str, ...]) -> list[int]:
    """The whole story of one job: shop, workload, kills at all `points`, recovery, catching up."""
    shop(job.server, job.database)
    with workload(job.server, job.database, seed):
        deaths = run_through(job, failpoints=plan(points, seed), busy=lambda: not set(points) <= job.hit())
    # Who writes the last rows makes no difference to what the kills did.
    catch_up(replace(job, local=True))
    return deaths


def alive(pid: int) -> bool:
    """Whether a process `pid` runs (a zombie does not)."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def expect_exact_changelog(job: Job) -> None:
    for table in job.tables:
        rows = read_changelog(job.lake / job.database / table, job.sink)
        assert check_changelog(rows, ["id"]) == []


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_upserts_survive_a_kill_of_the_whole_process_at_every_step(
    mariadb: MariaDbServer, tmp_path: Path, record_property: Recorder, seed: int
) -> None:
    job = Job(tmp_path, mariadb, f"kill_upsert_{seed}", TABLES, local=True)
    points = READER_POINTS + COORDINATOR_POINTS + DRIVER_POINTS
    deaths = play(job, seed, points)
    record_property("kills", len(deaths))
    assert deaths == [-signal.SIGKILL] * len(points)
    require_lake_equal(job)


@pytest.mark.long(suite="kill")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_changelog_survives_a_kill_of_the_whole_process_at_every_step(
    mysql80: MySqlServer, tmp_path: Path, record_property: Recorder, seed: int
) -> None:
    job = Job(tmp_path, mysql80, f"kill_changelog_{seed}", TABLES, sink="jsonl", write="changelog", local=True)
    record_property("kills", len(play(job, seed, READER_POINTS + COORDINATOR_POINTS + DRIVER_POINTS)))
    expect_exact_changelog(job)


@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_readers_and_the_enumerator_are_killed_while_the_driver_lives(
    mariadb: MariaDbServer, tmp_path: Path, record_property: Recorder, seed: int
) -> None:
    job = Job(tmp_path, mariadb, f"kill_actors_{seed}", TABLES, readers=READERS)
    # Each death costs the start of a process of Ray, so that one seed alone plays every second point of a reader.
    readers = READER_POINTS if IS_LONG else READER_POINTS[::2]
    deaths = play(job, seed, readers + COORDINATOR_POINTS)
    record_property("kills", len(job.hit()))
    assert deaths == []
    require_lake_equal(job)


@pytest.mark.long(suite="kill")
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_driver_is_killed_around_the_sinks_commit(
    mariadb: MariaDbServer, tmp_path: Path, record_property: Recorder, seed: int
) -> None:
    job = Job(tmp_path, mariadb, f"kill_driver_{seed}", TABLES, readers=1)
    points = tuple(COMMIT_POINTS[(seed + seed // 3 + number) % len(COMMIT_POINTS)] for number in range(2))
    record_property("kills", len(play(job, seed, points)))
    require_lake_equal(job)


@pytest.mark.long(suite="kill")
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("phase", ["snapshot", "stream"])
def test_a_reader_that_sleeps_past_its_fencing_gets_nothing_accepted(
    mariadb: MariaDbServer, tmp_path: Path, record_property: Recorder, seed: int, phase: str
) -> None:
    database = f"sleep_{phase}_{seed}"
    shop(mariadb, database)
    job = Job(tmp_path, mariadb, database, TABLES, sink="parquet", write="changelog", readers=READERS)
    point = "after_select" if phase == "snapshot" else "before_seal"
    with workload(mariadb, database, seed):
        # The supervisor, which would end a fenced process, leaves it as if it were on a machine that is cut off.
        run = job.start(failpoints=f"{point}=stop@{2 if phase == 'snapshot' else 4},end_fenced=skip")
        assert run.wait_for(lambda: "end_fenced" in job.hit() and job.stopped_at(point)), run.story()
        sleeper = int((job.markers / f"{point}.hit").read_text())
        assert run.wait_for(lambda: bool(run.pids()) and sleeper not in run.pids()["readers"]), run.story()
        os.kill(sleeper, signal.SIGCONT)
        assert run.wait_for(lambda: not alive(sleeper)), run.story()
        assert run.interrupt() in (0, 130), run.story()
    record_property("kills", len(job.hit()))
    catch_up(replace(job, local=True))
    expect_exact_changelog(job)
