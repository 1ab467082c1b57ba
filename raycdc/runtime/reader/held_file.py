"""A file with held rows in the spool (`raycdc.source.snapshot.log.log_rows`), which only its writer reads.

The file is not synced and never named in a manifest. Its name marks it as unfinished, so each sweep deletes it. Masked
columns are masked before they are written, as everywhere on disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import ipc

from raycdc.errors import SpoolError
from raycdc.model import lost_values
from raycdc.model.batch import with_lost_values, with_masked
from raycdc.source.snapshot.log.log_rows import LogRows

_ORDINALS = "_raycdc_ordinals"


class HeldRowsFile:
    """Held rows of one table in a file, as `raycdc.source.snapshot.log.log_rows.SpilledRows`; they are marked as
    masked.

    The constructor writes the file. Raises `SpoolError` if the file cannot be written.
    """

    def __init__(self, path: Path, parts: Sequence[LogRows]) -> None:
        self._path = path
        self._table = parts[0].table
        self._lost = [lost_values(part.batch) for part in parts]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o600)
            schema = parts[0].batch.schema.remove_metadata().append(pa.field(_ORDINALS, pa.int64()))
            with pa.OSFile(str(path), "wb") as file, ipc.new_file(file, schema) as writer:
                for part in parts:
                    arrays = [*part.batch.columns, pa.array(part.ordinals, pa.int64())]
                    writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        except OSError as cause:
            raise SpoolError(
                f"Rows of {self._table} that wait for a chunk cannot be written to {path.parent}: "
                f"{cause.strerror or cause}. Make room on that disk, or move the folder (pipeline.state) while the "
                "pipeline stands still."
            ) from cause

    def __repr__(self) -> str:
        return f"HeldRowsFile({self._path.name}, {self._table})"

    def __iter__(self) -> Iterator[LogRows]:
        with pa.memory_map(str(self._path)) as source:
            reader = ipc.open_file(source)
            for number, lost in enumerate(self._lost):
                stored = reader.get_batch(number)
                ordinals = stored.column(_ORDINALS).to_numpy()
                batch = with_masked(stored.drop_columns([_ORDINALS]), masked=True)
                yield LogRows(self._table, with_lost_values(batch, lost) if lost else batch, ordinals)

    def delete(self) -> None:
        self._path.unlink(missing_ok=True)
