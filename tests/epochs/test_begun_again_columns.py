"""A table that begins again loses the columns that it does not have any more, whatever happened to its target before:
what is known of a target's columns is the same behind a restart, a refusal and a raycdc that did not write it down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raycdc.core.failpoints import FailpointError
from raycdc.delivery.targets.parked_targets import ParkingPolicy, Parks
from raycdc.errors import TargetModifiedError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import (
    AddColumnEvent,
    CreateTableEvent,
    DropColumnEvent,
    DropTableEvent,
    RenameColumnEvent,
    SchemaChangeEvent,
    TruncateTableEvent,
)
from raycdc.sinks.api import Sink
from raycdc.state.store import CheckpointStore, CommitRecord
from raycdc.testing.epochs import Row, ScriptedTable
from tests.epochs.refusing import ITEMS, Refusing
from tests.epochs.sink_world import STRICT_UPSERTS, World, world_of

TEXT, AMOUNT = LogicalType(TypeKind.STRING), Column("amount", LogicalType(TypeKind.INT32))


@pytest.fixture(params=STRICT_UPSERTS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    made = world_of(request, request.param, tmp_path)
    del made.script.tables[TableId("shop", "orders")]
    return made


class ResnapshotTable:
    """A table of ``id, name, qty`` in a target that follows it under `evolve`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.items: ScriptedTable = world.script.table("shop.items")
        self.incarnation = 0
        self.told: list[str] = []
        self.items.read([{"id": n, "name": f"row {n}", "qty": n} for n in range(3)])
        self.seal()

    def seal(self, *, final: bool = False) -> None:
        self.world.script.seal(final=final, incarnations={"shop.items": self.incarnation})

    def becomes(self, schema: TableSchema, *events: SchemaChangeEvent) -> None:
        self.items.schema = schema
        self.items.changes.extend(events)

    def resnapshot_requested(
        self, schema: TableSchema, *, rows: Sequence[Row], emptying: type[TruncateTableEvent | DropTableEvent]
    ) -> None:
        """With other columns, and these rows."""
        self.incarnation += 3
        self.items.rows.clear()
        self.becomes(schema, emptying(ITEMS), CreateTableEvent(ITEMS, schema))
        self.items.read(rows)
        self.seal(final=True)

    def sink(self) -> Sink:
        return self.world.sink(schema_change="evolve")

    def run(self, sink: Any = None) -> None:
        """A start that commits what is sealed by now."""
        self.world.script.generation = self.world.store.generations.next()
        loop = self.world.loop(sink=sink or self.sink(), parking=ParkingPolicy(Parks(), on_bad_rows=self.told.append))
        loop.recover()
        if self.world.store.sealed_epochs(loop.committed):
            loop.run()

    def check_end(self) -> None:
        record = self.world.store.last_commit()
        assert record is not None
        assert record.parked == {}
        key = self.items.schema.primary_key
        rows = sorted(self.world.rows(self.items), key=lambda row: tuple(row[name] for name in key))
        assert rows == self.items.contents()


def columns(story: ResnapshotTable, *names: str, key: Sequence[str] = ("id",)) -> TableSchema:
    known = {column.name: column for column in (*story.items.schema.columns, AMOUNT)}
    return TableSchema(tuple(replace(known.get(n, Column(n, TEXT)), nullable=n not in key) for n in names), tuple(key))


@pytest.mark.parametrize(
    ("where", "restarts"),
    [
        pytest.param("apply", False, id="before-one-run"),
        pytest.param("stage", True, id="behind-restarts"),
        pytest.param("apply", True, id="before-restarts", marks=pytest.mark.long(suite="sinks")),
        pytest.param("stage", False, id="behind-one-run", marks=pytest.mark.long(suite="sinks")),
    ],
)
def test_a_parked_target_gives_up_what_it_had_and_what_it_refused(world: World, where: str, *, restarts: bool) -> None:
    story = ResnapshotTable(world)
    # The changes are refused as a whole, or made without the rows of their epoch.
    story.becomes(
        columns(story, "id", "amount", "more"),
        DropColumnEvent(ITEMS, "name"),
        RenameColumnEvent(ITEMS, "qty", "amount"),
        AddColumnEvent(ITEMS, Column("more", TEXT)),
    )
    for row in story.items.rows.values():
        row |= {"amount": row.pop("qty"), "more": None}
        del row["name"]
    story.items.update((1,), more="x")
    story.seal()
    if restarts:
        story.run(Refusing(story.sink(), where, epoch=2, error=TargetModifiedError))
    story.resnapshot_requested(columns(story, "id", "at"), rows=[{"id": 7, "at": "now"}], emptying=TruncateTableEvent)
    story.run(None if restarts else Refusing(story.sink(), where, epoch=2, error=TargetModifiedError))
    story.check_end()


