"""Rows that their source cannot give: it says that they changed, and has none when it is asked for them.

The stream's state counts them since it began, and has those of the epoch that it ends (``missing``): so an epoch tells
its own, whether it is staged once or again, and however often a state without news is sealed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from raycdc.checkpoint.manifest import Manifest
from raycdc.model import TableId


@dataclass(frozen=True, slots=True)
class MissingRow:
    """A change without its row. `key` is the row's key as a JSON object, `pos` where the change is in the log."""

    table: TableId
    key: str
    reason: str
    ts_ms: int
    pos: str


@dataclass(slots=True)
class MissingRows:
    """Those of an open epoch, and how many there were before. One thread."""

    count: int
    rows: list[MissingRow]

    @classmethod
    def after(cls, state: Mapping[str, Any]) -> MissingRows:
        """None yet in the epoch that follows a stream's `state`."""
        return cls(state.get("missing", {}).get("count", 0), [])

    def add(self, rows: Sequence[MissingRow]) -> None:
        self.rows += rows

    def begin_epoch(self) -> None:
        self.count += len(self.rows)
        self.rows = []

    def entry(self) -> dict[str, Any]:
        """What the stream's state has of them; empty where there never were any."""
        if not self.count and not self.rows:
            return {}
        rows = [{**asdict(row), "table": str(row.table)} for row in self.rows]
        return {"missing": {"count": self.count + len(self.rows), "rows": rows}}


def missing_rows(manifest: Manifest) -> list[MissingRow]:
    """Those of one epoch."""
    found: list[MissingRow] = []
    for name, state in manifest.to_splits.items():
        before = MissingRows.after(manifest.from_splits.get(name, {})).count
        told = state.get("missing", {"count": 0, "rows": []})
        if told["count"] > before:
            found += [MissingRow(**{**row, "table": TableId.parse(row["table"])}) for row in told["rows"]]
    return found
