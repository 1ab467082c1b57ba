"""Rows that cannot become rows of their target: what is left of a changelog without them, and where they are kept.

A row is *bad* where an expression of its table's transform fails on it, or a value of it is none of the type that a
merged target has. Each image is judged by itself, whatever epoch it is in, so leaving the bad ones out is a filter: the
target has no row for as long as its row at the source is bad.

| before | after | becomes |
|---|---|---|
| good | good | the update |
| good | bad | a deletion: the row that was there is true no more |
| bad | good | an insert |
| bad | bad | nothing

|A row that was good when it was written may be bad when it goes, where a column's type changed meanwhile: where rows \
are updated, a bad before-image and a bad deletion are always the deletion of their key, which is harmless when there \
is none. `raycdc.delivery.rows.bad_row_filter` refuses what a changelog, or a target of several tables, cannot follow.

Images of a topic may lack values, so there bad ones prove little of what the target has: a deletion stays one, and
where rows are updated a bad row that came is the deletion of its key, too. So is a bad row that a backfill reads again,
because the target may have the row as it was when it was good.

A segment written again without its bad rows, and the letters of these: both are there in the end, or neither is.

Called by whoever makes segments of segments (`raycdc.delivery.rows.bad_row_filter`, `raycdc.spark.derive`), on a thread
of theirs.

The treatment of rows that their source cannot give (`raycdc.state.missing`): that of bad rows, by the policy.

The target is without such a row, as the source is, from the deletion on that the epoch has for it.
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
    """``pipeline.on_bad_record``: `action` is `PARK`, `FAIL`, `SKIP` or `DEAD_LETTER`; the last keeps rows, which
    wait in `folder` of this machine until their epoch is recorded.

    `upsert`: the sink updates rows, of one table alone. `partial`: images may lack values, and rows be inserted that
    are there. `driver` is the generation in which the driver began, and `location` what people are told of where rows
    are kept, if it is another than `folder`.
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

        Otherwise the first one is an error, of its table or of the run.
        """
        return self.action in (SKIP, DEAD_LETTER)

    @property
    def kept(self) -> str:
        """Return the location of the kept rows, for people; empty if none are kept."""
        return self.location or self.folder

    def of_kind(self, kind: str) -> BadRecords:
        """Return the rules for segments of a kind: a snapshot's chunks have only inserts, which sinks append.

        None of these may become a deletion. Rows of a backfill are inserts of keys that may already exist.
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
    """A segment without its bad rows (None: no row is left), their number, and the problem of the first."""

    segment: Segment | None
    bad: int = 0
    why: str = ""


def judged(ops: Any, numbers: Any, wanted: Any, bad: Any, records: BadRecords) -> tuple[Any, Any]:
    """The codes that rows with these codes and `_seq` get, and which rows are kept, where a filter wants some and some
    are bad. Rows of one update must be together.
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
    """Return the bad rows to report: those that were written, not those that were removed, so each is reported once."""
    return bad & np.isin(ops, _CAME)


def update_indexes(ops: Any, numbers: Any) -> Any:
    """Return the indexes of before-images whose after-image is the next row: both have numbers of one change."""
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


#: The remaining rows, the number of bad ones, and the problem of the first.
FilteredRows = tuple[pa.RecordBatch, int, str]


def write_filtered(
    writer: SegmentWriter, dead_letters: DeadLetterFile | None, batches: Iterable[FilteredRows], *, seq_base: int
) -> FilteredSegment:
    """Return the segment that `writer` makes of `batches`; none if no row remains. `batches` write to `dead_letters`.

    Blocks on the disk; after an error neither a segment nor dead letters remain.
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
    """The number of rows of a table that an epoch leaves out, and the problem of the first."""

    count: int
    why: str


def record_missing(manifest: Manifest, records: BadRecords) -> dict[TableId, MissingRowCount]:
    """Store the missing rows of an epoch, if dead letters are kept: durable and repeatable.

    Does nothing if rows are not left out: `refused_missing`. Called before the epoch is used.
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
    """The tables that lack a row in the epoch, where no row is left out."""
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
