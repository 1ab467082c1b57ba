"""Options of the data source: what is wrong is told together, and of a configuration one table's source is left."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from raycdc.datasource.options import ReadOptions
from raycdc.datasource.source import create_views
from raycdc.errors import ConfigError
from raycdc.model import TableId

CONFIG = r"""
[pipeline]
name = "shop"
mode = "snapshot"

[source]
type = "mysql"
user = "cdc"
password = "secret"
tables = ['shop\..*']
exclude = ['shop\.secret']
columns = { "shop.orders" = ["id", "name"], "shop.items" = ["id"] }
snapshot = { chunk_rows = 7, key = { "shop.items" = "id" } }

[[route]]
table = 'shop\..*'
to = "lake.all"

[sink]
type = "no such sink: only the source counts"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "shop.toml"
    path.write_text(CONFIG)
    return path


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        ReadOptions.of({"Confg": "a", "until": "later", "truncate": "no"})
    told = " ".join(raised.value.problems)
    for part in (
        "'config' is missing",
        'did you mean "config"',
        "'table' is missing",
        "until = 'later'",
        "'no': it is",
    ):
        assert part in told
    assert len(raised.value.problems) == 5


def test_the_pipeline_captures_the_table_alone_and_goes_nowhere(config: Path) -> None:
    options = ReadOptions.of({"CONFIG": str(config), "table": "shop.orders"})
    assert pickle.loads(pickle.dumps(options)) == options
    made = options.pipeline().config
    assert made.source.captures(TableId("shop", "orders"))
    assert not made.source.captures(TableId("shop", "items"))
    assert made.source.columns == {"shop.orders": ("id", "name")}  # type: ignore[attr-defined]
    assert made.source.snapshot.key == {}  # type: ignore[attr-defined]
    assert made.source.snapshot.chunk_rows == 7  # type: ignore[attr-defined]
    assert made.routes == ()
    assert made.pipeline.state == "state/shop.spark/shop.orders"


def test_a_name_with_metacharacters_is_that_table(config: Path) -> None:
    made = ReadOptions.of({"config": str(config), "table": "shop.a+b$"}).pipeline().config
    assert made.source.captures(TableId("shop", "a+b$"))
    assert not made.source.captures(TableId("shop", "aab"))


def test_a_read_has_a_filter_of_its_own(config: Path) -> None:
    options = ReadOptions.of({"config": str(config), "table": "shop.orders", "filter": "id > 5"})
    made = options.pipeline().config
    assert made.source.snapshot.filter == {"shop.orders": "id > 5"}  # type: ignore[attr-defined]
    limited = ReadOptions.of({"config": str(config), "table": "shop.orders", "limit": "5"})
    with pytest.raises(ConfigError, match="limit"):
        limited.pipeline()


def test_a_stream_may_have_its_state_elsewhere(config: Path) -> None:
    options = ReadOptions.of({"config": str(config), "table": "shop.orders", "state": "/mnt/state"})
    assert options.pipeline().config.pipeline.state == "/mnt/state"


def test_two_tables_of_one_name_cannot_both_have_a_view() -> None:
    with pytest.raises(ConfigError, match=r"shop\.orders and `old\.shop`\.Orders cannot both have a view"):
        create_views(None, "shop.toml", ["shop.orders", "`old.shop`.Orders"])


def test_the_state_of_a_table_is_one_folder_whatever_its_name(config: Path) -> None:
    folders = [
        ReadOptions(str(config), TableId("shop", name)).pipeline().config.pipeline.state for name in ("t", "../t")
    ]
    assert [folder.rpartition(".spark/")[2] for folder in folders] == ["shop.t", "shop...%2Ft"]
