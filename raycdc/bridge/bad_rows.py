"""Rows that cannot become rows of their target: what is left of a changelog without them, and where they are kept.

A row is *bad* where an expression of its table's transform fails on it, or a value of it is none of the type that a
merged target has. Each image is judged by itself, whatever epoch it is in, so leaving the bad ones out is a filter: the
target has no row for as long as its row at the source is bad.

| before | after | becomes |
|---|---|---|
| good | good | the update |
| good | bad | a deletion: the row that was there is true no more |
| bad | good | an insert |
| bad | bad | nothing |

A row that was good when it was written may be bad when it goes, where a column's type changed meanwhile: where rows are
updated, a bad before-image and a bad deletion are always the deletion of their key, which is harmless when there is
none. `raycdc.epochs.left_out` refuses what a changelog, or a target of several tables, cannot follow.

Images of a topic may lack values, so there bad ones prove little of what the target has: a deletion stays one, and
where rows are updated a bad row that came is the deletion of its key, too.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.checkpoint.disk import sync_folder
from raycdc.checkpoint.manifest import Segment
from raycdc.checkpoint.missing import MissingRow
from raycdc.model import LogicalType, RowKind, TableId, TableSchema
from raycdc.model.json_text import json_values
from raycdc.model.row_kind import SYMBOLS

PARK = "park"
FAIL = "fail"
SKIP = "skip"
DEAD_LETTER = "dead-letter"

ON_BAD_RECORD = (
    'With pipeline.on_bad_record = "skip" or "dead-letter" the run goes on without such rows; the latter keeps them, '
    "whole, in dead_letters of the state."
)

_CAME = (RowKind.INSERT, RowKind.UPDATE_AFTER)


@dataclass(frozen=True, slots=True)
class BadRecords:
    """``pipeline.on_bad_record``: `action` is `PARK`, `FAIL`, `SKIP` or `DEAD_LETTER`; the last keeps rows in `folder`.

    `upsert`: the sink updates rows, of one table alone. `partial`: images may lack values, and rows be inserted that
    are there.
    """

    action: str = FAIL
    folder: str = ""
    upsert: bool = False
    partial: bool = False

    @property
    def leaves_out(self) -> bool:
        """Whether targets do without bad rows; otherwise the first one is an error, of its table or of the run."""
        return self.action in (SKIP, DEAD_LETTER)

    def of_kind(self, kind: str) -> BadRecords:
        """For segments of a kind: rows of chunks are all inserts, which sinks append; none may become a deletion."""
        return replace(self, partial=False) if kind == "snapshot" else self

    def letters(self, epoch: int, name: str) -> Letters | None:
        """Where the bad rows of one segment of `epoch` go; written again they replace themselves."""
        return Letters(Path(self.folder), f"{epoch:010d}-{name}.jsonl") if self.action == DEAD_LETTER else None

    def sweep(self, committed: int) -> None:
        """Remove the letters of epochs that never came to be, or are staged again. Only while nothing is staged."""
        if self.folder and Path(self.folder).is_dir():
            for path in Path(self.folder).glob("*.jsonl*"):
                number = path.name.removeprefix(".")[:10]
                if path.name.startswith(".") or (number.isdigit() and int(number) > committed):
                    path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Sifted:
    """A segment without its bad rows (None: no row is left), how many came that were bad, and what the first has."""

    segment: Segment | None
    bad: int = 0
    why: str = ""


class Letters:
    """A file of bad rows, one JSON object a line: where it came from, `reason`, `row`. Visible when it is closed."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / name
        self._temporary = folder / f".{name}.{uuid.uuid4().hex}"
        self._file: IO[bytes] | None = None

    def append(self, rows: pa.RecordBatch, reasons: Sequence[str], *, table: TableId, schema: TableSchema) -> None:
        """Add `rows`, with the columns of `schema` and of changelogs (`_op` as codes)."""
        file = self._opened()
        figures = rows.select(["_op", "_seq", "_ts_ms", "_pos"]).to_pylist()
        for meta, reason, text in zip(figures, reasons, _texts(rows, schema), strict=True):
            told = {"table": str(table), "op": SYMBOLS[meta["_op"]], "seq": meta["_seq"], "ts_ms": meta["_ts_ms"],
                    "pos": meta["_pos"], "reason": reason}  # fmt: skip
            file.write(_letter(told, text))

    def tell(self, rows: Sequence[MissingRow]) -> None:
        """Add rows of which there is nothing but their keys."""
        file = self._opened()
        for row in rows:
            told: dict[str, str | int | None] = {
                "table": str(row.table),
                "ts_ms": row.ts_ms,
                "pos": row.pos,
                "reason": row.reason,
            }
            file.write(_letter(told, row.key))

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            self._file = os.fdopen(os.open(self._temporary, flags, 0o600), "wb")
        return self._file

    def close(self) -> None:
        """Make the file durable under its name; there is none without rows."""
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


