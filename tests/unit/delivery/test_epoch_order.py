"""In which order the epoch loop does things that a crash may come between. Without Spark, into JSON Lines."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raycdc.model import Column, LogicalType, TableId, TypeKind
from raycdc.model.evolution import AddColumnEvent
from raycdc.sinks.api import TableCommit
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.store import CheckpointStore
from tests.epochs.sink_world import World, new_world


@pytest.fixture
def world(tmp_path: Path) -> World:
    return new_world("jsonl", tmp_path)


class Watched:
    """A sink that notes whether a schema change came while a commit was under way."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self._applied = threading.Event()
        self._committed: set[int] = set()
        self.early: list[int] = []
        self.applied: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def apply_schema(self, work: TableCommit) -> None:
        if work.epoch > 1 and work.epoch - 1 not in self._committed:
            self.early.append(work.epoch)
        self.applied.append(work.epoch)
        self._applied.set()
        self._sink.apply_schema(work)

    def stage(self, works: Sequence[TableCommit]) -> Mapping[TableId, Any]:
        staged: Mapping[TableId, Any] = self._sink.stage(works)
        return staged

    def commit(self, work: TableCommit, staged: Any) -> None:
        # Whoever does not wait for this commit has the time to be noticed.
        self._applied.clear()
        self._applied.wait(0.5)
        self._sink.commit(work, staged)
        self._committed.add(work.epoch)


def test_a_schema_change_waits_for_the_commit_before_it(world: World) -> None:
    orders = world.script.table("shop.orders")
    orders.insert({"id": 1, "name": "a", "qty": 1})
    world.script.seal()
    watched = Watched(world.sink())
    loop = world.loop(watched)  # type: ignore[arg-type]
    loop.recover()
    for epoch in (2, 3):
        orders.insert({"id": epoch, "name": "b", "qty": 2, **({"more": "x"} if epoch == 3 else {})})
        if epoch == 3:
            more = Column("more", LogicalType(TypeKind.STRING))
            orders.schema = replace(orders.schema, columns=(*orders.schema.columns, more))
            orders.changes.append(AddColumnEvent(orders.id, more))
        world.script.seal(final=epoch == 3)
    loop.run()
    assert 3 in watched.applied
    assert watched.early == []


class DeathError(Exception):
    """The process ends here."""


def lacking_after_death(world: World, monkeypatch: pytest.MonkeyPatch) -> TableId:
    """A driver dies after it committed the first epoch to one of two targets. The other one."""
    sink = world.sink()
    commits: list[TableId] = []
    lock = threading.Lock()

    def only_one(work: TableCommit, staged: Any) -> None:
        with lock:
            if commits:
                raise DeathError
            commits.append(work.target)
            type(sink).commit(sink, work, staged)

    monkeypatch.setattr(sink, "commit", only_one)
    with pytest.raises(DeathError):
        world.loop(sink).recover()
    return ({TableId("shop", "orders"), TableId("shop", "items")} - set(commits)).pop()


def test_an_epoch_that_was_barred_from_one_target_and_written_to_another_is_kept_and_the_barred_one_begins_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that was replaced wrote while its successor was dropping the epoch, which ended that one."""
    tables = {name: world.script.table(name) for name in ("shop.orders", "shop.items")}
    for name, table in tables.items():
        table.insert({"id": 1, "name": name, "qty": 1})
    world.script.seal(incarnations=dict.fromkeys(tables, 0))
    barred = lacking_after_death(world, monkeypatch)
    sink = world.sink()
    generation = world.store.generations.newest()
    sink.tombstone(TableCommit(1, generation, barred, barred, tables[str(barred)].schema, (), (), {}))
    asked: list[TableId] = []
    world.script.generation = world.store.generations.next()
    recovery = world.loop(request_resnapshot=lambda _, again, __: asked.extend(again)).recover()
    assert (recovery.epoch, recovery.frozen, asked) == (1, (1,), [barred])
    # Nothing is left for another start.
    assert world.loop().recover().frozen == ()


def test_a_damaged_segment_of_a_half_committed_epoch_is_found_and_asked_for_before_anything_is_dropped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("shop.orders", "shop.items"):
        world.script.table(name).insert({"id": 1, "name": name, "qty": 1})
    manifest = world.script.seal(incarnations={"shop.orders": 0, "shop.items": 0})
    lacking = lacking_after_death(world, monkeypatch)
    segment = next(s for s in manifest.segments if s.table == lacking)
    path = world.store.spool / segment.name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    order: list[str] = []

    def asked(_: Manifest, tables: Sequence[TableId], text: str) -> None:
        assert list(tables) == [lacking]
        order.append("asked")

    real = CheckpointStore.drop_after

    def dropped(store: CheckpointStore, epoch: int) -> list[int]:
        order.append("dropped")
        return real(store, epoch)

    monkeypatch.setattr(CheckpointStore, "drop_after", dropped)
    world.script.generation = world.store.generations.next()
    recovery = world.loop(request_resnapshot=asked).recover()
    assert recovery.frozen == (1,)
    assert order == ["asked", "dropped"]
    assert world.store.sealed_epochs() == [1]
