"""The treatment of rows that their source cannot give (`raycdc.checkpoint.missing`): that of bad rows, by the policy.

The target is without such a row, as the source is, from the deletion on that the epoch has for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from raycdc.bridge.bad_rows import BadRecords
from raycdc.checkpoint.manifest import Manifest
from raycdc.checkpoint.missing import MissingRow, missing_rows
from raycdc.errors import RowRefusedError
from raycdc.model import TableId


@dataclass(frozen=True, slots=True)
class Missing:
    """How many rows of a table an epoch does without, and what the first has."""

    count: int
    why: str


def told_missing(manifest: Manifest, records: BadRecords) -> dict[TableId, Missing]:
    """The missing rows of an epoch, kept where that is asked for: durable, and doing it again changes nothing.

    Nothing where rows are not left out: `refused_missing`. Called before anybody sees the epoch.
    """
    rows = missing_rows(manifest)
    if not rows or not records.leaves_out:
        return {}
    letters = records.letters(manifest.epoch, "missing")
    if letters is not None:
        try:
            letters.tell(rows)
            letters.close()
        except BaseException:
            letters.abort()
            raise
    found: dict[TableId, Missing] = {}
    for row in rows:
        before = found.get(row.table, Missing(0, _why(row)))
        found[row.table] = Missing(before.count + 1, before.why)
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
