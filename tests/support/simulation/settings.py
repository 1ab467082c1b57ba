"""The settings of a simulated run, drawn from its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.support.simulation.database import TableKind, Visibility


@dataclass(frozen=True, slots=True)
class Settings:
    """The job and its faults. Probabilities are per step (`crashes`) and per packet (`network_faults`)."""

    visibility: Visibility
    kinds: tuple[TableKind, ...]
    steps: int
    network_faults: float
    crashes: float
    readers: int
    #: Share of the schema changes that empty a table.
    truncations: float = 0.0
    #: Share of the schema changes that cannot be followed, and of the starts at which the user asks for something.
    unfollowed: float = 0.0
    #: How often another table with the same rows takes the place of one that is about to be read, per step.
    swaps: float = 0.0
    #: How often another server takes over, per step.
    failovers: float = 0.0
    #: Share of the driver's starts that find a segment of the next epoch gone.
    losses: float = 0.2
    #: How often the driver dies between the commits of two tables of an epoch.
    half_commits: float = 0.0
    #: How often a target refuses its share of an epoch.
    refusals: float = 0.0
    #: How often rows of a table are asked for again, per step.
    backfills: float = 0.0
    #: Whether targets are damaged before the end, and repaired while rows change.
    damages: bool = False
    #: How often the user pauses a table, or lets a paused one go on, per step.
    pauses: float = 0.0
    #: How often the reading beside the log is lost, per look at it, and cannot be had, per attempt.
    breaks: float = 0.0
    #: How often the log that is to be read beside itself is found purged, per attempt; its tables begin again.
    purges: float = 0.0
    #: How often the log has nothing, per look, while it is read beside itself, too: it is overtaken then.
    overtaken: float = 0.0
    #: How often somebody locks a table, or lets go of one that is locked, per step.
    locks: float = 0.0
    #: How often a table is dropped, made again, replaced, or renamed, per step.
    names: float = 0.0
    #: Whether rows change so seldom that a statement may be the first thing that is heard of a table for long.
    quiet: bool = False
    #: Whether targets keep the rows of tables that are dropped.
    keeps_dropped: bool = False
    #: Whether each start of the driver asks for tables that were made since, as those of pipelines do; and all changes
    #: of such a table are to come, from the statement that made it on. Nothing else may have it read anew then.
    selects: bool = False
    #: How often a statement and rows are one transaction (CREATE TABLE … SELECT), per step.
    fills: float = 0.0
    #: How often a unit of the log has whole transactions and the beginning of another, which may be nothing of it.
    stretches: float = 0.0

    @classmethod
    def of(cls, chance: random.Random, steps: int) -> Settings:
        return cls(
            visibility=chance.choice(list(Visibility)),
            kinds=tuple(chance.choices(list(TableKind), weights=[4, 3, 3, 2, 0], k=chance.choice([1, 2, 2, 3]))),
            steps=chance.randrange(steps // 2, steps * 3 // 2),
            network_faults=chance.choice([0.0, 0.05, 0.3]),
            crashes=chance.choice([0.0, 0.002, 0.005, 0.015]),
            readers=chance.choice([1, 2, 3]),
            truncations=0.3,
            unfollowed=0.3,
            swaps=0.03,
            half_commits=0.05,
            refusals=chance.choice([0.0, 0.0, 0.05]),
            fills=0.004,
            stretches=0.3,
            overtaken=0.5,
        )


@dataclass(frozen=True, slots=True)
class SimSpeeds:
    """How fast the parts of a run go, relative to each other: some faults show only when one of them lags.

    `transactions` and `schema_changes` are probabilities per step, `chunks` and `reveals` weights of what happens in a
    step; `polls` and `deliveries` are how much is read, or delivered, when it is its turn; `log_silence` is the
    probability that the log has nothing for who looks.
    """

    transactions: float
    schema_changes: float
    polls: int
    log_silence: float
    deliveries: int
    chunks: int
    reveals: int

    @classmethod
    def of(cls, chance: random.Random) -> SimSpeeds:
        return cls(
            transactions=chance.choice([0.03, 0.07, 0.12]),
            schema_changes=chance.choice([0.0, 0.003, 0.01]),
            polls=chance.choice([1, 2, 4]),
            log_silence=chance.choice([0.1, 0.4, 0.8]),
            deliveries=chance.choice([2, 4]),
            chunks=chance.choice([2, 5, 12]),
            reveals=chance.choice([0, 1, 3]),
        )


#: The end of a run: nothing new, and everything moves.
CALM = SimSpeeds(transactions=0.0, schema_changes=0.0, polls=6, log_silence=0.1, deliveries=4, chunks=12, reveals=3)
