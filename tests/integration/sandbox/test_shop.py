"""The shop and its workload, on each kind of server: without them the other tests would test nothing."""

from __future__ import annotations

import pyarrow as pa
import pytest

from raycdc.sandbox.compare import checksum, compare_table, read_source
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer
from raycdc.sandbox.shop import TABLES, HotRange, ShopSize, ShopWorkload, create_shop

pytestmark = pytest.mark.server

SMALL = ShopSize(customers=50, products=20, orders=400)
PRODUCTS = pa.schema(
    [
        ("id", pa.int64()),
        ("sku", pa.string()),
        ("title", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("weight_kg", pa.float64()),
        ("rating", pa.float32()),
        ("stock", pa.int32()),
        ("picture", pa.binary()),
        ("launched", pa.int16()),
        ("handling", pa.string()),
        ("flags", pa.int64()),
    ]
)
KEYS = pa.schema([("id", pa.int64()), ("comment", pa.string())])


def test_a_shop_has_the_rows_it_was_asked_for(any_server: DatabaseServer) -> None:
    with any_server.fresh_database() as name, any_server.connect() as connection:
        any_server.execute(f"DROP DATABASE {name}")
        create_shop(connection, name, SMALL)
        counts = {table: any_server.scalar(f"SELECT COUNT(*) FROM {name}.{table}") for table in TABLES}
    assert counts == {"customers": 50, "products": 20, "orders": 400}


def test_a_table_compared_with_itself_is_equal_and_with_a_changed_row_is_not(mariadb: MariaDbServer) -> None:
    with mariadb.fresh_database() as name, mariadb.connect() as connection:
        mariadb.execute(f"DROP DATABASE {name}")
        create_shop(connection, name, SMALL)
        held = read_source(connection, name, "products", like=PRODUCTS)
        assert compare_table(connection, name, "products", held).equal
        mariadb.execute("UPDATE products SET rating = rating + 0.1 WHERE id = 3", database=name)
        changed = compare_table(connection, name, "products", held)
    assert not changed.equal
    assert [problem.partition(":")[0] for problem in changed.problems] == [
        "rows differ",
        "only in the source",
        "only in the sink",
    ]


def test_one_seed_is_one_history(mariadb: MariaDbServer) -> None:
    def history(seed: int) -> tuple[list[str], int]:
        with mariadb.fresh_database() as name, mariadb.connect() as connection:
            mariadb.execute(f"DROP DATABASE {name}")
            create_shop(connection, name, SMALL)
            workload = ShopWorkload(mariadb.connect, seed=seed, database=name, size=SMALL)
            kinds = [workload.step() for _ in range(120)]
            workload.add_points_column()
            kinds += [workload.step() for _ in range(30)]
            workload.close()
            return kinds, checksum(read_source(connection, name, "orders", like=KEYS)).digest

    assert history(7) == history(7)
    assert history(7) != history(8)


def test_the_hot_range_gets_its_share(mariadb: MariaDbServer) -> None:
    with mariadb.fresh_database() as name, mariadb.connect() as connection:
        mariadb.execute(f"DROP DATABASE {name}")
        create_shop(connection, name, SMALL)
        hot = HotRange(100, 110)
        workload = ShopWorkload(mariadb.connect, seed=1, database=name, size=SMALL, hot=lambda: hot, hot_fraction=1.0)
        before = read_source(connection, name, "orders", like=KEYS)
        while workload.counts["change_order"] < 20:
            workload.step()
        workload.close()
        after = read_source(connection, name, "orders", like=KEYS)
    touched = set(before["id"].to_pylist()) - set(after["id"].to_pylist())
    assert touched
    assert all(100 <= key <= 133 for key in touched)
