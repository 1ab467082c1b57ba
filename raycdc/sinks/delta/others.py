"""What others did to rows of a Delta table since this pipeline's last commit. Called by `target` before each commit."""

from __future__ import annotations

from collections.abc import Collection

from raycdc.errors import TargetTouchedError
from raycdc.sinks.delta.table import DeltaTarget, is_ours_alone


def check_unchanged(target: DeltaTarget, source: Collection[str]) -> None:
    """`SinkError` where others changed rows of a table that holds epochs, in columns of the `source`. Rows that they
    took away are noticed by each `DeltaTarget.refresh`.
    """
    if is_ours_alone(target) and (operation := target.log.changed(source)):
        raise TargetTouchedError(
            f"{target.place} has other rows than this pipeline had written: another writer changed them "
            f"({operation}). Nothing more was written. Restore the version before that, or delete the folder, and "
            "read its source table anew."
        )
