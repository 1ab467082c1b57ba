"""The epoch loop with several tables in one target: whatever dies where, with schema changes and keys of two tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from raycdc.core.failpoints import FailpointError
from raycdc.delivery.outcomes import Recovery
from raycdc.delivery.ports import Routing
from raycdc.delivery.targets.parked_targets import ParkingPolicy
from raycdc.errors import (
    ConfigError,
    DataError,
    ParkReason,
    RaycdcError,
    SchemaError,
    StateError,
    TargetModifiedError,
)
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import (
    AddColumnEvent,
    CreateTableEvent,
    DropColumnEvent,
    RenameColumnEvent,
    TruncateTableEvent,
)
from raycdc.model.rules.routes import Route, Router
from raycdc.sinks.api import TableCommit
from raycdc.sinks.delta.sink import DeltaSink
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.store import CheckpointStore
from raycdc.testing.epochs import EpochScript, Row
from tests.epochs.sink_world import STRICT_UPSERTS, World, works_of, world_of

POINTS = ("before_stage", "after_stage", "before_commit", "in_commit", "between_tables", "after_last_commit")
ROUTES = (Route(r"s\d\.item", "lake.item"),)


def narrow() -> TableSchema:
    return TableSchema((Column("id", LogicalType(TypeKind.INT32), nullable=False), *_others(TypeKind.INT16)), ("id",))


def wide() -> TableSchema:
    columns = (*_others(TypeKind.INT64), Column("note", LogicalType(TypeKind.STRING)))
    return TableSchema((Column("id", LogicalType(TypeKind.INT64), nullable=False), *columns), ("id",))


def _others(kind: TypeKind) -> tuple[Column, ...]:
    return (Column("name", LogicalType(TypeKind.STRING)), Column("qty", LogicalType(kind)))


@dataclass
class MergedWorld(World):
    """Two shards in one target, and a table of its own."""

    no_merging: str = ""
    routes: tuple[Route, ...] = ROUTES

    @property
    def routing(self) -> Routing:
        return Routing(Router(self.routes), upsert=self.write == "upsert", no_merging=self.no_merging)

    def merged(self) -> list[Row]:
        """The rows of the target that the shards have in common."""
        return self.target_rows("lake.item")

    def check(self) -> None:
        """The target holds the rows, or the changes, of both shards."""
        shards = [self.script.table(f"s{n}.item") for n in (1, 2)]
        names = ("id", "name", "qty", "note")
        if self.kind.endswith("-upsert"):
            want = {row["id"]: row for shard in shards for row in shard.contents()}
            got = {row["id"]: row for row in self.merged()}
            assert len(self.merged()) == len(got)
            assert {key: {n: row.get(n) for n in names} for key, row in got.items()} == {
                key: {n: row.get(n) for n in names} for key, row in want.items()
            }
            return
        for shard in shards:
            mine = [row for row in self.merged() if row["_db"] == shard.id.db]
            got_changes = [(r["_op"], {n: r.get(n) for n in names}) for r in sorted(mine, key=lambda r: r["_seq"])]
            assert got_changes == [(op, {n: row.get(n) for n in names}) for op, row in shard.changelog]


def new_world(kind: str, root: Path) -> MergedWorld:
    script = EpochScript(CheckpointStore(root / "state", pipeline="shop"), seed=3)
    script.table("s1.item", narrow())
    script.table("other.things")
    return MergedWorld(kind, root, script)


@pytest.fixture(params=("delta-upsert", "delta-changelog", "iceberg-upsert", "iceberg-changelog", "parquet", "jsonl"))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> MergedWorld:
    return new_world(request.param, tmp_path)


def insert(world: MergedWorld, table: str, *keys: int, **values: Any) -> None:
    for key in keys:
        world.script.table(table).insert({"id": key, "name": f"{table} {key}", "qty": key, **values})


def play(world: MergedWorld) -> None:
    """One shard alone; a wider one comes; rows of both change, and one moves over; a shard gets a column."""
    first = world.script.table("s1.item")
    first.read([{"id": n, "name": "snapshot", "qty": n} for n in range(10)])
    insert(world, "other.things", 1)
    world.script.seal()
    second = world.script.table("s2.item", wide())
    second.read([{"id": n, "name": "snapshot", "qty": n << 40, "note": "n"} for n in range(100, 110)])
    insert(world, "s1.item", 11, 12)
    world.script.seal()
    first.update((3,), qty=-3)
    first.update((4,), id=40)
    first.delete((5,))
    insert(world, "s2.item", 5, note="moved")
    second.delete((101,))
    insert(world, "other.things", 2)
    world.script.seal()
    added = Column("note", LogicalType(TypeKind.STRING))
    first.changes.append(AddColumnEvent(first.id, added))
    first.schema = TableSchema((*first.schema.columns, added), first.schema.primary_key)
    for row in first.rows.values():
        row.setdefault("note", None)
    insert(world, "s1.item", 50, note="first")
    second.update((102,), note=None)
    world.script.seal(final=True)


def test_shards_of_different_shape_are_one_table(world: MergedWorld) -> None:
    play(world)
    world.loop().run()
    world.check()
    assert world.restart() == Recovery(4)
    record = world.store.last_commit()
    assert record is not None
    assert record.routes["lake.item"].sources == ("s1.item", "s2.item")


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", ["delta-upsert", "iceberg-upsert", "jsonl"])
def test_an_error_at_any_point_loses_and_doubles_nothing(
    kind: str, point: str, count: int, tmp_path: Path, fail_at: Callable[[str, int], None]
) -> None:
    world = new_world(kind, tmp_path)
    play(world)
    fail_at(point, count)
    with pytest.raises(FailpointError):
        world.loop().run()
    world.restart()
    world.check()


@pytest.mark.parametrize("together", [True, False], ids=["in one epoch", "in two"])
def test_a_key_of_two_shards_is_refused_before_a_row_of_it_is_written(tmp_path: Path, *, together: bool) -> None:
    world = new_world("delta-upsert", tmp_path)
    world.script.table("s2.item", narrow())
    insert(world, "s1.item", 1, 2, 3)
    if not together:
        world.script.seal()
        insert(world, "s2.item", 9)
        world.script.seal()
    insert(world, "s2.item", 2)
    world.script.seal(final=True)
    with pytest.raises(DataError, match=r"lake\.item: a row of the same key \(id\) comes from more than one"):
        world.loop().run()
    if not together:
        assert sorted((row["id"], row["name"]) for row in world.merged()) == [
            (1, "s1.item 1"), (2, "s1.item 2"), (3, "s1.item 3"), (9, "s2.item 9")
        ]  # fmt: skip
        with pytest.raises(RaycdcError, match="comes from more than one"):
            world.restart()


def test_a_row_inserted_and_deleted_at_once_leaves_another_shards_row_alone(tmp_path: Path) -> None:
    world = new_world("delta-upsert", tmp_path)
    world.script.table("s2.item", narrow())
    insert(world, "s1.item", 1)
    insert(world, "s2.item", 2)
    world.script.seal()
    insert(world, "s2.item", 1)
    world.script.table("s2.item").delete((1,))
    world.script.seal(final=True)
    world.loop().run()
    world.check()


def test_rows_read_again_never_swallow_a_deletion_in_a_target_of_several_tables(tmp_path: Path) -> None:
    world = new_world("delta-upsert", tmp_path)
    world.script.table("s2.item", narrow())
    insert(world, "s1.item", 1)
    insert(world, "s2.item", 2)
    world.script.seal()
    # The command is refused; a table may come to share its target while its rows are read again.
    world.script.table("s2.item").read_again((2,))
    world.script.table("s2.item").delete((2,))
    world.script.seal(final=True)
    with pytest.raises(ConfigError, match=r"lake\.item: rows of s2\.item were read again.*resnapshot CONFIG s2\.item"):
        world.loop().run()


def test_a_default_added_in_one_shard_after_the_other_is_in_all_rows(tmp_path: Path) -> None:
    world = new_world("delta-upsert", tmp_path)
    shards = [world.script.table("s1.item"), world.script.table("s2.item", narrow())]
    insert(world, "s1.item", 1)
    insert(world, "s2.item", 2)
    world.script.seal()
    grade = Column("grade", LogicalType(TypeKind.INT32), nullable=False, default="5")
    for index, shard in enumerate(shards):
        shard.changes.append(AddColumnEvent(shard.id, grade))
        shard.schema = TableSchema((*shard.schema.columns, grade), shard.schema.primary_key)
        insert(world, f"s{index + 1}.item", 10 + index, grade=9)
        if not index:
            insert(world, "s2.item", 20)
        world.script.seal(final=bool(index))
    world.loop().run()
    assert sorted((row["id"], row["grade"]) for row in world.merged()) == [(1, 5), (2, 5), (10, 9), (11, 9), (20, 5)]


def test_a_shard_that_is_emptied_is_refused_where_rows_are_updated(tmp_path: Path) -> None:
    world = new_world("delta-upsert", tmp_path)
    world.script.table("s2.item", narrow())
    insert(world, "s1.item", 1)
    insert(world, "s2.item", 2)
    world.script.seal()
    shard = world.script.table("s1.item")
    shard.truncate()
    shard.changes.append(TruncateTableEvent(shard.id))
    world.script.seal(final=True)
    with pytest.raises(SchemaError, match=r"s1\.item was emptied, dropped or begins again, and its rows"):
        world.loop().run()


def test_a_column_that_a_shard_dropped_is_null_in_its_later_rows_whatever_its_default(tmp_path: Path) -> None:
    world = new_world("delta-upsert", tmp_path)
    shards = [world.script.table("s1.item"), world.script.table("s2.item", narrow())]
    for number, shard in enumerate(shards):
        insert(world, str(shard.id), number)
    world.script.seal()
    added = Column("flag", LogicalType(TypeKind.INT32), default="5")
    first = shards[0]
    plain = first.schema
    first.schema = replace(plain, columns=(*plain.columns, added))
    first.changes.append(AddColumnEvent(first.id, added))
    first.rows = {key: {**row, "flag": 5} for key, row in first.rows.items()}
    first.update((0,), flag=7)
    world.script.seal()
    first.schema = plain
    first.changes.append(DropColumnEvent(first.id, "flag"))
    for row in first.rows.values():
        del row["flag"]
    first.update((0,), qty=70)
    insert(world, "s1.item", 10)
    shards[1].update((1,), qty=71)
    insert(world, "s2.item", 11)
    world.script.seal(final=True)
    world.loop().run()
    # The second shard never had it: its rows have the default.
    assert {row["id"]: (row["qty"], row["flag"]) for row in world.merged()} == {
        0: (70, None), 10: (10, None), 1: (71, 5), 11: (11, 5),
    }  # fmt: skip


def test_lost_rows_of_a_merged_target_are_refused_as_no_shard_can_begin_again(tmp_path: Path) -> None:
    world = new_world("delta-upsert", tmp_path)
    play(world)
    sealed = world.store.manifest(2)
    works = {str(work.target): work for work in works_of(world.loop(), sealed)}
    assert set(works) == {"lake.item"}
    insert(world, "other.things", 30)
    insert(world, "s1.item", 31)
    manifest = world.script.seal(final=True)
    loop = world.loop(next_sealed=lambda after, _: next((m for m in world.store.manifests(after) if m.epoch < 5), None))
    loop.run()
    sink = loop._parts.sink
    (other,) = [work for work in works_of(loop, manifest) if str(work.target) == "other.things"]
    sink.commit(other, sink.stage([other])[other.target])
    for segment in manifest.segments:
        Path(segment.path).unlink()
    with pytest.raises(StateError, match=r"Epoch 5 is in other\.things but not, or not wholly, in lake\.item"):
        world.restart()


@dataclass
class Beginnings:
    """Seals as a source with a log does: its state says which beginning each table has."""

    world: MergedWorld
    numbers: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("s1.item", "s2.item", "other.things"), 0))
    asked: list[str] = field(default_factory=list)

    def seal(self, *, final: bool = False) -> Manifest:
        return self.world.script.seal(final=final, incarnations=self.numbers)

    def begin_again(self, manifest: Manifest, tables: Sequence[TableId], text: str) -> None:
        self.asked = [str(table) for table in tables]

    def recover(self) -> Recovery:
        self.world.script.generation = self.world.store.generations.next()
        return self.world.loop(request_resnapshot=self.begin_again, parking=ParkingPolicy()).recover()


def half_committed(world: MergedWorld) -> Beginnings:
    """Two epochs are recorded; of the third, one table has its share, and the segments are gone."""
    story = Beginnings(world)
    world.script.table("s2.item", narrow())
    for number in (1, 2, 3):
        insert(world, "s1.item", number)
        insert(world, "s2.item", 100 + number)
        insert(world, "other.things", number)
        story.seal()
        if number < 3:
            story.recover()
    loop, manifest = world.loop(), world.store.manifest(3)
    (other,) = [work for work in works_of(loop, manifest) if str(work.target) == "other.things"]
    sink = loop._parts.sink
    sink.commit(other, sink.stage([other])[other.target])
    for segment in manifest.segments:
        Path(segment.path).unlink()
    return story


@pytest.mark.parametrize("point", ["", "before_commit", "after_last_commit", "after_record"])
def test_tables_of_a_merged_target_that_lost_rows_begin_again_together(
    tmp_path: Path, point: str, fail_at: Callable[[str, int], None]
) -> None:
    world = new_world("delta-upsert", tmp_path)
    story = half_committed(world)
    insert(world, "other.things", 4)
    story.seal()
    if point:
        fail_at(point, 1)
        with pytest.raises(FailpointError):
            story.recover()
    recovery = story.recover()
    assert (recovery.epoch, story.asked) == (3, ["s1.item", "s2.item"])
    record = world.store.last_commit()
    assert record is not None
    assert (list(record.parked), record.tables["other.things"]) == (["lake.item"], (3, 3))
    # They begin again one after the other; meanwhile the third goes on.
    del world.script.table("other.things").rows[(4,)]
    insert(world, "other.things", 5)
    anew: list[Row] = []
    for name in ("s1.item", "s2.item"):
        table = world.script.table(name)
        rows = list(table.rows.values())
        table.truncate()
        first = (TruncateTableEvent(table.id), CreateTableEvent(table.id, table.schema))
        table.changes += first
        if anew:
            world.script.table("s1.item").read(anew)
        anew = rows
        story.numbers[name] = 1
        story.seal()
    world.script.table("s2.item").read(anew)
    story.seal(final=True)
    assert story.recover().epoch == 7
    record = world.store.last_commit()
    assert record is not None
    assert record.parked == {}
    world.check()
    assert [row["id"] for row in sorted(world.target_rows("other.things"), key=lambda row: row["id"])] == [1, 2, 3, 5]


def test_a_target_that_refuses_to_be_barred_is_parked_and_the_epoch_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world("delta-upsert", tmp_path)
    story = Beginnings(world)
    world.script.table("s2.item", narrow())
    for number in (1, 2):
        insert(world, "s1.item", number)
        insert(world, "other.things", number)
        story.seal()
        if number == 1:
            story.recover()
    for segment in world.store.manifest(2).segments:
        Path(segment.path).unlink()

    def refuse(self: DeltaSink, work: TableCommit) -> None:
        if str(work.target) == "lake.item":
            raise TargetModifiedError(f"{work.target} cannot be barred.")
        barred(self, work)

    barred = DeltaSink.tombstone
    with monkeypatch.context() as patched:
        patched.setattr(DeltaSink, "tombstone", refuse)
        recovery = story.recover()
    assert recovery.dropped == (2,)
    record = world.store.last_commit()
    assert record is not None
    assert record.epoch == 1
    entry = record.parked["lake.item"]
    assert (entry.reason, entry.epoch, entry.sources) == (
        ParkReason.MODIFIED,
        2,
        {"s1.item": 0, "s2.item": 0},
    )
    for name in ("s1.item", "other.things"):
        world.script.table(name).rows.pop((2,))
        insert(world, name, 2)
    story.seal(final=True)
    assert story.recover().epoch == 3
    assert sorted(row["id"] for row in world.target_rows("other.things")) == [1, 2]
    assert [row["id"] for row in world.merged()] == [1]


def test_a_sink_that_cannot_merge_says_so(tmp_path: Path) -> None:
    world = new_world("delta-upsert", tmp_path)
    world.no_merging = "it cannot."
    play(world)
    with pytest.raises(ConfigError, match=r"route: s1\.item, s2\.item all go to lake\.item, and it cannot\."):
        world.loop().run()


@pytest.mark.parametrize("kind", ["delta-upsert", "iceberg-upsert"])
def test_a_table_may_come_to_the_target_of_one_that_was_never_routed(kind: str, tmp_path: Path) -> None:
    """What columns a target has, and which value rows get that do not say, is known of every target."""
    world = new_world(kind, tmp_path)
    first = world.script.table("other.things")
    first.read([{"id": n, "name": "first", "qty": n} for n in range(3)])
    world.script.seal()
    fresh = Column("fresh", LogicalType(TypeKind.INT32), default="7")
    first.changes.append(AddColumnEvent(first.id, fresh))
    first.schema = TableSchema((*first.schema.columns, fresh), first.schema.primary_key)
    first.rows = {key: {**row, "fresh": 7} for key, row in first.rows.items()}
    first.update((1,), fresh=8)
    world.script.seal(final=True)
    world.loop(routing=Routing(Router(()), upsert=True)).run()
    second = world.script.table("new.things")
    second.read([{"id": n, "name": "second", "qty": n} for n in (10, 11)])
    world.script.seal(final=True)
    routes = (Route(r"new\.things", "other.things"),)
    world.loop(routing=Routing(Router(routes), upsert=True)).run()
    assert {row["id"]: (row["name"], row["fresh"]) for row in world.target_rows("other.things")} == {
        0: ("first", 7),
        1: ("first", 8),
        2: ("first", 7),
        10: ("second", 7),
        11: ("second", 7),
    }


@pytest.mark.parametrize(
    ("point", "behavior"),
    [
        ("before_schema", "lenient"),
        ("after_schema", "evolve"),
        ("before_stage", "lenient"),
        pytest.param("in_commit", "lenient", marks=pytest.mark.long(suite="sinks")),
        pytest.param("before_schema", "evolve", marks=pytest.mark.long(suite="sinks")),
        pytest.param("after_schema", "lenient", marks=pytest.mark.long(suite="sinks")),
    ],
)
@pytest.mark.parametrize("kind", STRICT_UPSERTS)
def test_shards_rename_a_column_one_after_the_other(
    kind: str,
    point: str,
    behavior: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    fail_at: Callable[[str, int], None],
) -> None:
    """Rows have its values under both names, whichever shard they are of; afterwards those written since have one."""
    server = world_of(request, kind, tmp_path / "server")
    world = new_world(kind, tmp_path)
    world.server, world.mongodb = server.server, server.mongodb
    world.routes = (Route(r"s\d\.item", "shop.item"),)
    shards = [world.script.table(f"s{n}.item", wide()) for n in (1, 2)]
    del world.script.tables[TableId("other", "things")]
    shards[0].schema = wide()
    for number, shard in enumerate(shards):
        keys = range(100 * number, 100 * number + 4)
        shard.read([{"id": n, "name": "read", "qty": n, "note": str(n)} for n in keys])
    world.script.seal()
    for number, shard in enumerate(shards):
        shard.schema = replace(
            shard.schema, columns=tuple(replace(c, name="amount") if c.name == "qty" else c for c in wide().columns)
        )
        shard.changes.append(RenameColumnEvent(shard.id, "qty", "amount"))
        for row in shard.rows.values():
            row["amount"] = row.pop("qty")
        shard.update((100 * number + 1,), amount=-1)
        if number == 0:
            # Its name at the other shard is the old one still.
            shards[1].update((102,), qty=-2)
            shards[1].insert({"id": 109, "name": "between", "qty": 9, "note": None})
        world.script.seal(final=number == 1)
    # With the first rename, or when that is done and the second one is to come.
    fail_at(point, 3 if point == "before_stage" else 2)
    with pytest.raises(FailpointError):
        world.loop(world.sink(schema_change=behavior)).run()
    world.restart(sink=world.sink(schema_change=behavior))
    rows = {row["id"]: row for row in world.target_rows("shop.item", wide())}
    amounts = {0: 0, 1: -1, 2: 2, 3: 3, 100: 100, 101: -1, 102: -2, 103: 103, 109: 9}
    assert {key: row["amount"] for key, row in rows.items()} == amounts
    assert {key: row["qty"] for key, row in rows.items()} == {**amounts, 1: None, 101: None}
