"""A pipeline without a source whose tables are transformed: scripted epochs, the epoch loop, what sinks should hold."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raycdc.config import LookupOptions
from raycdc.delivery.epoch_loop import EpochLoop
from raycdc.delivery.lookup import Joiner, Lookups
from raycdc.delivery.lookup.joiner import LookupSegments
from raycdc.delivery.ports import EpochPorts, Routing
from raycdc.delivery.rows.bad_row_filter import BadRowFilter
from raycdc.delivery.targets.parked_targets import NOTHING, Parks
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import AddColumnEvent
from raycdc.model.rules.routes import Route, Router
from raycdc.model.rules.transform import Transform, Transforms
from raycdc.segments.bad_rows import DEAD_LETTER, FAIL, BadRecords
from raycdc.sinks.api import Sink
from raycdc.spark.derive import Deriver
from raycdc.spark.transforms import SparkResolver, TransformSession
from raycdc.state.documents import DriverDocuments
from raycdc.state.drivers.generations import Generations
from raycdc.state.files.folder import LocalFolder
from raycdc.state.store import CheckpointStore
from raycdc.testing.epochs import EpochScript, Row, ScriptedTable
from raycdc.transform import PlainResolver, TransformedTables, TransformUse
from tests.epochs.sink_world import World, as_messages

#: What is computed, and which rows are wanted, of rows with qty from 0 to 29 or without one.
ORDERS = Transform(
    table="shop.orders",
    projection="*, qty * 2 AS twice, _table AS origin, concat(name, '!') AS shout, 7 AS seven",
    filter="qty % 3 <> 0",
)


def shaped(row: Row) -> Row:
    """What `ORDERS` makes of a row."""
    twice = None if row["qty"] is None else row["qty"] * 2
    return {**row, "twice": twice, "origin": "orders", "shout": f"{row['name']}!", "seven": 7}


def wanted(row: Row) -> bool:
    return row["qty"] is not None and row["qty"] % 3 != 0


@dataclass
class TransformedWorld(World):
    """A world with routes, transforms and lookups; `spark` is None without it."""

    transforms: tuple[Transform, ...] = (ORDERS,)
    spark: Any = None
    routes: tuple[Route, ...] = ()
    no_proof: str = ""
    on_bad_record: str = FAIL
    warnings: list[str] = field(default_factory=list)
    lookups: tuple[LookupOptions, ...] = ()
    #: To be closed by whoever made the world.
    opened: list[Lookups] = field(default_factory=list)
    #: Images of the source may lack values, and its inserts may come twice.
    partial: bool = False
    #: What parks a target instead of ending the run.
    parks: Parks = NOTHING.parks
    #: A look at what a recovery comes to would derive rows.
    foresees: bool = False

    @property
    def upsert(self) -> bool:
        return self.write == "upsert"

    def loop(self, sink: Sink | None = None, **options: Any) -> EpochLoop:
        transforms = Transforms(self.transforms, [one.lookup(number) for number, one in enumerate(self.lookups)])
        session = None if self.spark is None else TransformSession(lambda: self.spark, transforms)
        resolver = PlainResolver() if session is None else SparkResolver(session)
        letters = str(self.letters) if self.on_bad_record == DEAD_LETTER else ""
        records = BadRecords(self.on_bad_record, letters, self.upsert, self.partial)
        folder = self.root / "derived"
        deriver = None if session is None else Deriver(session, folder, upsert=self.upsert, records=records)
        sieve = BadRowFilter(records, folder)
        tables = TransformedTables(
            transforms, resolver, TransformUse(self.upsert, self.no_proof, "", self.on_bad_record != FAIL)
        )
        self.opened.append(Lookups(self.lookups))
        asking = self.opened[-1].asking
        state = LocalFolder(self.root)
        answers = LookupSegments(self.root / "looked_up", DriverDocuments(state, Generations(state)))
        joiner = Joiner(answers, asking, records=records, warn=self.warnings.append)
        ports = EpochPorts(
            generation=lambda: self.script.generation,
            next_sealed=self.next_sealed,
            routing=Routing(Router(self.routes), self.upsert, "", tables, deriver, sieve, records, joiner),
            parking=replace(NOTHING, parks=self.parks, on_bad_rows=self.warnings.append),
        )
        return EpochLoop(self.store, sink or self.sink(), replace(ports, **options))

    @property
    def letters(self) -> Path:
        return self.root / "dead_letters"

    def kept(self) -> list[Row]:
        """The rows that were kept, epoch by epoch."""
        files = sorted(self.letters.glob("*.jsonl"))
        return [json.loads(line) for path in files for line in path.read_text().splitlines()]

    def check_table(self, table: ScriptedTable, target: str = "shop.orders") -> None:
        """The target holds what `shaped` and `wanted` make of the table."""
        if self.upsert:
            expected = [shaped(row) for row in table.contents() if wanted(row)]
            assert sorted(self.target_rows(target), key=lambda row: row["id"]) == expected
            return
        made = ScriptedTable(
            TableId.parse(target), shaped_schema(table.schema), changelog=list(filtered(table.changelog))
        )
        names = [column.name for column in made.schema.columns]
        rows = sorted(self.rows(made), key=lambda row: row["_seq"])
        got = [(row["_op"], {n: row.get(n) for n in names}) for row in rows]
        wanted_changes = made.changelog if self.kafka is None else as_messages(made)
        if self.kind == "kafka-parts":
            # Only a key's changes have an order.
            got, wanted_changes = (sorted(changes, key=lambda c: c[1]["id"]) for changes in (got, wanted_changes))
        assert got == wanted_changes


def shaped_schema(schema: TableSchema) -> TableSchema:
    """What `ORDERS` makes of a table's columns."""
    text, number = LogicalType(TypeKind.STRING), LogicalType(TypeKind.INT32)
    made = {"twice": number, "origin": text, "shout": text, "seven": number}
    return TableSchema((*schema.columns, *(Column(name, kind) for name, kind in made.items())), schema.primary_key)


