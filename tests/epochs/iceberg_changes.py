"""What others do to Iceberg tables, for the suite of sinks: the same in every catalog."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
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

    def widen(self, folder: Path, target: TableId) -> None:
        table = self.table(folder, target)
        with table.update_schema() as update:
            update.add_column("note", StringType())
        rows = table.scan().to_arrow()
        notes = pa.array(["theirs"] * rows.num_rows)
        table.overwrite(rows.set_column(rows.schema.get_field_index("note"), "note", notes))

    def back_up(self, folder: Path, target: TableId) -> Callable[[], None]:
        snapshot = self.table(folder, target).current_snapshot()
        assert snapshot is not None

        def restore() -> None:
            self.table(folder, target).manage_snapshots().rollback_to_snapshot(snapshot.snapshot_id).commit()

        return restore

    def alter(self, folder: Path, target: TableId) -> None:
        with self.table(folder, target).update_schema(allow_incompatible_changes=True) as update:
            update.delete_column("qty")

    def erase(self, folder: Path, target: TableId) -> None:
        self.table(folder, target).delete("id > 110")

    def maintain(self, folder: Path, target: TableId) -> None:
        """As a compaction does, and an expiry of what is older."""
        table = self.table(folder, target)
        table.overwrite(table.scan().to_arrow())
        table.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()

    def table(self, folder: Path, target: TableId) -> Table:
        return self.catalog(folder).load_table((target.db, target.table))
