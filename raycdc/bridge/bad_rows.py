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
where rows are updated a bad row that came is the deletion of its key, too. So is a bad row that a backfill reads again,
because the target may have the row as it was when it was good.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raycdc.bridge.letters import Letters, Waiting
from raycdc.checkpoint.manifest import Segment
from raycdc.model import RowKind

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
    are there. `driver` is the generation in which the driver began, and `place` what people are told of where rows are
    kept, if it is another than `folder`.
    """

    action: str = FAIL
    folder: str = ""
    upsert: bool = False
    partial: bool = False
    driver: int = 0
    place: str = ""

    @property
    def leaves_out(self) -> bool:
        """Whether targets do without bad rows; otherwise the first one is an error, of its table or of the run."""
        return self.action in (SKIP, DEAD_LETTER)

    @property
    def kept(self) -> str:
        """Where people find the rows that are kept; empty where none are."""
        return self.place or self.folder

    def of_kind(self, kind: str) -> BadRecords:
        """For segments of a kind: rows of a snapshot's chunks are all inserts, which sinks append; none may become a
        deletion. Rows of a backfill are inserts of keys that may be there.
        """
        if kind == "backfill":
            return replace(self, partial=True)
        return replace(self, partial=False) if kind == "snapshot" else self

    def letters(self, epoch: int, name: str, share: str = "") -> Letters | None:
        """Where the bad rows of one segment of `epoch` go; written again they replace themselves. Those that are
        written again all together, by whoever stages the epoch anew, have the same `share`.
        """
        if self.action != DEAD_LETTER:
            return None
        return Letters(Path(self.folder), Waiting(epoch, f"{epoch:010d}-{name}.jsonl", self.driver, share or name))


@dataclass(frozen=True, slots=True)
class Sifted:
    """A segment without its bad rows (None: no row is left), how many came that were bad, and what the first has."""

    segment: Segment | None
    bad: int = 0
    why: str = ""


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
