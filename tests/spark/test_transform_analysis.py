"""What Spark's analyzer says of expressions, in our words: the columns they give, and where they are wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from raycdc.errors import ConfigError, SchemaError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.rules.transform import Transform, Transforms
from raycdc.spark.transforms import SparkResolver, TransformSession
from raycdc.transform import PlainResolver, ResolvedTransform

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ORDERS = TableId("shop", "orders")
SCHEMA = TableSchema(
    (
        Column("id", LogicalType(TypeKind.UINT64), nullable=False),
        Column("Name", LogicalType(TypeKind.ENUM)),
        Column("qty", LogicalType(TypeKind.INT32), nullable=False),
        Column("price", LogicalType(TypeKind.DECIMAL, precision=10, scale=2)),
        Column("at", LogicalType(TypeKind.TIMESTAMP, fsp=3)),
        Column("my col", LogicalType(TypeKind.STRING)),
    ),
    ("id",),
)


def resolve(spark: Any, **options: Any) -> ResolvedTransform:
    transform = Transform(table="shop.orders", **options)
    resolver = SparkResolver(TransformSession(lambda: spark, Transforms([transform])))
    return resolver.resolve(ORDERS, transform, SCHEMA, "transform[2]")


def test_computed_columns_have_sparks_types_and_others_their_own(spark: Any) -> None:
    found = resolve(
        spark,
        projection="*, price * qty AS amount, upper(name) AS loud, qty > 1 AS many, CAST(qty AS BIGINT) wide, "
        "date(at) AS day, CAST(at AS TIMESTAMP_NTZ) AS wall, at + INTERVAL 1 DAY AS later, 1.5 AS ratio, 'x' AS x, "
        "name AS label, `my col` AS mine, _db AS origin, sqrt(qty) `the root`, X'00' AS raw",
        filter="qty > 0 AND _table <> 'other'",
    )
    names = [column.name for column in found.schema.columns]
    assert names[:6] == [column.name for column in SCHEMA.columns]
    described = {c.name: (c.type.kind.value, c.type.spark()) for c in found.schema.columns[6:]}
    assert described == {
        "amount": ("decimal", "decimal(21,2)"),
        "loud": ("string", "string"),
        "many": ("boolean", "boolean"),
        "wide": ("int64", "bigint"),
        "day": ("date", "date"),
        "wall": ("datetime", "timestamp_ntz"),
        "later": ("timestamp", "timestamp"),
        "ratio": ("decimal", "decimal(2,1)"),
        "x": ("string", "string"),
        "label": ("enum", "string"),
        "mine": ("string", "string"),
        "origin": ("string", "string"),
        "the root": ("float64", "double"),
        "raw": ("binary", "binary"),
    }
    assert found.schema.columns[0].type == SCHEMA.columns[0].type
    assert found.schema.primary_key == ("id",)
    assert found.uses.columns == {"price", "qty", "name", "at", "my col"}
    assert [column.name for column in found.columns if not column.sql and not column.flows] == [
        "x", "label", "mine", "origin"]  # fmt: skip


@pytest.mark.parametrize(
    ("projection", "text"),
    [
        ("id, pricee * 2 AS x", r"projection, character 5: there is no column 'pricee'; near: .*price"),
        ("id, qty + nam AS x", r"projection, character 11: there is no column 'nam'"),
        ("id, qty AND 2 3 AS x", r"projection, character 15: .*Syntax error"),
        ("id, foo(qty) AS x", r"projection, character 5: .*foo"),
        ("id, qty + 1", r"projection, character 5: 'qty \+ 1' needs a name"),
        ("id, at + name AS x", r"projection, character 5: .*"),
        ("id, array(qty) AS x", r"projection, character 5: column 'x' is ARRAY<INT>, which no sink has"),
        ("id, NULL AS x", r"projection, character 5: column 'x' is VOID"),
        ("id, rand() AS x", r"character 5: .* has another value each time it is computed"),
        ("id, uuid() AS x", r"character 5: .* has another value each time"),
        ("id, date_diff(now(), at) AS x", r"another value each time it is computed \(Now\)"),
        ("id, current_date AS x", r"another value each time it is computed \(CurrentDate\)"),
        ("id, sum(qty) AS x", r"takes more than the values of one row"),
        ("id, row_number() OVER (ORDER BY id) AS x", r"takes more than the values of one row"),
        ("id, explode(array(1, 2)) AS x", r"makes more than one row of a row"),
        ("id, (SELECT 1) AS x", r"asks other tables \(ScalarSubquery\)"),
        ("id, to_json(struct(*)) AS x", r"takes all columns, and would be another value when one is added"),
        ("*, qty + 1 AS NAME", r"the column 'NAME' is in the result twice"),
    ],
)
def test_what_cannot_be_is_told_with_table_place_and_reason(spark: Any, projection: str, text: str) -> None:
    with pytest.raises(SchemaError, match=rf"^transform\[2\]: shop\.orders: .*{text}"):
        resolve(spark, projection=projection)


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        ("qty > nope", r"filter, character 7: there is no column 'nope'"),
        ("qty + 1", r"filter: it is INT, not true or false"),
        ("rand() < 0.5", r"filter, character 1: .* another value each time"),
        ("_ts_ms > 5", r"the filter cannot use _ts_ms"),
        ("qty IN (SELECT 1)", r"filter, character 1: .* asks other tables"),
    ],
)
def test_a_filter_that_cannot_be_is_told(spark: Any, condition: str, text: str) -> None:
    with pytest.raises(SchemaError, match=rf"^transform\[2\]: shop\.orders: .*{text}"):
        resolve(spark, filter=condition)


@pytest.mark.parametrize("projection", ["*", "ID AS n, * EXCEPT (id)", "name, 1 AS one, 'a' AS a, true AS t, id",
                                        "`my col` AS x, id, _pos AS place, _ts_ms AS ts"])  # fmt: skip
def test_plain_projections_are_what_spark_finds(spark: Any, projection: str) -> None:
    plain = PlainResolver().resolve(ORDERS, Transform(table="x.y", projection=projection), SCHEMA, "")
    # The filter makes it one for Spark.
    assert resolve(spark, projection=projection, filter="true").schema == plain.schema


FUNCTIONS = """
import pyarrow as pa
from pyspark.sql.functions import arrow_udf, udf

@udf(returnType="int", useArrow=True)
def doubled(value):
    return value * 2

unsure = udf(lambda value: value, "int").asNondeterministic()

def plain(value):
    return value
"""


def test_functions_are_found_by_their_path(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_functions_of_test.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    use = {"projection": "id, doubled(qty) AS x"}
    found = resolve(spark, udfs=(("doubled", "shop_functions_of_test:doubled"),), **use)
    assert found.schema.column("x").type == LogicalType(TypeKind.INT32)
    assert sys.path[-1] != str(tmp_path)
    for path, text in {
        "shop_functions_of_test:none": "cannot be imported: .*none",
        "no_such_module:none": "cannot be imported: No module",
        "shop_functions_of_test:plain": "does not say what it returns",
        "shop_functions_of_test:unsure": "is not deterministic",
    }.items():
        with pytest.raises(ConfigError, match=rf"transform\[0\].udf.doubled: .*{text}"):
            resolve(spark, udfs=(("doubled", path),), **use)
