"""Delta tables that demand something of rows: every way of writing keeps it, or the table is parked."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType

from raycdc.delivery.epoch_loop import EpochLoop
from raycdc.delivery.targets.parked_targets import ParkingPolicy
from raycdc.errors import TargetModifiedError
from raycdc.sinks.delta.commits import WriteChecks
from tests.epochs.sink_world import World, commit, new_world
from tests.epochs.touched_story import folder


def adopting(kind: str, root: Path, *columns: Field) -> tuple[World, EpochLoop]:
    """A pipeline that goes on with a Delta table that somebody made with the `columns`, beside those of a changelog."""
    world = new_world(kind, root)
    meta = [Field(name, PrimitiveType(kind_)) for name, kind_ in META_FIELDS] if kind.endswith("changelog") else []
    DeltaTable.create(str(folder(world)), Schema([*columns, *meta]))
    return world, world.loop(sink=world.sink(on_existing="merge"), parking=ParkingPolicy())


META_FIELDS = (
    ("_op", "string"),
    ("_seq", "long"),
    ("_ts_ms", "long"),
    ("_db", "string"),
    ("_table", "string"),
    ("_pos", "string"),
)
ID, NAME, QTY = (
    Field("id", PrimitiveType("long"), nullable=False),
    Field("name", PrimitiveType("string")),
    Field("qty", PrimitiveType("integer")),
)


@pytest.mark.parametrize("kind", ["delta-upsert", "delta-tasks-upsert", "delta-changelog"])
def test_not_null_of_an_adopted_delta_table_holds_for_every_commit(kind: str, tmp_path: Path) -> None:
    world, loop = adopting(kind, tmp_path, ID, Field("name", PrimitiveType("string"), nullable=False), QTY)
    items = world.script.table("shop.items")
    items.read([{"id": n, "name": "read", "qty": n} for n in range(1, 4)])
    commit(loop, world.script.seal())
    assert {row["id"] for row in world.rows(items)} == {1, 2, 3}
    items.insert({"id": 9, "name": None, "qty": 1})
    commit(loop, world.script.seal())
    record = world.store.last_commit()
    assert record is not None
    assert "name NOT NULL" in record.parked["shop.items"].text
    assert {row["id"] for row in world.rows(items)} == {1, 2, 3}


@pytest.mark.parametrize("kind", ["delta-upsert", "delta-tasks-upsert", "delta-changelog"])
def test_a_generated_column_of_an_adopted_delta_table_is_computed_or_refused(kind: str, tmp_path: Path) -> None:
    double = Field("double", PrimitiveType("integer"), metadata={"delta.generationExpression": "qty * 2"})
    world, loop = adopting(kind, tmp_path, ID, NAME, QTY, double)
    items = world.script.table("shop.items")
    items.read([{"id": n, "name": "read", "qty": n} for n in range(1, 4)])
    commit(loop, world.script.seal())
    items.update((2,), qty=21)
    commit(loop, world.script.seal())
    record = world.store.last_commit()
    assert record is not None
    if kind == "delta-changelog":
        assert record.parked == {}
        assert {(row["qty"], row["double"]) for row in world.rows(items)} == {(1, 2), (2, 4), (21, 42), (3, 6)}
    else:
        assert "generated column 'double'" in record.parked["shop.items"].text
        assert world.rows(items) == []


@pytest.mark.parametrize("kind", ["delta-upsert", "delta-changelog"])
def test_an_identity_column_of_a_delta_table_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    steps = {"delta.identity.start": 1, "delta.identity.step": 1, "delta.identity.allowExplicitInsert": False}
    world, loop = adopting(kind, tmp_path, ID, NAME, QTY, Field("number", PrimitiveType("long"), metadata=steps))
    world.script.table("shop.items").read([{"id": 1, "name": "read", "qty": 1}])
    commit(loop, world.script.seal())
    record = world.store.last_commit()
    assert record is not None
    assert "identity column 'number'" in record.parked["shop.items"].text


@pytest.mark.parametrize("kind", ["delta-upsert", "delta-tasks-upsert", "delta-changelog"])
def test_a_delta_table_that_another_made_append_only_parks_with_that_reason(kind: str, tmp_path: Path) -> None:
    world = new_world(kind, tmp_path)
    items = world.script.table("shop.items")
    items.read([{"id": n, "name": "read", "qty": n} for n in range(1, 4)])
    world.script.seal()
    world.restart()
    DeltaTable(str(folder(world))).alter.set_table_properties({"delta.appendOnly": "true"})
    items.update((2,), qty=21)
    world.script.seal(final=True)
    world.restart(parking=ParkingPolicy())
    record = world.store.last_commit()
    assert record is not None
    if kind == "delta-changelog":
        assert record.parked == {}
        assert len(world.rows(items)) == 5
    else:
        text = record.parked["shop.items"].text
        assert "delta.appendOnly = true, which another writer set" in text
        assert "faster" not in text


def test_a_commit_that_the_table_forbids_is_not_told_as_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the property were set between the check and the commit."""
    world = new_world("delta-upsert", tmp_path)
    items = world.script.table("shop.items")
    items.read([{"id": n, "name": "read", "qty": n} for n in range(1, 4)])
    world.script.seal()
    world.restart()
    DeltaTable(str(folder(world))).alter.set_table_properties({"delta.appendOnly": "true"})
    monkeypatch.setattr(WriteChecks, "check_removals", lambda _self: None)
    items.update((2,), qty=21)
    world.script.seal(final=True)
    world.restart(parking=ParkingPolicy())
    record = world.store.last_commit()
    assert record is not None
    assert "but Delta table is append-only" in record.parked["shop.items"].text
    assert "faster" not in record.parked["shop.items"].text


@pytest.mark.parametrize("kind", ["delta-upsert", "delta-tasks-upsert", "delta-changelog"])
@pytest.mark.parametrize("other", [pa.float32(), pa.int64(), pa.decimal128(20, 1), pa.string()], ids=str)
def test_a_column_that_others_gave_another_type_parks_the_table(tmp_path: Path, kind: str, other: pa.DataType) -> None:
    world = new_world(kind, tmp_path)
    world.script.tables = {}
    table = world.script.table("shop.items")
    table.insert({"id": 1, "name": "a", "qty": 16_777_217})
    world.script.seal(final=True)
    location = str(folder(world))
    if kind.endswith("upsert"):
        # Others may rewrite a table that was adopted.
        DeltaTable.create(location, Schema([ID, NAME, QTY]))
    loop = world.loop(world.sink(on_existing="merge"))
    loop.run()
    before = DeltaTable(location).to_pyarrow_table()
    theirs = before.set_column(2, pa.field("qty", other), before.column("qty").cast(other, safe=False))
    write_deltalake(location, theirs, mode="overwrite", schema_mode="overwrite")
    table.insert({"id": 2, "name": "b", "qty": 16_777_219})
    world.script.seal(final=True)
    with pytest.raises(TargetModifiedError, match=r"column qty is .* another writer changed the Delta table"):
        loop.run()
    assert DeltaTable(location).to_pyarrow_table() == theirs
