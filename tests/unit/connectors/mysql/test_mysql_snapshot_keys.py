"""What statements may not change while a table's snapshot is under way."""

from __future__ import annotations

from dataclasses import replace

from raycdc.connectors.mysql.ddl.follow.followed_tables import SnapshotChunkKeys
from raycdc.connectors.mysql.values.types import MySqlColumn, MySqlTable
from raycdc.model import TableId

ID = TableId("shop", "orders")
TABLE = MySqlTable(ID, (MySqlColumn("id", "int", nullable=False), MySqlColumn("note", "varchar(9)")), ("id",))


def with_id(column: MySqlColumn) -> MySqlTable:
    return replace(TABLE, columns=(column, *TABLE.columns[1:]))


def test_a_type_a_collation_and_a_name_are_changes_and_other_columns_are_not() -> None:
    keys = SnapshotChunkKeys({ID: ("id", "note")})
    assert keys.changed(TABLE, with_id(MySqlColumn("id", "bigint", nullable=False))) == "id"
    assert keys.changed(TABLE, with_id(MySqlColumn("number", "int", nullable=False))) == "id"
    note = MySqlColumn("note", "varchar(9)", charset="utf8mb4", collation="utf8mb4_bin")
    assert keys.changed(TABLE, replace(TABLE, columns=(TABLE.columns[0], note))) == "note"
    added = replace(TABLE, columns=(*TABLE.columns, MySqlColumn("more", "int")))
    assert keys.changed(TABLE, added) is None
    assert keys.changed(replace(TABLE, id=TableId("shop", "others")), added) is None


def test_only_the_snapshot_that_began_last_counts() -> None:
    over: dict[TableId, int] = {}
    keys = SnapshotChunkKeys({ID: "id"}, over)
    wider = with_id(MySqlColumn("id", "bigint", nullable=False))
    over[ID] = 1
    assert keys.changed(TABLE, wider) is None
    keys.begin(ID, "id")
    assert keys.changed(TABLE, wider) == "id"
    over[ID] = 2
    assert keys.changed(TABLE, wider) is None
    keys.begin(ID, None)
    assert keys.changed(TABLE, wider) is None
