"""Backfills leave targets as the log alone would leave them, and repair them; each of their rules is needed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from raycdc.source.snapshot.handoff import as_of
from raycdc.source.snapshot.handoff.hand_off import BackfillChunk, BackfillChunks
from raycdc.source.snapshot.rereading.backfill import Backfills
from raycdc.source.snapshot.rereading.backfill_keys import DeletedKeys
from raycdc.source.split import SnapshotSplit
from raycdc.source.tables.parking import Requests
from raycdc.state.manifests.manifest import Segment
from tests.simulation.missing_rules import Switch, name_of, require_noticed, select_at_once
from tests.simulation.test_simulation import seeds
from tests.support.simulation import Settings, Simulation, TableKind, Visibility
from tests.support.simulation.chunk_source import SimChunkSource

#: Seeds of an ordinary test run.
BACKFILL_SEEDS = 8


@pytest.mark.parametrize("seed", seeds(BACKFILL_SEEDS))
def test_backfills_beside_the_log_change_nothing_that_is_right(seed: int) -> None:
    drawn = Settings.of(random.Random(seed), 800)
    Simulation(seed, settings=replace(drawn, backfills=0.01)).run()


@pytest.mark.parametrize("seed", seeds(BACKFILL_SEEDS))
def test_what_others_did_to_targets_is_repaired_while_rows_change(seed: int) -> None:
    drawn = Settings.of(random.Random(seed), 800)
    Simulation(seed, settings=replace(drawn, damages=True)).run()


def settings(visibility: Visibility = Visibility.WAIT, *kinds: TableKind, crashes: float = 0.0) -> Settings:
    return Settings(visibility, kinds or (TableKind.PLAIN,), 3000, 0.0, crashes, 2, backfills=0.002)


BESIDE = settings()
OFTEN = replace(settings(), steps=4000, backfills=0.004)
DAMAGES = replace(settings(), steps=900, backfills=0.0, damages=True)


def put_older_rows_over_those_of_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BackfillChunk, "changed", lambda self: iter(()))


def forget_what_passed_while_the_chunk_was_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BackfillChunks, "passed", lambda self, rows: None)


def forget_what_was_told_after_the_first_fold(patch: pytest.MonkeyPatch) -> None:
    real = BackfillChunk.changed
    patch.setattr(BackfillChunk, "changed", lambda self: real(self) if self.left_out < 0 else iter(()))


def take_the_rows_of_a_cut_epoch_for_those_of_the_open_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BackfillChunks, "begin_epoch", lambda self: None)


def select_before_the_opening_is_visible(patch: pytest.MonkeyPatch) -> None:
    select_at_once(patch)


def let_rows_of_a_backfill_be_appended(patch: pytest.MonkeyPatch) -> None:
    real = SimChunkSource._write

    def write(self: SimChunkSource, split: SnapshotSplit, document: Any, rows: Any) -> tuple[Segment, ...]:
        return tuple(replace(segment, kind="snapshot") for segment in real(self, split, document, rows))

    patch.setattr(SimChunkSource, "_write", write)


def give_several_chunks_of_a_table_out_at_once(patch: pytest.MonkeyPatch) -> None:
    def next_of(self: as_of.Turns, pending: Any, *_: Any) -> SnapshotSplit | None:
        return pending[0] if pending else None

    patch.setattr(as_of.Turns, "next_of", next_of)


def delete_keys_that_the_source_has(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeletedKeys, "observe", lambda self, batch: None)


def delete_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeletedKeys, "deleted", lambda self, *, first: None)


def forget_backfills_that_no_manifest_says_are_over(patch: pytest.MonkeyPatch) -> None:
    real = Requests.left

    def left(self: Requests, state: Any, over: Any = ()) -> Requests:
        return replace(real(self, state, over), rows={})

    patch.setattr(Requests, "left", left)


def forget_the_chunks_that_are_left(patch: pytest.MonkeyPatch) -> None:
    real = Backfills.sealed

    def sealed(self: Backfills) -> Any:
        return tuple(replace(backfill, queue=(), planner=None) for backfill in real(self))

    patch.setattr(Backfills, "sealed", sealed)


RULES: list[tuple[Switch, Settings, int]] = [
    (put_older_rows_over_those_of_the_log, OFTEN, 21),
    (forget_what_passed_while_the_chunk_was_read, OFTEN, 21),
    (forget_what_was_told_after_the_first_fold, OFTEN, 52),
    (take_the_rows_of_a_cut_epoch_for_those_of_the_open_one, BESIDE, 17),
    (select_before_the_opening_is_visible, BESIDE, 0),
    (let_rows_of_a_backfill_be_appended, replace(BESIDE, steps=900, backfills=0.012), 0),
    (give_several_chunks_of_a_table_out_at_once, replace(settings(crashes=0.008), steps=900, backfills=0.012), 0),
    (delete_keys_that_the_source_has, DAMAGES, 5),
    (delete_nothing, DAMAGES, 5),
    (forget_backfills_that_no_manifest_says_are_over, DAMAGES, 18),
    (forget_the_chunks_that_are_left, replace(DAMAGES, crashes=0.02), 1),
]


@pytest.mark.parametrize(("switch", "circumstances", "first"), RULES, ids=name_of)
def test_a_run_without_the_rule_is_noticed(
    switch: Switch, circumstances: Settings, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_noticed(switch, circumstances, first, monkeypatch)
