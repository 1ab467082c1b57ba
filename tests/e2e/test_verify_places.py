"""``raycdc verify`` of lakes that are not in a folder: Delta on S3, Iceberg in a SQL and in a REST catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from raycdc.errors import ExitCode
from raycdc.sandbox.servers import MariaDbServer, MotoServer
from raycdc.storage.settings import delta_options
from raycdc.storage.url import ObjectLocation, parse_location
from tests.e2e.verified import counts, require_verified, verified
from tests.integration.sinks.iceberg_server import Server
from tests.support.jobs import Job, catch_up
from tests.support.servers.store_proxy import StoreProxy

pytestmark = pytest.mark.server

ROWS = 300


def job_of(server: MariaDbServer, database: str, folder: Path) -> Job:
    server.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, price DECIMAL(10, 2), b VARCHAR(50), at DATETIME(6))",
        "INSERT INTO t SELECT seq, seq / 4, IF(seq % 7, CONCAT('row ', seq), NULL), '2024-02-29' + INTERVAL seq SECOND "
        f"FROM seq_1_to_{ROWS}",
        database=database,
    )
    return Job(folder, server, database, ("t",), local=True)


#: Takes the row with id 7 away from a target.
Plant = Callable[[], object]


@contextmanager
def delta_on_s3(job: Job, moto: MotoServer) -> Iterator[Plant]:
    url = f"s3://{moto.create_bucket(job.database.replace('_', '-'))}/lake"
    with StoreProxy(moto) as store:
        job.sink_keys, job.sections = f'path = "{url}"', store.section
        place = parse_location(f"{url}/{job.database}/t")
        assert isinstance(place, ObjectLocation)
        options = delta_options(place, store.settings)
        yield lambda: DeltaTable(str(place), storage_options=options).delete("id = 7")


@contextmanager
def iceberg_of_sql(job: Job, _: MotoServer) -> Iterator[Plant]:
    uri = f"sqlite:///{job.folder}/catalog.db"
    keys = f'type = "sql", name = "ours", uri = "{uri}", warehouse = "{job.lake}"'
    job.sink, job.sink_keys = "iceberg", f"catalog = {{ {keys} }}"
    yield lambda: iceberg_table(job, type="sql", uri=uri).delete("id = 7")


@contextmanager
def iceberg_of_rest(job: Job, _: MotoServer) -> Iterator[Plant]:
    server = Server(job.folder / "rest")
    try:
        job.sink, job.sink_keys = "iceberg", f'catalog = {{ type = "rest", uri = "{server.uri}" }}'
        yield lambda: iceberg_table(job, type="rest", uri=server.uri).delete("id = 7")
    finally:
        server.close()


def iceberg_table(job: Job, **properties: str) -> Table:
    return load_catalog("ours", **properties).load_table((job.database, "t"))


@pytest.mark.parametrize("target", [delta_on_s3, iceberg_of_sql, iceberg_of_rest], ids=lambda target: target.__name__)
def test_a_lake_elsewhere_is_compared(
    mariadb: MariaDbServer,
    mariadb_database: str,
    moto: MotoServer,
    tmp_path: Path,
    target: Callable[[Job, MotoServer], AbstractContextManager[Plant]],
) -> None:
    job = job_of(mariadb, mariadb_database, tmp_path)
    with target(job, moto) as plant:
        catch_up(job)
        mariadb.execute("UPDATE t SET price = -1 WHERE id < 5", "DELETE FROM t WHERE id = 9", database=mariadb_database)
        catch_up(job)
        require_verified(job, rows=ROWS - 1)
        plant()
        mariadb.execute("DELETE FROM t WHERE id = 10", database=mariadb_database)
        code, lines = verified(job)
    assert (code, counts(lines["t"])) == (ExitCode.DIFFERENT, {"missing": 1, "behind": 1})
