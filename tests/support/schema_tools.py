"""gh-ost and pt-online-schema-change as their statements: what a server's log holds of them, while rows change.

The tools themselves are not in every package registry. Their statements are repeated here in their order, with their
names and comments (gh-ost: ``go/logic/applier.go``; pt-online-schema-change: ``create_new_table``, ``create_triggers``,
``swap_tables``); only what keeps the shadow's rows up to date is simpler where no log shows the difference.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Self

import pymysql

from raycdc.sandbox.servers import DatabaseServer
from raycdc.sandbox.servers.private import wait_until

#: The changed table. `Traffic` changes its rows through columns that no schema change removes.
ORDERS = """CREATE TABLE orders (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  customer INT,
  amount DECIMAL(10,2) NOT NULL DEFAULT 0.00,
  note VARCHAR(30),
  status ENUM('placed', 'paid') NOT NULL DEFAULT 'placed',
  KEY by_customer (customer)
) DEFAULT CHARSET=utf8mb4 COMMENT='what was ordered'"""

#: The schema changes: a column added, dropped, renamed, made wider, and moved.
ALTER = (
    "ADD COLUMN priority TINYINT NOT NULL DEFAULT 3 AFTER id, CHANGE customer client BIGINT, DROP COLUMN status, "
    "MODIFY note VARCHAR(80) AFTER client"
)
#: The options as in `ALTER`, without the name: gh-ost does not rename without an explicit option.
ALTER_NO_NAME = ALTER.replace("CHANGE customer client", "MODIFY customer").replace("AFTER client", "AFTER customer")
#: The effect of `ALTER` on columns that stay: the name in the table, and in its shadow.
SHARED = {"id": "id", "customer": "client", "amount": "amount", "note": "note"}
SHARED_NO_NAME = {**SHARED, "customer": "customer"}

#: Errors that are retried: lock wait timeout, deadlock, and no such table (between two renames).
_PASSING = (1205, 1213, 1146)


def fill(server: DatabaseServer, database: str, rows: int) -> None:
    """Create the table with `rows` rows."""
    values = ", ".join(f"({n}, {n}.25, 'note {n}', 'paid')" for n in range(1, rows + 1))
    insert = f"INSERT INTO orders (customer, amount, note, status) VALUES {values}"
    server.execute("DROP TABLE IF EXISTS orders", ORDERS, insert, database=database)


class Traffic:
    """Inserts, changes and deletes rows of the table over one connection. `made` counts the transactions."""

    def __init__(self, server: DatabaseServer, database: str) -> None:
        self.made = 0
        self._server = server
        self._database = database
        self._stop = threading.Event()
        self._writes = threading.Lock()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=300)

    def paused(self) -> threading.Lock:
        """Hold off transactions within the block; none is open or begins."""
        return self._writes

    def wait_for(self, transactions: int) -> None:
        """Wait until this many more transactions were made."""
        wanted = self.made + transactions
        wait_until(lambda: self.made >= wanted, timeout_s=300, what=f"{transactions} transactions")

    def _work(self) -> None:
        with self._server.connect(database=self._database) as connection, connection.cursor() as cursor:
            while not self._stop.wait(0.002):
                try:
                    with self._writes:
                        _change_rows(cursor, self.made)
                    self.made += 1
                except pymysql.MySQLError as error:
                    if error.args[0] not in _PASSING:
                        raise
                    cursor.execute("ROLLBACK")


def _change_rows(cursor: Any, number: int) -> None:
    cursor.execute("BEGIN")
    cursor.execute("INSERT INTO orders (amount, note) VALUES (%s, %s)", (number, f"new {number} ♥"))
    cursor.execute("UPDATE orders SET amount = amount + 1, note = NULL WHERE id %% 37 = %s", (number % 37,))
    cursor.execute("DELETE FROM orders WHERE id %% 89 = %s", (number % 89,))
    cursor.execute("COMMIT")


class GhOst:
    """gh-ost on ``orders``: `begin` until the shadow is altered, then `cut_over`."""

    def __init__(self, server: DatabaseServer, database: str, *, atomic: bool = True) -> None:
        self._server = server
        self._database = database
        self._atomic = atomic

    def begin(self, alter: str) -> None:
        """Make the changelog table and the shadow, and alter the shadow."""
        db = self._database
        self._run(
            f"drop /* gh-ost */ table if exists `{db}`.`_orders_gho`",
            f"drop /* gh-ost */ table if exists `{db}`.`_orders_del`",
            f"drop /* gh-ost */ table if exists `{db}`.`_orders_ghc`",
            f"""create /* gh-ost */ table `{db}`.`_orders_ghc` (
            id bigint unsigned auto_increment,
            last_update timestamp not null DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
            hint varchar(64) charset ascii not null,
            value varchar(4096) charset ascii not null,
            primary key(id),
            unique key hint_uidx(hint)
        ) auto_increment=256 comment='gh-ost changelog'""",
            f"create /* gh-ost */ table `{db}`.`_orders_gho` like `{db}`.`orders`",
            f"alter /* gh-ost */ table `{db}`.`_orders_gho` {alter}",
            f"alter /* gh-ost */ table `{db}`.`_orders_gho` AUTO_INCREMENT=100000",
            f"insert /* gh-ost */ into `{db}`.`_orders_ghc` (id, hint, value) "
            "values (NULLIF(2, 0), 'state', 'Migrated')",
        )

    def copy(self, shared: Mapping[str, str], low: int, high: int) -> None:
        """Copy a range of rows, as gh-ost does chunk by chunk."""
        db, new, old = self._database, _names(shared.values()), _names(shared)
        self._run(
            f"insert /* gh-ost {db}.orders */ ignore into `{db}`.`_orders_gho` ({new}) (select {old} from "
            f"`{db}`.`orders` force index (`PRIMARY`) where id between {low} and {high} lock in share mode)"
        )

    def cut_over(self, shared: Mapping[str, str], traffic: Traffic) -> None:
        """Bring the shadow up to date while all writers wait, and put it in place of the table."""
        with traffic.paused():
            self._cut_over(shared)

    def _cut_over(self, shared: Mapping[str, str]) -> None:
        db, new, old = self._database, _names(shared.values()), _names(shared)
        sync = (
            f"delete /* gh-ost */ from `{db}`.`_orders_gho`",
            f"replace /* gh-ost */ into `{db}`.`_orders_gho` ({new}) select {old} from `{db}`.`orders`",
        )
        tables = [f"`{db}`.`orders` write", f"`{db}`.`_orders_gho` write"]
        if self._atomic:
            self._run(
                f"create /* gh-ost */ table `{db}`.`_orders_del` (id int auto_increment primary key) engine=InnoDB "
                "comment='ghost-cut-over-sentry'"
            )
            tables.append(f"`{db}`.`_orders_del` write")
        with self._server.connect(database=db) as locker, locker.cursor() as cursor:
            cursor.execute(f"lock /* gh-ost */ tables {', '.join(tables)}")
            for statement in sync:
                cursor.execute(statement)
            if self._atomic:
                swap = threading.Thread(target=self._swap)
                swap.start()
                # As with the tool, writers queue behind the rename.
                wait_until(self._swap_waits, timeout_s=300, what="the rename to wait for its lock")
                cursor.execute(f"drop /* gh-ost */ table if exists `{db}`.`_orders_del`")
                cursor.execute("unlock /* gh-ost */ tables")
                swap.join(timeout=300)
            else:
                cursor.execute(f"alter /* gh-ost */ table `{db}`.`orders` rename `_orders_del`")
                cursor.execute("unlock /* gh-ost */ tables")
                self._run(f"alter /* gh-ost */ table `{db}`.`_orders_gho` rename `orders`")
        self._run(
            f"drop /* gh-ost */ table if exists `{db}`.`_orders_ghc`",
            f"drop /* gh-ost */ table if exists `{db}`.`_orders_del`",
        )

    def _swap_waits(self) -> bool:
        with self._server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE LIKE %s AND INFO LIKE %s",
                ("%metadata lock%", f"rename%{self._database}%"),
            )
            return bool(cursor.fetchone()[0])

    def _swap(self) -> None:
        db = self._database
        self._run(
            f"rename /* gh-ost */ table `{db}`.`orders` to `{db}`.`_orders_del`, "
            f"`{db}`.`_orders_gho` to `{db}`.`orders`"
        )

    def _run(self, *statements: str) -> None:
        self._server.execute(*statements, database=self._database)


class PtOsc:
    """pt-online-schema-change on ``orders``: `begin` until triggers keep the shadow up to date, then `cut_over`."""

    def __init__(self, server: DatabaseServer, database: str) -> None:
        self._server = server
        self._database = database

    def begin(self, alter: str, shared: Mapping[str, str]) -> None:
        """Make the shadow from the server's own description of the table, alter it, and make the triggers."""
        db = self._database
        with self._server.connect(database=db) as connection, connection.cursor() as cursor:
            cursor.execute("SHOW CREATE TABLE orders")
            created = str(cursor.fetchone()[1])
        quoted = f"`{db}`.`_orders_new`"
        created = re.sub(r"\ACREATE TABLE .*?\($", f"CREATE TABLE {quoted} (", created, flags=re.MULTILINE)
        columns = _names(shared.values())
        values = ", ".join(f"NEW.`{old}`" for old in shared)
        same = f"{quoted}.`id` <=> OLD.`id`"
        name, head = f"`pt_osc_{db}_orders_", f"ON `{db}`.`orders` FOR EACH ROW BEGIN DECLARE CONTINUE HANDLER "
        head += "FOR 1146 begin end; "
        replace = f"REPLACE INTO {quoted} ({columns}) VALUES ({values});"
        self._run(
            created,
            f"ALTER TABLE {quoted} {alter}",
            f"CREATE TRIGGER {name}del` AFTER DELETE {head}DELETE IGNORE FROM {quoted} WHERE {same}; END ",
            f"CREATE TRIGGER {name}upd` AFTER UPDATE {head}DELETE IGNORE FROM {quoted} WHERE !(OLD.`id` <=> NEW.`id`) "
            f"AND {same}; {replace} END ",
            f"CREATE TRIGGER {name}ins` AFTER INSERT {head}{replace}END ",
        )

    def cut_over(self, shared: Mapping[str, str]) -> None:
        """Copy the rows, put the shadow in the table's place, and clean up."""
        db = self._database
        self._run(
            f"INSERT LOW_PRIORITY IGNORE INTO `{db}`.`_orders_new` ({_names(shared.values())}) SELECT {_names(shared)} "
            f"FROM `{db}`.`orders` LOCK IN SHARE MODE /*pt-online-schema-change 1 copy table*/",
            f"ANALYZE TABLE `{db}`.`_orders_new` /* pt-online-schema-change */",
            f"RENAME TABLE `{db}`.`orders` TO `{db}`.`_orders_old`, `{db}`.`_orders_new` TO `{db}`.`orders`",
            "SET foreign_key_checks=0",
            f"DROP TABLE IF EXISTS `{db}`.`_orders_old`",
            *(f"DROP TRIGGER IF EXISTS `{db}`.`pt_osc_{db}_orders_{event}`" for event in ("del", "upd", "ins")),
        )

    def _run(self, *statements: str) -> None:
        with self._server.connect(database=self._database) as connection, connection.cursor() as cursor:
            for statement in statements:
                _patiently(cursor, statement)


def _patiently(cursor: Any, statement: str, tries: int = 20) -> None:
    """Run a statement like the tool: again after a deadlock."""
    for left in reversed(range(tries)):
        try:
            cursor.execute(statement)
            return
        except pymysql.OperationalError as error:
            if error.args[0] not in _PASSING or left == 0:
                raise


def _names(columns: Sequence[str] | Mapping[str, str] | Any) -> str:
    return ", ".join(f"`{name}`" for name in columns)
