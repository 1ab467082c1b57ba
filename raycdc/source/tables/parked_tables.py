"""Tracks the parked tables of a running log at its present position, and decides how each of them is followed again.

| a parked table | when the log names it |
|---|---|
| waits for a decision, or is paused | an earlier probe of it is out of date |
| is to be resnapshotted | the same: it is probed again |
| has ended (renamed, dropped) | the name may be used again: it is probed |
| is new: it was never followed | if the statement creates it, it is followed from there (`made`); if the statement \
drops it, no decision is needed (`is_over`) |

A connector decides which table is parked, and for which reason; this module decides the consequences. Used by one
thread, that of the log's fetcher.
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
    """The event for which a parked table waits: a probe, a decision, or another table that takes its name."""

    RESNAPSHOTS = auto()
    UNDECIDED = auto()
    ENDED = auto()


def parked_kind(parked: Parked | ParkingCause) -> ParkedKind:
    """Return the event for which a parked table waits."""
    if parked.again:
        return ParkedKind.RESNAPSHOTS
    return ParkedKind.ENDED if parked.phase is ParkedPhase.ENDED else ParkedKind.UNDECIDED


def _nowhere(_: TableId) -> None:
    return None


@dataclass(frozen=True, slots=True)
class ParkingSetup(Generic[DescribedT]):
    """What a log reader needs to park tables: the tables `parked` at its start, a function that probes a table, and the
    rules of targets.

    If `parked` is None, no table may be parked, and an error ends the run instead.
    """

    parked: Mapping[TableId, Parked] | None = None
    probe: ProbeTable[DescribedT] = _nowhere
    rules: TargetRules = field(default_factory=TargetRules)


class ParkedTables(Generic[DescribedT]):
    """The parked tables; see the module's docstring.

    If the sink updates rows, a table that shares a target with other tables cannot be resnapshotted automatically,
    because the rows of the tables cannot be distinguished in the target. Such a table waits for a decision of the user,
    unless no target has rows of it. `followed` are the tables that the log follows at its start, or is known to have
    followed before. `noun` is the word for a table in messages.
    """

    def __init__(self, terms: ParkingSetup[DescribedT], *, followed: Iterable[TableId], noun: str = "table") -> None:
        parked = terms.parked or {}
        self.rules = terms.rules
        #: True if tables may be parked at all.
        self.parks = terms.parked is not None
        self._kinds = {table: parked_kind(state) for table, state in parked.items()}
        #: Tables that were never followed, so that no target knows them, and tables that the present statement creates.
        self._new = {table for table, state in parked.items() if state.schema is None and not state.announced}
        self._made: set[TableId] = set()
        #: Unknown tables of which the log has rows.
        self._met: set[TableId] = set()
        #: Tables that wait for a user's decision, without tables that a user paused or removed.
        self._refused = {t for t, state in parked.items() if state.phase is ParkedPhase.PARKED and not state.again}
        self._awaited = {table for table, state in parked.items() if state.awaited}
        self._probes: TableProbes[FollowableTable[DescribedT] | UnfollowableTable] = TableProbes(
            terms.probe, self.waiting
        )
        #: Tables of which targets may have rows. A truncated or dropped table stays in this set, because a merged
        #: target is not emptied for one of its source tables.
        self._with_rows = {*followed, *(table for table, state in parked.items() if state.announced)}
        self._noun = noun

    def __repr__(self) -> str:
        return f"ParkedTables({self._probes})"

    def __contains__(self, table: object) -> bool:
        return table in self._kinds

    def __iter__(self) -> Iterator[TableId]:
        return iter(self._kinds)

    def __getitem__(self, table: TableId) -> ParkedKind | None:
        """Return the event for which the table waits; None if it is not parked."""
        return self._kinds.get(table)

    @property
    def waiting(self) -> list[TableId]:
        """Return the tables that are to be resnapshotted."""
        return [table for table, kind in self._kinds.items() if kind is ParkedKind.RESNAPSHOTS]

    def park(
        self,
        table: TableId,
        reason: str,
        position: StatementPosition,
        *,
        again: bool = False,
        phase: ParkedPhase = ParkedPhase.PARKED,
    ) -> ParkTableUpdate:
        """Park the table. See `ParkingCause` for `again` and `phase`."""
        self._met.discard(table)
        if again and (shared := self.shared(table)):
            reason, again, phase = f"{reason}\nIt cannot begin again by itself: {shared}.", False, ParkedPhase.PARKED
        parking = ParkingCause(reason, position.position, position.ts_ms, again=again, phase=phase)
        self._kinds[table] = parked_kind(parking)
        (self._refused.add if phase is ParkedPhase.PARKED and not again else self._refused.discard)(table)
        self._made.discard(table)
        if table not in self._with_rows:
            self._new.add(table)
        if again:
            self._probes.want(table)
        else:
            self._probes.forget(table)
        return ParkTableUpdate(table, parking)

    def met(self, table: TableId, reason: str, position: StatementPosition) -> ParkTableUpdate:
        """Park an unknown table of which the log has rows. The table is probed; if it is not visible to the account,
        the message names the missing permission.
        """
        update = self.park(table, reason, position, again=True)
        self._met.add(table)
        return update

    def awaits(self, table: TableId, *, certain: bool) -> bool:
        """Return True if all rows of the table come through the log after a statement that creates it. This holds for a
        parked table that was never followed and did not exist before. If `certain` is True, the statement itself proves
        that the table did not exist; otherwise the state must show that.
        """
        waits = self._kinds.get(table) in (ParkedKind.RESNAPSHOTS, ParkedKind.ENDED)
        return waits and table in self._new and (certain or table in self._awaited)

    def is_over(self, table: TableId) -> bool:
        """Return True if no decision is needed after the table is dropped, because no target has rows of it."""
        return table in self._refused and table in self._new

    def made(self, table: TableId) -> None:
        """Note that the log has the statement that creates the table: it is not parked any more and needs no probe."""
        self._kinds.pop(table, None)
        self._refused.discard(table)
        self._probes.forget(table)
        self._made.add(table)

    def is_made(self, table: TableId) -> bool:
        """Return True if the present statement is one that `made` was called for."""
        return table in self._made

    def end(self, table: TableId, position: StatementPosition) -> ParkTableUpdate:
        """End a table that was to be resnapshotted, but no longer exists or is not visible."""
        if table in self._met and table not in self._with_rows:
            reason = (
                f"the log has rows of {self._noun} {table}, and this account sees none of that name. Grant SELECT on "
                f"it, or leave it out (source.exclude); then: raycdc tables resnapshot CONFIG {table}"
            )
            return self.park(table, reason, position)
        reason = ended(table, self._noun, had_rows=table in self._with_rows)
        return self.park(table, reason, position, phase=ParkedPhase.ENDED)

    def follow(self, table: TableId) -> bool:
        """Follow the table from now on, for the first time or again. Returns True if the log contained the creation of
        the table.
        """
        is_made = table in self._made
        self._made.discard(table)
        self._new.discard(table)
        self._refused.discard(table)
        self._kinds.pop(table, None)
        self._with_rows.add(table)
        return is_made

    def shared(self, table: TableId) -> str:
        """Return why the table cannot be resnapshotted without other tables; empty if it can."""
        return self.rules.shared(table, self._sharing_targets(table))

    def invalidate(self, table: TableId, ordinal: int, *, stays_absent: bool = False, leaves: bool = False) -> None:
        """Record a statement about the table that ends at `ordinal`. `stays_absent` is True if the statement drops the
        table and creates no table of that name. `leaves` is True if no table of that name exists after the statement.
        """
        if leaves:
            self._met.discard(table)
        self._probes.invalidate(table, ordinal)
        if not stays_absent:
            self._awaited.discard(table)

    def take_probed(
        self, position: StatementPosition
    ) -> Iterator[tuple[TableId, FollowableTable[DescribedT] | ParkTableUpdate]]:
        """Yield the tables whose probe is valid at `position`, between two transactions; they begin, or stay parked."""
        for table, probe in self._probes.ready(position.ordinal):
            match probe:
                case None:
                    yield table, self.end(table, position)
                case UnfollowableTable(reason):
                    yield table, self.park(table, reason, position)
                case FollowableTable():
                    yield table, probe

    def objection(
        self,
        table: TableId,
        before: TableSchema | None,
        after: TableSchema | None,
        events: Sequence[SchemaChangeEvent],
    ) -> str:
        """Return why targets cannot follow `events` of a table, or hold a new one; empty if they can."""
        if before is not None:
            return self.rules.objection(table, before, after, events, self._sharing_targets(table))
        return "" if after is None else self.rules.refusal(table, after)

    def _sharing_targets(self, table: TableId) -> Collection[TableId]:
        """Return the tables that may have rows in the same targets as the table."""
        return self._with_rows if table in self._with_rows else ()


def ended(table: TableId, noun: str, *, had_rows: bool) -> str:
    """Return the message about a table that was to be resnapshotted and has ended, because the source does not have it.
    `had_rows` is True if a target may have rows of it.
    """
    if had_rows:
        return f"there is no {noun} {table} any more; the target keeps what it had"
    return f"there is no {noun} {table}; nothing of it was read"
