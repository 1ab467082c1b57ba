"""The request for a backfill, as the state has it until the backfill is over
(`raycdc.source.snapshot.rereading.backfill`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from raycdc.model import TableId
from raycdc.source.split import SnapshotSplit


class RowsRequestJson(TypedDict):
    """`RowsRequest` in a state; the parts are as `SnapshotSplit` writes them."""

    backfill: str
    table: str
    where: str
    parts: list[Any]
    refused: NotRequired[str]


@dataclass(frozen=True, slots=True)
class RowsRequest:
    """A request to read rows of `table` again for the command `backfill`.

    They are the rows that meet the predicate `where`, or those of the `parts`, chunks as the connector cuts them.
    `refused` says why a new configuration does not allow it any more.
    """

    backfill: str
    table: TableId
    where: str = ""
    parts: tuple[SnapshotSplit, ...] = ()
    refused: str = ""

    def to_json(self) -> RowsRequestJson:
        document = RowsRequestJson(
            backfill=self.backfill,
            table=str(self.table),
            where=self.where,
            parts=[split.to_json() for split in self.parts],
        )
        if self.refused:
            document["refused"] = self.refused
        return document

    @classmethod
    def from_json(cls, data: RowsRequestJson) -> RowsRequest:
        parts = tuple(map(SnapshotSplit.from_json, data["parts"]))
        return cls(data["backfill"], TableId.parse(data["table"]), data["where"], parts, data.get("refused", ""))
