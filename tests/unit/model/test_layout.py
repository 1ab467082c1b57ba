"""Partitions and properties of targets: how they are spelled, and what a table's columns and its sink allow."""

from __future__ import annotations

from typing import Any

import pytest

from raycdc.errors import ConfigError, SchemaError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import DropColumnEvent, RenameColumnEvent
from raycdc.model.rules.layout import PartitionField, TableLayout, partition_field, partition_fields
from raycdc.model.rules.transform import Transform, Transforms
from raycdc.sinks.delta.layout import folder_of
from raycdc.sinks.delta.plugin import DeltaSinkConfig
from raycdc.sinks.delta.sink import DeltaSink
from raycdc.sinks.files.plugin import ParquetSinkConfig
from raycdc.sinks.targets import shape_of
from raycdc.transform import PlainResolver, TransformedTables, TransformUse, layout_of
from raycdc.transform.tables import transformed_changes

ORDERS = TableId("shop", "orders")
SCHEMA = TableSchema(
    (
        Column("id", LogicalType(TypeKind.INT64), nullable=False),
        Column("Country", LogicalType(TypeKind.STRING)),
        Column("at", LogicalType(TypeKind.DATETIME, fsp=6)),
        Column("price", LogicalType(TypeKind.FLOAT64)),
    ),
    ("id",),
)


@pytest.mark.parametrize(
    ("text", "field", "sql"),
    [
        ("country", PartitionField("country"), "`country`"),
        (" `a ``b` ", PartitionField("a `b"), "`a ``b`"),
        ("days(at)", PartitionField("at", "day"), "days(`at`)"),
        ("YEAR( at )", PartitionField("at", "year"), "years(`at`)"),
        ("bucket(16, id)", PartitionField("id", "bucket", 16), "bucket(16, `id`)"),
        ("truncate( 4,`x y`)", PartitionField("x y", "truncate", 4), "truncate(4, `x y`)"),
    ],
)
def test_partitions_are_spelled_as_in_sql(text: str, field: PartitionField, sql: str) -> None:
    assert (partition_field(text), field.sql()) == (field, sql)
    assert partition_field(sql) == field


@pytest.mark.parametrize("text", ["", "a b", "bucket(0, a)", "days(3, a)", "truncate(a)", "hex(a)", "days(at", "a, b"])
def test_what_is_no_partition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"neither a column|is spelled"):
        partition_field(text)


def tables(sink: Any, *partition_by: str, projection: str = "*", **options: str) -> TransformedTables:
    layout = TableLayout(partition_fields(partition_by), tuple(options.items()))
    transforms = Transforms([Transform(table="shop.orders", projection=projection, layout=layout)])
    return TransformedTables(transforms, use=TransformUse(upsert=True, no_layout=sink.no_layout))


DELTA = DeltaSinkConfig(path="lake")


@pytest.mark.parametrize(
    ("sink", "partition_by", "text"),
    [
        (DELTA, ["land"], "partition_by names 'land', which the projection does not give"),
        (DELTA, ["days(at)"], r"partition_by: days\(`at`\): Delta tables are partitioned by columns alone.*date\(at\)"),
        (DELTA, ["at"], r"partition_by: column 'at' is timestamp\[us\]: readers of Delta tables agree"),
        (DELTA, ["price"], "partition_by: column 'price' is double"),
        (DELTA, ["id", "country", "at", "price"], "partition_by: column 'at'"),
        (ParquetSinkConfig(path="x"), ["id"], 'partition_by: a target of sink.type = "parquet" has none'),
    ],
)
def test_what_cannot_be_is_told_with_table_and_column(sink: Any, partition_by: list[str], text: str) -> None:
    with pytest.raises((SchemaError, ConfigError), match=rf"^transform\[0\]: shop\.orders: {text}"):
        tables(sink, *partition_by).resolved(ORDERS, SCHEMA)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("delta.logRetentionDurations", 'is not among .*; did you mean "delta.logRetentionDuration"'),
        ("delta.setTransactionRetentionDuration", "the record of what was committed would expire"),
        ("raycdc.created_by", "is raycdc's own"),
    ],
)
def test_properties_that_would_do_harm_are_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"transform\[0\]: shop\.orders: table_options: {name} .*{text}"):
        tables(DELTA, **{name: "1"}).resolved(ORDERS, SCHEMA)


def test_a_layout_follows_the_columns_of_the_result_and_plan_shows_it() -> None:
    found = tables(DELTA, "COUNTRY", "source", projection="*, _db AS source", note="it's").resolved(ORDERS, SCHEMA)
    assert found is not None
    assert found.layout.columns == ("Country", "source")
    statement = DeltaSink(DELTA).statement(shape_of("upsert", ORDERS, found.schema, found.layout))
    assert statement.endswith(
        r"USING DELTA PARTITIONED BY (`Country`, `source`) LOCATION 'lake/shop/orders' TBLPROPERTIES ('note' = 'it\'s')"
    )


def test_a_column_that_partitions_stays_what_it_is() -> None:
    transform = Transform(table="shop.orders", layout=TableLayout(partition_fields(["country"])))
    found = PlainResolver().resolve(ORDERS, transform, SCHEMA, "transform[0]")
    for change in (DropColumnEvent(ORDERS, "country"), RenameColumnEvent(ORDERS, "Country", "land")):
        with pytest.raises(SchemaError, match=r"shop\.orders: .*_column of column '[Cc]ountry', which the"):
            transformed_changes(found, SCHEMA, [change])


def test_a_transform_that_only_lays_out_changes_no_row() -> None:
    assert tables(DELTA, "country").identity(ORDERS) == TransformedTables().identity(ORDERS) == ""


def test_tables_that_are_merged_ask_for_the_same() -> None:
    items = TableId("shop", "items")
    found = tables(DELTA, "country").resolved(ORDERS, SCHEMA)
    assert found is not None
    assert layout_of(ORDERS, {ORDERS: found}, [ORDERS]) == found.layout
    with pytest.raises(ConfigError, match=r"shop\.orders and shop\.items both go to shop\.all, with different"):
        layout_of(TableId("shop", "all"), {ORDERS: found}, [ORDERS, items])


def test_folders_have_plain_names_that_differ() -> None:
    assert folder_of({"a b": "x/y=1 ä~", "c": None}) == "a%20b=x%2Fy%3D1%20%C3%A4%7E/c=__HIVE_DEFAULT_PARTITION__"
