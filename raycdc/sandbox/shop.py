"""A sample database, a small shop: customers, products and orders, with many column types, filled by the server itself.

Used by ``raycdc demo`` and by tests that need realistic data. The content depends only on the row numbers, so two shops
of the same size are equal.

`ShopWorkload` changes the shop while snapshot and log are read. It has one connection, and makes one transaction per
`step`. The same seed on the same shop makes the same statements. *Contract*: a given fraction of the row operations is
in the key range `hot`, so that a test can change the chunk that is being read.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

TABLES = ("customers", "products", "orders")

_SCHEMA = """
CREATE TABLE customers (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  email VARCHAR(120) NOT NULL,
  name VARCHAR(80) NOT NULL,
  tier ENUM('new', 'regular', 'gold') NOT NULL DEFAULT 'new',
  interests SET('books', 'music', 'garden', 'tools') NULL,
  credit DECIMAL(12, 2) NOT NULL DEFAULT 0,
  born DATE NULL,
  newsletter BOOLEAN NOT NULL DEFAULT FALSE,
  note TEXT NULL,
  created_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)
)
---
CREATE TABLE products (
  id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
  sku CHAR(12) NOT NULL,
  title VARCHAR(200) NOT NULL,
  price DECIMAL(10, 2) NOT NULL,
  weight_kg DOUBLE NULL,
  rating FLOAT NULL,
  stock INT NOT NULL,
  picture VARBINARY(64) NULL,
  launched YEAR NULL,
  handling TIME(3) NULL,
  flags BIT(5) NOT NULL DEFAULT b'0'
)
---
CREATE TABLE orders (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  customer_id BIGINT UNSIGNED NOT NULL,
  product_id INT UNSIGNED NOT NULL,
  quantity SMALLINT UNSIGNED NOT NULL,
  amount DECIMAL(14, 2) NOT NULL,
  status ENUM('placed', 'paid', 'shipped', 'returned') NOT NULL,
  placed_at DATETIME(6) NOT NULL,
  comment VARCHAR(200) NULL
)
"""

#: One statement per table; `n` counts from 1. CRC32 spreads values without a repeating pattern.
_ROWS = {
    "customers": """
INSERT INTO customers (email, name, tier, interests, credit, born, newsletter, note, created_at)
SELECT CONCAT('customer', n, '@example.com'), CONCAT('Käufer ', n), 1 + n % 3,
       NULLIF(CRC32(CONCAT('i', n)) % 16, 0), (CRC32(CONCAT('c', n)) % 1000000) / 100 - 2000,
       IF(n % 7 = 0, NULL, DATE_ADD('1940-01-01', INTERVAL CRC32(n) % 25000 DAY)), n % 2,
       IF(n % 5 = 0, REPEAT(CONCAT('note ', n, ' '), n % 9), NULL),
       DATE_ADD('2020-01-01 00:00:00', INTERVAL CRC32(CONCAT('t', n)) % 100000000 SECOND)
FROM """,
    "products": """
INSERT INTO products (sku, title, price, weight_kg, rating, stock, picture, launched, handling, flags)
SELECT CONCAT('SKU-', LPAD(n, 8, '0')), CONCAT('Product № ', n), (CRC32(n) % 100000) / 100,
       IF(n % 11 = 0, NULL, (CRC32(CONCAT('w', n)) % 100000) / 7), (n % 50) / 10, n * 3 % 1000,
       IF(n % 4 = 0, NULL, UNHEX(CONCAT(LPAD(HEX(CRC32(n)), 8, '0'), LPAD(HEX(n), 24, '0')))),
       1990 + n % 35, SEC_TO_TIME(CRC32(n) % 200000), n % 32
FROM """,
    "orders": """
INSERT INTO orders (customer_id, product_id, quantity, amount, status, placed_at, comment)
SELECT 1 + CRC32(CONCAT('a', n)) % {customers}, 1 + CRC32(CONCAT('b', n)) % {products}, 1 + n % 9,
       (CRC32(n) % 10000000) / 100, 1 + n % 4,
       DATE_ADD('2023-01-01 00:00:00', INTERVAL CRC32(CONCAT('p', n)) % 60000000 SECOND)
         + INTERVAL n % 1000000 MICROSECOND,
       IF(n % 3 = 0, CONCAT('please ring at door ', n % 100), NULL)
