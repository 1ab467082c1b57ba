"""The epoch loop with routes: one table under another name and in two places, whatever dies where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from raycdc.core.failpoints import FailpointError
from raycdc.delivery.epoch_loop import EpochLoop
from raycdc.delivery.outcomes import Recovery
from raycdc.delivery.ports import Routing
from raycdc.errors import ParkReason, StateError
from raycdc.model import Column, LogicalType, TableId, TypeKind
from raycdc.model.evolution import AddColumnEvent
from raycdc.model.rules.routes import Route, Router
from raycdc.sinks.api import Sink
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.tables.table_life import Live, ParkedPhase, ParkingCause
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.opaque import Position
from raycdc.state.parked import ParkedTarget
from raycdc.state.recovery import CommitVector
from raycdc.state.store import CheckpointStore, RoutedTarget
from raycdc.testing.epochs import EpochScript, ScriptedTable
from tests.epochs.sink_world import World, works_of

KINDS = ("delta-upsert", "delta-changelog", "iceberg-upsert", "iceberg-changelog", "parquet", "jsonl")
POINTS = ("before_commit", "in_commit", "between_tables", "after_last_commit")
ROUTES = (Route(r"shop\.(.*)", "lake.$1"), Route("shop.orders", "backup.ods_<>", "<>"))


@dataclass
class RoutedWorld(World):
    """Tables under other names, and one in two places."""

    routes: tuple[Route, ...] = ROUTES
    asked: list[str] = field(default_factory=list)
    #: It begins tables again in a way of its own.
    foresees: bool = False

    @property
    def routing(self) -> Routing:
        return Routing(Router(self.routes), upsert=self.write == "upsert")

    def loop(self, sink: Sink | None = None, **options: Any) -> EpochLoop:
        def begin_again(_: Manifest, tables: Any, text: str) -> None:
            self.asked += map(str, tables)

        return super().loop(sink, request_resnapshot=begin_again, **options)

    def check(self) -> None:
        """Every target holds exactly what its table did."""
        for table in self.script.tables.values():
            for target in Router(self.routes).targets(table.id):
                self._check(table, str(target))
            assert not (self.root / "lake" / table.id.db).exists()

    def _check(self, table: ScriptedTable, target: str) -> None:
        names = [column.name for column in table.schema.columns]
        if self.kind.endswith("-upsert"):
            assert sorted(self.target_rows(target), key=lambda row: row["id"]) == table.contents()
            return
        got = sorted(self.target_rows(target), key=lambda row: row["_seq"])
        assert [(row["_op"], {n: row.get(n) for n in names}) for row in got] == table.changelog
        assert {(row["_db"], row["_table"]) for row in got} == {(table.id.db, table.id.table)}


def new_world(kind: str, root: Path) -> RoutedWorld:
    script = EpochScript(CheckpointStore(root / "state", pipeline="shop"), seed=5)
    for name in ("shop.orders", "shop.items"):
        script.table(name)
    return RoutedWorld(kind, root, script)


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> RoutedWorld:
    return new_world(request.param, tmp_path)


def play(world: RoutedWorld) -> None:
    """A snapshot and changes, then a new column and more changes."""
    orders = world.script.table("shop.orders")
    orders.read([{"id": i, "name": "snapshot", "qty": None} for i in range(100, 110)])
    world.script.random_epoch(operations=10)
    world.script.seal()
    added = Column("note", LogicalType(TypeKind.STRING))
    orders.changes.append(AddColumnEvent(orders.id, added))
    orders.schema = type(orders.schema)((*orders.schema.columns, added), orders.schema.primary_key)
    for row in orders.rows.values():
        row["note"] = None
    for _, row in orders.changelog:
        row["note"] = None
    orders.insert({"id": 900, "name": "new", "qty": 1, "note": "n"})
    orders.update((100,), qty=7, note="changed")
    world.script.seal()
    orders.delete((101,))
    world.script.seal(final=True)


def test_tables_are_renamed_and_copied_and_follow_schema_changes(world: RoutedWorld) -> None:
    play(world)
    loop = world.loop()
    loop.run()
    world.check()
    record = world.store.last_commit()
    assert record is not None
    assert dict(record.tables) == {"lake.orders": (3, 3), "backup.ods_orders": (3, 3), "lake.items": (1, 3)}
    columns = world.script.table("shop.orders").schema.fingerprint()
    assert record.routes["backup.ods_orders"] == RoutedTarget(("shop.orders",), columns)
    assert world.restart() == Recovery(3)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", ["delta-upsert", "iceberg-upsert", "jsonl"])
def test_an_error_between_the_targets_of_one_table_loses_and_doubles_nothing(
    kind: str, point: str, count: int, tmp_path: Path, fail_at: Callable[[str, int], None]
) -> None:
    world = new_world(kind, tmp_path)
    play(world)
    fail_at(point, count)
    with pytest.raises(FailpointError):
        world.loop().run()
    world.restart()
    world.check()


def test_rows_lost_between_two_targets_make_their_source_table_begin_again(tmp_path: Path) -> None:
    world = new_world("delta-upsert", tmp_path)
    world.script.table("shop.orders").insert({"id": 1, "name": "a", "qty": 1})
    manifest = world.script.seal()
    sink = world.sink()
    works = {str(work.target): work for work in works_of(world.loop(), manifest)}
    for name in ("lake.orders", "lake.items"):
        sink.apply_schema(works[name])
        sink.commit(works[name], sink.stage([works[name]])[works[name].target])
    for segment in manifest.segments:
        Path(segment.path).unlink()
    assert world.restart() == Recovery(1, frozen=(1,))
    assert world.asked == ["shop.orders"]
    held = world.sink().committed(TableId("backup", "ods_orders"))
    assert held is not None
    assert (held.epoch, held.step) == (1, 3)
    assert world.target_rows("backup.ods_orders") == []


@pytest.mark.parametrize(
    ("routes", "text"),
    [
        ((), "shop.items went to lake.items so far, and would go to shop.items from now on; shop.orders went to"),
        ((*ROUTES, Route("shop.items", "more.items")), "shop.items went to lake.items so far, and would go to lake.it"),
    ],
)
def test_routes_cannot_change_under_tables_that_are_there(tmp_path: Path, routes: tuple[Route, ...], text: str) -> None:
    world = new_world("jsonl", tmp_path)
    play(world)
    world.loop().run()
    world.routes = routes
    with pytest.raises(StateError, match=f"^Routes changed: {text}"):
        world.restart()
    world.routes = (*ROUTES, Route("shop.others", "lake.others"))
    assert world.restart() == Recovery(3)


def test_a_paused_table_may_be_missing_in_a_target_that_was_emptied_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still has its rows in another target, and those of the shared one come with a new snapshot."""
    world = new_world("jsonl", tmp_path)
    world.routes = (*ROUTES, Route("shop.items", "lake.all"), Route("shop.orders", "lake.all"))
    play(world)
    world.loop().run()
    record, items = world.store.last_commit(), TableId("shop", "items")
    assert record is not None
    emptied = {**record.routes, "lake.all": replace(record.routes["lake.all"], sources=("shop.orders",))}
    world.store.write_commit(replace(record, routes=emptied))
    text = "shop.items went to lake.items so far, and would go to lake.all and lake.items from now on"
    with pytest.raises(StateError, match=text):
        world.restart()
    live = StreamState(Position.unknown(), 9, {items: Live("x", announced=True, incarnation=0)}, changes=4)
    cause = ParkingCause("paused by the user", Position.unknown(), 0, phase=ParkedPhase.PAUSED)
    paused = live.pause(items, cause, number=5)
    with monkeypatch.context() as patch:
        patch.setattr("raycdc.delivery.targets.commit_planner.stream_of", lambda _: paused)
        assert world.restart() == Recovery(3)
    # The table may also wait with another target of its own.
    text, moment = "refused", 1_700_000_000_000
    waits = ParkedTarget(4, None, ParkReason.CHANGE, text, moment, {"shop.items": 0}, {})
    record = replace(record, generation=world.store.generations.newest(), routes=emptied)
    world.store.write_commit(replace(record, parked={"lake.items": waits}))
    assert world.restart() == Recovery(3)


def test_a_state_from_before_there_were_routes_knows_where_its_tables_went(tmp_path: Path) -> None:
    world = new_world("jsonl", tmp_path)
    world.routes = ()
    play(world)
    world.loop().run()
    record = world.store.last_commit()
    assert record is not None
    world.store.write_commit(replace(record, routes={}))
    world.routes = ROUTES
    with pytest.raises(
        StateError, match=r"^Routes changed: shop\.items went to shop\.items so far, and would go to lake"
    ):
        world.restart()


def test_epochs_that_are_dropped_are_barred_in_every_target(tmp_path: Path) -> None:
    world = new_world("delta-upsert", tmp_path)
    play(world)
    for manifest in world.store.manifests():
        for segment in manifest.segments:
            Path(segment.path).unlink()
    world.script.generation = world.store.generations.next()
    assert world.loop().recover() == Recovery(0, dropped=(1, 2, 3))
    targets = [TableId("lake", "orders"), TableId("backup", "ods_orders")]
    assert [world.sink().committed(target) for target in targets] == [CommitVector(3, 7, 2)] * 2
