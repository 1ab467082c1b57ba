"""`raycdc run` into MongoDB: every type arrives as it is, by snapshot and by log, and DDL is followed."""

from __future__ import annotations

import json
import os
import random
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bson.decimal128 import Decimal128

from raycdc.clients.mysql import query
from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.model import Column, TableId, TableSchema, TypeKind
from raycdc.sandbox.compare import read_source
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, MongoDb
from tests.e2e.test_jdbc import write_rows
from tests.e2e.test_schema_changes import CHANGES, SIZE, TABLES, shop
from tests.e2e.verified import require_verified
from tests.integration.connectors.mysql.test_mysql_types import cases_of
from tests.integration.connectors.mysql.type_cases import as_printed, server_values
from tests.support.forked_commands import completed
from tests.support.jobs import Job, catch_up
from tests.support.sessions import session

pytestmark = pytest.mark.server


def sink_keys(mongodb: MongoDb, record: str) -> str:
    return f'uri = "{mongodb.uri}"\nrecord = "{record}"\n'


def read_collection(mongodb: MongoDb, target: TableId, schema: TableSchema) -> pa.Table:
    """The documents of a target by key, its columns as the types of `schema`."""
    found = mongodb.find(target.db, target.table)
    assert [row["_id"] for row in found] == [row["id"] for row in found]
    columns = {c.name: [value_of(c, row.get(c.name)) for row in found] for c in schema.columns}
    return pa.table({c.name: pa.array(columns[c.name], c.type.arrow()) for c in schema.columns})


def value_of(column: Column, value: Any) -> Any:
    """What a document has, as Arrow takes it."""
    if value is None:
        return None
    match column.type.kind:
        case TypeKind.DATE:
            return value.date()
        case TypeKind.DATETIME | TypeKind.TIMESTAMP:
            moment = datetime.fromisoformat(value).replace(tzinfo=UTC) if isinstance(value, str) else value
            return moment.replace(tzinfo=None) if column.type.kind is TypeKind.DATETIME else moment
        case TypeKind.DECIMAL | TypeKind.UINT64 | TypeKind.BIT:
            number = value.to_decimal() if isinstance(value, Decimal128) else value
            return int(number) if column.type.arrow() == pa.int64() else Decimal(number)
        case _:
            return value


@pytest.mark.long_variants("mysql80", suite="servers")
@pytest.mark.parametrize("kind", ["mysql80", "mariadb"])
def test_every_type_arrives(kind: str, mongodb: MongoDb, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server: DatabaseServer = request.getfixturevalue(kind)
    generator = random.Random(3)
    cases = cases_of(server)
    columns = ", ".join(f"c{n} {case.sql}" for n, case in enumerate(cases))
    with (
        server.fresh_database() as database,
        mongodb.fresh_database("home") as home,
        session(server, "root") as connection,
    ):
        table = f"`{database}`.t"
        query(connection, f"CREATE TABLE {table} (id INT PRIMARY KEY, {columns})")
        write_rows(connection, table, cases, generator, range(24))
        keys = sink_keys(mongodb, home)
        job = Job(tmp_path, server, database, ("t",), sink="mongodb", sink_keys=keys, local=True)
        catch_up(job)
        write_rows(connection, table, cases, generator, range(16, 40))
        query(connection, f"DELETE FROM {table} WHERE id % 7 = 0")
        catch_up(job)
        require_verified(job, rows=30)
        source = load_table(connection, TableId(database, "t"))
        held = read_collection(mongodb, source.id, source.schema())
        theirs = server_values(connection, source)
        drop(mongodb, database)
    for column, values in zip(source.columns, theirs, strict=True):
        assert (column.column_type, as_printed(column, held[column.name].combine_chunks())) == (
            column.column_type,
            values,
        )


def drop(mongodb: MongoDb, name: str) -> None:
    with mongodb.client() as client:
        client.drop_database(name)


@pytest.mark.parametrize(
    "local",
    # How Spark's tasks write collections, `tests/spark` shows for `make test`.
    [True, pytest.param(False, marks=[pytest.mark.spark, pytest.mark.long(suite="stories")])],
    ids=["local", "Ray and Spark"],
)
def test_ddl_mid_way_is_followed(
    request: pytest.FixtureRequest, mariadb: MariaDbServer, mongodb: MongoDb, local: bool, tmp_path: Path
) -> None:
    ray = "" if local else request.getfixturevalue("ray")
    with mongodb.fresh_database("home") as home:
        # The collections' database, which goes with the other.
        database = f"{home}_away"
        shop(mariadb, database)
        keys = sink_keys(mongodb, home)
        job = Job(tmp_path, mariadb, database, TABLES, sink="mongodb", sink_keys=keys, local=True, sections=ray)
        catch_up(job)
        mariadb.execute(*CHANGES, database=database)
        catch_up(replace(job, local=local))
        for table in TABLES:
            with session(mariadb, "root") as connection:
                schema = load_table(connection, TableId(database, table)).schema()
            held = read_collection(mongodb, TableId(database, table), schema)
            with mariadb.connect() as connection:
                source = read_source(connection, database, table, like=held.schema)
            assert held.to_pylist() == source.sort_by("id").to_pylist()
        # Dropped at the source: it stays in a lenient target, and rows changed since have no value there.
        products = mongodb.find(database, "products")
        assert {row["handling"] for row in products if row["id"] < 20} == {None}
        assert mongodb.find(home, "raycdc_fence") == []
        assert len(mongodb.find(database, "customers")) == SIZE.customers


def raycdc(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = completed(words, environment={**os.environ, **environment}, folder=folder)
    assert "Traceback" not in done.stderr
    return done


def test_check_and_plan_say_what_will_be(
    mariadb: MariaDbServer, mariadb_database: str, mongodb: MongoDb, tmp_path: Path
) -> None:
    mariadb.execute(f"CREATE TABLE {mariadb_database}.t (id BIGINT PRIMARY KEY, at TIMESTAMP(6) NULL)")
    (tmp_path / "p.toml").write_text(
        f'[pipeline]\nname = "p"\n[source]\ntype = "mysql"\nhost = "{mariadb.host}"\nport = {mariadb.port}\n'
        f'user = "root"\npassword = "${{env:SOURCE_PASSWORD}}"\ntables = ["{mariadb_database}.t"]\n'
        '[sink]\ntype = "mongodb"\nuri = "${env:SINK_URI}"\n'
    )
    environment = {"SOURCE_PASSWORD": mariadb.root_password, "SINK_URI": mongodb.uri}
    good = raycdc(tmp_path, "check", "p.toml", **environment)
    assert (good.returncode, "Connected to MongoDB at mongodb://" in good.stdout) == (0, True), good.stdout
    planned = raycdc(tmp_path, "plan", "p.toml", "--json", **environment)
    assert planned.returncode == 0, planned.stderr
    shown = [json.loads(line) for line in planned.stdout.splitlines()]
    create = f'db.getSiblingDB("{mariadb_database}").createCollection("t") // {{_id: id, id: long, at: string}}'
    assert create in [line.get("ddl") or line.get("statement") or line.get("create") for line in shown], shown
    wrong = {**environment, "SINK_URI": "mongodb://cdc:gehe1m@127.0.0.1:1/?serverSelectionTimeoutMS=100"}
    bad = raycdc(tmp_path, "check", "p.toml", **wrong)
    assert (bad.returncode, "cannot be reached" in bad.stdout, "gehe1m" in bad.stdout + bad.stderr) == (5, True, False)
