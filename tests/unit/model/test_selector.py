"""Table selectors: plain names, full matches, exclusions, errors with their place."""

from __future__ import annotations

import pytest

from raycdc.errors import ConfigError
from raycdc.model import TableId
from raycdc.model.rules.selector import TableSelector, bare_dot, is_plain_name


def test_plain_name_matches_exactly_that_table() -> None:
    selector = TableSelector(["shop.orders"])
    assert selector.matches(TableId("shop", "orders"))
    assert not selector.matches(TableId("shop", "orders2"))
    assert not selector.matches(TableId("shopXorders", "x"))
    assert not selector.matches(TableId("Shop", "orders"))


def test_dot_of_a_plain_name_is_no_wildcard() -> None:
    assert not TableSelector(["a.b"]).matches(TableId("axb", "x"))


def test_pattern_must_match_the_whole_name() -> None:
    selector = TableSelector([r"shop\.item_\d+"])
    assert selector.matches(TableId("shop", "item_7"))
    assert not selector.matches(TableId("shop", "item_7_old"))
    assert not selector.matches(TableId("my_shop", "item_7"))


def test_exclude_wins() -> None:
    selector = TableSelector([r"shop\..*", "shop.audit"], ["shop.audit"])
    assert selector.matches(TableId("shop", "orders"))
    assert not selector.matches(TableId("shop", "audit"))
    assert selector.plain_names == ()


def test_plain_names_and_patterns_are_told_apart() -> None:
    selector = TableSelector(["shop.orders", r"shop\.item_.*", "shop.order-items", "shop.orders"])
    assert selector.plain_names == (TableId("shop", "orders"), TableId("shop", "order-items"))
    assert selector.patterns == (r"shop\.item_.*",)


@pytest.mark.parametrize(
    ("text", "plain"), [("a.b", True), ("a.b.c", False), ("a.", False), (".b", False), ("ab", False), ("a.b+", False)]
)
def test_what_is_a_plain_name(text: str, plain: bool) -> None:
    assert is_plain_name(text) is plain


def test_every_bad_entry_is_reported_with_its_place() -> None:
    with pytest.raises(ConfigError) as caught:
        TableSelector(["shop.orders", "orders", r"shop\.(x"], ["*.b"])
    assert caught.value.problems == (
        "source.tables[1]: 'orders' can match no table: it needs DATABASE.TABLE, e.g. 'shop.orders'",
        r"source.tables[2]: 'shop\.(x' is not a regular expression: missing ), unterminated subpattern at character 7",
        "source.exclude[0]: '*.b' is not a regular expression: nothing to repeat at character 1",
    )


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("shop.orders", ""),
        (r"shop\.order_\d", ""),
        (r"shop.order_\d", r"shop\.order_\d"),
        ("shop..*", r"shop\..*"),
        (r"shop.*", ""),
        (r"(a|b).t", ""),
    ],
)
def test_a_dot_that_means_any_character_is_told(pattern: str, meant: str) -> None:
    assert bare_dot(pattern) == meant
