"""The key of an Azure account changes while a run has its state and its lake there.

Azurite is started anew with another key, which it alone lets in, before the file says it. Shared access signatures
cannot be played: to them it answers deletions, which are batches, with 500.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from raycdc.sandbox.servers import AzuriteServer, MariaDbServer
from raycdc.sinks.delta.reading import table_at
from raycdc.sinks.iceberg.catalog import open_catalog
from raycdc.sinks.iceberg.plugin import IcebergCatalogOptions
from raycdc.storage.files import Access, StorePath, any_path, content, files_below
from tests.support.jobs import Job
from tests.support.servers.store_proxy import StoreProxy

pytestmark = [pytest.mark.server, pytest.mark.long(suite="stores")]


@pytest.fixture(scope="module")
def azurite() -> Iterator[AzuriteServer]:
    with AzuriteServer(keeps=True) as server:
        yield server


def rows(sink: str, lake: str, database: str, azurite: AzuriteServer) -> list[int]:
    """The keys that are there, read past the proxy."""
    root = any_path(lake, Access(azurite.settings))
    assert isinstance(root, StorePath)
    if sink == "delta":
        table = table_at(root / database / "t").to_pyarrow_table()
    elif sink == "iceberg":
        catalog = open_catalog(IcebergCatalogOptions(type="hadoop", warehouse=lake), azurite.settings)
        table = catalog.load_table((database, "t")).scan().to_arrow()
    else:
        folder = root / database / "t"
        files = [content(folder / name) for name in files_below(folder) if "_raycdc" not in name]
        return sorted(json.loads(line)["id"] for file in files for line in file.splitlines())
    return sorted(table.column("id").to_pylist())


@pytest.mark.parametrize("sink", ["delta", "iceberg", "jsonl"])
def test_keys_change_while_a_run_goes_on(
    sink: str, mariadb: MariaDbServer, mariadb_database: str, azurite: AzuriteServer, tmp_path: Path
) -> None:
    database, container = mariadb_database, azurite.create_container(f"{mariadb_database}-{sink}".replace("_", "-"))
    file, given = tmp_path / "key", []

    def give() -> None:
        given.append(azurite.key)
        file.with_suffix(".new").write_text(given[-1])
        file.with_suffix(".new").replace(file)

    give()
    mariadb.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)", database=database)
    lake = f"az://{container}/lake"
    with StoreProxy(cast("Any", azurite), serialised=False) as store:
        section = f"""
[storage]
endpoint = "{store.endpoint}/{azurite.account}"
account = "{azurite.account}"
account_key = "${{file:{file}}}"
allow_http = true
"""
        write = "changelog" if sink == "jsonl" else "upsert"
        job = Job(tmp_path, mariadb, database, ["t"], sink=sink, sink_keys=f'path = "{lake}"', sections=section)
        job.local, job.state_url, job.write = True, f"az://{container}/state", write
        live = job.start()
        live.wait_for(lambda: any(event["event"] == "commit" and event["rows"] for event in live.events))
        for number, key in enumerate((b"second", b"third"), 2):
            azurite.change_key(base64.b64encode(key).decode())
            before = len(store.seen)
            mariadb.execute(f"INSERT INTO t VALUES ({number})", database=database)
            assert live.wait_for(lambda before=before: any(one.status == 403 for one in store.seen[before:])), (  # type: ignore[misc]
                live.story()
            )
            give()
            expected = list(range(1, number + 1))
            live.wait_for_rows(lambda expected=expected: rows(sink, lake, database, azurite) == expected)  # type: ignore[misc]
        assert live.interrupt() in (0, 130), live.story()
    assert not [key for key in given if key in live.story()]
    assert "parked" not in live.story()
