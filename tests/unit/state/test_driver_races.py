"""What falls between a look and an act of a driver: another driver, its own supervisor, or a power failure.

The simulation of drivers found each of these (`tests.support.simulation.drivers`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from raycdc.delivery.record_keeper import CommitRecordWriter
from raycdc.delivery.targets.parked_targets import ParkedTargets, Parks
from raycdc.errors import FencedError, TargetModifiedError
from raycdc.model import TableId
from raycdc.state.drivers.generations import Generations, OwnGeneration
from raycdc.state.files.folder import LocalFolder
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.opaque import EnumeratorState, Position, SealedSplit
from raycdc.state.parked import ParkedTarget
from raycdc.state.store import KEEP_COMMITTED, CheckpointStore, CommitRecord
from raycdc.testing.epochs import EpochScript, simple_schema
from tests.epochs.sink_world import new_world
from tests.support.simulation.drivers.disk import MemoryDisk, ProcessDisk
from tests.support.simulation.drivers.fibers import Fibers
from tests.support.simulation.network import SimulatedClock

ORDERS = TableId("shop", "orders")


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "state", pipeline="shop")


def rising(store: CheckpointStore, times: int) -> Callable[[], OwnGeneration]:
    """A driver whose supervisor raises its generation so often, each time right after somebody asked for it."""
    own = [store.generations.next()]
    left = iter(range(times))

    def generation() -> OwnGeneration:
        asked = own[0]
        if next(left, None) is not None:
            own[0] = store.generations.raised(own[0])
        return asked

    return generation


def test_a_generation_that_rises_by_the_drivers_own_act_is_no_other_drivers(store: CheckpointStore) -> None:
    store.generations.require_driver(rising(store, 1), "the commit")
    other = store.generations.next()
    with pytest.raises(FencedError):
        store.generations.require_driver(lambda: OwnGeneration(other - 1), "the commit")


def test_a_driver_whose_successors_number_rose_on_raises_none(store: CheckpointStore) -> None:
    own = store.generations.next()
    newest = store.generations.raised(store.generations.next())
    with pytest.raises(FencedError):
        store.generations.raised(own)
    assert store.generations.newest() == newest


def test_a_record_is_written_however_often_the_generation_rises(store: CheckpointStore) -> None:
    script = EpochScript(store)
    script.table("shop.orders").insert({"id": 1, "name": "a", "qty": 1})
    manifest = script.seal()
    keeper = CommitRecordWriter(
        store, ParkedTargets({}, Parks()), generation=rising(store, 4), on_parked=lambda _: None
    )
    keeper.complete(manifest, {ORDERS: (ORDERS,)}, {})
    record = store.last_commit()
    assert record is not None
    assert (record.epoch, record.tables) == (1, {"shop.orders": (1, 3)})


def manifest_of(epoch: int) -> Manifest:
    before = SealedSplit.from_json({"position": {"offset": epoch}})
    return Manifest(epoch, 1, 0, {"log": before}, {"log": SealedSplit.from_json({})}, EnumeratorState.from_json({}))


def refused(parked: ParkedTargets, epoch: int) -> ParkedTarget:
    parked.park(ORDERS, [ORDERS], manifest_of(epoch), TargetModifiedError(f"refuses {epoch}"), None)
    return parked.entries["shop.orders"]


@pytest.mark.parametrize("order", [(3, 4), (4, 3)])
def test_a_target_that_refuses_two_epochs_at_once_does_without_the_first(order: tuple[int, int]) -> None:
    """One is committed while the next is staged, and each may be refused before the other."""
    parked = ParkedTargets({}, Parks())
    entry = [refused(parked, epoch) for epoch in order][-1]
    assert (entry.epoch, entry.positions) == (3, {"log": Position.from_json({"offset": 3})})
    assert "refuses 3" in entry.text
    assert parked.taking_part(manifest_of(3), {ORDERS: [ORDERS]}) == {}


class FailingPower(random.Random):
    """Nothing is left of what was not synced."""

    def randint(self, a: int, b: int) -> int:
        return a


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def opened(disk: MemoryDisk, tmp_path: Path) -> Callable[[], CheckpointStore]:
    """Opens the state on `disk`, as another process."""
    numbers = count(1)
    (tmp_path / "state" / "spool").mkdir(parents=True)
    return lambda: CheckpointStore(
        tmp_path / "state", disk=disk.of(Fibers(random.Random(next(numbers)), SimulatedClock()))
    )


def without_syncing(write: Callable[[], object]) -> None:
    """`write`, by who dies before the folder is synced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProcessDisk, "sync_folder", lambda self, folder: None)
        write()


