"""Iceberg and files on Azure Blob Storage, as Azurite plays it: the suite that each sink is held to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from obstore.store import AzureStore

from raycdc.model import TableId
from raycdc.sandbox.servers import AzuriteServer
from raycdc.storage.settings import StorageSettings
from raycdc.testing.epochs import Row
from raycdc.testing.sink_conformance import SinkConformance
from tests.epochs.test_lake_conformance import FILES
from tests.integration.sinks.on_s3 import IN_STORES
from tests.integration.sinks.test_iceberg_stores import IcebergTables

pytestmark = [pytest.mark.server, pytest.mark.long(suite="stores")]


@pytest.fixture(scope="module")
def azurite() -> Iterator[AzuriteServer]:
    with AzuriteServer() as server:
        yield server


class OnAzure(SinkConformance):
    """Each test has a container of its own."""

    impossible: ClassVar[Mapping[str, str]] = {
        **IN_STORES,
        "unreachable": "The suite on S3 plays a store that fails for a while.",
    }

    @pytest.fixture(autouse=True)
    def _store(self, azurite: AzuriteServer) -> None:
        self.azurite = azurite
        self.containers: set[str] = set()

    def container(self, folder: Path) -> str:
        name = f"lake-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"
        if name not in self.containers:
            self.azurite.create_container(name)
            self.containers.add(name)
        return name

    def storage(self, folder: Path) -> StorageSettings:
        return self.azurite.settings

    def objects(self, folder: Path) -> AzureStore:
        return AzureStore(
            self.container(folder),
            account_name=self.azurite.account,
            account_key=self.azurite.key,
            endpoint=self.azurite.endpoint,
            client_options={"allow_http": True},
        )

    def keys(self, folder: Path, target: TableId) -> list[str]:
        store = self.objects(folder)
        return [meta["path"] for chunk in store.list(f"lake/{target.db}/{target.table}") for meta in chunk]

    def lose(self, folder: Path, target: TableId) -> None:
        for key in self.keys(folder, target):
            self.objects(folder).delete(key)


class TestJsonLinesOnAzure(OnAzure):
    """``path = "az://…"``."""

    impossible: ClassVar[Mapping[str, str]] = {**OnAzure.impossible, **FILES}

    def settings(self, folder: Path) -> dict[str, Any]:
        return {"type": "jsonl", "path": f"az://{self.container(folder)}/lake"}

    def rows(self, folder: Path, target: TableId) -> list[Row]:
        rows: list[Row] = []
        for key in sorted(self.keys(folder, target)):
            if "/_raycdc/" not in key:
                rows += [json.loads(line) for line in bytes(self.objects(folder).get(key).bytes()).splitlines()]
        names = dict.fromkeys(name for row in rows for name in row)
        return [{**names, **row} for row in rows]

    def occupy(self, folder: Path, target: TableId) -> None:
        self.objects(folder).put(f"lake/{target.db}/{target.table}/theirs.jsonl", b'{"id": 1}\n')

    def erase(self, folder: Path, target: TableId) -> None:
        self.objects(folder).delete(min(key for key in self.keys(folder, target) if "/_raycdc/" not in key))


class TestIcebergOnAzure(IcebergTables, OnAzure):
    """``path = "az://…"``: the warehouse of a hadoop catalog."""

    def settings(self, folder: Path) -> dict[str, Any]:
        return {"type": "iceberg", "path": f"az://{self.container(folder)}/lake"}
