"""Schema change tools: the statements of their logs, and what the captured table becomes by them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.ddl.apply import DdlDialect, apply_ddl, parse_ddl
from raycdc.connectors.mysql.ddl.follow.history import DdlHistory
from raycdc.connectors.mysql.ddl.follow.history_state import HistoryState
from raycdc.connectors.mysql.ddl.follow.log_server import LogServer
from raycdc.connectors.mysql.ddl.parse.statements import CreateTable
from raycdc.connectors.mysql.ddl.shadows import role_of, tool_tables
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import DataError, SchemaError
from raycdc.model import TableId, TableSchema
from raycdc.model.evolution import apply_all
from raycdc.model.evolution.events import AddColumnEvent, SchemaChangeEvent
from raycdc.model.rules.routes import Route, Router
from raycdc.model.rules.selector import TableSelector
from raycdc.source.snapshot.log.log_unit import ParkTableUpdate
from raycdc.source.tables.parked_tables import ParkingSetup
from raycdc.transform.target_rules import TargetRules

ORDERS = TableId("shop", "orders")
LONG = TableId("shop", "x" * 62)

CREATED = (
    "CREATE TABLE `orders` (`id` int NOT NULL AUTO_INCREMENT, `a` int, `b` varchar(20), PRIMARY KEY (`id`)) "
    "DEFAULT CHARSET=utf8mb4"
)
GHOST = "create /* gh-ost */ table `shop`.`_orders_gho` like `shop`.`orders`"
SWAP = "rename /* gh-ost */ table `shop`.`orders` to `shop`.`_orders_del`, `shop`.`_orders_gho` to `shop`.`orders`"
OSC = CREATED.replace("`orders`", "`shop`.`_orders_new`")
OSC_SWAP = "RENAME TABLE `shop`.`orders` TO `shop`.`_orders_old`, `shop`.`_orders_new` TO `shop`.`orders`"


def table_of(sql: str, name: TableId) -> MySqlTable:
    (ddl,) = parse_ddl(sql, name.db)  # type: ignore[misc]
    assert isinstance(ddl, CreateTable)
    table = apply_ddl(None, ddl).table
    assert table is not None
    return table


class Decoder:
    """As much of a decoder as a history needs."""

    def __init__(self) -> None:
        self.checked: list[TableId] = []

    def set_table(self, table: MySqlTable) -> None:
        self.checked.append(table.id)

    def remove_table(self, table: TableId) -> None: ...

    def take_seq(self) -> int:
        return 0


class Followed:
    """A history that has `orders`, and what came of the statements it was given; begun anew after every one."""

    def __init__(self, *tables: str, restarts: bool = True) -> None:
        self.selector = TableSelector(tables or ("shop.orders",))
        self.tables = {ORDERS: table_of(CREATED, ORDERS)}
        self.state: Mapping[str, Any] = {}
        self.events: list[SchemaChangeEvent] = []
        self.updates = 0
        self.restarts = restarts
        self.history = self._begin()

    def _begin(self) -> DdlHistory:
        history = DdlHistory(
            self.tables,
            selector=self.selector,
            server=LogServer(DdlDialect(), ("utf8mb4", "")),
            state=HistoryState.from_json(self.state),
        )
        self.decoder = Decoder()
        history.attach(self.decoder)
        return history

    def run(self, *statements: str) -> Followed:
        for statement in statements:
            place = BinlogOffset("binlog.000001", 4)
            self.history.on_ddl(DdlItem("shop", statement, place, place, 0, in_transaction=False))
            for update in self.history.take_updates()[0]:
                self.updates += 1
                assert not isinstance(update, ParkTableUpdate)
                self.events += update.changes
                table = self.history.table(update.table)
                assert table is not None
                self.tables[update.table] = table
            if (state := self.history.take_state()) is not None:
                self.state = json.loads(json.dumps(state.to_json()))
            if self.restarts:
                self.history = self._begin()
        return self

    @property
    def orders(self) -> MySqlTable:
        return self.tables[ORDERS]

    def kinds(self) -> list[str]:
        return [event.type for event in self.events]


def shape(schema: TableSchema | None) -> list[tuple[Any, ...]]:
    assert schema is not None
    return [(c.name, c.type, c.nullable) for c in schema.columns]


@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize(
    ("create", "swap", "shadow", "changed", "name"),
    [
        (GHOST, SWAP, "_orders_gho", "MODIFY a", "a"),
        (OSC, OSC_SWAP, "_orders_new", "CHANGE a total", "total"),
    ],
)
def test_the_swap_is_the_change_of_the_table(
    create: str, swap: str, shadow: str, changed: str, name: str, restarts: bool
) -> None:
    before = Followed().orders.schema()
    followed = Followed(restarts=restarts).run(
        create,
        f"alter table `shop`.`{shadow}` {changed} bigint, ADD COLUMN c int NOT NULL DEFAULT 7 FIRST, "
        "ADD COLUMN d varchar(9), MODIFY b varchar(40) AFTER id",
        f"ALTER TABLE `shop`.`{shadow}` DROP COLUMN d, AUTO_INCREMENT=17",
    )
    assert (followed.events, followed.updates) == ([], 0)
    followed.run(swap, "DROP TABLE IF EXISTS `_orders_old`, `shop`.`_orders_del`")
    assert [c.name for c in followed.orders.columns] == ["c", "id", "b", name]
    renamed = ["rename_column"] if name != "a" else []
    changes = ["alter_column_type", "alter_column_type", "add_column", "alter_column_position"]
    assert followed.kinds() == [*renamed, *changes]
    led_to = apply_all(before, followed.events)
    assert shape(led_to) == shape(followed.orders.schema())
    assert next(e.column.default for e in followed.events if isinstance(e, AddColumnEvent)) == "7"


def test_a_swap_that_changes_no_column_still_ends_what_is_being_read() -> None:
    followed = Followed(restarts=False).run(GHOST, "alter /* gh-ost */ table `shop`.`_orders_gho` engine=innodb", SWAP)
    assert (followed.events, followed.updates, followed.decoder.checked) == ([], 1, [ORDERS])


def test_gh_ost_from_its_first_statement_to_its_last() -> None:
    followed = Followed(r"shop\..*").run(
        "drop /* gh-ost */ table if exists `shop`.`_orders_gho`",
        "drop /* gh-ost */ table if exists `shop`.`_orders_ghc`",
        "create /* gh-ost */ table `shop`.`_orders_ghc` (id bigint unsigned auto_increment, value varchar(4096) "
        "charset ascii not null, primary key(id)) auto_increment=256 comment='x'",
        GHOST,
        "alter /* gh-ost */ table `shop`.`_orders_gho` add column c int",
        "create /* gh-ost */ table `shop`.`_orders_del` (id int auto_increment primary key) engine=InnoDB comment='m'",
        "drop /* gh-ost */ table if exists `shop`.`_orders_del`",
        SWAP,
        "drop /* gh-ost */ table if exists `shop`.`_orders_ghc`",
        "drop /* gh-ost */ table if exists `shop`.`_orders_del`",
    )
    assert followed.kinds() == ["add_column"]
    assert followed.state == {"shadows": {}, "away": []}
    assert set(followed.tables) == {ORDERS}


def test_two_renames_instead_of_one_are_the_same_change() -> None:
    followed = Followed().run(
        GHOST,
        "alter /* gh-ost */ table `shop`.`_orders_gho` add column c int",
        "alter /* gh-ost */ table `shop`.`orders` rename `_orders_del`",
    )
    assert (followed.events, followed.state["away"]) == ([], ["shop.orders"])
    followed.run("alter /* gh-ost */ table `shop`.`_orders_gho` rename `orders`")
    assert (followed.kinds(), followed.state["away"]) == (["add_column"], [])


def test_a_cut_over_that_is_taken_back_leaves_the_old_shape() -> None:
    followed = Followed().run(GHOST, "alter table `shop`.`_orders_gho` add column c int", SWAP)
    followed.run(
        "rename /* gh-ost */ table `shop`.`orders` to `shop`.`_orders_gho`, `shop`.`_orders_del` to `shop`.`orders`"
    )
    assert followed.kinds() == ["add_column", "drop_column"]
    assert [c.name for c in followed.orders.columns] == ["id", "a", "b"]


def test_columns_that_exchange_their_names_keep_their_values() -> None:
    followed = Followed().run(
        OSC, "alter table `shop`.`_orders_new` change a b int, change b a varchar(20), comment 'x'", OSC_SWAP
    )
    assert followed.kinds() == ["rename_column"] * 3 + ["alter_table_comment"]
    assert [(c.name, c.column_type) for c in followed.orders.columns[1:]] == [("b", "int"), ("a", "varchar(20)")]


def test_a_table_made_anew_is_followed_from_there() -> None:
    followed = Followed().run(
        GHOST,
        "alter table _orders_gho add column wrong int",
        "drop table if exists _orders_gho",
        GHOST,
        "alter table _orders_gho add column c int",
        SWAP,
    )
    assert [c.name for c in followed.orders.columns] == ["id", "a", "b", "c"]


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        ((SWAP,), "came before this pipeline"),
        ((GHOST, "alter table _orders_gho add column c int default (rand()) ", SWAP), "an expression"),
        ((GHOST, "alter table _orders_gho add column c datetime default now()", SWAP), "the time of the statement"),
        ((GHOST, "alter table _orders_gho modify b varchar(10)", SWAP), "texts were cut"),
        ((GHOST, "alter table _orders_gho modify a int not null", SWAP), "NULL became another value"),
        ((GHOST, "alter table _orders_gho modify a int unsigned", SWAP), "numbers were cut"),
        ((GHOST, "alter table _orders_gho modify a char(20)", SWAP), "was converted from int to char"),
        ((GHOST, "alter table _orders_gho modify b varchar(20) charset latin1", SWAP), "characters that latin1 lacks"),
        ((GHOST, "alter table _orders_gho change a total int", SWAP), r"leave renamed columns out .*\(total\)"),
        ((GHOST, "alter table _orders_gho add unique (a)", SWAP), "a unique key was added"),
        ((GHOST, "alter table _orders_gho add constraint x unique key y (a)", SWAP), "a unique key was added"),
        ((GHOST, "alter table _orders_gho add (c int unique)", SWAP), "a unique key was added"),
        ((GHOST, "alter table _orders_gho drop primary key", SWAP), "alter_primary_key"),
        ((GHOST, "alter table _orders_gho froggle", SWAP), "'froggle' is not understood"),
        ((GHOST, "alter table _orders_gho drop column nobody", SWAP), "nobody"),
        (("create table other like orders", "rename table orders to x, other to orders"), "not captured"),
        ((OSC, OSC_SWAP, "rename table orders to x, _orders_old to orders"), "it is unknown if the rows"),
        (("rename table orders to _orders_old",), "rename_table is not followed"),
        (("alter table orders rename customers",), "rename_table is not followed"),
        ((GHOST, "alter table orders rename _orders_del", "drop table _orders_gho"), "renamed away"),
        ((OSC, "drop table if exists orders", "rename table _orders_new to orders"), "not captured"),
    ],
)
def test_what_a_tool_did_to_the_rows_is_never_guessed(statements: tuple[str, ...], why: str) -> None:
    followed = Followed()
    if "drop table if exists orders" in statements:
        followed.run(statements[0])
        place = BinlogOffset("binlog.000001", 4)
        followed.history.on_ddl(DdlItem("shop", statements[1], place, place, 0, in_transaction=False))
        followed.restarts = False
        statements = statements[2:]
    with pytest.raises(SchemaError, match=why) as raised:
        followed.run(*statements)
    assert statements[-1].split()[0] in str(raised.value)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("_orders_gho", "shadow"),
        ("_orders_ghc", "notes"),
        ("_orders_ghk", "notes"),
        ("_orders_del", "old"),
        ("_orders_20240131120000_del", "old"),
        ("_orders_rev_del", "old"),
        ("_orders_new", "shadow"),
        ("___orders_new", "shadow"),
        ("_orders_old", "old"),
        ("orders_new", None),
        ("__orders_gho", None),
        ("_customers_new", None),
        ("orders", None),
    ],
)
def test_tools_tables_are_known_by_their_names(name: str, role: str | None) -> None:
    expected = None if role is None else (ORDERS, role)
    assert role_of(TableId("shop", name), {ORDERS}) == expected
    assert role_of(TableId("other", name), {ORDERS}) is None


def test_names_that_are_too_long_are_shortened_as_the_tools_do() -> None:
    assert role_of(TableId("shop", f"_{'x' * 59}_gho"), {LONG, ORDERS}) == (LONG, "shadow")
    assert role_of(TableId("shop", f"_{'x' * 62}_"), {LONG, ORDERS}) == (LONG, "shadow")
    twin = TableId("shop", "x" * 61 + "y")
    assert role_of(TableId("shop", f"_{'x' * 59}_gho"), {LONG, twin}) is None


def test_tools_tables_are_no_tables_of_a_pattern_unless_their_table_is_missing() -> None:
    names = {TableId("shop", name) for name in ("orders", "_orders_gho", "_orders_old", "_items_new", "_new")}
    assert {t.table for t in tool_tables(names)} == {"_orders_gho", "_orders_old"}


def test_rows_of_tools_tables_are_not_captured_unless_by_name() -> None:
    assert not Followed(r"shop\..*").history.captures(TableId("shop", "_orders_gho"))
    assert Followed(r"shop\..*").history.captures(TableId("shop", "_items_gho"))
    assert Followed(r"shop\..*", "shop._orders_gho").history.captures(TableId("shop", "_orders_gho"))


def test_a_truncation_that_is_left_out_makes_no_row() -> None:
    place = BinlogOffset("binlog.000001", 4)
    for left_out, rows in (((), 1), (("drop_table",), 1), (("truncate_table",), 0)):
        history = DdlHistory(
            {ORDERS: table_of(CREATED, ORDERS)},
            selector=TableSelector(("shop.orders",)),
            server=LogServer(DdlDialect(), ("utf8mb4", "")),
            terms=ParkingSetup(rules=TargetRules(left_out=frozenset(left_out))),
        )
        history.attach(Decoder())
        history.on_ddl(DdlItem("shop", "TRUNCATE orders", place, place, 0, in_transaction=False))
        updates, truncations = history.take_updates()
        assert ([u.changes[0].type for u in updates if not isinstance(u, ParkTableUpdate)], len(truncations)) == (
            ["truncate_table"],
            rows,
        )


def test_other_peoples_tables_are_neither_parsed_nor_kept() -> None:
    followed = Followed().run(
        "create table _customers_gho like customers", "alter table _customers_gho froggle", "rename table a to b"
    )
    assert followed.state == {}


@pytest.mark.parametrize("statement", ["ALTER TABLE orders ADD `never ends", "DROP TABLE other, `shop`.`orders"])
def test_a_statement_whose_names_cannot_be_read_parks_what_it_mentions(statement: str) -> None:
    place = BinlogOffset("binlog.000001", 4)
    history = DdlHistory(
        {ORDERS: table_of(CREATED, ORDERS)},
        selector=TableSelector((r"shop\..*",)),
        server=LogServer(DdlDialect(), ("utf8mb4", "")),
        terms=ParkingSetup({}),
    )
    history.attach(Decoder())
    history.on_ddl(DdlItem("shop", statement.replace("orders", "items"), place, place, 0, in_transaction=False))
    assert history.take_updates() == ((), ())

    history.on_ddl(DdlItem("shop", statement, place, place, 0, in_transaction=False))

    ((update,), _) = history.take_updates()
    assert isinstance(update, ParkTableUpdate)
    assert (update.table, update.parking.again) == (ORDERS, True)
    assert "its names cannot be read" in update.parking.reason


def test_an_unknown_table_begins_by_itself_in_a_target_that_others_have_rows_in() -> None:
    place = BinlogOffset("binlog.000001", 4)
    merged = Router((Route(r"shop\..*", "lake.all"),))
    history = DdlHistory(
        {ORDERS: table_of(CREATED, ORDERS)},
        selector=TableSelector((r"shop\..*",)),
        server=LogServer(DdlDialect(), ("utf8mb4", "")),
        terms=ParkingSetup({}, rules=TargetRules(router=merged, upsert=True)),
    )
    history.attach(Decoder())
    history.on_schema_mismatch(TableId("shop", "new"), DataError("nobody knows its columns"), place)
    (unknown,) = history.take_mismatches(place, 0)
    assert unknown.parking.again
    # Nor is it in the way of a table whose rows a statement rewrites.
    history.on_ddl(DdlItem("shop", "ALTER TABLE orders MODIFY b INT", place, place, 0, in_transaction=False))
    ((update,), _) = history.take_updates()
    assert isinstance(update, ParkTableUpdate)
    assert update.parking.again


def test_a_dropped_table_of_a_merged_target_that_is_made_anew_waits_also_after_a_restart() -> None:
    place, item = BinlogOffset("binlog.000001", 4), TableId("shop", "item")
    rules = TargetRules(router=Router((Route(r"shop\..*", "lake.all"),)), upsert=True)

    def begun(tables: dict[TableId, MySqlTable], state: HistoryState) -> DdlHistory:
        server = LogServer(DdlDialect(), ("utf8mb4", ""))
        terms: ParkingSetup[MySqlTable] = ParkingSetup({}, rules=rules)
        history = DdlHistory(tables, selector=TableSelector((r"shop\..*",)), server=server, terms=terms, state=state)
        history.attach(Decoder())
        return history

    alone = begun({item: table_of("CREATE TABLE item (id INT PRIMARY KEY)", item)}, HistoryState())
    alone.on_ddl(DdlItem("shop", "DROP TABLE item", place, place, 0, in_transaction=False))
    state = alone.take_state()
    assert state is not None
    # The target remembers it, and would refuse to be emptied for it: that would hold up `orders`, too.
    again = begun({ORDERS: table_of(CREATED, ORDERS)}, state)
    again.on_ddl(DdlItem("shop", "CREATE TABLE item (id BIGINT PRIMARY KEY)", place, place, 0, in_transaction=False))
    ((update,), _) = again.take_updates()
    assert isinstance(update, ParkTableUpdate)
    assert not update.parking.again
    assert "cannot be told from those of shop.orders" in update.parking.reason
