"""What others do to Iceberg tables, for the suite of sinks: the same in every catalog."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.types import StringType

from raycdc.model import TableId
from raycdc.testing.sink_conformance import SinkConformance


class IcebergChanges(SinkConformance):
    """Hooks of the suite for tables of `catalog`."""

    def catalog(self, folder: Path) -> Catalog:
        raise NotImplementedError

    def widen(self, folder: Path, target: TableId) -> bool:
        table = self.table(folder, target)
        with table.update_schema() as update:
            update.add_column("note", StringType())
        rows = table.scan().to_arrow()
        notes = pa.array(["theirs"] * rows.num_rows)
        table.overwrite(rows.set_column(rows.schema.get_field_index("note"), "note", notes))
        return True

    def back_up(self, folder: Path, target: TableId) -> Callable[[], None]:
        snapshot = self.table(folder, target).current_snapshot()
        assert snapshot is not None

        def restore() -> None:
            self.table(folder, target).manage_snapshots().rollback_to_snapshot(snapshot.snapshot_id).commit()

        return restore

    def alter(self, folder: Path, target: TableId) -> bool:
        with self.table(folder, target).update_schema(allow_incompatible_changes=True) as update:
            update.delete_column("qty")
        return True

    def table(self, folder: Path, target: TableId) -> Table:
        return self.catalog(folder).load_table((target.db, target.table))
