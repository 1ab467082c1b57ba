"""The conformance suite of sources: the connector to copy passes it, and each planted fault fails it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from raycdc.connectors.datagen.generator import ABSENT, Generator
from raycdc.connectors.datagen.plugin import DatagenSourceConfig
from raycdc.connectors.datagen.source import DatagenSource
from raycdc.model import TableId
from raycdc.source.connector import SourceContext
from raycdc.testing import SourceConformance
from raycdc.testing.source_play import Row

TABLES = ["shop.orders", "shop.items"]
#: Transactions of each step; a step alters the tables, too.
STEP = 60


def config_of(folder: Path) -> DatagenSourceConfig:
    events = folder / "events"
    return DatagenSourceConfig.model_validate(
        {
            "type": "datagen",
            "tables": TABLES,
            "rows": 200,
            "new_rows": 50,
            "events": int(events.read_text()) if events.exists() else 40,
            "per_second": 0,
            "deletes": 0.3,
            "alter_every": 70,
            "chunk_rows": 40,
            "faults": {"acknowledged": str(folder / "acknowledged.json")},
        }
    )


class DatagenConformance(SourceConformance):
    """The suite, with what it asks of a source answered for generated tables."""

    source: type[DatagenSource] = DatagenSource

    def new_source(self, folder: Path, context: SourceContext | None = None) -> DatagenSource:
        return self.source(config_of(folder), context)

    def change(self, folder: Path, step: int) -> None:
        (folder / "events").write_text(str((config_of(folder).events or 0) + STEP))

    def rows(self, folder: Path, table: TableId) -> list[Row]:
        generator, end = Generator(config_of(folder)), config_of(folder).events or 0
        versions = generator.versions(table, 0, generator.keys, end)
        keys = (versions != ABSENT).nonzero()[0]
        columns = generator.columns(table, keys, versions[keys], end)
        names = generator.schema(end).arrow().names
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def acknowledged(self, folder: Path) -> int | None:
        path = folder / "acknowledged.json"
        return int(json.loads(path.read_text())["transactions"]) if path.exists() else None

    def lose_log(self, folder: Path) -> bool:
        position: dict[str, Any] = {"transactions": config_of(folder).events, "began_ms": 0}
        (folder / "acknowledged.json").write_text(json.dumps(position))
        return True


class TestGeneratedTables(DatagenConformance):
    """The connector to copy keeps every rule."""
