"""What targets can follow of a source's changes, judged from the configuration alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import (
    AddColumnEvent,
    AlterColumnTypeEvent,
    CreateTableEvent,
    DropColumnEvent,
    DropTableEvent,
    RenameColumnEvent,
    SchemaChangeEvent,
    TruncateTableEvent,
)
from raycdc.model.rules.layout import TableLayout, partition_fields
from raycdc.model.rules.routes import Route, Router
from raycdc.model.rules.transform import Lookup, LookupColumn, Transform, Transforms
from raycdc.transform.target_rules import TargetRules

ORDERS, OTHERS = TableId("shop", "orders"), TableId("shop", "others")
NUMBER = LogicalType(TypeKind.INT32)


def shape(*names: str) -> TableSchema:
    return TableSchema(tuple(Column(name, NUMBER) for name in names), (names[0],))


BEFORE = shape("id", "qty", "price", "Note", "secret")


def objection(events: Sequence[SchemaChangeEvent], after: TableSchema, **transform: Any) -> str:
    rules = TargetRules(Transforms([Transform(table="shop.orders", **transform)]))
    return rules.objection(ORDERS, BEFORE, after, events, [ORDERS])


@pytest.mark.parametrize(
    ("gone", "transform", "parked"),
    [
        ("qty", {"projection": "id, qty * 2 AS twice"}, True),
        ("QTY", {"projection": "id, qty AS amount"}, True),
        ("note", {"projection": "id, concat(`note`, 'qty') AS n"}, True),
        ("qty", {"projection": "id, concat(note, 'qty') AS n"}, False),
        ("qty", {"projection": "*", "filter": "price > 0 AND qty > 0"}, True),
        ("secret", {"projection": "* EXCEPT (secret)"}, True),
        ("qty", {"projection": "*, price * 2 AS twice"}, False),
        ("qty", {"primary_keys": ("qty",)}, True),
        ("note", {"layout": TableLayout(partition_fields(["bucket(2, NOTE)"]))}, True),
    ],
)
def test_a_column_that_a_transform_names_cannot_go(gone: str, transform: dict[str, Any], parked: bool) -> None:
    left = [c.name for c in BEFORE.columns if c.name.casefold() != gone.casefold()]
    found = objection([DropColumnEvent(ORDERS, gone)], shape(*left), **transform)
    assert bool(found) is parked
    assert not parked or f"columns were (id, qty, price, Note, secret) and are ({', '.join(left)})" in found
    renamed = objection([RenameColumnEvent(ORDERS, gone, "new")], shape(*left, "new"), **transform)
    assert bool(renamed) is parked
    created: list[SchemaChangeEvent] = [DropTableEvent(ORDERS), CreateTableEvent(ORDERS, shape(*left))]
    assert bool(objection(created, shape(*left), **transform)) is parked


@pytest.mark.parametrize(
    ("new", "projection", "parked"),
    [
        ("Twice", "*, qty * 2 AS twice", True),
        ("twice", "id, qty * 2 AS twice", False),
        ("origin", "*, _table origin", True),
        ("more", "*, qty * 2 AS twice", False),
    ],
)
def test_a_column_that_would_be_in_the_result_twice_cannot_come(new: str, projection: str, parked: bool) -> None:
    after = TableSchema((*BEFORE.columns, Column(new, NUMBER)), ("id",))
    assert bool(objection([AddColumnEvent(ORDERS, Column(new, NUMBER))], after, projection=projection)) is parked
    renamed = [RenameColumnEvent(ORDERS, "secret", new)]
    assert bool(objection(renamed, after, projection=projection)) is parked


def test_two_columns_cannot_change_places_under_an_expression() -> None:
    swapped = [RenameColumnEvent(ORDERS, "qty", "x"), RenameColumnEvent(ORDERS, "price", "qty"),
               RenameColumnEvent(ORDERS, "x", "price")]  # fmt: skip
    assert "names 'qty'" in objection(swapped, BEFORE, projection="id, qty * 2 AS twice")


def typed(kind: TypeKind, **options: Any) -> LogicalType:
    return LogicalType(kind, **options)


#: Changes of a type, and if all expressions give what they gave before.
TYPES = (
    (typed(TypeKind.INT32), typed(TypeKind.INT64), False),
    (typed(TypeKind.FLOAT32), typed(TypeKind.FLOAT64), False),
    (typed(TypeKind.DECIMAL, precision=6, scale=2), typed(TypeKind.DECIMAL, precision=8, scale=3), False),
    (typed(TypeKind.DECIMAL, precision=6, scale=2), typed(TypeKind.DECIMAL, precision=8, scale=2), False),
    (typed(TypeKind.STRING, native="decimal(40,1)"), typed(TypeKind.STRING, native="decimal(41,2)"), False),
    (typed(TypeKind.TIME), typed(TypeKind.TIME, fsp=3), False),
    (typed(TypeKind.BOOLEAN), typed(TypeKind.INT8), False),
    (typed(TypeKind.STRING), typed(TypeKind.JSON), False),
    (typed(TypeKind.INT32, native="int(10)"), typed(TypeKind.INT32, native="int(11)"), True),
    (typed(TypeKind.STRING, native="varchar(9)"), typed(TypeKind.STRING, native="longtext"), True),
    (typed(TypeKind.ENUM, native="enum('a')"), typed(TypeKind.STRING, native="varchar(9)"), True),
    (typed(TypeKind.DATETIME), typed(TypeKind.DATETIME, fsp=6), True),
)


@pytest.mark.parametrize(("before", "after", "alike"), TYPES)
def test_a_column_that_a_transform_computes_with_keeps_its_type_or_the_table_is_read_anew(
    before: LogicalType, after: LogicalType, alike: bool
) -> None:
    def told(**transform: Any) -> str:
        was, now = (
            TableSchema((Column("id", NUMBER), Column("Qty", kind), Column("note", kind)), ("id",))
            for kind in (before, after)
        )
        events = [AlterColumnTypeEvent(ORDERS, name, after, True) for name in ("Qty", "note")]
        rules = TargetRules(Transforms([Transform(table="shop.orders", **transform)]))
        return rules.objection(ORDERS, was, now, events, [ORDERS])

    for transform in ({"projection": "id, hash(qty) AS h"}, {"filter": "cast(`qty` as string) <> '0.1'"}):
        assert bool(told(**transform)) is not alike
    # Values that are passed on as they are, are followed by targets.
    for plain in ({"projection": "id, qty AS amount"}, {"primary_keys": ("qty",)}, {"filter": "id > 0"}):
        assert told(**plain) == ""


def test_a_table_that_is_emptied_in_the_same_statement_means_what_it_says() -> None:
    wider = TableSchema((Column("id", NUMBER), Column("qty", LogicalType(TypeKind.INT64))), ("id",))
    events: list[SchemaChangeEvent] = [DropTableEvent(ORDERS), CreateTableEvent(ORDERS, wider)]
    transforms = Transforms([Transform(table="shop.orders", filter="hash(qty) = 1")])
    assert TargetRules(transforms).objection(ORDERS, BEFORE, wider, events, [ORDERS]) == ""
    keeps = TargetRules(transforms, left_out=frozenset({"drop_table"}))
    assert "names 'qty'" in keeps.objection(ORDERS, BEFORE, wider, events, [ORDERS])


def test_a_column_by_which_documents_are_looked_up_finds_what_it_found() -> None:
    lookup = Lookup(
        number=0, table=r"shop\..*", dimension="mongodb crm.users", key="qty", field="_id",
        columns=(LookupColumn("name", "n", LogicalType(TypeKind.STRING)),),
    )  # fmt: skip
    rules = TargetRules(Transforms(lookups=[lookup]))
    for kind, alike in ((TypeKind.INT64, True), (TypeKind.STRING, False)):
        now = TableSchema((Column("id", NUMBER), Column("qty", LogicalType(kind))), ("id",))
        events = [AlterColumnTypeEvent(ORDERS, "qty", LogicalType(kind), True)]
        assert bool(rules.objection(ORDERS, shape("id", "qty"), now, events, [ORDERS])) is not alike


@pytest.mark.parametrize(
    ("upsert", "left_out", "others", "parked"),
    [
        (True, (), (OTHERS,), True),
        (True, (), (), False),
        (False, (), (OTHERS,), False),
        (True, ("truncate_table",), (OTHERS,), False),
    ],
)
def test_one_of_several_merged_tables_cannot_be_emptied_where_rows_are_updated(
    upsert: bool, left_out: tuple[str, ...], others: tuple[TableId, ...], parked: bool
) -> None:
    router = Router([Route(r"shop\..*", "lake.all")])
    rules = TargetRules(router=router, upsert=upsert, left_out=frozenset(left_out))
    found = rules.objection(ORDERS, BEFORE, BEFORE, [TruncateTableEvent(ORDERS)], [ORDERS, *others])
    assert bool(found) is parked
    assert not parked or found.startswith(
        "truncate_table of shop.orders: its rows in lake.all cannot be told from those of shop.others"
    )


def test_a_table_that_takes_from_a_lookup_what_it_goes_by_or_adds_is_parked() -> None:
    added = (LookupColumn("name", "user_name", LogicalType(TypeKind.STRING)),)
    lookup = Lookup(number=0, table=r"shop\..*", dimension="mongodb crm.users", key="qty", field="_id", columns=added)
    rules = TargetRules(Transforms(lookups=[lookup]))

    def told(after: TableSchema, event: SchemaChangeEvent) -> str:
        return rules.objection(ORDERS, BEFORE, after, [event], [ORDERS])

    names = [column.name for column in BEFORE.columns]
    left = told(shape(*(name for name in names if name != "qty")), DropColumnEvent(ORDERS, "qty"))
    assert left.startswith("the table's lookup[0] names 'qty'")
    taken = AddColumnEvent(ORDERS, Column("User_Name", NUMBER))
    assert told(shape(*names, "User_Name"), taken).startswith("the table's lookup[0] names 'User_Name'")
    renamed = told(shape(*names[:-1], "USER_NAME"), RenameColumnEvent(ORDERS, "secret", "USER_NAME"))
    assert renamed.startswith("the table's lookup[0] names 'USER_NAME'")
    assert told(shape(*names, "other"), AddColumnEvent(ORDERS, Column("other", NUMBER))) == ""


DROPPED, RENAMED = DropColumnEvent(ORDERS, "qty"), RenameColumnEvent(ORDERS, "price", "qty")
ADDED = AddColumnEvent(ORDERS, Column("Qty", NUMBER))
EXCHANGED = (RenameColumnEvent(ORDERS, "qty", "qty2"), RENAMED, RenameColumnEvent(ORDERS, "qty2", "price"))
IGNORE: dict[str, Any] = {"ignored": True}


def leaves_out(*kinds: str) -> dict[str, Any]:
    return {"left_out": frozenset(kinds)}


@pytest.mark.parametrize(
    ("rules", "events", "mixes"),
    [
        (IGNORE, (DROPPED, ADDED), True),
        (IGNORE, (DROPPED, RENAMED), True),
        (IGNORE, EXCHANGED, True),
        (IGNORE, (DROPPED,), False),
        (IGNORE, (RenameColumnEvent(ORDERS, "qty", "QTY"),), False),
        (IGNORE, (RenameColumnEvent(ORDERS, "qty", "qty2"),), False),
        (IGNORE, (AddColumnEvent(ORDERS, Column("more", NUMBER)),), False),
        (leaves_out("rename_column"), EXCHANGED, True),
        (leaves_out("rename_column"), (DROPPED, RENAMED), True),
        (leaves_out("rename_column"), (DROPPED, ADDED), False),
        (leaves_out("add_column"), (DROPPED, ADDED), True),
        (leaves_out("drop_column"), (DROPPED, ADDED), False),
        ({}, EXCHANGED, False),
        (IGNORE | {"upsert": False}, EXCHANGED, False),
        (IGNORE | {"fixed_columns": False}, EXCHANGED, False),
    ],
)
def test_a_targets_column_never_has_values_of_two_columns(
    rules: dict[str, Any], events: tuple[SchemaChangeEvent, ...], mixes: bool
) -> None:
    judge = TargetRules(**({"upsert": True, "fixed_columns": True} | rules))
    after = shape("id", "qty", "price", "Note", "secret")
    found = judge.mixed_values(ORDERS, BEFORE, after, events)
    assert bool(found) is mixes
    assert judge.objection(ORDERS, BEFORE, after, events, [ORDERS]) == found
    assert not mixes or found.casefold().startswith("another column has the name 'qty' from here on")
