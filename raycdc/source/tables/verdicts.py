"""Decides about statements in a source's log: a statement is followed or ignored, or its tables are parked or
resnapshotted.

A connector has literal tuples of rules, each of which judges one statement or one part of it. `judge` applies them in
order, and the first verdict counts:

| verdict | its tables |
|---|---|
| `Follow` | continue as its effects say |
| `Park` | are not followed until a user decides |
| `Resnapshot` | are not followed until they were read again |
| `Ignore` | are unchanged; it names the proof |

A rule only decides; the connector's history of schemas carries the verdict out. A statement is ignored only with a
proof that it changes no followed table. If no rule understands a statement, its tables are parked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from raycdc.model import TableId
from raycdc.model.evolution import SchemaChangeEvent
from raycdc.source.tables.resnapshots import DescribedT
from raycdc.source.tables.table_life import ParkedPhase

SubjectT = TypeVar("SubjectT")
FactsT = TypeVar("FactsT")


@dataclass(frozen=True, slots=True)
class TableEffect(Generic[DescribedT]):
    """The effect of a statement on a table: the table `after` it (None: dropped), and the `events` that change its
    targets accordingly. `replaces` is True if the table is a different table of the same name afterwards, even if its
    columns are equal.
    """

    table: TableId
    after: DescribedT | None
    events: tuple[SchemaChangeEvent, ...] = ()
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class Follow(Generic[DescribedT]):
    """The verdict that the statement is followed. It has these effects, in order."""

    effects: tuple[TableEffect[DescribedT], ...]


@dataclass(frozen=True, slots=True)
class Park:
    """The verdict that the `tables` are not followed from here on, for this reason (for `phase` see `ParkingCause`). If
    `tables` is empty, the concerned tables are unknown, and the run ends.
    """

    reason: str
    tables: tuple[TableId, ...]
    phase: ParkedPhase = ParkedPhase.PARKED


@dataclass(frozen=True, slots=True)
class Resnapshot:
    """The verdict that the `tables` are resnapshotted for this reason, because the log does not contain their present
    rows. If `tables` is empty, the concerned tables are unknown, and the run ends.
    """

    reason: str
    tables: tuple[TableId, ...]


@dataclass(frozen=True, slots=True)
class Ignore:
    """The verdict that the statement changes no followed table. `proof` is the reason why this is certain."""

    proof: str


Verdict = Follow[DescribedT] | Park | Resnapshot | Ignore

#: A rule returns the verdict on a subject, based on the known facts, or None to leave it to the next rule.
Rule = Callable[[SubjectT, FactsT], Verdict[DescribedT] | None]


def first_verdict(
    rules: Iterable[Rule[SubjectT, FactsT, DescribedT]], subject: SubjectT, facts: FactsT
) -> Verdict[DescribedT] | None:
    """Return the first verdict of `rules`; None if no rule has one."""
    for rule in rules:
        verdict = rule(subject, facts)
        if verdict is not None:
            return verdict
    return None


def judge(rules: Iterable[Rule[SubjectT, FactsT, DescribedT]], subject: SubjectT, facts: FactsT) -> Verdict[DescribedT]:
    """Return the first verdict of `rules`, of which the last one always has a verdict."""
    verdict = first_verdict(rules, subject, facts)
    assert verdict is not None, f"no rule has a verdict on {subject}"
    return verdict
