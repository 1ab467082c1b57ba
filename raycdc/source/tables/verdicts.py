"""The verdict on a statement of a source's log: it is followed or ignored, or its tables are parked or read anew.

A connector has literal tuples of rules, each a question that one statement, or one part of it, is asked. `judge` asks
them in order, and the first one that has a verdict decides:

| verdict | its tables |
|---|---|
| `Follow` | are from here on as its effects say |
| `Park` | are not followed until somebody decides |
| `Resnapshot` | are not followed until they were read anew |
| `Ignore` | are as before; it says by which proof |

A rule decides and does not act: the connector's history of schemas carries the verdict out. Nothing is ignored without
a proof, so that a statement which no rule understands parks its tables.
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
    """The table as it is behind a statement, `after` (None: it is gone), to which the `events` lead from before.

    One that `replaces` is another table under the name, also where its columns are the same.
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

    Without tables nobody knows which ones are concerned, and the run ends.
    """

    reason: str
    tables: tuple[TableId, ...]
    phase: ParkedPhase = ParkedPhase.PARKED


@dataclass(frozen=True, slots=True)
class Resnapshot:
    """The `tables` are read anew, for this reason: the log does not tell what they have now.

    Without tables as for `Park`.
    """

    reason: str
    tables: tuple[TableId, ...]


@dataclass(frozen=True, slots=True)
class Ignore:
    """No table that is followed changes. `proof` says how that is known."""

    proof: str


Verdict = Follow[DescribedT] | Park | Resnapshot | Ignore

#: A rule: the verdict on a subject by the facts that are known, or None where the next rule is to be asked.
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
    """As `first_verdict`, of `rules` the last of which has always one."""
    verdict = first_verdict(rules, subject, facts)
    assert verdict is not None, f"no rule has a verdict on {subject}"
    return verdict
