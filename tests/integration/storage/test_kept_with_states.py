"""What is kept with a state on an object store: dead letters, known rows, answers of lookups. Each exactly once."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raycdc.core.failpoints import FailpointError
from raycdc.delivery.lookup.joiner import LookupSegments, answers_of
from raycdc.delivery.outcomes import Recovery
from raycdc.delivery.ports import Routing
from raycdc.delivery.rows.bad_row_filter import BadRowFilter
from raycdc.delivery.rows.row_store import RowStore
from raycdc.errors import FencedError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.rules.routes import Router
from raycdc.sandbox.servers import MotoServer
from raycdc.segments import run_in_process
from raycdc.segments.bad_rows import DEAD_LETTER, BadRecords
from raycdc.sinks.api import SinkContext
from raycdc.state.drivers.driver_generation import DriverGeneration
from raycdc.state.drivers.generations import OwnGeneration
from raycdc.state.location import StateLocation
from raycdc.state.store import CheckpointStore
from raycdc.storage.url import ObjectLocation, StoreKind
from raycdc.testing.epochs import EpochScript
from tests.epochs.sink_world import World, new_world, world_of
from tests.epochs.test_epoch_loop_known import check, play
from tests.support.servers.store_proxy import Fault, Rule, StoreProxy

pytestmark = pytest.mark.server

STUMBLES = (
    Rule(Fault.LOST_REPLY, path=r"/state\.json$", conditional=True, times=2, skip=4),
    Rule(Fault.CONFLICT, path=r"/state\.json$", conditional=True, times=1, skip=9),
)


@pytest.fixture
def proxy(moto: MotoServer) -> Iterator[StoreProxy]:
    with StoreProxy(moto) as proxy:
        yield proxy


class Machine:
    """A machine with the state's documents on the store, and a folder `work` of its own."""

    def __init__(self, proxy: StoreProxy, bucket: str, folder: Path) -> None:
        self.settings = proxy.settings
        self._place = ObjectLocation(StoreKind.S3, bucket, uuid.uuid4().hex)
        self._folder = folder

    def store(self, work: str = "work") -> CheckpointStore:
        return CheckpointStore(StateLocation(self._place, self._folder / work, self.settings), pipeline="shop")


@pytest.fixture
def machine(proxy: StoreProxy, moto: MotoServer, tmp_path: Path) -> Machine:
    return Machine(proxy, moto.create_bucket("kept"), tmp_path)


def letters(store: CheckpointStore) -> list[int]:
    """The keys of all rows that people find."""
    folder = store.documents.folder
    found = [folder.read(f"dead_letters/{name}") or b"" for name in folder.list("dead_letters")]
    return sorted(json.loads(line)["row"]["id"] for data in found for line in data.decode().splitlines())


def with_letters(world: World, generation: int) -> dict[str, Any]:
    """The parts of a loop of a driver that began in that generation."""
    folder = str(world.store.path / "dead_letters")
    records = BadRecords(DEAD_LETTER, folder, upsert=True, driver=generation)
    sieve = BadRowFilter(records, world.store.path / "derived")
    return {"routing": replace(world.routing, bad_row_filter=sieve, records=records)}


def refusing(request: pytest.FixtureRequest, root: Path, store: CheckpointStore) -> World:
    """Two epochs of which the target can never have some rows."""
    world = world_of(request, "mysql-upsert", root)
    world.script = EpochScript(store, seed=7)
    columns = Column("id", LogicalType(TypeKind.INT64), nullable=False), Column("v", LogicalType(TypeKind.FLOAT64))
    table = world.script.table("shop.t", TableSchema(columns, ("id",)))
    for first in (1, 11):
        for number, value in enumerate((1.0, float("inf"), 2.0, float("inf")), start=first):
            table.insert({"id": number, "v": value})
        world.script.seal(final=first > 1)
    return world


@pytest.mark.parametrize("point", ["in_commit", "after_last_commit", "after_record", "after_root"])
def test_each_bad_row_is_kept_once_wherever_the_driver_dies(
    request: pytest.FixtureRequest,
    proxy: StoreProxy,
    machine: Machine,
    tmp_path: Path,
    fail_at: Callable[[str, int], None],
    point: str,
) -> None:
    world = refusing(request, tmp_path, machine.store())
    DriverGeneration(world.store, OwnGeneration(world.script.generation))
    fail_at(point, 7 if point == "after_root" else 2)
    with proxy.play(*STUMBLES):
        with pytest.raises(FailpointError):
            world.loop(**with_letters(world, world.script.generation)).run()
        world.script.generation = DriverGeneration(world.store).generation()
        loop = world.loop(**with_letters(world, world.script.generation))
        loop.recover()
        if loop.committed < 2:
            loop.run()
    rows = sorted((row["id"], row["v"]) for row in world.rows(world.script.tables[TableId("shop", "t")]))
    assert rows == [(1, 1.0), (3, 2.0), (11, 1.0), (13, 2.0)]
    assert letters(world.store) == [2, 4, 12, 14]
    assert not world.store.documents.folder.list("letters")
    assert not list((world.store.path / "dead_letters").iterdir())


