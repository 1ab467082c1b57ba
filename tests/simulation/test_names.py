"""Tables are dropped, made again, replaced and renamed at any moment, and targets hold what the manual promises.

The last test counts what happened: every step of a table's life is played here, or has a reason why nothing can.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from raycdc.connectors.mysql.ddl.follow.followed_tables import SnapshotChunkKeys
from raycdc.model import TableId
from raycdc.source.snapshot.chunk_events import Fate
from raycdc.source.snapshot.handoff.chunk_openings import ChunkOpenings, OpeningRefused, OpeningRequest
from raycdc.source.snapshot.log.log_unit import DropTableUpdate
from raycdc.source.tables.table_life import TRANSITIONS, TableState, TableStates, TableTransition
from tests.simulation.missing_rules import Switch, name_of, require_noticed
from tests.simulation.test_simulation import seeds
from tests.support.simulation import Settings, Simulation, TableKind, Visibility
from tests.support.simulation.history import NOTHING, SimHistory

#: Circumstances of all that is played, by their names.
KINDS = (
    "plain",
    "pauses",
    "as_of",
    "quiet",
    "keeps",
    "failovers",
    "losses",
    "refusals",
    "backfills",
    "selects",
    "breaks",
)
#: Seeds of an ordinary test run, each of two circumstances.
SEEDS = 6


def circumstances(kind: str, seed: int) -> Settings:
    """What a run is like: the seed says the rest."""
    chance = random.Random(seed)
    drawn = replace(Settings.of(chance, 1500), names=0.006)
    match kind:
        case "plain":
            return drawn
        case "pauses":
            return replace(drawn, pauses=0.006, unfollowed=0.1)
        case "as_of":
            kinds = (TableKind.AS_OF, random.Random(seed).choice(list(TableKind)), TableKind.AS_OF)
            return replace(drawn, pauses=0.003, kinds=kinds)
        case "quiet":
            resting = replace(drawn, kinds=(TableKind.AS_OF,) * 4, steps=2500, quiet=True, swaps=0.0, fills=0.0)
            return replace(resting, names=0.004, pauses=0.002, crashes=0.0)
        case "keeps":
            return replace(drawn, pauses=0.004, keeps_dropped=True)
        case "failovers":
            is_snapshot = drawn.visibility is Visibility.SNAPSHOT
            visibility = Visibility.SNAPSHOT if is_snapshot else Visibility.WAIT  # Both have GTIDs.
            return replace(drawn, visibility=visibility, failovers=0.004)
        case "losses":
            return replace(drawn, crashes=0.015, half_commits=0.5, losses=1.0)
        case "refusals":
            return replace(drawn, names=0.02, crashes=0.006, refusals=0.15, pauses=0.01)
        case "backfills":
            return replace(drawn, backfills=0.008)
        case "selects":
            return replace(drawn, unfollowed=0.0, losses=0.0, refusals=0.0, fills=0.01, selects=True)
        case "breaks":
            return replace(drawn, pauses=0.006, unfollowed=0.1, breaks=0.15, purges=0.05)
        case _:
            raise AssertionError(f"nobody says what {kind} is")


def played(seed: int) -> Iterator[tuple[str, int]]:
    """The circumstances of a seed of `seeds`."""
    for kind in (KINDS[2 * seed % len(KINDS)], KINDS[(2 * seed + 1) % len(KINDS)]):
        yield kind, seed


@pytest.mark.parametrize("seed", seeds(SEEDS))
def test_names_that_other_tables_take_are_followed_whatever_fails(seed: int) -> None:
    for kind, number in played(seed):
        Simulation(number, settings=circumstances(kind, number)).run()


#: Runs that play every step; only to be quick, as others are tried where these do not suffice.
KNOWN = [("quiet", 5), ("quiet", 17), ("as_of", 0), ("quiet", 1), ("refusals", 3), ("quiet", 11)]
#: Runs after which a step counts as one that nothing plays.
RUNS_MAX = 60

#: Steps that the table of a table's life has and nothing here can play, each with why. A connector may bring one.
NEVER: dict[tuple[str, TableTransition], str] = {
    (
        "Unknown",
        TableTransition.DROPPED,
    ): "a log tells of drops of tables that it follows, and a state knows each of those",
    ("Unknown", TableTransition.BEGUN): "a table that nobody knows is parked before it begins",
    (
        "Parked",
        TableTransition.DROPPED,
    ): "a log passes over statements about tables that are parked, wherever that was decided",
    (
        "Dropped",
        TableTransition.DROPPED,
    ): "an epoch ends before the next statement, unless that is the same one, which drops once",
    ("Dropped", TableTransition.BEGUN): "the same: a table is replaced by one that is followed from its first row on",
}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, TableTransition]]:
    """Every step that a table takes, with the state before."""
    taken: set[tuple[str, TableTransition]] = set()
    real = TableStates._move

    def move(self: TableStates, table: TableId, step: TableTransition, state: TableState) -> None:
        taken.add((type(self[table]).__name__, step))
        real(self, table, step, state)

    monkeypatch.setattr(TableStates, "_move", move)
    return taken


def test_each_step_of_a_tables_life_is_played(steps: set[tuple[str, TableTransition]]) -> None:
    wanted = {(state.__name__, step) for state, following in TRANSITIONS.items() for step in following}
    others = ((kind, seed) for seed in range(RUNS_MAX) for kind in ("quiet", "refusals", "as_of", "pauses"))
    runs = iter([*KNOWN, *others][:RUNS_MAX])
    while wanted - NEVER.keys() - steps and (run := next(runs, None)) is not None:
        Simulation(run[1], settings=circumstances(*run)).run()
    assert wanted - NEVER.keys() - steps == set(), "nothing plays these"
    assert NEVER.keys() & steps == set(), "these are played, and need no reason any more"
    assert NEVER.keys() <= wanted


def go_on_with_a_table_of_another_shape(patch: pytest.MonkeyPatch) -> None:
    """In the target of the one that was dropped, as if it had those columns and that key."""
    patch.setattr(SimHistory, "_differs", lambda self, table, schema: False)


def forget_that_a_table_was_dropped_while_it_was_read(patch: pytest.MonkeyPatch) -> None:
    """One that is made as it was goes on there, and chunks of the first are still asked for."""
    patch.setattr(SnapshotChunkKeys, "under_way", lambda self, table: False)
    patch.setattr(ChunkOpenings, "ask", _as_if_numbers_said_nothing(ChunkOpenings.ask))


def leave_a_name_that_is_taken_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimHistory, "_touch", lambda self, *_: NOTHING)


def say_no_row_of_a_drop(patch: pytest.MonkeyPatch) -> None:
    """Upsert targets are emptied by it."""
    real = SimHistory.statement

    def statement(self: SimHistory, transaction: Any, place: Any) -> Any:
        updates, rows = real(self, transaction, place)
        dropped = any(isinstance(update, DropTableUpdate) for update in updates)
        return updates, () if dropped else rows

    patch.setattr(SimHistory, "statement", statement)


def _as_if_numbers_said_nothing(real: Any) -> Any:
    def ask(self: ChunkOpenings, request: OpeningRequest, **values: Any) -> Any:
        refused = real(self, request, **values)
        if isinstance(refused, OpeningRefused) and "another one has its name" in refused.reason:
            return replace(refused, fate=Fate.NEXT_MANIFEST)
        return refused

    return ask


OFTEN = Settings(Visibility.SNAPSHOT, (TableKind.PLAIN, TableKind.COMPOSITE), 1200, 0.0, 0.004, 2, names=0.012)

#: Rule, circumstances in which it matters, and a seed that is known to miss it (only to be quick).
RULES: list[tuple[Switch, Settings, int]] = [
    (go_on_with_a_table_of_another_shape, OFTEN, 12),
    (forget_that_a_table_was_dropped_while_it_was_read, OFTEN, 17),
    (leave_a_name_that_is_taken_again, OFTEN, 18),
    (say_no_row_of_a_drop, OFTEN, 0),
]


@pytest.mark.parametrize(("switch", "settings", "first"), RULES, ids=name_of)
def test_a_run_without_the_rule_is_noticed(
    switch: Switch, settings: Settings, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_noticed(switch, settings, first, monkeypatch)
