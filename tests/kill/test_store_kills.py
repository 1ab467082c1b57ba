"""A state on an object store: kill the driver anywhere, lose replies and the machine's own files; nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from raycdc.errors import ExitCode
from raycdc.sandbox.compare import check_changelog, read_changelog
from raycdc.sandbox.servers import MariaDbServer
from raycdc.sandbox.servers.s3 import ACCESS_KEY, REGION, MotoServer
from raycdc.sandbox.shop import ShopSize, ShopWorkload, create_shop
from raycdc.storage.object_store import ObjectStore
from raycdc.storage.settings import delta_options
from raycdc.storage.url import ObjectLocation, StoreKind, parse_location
from tests.support.comparing import require_lake_equal
from tests.support.jobs import Job, JobRun, catch_up, run_through
from tests.support.servers.store_proxy import Fault, Rule, StoreProxy

pytestmark = [pytest.mark.server, pytest.mark.kill]

SIZE = ShopSize(customers=200, products=50, orders=1_500)
TABLES = ("customers", "products", "orders")
POINTS: tuple[str, ...] = ("after_manifest", "in_commit", "between_tables", "before_root", "after_root")
if int(os.environ.get("RAYCDC_KILL_SEEDS", "1")) > 1:
    POINTS += ("before_seal", "before_manifest", "before_stage", "before_commit", "after_last_commit")
#: As a busy store answers now and then: the library tries again, and the state finds out what became of its writes.
FAULTS = (
    Rule(Fault.LOST_REPLY, path=r"/state\.json$", conditional=True, times=2, skip=2),
    Rule(Fault.DONE_BUT_FAILED, path=r"/state\.json$", conditional=True, times=2, skip=3),
    Rule(Fault.CONFLICT, path=r"/state\.json$", conditional=True, times=2, skip=4),
    Rule(Fault.SLOW_DOWN, method="GET", path=r"/state\.json$", times=2, skip=30),
)


def on_store(folder: Path, server: MariaDbServer, database: str, store: StoreProxy) -> Job:
    """A job whose state is in a bucket of its own, which has place for a lake, too."""
    with server.connect() as connection:
        create_shop(connection, database, SIZE)
    bucket = store.server.create_bucket(database.replace("_", "-"))
    storage = f"""
