"""The captured tables that a running log does not follow, as far as it was read, and how each is followed again.

| a parked table | when the log names it |
|---|---|
| waits for somebody to decide, or is paused | a look at it from before that is out of date |
| begins again | the same: it is looked at once more |
| has ended (renamed away, gone) | the name may be taken again: it is to be looked at |
| is new: nobody followed it yet | where that is the statement that makes it, it is followed from there (`made`); \
where it drops it, nobody has anything to decide (`is_over`) |

A connector decides *that* a table is parked, and why; this says what comes of it. One thread: the log's fetcher.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic

from raycdc.model import TableId, TableSchema
from raycdc.model.evolution import SchemaChangeEvent
from raycdc.source.snapshot.log.log_unit import ParkTableUpdate
from raycdc.source.tables.resnapshots import (
    DescribedT,
    FollowableTable,
    ProbeTable,
    StatementPosition,
    TableProbes,
    UnfollowableTable,
)
from raycdc.source.tables.table_life import Parked, ParkedPhase, ParkingCause
from raycdc.transform.target_rules import TargetRules


class ParkedKind(Enum):
    """The event that a parked table waits for: a look at it, a decision, or another table that takes its name."""

    BEGINS_AGAIN = auto()
    UNDECIDED = auto()
    ENDED = auto()


def standing_of(parked: Parked | ParkingCause) -> ParkedKind:
    """The event that a table which is `parked` so waits for."""
    if parked.again:
        return ParkedKind.BEGINS_AGAIN
    return ParkedKind.ENDED if parked.phase is ParkedPhase.ENDED else ParkedKind.UNDECIDED


def _nowhere(_: TableId) -> None:
    return None


@dataclass(frozen=True, slots=True)
class ParkingSetup(Generic[DescribedT]):
    """How a log parks: the tables `parked` where it begins, how one is looked at, and what targets can follow.

    Where `parked` is None, nothing may be parked: an error ends the run.
    """

    parked: Mapping[TableId, Parked] | None = None
    look: ProbeTable[DescribedT] = _nowhere
    rules: TargetRules = field(default_factory=TargetRules)


class ParkedTables(Generic[DescribedT]):
    """See the module's docstring.

    Where rows are updated, a table whose rows in a target cannot be told from those of other tables cannot begin again
    by itself, and waits for somebody to decide. Only rows can be mistaken so: a table of which targets were never told
    has none, empties nothing when it begins, and is in nobody's way. `followed` are the tables that the log follows, or
    is known to have followed, where it begins; `noun` is what people call a table.
    """

    def __init__(self, terms: ParkingSetup[DescribedT], *, followed: Iterable[TableId], noun: str = "table") -> None:
        parked = terms.parked or {}
        self.rules = terms.rules
        #: Whether any table may be parked.
        self.parks = terms.parked is not None
        self._standing = {table: standing_of(state) for table, state in parked.items()}
        #: Those of which nobody could follow anything yet, and no target was told; those of them that were not there
        #: where the log began; and those that the statement at hand makes.
        self._new = {table for table, state in parked.items() if state.schema is None and not state.announced}
        self._made: set[TableId] = set()
        #: Those of which the log has rows, though nobody knew of them.
        self._met: set[TableId] = set()
        #: Those that somebody is to decide about, and did not ask to be left alone.
        self._refused = {t for t, state in parked.items() if state.phase is ParkedPhase.PARKED and not state.again}
        self._awaited = {table for table, state in parked.items() if state.awaited}
        self._looks: TableProbes[FollowableTable[DescribedT] | UnfollowableTable] = TableProbes(
            terms.look, self.waiting
        )
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

    def __getitem__(self, table: TableId) -> ParkedKind | None:
        """The event that the table waits for; None where it is not parked."""
        return self._standing.get(table)

    @property
    def waiting(self) -> list[TableId]:
        """Tables that are to begin again."""
        return [table for table, standing in self._standing.items() if standing is ParkedKind.BEGINS_AGAIN]

    def park(
        self,
        table: TableId,
        reason: str,
        place: StatementPosition,
        *,
        again: bool = False,
        phase: ParkedPhase = ParkedPhase.PARKED,
    ) -> ParkTableUpdate:
        """Nothing of the table follows; see `ParkingCause` for `again` and `phase`."""
        self._met.discard(table)
        if again and (shared := self.shared(table)):
            reason, again, phase = f"{reason}\nIt cannot begin again by itself: {shared}.", False, ParkedPhase.PARKED
        parking = ParkingCause(reason, place.position, place.ts_ms, again=again, phase=phase)
        self._standing[table] = standing_of(parking)
        (self._refused.add if phase is ParkedPhase.PARKED and not again else self._refused.discard)(table)
        self._made.discard(table)
        if table not in self._with_rows:
            self._new.add(table)
        if again:
            self._looks.want(table)
        else:
            self._looks.forget(table)
        return ParkTableUpdate(table, parking)

    def met(self, table: TableId, reason: str, place: StatementPosition) -> ParkTableUpdate:
        """The log has rows of a table that nobody knows: it is looked at, and where it is not to be seen, whoever may
        let it be seen is to hear of that.
        """
        update = self.park(table, reason, place, again=True)
        self._met.add(table)
        return update

    def awaits(self, table: TableId, *, certain: bool) -> bool:
        """Whether a statement that makes the table leads to all its rows: it is parked, nobody followed it, and it was
        not there before. That is `certain` of itself, or else by what the state knows.
        """
        waits = self._standing.get(table) in (ParkedKind.BEGINS_AGAIN, ParkedKind.ENDED)
        return waits and table in self._new and (certain or table in self._awaited)

    def is_over(self, table: TableId) -> bool:
        """Whether a table that a statement drops leaves nothing to decide: no target has anything of it."""
        return table in self._refused and table in self._new

    def made(self, table: TableId) -> None:
        """The log has the statement that makes the table: it is not parked any more, and no look at it is wanted."""
        self._standing.pop(table, None)
        self._refused.discard(table)
        self._looks.forget(table)
        self._made.add(table)

    def is_made(self, table: TableId) -> bool:
        """Whether the statement at hand is one of those that `made` was told of."""
        return table in self._made

    def end(self, table: TableId, place: StatementPosition) -> ParkTableUpdate:
        """A table that was to begin again is not at the source any more, or is not to be seen."""
        if table in self._met and table not in self._with_rows:
            reason = (
                f"the log has rows of {self._noun} {table}, and this account sees none of that name. Grant SELECT on "
                f"it, or leave it out (source.exclude); then: raycdc tables resnapshot CONFIG {table}"
            )
            return self.park(table, reason, place)
        reason = ended(table, self._noun, had_rows=table in self._with_rows)
        return self.park(table, reason, place, phase=ParkedPhase.ENDED)

    def follow(self, table: TableId) -> bool:
        """The table is followed from here on: it begins, begins again, or another one under its name does. Whether it
        was `made`: nobody knows it, as the state has it parked.
        """
        is_made = table in self._made
        self._made.discard(table)
        self._new.discard(table)
        self._refused.discard(table)
        self._standing.pop(table, None)
        self._with_rows.add(table)
        return is_made

    def shared(self, table: TableId) -> str:
        """The reason why the table cannot begin again without others; empty where it can."""
        return self.rules.shared(table, self._beside(table))

    def touched(self, table: TableId, ordinal: int, *, stays_absent: bool = False, leaves: bool = False) -> None:
        """The log has a statement about the table that ends at `ordinal`; one that drops it makes none of the name, and
        one by which a table `leaves` the name says why none is to be seen.
        """
        if leaves:
            self._met.discard(table)
        self._looks.touched(table, ordinal)
        if not stays_absent:
            self._awaited.discard(table)

    def looked_at(
        self, place: StatementPosition
    ) -> Iterator[tuple[TableId, FollowableTable[DescribedT] | ParkTableUpdate]]:
        """Between two transactions, at `place`: tables whose look holds here, each once; they begin, or stay parked."""
        for table, look in self._looks.ready(place.ordinal):
            match look:
                case None:
                    yield table, self.end(table, place)
                case UnfollowableTable(reason):
                    yield table, self.park(table, reason, place)
                case FollowableTable():
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


def ended(table: TableId, noun: str, *, had_rows: bool) -> str:
    """Why a table has ended that was to begin again, and is not at the source. `had_rows`: a target may have some."""
    if had_rows:
        return f"there is no {noun} {table} any more; the target keeps what it had"
    return f"there is no {noun} {table}; nothing of it was read"
