"""What a statement that was logged instead of its rows leads to, and which tables it can concern."""

from __future__ import annotations

import pytest

from raycdc.connectors.mysql.ddl.follow.indirect import SqlText, StoredObject, Ways, reached, tables_reached
from raycdc.connectors.mysql.ddl.parse.tokens import mentions
from raycdc.model import TableId

OBJECTS = [
    StoredObject("trigger", "shop", "stock", "INSERT INTO audit VALUES (NEW.id)"),
    StoredObject("trigger", "shop", "audit", "BEGIN SET @n = count_up(); END"),
    StoredObject("routine", "shop", "count_up", "BEGIN UPDATE orders SET v = v + 1; RETURN 1; END"),
    StoredObject("view", "shop", "open_orders", "select `shop`.`orders`.`id` AS `id` from `shop`.`orders`"),
    StoredObject("trigger", "shop", "other", "DELETE FROM customers"),
]
HIDDEN = StoredObject("routine", "shop", "count_up", "")
ORDERS, CUSTOMERS, LOG = TableId("shop", "orders"), TableId("crm", "customers"), TableId("shop", "log")


def texts(statement: str, db: str = "shop") -> list[str]:
    return [text.text for text in reached(SqlText(db, statement), OBJECTS)[0]]


def test_triggers_views_and_functions_are_followed_to_the_end() -> None:
    assert "UPDATE orders" in texts("INSERT INTO shop.Stock VALUES (1)", "")[-1]
    assert "`orders`" in texts("UPDATE open_orders SET id = 2")[0]
    assert texts("SELECT `shop`.`count_up`()", "crm") == [OBJECTS[2].text]


def test_what_leads_nowhere_has_no_text() -> None:
    assert texts("INSERT INTO stock_2 VALUES ('other-wise')") == [OBJECTS[4].text]  # A word counts in a literal, too.
    assert texts("INSERT INTO crm.stock VALUES (1)") == []
    assert texts("INSERT INTO stock VALUES (1)", "crm") == []


def test_objects_that_name_each_other_come_to_an_end() -> None:
    pair = [StoredObject("routine", "shop", "a", "CALL b()"), StoredObject("routine", "shop", "b", "CALL a()")]
    assert reached(SqlText("shop", "CALL a()"), pair) == (
        (SqlText("shop", "CALL b()"), SqlText("shop", "CALL a()")),
        (),
    )


def test_a_text_that_may_not_be_seen_may_lead_anywhere() -> None:
    statement = SqlText("shop", "INSERT INTO stock VALUES (1)")
    found = reached(statement, [*OBJECTS[:2], HIDDEN])
    assert found[1] == (HIDDEN,)
    tables = tables_reached(statement, lambda _: Ways(found[0], ((HIDDEN, None),)), [ORDERS, CUSTOMERS])
    assert set(tables) == {ORDERS, CUSTOMERS}
    assert "GRANT SELECT ON mysql.proc" in tables[ORDERS]


def test_only_tables_of_the_databases_that_a_view_can_change_are_concerned() -> None:
    view = StoredObject("view", "crm", "v", "")
    ways = Ways((), ((view, frozenset({"shop"})),))
    tables = tables_reached(SqlText("crm", "INSERT INTO v VALUES (1)"), lambda _: ways, [ORDERS, CUSTOMERS])
    assert list(tables) == [ORDERS]
    assert "GRANT SHOW VIEW ON `crm`.`v`" in tables[ORDERS]


def test_only_tables_of_the_databases_that_the_server_names_are_concerned() -> None:
    statement = SqlText("crm", "INSERT INTO customers SELECT * FROM shop.orders")
    assert list(tables_reached(statement, None, [ORDERS, CUSTOMERS])) == [ORDERS, CUSTOMERS]
    assert list(tables_reached(statement, None, [ORDERS, CUSTOMERS], databases=["crm"])) == [CUSTOMERS]
    # Nothing that is seen leads to the other database.
    unseen = tables_reached(SqlText("crm", "INSERT INTO v VALUES (1)"), lambda _: Ways(), [ORDERS], databases=["shop"])
    assert "GRANT TRIGGER, SHOW VIEW, EXECUTE" in unseen[ORDERS]
    seen = tables_reached(SqlText("shop", "INSERT INTO v VALUES (1)"), lambda _: Ways(), [ORDERS], databases=["shop"])
    assert seen == {}


#: LOAD DATA of the database `crm` as servers log it, and which of `ORDERS`, `CUSTOMERS` and `LOG` it can concern.
LOADS: tuple[tuple[str, list[TableId]], ...] = (
    ("LOAD DATA INFILE '/tmp/orders.log' INTO TABLE `customers` FIELDS TERMINATED BY ',' (`id`, `log`)", [CUSTOMERS]),
    ("LOAD DATA LOCAL INFILE 'shop.orders' REPLACE INTO TABLE shop.log CHARACTER SET utf8mb4 (id, @customers)", [LOG]),
    ("load data infile 'a' into table t set `customers` = shop.count_up('shop.log')", [ORDERS]),
    ("LOAD XML INFILE 'customers' INTO TABLE `shop`.`stock` ROWS IDENTIFIED BY '<log>'", [ORDERS]),
    ("LOAD DATA INFILE 'shop.orders' INTO TABLE `other` (customers)", []),
    ("LOAD DATA INFILE 'shop.orders INTO TABLE `never ends`", [ORDERS]),
)


@pytest.mark.parametrize(("statement", "concerned"), LOADS)
def test_a_load_concerns_its_table_and_what_triggers_and_functions_lead_to(
    statement: str, concerned: list[TableId]
) -> None:
    found = tables_reached(
        SqlText("crm", statement), lambda text: Ways(*reached(text, OBJECTS)[:1]), [ORDERS, CUSTOMERS, LOG]
    )
    assert list(found) == concerned


@pytest.mark.parametrize(
    ("text", "db", "found"),
    [
        ("UPDATE shop.log SET a = 1", "crm", True),
        ("UPDATE `shop` . `LOG` SET a = 1", "crm", True),
        ("UPDATE log SET a = 1", "shop", True),
        ("UPDATE log SET a = 1", "", True),
        ("UPDATE shop./* so */log SET a = 1", "crm", True),
        ("UPDATE .log SET a = 1", "shop", True),
        ("UPDATE log SET a = 1", "crm", False),
        ("UPDATE crm.log SET a = 1", "shop", False),
        ("UPDATE catalog SET a = 1", "shop", False),
        ("UPDATE crm.log JOIN shop.log USING (id) SET a = 1", "crm", True),
    ],
)
def test_a_table_is_named_with_its_database_or_in_it(text: str, db: str, *, found: bool) -> None:
    assert mentions(text, LOG, db=db) is found
