"""How tables of a `SimDatabase` are cut into chunks, in the server's order of keys."""

from __future__ import annotations

import itertools
from typing import Any

from raycdc.source.split import SnapshotSplit
from raycdc.source.table_life import SnapshotState
from raycdc.testing.simulation.database import Row, SimTable, TableKind

#: Bounds between chunks; fewer than keys, so that chunks hold several.
CUTS = (3, 6, 7, 11, 15, 18, 21)


def sort_key(table: SimTable, raw: int) -> int:
    """The server's order of chunk keys."""
    return -raw if table.descending else raw


def cuts(table: SimTable) -> list[int | None]:
    """Bounds of the table's chunks in the server's order, None for the open ends."""
    inner = sorted(CUTS, key=lambda raw: sort_key(table, raw))
    return [None, *inner, None]


def unread(table: SimTable) -> SnapshotState:
    """A table's snapshot before its first chunk."""
    return SnapshotState(
        key="id" if table.kind is TableKind.AS_OF else table.key,
        foldable=bool(table.schema.primary_key),
        needs_null=table.kind in (TableKind.MOVING, TableKind.KEYLESS, TableKind.AS_OF),
    )


def all_chunks(table: SimTable, *, end: int = 0) -> list[SnapshotSplit]:
    """The chunks of a table, in the order they are planned; `end` is where the log ends then."""
    if table.key is None:
        return [SnapshotSplit(table.id, 0, None, None, None, includes_null=True)]
    bounds = cuts(table)
    ranges: list[dict[str, Any]] = [{"lower": low, "upper": high} for low, high in itertools.pairwise(bounds)]
    if table.kind is TableKind.MOVING:
        ranges.insert(0, {"lower": None, "upper": None, "includes_null": True, "only_null": True})
    as_of = None
    if table.kind is TableKind.AS_OF:
        ranges[0]["includes_null"] = True
        as_of = end
    return [SnapshotSplit(table.id, n, table.key, **bounds, as_of=as_of) for n, bounds in enumerate(ranges)]


def in_chunk(table: SimTable, split: SnapshotSplit, row: Row) -> bool:
    """Whether the chunk's SELECT would find `row`."""
    if split.key is None:
        return True
    assert isinstance(split.key, str), "chunks of simulated tables have one key column"
    value = row[split.key]
    if value is None:
        return split.includes_null
    if split.only_null:
        return False
    key = sort_key(table, value)
    above = split.lower is None or key >= sort_key(table, split.lower)
    return above and (split.upper is None or key < sort_key(table, split.upper))
