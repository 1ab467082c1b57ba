"""Eight writers append to one Delta log in a store: every commit that was said to be made is in it, with its rows."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from raycdc.sandbox.servers import AzuriteServer, MotoServer, S3MockServer
from raycdc.sinks.delta.reading import storage_options, table_at
from raycdc.storage.files import Access, StorePath, any_path
from tests.support.servers.store_proxy import StoreProxy

pytestmark = [pytest.mark.server, pytest.mark.long(suite="stores")]

WRITERS = 8
COMMITS = 12


@pytest.fixture(params=["moto", "s3mock", "azurite"])
def folder(request: pytest.FixtureRequest) -> Iterator[StorePath]:
    """A prefix on each server in turn; those of S3's API behind the proxy."""
    with ExitStack() as stack:
        if request.param == "azurite":
            azurite = stack.enter_context(AzuriteServer())
            url, settings = f"az://{azurite.create_container('race')}", azurite.settings
        else:
            server: MotoServer | S3MockServer = MotoServer() if request.param == "moto" else S3MockServer()
            stack.enter_context(server)
            proxy = stack.enter_context(StoreProxy(server))
            url, settings = f"s3://{server.create_bucket('race')}", proxy.settings
        root = any_path(url, Access(settings))
        assert isinstance(root, StorePath)
        yield root


def row(writer: int, number: int) -> pa.Table:
    return pa.table({"writer": pa.array([writer], pa.int32()), "number": pa.array([number], pa.int32())})


def append(table: DeltaTable, rows: pa.Table) -> bool:
    """Whether the rows were committed as the very next version, as raycdc does it: all race for one object."""
    try:
        write_deltalake(table, rows, mode="append", commit_properties=CommitProperties(max_commit_retries=0))
    except CommitFailedError:
        return False
    finally:
        table.update_incremental()
    return True


def test_no_commit_of_racing_writers_is_lost(folder: StorePath) -> None:
    options = storage_options(folder / "t")
    write_deltalake(str(folder / "t"), row(0, 0).slice(0, 0), storage_options=options)
    barrier, lost_races = threading.Barrier(WRITERS), Counter[int]()

    def write(writer: int) -> None:
        table = table_at(folder / "t")
        try:
            for number in range(COMMITS):
                barrier.wait()
                while not append(table, row(writer, number)):
                    lost_races[writer] += 1
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    table: DeltaTable = table_at(folder / "t")
    rows = [(r["writer"], r["number"]) for r in table.to_pyarrow_table().to_pylist()]
    assert sorted(rows) == [(writer, number) for writer in range(WRITERS) for number in range(COMMITS)]
    assert table.version() == WRITERS * COMMITS
    assert sum(lost_races.values()) > 0
