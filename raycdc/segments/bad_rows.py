"""Bad rows, which cannot become rows of their target: how they are left out of a changelog, and where they are kept.

A row is *bad* if an expression of its table's transform fails on it, or if one of its values does not fit the type that
a merged target has. Each image of an update is judged by itself. Bad rows are left out as by a filter: while the row at
the source is bad, the target does not have it.

| before | after | becomes |
|---|---|---|
| good | good | the update |
| good | bad | a deletion, because the target's row is no longer true |
| bad | good | an insert |
| bad | bad | nothing |

A row that was good when it was written may be bad when it is deleted, because a column's type changed meanwhile. In an
upsert target, a bad before-image and a bad deletion therefore always delete their key. This is harmless if the target
does not have the key. A changelog, or a target of several tables, cannot follow some of these changes;
`raycdc.delivery.rows.bad_row_filter` raises an error for them.

Images of a Kafka topic may lack values, so a bad image does not show if the target has an earlier, good version of the
row. A bad deletion therefore remains a deletion. In an upsert target, a bad insert or after-image deletes its key, too.
Bad rows that a backfill reads are treated in the same way, because the target may have earlier, good versions of them,
too.

A segment without its bad rows and the file of its *dead letters*, the bad rows, are written together: after an error,
neither exists.

The modules that make segments from segments (`raycdc.delivery.rows.bad_row_filter`, `raycdc.spark.derive`) call this
one, on their own threads.

Rows that the source cannot supply (`raycdc.state.missing`) are treated like bad rows, by the same policy. The epoch
contains a deletion of each such row, so the target does not have the row afterwards.

The driver and its tasks write a file of dead letters while the epoch is staged. Its hidden name contains the driver's
generation, so that no driver overwrites another's file. `raycdc.delivery.dead_letters` renames it once the epoch is
recorded.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycdc.errors import RowRefusedError
from raycdc.model import LogicalType, RowKind, TableId, TableSchema
from raycdc.model.batch import SYMBOLS
from raycdc.model.json_text import json_values
from raycdc.segments.writing import SegmentWriter
from raycdc.state.files.folder import sync_folder
from raycdc.state.manifests.manifest import Manifest, Segment
from raycdc.state.missing import MissingRow, missing_rows

_WAITING = re.compile(r"\.((\d{10})-.+\.jsonl)\.(\d{10})\.([0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class PendingDeadLetterFile:
    """A hidden file with bad rows of `epoch`, which is renamed to `name` once the epoch is recorded.

    `driver` is the generation of the driver that wrote the file. If several drivers wrote files of one `part`, only the
    files of the newest driver count, because it staged the part again.
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
    """Return the valid hidden files of `epoch`, each with its final name: for each part, those of the newest driver."""
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

    After `close`, the file still has the hidden name of `waiting`.
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
    """The policy for bad rows.

    `action` is ``pipeline.on_bad_record``: `PARK`, `FAIL`, `SKIP` or `DEAD_LETTER`. `DEAD_LETTER` keeps bad rows in
    `folder` of this machine, hidden until their epoch is recorded. If `upsert` is True, the sink updates rows, and the
    target has rows of one table only. If `partial` is True, images may lack values, and the keys of inserted rows may
    already exist. `driver` is the generation of the driver that stages. `location` is the location of kept rows that
    messages name, if it differs from `folder`.

    If both are True, a row that does not pass the filter deletes its key, because it is unknown if the row before the
    change passed the filter. If `keeps_unwanted` is True, such a row is only left out.
    """

    action: str = FAIL
    folder: str = ""
    upsert: bool = False
    partial: bool = False
    driver: int = 0
    location: str = ""
    keeps_unwanted: bool = False

    @property
    def leaves_out(self) -> bool:
        """Return True if bad rows are left out of targets.

        If False, the first bad row is an error of its table or of the run.
        """
        return self.action in (SKIP, DEAD_LETTER)

    @property
    def kept(self) -> str:
        """Return the location of the kept rows, for people; empty if none are kept."""
        return self.location or self.folder

    def of_kind(self, kind: str) -> BadRecords:
        """Return the policy for segments of the given `kind`.

        A snapshot's chunks have only inserts, which sinks append, so no row of them may become a deletion. Rows of a
        backfill are inserts of keys that may already exist.
        """
        if kind == "backfill":
            return replace(self, partial=True)
        return replace(self, partial=False) if kind == "snapshot" else self

    def dead_letters(self, epoch: int, name: str, part: str = "") -> DeadLetterFile | None:
        """Return the dead-letter file for the bad rows of one segment of `epoch`; a repeated write replaces it.

        Files that are always written together, by the process that stages the epoch, have the same `part`.
        """
        if self.action != DEAD_LETTER:
            return None
        return DeadLetterFile(
            Path(self.folder), PendingDeadLetterFile(epoch, f"{epoch:010d}-{name}.jsonl", self.driver, part or name)
        )


