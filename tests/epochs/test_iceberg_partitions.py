"""Partitioned Iceberg tables: which partition a row is in, rows that move, and what is refused."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo, IsNull
from pyiceberg.transforms import parse_transform
from pyiceberg.types import PrimitiveType

from raycdc.errors import SchemaError, SinkError
from raycdc.model import Column, LogicalType, TypeKind
from raycdc.model.evolution import AddColumnEvent, AlterColumnTypeEvent, DropColumnEvent
from raycdc.sinks.iceberg.files import arrow_type
from raycdc.sinks.iceberg.layout import StoredPartition
from raycdc.testing.epochs import ScriptedTable
from tests.epochs.sink_world import World, iceberg_table, new_world, play
from tests.epochs.test_epoch_schema import changed

ODD = ("a b", "x/y=1", "ä%C3", "..", "a\nb", 'it\'s "it"', "null", "ü" * 200, " ", "", "a?b#c", None)


#: pyiceberg's types forbid what its documentation shows.
equal: Any = EqualTo
null: Any = IsNull


@pytest.fixture
def world(tmp_path: Path) -> World:
    return new_world("iceberg-partitioned-upsert", tmp_path)


def folder_of(world: World) -> Path:
    return world.root / "lake" / "shop" / "orders"


def tuples_of(world: World) -> list[tuple[Any, ...]]:
    """The partition of each data file."""
    records = [task.file.partition for task in iceberg_table(folder_of(world)).scan().plan_files()]
    return [tuple(record[at] for at in range(len(record))) for record in records]


def instant(micros: int, zone: dt.timezone | None) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=zone) + dt.timedelta(microseconds=micros)


VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "int": [0, -1, 1, 7, -(1 << 31), (1 << 31) - 1],
    "long": [0, -1, 34, -(1 << 63), (1 << 63) - 1],
    "string": [*(text for text in ODD if text is not None), "\U0001f600\U0001f601x"],
    "binary": [b"", b"\0\xff", b"abcdef" * 9],
    "decimal(9, 2)": [Decimal("14.20"), Decimal("-0.01"), Decimal("-9999999.99")],
    "decimal(38, 0)": [Decimal(10**38 - 1), Decimal(-(10**38) + 1), Decimal(0)],
    "date": [dt.date(1970, 1, 1), dt.date(1969, 12, 31), dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(2024, 2, 29)],
    "timestamp": [instant(n, None) for n in (0, -1, 1, -3_600_000_001, 253_402_300_799_999_999)],
    "timestamptz": [instant(n, dt.UTC) for n in (0, -1, 1, -86_400_000_001, 1_709_164_800_000_000)],
}
TRANSFORMS = {
    "identity": tuple(kind for kind in VALUES if kind != "binary"),
    "bucket[16]": tuple(kind for kind in VALUES if kind != "boolean"),
    "bucket[1000003]": ("int", "long", "string", "decimal(38, 0)"),
    "truncate[10]": ("int", "string", "decimal(9, 2)"),
    "truncate[3]": ("string",),
    **dict.fromkeys(("year", "month", "day"), ("date", "timestamp", "timestamptz")),
    "hour": ("timestamp", "timestamptz"),
}


@pytest.mark.parametrize(("transform", "kind"), [(t, k) for t, kinds in TRANSFORMS.items() for k in kinds])
def test_whole_columns_are_partitioned_as_pyiceberg_partitions_one_value(transform: str, kind: str) -> None:
    # Below the least number all but Python's begin at the greatest again.
    values = [v for v in VALUES[kind] if not (transform.startswith("truncate") and v == -(1 << 31))] + [None]
    column = pa.array(values, arrow_type(kind))
    got = StoredPartition(1, "p", transform).of(column).to_pylist()
    source = PrimitiveType.model_validate(kind)
    one = parse_transform(transform).transform(source)
    numbers = kind in ("date", "timestamp", "timestamptz")
    width = pa.int32() if kind == "date" else pa.int64()
    stored = column.cast(width).to_pylist() if numbers else values
    assert got == [one(value) for value in stored]


def odd_rows(orders: ScriptedTable) -> None:
    orders.read([{"id": number, "name": name, "qty": number} for number, name in enumerate(ODD, 1000)])


def test_any_text_is_a_partition_and_a_filter_finds_its_rows(world: World) -> None:
    world.partition_by = ("name", "bucket(4, id)")
    orders = world.script.table("shop.orders")
    odd_rows(orders)
    world.script.seal()
    for number in range(len(ODD)):
        orders.update((1000 + number,), name=ODD[number - 1], qty=-number)
    orders.delete((1003,))
    world.script.seal(final=True)
    world.loop().run()
    world.check()
    assert {values[0] for values in tuples_of(world)} == {row["name"] for row in orders.contents()}
    table = iceberg_table(folder_of(world))
    assert str(table.spec().fields[0].transform) == "identity"
    for row in orders.contents():
        condition = null("name") if row["name"] is None else equal("name", row["name"])
        assert table.scan(condition).to_arrow().column("id").to_pylist() == [row["id"]]


def test_days_and_hours_of_times_find_their_rows(world: World) -> None:
    orders = world.script.table("shop.orders")
    at = Column("at", LogicalType(TypeKind.DATETIME, fsp=6))
    since = Column("since", LogicalType(TypeKind.DATE))
    orders.schema = replace(orders.schema, columns=(*orders.schema.columns, at, since))
    world.partition_by, world.partitioned = ("days(at)", "months(since)"), "shop.orders"
    rng = np.random.default_rng(3)
    moments = [instant(int(n), None) for n in rng.integers(-(10**15), 10**15, 40)]
    orders.read([{"id": n, "name": "n", "qty": 1, "at": m, "since": m.date()} for n, m in enumerate(moments)])
    orders.read([{"id": 1000, "name": "n", "qty": 1, "at": None, "since": None}])
    world.script.seal()
    orders.update((0,), at=instant(-1, None), since=None)
    world.script.seal(final=True)
    world.loop().run()
    world.check()
    table = iceberg_table(folder_of(world))
    assert table.scan("at = '1969-12-31T23:59:59.999999'").to_arrow().column("id").to_pylist() == [0]
    early = [row["id"] for row in orders.contents() if row["at"] and row["at"].year < 1970]
    assert sorted(table.scan("at < '1970-01-01T00:00:00'").to_arrow().column("id").to_pylist()) == early
    assert len(tuples_of(world)) > 20


def test_a_replaced_table_keeps_its_partitions_or_is_refused(world: World) -> None:
    play(world, epochs=1)
    world.loop().run()
    again = world.again()
    again.script.store = type(world.store)(world.root / "new-state", pipeline="shop")
    again.script.generation = again.store.generations.next()
    play(again)
    again.partition_by = ("name",)
    with pytest.raises(SinkError, match=r"partition_by asks for identity\(name\)"):
        again.restart(sink=again.sink(on_existing="replace"))
    again.partition_by = world.partition_by
    again.restart(sink=again.sink(on_existing="replace"))
    again.check()


def test_a_wider_type_of_a_partition_is_followed_and_another_refused(world: World) -> None:
    world.partition_by = ("qty",)
    play(world, epochs=2, final=False)
    orders = world.script.table("shop.orders")
    wide = LogicalType(TypeKind.INT64)
    columns = [replace(c, type=wide) if c.name == "qty" else c for c in orders.schema.columns]
    changed(orders, columns, AlterColumnTypeEvent(orders.id, "qty", wide))
    orders.update((100,), qty=1 << 40)
    world.script.seal()
    filled = Column("state", LogicalType(TypeKind.STRING), default="s")
    changed(orders, [*columns, filled], AddColumnEvent(orders.id, filled))
    orders.rows = {key: {**row, "state": "s"} for key, row in orders.rows.items()}
    world.script.seal(final=True)
    world.loop().run()
    world.check()
    assert iceberg_table(folder_of(world)).scan(f"qty = {1 << 40}").to_arrow().column("id").to_pylist() == [100]
    number = LogicalType(TypeKind.FLOAT64)
    orders.changes.append(AlterColumnTypeEvent(orders.id, "qty", number))
    odd = [replace(c, type=number) if c.name == "qty" else c for c in orders.schema.columns]
    orders.schema = replace(orders.schema, columns=tuple(odd))
    world.script.seal(final=True)
    with pytest.raises((SinkError, SchemaError), match=r"shop\.orders.*qty"):
        world.restart()


def test_a_column_without_which_the_table_has_no_partition_is_not_dropped(world: World) -> None:
    """The table's own partitions, which nobody asked for in the configuration."""
    play(world)
    world.loop().run()
    world.partition_by = ()
    orders = world.script.table("shop.orders")
    kept = [c for c in orders.schema.columns if c.name != "qty"]
    changed(orders, kept, DropColumnEvent(orders.id, "qty"))
    world.script.seal(final=True)
    with pytest.raises(SinkError, match=r"shop\.orders: column 'qty' was dropped.*partitioned by it"):
        world.restart(sink=world.sink(schema_change="evolve"))
