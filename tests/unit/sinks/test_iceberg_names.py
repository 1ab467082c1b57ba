"""A snapshot that got a branch or tag since we looked is not left out of its table, in the catalogs of our own."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import RemoveSnapshotsUpdate

from raycdc.config import Secret
from raycdc.sinks.iceberg.catalog import open_catalog
from raycdc.sinks.iceberg.plugin import IcebergCatalogOptions

ORDERS = ("shop", "orders")


@pytest.mark.parametrize("kind", ["hadoop", "sql"])
def test_a_named_snapshot_is_not_left_out(kind: Literal["hadoop", "sql"], tmp_path: Path) -> None:
    uri = Secret(f"sqlite:///{tmp_path}/catalog.db" if kind == "sql" else "")
    opened = open_catalog(IcebergCatalogOptions(type=kind, warehouse=str(tmp_path / "lake"), uri=uri))
    with closing(opened) as catalog:
        rows = pa.table({"id": [1]})
        catalog.create_namespace_if_not_exists(ORDERS[:1])
        table = catalog.create_table(ORDERS, rows.schema)
        for _ in range(3):
            table.append(rows)
        first, second, _ = (snapshot.snapshot_id for snapshot in table.metadata.snapshots)
        looked_at = catalog.load_table(ORDERS)
        catalog.load_table(ORDERS).manage_snapshots().create_tag(first, "month").commit()
        for left_out in (first, second):
            updates = (RemoveSnapshotsUpdate(snapshot_ids=[left_out]),)  # type: ignore[call-arg]
            if left_out == first:
                with pytest.raises(CommitFailedException, match="has the name month"):
                    catalog.commit_table(looked_at, (), updates)
            else:
                catalog.commit_table(looked_at, (), updates)
        metadata = catalog.load_table(ORDERS).metadata
        assert metadata.refs["month"].snapshot_id == first
        assert second not in {snapshot.snapshot_id for snapshot in metadata.snapshots}
