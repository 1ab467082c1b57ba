"""What a simulated run is like, drawn from its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from raycdc.testing.simulation.database import TableKind, Visibility


@dataclass(frozen=True, slots=True)
class Settings:
    """The job and its faults. Probabilities are per step (`crashes`) and per packet (`network_faults`)."""

    visibility: Visibility
    kinds: tuple[TableKind, ...]
    steps: int
    network_faults: float
    crashes: float
    readers: int

    @classmethod
    def of(cls, chance: random.Random, steps: int) -> Settings:
        return cls(
            visibility=chance.choice(list(Visibility)),
            kinds=tuple(chance.choices(list(TableKind), weights=[4, 3, 3, 2], k=chance.choice([1, 2, 2, 3]))),
            steps=chance.randrange(steps // 2, steps * 3 // 2),
            network_faults=chance.choice([0.0, 0.05, 0.3]),
            crashes=chance.choice([0.0, 0.004, 0.015, 0.03]),
            readers=chance.choice([1, 2, 3]),
        )


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the parts of a run go, relative to each other: some faults show only when one of them lags.

    `transactions` and `schema_changes` are probabilities per step, the rest are weights of what happens in a step;
    `polls` is how much a reader does when it is its turn.
    """

    transactions: float
    schema_changes: float
    polls: int
    deliveries: int
    chunks: int
    reveals: int

    @classmethod
    def of(cls, chance: random.Random) -> Pace:
        return cls(
            transactions=chance.choice([0.05, 0.15, 0.3]),
            schema_changes=chance.choice([0.0, 0.003, 0.01]),
            polls=chance.choice([1, 2, 4]),
            deliveries=chance.choice([10, 25]),
            chunks=chance.choice([1, 3, 8]),
            reveals=chance.choice([0, 1, 3]),
        )


#: The end of a run: nothing new, and everything moves.
CALM = Pace(transactions=0.0, schema_changes=0.0, polls=6, deliveries=25, chunks=12, reveals=3)