def _letter(told: Mapping[str, str | int | None], row: str) -> bytes:
    return f'{json.dumps(told, ensure_ascii=False)[:-1]}, "row": {row}}}\n'.encode()


def _texts(rows: pa.RecordBatch, schema: TableSchema) -> list[str]:
    """Each row as a JSON object of the table's columns."""
    columns = [_values(rows.column(column.name), column.type) for column in schema.columns]
    names = [json.dumps(column.name, ensure_ascii=False) for column in schema.columns]
    return [
        "{" + ", ".join(f"{name}: {value}" for name, value in zip(names, values, strict=True)) + "}"
        for values in zip(*columns, strict=True)
    ]


def _values(array: pa.Array, logical: LogicalType) -> list[str]:
    """Each value as JSON; floats that JSON has no numbers for as the texts NaN, Infinity and -Infinity."""
    texts = json_values(array, logical)
    if pa.types.is_floating(array.type):
        odd = pc.case_when(
            pc.make_struct(pc.is_nan(array), pc.is_inf(array)),
            pa.scalar('"NaN"'),
            pc.if_else(pc.greater(array, 0), '"Infinity"', '"-Infinity"'),
        )
        texts = pc.coalesce(texts, odd)
    found: list[str] = pc.fill_null(texts, "null").to_pylist()
    return found


def judged(ops: Any, numbers: Any, wanted: Any, bad: Any, records: BadRecords) -> tuple[Any, Any]:
    """The codes that rows with these codes and `_seq` get, and which rows are kept, where a filter wants some and some
    are bad. Rows of one update must be together.
    """
    made, kept = ops.copy(), wanted & ~bad
    before = update_places(ops, numbers)
    after = before + 1
    made[before[kept[before] & ~kept[after]]] = RowKind.DELETE
    made[after[kept[after] & ~kept[before]]] = RowKind.INSERT
    gone = np.zeros(len(ops), np.bool_)
    if records.partial or records.upsert:
        gone |= bad & (ops == RowKind.DELETE)
    if records.upsert:
        gone |= bad & (ops == RowKind.UPDATE_BEFORE)
    if records.upsert and records.partial:
        gone |= bad & np.isin(ops, _CAME)
    made[gone] = RowKind.DELETE
    return made, kept | gone


def counted(ops: Any, bad: Any) -> Any:
    """Which rows are told of: those that came, each once, and not again when they go."""
    return bad & np.isin(ops, _CAME)


def update_places(ops: Any, numbers: Any) -> Any:
    """Where the before-images are whose after-image is the next row: both have their numbers from one change."""
    first = (ops[:-1] == RowKind.UPDATE_BEFORE) & (ops[1:] == RowKind.UPDATE_AFTER)
    return np.flatnonzero(first & (numbers[1:] == numbers[:-1] + 1))


def whole_updates(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, no batch ending between the two of an update, and none without rows."""
    held: pa.RecordBatch | None = None
    for batch in batches:
        rows = batch
        if held is not None:
            rows = pa.Table.from_batches([held, batch]).combine_chunks().to_batches()[0]
            held = None
        if rows.num_rows and rows.column("_op")[-1].as_py() == RowKind.UPDATE_BEFORE:
            held = rows.slice(rows.num_rows - 1)
            rows = rows.slice(0, rows.num_rows - 1)
        if rows.num_rows:
            yield rows
    if held is not None:
        yield held


def failing(array: pa.Array, turn: Callable[[pa.Array], Any]) -> Any:
    """Of each value whether `turn` raises on it: halved until they are found, so good ones cost one call together."""
    bad = np.zeros(len(array), np.bool_)
    waiting = [(0, len(array))]
    while waiting:
        start, count = waiting.pop()
        try:
            turn(array.slice(start, count))
        except pa.ArrowException:
            if count == 1:
                bad[start] = True
            else:
                waiting += [(start, count // 2), (start + count // 2, count - count // 2)]
    return bad