FROM """,
}


@dataclass(frozen=True, slots=True)
class ShopSize:
    """The number of rows of each table."""

    customers: int = 20_000
    products: int = 2_000
    orders: int = 200_000

    @property
    def rows(self) -> int:
        """Return the number of rows in all tables."""
        return self.customers + self.products + self.orders


def create_shop(connection: Any, database: str = "shop", size: ShopSize = ShopSize()) -> None:
    """Create the database and fill it; takes a few seconds with the default size. The database must not exist."""
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE `{database}` DEFAULT CHARACTER SET utf8mb4")
        cursor.execute(f"USE `{database}`")
        cursor.execute("SET time_zone = '+00:00'")
        for statement in _SCHEMA.split("---"):
            cursor.execute(statement)
        for table in TABLES:
            count = getattr(size, table)
            statement = _ROWS[table].format(customers=size.customers, products=size.products)
            cursor.execute(statement + _numbers(count))
    connection.commit()


def _numbers(count: int) -> str:
    """Return a subquery with the column `n` from 1 to `count`, for any version of either server."""
    digits = "(SELECT 0 d" + "".join(f" UNION ALL SELECT {digit}" for digit in range(1, 10)) + ")"
    places = len(str(count))
    value = " + ".join(f"{10**index} * d{index}.d" for index in range(places))
    sources = ", ".join(f"{digits} d{index}" for index in range(places))
    return f"(SELECT 1 + {value} AS n FROM {sources}) numbers WHERE n <= {count} ORDER BY n"


#: Updates of keys give negative keys, in a block per seed. After larger positive keys, MariaDB's AUTO_INCREMENT would
#: continue from there.
_MOVED_KEYS = 1_000_000
_BURST_ROWS_MAX = 20


@dataclass(frozen=True, slots=True)
class HotRange:
    """The keys of ``orders`` from `low` to `high`, inclusive."""

    low: int
    high: int


class ShopWorkload:
    """Changes the shop; see the module's docstring. Used by one thread; any thread may read `counts`."""

    def __init__(
        self,
        connect: Callable[[], Any],
        *,
        seed: int,
        database: str = "shop",
        size: ShopSize = ShopSize(),
        hot: Callable[[], HotRange | None] = lambda: None,
        hot_fraction: float = 0.5,
    ) -> None:
        self._connect = connect
        self._connection: Any = None
        self._random = random.Random(seed)
        self._database = database
        self._size = size
        self._hot = hot
        self._hot_fraction = hot_fraction
        self._moved = -_MOVED_KEYS * (1 + seed % 1000)
        self._points_added = False
        #: The number of transactions by kind, and of rows by ``insert``, ``update`` and ``delete``.
        self.counts: Counter[str] = Counter()

    def step(self) -> str:
        """Make one transaction; return its kind. Raises the server's errors."""
        kinds: list[tuple[int, Callable[[Any], None]]] = [
            (30, self._insert_orders),
            (30, self._change_order),
            (10, self._change_many),
            (10, self._delete_orders),
            (5, self._move_key),
            (8, self._buy),
            (3, self._change_customer),
            (2, self._insert_and_delete),
            (2, self._roll_back),
        ]
        weights = [weight for weight, _ in kinds]
        action = self._random.choices([action for _, action in kinds], weights)[0]
        connection = self._open()
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            action(cursor)
            cursor.execute("COMMIT")
        kind = action.__name__.lstrip("_")
        self.counts[kind] += 1
        self.counts["transactions"] += 1
        return kind

    def run(self, stop: threading.Event, *, pause_s: float = 0.0) -> None:
        """Step until `stop` is set, waiting `pause_s` between transactions; closes its connection."""
        while not stop.wait(pause_s):
            self.step()
        self.close()

    @contextmanager
    def running(self, *, pause_s: float) -> Iterator[ShopWorkload]:
        """Call `run` in a separate thread while the block runs."""
        stop = threading.Event()
        thread = threading.Thread(target=self.run, args=(stop,), kwargs={"pause_s": pause_s}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join(timeout=300)
            self.close()

    def add_points_column(self) -> None:
        """``ALTER TABLE customers ADD COLUMN points``; from then on customers get points."""
        with self._open().cursor() as cursor:
            cursor.execute("ALTER TABLE customers ADD COLUMN points INT NOT NULL DEFAULT 0")
        self._points_added = True
        self.counts["alter"] += 1

    def close(self) -> None:
        """Close the connection. A later `step` opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _insert_orders(self, cursor: Any) -> None:
        for _ in range(self._random.randint(1, 4)):
            self._insert_order(cursor)

    def _change_order(self, cursor: Any) -> None:
        self._update(
            cursor,
            "UPDATE orders SET status = %s, amount = amount + %s, comment = %s WHERE id = %s",
            (self._status(), self._random.randint(-500, 500) / 100, self._comment(), self._order()),
        )

    def _change_many(self, cursor: Any) -> None:
        first = self._order()
        last = first + self._random.randint(1, _BURST_ROWS_MAX)
        self._update(cursor, "UPDATE orders SET quantity = 1 + quantity %% 9 WHERE id BETWEEN %s AND %s", (first, last))

    def _delete_orders(self, cursor: Any) -> None:
        first = self._order()
        last = first + self._random.randint(0, 2)
        self.counts["delete"] += cursor.execute("DELETE FROM orders WHERE id BETWEEN %s AND %s", (first, last))

    def _move_key(self, cursor: Any) -> None:
        self._moved -= 1
        self._update(cursor, "UPDATE orders SET id = %s WHERE id = %s", (self._moved, self._order()))

    def _buy(self, cursor: Any) -> None:
        """Insert an order and a payment, and reduce the stock: three tables in one transaction, one row
        changed twice.
        """
        self._insert_order(cursor)
        order = cursor.lastrowid
        self._update(cursor, "UPDATE products SET stock = stock - 1 WHERE id = %s", (self._product(),))
        self._update(cursor, "UPDATE customers SET credit = credit - 10 WHERE id = %s", (self._customer(),))
        self._update(cursor, "UPDATE orders SET status = 'paid' WHERE id = %s", (order,))

    def _change_customer(self, cursor: Any) -> None:
        if self._points_added:
            self._update(cursor, "UPDATE customers SET points = points + 5 WHERE id = %s", (self._customer(),))
        self._update(
            cursor,
            "UPDATE customers SET tier = %s, note = %s WHERE id = %s",
            (self._random.choice(("new", "regular", "gold")), self._comment(), self._customer()),
        )

    def _insert_and_delete(self, cursor: Any) -> None:
        self._insert_order(cursor)
        self.counts["delete"] += cursor.execute("DELETE FROM orders WHERE id = %s", (cursor.lastrowid,))

    def _roll_back(self, cursor: Any) -> None:
        cursor.execute("DELETE FROM orders WHERE id = %s", (self._order(),))
        cursor.execute("ROLLBACK")

    def _open(self) -> Any:
        if self._connection is None:
            self._connection = self._connect()
            with self._connection.cursor() as cursor:
                cursor.execute(f"USE `{self._database}`")
        return self._connection

    def _insert_order(self, cursor: Any) -> None:
        self.counts["insert"] += cursor.execute(
            "INSERT INTO orders (customer_id, product_id, quantity, amount, status, placed_at, comment) "
            "VALUES (%s, %s, %s, %s, 'placed', NOW(6), %s)",
            (
                self._customer(),
                self._product(),
                self._random.randint(1, 9),
                self._random.randint(1, 99_999) / 100,
                self._comment(),
            ),
        )

    def _update(self, cursor: Any, statement: str, arguments: tuple[Any, ...]) -> None:
        self.counts["update"] += cursor.execute(statement, arguments)

    def _order(self) -> int:
        hot = self._hot()
        if hot is not None and self._random.random() < self._hot_fraction:
            return self._random.randint(hot.low, hot.high)
        return self._random.randint(1, self._size.orders)

    def _customer(self) -> int:
        return self._random.randint(1, self._size.customers)

    def _product(self) -> int:
        return self._random.randint(1, self._size.products)

    def _status(self) -> str:
        return self._random.choice(("placed", "paid", "shipped", "returned"))

    def _comment(self) -> str | None:
        return self._random.choice((None, "", "gift ♥", 'it\'s "urgent"', "x" * self._random.randint(1, 200)))
