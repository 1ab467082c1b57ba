"""Routes: which target tables a source table goes to, what is refused, and what the configuration says of it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from raycdc.cli.planning.check import check_routes
from raycdc.config import PipelineConfig, config_from_dict
from raycdc.config.reference import json_schema, reference_page
from raycdc.errors import ConfigError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution.events import TruncateTableEvent
from raycdc.model.evolution.targets import TargetSchema, changed_routes, targets_of
from raycdc.model.rules.routes import Route, RouteMode, Router, check_target

ORDERS, ITEMS = TableId("shop", "orders"), TableId("shop", "item_07")
SCHEMA = TableSchema((Column("id", LogicalType(TypeKind.INT64), nullable=False),), ("id",))


def targets(source: str, *routes: tuple[str, ...], mode: RouteMode = "all_match") -> list[str]:
    return [str(t) for t in Router([Route(*route) for route in routes], mode).targets(TableId.parse(source))]


def test_a_table_without_a_route_keeps_its_name() -> None:
    assert targets("shop.orders") == ["shop.orders"]
    assert targets("shop.orders", ("shop.items", "lake.items")) == ["shop.orders"]
    assert not Router()


@pytest.mark.parametrize(
    ("table", "to", "symbol", "target"),
    [
        ("shop.item_07", "lake.item", "", "lake.item"),
        (r"shop\.item_\d+", "lake.item", "", "lake.item"),
        (r"(shop)\.item_(\d+)", "lake_$1.item$2", "", "lake_shop.item07"),
        (r"(?P<db>.*)\.item_(?P<number>\d+)", "$<db>.i_$<number>", "", "shop.i_07"),
        (r"(.*\.item)_\d+", "$1", "", "shop.item"),
        (r"shop\..*", "lake.ods_<>", "<>", "lake.ods_item_07"),
        (r"shop\.(.*)", "lake.$1_{}_{}", "{}", "lake.item_07_item_07_item_07"),
        (r"shop\..*", "lake.a$$1", "", "lake.a$1"),
        (r"shop\.item(_x)?_07", "lake.item$1", "", "lake.item"),
    ],
)
def test_where_a_route_leads(table: str, to: str, symbol: str, target: str) -> None:
    assert targets("shop.item_07", (table, to, symbol)) == [target]


def test_what_a_group_or_the_symbol_put_in_is_not_read_again() -> None:
    assert targets("shop.$1", (r"(.*)\..*", "$1.<>", "<>")) == ["shop.$1"]
    assert targets("<>.orders", (r"(.*)\.(.*)", "$1.x<>", "<>")) == ["<>.xorders"]


def test_a_regular_expression_must_match_the_whole_name() -> None:
    assert targets("shop.orders_old", (r"shop\.orders", "lake.x")) == ["shop.orders_old"]


def test_all_routes_apply_or_the_first_one() -> None:
    routes = ((r"shop\..*", "lake.<>", "<>"), ("shop.orders", "backup.orders"), (r".*\.orders", "lake.orders"))
    assert targets("shop.orders", *routes) == ["lake.orders", "backup.orders"]
    assert targets("shop.orders", *routes, mode="first_match") == ["lake.orders"]
    assert targets("shop.orders", *routes[1:], mode="first_match") == ["backup.orders"]


@pytest.mark.parametrize(
    ("table", "to", "text"),
    [
        ("shop.orders", "lake.$1", "$1 is no group: shop.orders has no groups"),
        (r"shop\.(a|b)", "lake.$2", r"$2 is no group: shop\.(a|b) has 1 group"),
        (r"shop\.(a|b)", "lake.$0", r"$0 is no group"),
        (r"shop\.(?P<x>a|b)", "lake.$<y>", "$<y> is no group: those of shop\\.(?P<x>a|b) with a name are x"),
        (r"shop\.(a|b)", "lake.$x", '"$x" stands for nothing; write $1 or $<name> for a group, and $$ for a dollar'),
        (r"shop\.(a|b)", "lake.a$", '"$" stands for nothing'),
        (r"shop\..*", "item", '"item", which is not DATABASE.TABLE'),
        (r"shop\..*", "lake.", '"lake.", which is not DATABASE.TABLE'),
        (r"shop\.(.*)", ".$1", '".$1", which is not DATABASE.TABLE'),
        (r"shop\..*", "lake.a/b", '"lake.a/b", which cannot be the name of a table'),
        (r"shop\..*", "lake...", '"lake...", which cannot be the name of a table'),
    ],
)
def test_targets_that_nobody_can_have_are_refused(table: str, to: str, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        check_target(table, to)


def test_a_name_that_only_the_table_makes_illegal_is_refused_when_it_comes() -> None:
    router = Router([Route(r"shop\.item_?(.*)", "lake.$1")])
    assert router.targets(ITEMS) == (TableId("lake", "07"),)
    with pytest.raises(ConfigError, match=r'route\[0\]\.to: of shop\.item it makes "lake\.", which is not DATABASE'):
        router.targets(TableId("shop", "item"))


# -- configuration ------------------------------------------------------------------------------------------------


def config(*routes: dict[str, Any], **pipeline: Any) -> PipelineConfig:
    return config_from_dict(
        {
            "pipeline": {"name": "shop", **pipeline},
            "source": {"type": "mysql", "user": "u", "tables": ["shop.orders", r"shop\.item_.*"]},
            "sink": {"type": "delta", "path": "./lake"},
            "route": list(routes),
        }
    )


def problems(*routes: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        config(*routes)
    return caught.value.problems


def test_routes_of_a_configuration_make_a_router() -> None:
    routes = ({"table": r"shop\.(.*)", "to": "lake.$1"}, {"table": "shop.orders", "to": "b.<>", "replace_symbol": "<>"})
    assert config(*routes).router().targets(ORDERS) == (TableId("lake", "orders"), TableId("b", "orders"))
    assert config(*routes, route_mode="first_match").router().targets(ORDERS) == (TableId("lake", "orders"),)
    assert config().router().targets(ORDERS) == (ORDERS,)


def test_every_mistake_in_routes_is_told_with_its_place() -> None:
    assert problems(
        {"table": "shop.orders", "to": "lake.$1"},
        {"table": "(", "to": "x"},
        {"to": "lake.x", "tabel": "a.b"},
        {"table": "shop.order", "to": "lake.x"},
        {"table": r"shop\..*", "to": "item"},
    ) == (
        "route[0].to: $1 is no group: shop.orders has no groups",
        "route[1].table: '(' is not a regular expression: missing ), unterminated subpattern at character 1",
        'route[2].table: is required, e.g. table = "shop\\.item_(\\d+)"',
        'route[2].tabel: unknown key; did you mean "table"?',
        'route[4].to: "item", which is not DATABASE.TABLE',
        "route[3].table: shop.order is not captured; put it into source.tables, or correct the name",
    )


def test_a_route_in_one_pair_of_brackets_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"route: write each one under \[\[route\]\], in two pairs of brackets"):
        config_from_dict(
            {
                "pipeline": {"name": "shop"},
                "source": {"type": "mysql", "user": "u", "tables": ["shop.orders"]},
                "sink": {"type": "delta", "path": "./lake"},
                "route": {"table": "shop.orders", "to": "a.b"},
            }
        )


def test_routes_are_in_the_reference_and_in_the_json_schema() -> None:
    assert "## [[route]]" in reference_page()
    assert json_schema()["properties"]["route"]["type"] == "array"


def test_check_tells_of_routes_that_no_table_takes() -> None:
    options = config(
        {"table": "shop.orders", "to": "lake.o"},
        {"table": "shop.item_1", "to": "lake.i"},
        {"table": r"shop\.x.*", "to": "lake.x"},
    ).routes
    assert [(found.text, found.required, found.ok) for found in check_routes(options, [ORDERS, ITEMS])] == [
        ("route[1].table: there is no table shop.item_1.", True, False),
        (r"route[2].table: the pattern shop\.x.* matches no captured table yet.", False, False),
    ]


# -- what an epoch means for targets ------------------------------------------------------------------------------


def test_a_target_takes_the_changes_of_its_table_under_its_own_name() -> None:
    change = TruncateTableEvent(ORDERS)
    router = Router([Route("shop.orders", "lake.o"), Route("shop.orders", "backup.o")])
    made = targets_of({ORDERS: (SCHEMA, (change,)), ITEMS: (SCHEMA, ())}, {}, router, upsert=True)
    assert [(str(share.name), share.sources, share.changes) for share, _ in made] == [
        ("lake.o", (ORDERS,), (TruncateTableEvent(TableId("lake", "o")),)),
        ("backup.o", (ORDERS,), (TruncateTableEvent(TableId("backup", "o")),)),
        ("shop.item_07", (ITEMS,), ()),
    ]
    assert [after for _, after in made] == [TargetSchema((ORDERS,), SCHEMA)] * 2 + [TargetSchema((ITEMS,), SCHEMA)]


def test_routes_that_lead_elsewhere_than_before_are_told() -> None:
    here = {ORDERS: (ORDERS,), ITEMS: (ITEMS,)}
    assert changed_routes(here, Router()) == []
    assert changed_routes(here, Router([Route("shop.other", "lake.other")])) == []
    assert changed_routes(here, Router([Route("shop.orders", "shop.orders"), Route("shop.orders", "lake.o")])) == [
        "shop.orders went to shop.orders so far, and would go to lake.o and shop.orders from now on"
    ]
    assert changed_routes({TableId("lake", "o"): (ORDERS,)}, Router()) == [
        "shop.orders went to lake.o so far, and would go to shop.orders from now on"
    ]
