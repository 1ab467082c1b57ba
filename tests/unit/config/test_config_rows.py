"""``[[transform]]`` and ``[[mask]]`` in a configuration: what is wrong in them is told with its place."""

from __future__ import annotations

import tomllib

import pytest

from raycdc.config import PipelineConfig, Secret, config_from_dict
from raycdc.config.reference import json_schema, reference_page
from raycdc.errors import ConfigError
from raycdc.model.rules.mask import Mask
from raycdc.model.rules.transform import Transform

HEAD = """
[pipeline]
name = "shop"
[source]
type = "mysql"
user = "cdc"
tables = ["shop.orders", 'shop\\.item.*']
[sink]
type = "delta"
path = "./lake"
"""


def load(text: str) -> PipelineConfig:
    return config_from_dict(tomllib.loads(HEAD + text), environment={"KEY": "hidden"})


def test_sections_become_what_the_way_of_the_data_has() -> None:
    config = load(
        """
        [[transform]]
        table = "shop.orders"
        projection = "*, f(qty) AS x"
        filter = "qty > 0"
        primary_keys = ["id"]
        on_delete = "soft"
        deleted_column = "gone"
        udf = { f = "shop_functions:f" }
        [[mask]]
        columns = "shop.orders.email"
        method = "hash"
        key = "${env:KEY}"
        [[mask]]
        columns = '.*\\.password'
        method = "mask"
        """
    )
    assert config.transformed().all == (
        Transform(
            table="shop.orders", projection="*, f(qty) AS x", filter="qty > 0", primary_keys=("id",), on_delete="soft",
            deleted_column="gone", udfs=(("f", "shop_functions:f"),),
        ),
    )  # fmt: skip
    assert config.masked().all == (
        Mask("shop.orders.email", "hash", key=b"hidden"), Mask(r".*\.password", "mask", 8)
    )  # fmt: skip
    assert "hidden" not in repr(config)
    assert config.masks[0].key == Secret("hidden")
    assert config.warnings == ()
    literal = load('[[mask]]\ncolumns = "shop.orders.a"\nmethod = "hash"\nkey = "told"')
    assert literal.warnings[0].startswith("mask[0].key is written in the configuration")
    assert "told" not in literal.warnings[0]


T = '[[transform]]\ntable = "shop.orders"\n'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[[transform]]\ntable = "orders"', "transform[0].table: 'orders' can match no table"),
        ('[[transform]]\ntable = "shop.others"', "transform[0].table: shop.others is not captured"),
        (T + 'projektion = "*"', 'transform[0].projektion: unknown key; did you mean "proj'),
        (T + 'projection = "a, f(b"', "transform[0].projection: character 5: ( is never"),
        (T + 'filter = "a = \'b"', "transform[0].filter: character 5: ' is never"),
        (T + 'primary_keys = ["a", "A"]', "transform[0].primary_keys: names a column twice"),
        (T + 'partition_by = ["hex(a)"]', 'transform[0].partition_by: "hex(a)" is neither a column nor years'),
        (T + 'partition_by = ["bucket(a)"]', 'transform[0].partition_by: "bucket(a)" is spelled bucket(16, column)'),
        (T + 'partition_by = ["a", "A"]', "transform[0].partition_by: partitions twice by the same"),
        (T + 'on_delete = "softly"', 'transform[0].on_delete: "softly" is not one of'),
        (T + 'deleted_column = "x"', 'transform[0]: deleted_column is for on_delete = "soft"'),
        (T + 'udf = { f = "no path" }', 'transform[0].udf: f = "no path" is not MODULE:NAME'),
        ("[transform]\ntable = 1", "transform: write each one under [[transform]]"),
        ('[[mask]]\ncolumns = "email"\nmethod = "drop"', "mask[0].columns: 'email' can match no column"),
        ('[[mask]]\ncolumns = "shop.others.a"\nmethod = "drop"', "mask[0].columns: shop.others is not captured"),
        ('[[mask]]\ncolumns = "shop.orders.a"\nmethod = "hash"', 'mask[0]: method = "hash" needs a key'),
        ('[[mask]]\ncolumns = "shop.orders.a"\nmethod = "drop"\nlength = 3', "mask[0]: length is for"),
        ('[[mask]]\ncolumns = "shop.orders.a"\nmethod = "truncate"', 'mask[0]: method = "truncate" needs a length'),
        ('[[mask]]\ncolumns = "shop.(.a"\nmethod = "drop"', "mask[0].columns: 'shop.(.a' is not a regular expression"),
    ],
)  # fmt: skip
def test_a_problem_is_told_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text)
    (told,) = caught.value.problems
    assert told.startswith(problem)


def test_the_reference_and_the_schema_know_them() -> None:
    page = reference_page()
    assert "## [[transform]]" in page
    assert "| `on_delete` | `delete`, `soft` |" in page
    assert "## [[mask]]" in page
    assert {"transform", "mask", "route"} <= json_schema()["properties"].keys()
