"""Names of tables as texts: no two tables have the same one, and each text names its table again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycdc.errors import ConfigError
from raycdc.model import TableId
from raycdc.model.rules.mask import Mask, Masks
from raycdc.model.rules.routes import Route, RouteMode, Router
from raycdc.model.rules.selector import TableSelector, plain_name, plain_table
from raycdc.model.table import FILE_NAME_BYTES, file_name

#: Names that are made of what tells parts and quotes apart, and any others.
NAMES = st.one_of(st.text("a.`\\", min_size=1, max_size=6), st.text(min_size=1, max_size=8))
TABLES = st.builds(TableId, NAMES, NAMES)
DOTTED, NAMESAKE = TableId("sec.x", "t"), TableId("sec", "x.t")


@given(TABLES)
def test_a_text_of_a_table_names_it_again(table: TableId) -> None:
    assert TableId.parse(str(table)) == table


@given(TABLES, TABLES)
def test_no_two_tables_have_one_text(one: TableId, other: TableId) -> None:
    assert (str(one) == str(other)) == (one == other)


@given(TABLES.filter(lambda table: "." not in table.db))
def test_a_text_of_earlier_releases_is_still_that_of_its_table(table: TableId) -> None:
    if "`" not in table.db:
        assert str(table) == f"{table.db}.{table.table}"


@given(TABLES)
def test_every_table_has_a_plain_name(table: TableId) -> None:
    assert plain_table(plain_name(table)) == table
    assert TableSelector([plain_name(table)]).plain_names == (table,)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (TableId("shop", "orders"), "shop.orders"),
        (NAMESAKE, "sec.x.t"),
        (DOTTED, "`sec.x`.t"),
        (TableId("a`.b", "t"), "`a``.b`.t"),
        (TableId("a\\b", "t"), "a\\b.t"),
        (TableId("`a`", "t"), "`a`.t"),
        (TableId("`a", "b`.t"), "```a`.b`.t"),
        (TableId("a.b", "`t`"), "`a.b`.`t`"),
    ],
)
def test_texts_of_names(table: TableId, text: str) -> None:
    assert str(table) == text
    assert TableId.parse(text) == table


@pytest.mark.parametrize("text", ["", ".", "a", "a.", ".b", "``"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not DATABASE\.TABLE"):
        TableId.parse(text)


@pytest.mark.parametrize(
    ("text", "selects"),
    [
        ("`sec.x`.t", {DOTTED}),
        ("`sec.x`.`t`", {DOTTED}),
        ("sec.`x.t`", {NAMESAKE}),
        ("`sec`.`x.t`", {NAMESAKE}),
        (r"sec\.x\.t", {DOTTED, NAMESAKE}),
        ("sec.x.t", {DOTTED, NAMESAKE}),
        (r".*\.t", {DOTTED, NAMESAKE}),
    ],
)
def test_quotes_choose_one_table_and_a_regular_expression_sees_none(text: str, selects: set[TableId]) -> None:
    assert {table for table in (DOTTED, NAMESAKE) if TableSelector([text]).matches(table)} == selects


def test_anything_may_stand_between_quotes() -> None:
    odd = TableId("a+b", "c`(d")
    assert plain_table("`a+b`.`c``(d`") == odd
    assert plain_name(odd) == "`a+b`.`c``(d`"
    assert plain_name(TableId("shop", "orders")) == "shop.orders"


def test_an_exclusion_may_leave_out_one_of_two_that_print_alike() -> None:
    selector = TableSelector([r"sec.*"], ["`sec.x`.t"])
    assert (selector.matches(NAMESAKE), selector.matches(DOTTED)) == (True, False)


def routed(table: TableId, *routes: tuple[str, str], mode: RouteMode = "all_match") -> list[TableId]:
    return list(Router([Route(*route) for route in routes], mode).targets(table))


def test_a_route_may_be_of_one_and_lead_to_one() -> None:
    routes = ("`sec.x`.t", "lake.a"), ("sec.`x.t`", "`lake.b`.`t.u`")
    assert routed(DOTTED, *routes) == [TableId("lake", "a")]
    assert routed(NAMESAKE, *routes) == [TableId("lake.b", "t.u")]


def test_a_group_that_matched_the_dot_of_a_database_stays_in_it() -> None:
    route = (r"(.*)\.(.*)", "$1.new_$2")
    assert routed(DOTTED, route) == [TableId("sec.x", "new_t")]
    assert routed(NAMESAKE, route) == [TableId("sec", "x.new_t")]
    assert routed(DOTTED, (r"(.*)\.(.*)", "`lake.$1`.$2")) == [TableId("lake.sec.x", "t")]
    assert routed(DOTTED, (r"(.*)", "$1")) == [TableId("sec", "x.t")]


def test_a_route_to_a_quoted_name_is_judged_as_any_other() -> None:
    with pytest.raises(ValueError, match="cannot be the name of a table"):
        Route("shop.t", "`a/b`.t")
    with pytest.raises(ValueError, match="cannot be the name of a table"):
        Route("shop.t", "`..`.t")
    with pytest.raises(ConfigError, match="cannot be the name of a table"):
        routed(TableId("a.b", "c/d"), (r"(.*)\.(.*)", "`x.$1`.$2"))


def test_a_mask_may_be_of_one_column_of_one_of_them() -> None:
    mask = Masks([Mask("`sec.x`.t.`c.d`", "drop")])
    assert mask.of(DOTTED, "C.D") is not None
    assert mask.of(NAMESAKE, "c.d") is None
    everything = Masks([Mask(r"sec\.x\.t\.c", "drop")])
    assert everything.of(DOTTED, "c") is not None
    assert everything.of(NAMESAKE, "c") is not None


@given(TABLES, TABLES)
def test_no_two_tables_have_one_file(one: TableId, other: TableId) -> None:
    assert (file_name(str(one)) == file_name(str(other))) == (one == other)
    assert not set(file_name(str(one))) & set("/\0")


def test_files_of_tables_keep_plain_names_and_cut_long_ones() -> None:
    assert file_name("shop.orders") == "shop.orders"
    assert file_name("shop.a/b") == "shop.a%2Fb"
    long = [file_name(f"shop.{'ü' * 200}{end}") for end in "ab"]
    assert long[0] != long[1]
    assert all(len(name.encode()) <= FILE_NAME_BYTES for name in long)
