"""Columns with the names that our own have are refused by name, before a row is read with them."""

from __future__ import annotations

import pytest

from raycdc.connectors.kafka.enumeration.schemas import merge
from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.ddl.follow.history import DdlHistory
from raycdc.connectors.mysql.ddl.follow.log_server import LogServer
from raycdc.connectors.mysql.ddl.parse.statements import DdlDialect
from raycdc.errors import SchemaError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind, changelog_schema
from raycdc.source.snapshot.log.log_unit import ParkTableUpdate
from raycdc.source.tables.parked_tables import ParkingSetup
from tests.unit.connectors.mysql.test_mysql_ddl_tools import Followed

NAMES = ("_table", "_db", "_OP", "_seq", "_pos", "_ts_ms", "_deleted")


def schema_with(name: str) -> TableSchema:
    return TableSchema((Column("id", LogicalType(TypeKind.INT32)), Column(name, LogicalType(TypeKind.STRING))), ("id",))


@pytest.mark.parametrize("name", NAMES)
def test_no_batch_has_two_columns_of_one_name(name: str) -> None:
    with pytest.raises(SchemaError, match=f"column '{name}' has a name that raycdc uses"):
        changelog_schema(schema_with(name))
    assert changelog_schema(schema_with("#")).names[1] == "#"


@pytest.mark.parametrize(
    "statement", ["ALTER TABLE orders ADD COLUMN _table INT", "ALTER TABLE orders RENAME COLUMN a TO _Seq"]
)
def test_a_statement_that_brings_such_a_column_is_refused(statement: str) -> None:
    with pytest.raises(SchemaError, match="has a name that raycdc uses"):
        Followed().run(statement)


def test_where_tables_may_be_parked_only_that_one_is() -> None:
    followed = Followed()
    place = BinlogOffset("binlog.000001", 4)
    history = DdlHistory(
        followed.tables,
        selector=followed.selector,
        server=LogServer(DdlDialect(), ("utf8mb4", "")),
        terms=ParkingSetup({}),
    )
    history.attach(followed.decoder)
    statement = "ALTER TABLE orders ADD COLUMN _pos INT"
    history.on_ddl(DdlItem("shop", statement, place, place, 0, in_transaction=False))
    (update,) = history.take_updates()[0]
    assert isinstance(update, ParkTableUpdate)
    assert "column '_pos' has a name that raycdc uses" in update.parking.reason


def test_messages_with_such_a_field_are_refused() -> None:
    with pytest.raises(SchemaError, match=r"shop\.orders: column '_table'.*source\.format\.exclude"):
        merge(TableId("shop", "orders"), None, schema_with("_table"))
