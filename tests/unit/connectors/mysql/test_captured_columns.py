"""The configured part of a table, and what statements make of it."""

from __future__ import annotations

import pytest

from raycdc.connectors.mysql.snapshot.row_filter import changed_meaning, uncapturable
from raycdc.connectors.mysql.values.documents import Capture
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.model import TableId

T = TableId("shop", "t")


def table(column_type: str, *, charset: str = "", collation: str = "") -> MySqlTable:
    column = MySqlColumn("x", column_type, charset, collation)
    return MySqlTable(T, (MySqlColumn("id", "int(11)", nullable=False), column), ("id",))


def text(column_type: str, collation: str = "utf8mb4_bin") -> MySqlTable:
    return table(column_type, charset=collation.partition("_")[0], collation=collation)


@pytest.mark.parametrize(
    ("condition", "before", "after", "alike"),
    [
        ("x = 1", table("int(11)"), table("bigint(20)"), True),
        ("x = 0.5", table("decimal(6,2)"), table("decimal(8,3)"), True),
        ("x > 0.1", table("float"), table("double"), False),
        ("x > 0.1", table("float"), table("float"), True),
        ("x = 'a'", text("varchar(10)"), text("varchar(20)"), True),
        ("x = 'a'", text("varchar(10)"), text("varchar(10)", "utf8mb4_general_ci"), False),
        ("x LIKE 'a%'", text("varchar(10)", "latin1_bin"), text("varchar(10)"), False),
        ("x = 'a'", text("enum('a')"), text("enum('a','b')"), True),
        ("x = 'a'", text("enum('a')"), text("varchar(10)"), True),
        ("id = 1", text("varchar(10)"), text("varchar(10)", "utf8mb4_general_ci"), True),
        ("NOT (id = 1 OR x IS NULL)", table("float"), table("double"), False),
    ],
)
def test_a_filter_is_bound_to_what_its_columns_compare_by(
    condition: str, before: MySqlTable, after: MySqlTable, alike: bool
) -> None:
    assert changed_meaning(before, after, Capture(condition)) == (None if alike else "x")


@pytest.mark.parametrize(
    ("capture", "why"),
    [
        (Capture("y = 1"), "source.snapshot.filter: shop.t: there is no column 'y'"),
        (Capture("x = 1"), "source.snapshot.filter: shop.t: x is json, which cannot be compared"),
        (Capture(columns=("id", "y")), "source.columns: shop.t has no column 'y'"),
        (Capture("id = 1", ("id",)), ""),
    ],
)
def test_what_cannot_be_captured_is_named(capture: Capture, why: str) -> None:
    found = uncapturable(table("json"), capture)
    assert found.startswith(why) if why else not found


@pytest.mark.parametrize(
    ("condition", "described", "reason"),
    [
        ("x = 'Ω'", text("varchar(9)", "latin1_bin"), "the column's character set latin1 has no 'Ω'"),
        ("x = '€'", text("varchar(9)", "latin1_bin"), ""),
        ("x LIKE '%😀'", text("varchar(9)", "utf8mb3_general_ci"), "the column's character set utf8mb3 has no '😀'"),
        ("x = '😀'", text("varchar(9)"), ""),
        ("x = 'é'", text("varchar(9)", "ascii_bin"), "the column's character set ascii has no 'é'"),
        ("x IN ('a', 'Ж')", text("enum('a')", "latin1_bin"), "the column's character set latin1 has no 'Ж'"),
        ("x = '漢'", text("varchar(9)", "sjis_bin"), ""),
        ("x = '한'", text("varchar(9)", "sjis_bin"), "the column's character set sjis has no '한'"),
        ("x = '한'", text("varchar(9)", "gb18030_bin"), ""),
        ("x > 0.1", table("float(7,2)"), "the server compares such a column by rounded values"),
        ("x BETWEEN 0 AND 1", table("double(7,2)"), "the server compares such a column by rounded values"),
        ("x IS NULL", table("float(7,2)"), ""),
        ("x = '1'", text("enum('a','b')"), "no label is written so"),
        ("x IN ('a', '2')", text("enum('a','1')"), "no label is written so"),
        ("x = '1'", text("enum('0','1')"), ""),
        ("x = '1a'", text("enum('a','b')"), ""),
        ("x = '1'", text("varchar(9)"), ""),
    ],
)
def test_what_the_server_would_compare_otherwise_is_refused(condition: str, described: MySqlTable, reason: str) -> None:
    found = uncapturable(described, Capture(condition))
    assert reason in found if reason else not found
