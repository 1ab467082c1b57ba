"""Delta tables, read by delta-rs at their newest version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from raycdc.model import TableId
from raycdc.storage.settings import StorageSettings, delta_options
from raycdc.storage.url import FolderLocation, parse_location
from raycdc.verify.targets.api import NotComparedError, RowFilter, arrow_condition

#: The number of rows that are hashed at a time.
_BATCH_ROWS = 131_072


class DeltaRows:
    """The rows of the table that a lake at `path` (a folder or URL) has for `target`; a `TargetTable`."""

    one_zero = False

    def __init__(self, path: str, target: TableId, settings: StorageSettings) -> None:
        location = parse_location(path).below(f"{target.db}/{target.table}")
        self._target = target
        self._where = str(location.path if isinstance(location, FolderLocation) else location)
        self._options = None if isinstance(location, FolderLocation) else delta_options(location, settings)

    def __repr__(self) -> str:
        return f"DeltaRows({self._where!r})"

    def columns(self) -> Sequence[str]:
        return [field.name for field in self._table().schema().fields]

    def rows_about(self) -> int:
        actions = pa.table(self._table().get_add_actions(flatten=True))
        if "num_records" not in actions.schema.names:
            return 0
        return int(pa.compute.sum(actions.column("num_records")).as_py() or 0)

    def batches(self, columns: Sequence[str], wanted: RowFilter | None = None) -> Iterator[pa.RecordBatch]:
        table = self._table()
        if "deletionVectors" in (table.protocol().reader_features or ()):
            # The pyarrow dataset ignores marks of deleted rows.
            names = ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
            reader = QueryBuilder().register("target", table).execute(f"SELECT {names} FROM target")
            yield from pa.RecordBatchReader.from_stream(reader)
            return
        rows = table.to_pyarrow_dataset()
        # The reader uses the files' statistics in the log, and then those of their groups of rows.
        condition = arrow_condition(wanted, rows.schema)
        yield from rows.scanner(columns=list(columns), filter=condition, batch_size=_BATCH_ROWS).to_batches()

    def _table(self) -> DeltaTable:
        try:
            return DeltaTable(self._where, storage_options=self._options)
        except TableNotFoundError:
            raise NotComparedError(f"there is no Delta table for {self._target} in the lake") from None
        except DeltaError as cause:
            raise NotComparedError(f"the Delta table of {self._target} cannot be read ({cause})") from cause