def test_of_a_table_that_was_gone_before_its_target_was_described_people_are_told(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    story = ResnapshotTable(world_of(request, "delta-upsert", tmp_path))
    del story.world.script.tables[TableId("shop", "orders")]
    story.items.truncate()
    story.becomes(story.items.schema, DropTableEvent(ITEMS))
    story.world.script.seal(incarnations={})
    story.run()
    assert story.told == []
    record = story.world.store.last_commit()
    assert record is not None
    story.world.store.write_commit(replace(record, routes={}))
    schema = columns(story, "id", "at")
    story.becomes(schema, CreateTableEvent(ITEMS, schema))
    story.items.read([{"id": 7, "at": "now"}])
    story.seal(final=True)
    story.run()
    (told,) = story.told
    assert told.startswith("shop.items: its table begins again, and an older raycdc did not write down which columns")
    assert story.world.rows(story.items) == [{"id": 7, "name": None, "qty": None, "at": "now"}]


@pytest.mark.parametrize("emptying", [TruncateTableEvent, DropTableEvent])
def test_a_target_of_a_raycdc_that_described_none_gives_up_what_its_table_lost(
    world: World, emptying: type[TruncateTableEvent | DropTableEvent]
) -> None:
    story = ResnapshotTable(world)
    story.run()
    record = world.store.last_commit()
    assert record is not None
    assert record.routes
    world.store.write_commit(CommitRecord(record.epoch, record.generation, record.committed_ms, record.tables))
    story.resnapshot_requested(columns(story, "id", "at"), rows=[{"id": 7, "at": "now"}], emptying=emptying)
    story.run()
    story.check_end()


#: Documents that are to have another key are parked by name.
@pytest.mark.parametrize("world", STRICT_UPSERTS[:-1], indirect=True)
@pytest.mark.parametrize(
    "point",
    [
        "",
        "after_schema",
        *(
            pytest.param(p, marks=pytest.mark.long(suite="sinks"))
            for p in ("before_schema", "before_commit", "in_commit")
        ),
    ],
)
def test_a_table_that_begins_again_may_lose_the_columns_of_its_key(
    world: World, point: str, fail_at: Callable[[str, int], None]
) -> None:
    story = ResnapshotTable(world)
    story.run()
    key = columns(story, "amount", "at", key=("amount",))
    story.resnapshot_requested(
        key, rows=[{"amount": 1, "at": "x"}, {"amount": 2, "at": None}], emptying=TruncateTableEvent
    )
    if point:
        fail_at(point, 1)
        with pytest.raises(FailpointError):
            story.run()
    story.run()
    story.check_end()


def test_what_a_record_says_of_targets_costs_no_document_twice(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Tables of one schema share what is written down of it, and an epoch that changes nothing writes nothing."""
    world = world_of(request, "jsonl", tmp_path)
    for table in world.script.tables.values():
        table.read([{"id": 1, "name": "a", "qty": 1}])
    world.script.seal()
    (fingerprint,) = {path.stem for path in (tmp_path / "state" / "schemas").iterdir()}
    for table in world.script.tables.values():
        table.update((1,), qty=2)
    world.script.seal(final=True)
    world.loop().run()
    record = CheckpointStore(tmp_path / "state", create=False).last_commit()
    assert record is not None
    assert {name: (route.sources, route.schema) for name, route in record.routes.items()} == {
        "shop.orders": (("shop.orders",), fingerprint),
        "shop.items": (("shop.items",), fingerprint),
    }
    assert {path.stem for path in (tmp_path / "state" / "schemas").iterdir()} == {fingerprint}
