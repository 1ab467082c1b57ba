"""``[sink] type = "delta"``: its section of the configuration. The sink itself is imported on use."""

from __future__ import annotations

from typing import Literal

from raycdc.config import SinkConfig, option
from raycdc.model import TableSchema
from raycdc.model.layout import TableLayout
from raycdc.plugins import Plugin


class DeltaSinkConfig(SinkConfig):
    """``[sink] type = "delta"``: one Delta table per source table in ``PATH/DB/TABLE``."""

    type: Literal["delta"] = option("delta", help="Delta Lake tables.")
    path: str = option(help="Folder or URI of the lake.", example="./lake", min_length=1)

    def no_layout(self, layout: TableLayout, schema: TableSchema) -> str:
        from raycdc.sinks.delta.layout import no_layout

        return no_layout(layout, schema)


DELTA = Plugin("delta", "Delta Lake, upsert or changelog", DeltaSinkConfig, "raycdc.sinks.delta.sink:DeltaSink")
