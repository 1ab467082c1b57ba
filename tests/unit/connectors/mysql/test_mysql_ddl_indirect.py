"""What a statement that was logged instead of its rows leads to."""

from __future__ import annotations

from raycdc.connectors.mysql.ddl.indirect import reached

OBJECTS = [
    ("stock", "INSERT INTO audit VALUES (NEW.id)"),
    ("audit", "BEGIN SET @n = count_up(); END"),
    ("count_up", "BEGIN UPDATE orders SET v = v + 1; RETURN 1; END"),
    ("open_orders", "select `shop`.`orders`.`id` AS `id` from `shop`.`orders`"),
    ("other", "DELETE FROM customers"),
]


def test_triggers_views_and_functions_are_followed_to_the_end() -> None:
    assert "UPDATE orders" in str(reached("INSERT INTO shop.Stock VALUES (1)", OBJECTS))
    assert "`orders`" in str(reached("UPDATE open_orders SET id = 2", OBJECTS))
    assert reached("SELECT `shop`.`count_up`()", OBJECTS) == OBJECTS[2][1]


def test_what_leads_nowhere_has_no_text() -> None:
    assert reached("INSERT INTO stock_2 VALUES ('other-wise')", [OBJECTS[0]]) == ""


def test_objects_that_name_each_other_come_to_an_end() -> None:
    assert reached("CALL a()", [("a", "CALL b()"), ("b", "CALL a()")]) == "CALL b()\nCALL a()"


def test_a_text_that_may_not_be_seen_may_lead_anywhere() -> None:
    assert reached("INSERT INTO stock VALUES (1)", [*OBJECTS[:2], ("count_up", "")]) is None
