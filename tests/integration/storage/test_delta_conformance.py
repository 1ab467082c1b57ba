"""The suite that sinks of others are held to, for Delta tables in an object store."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from raycdc.model import TableId
from raycdc.sandbox.servers import AzuriteServer, MotoServer, S3MockServer
from raycdc.sinks.api import SinkContext
from raycdc.sinks.delta.maintenance import DeltaMaintenance
from raycdc.sinks.delta.plugin import DeltaOptimizeOptions
from raycdc.sinks.delta.reading import is_table, storage_options, table_at
from raycdc.sinks.delta.sink import DeltaSink
from raycdc.sinks.delta.table import DeltaTarget
from raycdc.storage.files import Access, StorePath, any_path, delete_table
from raycdc.storage.settings import StorageSettings
from raycdc.testing.epochs import Row
from raycdc.testing.sink_play import Play
from tests.epochs.delta_changes import DeltaChanges
from tests.integration.sinks.on_s3 import IN_STORES
from tests.support.servers.store_proxy import StoreProxy

pytestmark = pytest.mark.server

THEIRS = pa.table({"id": pa.array([1], pa.int64()), "name": ["theirs"], "qty": pa.array([1], pa.int32())})


class DeltaInStore(DeltaChanges):
    """Each test has a prefix of its own: the name of its folder."""

    url = ""
    access: Access
    impossible: ClassVar[Mapping[str, str]] = {
        **IN_STORES,
        "back_up": "`test_delta_others` plays it, as delta-rs holds all threads of this process meanwhile.",
        "away": "`test_delta_run` plays a store that refuses for a while.",
    }

    def storage(self, folder: Path) -> StorageSettings:
        return self.access.settings

    def settings(self, folder: Path) -> dict[str, Any]:
        return {"type": "delta", "path": f"{self.url}/{folder.parent.name}/{folder.name}"}

    def rows(self, folder: Path, target: TableId) -> list[Row]:
        place = self.place(folder, target)
        rows: list[Row] = table_at(place).to_pyarrow_table().to_pylist() if is_table(place) else []
        return rows

    def lose(self, folder: Path, target: TableId) -> None:
        delete_table(self.place(folder, target), "_delta_log")

    def occupy(self, folder: Path, target: TableId) -> None:
        write_deltalake(str(self.place(folder, target)), THEIRS, storage_options=self.options(folder, target))

    def table(self, folder: Path, target: TableId) -> DeltaTable:
        return DeltaTable(str(self.place(folder, target)), storage_options=self.options(folder, target))

    def place(self, folder: Path, target: TableId) -> StorePath:
        root = any_path(self.settings(folder)["path"], self.access)
        assert isinstance(root, StorePath)
        return root / target.db / target.table

    def options(self, folder: Path, target: TableId) -> dict[str, str]:
        return storage_options(self.place(folder, target)) or {}


@pytest.mark.long(suite="stores")
class TestMoto(DeltaInStore):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def server(cls, moto: MotoServer) -> Iterator[None]:
        url = f"s3://{moto.create_bucket('conformance')}"
        with StoreProxy(moto) as proxy:
            cls.url, cls.access = url, Access(proxy.settings)
            yield


@pytest.mark.long(suite="stores")
class TestS3Mock(DeltaInStore):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def server(cls) -> Iterator[None]:
        with S3MockServer() as s3mock, StoreProxy(s3mock) as proxy:
            cls.url = f"s3://{s3mock.create_bucket('conformance')}"
            cls.access = Access(proxy.settings)
            yield


@pytest.mark.long(suite="stores")
class TestAzurite(DeltaInStore):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def server(cls) -> Iterator[None]:
        with AzuriteServer() as azurite:
            cls.url = f"az://{azurite.create_container('conformance')}"
            cls.access = Access(azurite.settings)
            yield


#: Played in each run of the tests; all of them take a minute.
IN_EACH_RUN = ("test_every_change_is_there_once", "test_a_replaced_driver_writes_nothing")


@pytest.fixture
def suite(moto: MotoServer, request: pytest.FixtureRequest) -> Iterator[DeltaInStore]:
    with StoreProxy(moto) as proxy:
        suite = DeltaInStore()
        suite.url = f"s3://{moto.create_bucket('test-' + uuid.uuid4().hex)}"
        suite.access = Access(proxy.settings)
        yield suite


@pytest.mark.parametrize("story", IN_EACH_RUN)
def test_on_moto_in_each_run(suite: DeltaInStore, tmp_path: Path, story: str) -> None:
    getattr(suite, story)(tmp_path)


class NoSpark:
    """A session that may not be asked for anything."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"Spark was asked for {name}")


def test_a_large_merge_is_not_made_by_spark(
    suite: DeltaInStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Because Delta's Spark overwrites the commits of others there."""
    monkeypatch.setattr("raycdc.sinks.delta.target.MERGE_IN_PROCESS_BYTES_MAX", 0)
    monkeypatch.setattr("raycdc.sinks.delta.sink.SMALL_BYTES_MAX", 0)
    look = DeltaSink.inspect

    def with_spark(sink: DeltaSink, context: SinkContext) -> None:
        look(sink, replace(context, session=NoSpark))

    monkeypatch.setattr(DeltaSink, "inspect", with_spark)
    suite.test_every_change_is_there_once(tmp_path)


def test_upkeep_makes_small_files_one_and_leaves_the_rows(suite: DeltaInStore, tmp_path: Path) -> None:
    play = Play(tmp_path, suite.new_sink)
    play.epochs(3)
    play.run()
    target = DeltaTarget(suite.place(tmp_path, play.orders.id), play.orders.id, play.store.app_id)
    assert target.refresh()
    write_deltalake(target.table, target.table.to_pyarrow_table().slice(0, 0), mode="append")
    before = suite.rows(tmp_path, play.orders.id)
    options = DeltaOptimizeOptions(every=timedelta(hours=1), vacuum=timedelta(hours=1))
    DeltaMaintenance(options, upsert=True, clock=lambda: time.time() + 7200).after_commit(target, 10)
    assert target.refresh()
    assert len(target.table.file_uris()) == 1
    assert sorted(suite.rows(tmp_path, play.orders.id), key=itemgetter("id")) == sorted(before, key=itemgetter("id"))
