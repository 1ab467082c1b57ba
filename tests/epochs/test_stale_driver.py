"""Drivers that should not write any more, and states that fell behind their targets: refused, and by what name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from raycdc.core.failpoints import reach as real
from raycdc.errors import FencedError, SinkError
from raycdc.state.store import CheckpointStore
from tests.epochs.sink_world import World, new_world, play

KINDS = ("jsonl", "delta-upsert", "iceberg-changelog")


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return new_world(request.param, tmp_path)


def at(monkeypatch: pytest.MonkeyPatch, point: str, act: Callable[[], None]) -> None:
    """`act`, once, when the epoch loop reaches `point`."""
    done: list[str] = []

    def reach(name: str) -> None:
        if name == point and not done:
            done.append(name)
            act()
        real(name)

    for module in ("epoch_loop", "epoch_writer"):
        monkeypatch.setattr(f"raycdc.delivery.{module}.reach", reach)


@pytest.mark.parametrize("point", ["before_stage", "before_commit", "between_tables", "after_last_commit"])
def test_a_driver_whose_lease_was_replaced_commits_and_records_nothing_more(
    world: World, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    play(world)
    world.foresees = False
    own = world.script.generation
    stale = world.loop(world.sink(), generation=lambda: own)

    def take_over() -> None:
        # Another host: neither the lease's file nor its lock is ours. It writes all that is sealed.
        (world.store.path / "lease").unlink(missing_ok=True)
        world.restart()

    at(monkeypatch, point, take_over)
    with pytest.raises(FencedError, match=r"another driver took over|newer driver"):
        stale.run()
    record = world.store.last_commit()
    assert record is not None
    assert (record.epoch, record.generation) == (3, 2)
    world.check()


def copy_of(store: CheckpointStore) -> Path:
    return Path(shutil.copytree(store.path, store.path.with_name("copy")))


def restore(world: World, copy: Path) -> None:
    shutil.rmtree(world.store.path)
    shutil.copytree(copy, world.store.path)
    world.script.store = CheckpointStore(world.store.path)


def sealed_again(world: World) -> None:
    """The restored state reads on, and dies before it commits: its numbers are those that the target has."""
    world.script.generation = world.store.generations.next()
    for table in world.script.tables.values():
        table.snapshot, table.log, table.changes = [], [], []
    world.script.random_epoch(operations=5)
    world.script.seal()


@pytest.mark.parametrize("number", [1, 2])
def test_a_state_restored_from_an_older_copy_is_refused_and_a_new_one_may_take_over(world: World, number: int) -> None:
    play(world, epochs=2, final=False)
    world.script.seal(final=True)
    world.loop().run()
    copy = copy_of(world.store)
    for _ in range(number):
        world.script.random_epoch(operations=10)
        world.script.seal(final=True)
        world.restart()
    restore(world, copy)
    with pytest.raises(SinkError, match=r"state was restored from an older copy.*Bring the newer state back, or begin"):
        world.restart()


def test_a_restored_state_whose_numbers_have_caught_up_with_the_target_is_refused(world: World) -> None:
    play(world, epochs=2)
    world.loop().run()
    copy = copy_of(world.store)
    world.script.random_epoch(operations=10)
    world.script.seal(final=True)
    world.restart()
    restore(world, copy)
    # As many starts of the copy as of the original: its numbers say nothing, what it sealed does.
    world.store.generations.next()
    sealed_again(world)
    with pytest.raises(SinkError, match="holds an epoch 3 that this state did not write"):
        world.restart()


def test_a_state_copied_before_its_first_epoch_is_refused_when_it_meets_its_targets(world: World) -> None:
    copy = copy_of(world.store)
    play(world)
    world.loop().run()
    restore(world, copy)
    world.script.tables.clear()
    world.script.generation = world.store.generations.next()
    loop = world.loop()
    loop.recover()
    play(world)
    with pytest.raises(SinkError, match=r"holds an epoch 3 that this state did not write.* pipeline\.on_existing"):
        loop.run()


def test_the_way_out_of_a_restored_state_is_another_one(world: World) -> None:
    play(world)
    world.loop().run()
    again = world.again()
    again.script.store = CheckpointStore(world.root / "another", pipeline="shop")
    again.script.generation = again.store.generations.next()
    play(again)
    again.restart(sink=again.sink(on_existing="replace"))
    again.check()
