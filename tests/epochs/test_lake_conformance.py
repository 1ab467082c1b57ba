"""The suite that sinks of others are held to, for the lakes' own: Delta, Iceberg and folders of files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from raycdc.model import TableId
from raycdc.sinks.iceberg.catalog import HadoopCatalog
from raycdc.testing.epochs import Row
from raycdc.testing.sink_conformance import SinkConformance
from tests.epochs.delta_changes import DeltaChanges
from tests.epochs.iceberg_changes import IcebergChanges
from tests.epochs.sink_world import lake_rows

NEAR = {
    "unreachable": "The folder is as near as the pipeline's own state.",
    "revoke": "Tests may run as root, whom no permission of a folder holds back.",
}
#: Of folders whose files have the rows of an epoch each.
FILES = {
    "widen": "Rows of files are never updated.",
    "back_up": "People may take files away, and an older copy is the same.",
    "alter": "A folder takes every row.",
    "maintain": "There is nothing to maintain in a folder of files.",
}

THEIRS = pa.table({"id": pa.array([1], pa.int64()), "name": ["theirs"], "qty": pa.array([1], pa.int32())})


class Lake(SinkConformance):
    """Targets are folders of a folder."""

    kind = ""
    impossible: ClassVar[Mapping[str, str]] = NEAR

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

    def rename(self, folder: Path, target: TableId, to: TableId) -> None:
        self.place(folder, target).rename(self.place(folder, to))

    def place(self, folder: Path, target: TableId) -> Path:
        return folder / "lake" / target.db / target.table


class TestDelta(DeltaChanges, Lake):
    kind = "delta"

    def occupy(self, folder: Path, target: TableId) -> None:
        write_deltalake(str(self.place(folder, target)), THEIRS)

    def back_up(self, folder: Path, target: TableId) -> Callable[[], None]:
        version = self.table(folder, target).version()

        def restore() -> None:
            self.table(folder, target).restore(version)

        return restore

    def maintain(self, folder: Path, target: TableId) -> None:
        super().maintain(folder, target)
        self.table(folder, target).create_checkpoint()

    def table(self, folder: Path, target: TableId) -> DeltaTable:
        return DeltaTable(str(self.place(folder, target)))


class TestIceberg(IcebergChanges, Lake):
    kind = "iceberg"
    impossible: ClassVar[Mapping[str, str]] = {
        **NEAR,
        "rename": "A folder that is moved is no table any more, as its metadata name files by their whole paths.",
    }

    def occupy(self, folder: Path, target: TableId) -> None:
        self.catalog(folder).create_table((target.db, target.table), THEIRS.schema).append(THEIRS)

    def catalog(self, folder: Path) -> HadoopCatalog:
        return HadoopCatalog("raycdc", folder / "lake")


class Files(Lake):
    """A file for each epoch, of which people may take any."""

    impossible: ClassVar[Mapping[str, str]] = {**NEAR, **FILES}

    def erase(self, folder: Path, target: TableId) -> None:
        min(self.place(folder, target).glob(f"*.{self.kind}")).unlink()


class TestParquet(Files):
    kind = "parquet"

    def occupy(self, folder: Path, target: TableId) -> None:
        place = self.place(folder, target)
        place.mkdir(parents=True, exist_ok=True)
        pq.write_table(THEIRS, place / "theirs.parquet")


class TestJsonLines(Files):
    kind = "jsonl"

    def occupy(self, folder: Path, target: TableId) -> None:
        place = self.place(folder, target)
        place.mkdir(parents=True, exist_ok=True)
        (place / "theirs.jsonl").write_text('{"id": 1}\n')
