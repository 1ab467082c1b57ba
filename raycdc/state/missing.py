"""Missing rows: the source's log reports their change, but the source cannot deliver the rows themselves.

``missing`` in the stream's state has the total number of missing rows, and lists the missing rows of the epoch that
ends with this state. Therefore each epoch reports its own missing rows only, even if it is staged twice or if an
unchanged state is sealed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raycdc.core.typed_codec import JsonObject
from raycdc.model import TableId
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.opaque import SealedSplit


@dataclass(frozen=True, slots=True)
class MissingRow(JsonObject):
    """A change whose row is missing.

    `key` is the row's key as a JSON object, `pos` is the position of the change in the log.
    """

    table: TableId
    key: str
    reason: str
    ts_ms: int
    pos: str


@dataclass(frozen=True, slots=True)
class MissingState(JsonObject):
    """The missing rows in a stream's state: their total `count`, and the `rows` of the epoch that ends with this
    state.
    """

    count: int = 0
    rows: tuple[MissingRow, ...] = ()


class MissingRows:
    """The missing rows of an open epoch, and the number of missing rows in earlier epochs. For one thread."""

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
        """Return the missing rows for the stream's state."""
        return MissingState(self._count + len(self.rows), tuple(self.rows))


def _missing_in(split: SealedSplit | None) -> MissingState:
    data = None if split is None else split.missing
    return MissingState() if data is None else MissingState.from_json(data)


def missing_rows(manifest: Manifest) -> list[MissingRow]:
    """Return the missing rows of one epoch."""
    rows: list[MissingRow] = []
    for name, state in manifest.to_splits.items():
        begin = manifest.from_splits.get(name)
        before, after = _missing_in(begin), _missing_in(state)
        if after.count > before.count:
            rows += after.rows
    return rows
