"""Verdicts on a statement of a source's log: it is followed, ignored, or its tables are parked or resnapshotted.

A connector has literal tuples of rules, each of which judges one statement or one part of it. `judge` applies them in
order, and the first verdict counts:

| verdict | its tables |
|---|---|
| `Follow` | continue as its effects say |
| `Park` | are not followed until a user decides |
| `Resnapshot` | are not followed until they were read again |
| `Ignore` | are unchanged; it names the proof |

A rule decides and does not act: the connector's history of schemas carries the verdict out. Nothing is ignored without
a proof, so a statement that no rule understands parks its tables.
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
    targets accordingly.

    `replaces`: it is a different table of the same name, even if its columns are equal.
    """

    table: TableId
    after: DescribedT | None
    events: tuple[SchemaChangeEvent, ...] = ()
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class Follow(Generic[DescribedT]):
    """The statement is followed. It has these effects, in order."""

    effects: tuple[TableEffect[DescribedT], ...]


@dataclass(frozen=True, slots=True)
class Park:
    """The `tables` are not followed from here on, for this reason (see `ParkingCause` for the `phase`).

    If there are no tables, it is unknown which ones are concerned, and the run ends.
    """

    reason: str
    tables: tuple[TableId, ...]
    phase: ParkedPhase = ParkedPhase.PARKED


@dataclass(frozen=True, slots=True)
class Resnapshot:
    """The `tables` are read again, for this reason: the log does not say what they contain now.

    If there are no tables, see `Park`.
    """

    reason: str
    tables: tuple[TableId, ...]


@dataclass(frozen=True, slots=True)
class Ignore:
    """No followed table changes. `proof` says how that is known."""

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
