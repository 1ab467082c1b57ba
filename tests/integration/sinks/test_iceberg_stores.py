"""Iceberg on object stores: the suite that each sink is held to, through the catalogs that people have there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from raycdc.model import TableId
from raycdc.sandbox.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY
from raycdc.sinks.iceberg.catalog import open_catalog
from raycdc.sinks.iceberg.plugin import IcebergCatalogOptions
from raycdc.storage.settings import LIKE_ANYBODY, StorageSettings, iceberg_properties
from raycdc.storage.url import ObjectLocation, StoreKind
from raycdc.testing.epochs import Row
from tests.epochs.iceberg_changes import IcebergChanges
from tests.integration.sinks.iceberg_server import Server
from tests.integration.sinks.on_s3 import OnS3, play_only

pytestmark = pytest.mark.server

#: Of the suite, those that are played in each run of the tests.
FEW = (
    "test_every_change_is_there_once",
    "test_a_replaced_driver_writes_nothing",
    "test_looking_before_anything_was_written_makes_nothing",
)

THEIRS = pa.table({"id": pa.array([1], pa.int64()), "name": ["theirs"], "qty": pa.array([1], pa.int32())})


class IcebergTables(IcebergChanges):
    """Targets are tables of a catalog."""

    def catalog(self, folder: Path) -> Catalog:
        settings = self.settings(folder)
        options = settings.get("catalog") or {"warehouse": settings["path"]}
        return open_catalog(IcebergCatalogOptions(**options), self.storage(folder))

    def rows(self, folder: Path, target: TableId) -> list[Row]:
        try:
            table = self.catalog(folder).load_table((target.db, target.table))
        except NoSuchTableError:
            return []
        rows: list[Row] = table.scan().to_arrow().to_pylist()
        return rows

    def occupy(self, folder: Path, target: TableId) -> None:
        catalog = self.catalog(folder)
        catalog.create_namespace_if_not_exists((target.db,))
        catalog.create_table((target.db, target.table), THEIRS.schema).append(THEIRS)


class IcebergOnS3(IcebergTables, OnS3):
    """Tables on S3."""


@pytest.mark.long(suite="stores")
@pytest.mark.timeout(1800)
class TestFolderOnS3(IcebergOnS3):
    """``path = "s3://…"``: the warehouse of a hadoop catalog."""

    def settings(self, folder: Path) -> dict[str, Any]:
        return {"type": "iceberg", "path": f"s3://{self.bucket(folder)}/lake"}


class OfRest(IcebergOnS3):
    """A catalog that gives the keys of the store with each table: the pipeline's configuration has none."""

    @pytest.fixture(autouse=True)
    def _catalogs(self) -> Iterator[None]:
        self.servers: dict[Path, Server] = {}
        yield
        for server in self.servers.values():
            server.close()

    def storage(self, folder: Path) -> StorageSettings:
        return LIKE_ANYBODY

    def settings(self, folder: Path) -> dict[str, Any]:
        if folder not in self.servers:
            own = super().storage(folder)
            keys = iceberg_properties(ObjectLocation(StoreKind.S3, "any"), own)
            self.servers[folder] = Server(f"s3://{self.bucket(folder)}/lake", own, vends=keys)
        properties = {"token": "secret-token"}
        return {
            "type": "iceberg",
            "catalog": {"type": "rest", "uri": self.servers[folder].uri, "properties": properties},
        }


@pytest.mark.long(suite="stores")
@pytest.mark.timeout(1800)
class TestRestCatalogOnS3(OfRest):
    """The whole suite."""


class TestRestCatalogOnS3InEachRun(OfRest):
    """Those of the suite that show most for their time."""


play_only(TestRestCatalogOnS3InEachRun, FEW)


@pytest.mark.long(suite="stores")
@pytest.mark.timeout(1800)
class TestGlueOnS3(IcebergOnS3):
    """Amazon's Glue, as moto plays it: one for all folders, which therefore begin with removing what is in it."""

    def settings(self, folder: Path) -> dict[str, Any]:
        if is_new := folder not in self.folders:
            self.folders.add(folder)
        settings = self.glue(folder)
        if is_new:
            catalog = self.catalog(folder)
            for space in catalog.list_namespaces():
                for table in catalog.list_tables(space):
                    catalog.drop_table(table)
        return settings

    def glue(self, folder: Path) -> dict[str, Any]:
        own = {"endpoint": self.proxy.endpoint, "region": REGION}
        keys = {"access-key-id": ACCESS_KEY, "secret-access-key": SECRET_KEY}
        properties = {f"glue.{name}": value for name, value in {**own, **keys}.items()}
        warehouse = f"s3://{self.bucket(folder)}/lake"
        return {"type": "iceberg", "catalog": {"type": "glue", "warehouse": warehouse, "properties": properties}}

    def lose(self, folder: Path, target: TableId) -> None:
        self.catalog(folder).drop_table((target.db, target.table))
