"""A job over many partitions keeps its promises under random faults, moves and changes of the number of readers.

As in `test_rules`, each rule that matters is switched off once, and must be missed.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from raycdc.source.partitions.assigner import PartitionAssigner, distribute, moves
from raycdc.source.partitions.partition_source_reader import PartitionSet
from raycdc.source.protocol.coordination import EnumeratorContext
from raycdc.source.protocol.coordinator import SourceCoordinator
from raycdc.source.protocol.source_event import SplitsRemoved
from raycdc.source.split import PartitionSplit, SourceSplit
from tests.support.simulation import SimulationError
from tests.support.simulation.partition_job import PartitionJob, PartitionSettings

#: Seeds of an ordinary test run; ``RAYCDC_SIM_SEEDS`` as in `test_simulation`.
SEEDS = 60
#: Runs after which a rule counts as not needed.
SEEDS_MAX = 120

Switch = Callable[[pytest.MonkeyPatch], None]


def seeds() -> range:
    first, dash, last = os.environ.get("RAYCDC_SIM_SEEDS", str(SEEDS)).partition("-")
    return range(int(first), int(last) + 1) if dash else range(int(first))


@pytest.mark.parametrize("seed", seeds())
def test_every_record_of_every_partition_is_sealed_once_and_in_order(seed: int) -> None:
    PartitionJob(seed).run()


def test_partitions_really_move_and_readers_really_leave() -> None:
    """A simulation that never does what it is for proves nothing."""
    calm = PartitionSettings(readers=3, partitions=7, steps=1500, network_faults=0.05, crashes=0.0, scaling=0.02)
    left, moved = 0, 0
    for seed in range(5):
        job = PartitionJob(seed, settings=calm)
        job.trace = job.trace.__class__(maxlen=None)
        job.run()
        left += sum("has left" in event for event in job.trace)
        owners: dict[str, set[str]] = {}
        for name, rows in job.spool.items():
            for partition, _ in rows:
                owners.setdefault(partition, set()).add(name.rpartition("-")[0])
        moved += sum(len(readers) > 1 for readers in owners.values())
    assert left > 5
    assert moved > 5


# -- without a rule --------------------------------------------------------------------------------------------------


def let_go_before_the_cut(patch: pytest.MonkeyPatch) -> None:
    def remove(self: PartitionSet[Any], split_ids: Sequence[str]) -> None:
        states = {s: self._state_of(self._splits.pop(s)) if s in self._splits else None for s in split_ids}
        self._send(SplitsRemoved(states))

    patch.setattr(PartitionSet, "remove", remove)


def read_on_what_somebody_wants_back(patch: pytest.MonkeyPatch) -> None:
    """Harmless: it is read until the cut and sealed there. Only what follows the cut must not be."""
    real = PartitionSet.after_cut

    def after_cut(self: PartitionSet[Any]) -> None:
        kept = {split_id: self._splits[split_id] for split_id in self._leaving}
        real(self)
        self._splits.update(kept)

    patch.setattr(PartitionSet, "after_cut", after_cut)


def leave_what_leaves_out_of_the_report(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionSet, "states", lambda self: {s: self._state_of(v) for s, v in self.active()})


def give_back_before_the_manifest(patch: pytest.MonkeyPatch) -> None:
    def give_up(self: SourceCoordinator, subtask_id: int, splits: Sequence[SourceSplit]) -> None:
        states = self.epochs.splits
        back = [PartitionSplit(s.split_id, states[s.split_id]) for s in splits if isinstance(s, PartitionSplit)]
        if back:
            self._enumerator.add_splits_back(back, subtask_id)

    patch.setattr(SourceCoordinator, "_give_up", give_up)


def forget_what_a_dead_reader_had(patch: pytest.MonkeyPatch) -> None:
    real = SourceCoordinator._lose

    def lose(self: SourceCoordinator, subtask_id: int, reason: str) -> None:
        self.readers[subtask_id].splits.clear()
        real(self, subtask_id, reason)

    patch.setattr(SourceCoordinator, "_lose", lose)


def give_a_moving_split_away_at_once(patch: pytest.MonkeyPatch) -> None:
    real = PartitionAssigner.balance

    def balance(self: PartitionAssigner) -> None:
        real(self)
        for split_id in list(self._moving):
            self._owners.pop(split_id, None)
            self._waiting.add(split_id)
        self.give()

    patch.setattr(PartitionAssigner, "balance", balance)


def take_what_was_fetched_before_it_left(patch: pytest.MonkeyPatch) -> None:
    def read(self: PartitionSet[Any], split_id: str, addition: int) -> Any:
        return dict(self.active()).get(split_id)

    patch.setattr(PartitionSet, "read", read)


def let_readers_leave_with_their_splits(patch: pytest.MonkeyPatch) -> None:
    real = SourceCoordinator.retire

    def retire(self: SourceCoordinator, subtask_id: int) -> bool:
        reader = self.readers.get(subtask_id)
        if reader is not None:
            reader.splits.clear()
        return real(self, subtask_id)

    patch.setattr(SourceCoordinator, "retire", retire)


def give_splits_to_readers_that_leave(patch: pytest.MonkeyPatch) -> None:
    def registered(self: EnumeratorContext) -> list[int]:
        return list(self._readers.registered)

    patch.setattr(EnumeratorContext, "registered_readers", registered)


MOVES = PartitionSettings(readers=3, partitions=7, steps=900, network_faults=0.05, crashes=0.003, scaling=0.03)
CRASHES = PartitionSettings(readers=3, partitions=7, steps=900, network_faults=0.05, crashes=0.012, scaling=0.0)
SHRINKS = PartitionSettings(readers=2, partitions=3, steps=900, network_faults=0.0, crashes=0.0, scaling=0.03)
COMES_BACK = PartitionSettings(readers=1, partitions=3, steps=900, network_faults=0.0, crashes=0.002, scaling=0.05)

RULES: list[tuple[Switch, PartitionSettings]] = [
    (let_go_before_the_cut, MOVES),
    (read_on_what_somebody_wants_back, MOVES),
    (leave_what_leaves_out_of_the_report, MOVES),
    (give_back_before_the_manifest, CRASHES),
    (forget_what_a_dead_reader_had, CRASHES),
    (give_a_moving_split_away_at_once, MOVES),
    (take_what_was_fetched_before_it_left, COMES_BACK),
    (let_readers_leave_with_their_splits, SHRINKS),
    (give_splits_to_readers_that_leave, SHRINKS),
]


@pytest.mark.parametrize(("switch", "circumstances"), RULES, ids=lambda v: v.__name__ if callable(v) else "")
def test_a_run_without_the_rule_is_noticed(
    switch: Switch, circumstances: PartitionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch(monkeypatch)
    for seed in itertools.count():
        assert seed < SEEDS_MAX, f"{SEEDS_MAX} runs passed although the job would {switch.__name__}"
        try:
            PartitionJob(seed, settings=circumstances).run()
        except SimulationError:
            return


# -- who gets what ---------------------------------------------------------------------------------------------------


def test_splits_go_to_the_readers_that_have_the_fewest() -> None:
    assert distribute(["a", "b", "c"], {1: ["x", "y"], 2: []}) == {2: ["a", "b"], 1: ["c"]}


def test_as_few_splits_move_as_make_it_even() -> None:
    assert moves({1: ["a", "b", "c", "d"], 2: []}) == {"d": (1, 2), "c": (1, 2)}
    assert moves({1: ["a", "b"], 2: ["c"]}) == {}
    assert moves({}) == {}
