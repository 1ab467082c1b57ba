"""Which rows a backfill reads of a table: a predicate that stays within its parentheses, and exact keys."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from raycdc.connectors.mysql.snapshot.chunk_reader import _with_rows
from raycdc.connectors.mysql.snapshot.planning.chunk_keys import KeyColumns
from raycdc.connectors.mysql.snapshot.planning.chunk_plan import ChunkRange
from raycdc.connectors.mysql.snapshot.rows_again import WHERE_MAX, require_rows, with_rows
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.errors import ConfigError, TableChangedError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.rules.mask import Mask, Masks
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.rereading.backfill_keys import DeletedKeys, text_of_keys
from raycdc.source.split import BackfillRows, SnapshotSplit
from raycdc.transform.masks import Masking

TABLE = MySqlTable(
    TableId("shop", "orders"),
    (
        MySqlColumn("id", "int", nullable=False),
        MySqlColumn("name", "varchar(20)", nullable=False, charset="utf8mb4", collation="utf8mb4_bin"),
        MySqlColumn("price", "decimal(9,2)", nullable=False),
        MySqlColumn("at", "datetime(3)", nullable=False),
        MySqlColumn("f", "float", nullable=False),
    ),
    primary_key=("id",),
)


def refusal(where: str, hiding: Masking | None = None) -> str:
    def connect() -> Any:
        raise AssertionError("the server is not asked")

    with pytest.raises(ConfigError) as refused:
        require_rows(connect, TABLE, BackfillRows("c", where), hiding or Masking())
    return str(refused.value)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("id = 1) OR (1 = 1", "The parentheses of"),
        ("(id = 1", "The parentheses of"),
        ("id = 1; DROP TABLE orders", "without ';'"),
        ("id = 1 -- all", "'--' begins one"),
        ("id = 1 /* all", "'/*' begins one"),
        ("name = 'it", "has no end"),
        ("  ", "is empty"),
        ("1 = 1 OR " * 2000, f"at most {WHERE_MAX:,}"),
    ],
)
def test_a_text_that_is_no_condition_is_refused_by_name(where: str, text: str) -> None:
    assert text in refusal(where)


@pytest.mark.parametrize(
    ("key", "lower", "again"),
    [
        ("old_id", 3, BackfillRows("c", "price > 1")),
        ("at", "of text", BackfillRows("c", "price > 1")),
        (None, None, BackfillRows("c", keys=text_of_keys(pa.table({"old_id": pa.array([1])})))),
        (None, None, BackfillRows("c", keys=text_of_keys(pa.table({"f": pa.array([1.5])})))),
    ],
)
def test_a_table_whose_key_is_another_one_ends_the_backfill_and_not_the_run(
    key: str | None, lower: Any, again: BackfillRows
) -> None:
    with pytest.raises(TableChangedError, match=r"shop\.orders has other key columns"):
        _with_rows(None, TABLE, ChunkRange(lower, key=key), again)


@pytest.mark.parametrize(
    ("name", "becomes", "is_over"),
    [
        ("name", {"collation": "utf8mb4_general_ci"}, True),
        ("name", {"charset": "latin1", "collation": "latin1_bin"}, True),
        ("name", {"column_type": "varchar(40)"}, False),
        ("id", {"column_type": "bigint"}, True),
        ("price", {"column_type": "decimal(9,1)"}, True),
    ],
)
def test_a_range_of_a_key_that_is_ordered_otherwise_by_now_is_not_read(
    name: str, becomes: dict[str, Any], is_over: bool
) -> None:
    """The rows that are left of the backfill would be others, and some would be in no chunk."""
    column = next(column for column in TABLE.columns if column.name == name)
    later = replace(TABLE, columns=tuple(replace(c, **becomes) if c == column else c for c in TABLE.columns))
    lower: Any = {"name": "a", "id": 3, "price": "1.50"}[name]
    again = BackfillRows("c", "f > 1", order=KeyColumns((column,)).ordering)
    half, whole = ChunkRange(lower, key=name), ChunkRange(includes_null=True, key=name)
    assert _with_rows(None, TABLE, half, again) == _with_rows(None, later, whole, again) == "(f > 1\n)"
    if is_over:
        with pytest.raises(TableChangedError, match="or another order, than when the backfill began"):
            _with_rows(None, later, half, again)
    else:
        assert _with_rows(None, later, half, again) == "(f > 1\n)"


def test_keys_that_the_table_cannot_have_any_more_end_the_backfill() -> None:
    schema = TableSchema((Column("id", LogicalType(TypeKind.INT32)),), ("id",))
    split = SnapshotSplit(TABLE.id, 0, None, None, None)
    for listed in (pa.table({"id": pa.array([1 << 40])}), pa.table({"id": pa.array(["x"])})):
        gone = DeletedKeys(
            replace(split, again=BackfillRows("c", keys=text_of_keys(listed))), SchemaDocument.of(schema)
        )
        with pytest.raises(TableChangedError, match="other key columns"):
            gone.deleted(first=0)
    other = DeletedKeys(
        replace(split, again=BackfillRows("c", keys=text_of_keys(pa.table({"old": pa.array([1])})))),
        SchemaDocument.of(schema),
    )
    with pytest.raises(TableChangedError, match="other key columns"):
        other.observe(pa.record_batch({"id": pa.array([1], pa.int32())}))


def test_a_masked_column_is_not_named_because_its_values_would_be_in_the_state() -> None:
    hiding = Masking(Masks((Mask(columns=r"shop\.orders\.name", method="drop"),)))
    assert "names name, which a [[mask]] hides" in refusal("NAME = 'x'", hiding)


def test_quotes_may_hold_anything() -> None:
    where = "name IN (')', 'a;b', \"--\", 'it''s', '\\'') AND `id` > 1"
    with pytest.raises(AssertionError, match="the server is not asked"):
        refusal(where)
    assert with_rows("id > 0", TABLE, BackfillRows("c", where)) == f"(id > 0\n) AND ({where}\n)"


@pytest.mark.parametrize(
    ("name", "values", "sql"),
    [
        ("id", pa.array([1, -2], pa.int32()), "(`id` IN (1, -2)\n)"),
        ("name", pa.array(["a'"]), "(`name` IN (_utf8mb4 X'6127' COLLATE utf8mb4_bin)\n)"),
        ("price", pa.array([Decimal("1.50")], pa.decimal128(9, 2)), "(`price` IN (1.50)\n)"),
        ("at", pa.array([1_700_000_000_125], pa.timestamp("ms")), "(`at` IN ('2023-11-14 22:13:20.125')\n)"),
    ],
)
def test_keys_are_literals_of_their_columns(name: str, values: pa.Array, sql: str) -> None:
    assert with_rows(None, TABLE, BackfillRows("c", keys=text_of_keys(pa.table({name: values})))) == sql


def test_keys_of_several_columns_are_compared_together() -> None:
    listed = text_of_keys(pa.table({"id": [1, 2], "price": pa.array([Decimal(3), Decimal(4)], pa.decimal128(9, 2))}))
    assert with_rows(None, TABLE, BackfillRows("c", keys=listed)) == "((`id`, `price`) IN ((1, 3.00), (2, 4.00))\n)"


def test_keys_without_an_exact_literal_are_refused() -> None:
    listed = text_of_keys(pa.table({"f": pa.array([1.5], pa.float32())}))
    with pytest.raises(ConfigError, match=r"Keys that are float \(f\) cannot be selected one by one"):
        with_rows(None, TABLE, BackfillRows("c", keys=listed))
