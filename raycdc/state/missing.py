"""Rows that their source cannot give: it says that they changed, and has none when it is asked for them.

The stream's state counts them since it began, and has those of the epoch that it ends (``missing``): so an epoch tells
its own, whether it is staged once or again, and however often a state without news is sealed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from raycdc.model import TableId
from raycdc.state.manifests.manifest import Manifest


class MissingRowJson(TypedDict):
    """`MissingRow` in a state."""

    table: str
    key: str
    reason: str
    ts_ms: int
    pos: str


class MissingJson(TypedDict):
    """`MissingState` in a state."""

    count: int
    rows: list[MissingRowJson]


@dataclass(frozen=True, slots=True)
class MissingRow:
    """A change without its row. `key` is the row's key as a JSON object, `pos` where the change is in the log."""

    table: TableId
    key: str
    reason: str
    ts_ms: int
    pos: str

    def to_json(self) -> MissingRowJson:
        return MissingRowJson(table=str(self.table), key=self.key, reason=self.reason, ts_ms=self.ts_ms, pos=self.pos)

    @classmethod
    def from_json(cls, data: MissingRowJson) -> MissingRow:
        return cls(TableId.parse(data["table"]), data["key"], data["reason"], data["ts_ms"], data["pos"])


@dataclass(frozen=True, slots=True)
class MissingState:
    """The missing rows in a stream's state: their `count` since it began, and the `rows` of the epoch that it ends."""

    count: int = 0
    rows: tuple[MissingRow, ...] = ()

    def to_json(self) -> MissingJson:
        return MissingJson(count=self.count, rows=[row.to_json() for row in self.rows])

    @classmethod
    def from_json(cls, data: MissingJson | None) -> MissingState:
        """Inverse of `to_json`; None where there never were any."""
        if data is None:
            return cls()
        return cls(data["count"], tuple(map(MissingRow.from_json, data["rows"])))


class MissingRows:
    """Those of an open epoch, and how many there were before. One thread."""

    def __init__(self, before: MissingState) -> None:
        self._count = before.count
        self.rows: list[MissingRow] = []

    def __repr__(self) -> str:
        return f"MissingRows({self._count} before, {len(self.rows)} in the open epoch)"

    def add(self, rows: Sequence[MissingRow]) -> None:
        self.rows += rows

    def begin_epoch(self) -> None:
        self._count += len(self.rows)
        self.rows = []

    def state(self) -> MissingState:
        """As the stream's state has them."""
        return MissingState(self._count + len(self.rows), tuple(self.rows))


def missing_rows(manifest: Manifest) -> list[MissingRow]:
    """Those of one epoch."""
    rows: list[MissingRow] = []
    for name, state in manifest.to_splits.items():
        begin = manifest.from_splits.get(name)
        before = MissingState.from_json(None if begin is None else begin.missing)
        after = MissingState.from_json(state.missing)
        if after.count > before.count:
            rows += after.rows
    return rows
