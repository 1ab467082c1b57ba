"""How large a story of drivers is, and how often each fault happens in it."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """A run and its faults. `deaths` is per pause, and five times that at fail points; the others are per step."""

    tables: int = 2
    steps: int = 1500
    #: A process ends, is paused and wakes up later, or all end because the power fails.
    deaths: float = 0.003
    pauses: float = 0.0
    power_failures: float = 0.0
    #: Readers and coordinators end, hang, or are cut off.
    lost_processes: float = 0.002
    lost_segments: float = 0.0
    answers_lost: float = 0.0
    refusals: float = 0.0
    #: How often somebody locks a target, or lets go of one, for longer than drivers wait.
    locks: float = 0.0
    new_columns: float = 0.01
    #: How often the user asks for new snapshots between two drivers.
    requests: float = 0.0
    #: How often a step gives a command about a table, whether a driver runs or not.
    commands: float = 0.0
    #: Whether drivers begin by themselves and hand over to engines, and how often one of these is lost.
    hands_over: bool = False
    lost_engines: float = 0.003
    #: Whether the state is on an object store, and how often a reply of it is lost.
    on_store: bool = False
    replies_lost: float = 0.05
    #: Whether manifests are changes of the ones before, however small they are.
    changes: bool = False
    #: Whether the sink takes all verbs of an opening in one transaction.
    whole: bool = True

    @classmethod
    def of(cls, chance: random.Random) -> DriverSettings:
        return cls(
            tables=chance.choice([1, 2, 3]),
            steps=chance.choice([800, 1500, 2500]),
            deaths=chance.choice([0.001, 0.003, 0.01]),
            pauses=chance.choice([0.0, 0.001, 0.003]),
            power_failures=chance.choice([0.0, 0.0003, 0.002]),
            lost_processes=chance.choice([0.0, 0.003, 0.01]),
            lost_segments=chance.choice([0.0, 0.0, 0.003]),
            answers_lost=chance.choice([0.0, 0.02, 0.1]),
            refusals=chance.choice([0.0, 0.0, 0.01]),
            new_columns=chance.choice([0.0, 0.01, 0.03]),
            requests=chance.choice([0.0, 0.2]),
            whole=chance.random() < 0.5,
        )
