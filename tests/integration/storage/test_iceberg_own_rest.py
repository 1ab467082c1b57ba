"""Iceberg through the REST catalog of its own project, with tables at a server of the S3 API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raycdc.model import TableId
from raycdc.sandbox.servers import IcebergRestServer, MotoServer
from tests.integration.sinks.test_iceberg_stores import IcebergOnS3
from tests.support.servers.store_proxy import StoreProxy

pytestmark = [pytest.mark.server, pytest.mark.long(suite="stores")]


@pytest.fixture(scope="module")
def proxy(moto: MotoServer) -> Iterator[StoreProxy]:
    with StoreProxy(moto) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def own_catalog(proxy: StoreProxy) -> Iterator[IcebergRestServer]:
    with IcebergRestServer(proxy, f"s3://{proxy.create_bucket('own-rest')}/lake") as server:
        yield server


class TestIcebergsOwnRestCatalog(IcebergOnS3):
    """One server for all folders, which therefore begin with removing what is in it."""

    @pytest.fixture(autouse=True)
    def _catalog(self, own_catalog: IcebergRestServer) -> None:
        self.own = own_catalog

    def settings(self, folder: Path) -> dict[str, Any]:
        settings = {"type": "iceberg", "catalog": {"type": "rest", "uri": self.own.uri}}
        if folder not in self.folders:
            self.folders.add(folder)
            catalog = self.catalog(folder)
            for space in catalog.list_namespaces():
                for table in catalog.list_tables(space):
                    catalog.drop_table(table)
        return settings

    def lose(self, folder: Path, target: TableId) -> None:
        self.catalog(folder).drop_table((target.db, target.table))
