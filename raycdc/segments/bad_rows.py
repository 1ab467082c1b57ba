"""Rows that cannot become rows of their target: the changelog without them, and the place where they are kept.

A row is *bad* if an expression of its table's transform fails on it, or if one of its values does not fit the type that
a merged target has. Each image of an update is judged by itself, in whatever epoch it is. Bad rows are therefore left
out as by a filter: the target has no row while the row at the source is bad.

| before | after | becomes |
|---|---|---|
| good | good | the update |
| good | bad | a deletion, because the target's row is no longer true |
| bad | good | an insert |
| bad | bad | nothing |

A row that was good when it was written may be bad when it is deleted, because a column's type changed meanwhile. In an
upsert target, a bad before-image and a bad deletion therefore always delete their key, which is harmless if the target
does not have it. `raycdc.delivery.rows.bad_row_filter` raises an error for changes that a changelog, or a target of
several tables, cannot follow.

Images of a Kafka topic may lack values, so a bad image does not show what the target has. A bad deletion therefore
remains a deletion, and in an upsert target a bad insert or after-image deletes its key, too. The same applies to a bad
row that a backfill reads, because the target may have an earlier, good version of it.

A segment without its bad rows and the file of its dead letters are written together: after an error, neither exists.
The modules that make segments from segments (`raycdc.delivery.rows.bad_row_filter`, `raycdc.spark.derive`) call this
one, on their own threads.

Rows that the source cannot supply (`raycdc.state.missing`) are treated like bad rows, by the same policy. The target
lacks such a row from the deletion on that the epoch contains for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raycdc.errors import RowRefusedError
from raycdc.model import RowKind, TableId
from raycdc.segments.dead_letter_files import DeadLetterFile, PendingDeadLetterFile
from raycdc.segments.writing import SegmentWriter
from raycdc.state.manifests.manifest import Manifest, Segment
from raycdc.state.missing import MissingRow, missing_rows

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
    `folder` of this machine, hidden until their epoch is recorded. `upsert`: the sink updates rows, and the target has
    those of one table only. `partial`: images may lack values, and inserted rows may already exist. `driver` is the
    generation of the driver that stages. `location` is shown to people as the location of kept rows, if it is not
    `folder`.
    """

    action: str = FAIL
    folder: str = ""
    upsert: bool = False
    partial: bool = False
    driver: int = 0
    location: str = ""

    @property
    def leaves_out(self) -> bool:
        """Return True if bad rows are left out of targets.

        Otherwise the first one is an error of its table or of the run.
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
    """Return the new `_op` codes of rows, and which rows are kept.

    `ops` and `numbers` are the rows' codes and `_seq`. `wanted` are the rows that pass the filter, and `bad` the bad
    ones. The two images of an update must be next to each other.
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
    """Yield the same rows in batches that never end between the two images of an update. Skips empty batches."""
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
    """Write `batches` to the segment of `writer`, and return it; its segment is None if no row remains.

    Whoever makes `batches` has already written the bad rows to `dead_letters`, which is closed here. Blocks on the
    disk; after an error, neither a segment nor dead letters remain.
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

    Called before the epoch is used. The file is durable, and may be written again. Without dead letters, the rows are
    only counted. Returns nothing if the policy leaves no rows out (see `refused_missing`).
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