def test_an_epoch_that_a_start_finds_survives_the_power(
    disk: MemoryDisk, opened: Callable[[], CheckpointStore]
) -> None:
    script = EpochScript(opened())
    script.table("shop.orders").insert({"id": 1, "name": "a", "qty": 1})
    without_syncing(script.seal)
    found = [manifest.epoch for manifest in opened().manifests()]
    disk.fail(FailingPower())
    assert opened().sealed_epochs() == found == [1]


def test_a_record_that_a_start_finds_survives_the_power(
    disk: MemoryDisk, opened: Callable[[], CheckpointStore]
) -> None:
    store = opened()
    generation = store.generations.next()
    without_syncing(lambda: store.write_commit(CommitRecord(1, generation, 0, {})))
    found = opened().last_commit()
    disk.fail(FailingPower())
    assert found is not None
    assert opened().last_commit() == found


def test_a_document_that_was_written_survives_the_power_whole(
    disk: MemoryDisk, opened: Callable[[], CheckpointStore]
) -> None:
    opened().documents.write("bad_rows.json", {"epoch": 7})
    disk.fail(FailingPower())
    assert opened().documents.read("bad_rows.json") == {"version": 1, "epoch": 7}


def test_an_epoch_that_was_dropped_stays_dropped_without_power(
    disk: MemoryDisk, opened: Callable[[], CheckpointStore]
) -> None:
    script = EpochScript(opened())
    script.table("shop.orders").insert({"id": 1, "name": "a", "qty": 1})
    script.seal()
    opened().drop_after(0)
    disk.fail(FailingPower())
    assert (opened().sealed_epochs(), opened().next_epoch()) == ([], 2)


