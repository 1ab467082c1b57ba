"""A small shop as a database: customers, products, orders, in a mix of column types, filled by the server itself.

Used by ``raycdc demo`` and by the tests that need data with some meaning. The content depends on the row numbers only,
so that two shops of one size are equal.
"""

from __future__ import annotations

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

#: One statement per table: `n` counts from 1. CRC32 spreads values without repeating a pattern.
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
    """Rows per table."""

    customers: int = 20_000
    products: int = 2_000
    orders: int = 200_000

    @property
    def rows(self) -> int:
        """Rows in all tables."""
        return self.customers + self.products + self.orders


def create_shop(connection: Any, database: str = "shop", size: ShopSize = ShopSize()) -> None:
    """Make the database and fill it; a few seconds for the default size. The database must not exist."""
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
    """A subquery with the column `n` from 1 to `count`, on any version of either server."""
    digits = "(SELECT 0 d" + "".join(f" UNION ALL SELECT {digit}" for digit in range(1, 10)) + ")"
    places = len(str(count))
    value = " + ".join(f"{10**place} * d{place}.d" for place in range(places))
    sources = ", ".join(f"{digits} d{place}" for place in range(places))
    return f"(SELECT 1 + {value} AS n FROM {sources}) numbers WHERE n <= {count} ORDER BY n"
