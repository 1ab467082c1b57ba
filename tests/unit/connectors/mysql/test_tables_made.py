"""Tables that are new to the state: followed from the statement that makes them, where the log tells all their rows."""

from __future__ import annotations

import pytest

from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.ddl.apply import DdlDialect
from raycdc.connectors.mysql.ddl.follow.history import DdlHistory
from raycdc.connectors.mysql.ddl.follow.history_state import HistoryState
from raycdc.connectors.mysql.ddl.follow.log_server import LogServer, Resolved
from raycdc.model.rules.selector import TableSelector
from raycdc.source.snapshot.log.log_unit import (
    AlterTableUpdate,
    BeginTableUpdate,
    DropTableUpdate,
    ParkTableUpdate,
    SchemaUpdate,
)
from raycdc.source.tables.parked_tables import ParkingSetup
from raycdc.source.tables.resnapshots import FollowableTable
from raycdc.source.tables.table_life import Parked, ParkedPhase, SnapshotState
from tests.unit.connectors.mysql.test_mysql_ddl_tools import CREATED, ORDERS, Decoder, table_of

HERE = BinlogOffset("binlog.000001", 400)
MADE = [BeginTableUpdate]


def asked(
    *, awaited: bool = True, schema: str | None = None, phase: ParkedPhase = ParkedPhase.PARKED, again: bool = True
) -> Parked:
    """The table of a start that found it new."""
    return Parked(schema, False, 1, phase, "it is new", HERE.sealed(), 0, again=again, awaited=awaited)


class New:
    """A history in which `orders` is parked so. A look at the table holds far behind the statements."""

    def __init__(self, parked: Parked | None, *, dropped: str | None = None, was_there: bool = False) -> None:
        shape = table_of(CREATED, ORDERS)
        ordinal, unread = 1 << 60, SnapshotState("id", foldable=True, needs_null=False)
        terms = ParkingSetup(
            {} if parked is None else {ORDERS: parked}, lambda _: FollowableTable(shape, ordinal, unread)
        )
        resolved = Resolved(shape, {})
        server = LogServer(
            DdlDialect(),
            ("utf8mb4", ""),
            resolve=lambda _table, _after: resolved,
            was_there=lambda _table, _before_ms: was_there,
        )
        state = HistoryState(dropped={} if dropped is None else {ORDERS: dropped})
        selector = TableSelector((r"shop\..*",), ("shop.other",))
        self.history = DdlHistory({}, selector=selector, server=server, terms=terms, state=state)
        self.history.attach(Decoder())
        self.pos = HERE.pos

    def run(self, *statements: str) -> list[type[SchemaUpdate]]:
        """The updates of `orders` that come of the statements."""
        updates: list[SchemaUpdate] = []
        for statement in statements:
            before, self.pos = BinlogOffset("binlog.000001", self.pos), self.pos + 100
            place = BinlogOffset("binlog.000001", self.pos)
            self.history.on_ddl(DdlItem("shop", statement, before, place, 0, in_transaction=False))
            told, rows = self.history.take_updates()
            updates += told
            assert rows == () or not isinstance(told[-1], BeginTableUpdate), (
                "a target is emptied that nobody was told of"
            )
        return [type(update) for update in updates if update.table == ORDERS]


def test_a_table_is_followed_from_the_statement_that_makes_it_and_its_changes_are() -> None:
    new = New(asked())
    assert new.run("CREATE TABLE other (id INT)", CREATED, "ALTER TABLE orders ADD c INT") == [
        BeginTableUpdate,
        AlterTableUpdate,
    ]
    assert new.history.captures(ORDERS)


def test_what_is_told_of_it_has_no_truncation_and_no_chunk() -> None:
    new = New(asked())
    new.history.on_ddl(DdlItem("shop", CREATED, HERE, HERE, 0, in_transaction=False))
    ((update,), rows) = new.history.take_updates()
    assert isinstance(update, BeginTableUpdate)
    assert (update.changes, update.snapshot.closed, rows) == ((), ((None, None),), ())


