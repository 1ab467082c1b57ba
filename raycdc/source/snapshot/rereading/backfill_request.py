"""The request for a backfill, which the state has until the backfill is over
(`raycdc.source.snapshot.rereading.backfill`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raycdc.core.typed_codec import LEFT_OUT, JsonObject
from raycdc.model import TableId
from raycdc.source.split import SnapshotSplit


@dataclass(frozen=True, slots=True)
class RowsRequest(JsonObject):
    """A request to read rows of `table` again, made by the command `backfill`.

    The rows are those that match the predicate `where`, or those of the `parts`, which are chunks as the connector cuts
    them. `refused` is the reason if a new configuration does not allow the backfill any more.
    """

    backfill: str
    table: TableId
    where: str = ""
    parts: tuple[SnapshotSplit, ...] = ()
    refused: str = field(default="", metadata=LEFT_OUT)
