"""`raycdc run` into Iceberg: DDL is followed, and Spark reads and maintains the tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.snapshots import Operation

from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.model import TableId, TableSchema
from raycdc.sandbox.compare import read_source
from raycdc.sandbox.servers import MariaDbServer
from tests.e2e.test_schema_changes import CHANGES, TABLES, shop
from tests.epochs.sink_world import iceberg_table, new_world
from tests.epochs.upkept_lakes import IcebergLake
from tests.support.jobs import Job, catch_up
from tests.support.sessions import session

pytestmark = pytest.mark.server

#: What `.ci/setup test` fetches.
JARS = Path(__file__).parents[2] / ".cache" / "jars-iceberg"


def read_iceberg(folder: Path, schema: TableSchema) -> pa.Table:
    """The rows of a target by id, its columns as the types of `schema`."""
    found = iceberg_table(folder).scan().to_arrow().sort_by("id")
    return pa.table({c.name: found.column(c.name).combine_chunks().cast(c.type.arrow()) for c in schema.columns})


def check_shop(job: Job, database: str) -> None:
    for table in TABLES:
        with session(job.server, "root") as connection:
            schema = load_table(connection, TableId(database, table)).schema()
        held = read_iceberg(job.lake / database / table, schema)
        with job.server.connect() as connection:
            source = read_source(connection, database, table, like=held.schema)
        assert held.to_pylist() == source.sort_by("id").to_pylist()


def test_ddl_mid_way_is_followed(mariadb: MariaDbServer, tmp_path: Path) -> None:
    database = "away_iceberg"
    shop(mariadb, database)
    job = Job(tmp_path, mariadb, database, TABLES, sink="iceberg", local=True, cold=True)
    catch_up(job)
    mariadb.execute(*CHANGES, database=database)
    catch_up(job)
    check_shop(job, database)
    products = iceberg_table(job.lake / database / "products").scan().to_arrow().to_pylist()
    assert {row["handling"] for row in products if row["id"] < 20} == {None}
    assert any(row["handling"] is not None for row in products)


SESSION = """
import json
import sys
from pyspark.sql import SparkSession
jar, lake, *given = sys.argv[1:]
catalog = "spark.sql.catalog.lake"
session = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.extraClassPath", jar)
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
    .config(catalog, "org.apache.iceberg.spark.SparkCatalog")
    .config(catalog + ".type", "hadoop")
    .config(catalog + ".warehouse", lake)
    .getOrCreate()
)
"""

MAINTAINS = """
(database,) = given
products = session.table(f"lake.{database}.products")
rows = [row.asDict() for row in products.select("id", "title", "price", "colour").orderBy("id").collect()]
one = products.where("id = 7 AND price > 0").count()
for table in ("products", "orders"):
    named = f"table => '{database}.{table}'"
    session.sql(f"CALL lake.system.rewrite_data_files({named}, options => map('rewrite-all', 'true'))")
    session.sql(f"CALL lake.system.expire_snapshots({named}, older_than => TIMESTAMP '2100-01-01 00:00:00')")
print(json.dumps({"rows": rows, "one": one}, default=str))
"""


def spark(code: str, lake: Path, *given: str) -> Any:
    """What `code` prints last, in a Spark with the tables of `lake`."""
    (jar,) = JARS.glob("*.jar")
    command = [sys.executable, "-c", SESSION + code, str(jar), lake.as_uri(), *given]
    return json.loads(subprocess.run(command, capture_output=True, check=True, timeout=900).stdout.splitlines()[-1])


def test_spark_reads_and_maintains_what_the_job_goes_on_with(mariadb: MariaDbServer, tmp_path: Path) -> None:
    database = "spark_iceberg"
    shop(mariadb, database)
    # A few partitions, each with several files.
    mariadb.execute("UPDATE products SET price = 10 + id % 3", database=database)
    partitioned = f'''[[transform]]\ntable = "{database}.products"\npartition_by = ["bucket(3, id)", "price"]'''
    job = Job(tmp_path, mariadb, database, TABLES, sink="iceberg", local=True, sections=partitioned)
    catch_up(job)
    mariadb.execute(
        "ALTER TABLE products ADD COLUMN colour VARCHAR(9) NOT NULL DEFAULT 'red' FIRST",
        "UPDATE products SET colour = 'blue', price = price + 1 WHERE id < 20",
        database=database,
    )
    catch_up(job)
    told = spark(MAINTAINS, job.lake, database)
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT id, title, price, colour FROM {database}.products ORDER BY id")
        names = ("id", "title", "price", "colour")
        theirs = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    assert told["rows"] == json.loads(json.dumps(theirs, default=str))
    assert told["one"] == 1
    changes = ("UPDATE products SET colour = 'green' WHERE id % 2 = 0", "DELETE FROM orders WHERE id < 50")
    mariadb.execute(*changes, database=database)
    catch_up(job)
    check_shop(job, database)


FOLLOWS = """
table, place = given
rows = session.table(table).count()
query = (
    session.readStream.format("iceberg").load(table)
    .writeStream.format("json").option("checkpointLocation", place + "/checkpoint").option("path", place + "/out")
    .trigger(availableNow=True).start()
)
query.awaitTermination()
seen = session.read.json(place + "/out")
print(json.dumps({"rows": rows, "seen": [row["id"] for row in seen.select("id").orderBy("id").collect()]}))
"""


@pytest.mark.long(suite="sinks")
@pytest.mark.parametrize("kind", ["iceberg-upsert", "iceberg-partitioned-upsert"])
def test_spark_follows_a_table_whose_small_files_become_large_ones(tmp_path: Path, kind: str) -> None:
    """Each row is seen once, though files with them were added to the table again and again."""
    world, lake = new_world(kind, tmp_path), IcebergLake()
    orders = world.script.table("shop.orders")
    for number in range(4):
        # Rows of a snapshot are appended, and a stream wants no others.
        orders.read([{"id": number * 100 + row, "name": "n", "qty": row} for row in range(50)])
        world.script.seal(final=number == 3)
    world.loop(lake.sink(world)).run()
    assert lake.operations(world).count(Operation.APPEND) == 4
    assert lake.optimised(world) == 3
    world.check()
    told = spark(FOLLOWS, tmp_path / "lake", "lake.shop.orders", str(tmp_path / "stream"))
    assert told == {"rows": 200, "seen": [row["id"] for row in orders.contents()]}