def test_a_drop_that_is_interrupted_leaves_no_epoch_behind_a_gap(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = EpochScript(store)
    for number in (1, 2, 3):
        script.table("shop.orders").insert({"id": number, "name": "a", "qty": 1})
        script.seal()
    real, renames = LocalFolder.rename, list[str]()

    def rename(folder: LocalFolder, name: str, to: str) -> None:
        if renames:
            raise RuntimeError("the process ends here")
        renames.append(name)
        real(folder, name, to)

    monkeypatch.setattr(LocalFolder, "rename", rename)
    with pytest.raises(RuntimeError):
        store.drop_after(0)
    assert store.sealed_epochs() == [1, 2]


def test_a_schema_that_an_epoch_refers_to_survives_the_power(
    disk: MemoryDisk, opened: Callable[[], CheckpointStore]
) -> None:
    without_syncing(lambda: opened().put_schema(simple_schema()))
    fingerprint = opened().put_schema(simple_schema())
    disk.fail(FailingPower())
    assert opened().schema(fingerprint) == simple_schema()


def test_a_recovery_leaves_an_epoch_alone_that_a_successor_sealed(tmp_path: Path) -> None:
    world = new_world("jsonl", tmp_path)
    world.script.table("shop.orders").insert({"id": 1, "name": "a", "qty": 1})
    stale = world.script.generation
    loop = world.loop(generation=lambda: stale)
    world.script.generation = world.store.generations.next()
    world.script.seal()
    with pytest.raises(FencedError, match="the recovery of epoch 1 carries generation"):
        loop.recover()
    assert world.sink().committed(ORDERS) is None


def test_a_recovery_bars_nothing_of_an_epoch_that_a_successor_sealed(tmp_path: Path) -> None:
    world = new_world("jsonl", tmp_path)
    world.script.table("shop.orders").insert({"id": 1, "name": "a", "qty": 1})
    stale = world.script.generation
    loop = world.loop(generation=lambda: stale)
    world.script.generation = world.store.generations.next()
    for segment in world.script.seal().segments:
        (world.store.spool / segment.name).unlink()
    with pytest.raises(FencedError):
        loop.recover()
    assert world.sink().committed(ORDERS) is None


def test_a_first_start_that_another_one_overtakes_finds_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, looks = LocalFolder.read, list[str]()

    def read(folder: LocalFolder, name: str) -> bytes | None:
        found = real(folder, name)
        if name == "meta.json" and not looks:
            looks.append(name)
            script = EpochScript(CheckpointStore(tmp_path / "state", pipeline="shop"))
            script.table("shop.orders").insert({"id": 1, "name": "a", "qty": 1})
            script.seal()
        return found

    monkeypatch.setattr(LocalFolder, "read", read)
    assert CheckpointStore(tmp_path / "state", pipeline="shop").sealed_epochs() == [1]


def stopped_behind(check: str, acts: Callable[[], object], patch: pytest.MonkeyPatch) -> None:
    """The next one that passes `check` of its generation stops there, and `acts` come before it wakes up."""
    real, stops = getattr(Generations, check), list[str]()

    def checked(generations: Generations, *args: object) -> None:
        real(generations, *args)
        if not stops:
            stops.append(check)
            acts()

    patch.setattr(Generations, check, checked)


def test_a_driver_that_wakes_up_in_its_record_does_not_write_over_its_successors(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale, other = store.generations.next(), CheckpointStore(store.path)
    parked = dict(refused_entries(3))

    def takes_over() -> None:
        own = other.generations.next()
        other.write_commit(CommitRecord(3, own, 0, {"shop.orders": (2, 3)}, parked=parked))

    stopped_behind("require_newest", takes_over, monkeypatch)
    store.write_commit(CommitRecord(3, stale, 0, {"shop.orders": (3, 3)}))
    record = other.last_commit()
    assert record is not None
    assert (record.generation, record.tables, record.parked) == (stale + 1, {"shop.orders": (2, 3)}, parked)


def test_a_record_that_a_stale_driver_makes_first_gives_way_to_its_successors(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale, other = store.generations.next(), CheckpointStore(store.path)
    own: list[OwnGeneration] = []
    stopped_behind("require_newest", lambda: own.append(other.generations.next()), monkeypatch)
    store.write_commit(CommitRecord(3, stale, 0, {"shop.orders": (3, 3)}))
    for tables in ({"shop.orders": (2, 3)}, {"shop.orders": (3, 1)}):
        other.write_commit(CommitRecord(3, own[0], 0, tables))
        record = other.last_commit()
        assert record is not None
        assert (record.generation, record.tables) == (own[0], tables)


def test_records_of_old_epochs_go_with_all_that_replaced_them(store: CheckpointStore) -> None:
    generation = store.generations.next()
    for epoch in range(1, KEEP_COMMITTED + 4):
        for place in (1, 3):
            store.write_commit(CommitRecord(epoch, generation, 0, {"shop.orders": (epoch, place)}))
    left = {path.name[:10] for path in (store.path / "commits").iterdir()}
    assert left == {f"{epoch:010d}" for epoch in range(4, KEEP_COMMITTED + 4)}


def refused_entries(epoch: int) -> dict[str, ParkedTarget]:
    parked = ParkedTargets({}, Parks())
    refused(parked, epoch)
    return dict(parked.entries)
