"""What the columns of a lake's table become where names differ in case only."""

from __future__ import annotations

import pyarrow as pa
import pytest

from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.schema import (
    AddColumnEvent,
    DropColumnEvent,
    RenameColumnEvent,
    SchemaChangeBehavior,
    SchemaChangeEvent,
)
from raycdc.sinks.api import TableWork
from raycdc.sinks.change_rules import ChangeRules
from raycdc.sinks.lake_columns import LakeFormat, plan_columns

T = TableId("shop", "t")
INT = LogicalType(TypeKind.INT32)


def planned(
    names: tuple[str, ...],
    *events: SchemaChangeEvent,
    behavior: str = "lenient",
    present: tuple[str, ...] = ("id", "a"),
) -> list[tuple[str, str | None]]:
    """Columns and whose values they have, where the source has `names` after the events and the table `present`."""
    schema = TableSchema(tuple(Column(name, INT, nullable=name != "id") for name in names), ("id",))
    work = TableWork(2, 1, T, T, schema, events, (), {})
    plan = plan_columns(
        LakeFormat("Delta"),
        pa.schema([(name, pa.int32()) for name in present]),
        work,
        pa.schema([(name, pa.int32()) for name in names]),
        ChangeRules(upsert=True, behavior=SchemaChangeBehavior(behavior)),
    )
    return [(column.field.name, column.origin) for column in plan.columns]


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
