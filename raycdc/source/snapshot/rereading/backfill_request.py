"""The request for a backfill, as the state has it until the backfill is over
(`raycdc.source.snapshot.rereading.backfill`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raycdc.core.typed_codec import LEFT_OUT, JsonObject
from raycdc.model import TableId
from raycdc.source.split import SnapshotSplit


@dataclass(frozen=True, slots=True)
class RowsRequest(JsonObject):
    """A request to read rows of `table` again for the command `backfill`.

    They are the rows that meet the predicate `where`, or those of the `parts`, chunks as the connector cuts them.
    `refused` says why a new configuration does not allow it any more.
    """

    backfill: str
    table: TableId
    where: str = ""
    parts: tuple[SnapshotSplit, ...] = ()
    refused: str = field(default="", metadata=LEFT_OUT)