@pytest.mark.parametrize(
    ("parked", "statement", "made"),
    [
        (asked(awaited=False), CREATED, MADE),
        (asked(awaited=False), CREATED.replace("TABLE", "TABLE IF NOT EXISTS"), []),
        (asked(), CREATED.replace("TABLE", "TABLE IF NOT EXISTS"), MADE),
        (asked(), CREATED.replace("CREATE", "CREATE OR REPLACE"), MADE),
        (asked(again=False, phase=ParkedPhase.ENDED), CREATED, MADE),
        (asked(again=False), CREATED, []),
        (asked(again=False, phase=ParkedPhase.PAUSED), CREATED, []),
        (asked(again=False, phase=ParkedPhase.REMOVED), CREATED, []),
        (asked(schema="f"), CREATED, []),
        (asked(), "CREATE TABLE orders LIKE shop.another", MADE),
        (asked(), "CREATE TABLE orders SELECT 1 AS id", []),
        (asked(), "CREATE TABLE orders (id INT) IGNORE SELECT 1 AS id", []),
        (asked(), "RENAME TABLE shop.other TO shop.orders", []),
        (asked(), "CREATE TEMPORARY TABLE orders (id INT)", []),
    ],
)
def test_only_where_the_log_tells_all_its_rows(parked: Parked, statement: str, made: list[type[SchemaUpdate]]) -> None:
    assert New(parked).run(statement) == made


def test_a_name_that_was_taken_meanwhile_is_not_made_by_if_not_exists() -> None:
    gone = "DROP TABLE IF EXISTS orders"
    maybe = CREATED.replace("TABLE", "TABLE IF NOT EXISTS")
    assert New(asked()).run("RENAME TABLE shop.other TO shop.orders", maybe) == []
    assert New(asked()).run(gone, maybe) == MADE
    assert New(asked()).run("RENAME TABLE shop.other TO shop.orders", gone, CREATED) == MADE


def test_a_table_that_was_made_and_dropped_and_made_again_is_followed_as_when_the_job_is_up() -> None:
    drop, other = "DROP TABLE orders", CREATED.replace("`a` int", "`a` bigint")
    assert New(asked()).run(CREATED, drop, CREATED) == [BeginTableUpdate, DropTableUpdate, AlterTableUpdate]
    assert New(asked()).run(CREATED, drop, other) == [BeginTableUpdate, DropTableUpdate, ParkTableUpdate]


def test_a_table_that_took_the_name_of_one_that_was_followed_empties_its_target() -> None:
    """Also where the one before was made a moment ago: its target has rows."""
    again = "CREATE TABLE orders (`id` int NOT NULL, `c` int, PRIMARY KEY (`id`))"
    for parked in (asked(), None):
        new = New(parked)
        first = new.run(CREATED)
        assert first == (MADE if parked else [AlterTableUpdate])
        assert new.run("RENAME TABLE orders TO away.older", again) == [ParkTableUpdate, ParkTableUpdate]


def test_of_a_table_that_was_dropped_before_only_one_of_the_same_columns_goes_on() -> None:
    assert New(asked(), dropped="another").run(CREATED) == [ParkTableUpdate]
    assert New(None, dropped="another").run(CREATED) == [ParkTableUpdate]


def test_a_table_that_is_made_anew_until_it_is_read_empties_the_target_of_the_one_that_was_dropped() -> None:
    """Also behind a start: the target has the columns of the first one, of which no table's state tells."""
    other, third = (CREATED.replace("`a` int", column) for column in ("`a` bigint", "`c` int"))
    new = New(asked(), dropped="another")
    assert new.run(other, "DROP TABLE orders", third) == [ParkTableUpdate, ParkTableUpdate]
    state = new.history.take_state()
    assert state is not None
    assert state.dropped == {ORDERS: ""}
    assert New(asked(awaited=False), dropped="").run("DROP TABLE orders", third) == [ParkTableUpdate]


def test_a_query_that_is_logged_brings_rows_that_the_log_does_not_have() -> None:
    """Whatever the server says of its columns, the table is read."""
    assert New(None).run("CREATE TABLE orders (id INT) SELECT 1 AS id") == [ParkTableUpdate]
    assert New(None).run("CREATE TABLE orders LIKE shop.another") == [AlterTableUpdate]


def test_a_table_that_nobody_showed_before_is_not_made_by_if_not_exists() -> None:
    maybe = CREATED.replace("TABLE", "TABLE IF NOT EXISTS")
    assert New(asked(), was_there=True).run(maybe) == []
    assert New(None, was_there=True).run(maybe) == [ParkTableUpdate]
    assert New(None, was_there=True).run(CREATED, maybe) == [AlterTableUpdate]
    assert New(asked(), was_there=True).run(CREATED) == MADE
