"""The suite that sinks of others are held to, for the lakes' own: Delta, Iceberg and folders of files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema, write_deltalake

from raycdc.model import TableId
from raycdc.sinks.iceberg.catalog import HadoopCatalog
from raycdc.testing.epochs import Row
from raycdc.testing.sink_conformance import SinkConformance
from raycdc.testing.sink_play import LARGE
from tests.epochs.iceberg_changes import IcebergChanges
from tests.epochs.sink_world import lake_rows

THEIRS = pa.table({"id": pa.array([1], pa.int64()), "name": ["theirs"], "qty": pa.array([1], pa.int32())})


class Lake(SinkConformance):
    """Targets are folders of a folder."""

    kind = ""

    def settings(self, folder: Path) -> dict[str, Any]:
        return {"type": self.kind, "path": str(folder / "lake")}

    def rows(self, folder: Path, target: TableId) -> list[Row]:
        place = self.place(folder, target)
        rows = lake_rows(self.kind, place) if place.exists() else []
        # Files have the columns of their rows.
        names = dict.fromkeys(name for row in rows for name in row)
        return [{**names, **row} for row in rows]

    def lose(self, folder: Path, target: TableId) -> None:
        shutil.rmtree(self.place(folder, target))

    def rename(self, folder: Path, target: TableId, to: TableId) -> bool:
        self.place(folder, target).rename(self.place(folder, to))
        return True

    def place(self, folder: Path, target: TableId) -> Path:
        return folder / "lake" / target.db / target.table


class TestDelta(Lake):
    kind = "delta"

    def occupy(self, folder: Path, target: TableId) -> None:
        write_deltalake(str(self.place(folder, target)), THEIRS)

    def widen(self, folder: Path, target: TableId) -> bool:
        place = str(self.place(folder, target))
        DeltaTable(place).alter.add_columns([*Schema.from_arrow(pa.schema([("note", pa.string())])).fields])
        DeltaTable(place).update({"note": "'theirs'"})
        return True

    def back_up(self, folder: Path, target: TableId) -> Callable[[], None]:
        place = str(self.place(folder, target))
        version = DeltaTable(place).version()

        def restore() -> None:
            DeltaTable(place).restore(version)

        return restore

    def alter(self, folder: Path, target: TableId) -> bool:
        constraint = {"theirs": f"qty IS NULL OR qty < {LARGE}"}
        DeltaTable(str(self.place(folder, target))).alter.add_constraint(constraint)
        return True


class TestIceberg(IcebergChanges, Lake):
    kind = "iceberg"

    def occupy(self, folder: Path, target: TableId) -> None:
        self.catalog(folder).create_table((target.db, target.table), THEIRS.schema).append(THEIRS)

    def rename(self, folder: Path, target: TableId, to: TableId) -> bool:
        return False  # A folder that is moved is no table any more: its metadata name files by their whole paths.

    def catalog(self, folder: Path) -> HadoopCatalog:
        return HadoopCatalog("raycdc", folder / "lake")


class TestParquet(Lake):
    kind = "parquet"

    def occupy(self, folder: Path, target: TableId) -> None:
        place = self.place(folder, target)
        place.mkdir(parents=True, exist_ok=True)
        pq.write_table(THEIRS, place / "theirs.parquet")


class TestJsonLines(Lake):
    kind = "jsonl"

    def occupy(self, folder: Path, target: TableId) -> None:
        place = self.place(folder, target)
        place.mkdir(parents=True, exist_ok=True)
        (place / "theirs.jsonl").write_text('{"id": 1}\n')
