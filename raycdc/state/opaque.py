"""Parts of a state that only the component that made them can interpret. The core passes, compares and stores them.

| value | its author |
|---|---|
| `Position` | a connector: the position of its log |
| `LogNotes` | a connector: further data that its log needs to continue from there |
| `SealedSplit` | the reader of the unbounded split: the position, and the data to continue from it |
| `EnumeratorState` | an enumerator |
| `PlannerState` | the part of a connector that cuts tables into chunks |

Each author has its own classes with a codec, such as ``BinlogOffset.from_json(position.to_json())``. The classes of
this module hold the JSON that this codec makes, in the form in which it is sent and stored. Invariant: the JSON is
written exactly as it was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from raycdc.core.typed_codec import Json

#: The position of each split by its id, in the form that people see with the written rows: JSON of its connector.
Positions: TypeAlias = Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Opaque:
    """Base of values that only their author can interpret; see the module's docstring."""

    _json: Any

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._json!r})"

    @classmethod
    def from_json(cls, data: Any) -> Self:
        return cls(data)

    def to_json(self) -> Any:
        """Return the JSON for the author's codec, for links and for stores."""
        return self._json


class Position(Opaque):
    """A position of a log. Positions can be compared for equality only; ordinals give their order."""

    __slots__ = ()

    @classmethod
    def unknown(cls) -> Position:
        """Return the position to use if none is known."""
        return cls({})


class LogNotes(Opaque):
    """A log's additional data, besides position and schemas, to continue from a position."""

    __slots__ = ()

    def __bool__(self) -> bool:
        """Return True if there are any notes."""
        return bool(self._json)


#: The notes of a log that needs none.
NO_NOTES = LogNotes({})


class SealedSplit(Opaque):
    """The state of an unbounded split, as it is sealed with every epoch.

    The properties read fields that have the same name in the state of every reader, so any code may use them.
    """

    __slots__ = ()

    @property
    def position(self) -> Position | None:
        """Return the position of the split; None if the source's states have no position."""
        return Position(self._json["position"]) if "position" in self._json else None

    @property
    def missing(self) -> Any:
        """Return the JSON of `raycdc.state.missing.MissingState`; None if no row was ever missing."""
        return self._json.get("missing")

    def incarnation(self, table: str) -> int | None:
        """Return the incarnation of a table in the split; None if it is not followed, or has no incarnations."""
        followed = self._json.get("tables", {}).get(table)
        if followed is None:
            # A table in the catch-up stream is listed among the parked ones, but its rows are delivered.
            parked = self._json.get("parked", {}).get(table, {})
            followed = parked if "catching_up" in parked else None
        return None if followed is None else int(followed.get("incarnation", 0))


class EnumeratorState(Opaque):
    """The state of an enumerator, as it is sealed with every epoch."""

    __slots__ = ()

    @property
    def tables(self) -> frozenset[str]:
        """Return the names of the tables that the enumerator knows; empty if it stores none."""
        return frozenset(self._json.get("tables", ()))


class PlannerState(Opaque):
    """The progress of cutting a table into chunks.

    At the beginning it has only the key columns by which the table is cut.
    """

    __slots__ = ()


def positions_in(splits: Mapping[str, SealedSplit]) -> dict[str, Position]:
    """Return return the position of each split that has one."""
    return {split: state.position for split, state in splits.items() if state.position is not None}
