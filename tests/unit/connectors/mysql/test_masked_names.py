"""Names under which rows and columns were hidden, as statements move them; those that move rows otherwise mix names."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from raycdc.connectors.mysql.ddl.apply import DdlDialect, affected_tables
from raycdc.connectors.mysql.ddl.follow.history_state import HistoryState
from raycdc.connectors.mysql.ddl.follow.masked_names import FormerNames, MaskedNames
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.model import TableId
from raycdc.model.rules.mask import Mask, Masks

DIALECT = DdlDialect(mariadb=True)
MASKS = Masks([Mask(r"shop\.cust(_same)?\.email", "mask", 3), Mask("shop.other.email", "drop")])


def shown_after(table: str, *statements: str, columns: Sequence[str] = ("id", "email")) -> bool:
    """Whether `table` would show what is hidden, also after a restart at each statement."""
    names = MaskedNames(MASKS, FormerNames())
    for statement in statements:
        names.follow(statement, "shop", affected_tables(statement, "shop", dialect=DIALECT), DIALECT)
        state = HistoryState(former=names.former())
        names = MaskedNames(MASKS, HistoryState.from_json(json.loads(json.dumps(state.to_json()))).former)
    return bool(
        names.shown_by(MySqlTable(TableId("shop", table), tuple(MySqlColumn(name, "text") for name in columns)))
    )


@pytest.mark.parametrize(
    ("table", "statements", "shown"),
    [
        ("new", ["RENAME TABLE cust TO new"], True),
        ("new", ["RENAME TABLE cust TO away.x", "RENAME TABLE away.x TO new"], True),
        ("new", ["RENAME TABLE cust TO x, y TO cust, x TO new"], True),
        ("cust", ["RENAME TABLE cust TO x, y TO cust, x TO new"], False),
        ("cust_same", ["ALTER TABLE cust RENAME cust_same"], False),
        ("other", ["ALTER TABLE cust RENAME other"], True),
        ("cust", ["RENAME TABLE cust TO new", "RENAME TABLE new TO cust"], False),
        ("new", ["CREATE TABLE new LIKE cust"], True),
        ("new", ["CREATE TABLE IF NOT EXISTS new LIKE cust"], True),
        ("new", ["CREATE TABLE new (id INT, email TEXT)"], False),
        ("new", ["ALTER TABLE cust EXCHANGE PARTITION p WITH TABLE new"], True),
        ("new", ["ALTER TABLE new CONVERT PARTITION p TO TABLE away.x"], False),
        ("new", ["RENAME TABLE cust TO new", "DROP TABLE new", "CREATE TABLE new (id INT, email TEXT)"], False),
        ("new", ["RENAME TABLE cust TO new", "CREATE TABLE IF NOT EXISTS new (id INT, email TEXT)"], True),
        ("new", ["RENAME TABLE cust TO new", "DROP DATABASE shop", "CREATE TABLE new (id INT, email TEXT)"], False),
        ("new", ["RENAME TABLE plain TO new"], False),
        ("new", ["CREATE TABLE _cust_gho LIKE cust", "RENAME TABLE cust TO _cust_del, _cust_gho TO cust",
                 "RENAME TABLE _cust_del TO new"], True),
        ("cust", ["CREATE TABLE _cust_gho LIKE cust", "RENAME TABLE cust TO _cust_del, _cust_gho TO cust"], False),
    ],
)  # fmt: skip
def test_rows_are_shown_where_another_name_does_not_hide_them(table: str, statements: list[str], shown: bool) -> None:
    assert shown_after(table, *statements) is shown


@pytest.mark.parametrize(
    ("table", "statements", "shown"),
    [
        ("cust", ["ALTER TABLE cust RENAME COLUMN email TO mail"], True),
        ("cust", ["ALTER TABLE cust CHANGE email mail VARCHAR(50)"], True),
        ("cust", ["ALTER TABLE cust RENAME COLUMN email TO mail", "ALTER TABLE cust RENAME COLUMN mail TO email"],
         False),
        ("cust", ["ALTER TABLE cust RENAME COLUMN email TO x", "ALTER TABLE cust CHANGE x mail TEXT"], True),
        ("cust", ["ALTER TABLE cust RENAME COLUMN email TO mail, RENAME COLUMN mail TO email"], True),
        ("cust", ["ALTER TABLE cust RENAME COLUMN email TO x, ADD COLUMN mail TEXT"], False),
        ("cust", ["ALTER TABLE cust RENAME COLUMN email TO mail", "ALTER TABLE cust DROP COLUMN mail",
                  "ALTER TABLE cust ADD COLUMN mail TEXT"], False),
        ("cust", ["ALTER TABLE cust RENAME COLUMN email TO mail", "DROP TABLE cust"], False),
        ("new", ["ALTER TABLE cust RENAME COLUMN email TO mail, RENAME TO new"], True),
        ("new", ["RENAME TABLE cust TO new", "ALTER TABLE new RENAME COLUMN email TO mail"], True),
        ("new", ["ALTER TABLE cust RENAME COLUMN email TO mail", "CREATE TABLE new LIKE cust"], True),
        ("plain", ["ALTER TABLE plain RENAME COLUMN email TO mail"], False),
        ("other", ["ALTER TABLE cust RENAME COLUMN email TO mail"], False),
    ],
)  # fmt: skip
def test_columns_are_shown_where_another_name_does_not_hide_them(
    table: str, statements: list[str], shown: bool
) -> None:
    assert shown_after(table, *statements, columns=("id", "mail")) is shown
