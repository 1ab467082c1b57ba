"""Keys of ``[storage]`` change while a run has its state and its lake in an object store: it goes on without a restart.

The store lets in the new key alone before the files say it, so that a request is refused first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raycdc.sandbox.servers import MariaDbServer, MotoServer
from raycdc.sinks.delta.reading import table_at
from raycdc.sinks.iceberg.catalog import open_catalog
from raycdc.sinks.iceberg.plugin import IcebergCatalogOptions
from raycdc.storage.files import Access, StorePath, any_path
from raycdc.storage.settings import StorageSettings
from tests.support.jobs import Job
from tests.support.servers.store_proxy import StoreProxy

pytestmark = pytest.mark.server


@pytest.fixture
def store(moto: MotoServer) -> Iterator[StoreProxy]:
    with StoreProxy(moto) as proxy:
        yield proxy


def rows(sink: str, lake: str, database: str, settings: StorageSettings) -> list[int]:
    """The keys that are there, read past the proxy."""
    if sink == "delta":
        root = any_path(lake, Access(settings))
        assert isinstance(root, StorePath)
        table = table_at(root / database / "t").to_pyarrow_table()
    else:
        catalog = open_catalog(IcebergCatalogOptions(type="hadoop", warehouse=lake), settings)
        table = catalog.load_table((database, "t")).scan().to_arrow()
    return sorted(table.column("id").to_pylist())


@pytest.mark.parametrize("sink", ["delta", pytest.param("iceberg", marks=pytest.mark.long(suite="certificates"))])
def test_keys_change_while_a_run_goes_on(
    sink: str, mariadb: MariaDbServer, mariadb_database: str, moto: MotoServer, store: StoreProxy, tmp_path: Path
) -> None:
    database, bucket = mariadb_database, moto.create_bucket(mariadb_database.replace("_", "-"))
    files = {name: tmp_path / name for name in ("access_key_id", "secret_access_key")}

    def give(key: str) -> None:
        for name, file in files.items():
            file.with_suffix(".new").write_text(f"{key}-{name}")
            file.with_suffix(".new").replace(file)

    section = store.section
    for name, file in files.items():
        section = section.replace(f'{name} = "test"', f'{name} = "${{file:{file}}}"')
    give("first")
    store.is_authorized = "first-access_key_id"
    mariadb.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)", database=database)
    lake = f"s3://{bucket}/lake"
    job = Job(tmp_path, mariadb, database, ["t"], sink=sink, sink_keys=f'path = "{lake}"', sections=section)
    job.local, job.state_url = True, f"s3://{bucket}/state"
    live = job.start()
    live.wait_for(lambda: any(event["event"] == "commit" and event["rows"] for event in live.events))
    for number, key in enumerate(("second", "third"), 2):
        before = len(store.seen)
        store.is_authorized = f"{key}-access_key_id"
        mariadb.execute(f"INSERT INTO t VALUES ({number})", database=database)
        assert live.wait_for(lambda before=before: any(one.status == 403 for one in store.seen[before:])), live.story()  # type: ignore[misc]
        give(key)
        expected = list(range(1, number + 1))
        live.wait_for_rows(lambda expected=expected: rows(sink, lake, database, moto.settings) == expected)  # type: ignore[misc]
    assert live.interrupt() in (0, 130), live.story()
    assert not any(f"{key}-" in live.story() for key in ("first", "second", "third"))
