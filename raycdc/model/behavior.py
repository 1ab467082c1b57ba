"""How a pipeline treats a schema change: Flink CDC's five behaviours.

"When tables change" in `raycdc/manual/configuration.md` has the table of the effects that readers of a target see; each
sink carries it out in its own way, and `tests/epochs/test_epoch_behaviors.py` plays each cell into each of them.
"""

from __future__ import annotations

from enum import StrEnum


class SchemaChangeBehavior(StrEnum):
    """The values of ``pipeline.schema_change``."""

    EXCEPTION = "exception"
    EVOLVE = "evolve"
    TRY_EVOLVE = "try_evolve"
    LENIENT = "lenient"
    IGNORE = "ignore"

    @property
    def in_place(self) -> bool:
        """Whether columns of a target are renamed, moved and dropped as those of the source."""
        return self in (SchemaChangeBehavior.EVOLVE, SchemaChangeBehavior.TRY_EVOLVE)
