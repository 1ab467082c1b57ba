"""Catalogs that several processes open together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalogBaseTable
from sqlalchemy import event

from raycdc.sinks.iceberg.catalog import open_catalog
from raycdc.sinks.iceberg.plugin import IcebergCatalogOptions


@pytest.mark.parametrize("before", ["iceberg_tables", "iceberg_namespace_properties"])
def test_another_process_that_creates_the_tables_first_is_no_error(tmp_path: Path, before: str) -> None:
    settings: dict[str, Any] = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": str(tmp_path / "lake"),
        "properties": {},
    }
    options = IcebergCatalogOptions(**settings)
    table = SqlCatalogBaseTable.metadata.tables[before]
    others: list[Any] = []

    def come_in_between(_table: object, _connection: object, **_: object) -> None:
        if not others:
            others.append(None)
            others.append(open_catalog(options))

    event.listen(table, "before_create", come_in_between)
    try:
        catalog: Any = open_catalog(options)
    finally:
        event.remove(table, "before_create", come_in_between)
    catalog.create_namespace("shop")
    assert others[1].list_namespaces() == [("shop",)]
    for opened in (catalog, others[1]):
        opened.engine.dispose()
