"""The shop of servers without SQL: its rows, and its customers' changes, which a client of the server writes.

Pure, except for random numbers; the same seed makes the same changes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from raycdc.sandbox.shop import ShopSize

Value = int | float | str | Mapping[str, str]
Row = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class SandboxRowChange:
    """A change of one row of a table: the row before and after it; None if there was or is no row."""

    table: str
    before: Row | None
    after: Row | None


class SandboxRows:
    """The present rows, and `step`, which changes some of them."""

    def __init__(self, size: ShopSize, *, seed: int = 2026) -> None:
        self._random = random.Random(seed)
        self._size = size
        self._born = size.orders
        self.rows: dict[str, dict[int, Row]] = {
            "customers": {n: self._customer(n) for n in range(1, size.customers + 1)},
            "products": {n: self._product(n) for n in range(1, size.products + 1)},
            "orders": {n: self._order(n) for n in range(1, size.orders + 1)},
        }
        #: The number of changes of each kind.
        self.counts: Counter[str] = Counter()

    def step(self) -> list[SandboxRowChange]:
        """Make one transaction: change `rows`, and return the changes."""
        self.counts["transactions"] += 1
        choice = self._random.random()
        if choice < 0.4:
            return list(self._buy())
        orders = self.rows["orders"]
        if choice < 0.5 and len(orders) > self._size.orders // 2:
            return [self._set("orders", self._random.choice(list(orders)), None)]
        if choice < 0.9:
            number = self._random.choice(list(orders))
            return [self._set("orders", number, {**orders[number], "quantity": self._random.randint(1, 9)})]
        number = self._random.randint(1, self._size.customers)
        tier = self._random.choice(("new", "regular", "gold"))
        return [self._set("customers", number, {**self.rows["customers"][number], "tier": tier})]

    def summary(self) -> str:
        """Return a summary of the changes, in words."""
        done = self.counts
        return (
            f"{done['transactions']:,} transactions changed the shop: {done['insert']:,} rows inserted, "
            f"{done['update']:,} updated, {done['delete']:,} deleted"
        )

    def held(self, table: str, column: str) -> dict[int, str]:
        """Return the values of one column by the rows' keys, as texts."""
        return {number: str(row[column]) for number, row in self.rows[table].items()}

    def _buy(self) -> Iterator[SandboxRowChange]:
        self._born += 1
        order = self._order(self._born)
        yield self._set("orders", self._born, order)
        number = self._random.randint(1, self._size.products)
        product = self.rows["products"][number]
        yield self._set("products", number, {**product, "stock": int(str(product["stock"])) - 1})

    def _set(self, table: str, number: int, after: Row | None) -> SandboxRowChange:
        rows = self.rows[table]
        change = SandboxRowChange(table, rows.get(number), after)
        if after is None:
            del rows[number]
        else:
            rows[number] = after
        self.counts["delete" if after is None else "insert" if change.before is None else "update"] += 1
        return change

    def _customer(self, n: int) -> Row:
        return {
            "id": n,
            "name": f"Käufer {n}",
            "email": f"customer{n}@example.com",
            "tier": ("new", "regular", "gold")[n % 3],
            "newsletter": n % 2 == 0,
            "address": {"city": ("Berlin", "Lyon", "Porto")[n % 3], "zip": f"{10_000 + n % 1000}"},
        }

    def _product(self, n: int) -> Row:
        return {"id": n, "title": f"Product № {n}", "price": n % 100_000 / 4, "stock": n * 3 % 1000}

    def _order(self, n: int) -> Row:
        return {
            "id": n,
            "customer_id": 1 + n % self._size.customers,
            "product_id": 1 + n % self._size.products,
            "quantity": 1 + n % 9,
            "amount": n % 10_000 / 4,
            "status": ("placed", "paid", "shipped", "returned")[n % 4],
        }