[storage]
endpoint = "{store.endpoint}"
region = "{REGION}"
access_key_id = "{ACCESS_KEY}"
secret_access_key = "${{env:RAYCDC_TEST_PASSWORD}}"
allow_http = true
"""
    url, work = f"s3://{bucket}/state", f'work_dir = "{folder / "work"}"'
    return Job(folder, server, database, TABLES, local=True, state_url=url, pipeline=work, sections=storage)


def lake_beside(job: Job) -> str:
    """The URL of a lake in the bucket of the state."""
    return f"{job.state_url.removesuffix('/state')}/lake"


def read_lake(store: StoreProxy, url: str) -> pa.Table:
    """The rows of the Delta table at `url`; without columns where there is none yet."""
    place = parse_location(url)
    assert isinstance(place, ObjectLocation)
    try:
        # `is_deltatable` would keep the interpreter to itself, and the proxy is in this process.
        table = DeltaTable(url, storage_options=delta_options(place, store.settings))
    except TableNotFoundError:
        return pa.table({})
    return pa.table(table.to_pyarrow_table())


def changing(job: Job) -> ShopWorkload:
    return ShopWorkload(lambda: job.server.connect(database=job.database), seed=3, database=job.database, size=SIZE)


def told(run: JobRun, event: str) -> list[dict[str, object]]:
    return [one for one in list(run.events) if one["event"] == event]


def expect_exact_changelog(job: Job) -> None:
    for table in TABLES:
        rows = read_changelog(job.lake / job.database / table, job.sink)
        assert check_changelog(rows, ["id"]) == []


@pytest.mark.timeout(1800)
def test_a_changelog_survives_kills_at_every_step_and_a_store_that_stumbles(
    mariadb: MariaDbServer, moto: MotoServer, tmp_path: Path
) -> None:
    with StoreProxy(moto) as store:
        job = replace(on_store(tmp_path, mariadb, "store_kills", store), sink="jsonl", write="changelog")
        # The first roots of a process are those by which it begins.
        times = {point: 6 if point.endswith("_root") else 1 + number % 3 for number, point in enumerate(POINTS)}
        plan = ",".join(f"{point}=kill@{number}" for point, number in times.items())
        with changing(job).running(pause_s=0.02), store.play(*FAULTS) as played:
            deaths = run_through(job, failpoints=plan, busy=lambda: not set(POINTS) <= job.hit())
        catch_up(job)
        assert deaths == [-signal.SIGKILL] * len(POINTS)
        assert [rule.fault for rule in played if not rule.played] == []
    expect_exact_changelog(job)


@pytest.mark.long(suite="kill")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("point", ["after_manifest", "between_tables"])
def test_what_is_lost_with_the_machine_is_read_again(
    mariadb: MariaDbServer, moto: MotoServer, tmp_path: Path, point: str
) -> None:
    """Segments of a sealed epoch that no table holds, and of one that some hold."""
    with StoreProxy(moto) as store:
        job = on_store(tmp_path, mariadb, f"store_lost_{point[:5]}", store)
        with changing(job).running(pause_s=0.02):
            killed = job.start(failpoints=f"{point}=kill@3")
            assert killed.wait() == -signal.SIGKILL, killed.story()
            shutil.rmtree(tmp_path / "work")
            # Another machine has no work of this pipeline, and may have it elsewhere.
            job = replace(job, pipeline=f'work_dir = "{tmp_path / "other"}"')
            again = job.start("--standby")
            assert again.wait_for(lambda: bool(told(again, "commit"))), again.story()
            again.interrupt()
        catch_up(job)
    require_lake_equal(job)


@pytest.mark.long(suite="kill")
@pytest.mark.timeout(1800)
def test_copies_of_segments_survive_the_machine(mariadb: MariaDbServer, moto: MotoServer, tmp_path: Path) -> None:
    """No table begins again, although some hold the epoch and the machine with the rows for the others is lost."""
    with StoreProxy(moto) as store:
        job = on_store(tmp_path, mariadb, "store_copies", store)
        spool = f'spool = "{job.state_url.removesuffix("/state")}/spool"'
        with changing(job).running(pause_s=0.02):
            killed = replace(job, pipeline=f"{job.pipeline}\n{spool}").start(failpoints="between_tables=kill@3")
            assert killed.wait() == -signal.SIGKILL, killed.story()
            shutil.rmtree(tmp_path / "work")
            again = replace(job, pipeline=f'work_dir = "{tmp_path / "other"}"\n{spool}').start("--standby")
            assert again.wait_for(lambda: bool(told(again, "commit"))), again.story()
            assert again.interrupt() == ExitCode.INTERRUPTED, again.story()
        assert not told(again, "warning"), again.story()
        reads = [one for one in store.seen if "/spool/" in one.path and one.method == "GET" and one.status == 200]
        assert reads
        catch_up(replace(job, pipeline=f'work_dir = "{tmp_path / "other"}"\n{spool}'))
        bucket = job.state_url.removeprefix("s3://").partition("/")[0]
        left = ObjectStore(ObjectLocation(StoreKind.S3, bucket, "spool"), store.settings).list("")
        assert left == []
    require_lake_equal(job)


@pytest.mark.long(suite="kill")
@pytest.mark.timeout(1800)
def test_a_stopped_driver_that_wakes_up_after_the_takeover_commits_nothing(
    mariadb: MariaDbServer, moto: MotoServer, tmp_path: Path
) -> None:
    """On two machines, which have nothing in common but the store."""
    with StoreProxy(moto) as store:
        job = on_store(tmp_path, mariadb, "store_stopped", store)
        with changing(job).running(pause_s=0.02):
            first = job.start()
            assert first.wait_for(lambda: bool(told(first, "commit"))), first.story()
            second = replace(job, pipeline=f'work_dir = "{tmp_path / "other"}"').start("--standby")
            assert second.wait_for(lambda: bool(told(second, "waiting"))), second.story()
            first.process.send_signal(signal.SIGSTOP)
            assert second.wait_for(lambda: bool(told(second, "commit"))), second.story()
            commits = len(told(first, "commit"))
            first.process.send_signal(signal.SIGCONT)
            assert first.wait() == ExitCode.STATE, first.story()
            assert [error["error"] for error in told(first, "error")] == ["FencedError"]
            assert len(told(first, "commit")) == commits
            refused = replace(job, pipeline=f'work_dir = "{tmp_path / "third"}"').start()
            assert refused.wait() == ExitCode.STATE
            assert "in use by process" in refused.story()
            assert second.interrupt() == ExitCode.INTERRUPTED, second.story()
        catch_up(job)
    require_lake_equal(job)
