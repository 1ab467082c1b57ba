"""Whether rows may go into a Delta table, and with which columns: as the table is laid out, and as it demands.

Called by `commits`, on its thread; looks at the snapshot of the last refresh.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from raycdc.errors import TargetTouchedError
from raycdc.sinks.delta.demands import Demands
from raycdc.sinks.delta.rewrite import in_types
from raycdc.sinks.delta.table import DeltaTarget, listed
from raycdc.sinks.tasks import DataFile


class Admission:
    """See the module's docstring; of one table."""

    def __init__(self, target: DeltaTarget) -> None:
        self._target = target

    def demands(self) -> Demands:
        """The demands of the table. `SinkError` for one that nobody but Spark can meet."""
        demands = Demands.of(self._target.table)
        if demands.identity:
            raise TargetTouchedError(
                f"{self._target.place} has the identity column {demands.identity[0]!r}, whose values are Spark's to "
                "give. Make the table without it, or route the source table to another name."
            )
        return demands

    def check_merge(self) -> None:
        """`SinkError` where rows cannot be updated as the table demands it."""
        if generated := self.demands().generated:
            raise TargetTouchedError(
                f"{self._target.place} has the generated column {generated[0]!r}, which delta-rs does not compute anew "
                "where rows are updated. Make the table without it, or route the source table to another name."
            )

    def check_files(self, files: Sequence[DataFile]) -> None:
        """`SinkError` where staged files are not simply its rows: its columns are mapped, or the files were written for
        other partitions than the table has by now.
        """
        if self._target.table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
            raise TargetTouchedError(
                f"{self._target.place} maps its columns, and files of rows cannot be added to it. Delete the folder "
                "and read its source table anew, or route the table to another name."
            )
        if odd := next((file for file in files if [*file.partition] != self._target.partition_columns), None):
            raise TargetTouchedError(
                f"{self._target.place} is partitioned by {listed(self._target.partition_columns)}, and rows were "
                f"written by {listed([*odd.partition])}: somebody made the table anew. Start again."
            )

    def whole(self, rows: pa.Table) -> pa.Table:
        """`rows` with the table's columns in their order, but those that delta-rs computes."""
        return in_types(rows, self.written(self.demands(), rows.column_names))

    def written(self, demands: Demands, names: Collection[str]) -> pa.Schema:
        """The columns that rows which have those called `names` are written with: not those that delta-rs computes.
        Each may have nulls here, so that it is delta-rs that says what the table demands.
        """
        present = self._target.arrow()
        fields = [field for field in present if field.name in names or field.name not in demands.generated]
        return pa.schema([field.with_nullable(nullable=True) for field in fields])
