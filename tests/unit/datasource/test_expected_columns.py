"""The columns that Spark expects of a table: a column that went is an error, and never null in silence."""

from __future__ import annotations

import pytest

from raycdc.datasource.rows import ExpectedColumns
from raycdc.errors import SchemaError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import AddColumnEvent, DropColumnEvent, RenameColumnEvent

T = TableId("shop", "orders")
INT = LogicalType(TypeKind.INT32)


def schema(*names: str) -> TableSchema:
    return TableSchema(tuple(Column(name, INT) for name in names), ("id",))


def expected(*names: str, given: bool = False) -> ExpectedColumns:
    return ExpectedColumns(T, {**dict.fromkeys(names, "int"), "_op": "string", "_sign": "int"}, given=given)


def test_columns_that_are_there_and_columns_that_came_are_fine() -> None:
    expected("id", "a").require_types(schema("id", "a", "b"))
    expected("id", "a").require_kept(schema("id", "a", "b"), [AddColumnEvent(T, Column("b", INT))])
    expected("id", "a").require_kept(schema("id", "A"), [])


@pytest.mark.parametrize("change", [DropColumnEvent(T, "a"), RenameColumnEvent(T, "a", "b")])
def test_a_column_that_went_is_refused_even_if_one_of_its_name_came(
    change: DropColumnEvent | RenameColumnEvent,
) -> None:
    with pytest.raises(SchemaError, match=r"shop.orders changed its columns: a\. Load the DataFrame again"):
        expected("id", "a").require_kept(schema("id", "a"), [change])
    with pytest.raises(SchemaError, match="Correct the schema that was given"):
        expected("id", "a", given=True).require_kept(schema("id", "b"), [])


def test_a_renamed_column_of_a_stream_is_refused_until_its_new_name_is_expected() -> None:
    change = RenameColumnEvent(T, "a", "b")
    with pytest.raises(SchemaError, match="column a is called b now"):
        expected("id", "a", given=True).require_not_renamed([change])
    expected("id", "a", "b", given=True).require_not_renamed([change])
    expected("id", given=True).require_not_renamed([change])


def test_types_that_differ_are_named() -> None:
    given = ExpectedColumns(T, {"id": "bigint", "x": "int", "_sign": "bigint"}, given=True)
    with pytest.raises(SchemaError) as refused:
        given.require_types(schema("id", "a"))
    text = str(refused.value)
    assert "id is int in the table and bigint in the schema; the table has no column x; _sign is int" in text
    assert "the columns of the table (id int, a int)" in text