def test_another_machine_shows_what_was_kept_by_one_that_is_lost(
    request: pytest.FixtureRequest, machine: Machine, tmp_path: Path, fail_at: Callable[[str, int], None]
) -> None:
    world = refusing(request, tmp_path, machine.store())
    fail_at("after_last_commit", 2)
    with pytest.raises(FailpointError):
        world.loop(**with_letters(world, 1)).run()
    assert letters(world.store) == [2, 4]
    world.script = EpochScript(machine.store("another"))
    assert world.restart(**with_letters(world, 2)) == Recovery(2, recorded=(2,))
    assert letters(world.store) == [2, 4, 12, 14]


def test_letters_of_a_driver_that_wakes_up_behind_its_successor_are_nobodys(
    request: pytest.FixtureRequest, machine: Machine, tmp_path: Path
) -> None:
    world = refusing(request, tmp_path, machine.store())
    stale = DriverGeneration(world.store, OwnGeneration(world.script.generation))
    DriverGeneration(machine.store("another"))
    loop = world.loop(**with_letters(world, stale.generation()))
    loop._writer.dead_letters.keep(1)
    (world.store.path / "dead_letters").mkdir()
    name = f".0000000001-t.jsonl.{stale.generation():010d}.0123456789abcdef"
    (world.store.path / "dead_letters" / name).write_text("{}")
    with pytest.raises(FencedError):
        loop._writer.dead_letters.keep(1)
    assert not world.store.documents.folder.list("letters")
    assert letters(world.store) == []


@pytest.mark.parametrize("point", ["in_commit", "after_known"])
def test_changes_become_an_exact_changelog_by_rows_that_are_known_to_the_store(
    proxy: StoreProxy,
    moto: MotoServer,
    machine: Machine,
    tmp_path: Path,
    fail_at: Callable[[str, int], None],
    point: str,
) -> None:
    world = new_world("jsonl", tmp_path)
    tables = list(map(str, world.script.tables))
    world.script = EpochScript(machine.store(), seed=7)
    for name in tables:
        world.script.table(name)
    play(world)

    def known() -> Routing:
        # Not through the proxy, which is of this process: delta-rs keeps its threads waiting while it sets a property.
        context = SinkContext(world.store.app_id, world.write, run_in_process, parallelism=2, storage=moto.settings)
        return Routing(Router(()), upsert=False, known=RowStore.opened(world.store.location, context))

    fail_at(point, 2)
    with proxy.play(*STUMBLES):
        with pytest.raises(FailpointError):
            world.loop(routing=known()).run()
        world.restart(routing=known())
    check(world)
    assert world.loop(routing=known()).recover() == Recovery(3)
    assert not (world.store.path / "known").exists()


@pytest.fixture(params=["folder", "store"])
def drivers(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], CheckpointStore]:
    """Opens the state as one driver after another does, on machines that share nothing else."""
    if request.param == "folder":
        return lambda: CheckpointStore(tmp_path / "state", pipeline="shop")
    machine, works = request.getfixturevalue("machine"), iter(range(9))
    return lambda: machine.store(f"work{next(works)}")


def joined(answers: LookupSegments, epoch: int, driver: str) -> bytes:
    """Join a segment of `epoch`; the note that counts."""
    answers.note("x")
    file = f"{epoch:010d}-{driver}.arrow"
    (answers.path / file).write_bytes(driver.encode())
    return answers.keep(f"{epoch:010d}-segment", json.dumps({"file": file}).encode(), file)


def test_of_two_drivers_that_join_a_segment_one_answer_counts_for_both(
    drivers: Callable[[], CheckpointStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = drivers(), drivers()
    DriverGeneration(first)
    # A folder cannot look whether the driver is the newest and write the note in one step: it stops in between.
    monkeypatch.setattr(type(first.generations), "require_own", lambda *_: None)
    DriverGeneration(second)
    kept = joined(answers_of(second), 7, "second")
    assert joined(answers_of(first), 7, "first") == kept == b'{"file": "0000000007-second.arrow"}'
    third = answers_of(drivers())
    assert third.note("0000000007-segment") == kept
    third.fetch("0000000007-second.arrow")
    assert (third.path / "0000000007-second.arrow").read_bytes() == b"second"
    assert not (third.path / "0000000007-first.arrow").exists()


def test_a_driver_that_was_replaced_joins_nothing(drivers: Callable[[], CheckpointStore]) -> None:
    first, second = drivers(), drivers()
    DriverGeneration(first)
    DriverGeneration(second)
    with pytest.raises(FencedError):
        joined(answers_of(first), 7, "first")
    assert answers_of(second).note("0000000007-segment") is None
    with pytest.raises(FencedError):
        answers_of(first).sweep(0)


def test_what_is_of_recorded_epochs_or_was_only_begun_is_swept(drivers: Callable[[], CheckpointStore]) -> None:
    store = drivers()
    DriverGeneration(store)
    answers = answers_of(store)
    for epoch in (6, 7, 8):
        joined(answers, epoch, "kept")
    answers.forget(6)
    (answers.path / "0000000008-begun.arrow").write_bytes(b"begun")
    if store.location.on_store:
        store.documents.folder.write("joined/0000000008-begun.arrow", b"begun")
    answers.sweep(7)
    found = {epoch: answers.note(f"{epoch:010d}-segment") is not None for epoch in (6, 7, 8)}
    assert found == {6: False, 7: False, 8: True}
    assert [path.name for path in answers.path.glob("*.arrow")] == ["0000000008-kept.arrow"]
    if store.location.on_store:
        assert store.documents.folder.list("joined") == ["0000000008-kept.arrow"]
