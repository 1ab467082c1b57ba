"""Dead letters: files of bad rows (`raycdc.segments.bad_rows`), hidden until their epoch is recorded.

The driver and its tasks write such a file while the epoch is staged. Its hidden name contains the driver's generation,
so that no driver overwrites another's file. `raycdc.delivery.dead_letters` renames it once the epoch is recorded.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from raycdc.model import LogicalType, TableId, TableSchema
from raycdc.model.batch import SYMBOLS
from raycdc.model.json_text import json_values
from raycdc.state.files.folder import sync_folder
from raycdc.state.missing import MissingRow

_WAITING = re.compile(r"\.((\d{10})-.+\.jsonl)\.(\d{10})\.([0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class PendingDeadLetterFile:
    """A hidden file with bad rows of `epoch`, which is renamed to `name` once the epoch is recorded.

    `driver` is the generation of the driver that wrote it. If several drivers wrote files of one `part`, only those of
    the newest one count, because it staged the part again.
    """

    epoch: int
    name: str
    driver: int
    part: str

    @property
    def file(self) -> str:
        """Return the hidden name."""
        return f".{self.name}.{self.driver:010d}.{hashlib.sha256(self.part.encode()).hexdigest()[:16]}"


def counting(files: Iterable[str], epoch: int) -> dict[str, str]:
    """Return the hidden files of `epoch` that count, each with its final name."""
    matches = [found for file in files if (found := _WAITING.fullmatch(file)) and int(found[2]) == epoch]
    newest: dict[str, int] = {}
    for found in matches:
        newest[found[4]] = max(int(found[3]), newest.get(found[4], 0))
    return {found[0]: found[1] for found in matches if int(found[3]) == newest[found[4]]}


def epoch_of(file: str) -> int | None:
    """Return the epoch of a hidden file; None for any other file."""
    match = _WAITING.fullmatch(file)
    return None if match is None else int(match[2])


class DeadLetterFile:
    """A file of bad rows, with one JSON object per line: the table and position, the `reason`, and the `row`.

    `close` leaves it under the hidden name of `waiting`.
    """

    def __init__(self, folder: Path, waiting: PendingDeadLetterFile) -> None:
        self._path = folder / waiting.file
        self._temporary = folder / f".{uuid.uuid4().hex}.jsonl.part"
        self._file: IO[bytes] | None = None

    def append(self, rows: pa.RecordBatch, reasons: Sequence[str], *, table: TableId, schema: TableSchema) -> None:
        """Add `rows`, which have the columns of `schema` and the metadata columns (`_op` as codes), with a reason for
        each.
        """
        file = self._opened()
        figures = rows.select(["_op", "_seq", "_ts_ms", "_pos"]).to_pylist()
        for meta, reason, text in zip(figures, reasons, _texts(rows, schema), strict=True):
            reported = {"table": str(table), "op": SYMBOLS[meta["_op"]], "seq": meta["_seq"], "ts_ms": meta["_ts_ms"],
                    "pos": meta["_pos"], "reason": reason}  # fmt: skip
            file.write(_letter(reported, text))

    def add_keys(self, rows: Sequence[MissingRow]) -> None:
        """Add rows of which only the keys are known."""
        file = self._opened()
        for row in rows:
            reported: dict[str, str | int | None] = {
                "table": str(row.table),
                "ts_ms": row.ts_ms,
                "pos": row.pos,
                "reason": row.reason,
            }
            file.write(_letter(reported, row.key))

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            self._file = os.fdopen(os.open(self._temporary, flags, 0o600), "wb")
        return self._file

    def close(self) -> None:
        """Make the file durable. Does nothing if no row was added."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._temporary.rename(self._path)
            sync_folder(self._path.parent)

    def abort(self) -> None:
        if self._file is not None:
            self._file.close()
            self._temporary.unlink(missing_ok=True)


def _letter(reported: Mapping[str, str | int | None], row: str) -> bytes:
    return f'{json.dumps(reported, ensure_ascii=False)[:-1]}, "row": {row}}}\n'.encode()


def _texts(rows: pa.RecordBatch, schema: TableSchema) -> list[str]:
    """Return each row as a JSON object of the table's columns."""
    columns = [_values(rows.column(column.name), column.type) for column in schema.columns]
    names = [json.dumps(column.name, ensure_ascii=False) for column in schema.columns]
    return [
        "{" + ", ".join(f"{name}: {value}" for name, value in zip(names, values, strict=True)) + "}"
        for values in zip(*columns, strict=True)
    ]


def _values(array: pa.Array, logical: LogicalType) -> list[str]:
    """Return each value as JSON text. NaN and infinite floats become the JSON texts NaN, Infinity and -Infinity."""
    texts = json_values(array, logical)
    if pa.types.is_floating(array.type):
        invalid = pc.case_when(
            pc.make_struct(pc.is_nan(array), pc.is_inf(array)),
            pa.scalar('"NaN"'),
            pc.if_else(pc.greater(array, 0), '"Infinity"', '"-Infinity"'),
        )
        texts = pc.coalesce(texts, invalid)
    values: list[str] = pc.fill_null(texts, "null").to_pylist()
    return values
