"""Tables as they were at a place in the past, by the statements since: one that was another parks, the others begin."""

from __future__ import annotations

import pytest

from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.ddl.apply import DdlDialect
from raycdc.connectors.mysql.log.startup import PastTables, tables_at
from raycdc.model import TableId
from tests.unit.connectors.mysql.test_mysql_ddl_tools import CREATED, ORDERS, table_of

ITEMS = TableId("shop", "items")
TABLES = {ORDERS: table_of(CREATED, ORDERS), ITEMS: table_of(CREATED.replace("orders", "items"), ITEMS)}


def before(*statements: str) -> PastTables:
    places = [BinlogOffset("binlog.000001", 100 * number) for number in range(1, len(statements) + 2)]
    items = [
        DdlItem("shop", statement, places[number], places[number + 1], 0, in_transaction=False)
        for number, statement in enumerate(statements)
    ]
    return tables_at(TABLES, items, captured=lambda _: True, dialect=DdlDialect())


@pytest.mark.parametrize(
    ("statements", "there", "is_other"),
    [
        ((), True, False),
        (("ALTER TABLE orders ADD INDEX (a)", "TRUNCATE orders", "OPTIMIZE TABLE orders"), True, False),
        ((CREATED,), False, False),
        (("DROP TABLE IF EXISTS orders", CREATED), False, False),
        (("RENAME TABLE older TO orders",), False, False),
        (("ALTER TABLE older ADD COLUMN c INT, RENAME TO orders",), False, False),
        (("CREATE TABLE orders SELECT 1 AS id",), False, False),
        (("RENAME TABLE orders TO older", CREATED), False, True),
        (("RENAME TABLE orders TO older, newer TO orders",), False, True),
        (("RENAME TABLE newer TO orders, orders TO older",), False, False),
        (("ALTER TABLE orders ADD COLUMN c INT",), False, True),
        (("ALTER TABLE orders RENAME TO older",), False, True),
        (("ALTER TABLE orders NOBODY KNOWS",), False, True),
        (("DROP TABLE `never ends, orders",), False, True),
        # The first statement says how it was.
        ((CREATED, "ALTER TABLE orders ADD COLUMN c INT"), False, False),
        (("ALTER TABLE other ADD COLUMN c INT",), True, False),
    ],
)
def test_one_table_of_another_shape_keeps_none_of_the_others_back(
    statements: tuple[str, ...], there: bool, is_other: bool
) -> None:
    past = before(*statements)
    assert (ORDERS in past.tables, ORDERS in past.other) == (there, is_other)
    assert past.tables[ITEMS] == TABLES[ITEMS]
    assert ITEMS not in past.other


def test_the_reason_names_the_statement_and_the_ways_out() -> None:
    reason = before("ALTER TABLE orders ADD COLUMN c INT").other[ORDERS]
    assert "binlog.000001:200" in reason
    assert "ALTER TABLE orders ADD COLUMN c INT" in reason
    assert "raycdc tables resnapshot CONFIG shop.orders" in reason
