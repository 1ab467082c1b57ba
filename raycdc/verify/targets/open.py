"""From a sink's section of the configuration to the reader of one of its targets."""

from __future__ import annotations

from typing import Any

from raycdc.config import PipelineConfig
from raycdc.model import TableId
from raycdc.verify.targets.api import NotComparedError, TargetTable

#: Sinks whose targets can be read.
READABLE = ("delta",)


def open_target(config: PipelineConfig, target: TableId) -> TargetTable:
    """`NotComparedError` for a sink that nothing here reads. Opens no connection yet."""
    # Each sink's section has a class of its own, which only its plug-in knows.
    section: Any = config.sink
    settings = config.storage.settings()
    match section.type:
        case "delta":
            from raycdc.verify.targets.delta import DeltaRows

            return DeltaRows(section.path, target, settings)
        case other:
            raise NotComparedError(
                f"targets of the sink {other} cannot be read back; verify knows {', '.join(READABLE)}"
            )
