"""Parts of a state that one author alone can read: the core carries, compares and stores them, and never looks inside.

| value | its author |
|---|---|
| `Position` | a connector: where its log stands |
| `LogNotes` | a connector: what else its log must know to go on from there |
| `SealedSplit` | whoever reads the unbounded split: the position, and what belongs to it |
| `EnumeratorState` | an enumerator |
| `PlannerState` | the part of a connector that cuts tables into chunks |

Each author has classes of its own with a codec, such as ``BinlogOffset.from_json(position.to_json())``. Here a value is
the JSON that the codec made, as links and stores have it. Invariant: it is written again exactly as it was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from raycdc.model.json_value import Json

#: Where each split stands, by its id, as people may see it beside the rows that were written: JSON of its connector.
Positions: TypeAlias = Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Opaque:
    """See the module's docstring."""

    _json: Any

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._json!r})"

    @classmethod
    def from_json(cls, data: Any) -> Self:
        return cls(data)

    def to_json(self) -> Any:
        """For the author's codec, for links and for stores."""
        return self._json


class Position(Opaque):
    """Where a log stands. Positions are equal or not; which of two is later is told by an ordinal, if by anything."""

    __slots__ = ()

    @classmethod
    def unknown(cls) -> Position:
        """The position of something that nobody has a place for."""
        return cls({})


class LogNotes(Opaque):
    """The things beside position and schemas that a log must know to go on."""

    __slots__ = ()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._json)


#: A log that has nothing to remember.
NO_NOTES = LogNotes({})


class SealedSplit(Opaque):
    """The state of an unbounded split, as it is sealed with every epoch.

    The parts below have the same name in every state that has them, so that all may ask for them.
    """

    __slots__ = ()

    @property
    def position(self) -> Position | None:
        """Where the split stands; None for a source whose states say nothing of that."""
        return Position(self._json["position"]) if "position" in self._json else None

    @property
    def missing(self) -> Any:
        """The JSON of `raycdc.state.missing.MissingState`; None where no row was ever missing."""
        return self._json.get("missing")

    def incarnation(self, table: str) -> int | None:
        """Which beginning of a table the split follows; None where it does not follow it, or counts none."""
        followed = self._json.get("tables", {}).get(table)
        if followed is None:
            # One that is caught up beside the log stands among the parked ones, and rows of it come.
            parked = self._json.get("parked", {}).get(table, {})
            followed = parked if "catching_up" in parked else None
        return None if followed is None else int(followed.get("incarnation", 0))


class EnumeratorState(Opaque):
    """The state of an enumerator, as it is sealed with every epoch."""

    __slots__ = ()

    @property
    def tables(self) -> frozenset[str]:
        """Names of the tables that it knows; none where it keeps none."""
        return frozenset(self._json.get("tables", ()))


class PlannerState(Opaque):
    """How far a table is cut into chunks; at first nothing but the key by which it is cut."""

    __slots__ = ()


def positions_in(splits: Mapping[str, SealedSplit]) -> dict[str, Position]:
    """Where each split stands; one that says nothing of that is left out."""
    return {split: state.position for split, state in splits.items() if state.position is not None}
