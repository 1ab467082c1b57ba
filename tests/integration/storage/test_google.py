"""Google Cloud Storage: races for keys, a state and its drivers, a lake, and a pipeline that is killed at every step.

The server is fake-gcs-server behind a translation (`raycdc.sandbox.servers.gcs`), which needs Go.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from raycdc.errors import FencedError
from raycdc.sandbox.compare import compare_table
from raycdc.sandbox.servers import GcsServer, MariaDbServer
from raycdc.sandbox.shop import ShopSize, ShopWorkload, create_shop
from raycdc.sinks.delta.reading import table_at
from raycdc.state.drivers.driver_generation import DriverGeneration
from raycdc.state.location import StateLocation
from raycdc.state.store import CheckpointStore
from raycdc.storage.files import Access, any_path
from raycdc.storage.object_store import client_of
from raycdc.storage.url import ObjectLocation, StoreKind
from raycdc.testing.epochs import EpochScript
from tests.integration.storage.race import race
from tests.support.jobs import Job, catch_up, run_through

pytestmark = [
    pytest.mark.server,
    pytest.mark.long(suite="stores"),
    pytest.mark.skipif(shutil.which("go") is None, reason="fake-gcs-server needs Go"),
]

KEYS = 200
SIZE = ShopSize(customers=200, products=50, orders=1_500)
TABLES = ("customers", "products", "orders")
#: How often each is reached before it kills: the first roots of a process are those by which it begins.
POINTS = {
    "after_manifest": 1,
    "in_commit": 2,
    "between_tables": 3,
    "after_last_commit": 1,
    "before_root": 6,
    "after_root": 7,
}


@pytest.fixture(scope="module")
def gcs() -> Iterator[GcsServer]:
    with GcsServer() as server:
        yield server


def test_one_client_wins_each_key(gcs: GcsServer) -> None:
    place = ObjectLocation(StoreKind.GCS, gcs.create_bucket("race"))
    result = race(lambda: client_of(place, gcs.settings), KEYS)
    assert result.not_won_once(KEYS) == ([], [])
    assert not result.wrong


def test_nothing_of_a_driver_that_was_replaced_is_taken(gcs: GcsServer, tmp_path: Path) -> None:
    place = ObjectLocation(StoreKind.GCS, gcs.create_bucket("states"), "shop")

    def opened(work: str) -> CheckpointStore:
        return CheckpointStore(StateLocation(place, tmp_path / work, gcs.settings), pipeline="shop")

    first = opened("first")
    stale = EpochScript(first)
    DriverGeneration(first)
    script = EpochScript(opened("second"))
    for one in (stale, script):
        one.table("shop.orders").insert({"id": 1, "name": "a", "qty": 1})
    with pytest.raises(FencedError):
        stale.seal()
    script.seal()
    assert first.sealed_epochs() == [1]


@pytest.mark.timeout(1800)
def test_a_pipeline_with_lake_and_state_there_survives_a_kill_at_every_step(
    gcs: GcsServer, mariadb: MariaDbServer, tmp_path: Path
) -> None:
    database = "kill_google"
    with mariadb.connect() as connection:
        create_shop(connection, database, SIZE)
    url = f"gs://{gcs.create_bucket('kills')}"
    work, lake = f'work_dir = "{tmp_path / "work"}"', f'path = "{url}/lake"'
    job = Job(
        tmp_path,
        mariadb,
        database,
        TABLES,
        local=True,
        state_url=f"{url}/state",
        pipeline=work,
        sink_keys=lake,
        sections=gcs.section,
    )
    plan = ",".join(f"{point}=kill@{number}" for point, number in POINTS.items())
    workload = ShopWorkload(lambda: mariadb.connect(database=database), seed=3, database=database, size=SIZE)
    with workload.running(pause_s=0.02):
        deaths = run_through(job, failpoints=plan, busy=lambda: not set(POINTS) <= job.hit())
    catch_up(job)
    assert deaths == [-signal.SIGKILL] * len(POINTS)
    root = any_path(f"{url}/lake", Access(gcs.settings))
    with mariadb.connect() as connection:
        results = [
            compare_table(connection, database, table, table_at(root / database / table).to_pyarrow_table())
            for table in TABLES
        ]
    assert [problem for result in results for problem in result.problems] == []
