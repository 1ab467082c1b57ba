"""What others do to Delta tables, for the suite of sinks: the same wherever they lie."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, Schema

from raycdc.model import TableId
from raycdc.testing.sink_conformance import SinkConformance
from raycdc.testing.sink_play import LARGE


class DeltaChanges(SinkConformance):
    """Hooks of the suite for tables that `table` opens."""

    def table(self, folder: Path, target: TableId) -> DeltaTable:
        raise NotImplementedError

    def widen(self, folder: Path, target: TableId) -> None:
        table = self.table(folder, target)
        table.alter.add_columns([*Schema.from_arrow(pa.schema([("note", pa.string())])).fields])
        table.update({"note": "'theirs'"})

    def alter(self, folder: Path, target: TableId) -> None:
        self.table(folder, target).alter.add_constraint({"theirs": f"qty IS NULL OR qty < {LARGE}"})

    def erase(self, folder: Path, target: TableId) -> None:
        self.table(folder, target).delete("id > 110")

    def maintain(self, folder: Path, target: TableId) -> None:
        table = self.table(folder, target)
        table.optimize.compact()
        table.vacuum(0, dry_run=False, enforce_retention_duration=False)
