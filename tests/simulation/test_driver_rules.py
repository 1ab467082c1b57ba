"""Every rule of epoch loop, store, sinks' protocol and supervisor is needed: without it the simulation fails.

That nobody relies on names which others left unsynced is said by ``tests/unit/state/test_driver_races.py``: a
failure of power rarely comes in the few steps between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from raycdc.delivery import epoch_recovery as decisions
from raycdc.delivery.epoch_loop import EpochLoop
from raycdc.delivery.epoch_recovery import EpochRecovery
from raycdc.delivery.epoch_writer import EpochWriter, PreparedEpoch
from raycdc.delivery.targets.parked_targets import ParkedTargets, Parks
from raycdc.delivery.targets.target_records import TargetRecords
from raycdc.driver import engine_promotion as hand_over_module
from raycdc.driver.command_queue import CommandQueue
from raycdc.driver.engine_promotion import EnginePromotion, PromotableLauncher
from raycdc.errors import StateError
from raycdc.runtime import supervisor as supervisor_module
from raycdc.runtime.supervisor import Supervisor
from raycdc.segments.reading import verify_segments
from raycdc.sinks import steps
from raycdc.sinks.steps import ExactlyOnceSink
from raycdc.source.tables.parking import CommandDecision
from raycdc.source.tables.table_commands import CommandRules, TableCommand
from raycdc.state import codec
from raycdc.state.drivers.driver_generation import DriverGeneration
from raycdc.state.drivers.generations import Generations, OwnGeneration
from raycdc.state.files.folder import LocalFolder
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.parked import ParkedTarget
from raycdc.state.recovery import STEP_LAST, CommitVector, Frozen
from raycdc.state.store import CheckpointStore
from tests.simulation.missing_rules import NOTICED, Switch, name_of
from tests.support.simulation import SimulationError
from tests.support.simulation.drivers import DriverSettings, DriverSimulation, life
from tests.support.simulation.drivers.disk import ProcessDisk, ProcessObjects

#: Runs after which a rule counts as not needed.
SEEDS_MAX = 60

DEATHS = DriverSettings(deaths=0.004, new_columns=0.02)
POWER = DriverSettings(deaths=0.004, power_failures=0.002)
PAUSES = DriverSettings(deaths=0.001, pauses=0.004)
LOST_SEGMENTS = DriverSettings(deaths=0.004, lost_segments=0.01, answers_lost=0.1)
#: Segments that are lost while some targets have an epoch, and others do not.
FROZEN = DriverSettings(tables=4, steps=2500, deaths=0.02, lost_segments=0.02, whole=False)
STALE = DriverSettings(
    tables=3,
    steps=2500,
    deaths=0.004,
    pauses=0.008,
    new_columns=0.03,
    answers_lost=0.1,
    requests=0.3,
    refusals=0.01,
    whole=False,
)
STALE_AND_LOST = DriverSettings(deaths=0.002, pauses=0.004, lost_segments=0.01, answers_lost=0.05)
ON_STORE = DriverSettings(deaths=0.001, pauses=0.006, on_store=True, replies_lost=0.1)
LOST_PROCESSES = DriverSettings(lost_processes=0.01)
REFUSALS = DriverSettings(deaths=0.003, refusals=0.01, requests=0.3)
LAKES = DriverSettings(deaths=0.006, whole=False, requests=0.2)
COMMANDS = DriverSettings(deaths=0.006, commands=0.02)
HANDED = DriverSettings(deaths=0.001, lost_processes=0.03, hands_over=True, lost_engines=0.01)
HANDED_ALONE = DriverSettings(deaths=0.0, lost_processes=0.0, hands_over=True, lost_engines=0.0)
COMMANDS_ALONE = DriverSettings(deaths=0.0, lost_processes=0.0, commands=0.02)


def drop_epochs_without_asking_the_sink(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TargetRecords, "of", lambda self, manifest: dict.fromkeys(self._targets(manifest)))


def take_a_damaged_segment_for_a_whole_one(patch: pytest.MonkeyPatch) -> None:
    def verify(segments: Any, **how: Any) -> bool:
        return verify_segments(segments, **{**how, "checksum": False})

    patch.setattr(decisions, "verify_segments", verify)


def record_an_epoch_before_its_commits(patch: pytest.MonkeyPatch) -> None:
    real = EpochWriter._commit_tables

    def commit(self: EpochWriter, prepared: PreparedEpoch) -> None:
        self.record(prepared.manifest, prepared.target_batch.routes)
        real(self, prepared)

    patch.setattr(EpochWriter, "_commit_tables", commit)


def go_on_whoever_is_newest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Generations, "require_newest", lambda self, generation, what: None)


def take_ones_own_new_generation_for_another_drivers(patch: pytest.MonkeyPatch) -> None:
    def require(self: Generations, driver: Callable[[], OwnGeneration], what: str) -> None:
        self.require_newest(driver(), what)

    patch.setattr(Generations, "require_driver", require)


def recover_epochs_that_a_successor_sealed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EpochRecovery, "_require_driver", lambda self, manifest: None)


def bar_nothing_before_it_is_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ExactlyOnceSink, "tombstone", lambda self, work: None)


def give_names_to_files_that_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProcessDisk, "sync", lambda self, path: None)


def leave_names_unsynced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProcessDisk, "sync_folder", lambda self, folder: None)


def write_documents_in_place(patch: pytest.MonkeyPatch) -> None:
    def place(self: LocalFolder, name: str, data: bytes, _: Any) -> None:
        path = self.path / name
        self._disk.create(path, [data[: len(data) // 2], data[len(data) // 2 :]])
        self._disk.sync(path)
        self._disk.sync_folder(path.parent)

    patch.setattr(LocalFolder, "_write", place)


def give_the_numbers_of_dropped_epochs_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CheckpointStore, "next_epoch", lambda self: max(self.sealed_epochs(), default=0) + 1)


def share_a_generation_with_who_claimed_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LocalFolder, "create_once", LocalFolder.write)


def replace_a_root_that_others_replaced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProcessObjects, "replace_if_match", lambda self, name, data, _: self.put(name, data))


def take_the_look_and_the_write_for_two_steps(patch: pytest.MonkeyPatch) -> None:
    """As in a folder: the write goes by whatever root there is then."""

    def write(self: CheckpointStore, manifest: Manifest) -> None:
        self.generations.require_newest(manifest.generation, "an epoch")
        data, name = codec.encode(manifest.to_json()), f"epochs/{manifest.epoch:010d}.json"
        if manifest.epoch >= self.next_epoch():
            self._folder.create_once(name, data)
        if self._folder.read(name) != data:
            raise StateError("epoch numbers are used once")

    patch.setattr(CheckpointStore, "write_manifest", write)


def replace_a_coordinator_under_the_same_generation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DriverGeneration, "for_coordinator", lambda self: self._generation)


def change_a_schema_while_the_commit_before_is_under_way(patch: pytest.MonkeyPatch) -> None:
    def prepare(self: EpochLoop, manifest: Manifest, under_way: Any) -> PreparedEpoch:
        prepared = self._writer.prepared(manifest)
        try:
            self._writer.apply(prepared, list(prepared.commits))
            self._writer.stage(prepared, list(prepared.commits))
        finally:
            if under_way is not None:
                under_way.result()
        return prepared

    patch.setattr(EpochLoop, "_prepare", prepare)


def read_the_range_of_a_frozen_epoch_again(patch: pytest.MonkeyPatch) -> None:
    real, drop = EpochRecovery._freeze, CheckpointStore.drop_after

    def freeze(self: EpochRecovery, manifest: Manifest, decision: Frozen) -> list[int]:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(CheckpointStore, "drop_after", lambda self, epoch: drop(self, epoch - 1))
            return real(self, manifest, decision)

    patch.setattr(EpochRecovery, "_freeze", freeze)


def freeze_an_epoch_without_reading_its_tables_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(life, "ask_for_lost_rows", lambda *_: None)


def do_steps_again_that_a_target_holds(patch: pytest.MonkeyPatch) -> None:
    def holds(held: CommitVector | None, goal: CommitVector, _: object) -> bool:
        return held is not None and held.progress > goal.progress

    patch.setattr(steps, "holds", holds)


def take_every_step_for_the_last(patch: pytest.MonkeyPatch) -> None:
    def of(work: Any, _: int) -> steps.CommitMetadata:
        return steps.CommitMetadata(CommitVector(work.epoch, STEP_LAST, work.generation), work.positions)

    patch.setattr(steps.CommitMetadata, "of", of)


def end_the_run_because_of_one_target(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Parks, "__call__", lambda self, reason: False)


def write_rows_behind_an_epoch_that_was_refused(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ParkedTarget, "waits", lambda self, source, manifest: manifest.epoch == self.epoch)


def never_take_a_target_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ParkedTarget, "waits", lambda self, source, manifest: manifest.epoch >= self.epoch)


def record_an_epoch_without_who_refused_it(patch: pytest.MonkeyPatch) -> None:
    entries: Mapping[str, ParkedTarget] = {}
    patch.setattr(ParkedTargets, "entries", property(lambda self: entries))


def replace_no_reader(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Supervisor, "_schedule", lambda self, subtask_id, end: None)


def replace_a_reader_that_still_runs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(supervisor_module, "left_out", lambda name: name == "end_fenced")


def start_over_beside_the_old_coordinator(patch: pytest.MonkeyPatch) -> None:
    def start_over(self: Supervisor, recover: Callable[[], Any]) -> Any:
        return recover()

    patch.setattr(Supervisor, "start_over", start_over)


def delete_a_command_before_its_answer_is_durable(patch: pytest.MonkeyPatch) -> None:
    real = CommandQueue.take

    def take(self: CommandQueue, commands: Sequence[TableCommand], rules: CommandRules) -> list[CommandDecision]:
        for command in commands:
            self._folder.delete(f"commands/{command.id}.json")
        return real(self, commands, rules)

    patch.setattr(CommandQueue, "take", take)


def ask_for_what_a_coordinator_that_reads_will_not_see(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(life.Interrupted, "start_over", lambda self, recover: recover())


def end_the_run_for_an_engine_that_died(patch: pytest.MonkeyPatch) -> None:
    real = EnginePromotion._prepare

    def prepare(self: EnginePromotion) -> None:
        try:
            real(self)
        except Exception as error:  # noqa: BLE001 - whatever it is
            self._side.fail(error)

    patch.setattr(EnginePromotion, "_prepare", prepare)


def hand_over_beside_the_old_readers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(life.Interrupted, "start_over", lambda self, recover: recover())


def hand_over_before_the_old_readers_have_ended(patch: pytest.MonkeyPatch) -> None:
    real = EnginePromotion._promote

    def promote(self: EnginePromotion) -> None:
        self._launcher.promote()
        self._threads.wait(self._closed, 1.0)
        real(self)

    patch.setattr(EnginePromotion, "_promote", promote)


def hand_over_without_a_manifest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hand_over_module, "COMMIT_S", 0.0)
    patch.setattr(EnginePromotion, "_wait_for_epoch", lambda self: None)


def lose_the_engine_of_a_run_for_good(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PromotableLauncher, "renew", lambda self: False)


#: Rule, circumstances in which it matters, and a seed that is known to miss it (only to be quick).
RULES: list[tuple[Switch, DriverSettings, int]] = [
    (drop_epochs_without_asking_the_sink, LOST_SEGMENTS, 0),
    (take_a_damaged_segment_for_a_whole_one, LOST_SEGMENTS, 8),
    (record_an_epoch_before_its_commits, DEATHS, 0),
    (go_on_whoever_is_newest, PAUSES, 0),
    (take_ones_own_new_generation_for_another_drivers, LOST_PROCESSES, 41),
    (recover_epochs_that_a_successor_sealed, STALE, 7),
    (bar_nothing_before_it_is_dropped, STALE_AND_LOST, 33),
    (give_names_to_files_that_are_not_synced, POWER, 0),
    (leave_names_unsynced, POWER, 0),
    (write_documents_in_place, DEATHS, 7),
    (give_the_numbers_of_dropped_epochs_again, LOST_SEGMENTS, 0),
    (share_a_generation_with_who_claimed_it, PAUSES, 105),
    (replace_a_root_that_others_replaced, ON_STORE, 0),
    (take_the_look_and_the_write_for_two_steps, ON_STORE, 18),
    (replace_a_coordinator_under_the_same_generation, LOST_PROCESSES, 0),
    (change_a_schema_while_the_commit_before_is_under_way, DEATHS, 9),
    (read_the_range_of_a_frozen_epoch_again, FROZEN, 140),
    (freeze_an_epoch_without_reading_its_tables_anew, FROZEN, 140),
    (do_steps_again_that_a_target_holds, LAKES, 7),
    (take_every_step_for_the_last, LAKES, 0),
    (end_the_run_because_of_one_target, REFUSALS, 0),
    (write_rows_behind_an_epoch_that_was_refused, REFUSALS, 0),
    (never_take_a_target_back, REFUSALS, 0),
    (record_an_epoch_without_who_refused_it, REFUSALS, 0),
    (replace_no_reader, LOST_PROCESSES, 154),
    (replace_a_reader_that_still_runs, LOST_PROCESSES, 0),
    (start_over_beside_the_old_coordinator, LOST_SEGMENTS, 6),
    (delete_a_command_before_its_answer_is_durable, COMMANDS, 0),
    (ask_for_what_a_coordinator_that_reads_will_not_see, COMMANDS_ALONE, 0),
    (end_the_run_for_an_engine_that_died, HANDED, 0),
    (hand_over_beside_the_old_readers, HANDED, 17),
    (hand_over_before_the_old_readers_have_ended, HANDED, 10),
    (hand_over_without_a_manifest, HANDED_ALONE, 0),
    (replace_a_coordinator_under_the_same_generation, HANDED_ALONE, 0),
    (lose_the_engine_of_a_run_for_good, HANDED, 2),
]


def is_noticed(circumstances: DriverSettings, first: int) -> bool:
    """Whether one of the runs from seed `first` on breaks a promise, or is refused by name."""
    for seed in range(first, first + SEEDS_MAX):
        try:
            DriverSimulation(seed, settings=circumstances).run()
        except SimulationError as error:
            if error.__cause__ is None or isinstance(error.__cause__, NOTICED):
                return True
    return False


@pytest.mark.parametrize(("switch", "circumstances", "first"), RULES, ids=name_of)
def test_a_run_without_the_rule_is_noticed(
    switch: Switch, circumstances: DriverSettings, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch(monkeypatch)
    assert is_noticed(circumstances, first), f"{SEEDS_MAX} runs passed although drivers would {name_of(switch)}"