def filtered(changelog: Sequence[tuple[str, Row]]) -> Iterator[tuple[str, Row]]:
    """The changelog of the rows that are wanted, as `shaped`."""
    rows = iter(changelog)
    for op, row in rows:
        if op != "-U":
            if op == "T" or wanted(row):
                yield op, row if op == "T" else shaped(row)
            continue
        _, after = next(rows)
        both = wanted(row) and wanted(after)
        if wanted(row):
            yield "-U" if both else "-D", shaped(row)
        if wanted(after):
            yield "+U" if both else "+I", shaped(after)


def new_world(
    kind: str, root: Path, *transforms: Transform, spark: Any = None, place: World | None = None
) -> TransformedWorld:
    """A world with one table. `place` is a world whose server or broker is to have the targets (`world_of`)."""
    script = EpochScript(CheckpointStore(root / "state", pipeline="shop"), seed=5)
    script.table("shop.orders")
    kafka, server, mongodb = (place.kafka, place.server, place.mongodb) if place else (None, None, None)
    return TransformedWorld(kind, root, script, kafka, server, mongodb, transforms=transforms or (ORDERS,), spark=spark)


def play(world: TransformedWorld) -> ScriptedTable:
    """A snapshot and changes that cross the filter, then a new column and more changes."""
    orders = world.script.table("shop.orders")
    orders.read([{"id": i, "name": "snapshot", "qty": i % 7 or None} for i in range(100, 130)])
    world.script.random_epoch(operations=40)
    world.script.seal()
    for i in range(100, 130):
        orders.update((i,), qty=(i * 5) % 11)
    world.script.seal()
    add_column(orders, "note")
    orders.insert({"id": 900, "name": "new", "qty": 1, "note": "n"})
    orders.update((100,), qty=7, note="changed")
    orders.update((103,), id=1003, qty=8)
    world.script.seal()
    orders.delete((101,))
    world.script.random_epoch(operations=0)
    world.script.seal(final=True)
    return orders


def add_column(table: ScriptedTable, name: str) -> None:
    added = Column(name, LogicalType(TypeKind.STRING))
    table.changes.append(AddColumnEvent(table.id, added))
    table.schema = type(table.schema)((*table.schema.columns, added), table.schema.primary_key)
    for row in [*table.rows.values(), *(row for _, row in table.changelog)]:
        row[name] = None


def play_names(world: TransformedWorld) -> None:
    """Two epochs of orders whose rows may have another key, their name: some keep it, one gets another, some go."""
    orders = world.script.table("shop.orders")
    orders.read([{"id": i, "name": f"N{i}", "qty": i} for i in range(5)])
    world.script.seal()
    orders.update((1,), name="N8")
    orders.update((2,), qty=20)
    orders.update((3,), id=33)
    orders.delete((4,))
    # The names change places: each is free before the other takes it.
    orders.delete((0,))
    orders.insert({"id": 7, "name": "N0", "qty": 7})
    world.script.seal(final=True)


def play_passed_names(world: TransformedWorld) -> dict[int, int]:
    """Orders whose names pass from row to row within each epoch; returns ``qty`` by the number in the name."""
    orders = world.script.table("shop.orders")
    orders.read([{"id": i, "name": f"N{i}", "qty": i} for i in range(7)])
    world.script.seal()
    # Two rows change places.
    orders.update((0,), name="N1")
    orders.update((1,), name="N0")
    # A name goes on along a chain.
    for i in (2, 3, 4):
        orders.update((i,), name=f"N{i + 1 if i < 4 else 8}")
    # A row takes the name of one that goes.
    orders.insert({"id": 9, "name": "N5", "qty": 9})
    orders.delete((5,))
    # One that came and went leaves its owner alone.
    orders.insert({"id": 10, "name": "N6", "qty": 10})
    orders.delete((10,))
    world.script.seal(final=True)
    return {1: 0, 0: 1, 3: 2, 4: 3, 8: 4, 5: 9, 6: 6}


def play_shards(world: TransformedWorld) -> None:
    """Two epochs of orders in two tables, whose rows come to match ``qty > 0``, or match it no more."""
    one, two = world.script.table("shop.orders_1"), world.script.table("shop.orders_2")
    for table in (one, two):
        table.read([{"id": i, "name": table.id.table, "qty": i % 2} for i in range(6)])
    world.script.seal()
    one.update((1,), qty=0)
    two.update((2,), qty=5)
    two.delete((5,))
    world.script.seal(final=True)
