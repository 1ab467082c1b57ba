"""Options of single tables are judged where the configuration is read, alike for every source of tables."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from raycdc.config import SourceConfig
from raycdc.connectors.mongodb.plugin import MongoDbSourceConfig
from raycdc.connectors.mysql.plugin import MySqlSourceConfig
from raycdc.source.startup import checked

MYSQL = {"type": "mysql", "user": "cdc", "tables": [r"shop\..*"], "exclude": ["shop.audit"]}
MONGODB = {
    "type": "mongodb", "uri": "mongodb://db/", "collections": [r"shop\..*"], "exclude": ["shop.audit"],
    "startup": "snapshot",
}  # fmt: skip


@pytest.mark.parametrize("table", ["shop.audit", "crm.orders"])
@pytest.mark.parametrize(
    ("section", "model", "key", "value", "noun"),
    [
        (MYSQL, MySqlSourceConfig, "snapshot.key", "id", "tables"),
        (MYSQL, MySqlSourceConfig, "snapshot.filter", "id > 1", "tables"),
        (MYSQL, MySqlSourceConfig, "columns", ["id"], "tables"),
        (MONGODB, MongoDbSourceConfig, "snapshot.filter", "{}", "collections"),
        (MONGODB, MongoDbSourceConfig, "snapshot.fields", ["n"], "collections"),
        (MONGODB, MongoDbSourceConfig, "snapshot.limit", 1, "collections"),
        (MONGODB, MongoDbSourceConfig, "snapshot.per_collection", "single", "collections"),
        (MONGODB, MongoDbSourceConfig, "columns", {"_id": "int"}, "collections"),
    ],
)
def test_a_table_that_has_an_option_is_selected(
    section: dict[str, object], model: type[SourceConfig], key: str, value: object, noun: str, table: str
) -> None:
    def read(name: str) -> None:
        outer, _, inner = key.rpartition(".")
        by_table = {inner: {name: value}}
        model.model_validate({**section, **({outer: by_table} if outer else by_table)})

    read("shop.orders")
    with pytest.raises(ValidationError, match=f"{key}: {table} is not one of the captured {noun}"):
        read(table)


def test_a_value_that_is_refused_is_told_with_its_table() -> None:
    def require_even(value: int) -> None:
        if value % 2:
            raise ValueError(f"{value} is odd")

    checked({"shop.a": 2, "shop.b": 4}, require_even)
    with pytest.raises(ValueError, match=r"^shop\.b: 3 is odd$"):
        checked({"shop.a": 2, "shop.b": 3}, require_even)
