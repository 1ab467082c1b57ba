"""What the columns of a lake's table become where names differ in case only."""

from __future__ import annotations

import pyarrow as pa
import pytest

from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import (
    AddColumnEvent,
    AlterColumnTypeEvent,
    DropColumnEvent,
    RenameColumnEvent,
    SchemaChangeBehavior,
    SchemaChangeEvent,
    TruncateTableEvent,
)
from raycdc.sinks.api import TableCommit
from raycdc.sinks.change_rules import ChangeRules
from raycdc.sinks.columns import plan_columns
from raycdc.sinks.lakes.lake_columns import constant_of, lake_abilities

T = TableId("shop", "t")
INT = LogicalType(TypeKind.INT32)


def planned(
    names: tuple[str, ...],
    *events: SchemaChangeEvent,
    behavior: str = "lenient",
    present: tuple[str, ...] = ("id", "a"),
    upsert: bool = True,
) -> list[tuple[str, str | None]]:
    """Columns and whose values they have, where the source has `names` after the events and the table `present`."""
    schema = TableSchema(tuple(Column(name, INT, nullable=name != "id") for name in names), ("id",))
    work = TableCommit(2, 1, T, T, schema, events, (), {})
    plan = plan_columns(
        lake_abilities("Delta"),
        [pa.field(name, pa.int32()) for name in present],
        work,
        [pa.field(name, pa.int32()) for name in names],
        ChangeRules(upsert=upsert, behavior=SchemaChangeBehavior(behavior)),
    )
    return [(column.name, column.values_of) for column in plan.columns]


@pytest.mark.parametrize("behavior", ["evolve", "try_evolve", "lenient", "ignore"])
def test_a_name_in_another_case_is_the_same_column(behavior: str) -> None:
    renamed = planned(("id", "A"), RenameColumnEvent(T, "a", "A"), behavior=behavior)
    assert renamed == [("id", "id"), ("A", "a")]


def test_a_column_that_stayed_goes_when_its_name_comes_again_in_another_case() -> None:
    gone, again = DropColumnEvent(T, "a"), AddColumnEvent(T, Column("A", INT))
    assert planned(("id",), gone) == [("id", "id"), ("a", "a")]
    assert planned(("id", "A"), again) == [("id", "id"), ("A", None)]
    # A renamed one has the values that it had.
    onto = planned(("id", "A"), RenameColumnEvent(T, "b", "A"), present=("id", "a", "b"))
    assert onto == [("id", "id"), ("b", "b"), ("A", "b")]


def test_names_in_two_cases_at_the_source_are_two_columns() -> None:
    assert planned(("id", "a", "A"), AddColumnEvent(T, Column("A", INT))) == [("id", "id"), ("a", "a"), ("A", None)]


def test_a_renamed_column_has_its_values_under_both_names_where_none_goes() -> None:
    events = (RenameColumnEvent(T, "a", "b"),)
    assert planned(("id", "b"), *events) == [("id", "id"), ("a", "a"), ("b", "a")]
    assert planned(("id", "b"), *events, behavior="evolve") == [("id", "id"), ("b", "a")]
    # Rows of a changelog keep what they had.
    assert planned(("id", "b"), *events, upsert=False) == [("id", "id"), ("a", "a"), ("b", None)]


@pytest.mark.parametrize("behavior", ["evolve", "lenient"])
@pytest.mark.parametrize("upsert", [True, False])
def test_columns_whose_names_others_take_are_renamed_in_place(behavior: str, *, upsert: bool) -> None:
    back = RenameColumnEvent(T, "a", "x"), RenameColumnEvent(T, "b", "a"), RenameColumnEvent(T, "x", "b")
    swapped = planned(("id", "b", "a"), *back, present=("id", "a", "b"), behavior=behavior, upsert=upsert)
    assert swapped == [("id", "id"), ("b", "a"), ("a", "b")]
    again = RenameColumnEvent(T, "a", "b"), AddColumnEvent(T, Column("a", INT))
    assert planned(("id", "b", "a"), *again, behavior=behavior, upsert=upsert) == [
        ("id", "id"),
        ("b", "a"),
        ("a", None),
    ]


@pytest.mark.parametrize("behavior", ["evolve", "try_evolve", "lenient"])
def test_a_name_that_was_given_up_and_comes_again_is_one_column(behavior: str) -> None:
    """`b` stayed in the target: of a table made anew, of another behaviour, or by somebody else's hand."""
    onto = planned(("id", "b"), RenameColumnEvent(T, "a", "b"), present=("id", "b", "a"), behavior=behavior)
    assert sorted(name for name, _ in onto) == sorted({name for name, _ in onto})
    assert dict(onto)["b"] == "a"


def test_a_default_follows_its_column_under_its_later_name() -> None:
    named = Column("c", LogicalType(TypeKind.INT64))
    schema = TableSchema((Column("id", INT, nullable=False), Column("a", INT), named), ("id",))
    events = (
        AddColumnEvent(T, Column("b", INT, default="7")),
        RenameColumnEvent(T, "b", "c"),
        AlterColumnTypeEvent(T, "c", named.type),
    )
    plan = plan_columns(
        lake_abilities("Delta"),
        [pa.field("id", pa.int32()), pa.field("a", pa.int32())],
        TableCommit(2, 1, T, T, schema, events, (), {}),
        list(schema.arrow()),
        ChangeRules(upsert=True, behavior=SchemaChangeBehavior.LENIENT),
    )
    assert constant_of(T, plan.columns[-1]) == pa.scalar(7, pa.int64())


def test_a_lake_that_is_emptied_takes_any_type_and_copies_nothing() -> None:
    text = LogicalType(TypeKind.STRING)
    schema = TableSchema((Column("id", INT, nullable=False), Column("b", text)), ("id",))
    events = RenameColumnEvent(T, "a", "b"), TruncateTableEvent(T), AlterColumnTypeEvent(T, "b", text)
    plan = plan_columns(
        lake_abilities("Delta"),
        [pa.field("id", pa.int32()), pa.field("a", pa.int32())],
        TableCommit(2, 1, T, T, schema, events, (), {}),
        list(schema.arrow()),
        ChangeRules(upsert=True, behavior=SchemaChangeBehavior.LENIENT),
    )
    assert plan.emptied
    assert [(p.column, p.values_of) for p in plan.columns] == [
        (pa.field("id", pa.int32()), "id"),
        (pa.field("a", pa.int32()), "a"),
        (pa.field("b", pa.string()), None),
    ]
