"""Schema-change events: JSON round trip, the laws of apply, and the decisions of each behaviour."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycdc.errors import SchemaError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import (
    EVENT_TYPES,
    AddColumnEvent,
    After,
    AlterColumnPositionEvent,
    AlterColumnTypeEvent,
    AlterPrimaryKeyEvent,
    AlterTableCommentEvent,
    CreateTableEvent,
    DropColumnEvent,
    DropTableEvent,
    First,
    Last,
    RenameColumnEvent,
    RenameTableEvent,
    SchemaChangeEvent,
    TruncateTableEvent,
    apply,
    apply_all,
    event_from_json,
    event_to_json,
)

ORDERS = TableId("shop", "orders")
INT = LogicalType(TypeKind.INT32, native="int")
TEXT = LogicalType(TypeKind.STRING, native="varchar(20)")
SCHEMA = TableSchema((Column("id", INT, False), Column("price", INT, False), Column("note", TEXT)), ("id",))

EVERY_EVENT: list[SchemaChangeEvent] = [
    CreateTableEvent(ORDERS, SCHEMA, "all orders"),
    AddColumnEvent(ORDERS, Column("size", INT, True, "7"), After("id")),
    DropColumnEvent(ORDERS, "note"),
    RenameColumnEvent(ORDERS, "note", "remark"),
    AlterColumnTypeEvent(ORDERS, "price", LogicalType(TypeKind.DECIMAL, 10, 2), False),
    AlterColumnPositionEvent(ORDERS, "note", First()),
    AlterPrimaryKeyEvent(ORDERS, ("id", "price")),
    AlterTableCommentEvent(ORDERS, "orders"),
    RenameTableEvent(ORDERS, TableId("shop", "old.orders")),
    TruncateTableEvent(ORDERS),
    DropTableEvent(ORDERS),
]


def names(schema: TableSchema | None) -> list[str]:
    assert schema is not None
    return [column.name for column in schema.columns]


@pytest.mark.parametrize("event", EVERY_EVENT, ids=lambda event: event.type)
def test_json_round_trip(event: SchemaChangeEvent) -> None:
    assert event_from_json(event_to_json(event)) == event


def test_every_event_type_is_tried_above() -> None:
    assert [event.type for event in EVERY_EVENT] == list(EVENT_TYPES)


def test_json_of_an_added_column() -> None:
    assert event_to_json(AddColumnEvent(ORDERS, Column("size", INT, True, "7"), After("id"))) == {
        "type": "add_column",
        "db": "shop",
        "table": "orders",
        "column": {"name": "size", "type": {"kind": "int32", "native": "int"}, "nullable": True, "default": "7"},
        "position": {"after": "id"},
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"type": "add_colum", "db": "a", "table": "b"}, "Unknown schema change 'add_colum'"),
        ({"type": "drop_column", "db": "a", "table": "b"}, "Malformed schema change"),
        ({"type": "drop_column", "table": "b", "name": "x"}, "Malformed schema change"),
        ({"type": "drop_table", "db": "a", "table": "b", "cascade": 1}, "Malformed schema change"),
    ],
)
def test_unknown_or_malformed_json_is_a_named_error(data: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        event_from_json(data)


def test_columns_land_where_they_are_put() -> None:
    new = Column("new", INT)
    assert names(apply(SCHEMA, AddColumnEvent(ORDERS, new))) == ["id", "price", "note", "new"]
    assert names(apply(SCHEMA, AddColumnEvent(ORDERS, new, First()))) == ["new", "id", "price", "note"]
    assert names(apply(SCHEMA, AddColumnEvent(ORDERS, new, After("ID")))) == ["id", "new", "price", "note"]
    assert names(apply(SCHEMA, AlterColumnPositionEvent(ORDERS, "note", First()))) == ["note", "id", "price"]
    assert names(apply(SCHEMA, AlterColumnPositionEvent(ORDERS, "id", After("note")))) == ["price", "note", "id"]


def test_rename_and_drop_carry_the_primary_key_along() -> None:
    renamed = apply(SCHEMA, RenameColumnEvent(ORDERS, "ID", "order_id"))
    assert renamed is not None
    assert renamed.primary_key == ("order_id",)
    dropped = apply(SCHEMA, DropColumnEvent(ORDERS, "id"))
    assert dropped is not None
    assert dropped.primary_key == ()


def test_a_new_primary_key_is_not_nullable() -> None:
    changed = apply(SCHEMA, AlterPrimaryKeyEvent(ORDERS, ("note",)))
    assert changed is not None
    assert changed.column("note").nullable is False


@pytest.mark.parametrize(
    "event",
    [
        AddColumnEvent(ORDERS, Column("NOTE", INT)),
        AddColumnEvent(ORDERS, Column("x", INT), After("nowhere")),
        DropColumnEvent(ORDERS, "nowhere"),
        RenameColumnEvent(ORDERS, "id", "note"),
        AlterColumnTypeEvent(ORDERS, "nowhere", INT),
    ],
)
def test_an_impossible_change_is_refused(event: SchemaChangeEvent) -> None:
    with pytest.raises(SchemaError):
        apply(SCHEMA, event)


def test_only_creation_can_happen_to_a_missing_table() -> None:
    assert apply(None, CreateTableEvent(ORDERS, SCHEMA)) == SCHEMA
    assert apply(SCHEMA, DropTableEvent(ORDERS)) is None
    with pytest.raises(SchemaError, match="truncate_table of a table that does not exist"):
        apply(None, TruncateTableEvent(ORDERS))


POSITIONS = st.sampled_from([First(), Last(), After("id"), After("price"), After("note")])


@given(POSITIONS)
def test_dropping_an_added_column_restores_the_schema(position: First | Last | After) -> None:
    added = AddColumnEvent(ORDERS, Column("new", INT), position)
    assert apply_all(SCHEMA, [added, DropColumnEvent(ORDERS, "new")]) == SCHEMA


@given(st.sampled_from(["id", "price", "note"]))
def test_renaming_back_restores_the_schema(name: str) -> None:
    there, back = RenameColumnEvent(ORDERS, name, "x"), RenameColumnEvent(ORDERS, "x", name)
    assert apply_all(SCHEMA, [there, back]) == SCHEMA


@given(st.sampled_from(["id", "price", "note"]), st.permutations([First(), Last(), After("price"), After("id")]))
def test_moving_columns_keeps_the_set_of_columns(name: str, positions: list[First | Last | After]) -> None:
    moves = [AlterColumnPositionEvent(ORDERS, name, p) for p in positions if p != After(name)]
    moved = apply_all(SCHEMA, moves)
    assert moved is not None
    assert set(moved.columns) == set(SCHEMA.columns)
