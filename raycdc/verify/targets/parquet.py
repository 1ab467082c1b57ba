"""Reads the Parquet files of a changelog in a folder: the visible ones, which may have different columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from raycdc.model import META_COLUMNS, TableId
from raycdc.storage.url import FolderLocation, parse_location
from raycdc.verify.targets.api import NotComparedError, RowFilter, arrow_condition

_BATCH_ROWS = 131_072


class ParquetRows:
    """The rows of the files in ``PATH/DB/TABLE``; a `TargetTable`."""

    one_zero = False

    def __init__(self, path: str, target: TableId) -> None:
        location = parse_location(path)
        if not isinstance(location, FolderLocation):
            raise NotComparedError("Parquet files on an object store are not read by verify")
        self._folder = Path(location.path) / target.db / target.table
        self._target = target

    def __repr__(self) -> str:
        return f"ParquetRows({str(self._folder)!r})"

    def columns(self) -> Sequence[str]:
        """Return the columns of the files.

        All files must have the same columns, because a column that older files lack may be a renamed one.
        """
        found: list[str] | None = None
        for file in self._files():
            names = pq.read_schema(file).names
            if found is not None and set(names) != set(found):
                raise NotComparedError(f"the columns of {self._target} changed, and its older files have others")
            found = names
        if found is None:
            raise NotComparedError(f"there are no files of {self._target} in {self._folder}")
        return [*found, *(name for name in META_COLUMNS if name not in found)]

    def rows_about(self) -> int:
        return sum(pq.read_metadata(file).num_rows for file in self._files())

    def batches(self, columns: Sequence[str], wanted: RowFilter | None = None) -> Iterator[pa.RecordBatch]:
        for file in self._files():
            if (condition := arrow_condition(wanted, pq.read_schema(file))) is not None:
                rows = ds.dataset(file, format="parquet")
                yield from rows.scanner(columns=list(columns), filter=condition, batch_size=_BATCH_ROWS).to_batches()
                continue
            yield from (
                batch.select(list(columns))
                for batch in pq.ParquetFile(file).iter_batches(_BATCH_ROWS, columns=list(columns))
            )

    def _files(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        names = (file for file in self._folder.glob("*.parquet") if not file.name.startswith((".", "_")))
        return sorted(file for file in names if file.stat().st_size)
