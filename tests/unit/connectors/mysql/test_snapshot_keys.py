"""Whether a table's snapshot is under way, as the log's fetcher and the reader of the log count it together."""

from __future__ import annotations

from typing import Any

from raycdc.connectors.mysql.ddl.follow.followed_tables import SnapshotChunkKeys
from raycdc.connectors.mysql.snapshot.key_order import MySqlKeyOrder
from raycdc.model import TableId

TABLE = TableId("shop", "orders")


def unconnected() -> Any:
    raise AssertionError("nobody asks for an order here")


def test_a_second_snapshot_is_under_way_when_the_log_is_opened_anew() -> None:
    """As it is where another table joins the log; the reader has counted the first snapshot, and goes on counting."""
    order = MySqlKeyOrder(unconnected, {})
    order.use(TABLE, "id")
    order.forget(TABLE)
    order.use(TABLE, "id")

    snapshots = SnapshotChunkKeys({TABLE: "id"}, order.over)
    assert snapshots.under_way(TABLE)
    order.forget(TABLE)
    assert not snapshots.under_way(TABLE)


def test_a_snapshot_that_begins_behind_where_the_log_was_opened_anew_is_under_way() -> None:
    order = MySqlKeyOrder(unconnected, {})
    order.use(TABLE, "id")
    order.forget(TABLE)

    snapshots = SnapshotChunkKeys({}, order.over)
    assert not snapshots.under_way(TABLE)
    snapshots.begin(TABLE, "id")
    order.use(TABLE, "id")
    assert snapshots.under_way(TABLE)
    order.forget(TABLE)
    assert not snapshots.under_way(TABLE)


def test_the_snapshot_of_a_table_that_is_one_chunk_is_under_way_until_it_is_over() -> None:
    order = MySqlKeyOrder(unconnected, {})
    order.use(TABLE, None)

    snapshots = SnapshotChunkKeys({TABLE: None}, order.over)
    assert snapshots.under_way(TABLE)
    order.forget(TABLE)
    assert not snapshots.under_way(TABLE)
