"""The captured tables that a running log does not follow, as far as it was read, and how each is followed again.

| a parked table | when the log names it |
|---|---|
| waits for somebody to decide, or is paused | a look at it from before that is out of date |
| begins again | the same: it is looked at once more |
| has ended (renamed away, gone) | the name may be taken again: it is to be looked at |

A connector decides *that* a table is parked, and why; this says what comes of it. One thread: the log's fetcher.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic

from raycdc.model import TableId, TableSchema
from raycdc.schema import SchemaChangeEvent
from raycdc.source.new_beginnings import DescribedT, Fit, LookAt, Place, TableLooks, Unfit
from raycdc.source.snapshot.log_unit import TableParked
from raycdc.source.table_life import Parked, Parking, Phase
from raycdc.transform.followed import TargetRules


class Standing(Enum):
    """The event that a parked table waits for: a look at it, a decision, or another table that takes its name."""

    BEGINS_AGAIN = auto()
    UNDECIDED = auto()
    ENDED = auto()


def standing_of(parked: Parked | Parking) -> Standing:
    """The event that a table which is `parked` so waits for."""
    if parked.again:
        return Standing.BEGINS_AGAIN
    return Standing.ENDED if parked.phase is Phase.ENDED else Standing.UNDECIDED


def _nowhere(_: TableId) -> None:
    return None


@dataclass(frozen=True, slots=True)
class ParkingTerms(Generic[DescribedT]):
    """How a log parks: the tables `parked` where it begins, how one is looked at, and what targets can follow.

    Where `parked` is None, nothing may be parked: an error ends the run.
    """

    parked: Mapping[TableId, Parked] | None = None
    look: LookAt[DescribedT] = _nowhere
    rules: TargetRules = field(default_factory=TargetRules)


class ParkedTables(Generic[DescribedT]):
    """See the module's docstring.

    Where rows are updated, a table whose rows in a target cannot be told from those of other tables cannot begin again
    by itself, and waits for somebody to decide. Only rows can be mistaken so: a table of which targets were never told
    has none, empties nothing when it begins, and is in nobody's way. `followed` are the tables that the log follows, or
    is known to have followed, where it begins; `noun` is what people call a table.
    """

    def __init__(self, terms: ParkingTerms[DescribedT], *, followed: Iterable[TableId], noun: str = "table") -> None:
        parked = terms.parked or {}
        self.rules = terms.rules
        self._standing = {table: standing_of(state) for table, state in parked.items()}
        self._looks: TableLooks[Fit[DescribedT] | Unfit] = TableLooks(terms.look, self.waiting)
        #: Tables of which targets have, or may have, rows. One that was emptied or dropped stays among them, because a
        #: merged target remembers its sources, and refuses to be emptied for one of them.
        self._with_rows = {*followed, *(table for table, state in parked.items() if state.announced)}
        self._noun = noun

    def __repr__(self) -> str:
        return f"ParkedTables({self._looks})"

    def __contains__(self, table: object) -> bool:
        return table in self._standing

    def __iter__(self) -> Iterator[TableId]:
        return iter(self._standing)

    def __getitem__(self, table: TableId) -> Standing | None:
        """The event that the table waits for; None where it is not parked."""
        return self._standing.get(table)

    @property
    def waiting(self) -> list[TableId]:
        """Tables that are to begin again."""
        return [table for table, standing in self._standing.items() if standing is Standing.BEGINS_AGAIN]

    def park(
        self, table: TableId, reason: str, place: Place, *, again: bool = False, phase: Phase = Phase.PARKED
    ) -> TableParked:
        """Nothing of the table follows; see `Parking` for `again` and `phase`."""
        if again and (shared := self.shared(table)):
            reason, again, phase = f"{reason}\nIt cannot begin again by itself: {shared}.", False, Phase.PARKED
        parking = Parking(reason, place.position, place.ts_ms, again=again, phase=phase)
        self._standing[table] = standing_of(parking)
        if again:
            self._looks.want(table)
        else:
            self._looks.forget(table)
        return TableParked(table, parking)

    def end(self, table: TableId, place: Place) -> TableParked:
        """A table that was to begin again is not at the source any more."""
        return self.park(table, ended(table, self._noun), place, phase=Phase.ENDED)

    def follow(self, table: TableId) -> None:
        """The table is followed from here on: it begins, begins again, or another one under its name does."""
        self._standing.pop(table, None)
        self._with_rows.add(table)

    def shared(self, table: TableId) -> str:
        """The reason why the table cannot begin again without others; empty where it can."""
        return self.rules.shared(table, self._beside(table))

    def touched(self, table: TableId, ordinal: int) -> None:
        """The log has a statement about the table that ends at `ordinal`."""
        self._looks.touched(table, ordinal)

    def looked_at(self, place: Place) -> Iterator[tuple[TableId, Fit[DescribedT] | TableParked]]:
        """Between two transactions, at `place`: tables whose look holds here, each once; they begin, or stay parked."""
        for table, look in self._looks.ready(place.ordinal):
            match look:
                case None:
                    yield table, self.end(table, place)
                case Unfit(reason):
                    yield table, self.park(table, reason, place)
                case Fit():
                    yield table, look

    def objection(
        self,
        table: TableId,
        before: TableSchema | None,
        after: TableSchema | None,
        events: Sequence[SchemaChangeEvent],
    ) -> str:
        """Why targets cannot follow what `events` make of a table, or hold a new one; empty where they can."""
        if before is not None:
            return self.rules.objection(table, before, after, events, self._beside(table))
        return "" if after is None else self.rules.refusal(table, after)

    def _beside(self, table: TableId) -> Collection[TableId]:
        """The tables whose rows may be in targets where the table's own are."""
        return self._with_rows if table in self._with_rows else ()


def ended(table: TableId, noun: str) -> str:
    """Why a table has ended that was to begin again, and is not at the source."""
    return f"there is no {noun} {table} any more; the target keeps what it had"
