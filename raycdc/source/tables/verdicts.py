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
    """The table `after` a statement (None: it is gone), and the `events` that change its targets accordingly.

    With `replaces`, it is a different table under the name, even if its columns are the same.
    """

    table: TableId
    after: DescribedT | None
    events: tuple[SchemaChangeEvent, ...] = ()
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class Follow(Generic[DescribedT]):
    """The statement is followed: it has these effects, in order."""

    effects: tuple[TableEffect[DescribedT], ...]


@dataclass(frozen=True, slots=True)
class Park:
    """The `tables` are not followed from here on, for this reason (`Parking` for the `phase`).

    Without tables it is unknown which ones are concerned, and the run ends.
    """

    reason: str
    tables: tuple[TableId, ...]
    phase: ParkedPhase = ParkedPhase.PARKED


@dataclass(frozen=True, slots=True)
class Resnapshot:
    """The `tables` are read again, for this reason: the log does not say what they contain now.

    Without tables as for `Park`.
    """

    reason: str
    tables: tuple[TableId, ...]


@dataclass(frozen=True, slots=True)
class Ignore:
    """No table that is followed changes. `proof` says how that is known."""

    proof: str


Verdict = Follow[DescribedT] | Park | Resnapshot | Ignore

#: A rule: the verdict on a subject by the facts that are known, or None if the next rule is to be asked.
Rule = Callable[[SubjectT, FactsT], Verdict[DescribedT] | None]


def first_verdict(
    rules: Iterable[Rule[SubjectT, FactsT, DescribedT]], subject: SubjectT, facts: FactsT
) -> Verdict[DescribedT] | None:
    """The verdict of the first of the `rules` that has one; None: no rule has."""
    for rule in rules:
        verdict = rule(subject, facts)
        if verdict is not None:
            return verdict
    return None


def judge(rules: Iterable[Rule[SubjectT, FactsT, DescribedT]], subject: SubjectT, facts: FactsT) -> Verdict[DescribedT]:
    """Return the result of `first_verdict`, for `rules` of which the last one always has a verdict."""
    verdict = first_verdict(rules, subject, facts)
    assert verdict is not None, f"no rule has a verdict on {subject}"
    return verdict