@dataclass(frozen=True, slots=True)
class FilteredSegment:
    """A segment without its bad rows (None: no row is left), their number, and the reason for the first."""

    segment: Segment | None
    bad: int = 0
    why: str = ""


def judged(ops: Any, numbers: Any, wanted: Any, bad: Any, records: BadRecords) -> tuple[Any, Any]:
    """Return the new `_op` codes of rows, and a mask of the rows that are kept.

    `ops` and `numbers` are the rows' codes and `_seq`. The mask `wanted` is True for rows that pass the filter, and the
    mask `bad` for bad rows. The two images of an update must be next to each other.
    """
    made, kept = ops.copy(), wanted & ~bad
    before = update_indexes(ops, numbers)
    after = before + 1
    made[before[kept[before] & ~kept[after]]] = RowKind.DELETE
    made[after[kept[after] & ~kept[before]]] = RowKind.INSERT
    deleted = np.zeros(len(ops), np.bool_)
    if records.partial or records.upsert:
        deleted |= bad & (ops == RowKind.DELETE)
    if records.upsert:
        deleted |= bad & (ops == RowKind.UPDATE_BEFORE)
    if records.upsert and records.partial:
        deleted |= bad & np.isin(ops, _CAME)
        if not records.keeps_unwanted:
            left = np.zeros(len(ops), np.bool_)
            left[after[kept[before]]] = True  # The before-image is the deletion already.
            deleted |= ~wanted & ~bad & ~left & np.isin(ops, (*_CAME, RowKind.DELETE))
    made[deleted] = RowKind.DELETE
    return made, kept | deleted


def counted(ops: Any, bad: Any) -> Any:
    """Return the bad rows to report: inserts and after-images only, so that each bad row is reported once."""
    return bad & np.isin(ops, _CAME)


def update_indexes(ops: Any, numbers: Any) -> Any:
    """Return the indexes of before-images whose after-image is the next row.

    The numbers of both images of an update are consecutive.
    """
    first = (ops[:-1] == RowKind.UPDATE_BEFORE) & (ops[1:] == RowKind.UPDATE_AFTER)
    return np.flatnonzero(first & (numbers[1:] == numbers[:-1] + 1))


def whole_updates(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `batches` in batches that never end between the two images of an update.

    Skips empty batches.
    """
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


#: The remaining rows, the number of bad ones, and the reason for the first.
FilteredRows = tuple[pa.RecordBatch, int, str]


def write_filtered(
    writer: SegmentWriter, dead_letters: DeadLetterFile | None, batches: Iterable[FilteredRows], *, seq_base: int
) -> FilteredSegment:
    """Write `batches` with `writer`, and return the filtered segment; its `segment` is None if no row remains.

    The iterator `batches` has removed the bad rows and written them to `dead_letters`; this function closes that file.
    Blocks on the disk. After an error, neither a segment nor dead letters remain.
    """
    count, why = 0, ""
    try:
        for rows, bad, first in batches:
            count, why = count + bad, why or first
            writer.append(rows)
        segment = writer.finish(seq_base=seq_base) if writer.rows else None
        if dead_letters is not None:
            dead_letters.close()
    except BaseException:
        writer.abort()
        if dead_letters is not None:
            dead_letters.abort()
        raise
    return FilteredSegment(segment, count, why)


@dataclass(frozen=True, slots=True)
class MissingRowCount:
    """The number of rows of a table that an epoch leaves out, and the reason for the first."""

    count: int
    why: str


def record_missing(manifest: Manifest, records: BadRecords) -> dict[TableId, MissingRowCount]:
    """Write the keys of an epoch's missing rows to a dead-letter file, and return how many rows each table lacks.

    Called before a target or a consumer gets the epoch. The file is durable afterwards, and may be written again. If
    the policy keeps no dead letters, the rows are only counted. Returns an empty result if the policy leaves no rows
    out (see `refused_missing`).
    """
    rows = missing_rows(manifest)
    if not rows or not records.leaves_out:
        return {}
    dead_letters = records.dead_letters(manifest.epoch, "missing")
    if dead_letters is not None:
        try:
            dead_letters.add_keys(rows)
            dead_letters.close()
        except BaseException:
            dead_letters.abort()
            raise
    found: dict[TableId, MissingRowCount] = {}
    for row in rows:
        before = found.get(row.table, MissingRowCount(0, _why(row)))
        found[row.table] = MissingRowCount(before.count + 1, before.why)
    return found


def refused_missing(manifest: Manifest, records: BadRecords) -> dict[TableId, RowRefusedError]:
    """Return an error for each table that lacks a row in the epoch, if the policy leaves no rows out."""
    refused: dict[TableId, RowRefusedError] = {}
    for row in () if records.leaves_out else missing_rows(manifest):
        text = (
            f"{row.table}: {_why(row)}. With pipeline.on_bad_record = "
            '"skip" or "dead-letter" the target does without the row until it changes again; the latter keeps its key.'
        )
        refused.setdefault(row.table, RowRefusedError(text))
    return refused


def _why(row: MissingRow) -> str:
    return f"a row that changed at {row.pos}: {row.reason}"
