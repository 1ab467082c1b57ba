"""The statement that ``raycdc plan`` shows for a database's target says which columns take no NULL."""

from __future__ import annotations

import pytest

from raycdc.model import Column, LogicalType, TableId, TypeKind
from raycdc.sinks.api import TargetShape
from raycdc.sinks.jdbc.plugin import JdbcSinkConfig
from raycdc.sinks.jdbc.sink import JdbcSink

COLUMNS = (
    Column("id", LogicalType(TypeKind.INT64), nullable=False),
    Column("a", LogicalType(TypeKind.INT32), nullable=False),
    Column("b", LogicalType(TypeKind.INT32)),
    Column("day", LogicalType(TypeKind.DATE), nullable=False),
)


@pytest.mark.parametrize(
    ("url", "key", "statement"),
    [
        (
            "jdbc:postgresql://h/d",
            ("id",),
            'CREATE TABLE "shop"."t" ("id" bigint, "a" integer NOT NULL, "b" integer, "day" date, PRIMARY KEY ("id"))',
        ),
        ("jdbc:mysql://h/d", (), "CREATE TABLE `shop`.`t` (`id` bigint, `a` int, `b` int, `day` date)"),
        (
            "jdbc:mysql://h/d",
            ("id",),
            "CREATE TABLE `shop`.`t` (`id` bigint, `a` int NOT NULL, `b` int, `day` date, PRIMARY KEY (`id`))",
        ),
    ],
)
def test_columns_that_take_no_null_at_the_source_take_none_in_an_upsert_target(
    url: str, key: tuple[str, ...], statement: str
) -> None:
    sink = JdbcSink(JdbcSinkConfig(url=url, user="u"))
    assert sink.statement(TargetShape(TableId("shop", "t"), COLUMNS, key)) == statement
