"""`raycdc run` into a database: every type arrives as it is, by snapshot and by log, and DDL is followed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from raycdc.clients.mysql import query
from raycdc.connectors.mysql.server.catalog import load_table
from raycdc.connectors.mysql.values.types import BYTE_TYPES, MySqlColumn
from raycdc.model import TableId, TableSchema
from raycdc.sandbox.compare import read_source
from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, MySqlServer, PostgresServer
from tests.e2e.test_schema_changes import CHANGES, SIZE, TABLES, shop
from tests.e2e.verified import require_verified
from tests.integration.connectors.mysql.test_mysql_types import cases_of
from tests.integration.connectors.mysql.type_cases import TypeCase, as_printed, server_values
from tests.support.jobs import Job, catch_up
from tests.support.sessions import session

pytestmark = pytest.mark.server


def sink_keys(postgres: PostgresServer, database: str) -> str:
    return f'url = "jdbc:{postgres.url(database)}"\nuser = "{postgres.user}"\npassword = "{postgres.password}"\n'


def read_postgres(postgres: PostgresServer, database: str, target: TableId, schema: TableSchema) -> pa.Table:
    """The rows of a target by id, its columns as the types of `schema`."""
    names = ", ".join('"' + column.name.replace('"', '""') + '"' for column in schema.columns)
    with postgres.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(f'SELECT {names} FROM "{target.db}"."{target.table}" ORDER BY id')
        found: pa.Table = cursor.fetch_arrow_table()
    columns = {}
    for column in schema.columns:
        values = found.column(column.name).combine_chunks()
        stored = values.storage if isinstance(values, pa.ExtensionArray) else values
        columns[column.name] = stored.cast(column.type.arrow())
    return pa.table(columns)


def mysql_keys(server: DatabaseServer, database: str) -> str:
    url = f"jdbc:mysql://{server.host}:{server.port}/{database}"
    return f'url = "{url}"\nuser = "root"\npassword = "{server.root_password}"\n'


def write_rows(connection: Any, table: str, cases: list[TypeCase], generator: random.Random, rows: range) -> None:
    def value(case: TypeCase) -> str:
        return "NULL" if generator.random() < 0.15 else case.value(generator)

    for first in range(rows.start, rows.stop, 8):
        chunk = range(first, min(first + 8, rows.stop))
        values = (f"({n}, {', '.join(value(case) for case in cases)})" for n in chunk)
        query(connection, f"REPLACE INTO {table} VALUES {', '.join(values)}")


def test_every_type_arrives_in_postgresql(mysql80: MySqlServer, postgres: PostgresServer, tmp_path: Path) -> None:
    server = mysql80
    generator = random.Random(1)
    cases = cases_of(server)
    columns = ", ".join(f"c{n} {case.sql}" for n, case in enumerate(cases))
    with (
        server.fresh_database() as database,
        postgres.fresh_database() as home,
        session(server, "root") as connection,
    ):
        table = f"`{database}`.t"
        query(connection, f"CREATE TABLE {table} (id INT PRIMARY KEY, {columns})")
        write_rows(connection, table, cases, generator, range(24))
        job = Job(tmp_path, server, database, ("t",), sink="jdbc", sink_keys=sink_keys(postgres, home), local=True)
        catch_up(job)
        write_rows(connection, table, cases, generator, range(16, 40))
        query(connection, f"DELETE FROM {table} WHERE id % 7 = 0")
        catch_up(job)
        require_verified(job, rows=30)
        source = load_table(connection, TableId(database, "t"))
        held = read_postgres(postgres, home, source.id, source.schema())
        theirs = server_values(connection, source)
    for column, values in zip(source.columns, theirs, strict=True):
        assert (column.column_type, as_printed(column, held[column.name].combine_chunks())) == (
            column.column_type,
            values,
        )


@pytest.mark.long_variants("mariadb-mysql80", suite="servers")
@pytest.mark.parametrize(("source", "target"), [("mysql80", "mariadb"), ("mariadb", "mysql80")])
def test_every_type_arrives_in_mysql(source: str, target: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    origin: DatabaseServer = request.getfixturevalue(source)
    replica: DatabaseServer = request.getfixturevalue(target)
    generator = random.Random(2)
    cases = cases_of(origin)
    columns = ", ".join(f"c{n} {case.sql}" for n, case in enumerate(cases))
    with origin.fresh_database("typed") as database, session(origin, "root") as connection:
        table = f"`{database}`.t"
        query(connection, f"CREATE TABLE {table} (id INT PRIMARY KEY, {columns})")
        write_rows(connection, table, cases, generator, range(24))
        keys = mysql_keys(replica, f"{database}_home")
        job = Job(tmp_path, origin, database, ("t",), sink="jdbc", sink_keys=keys, local=True)
        catch_up(job)
        write_rows(connection, table, cases, generator, range(16, 40))
        query(connection, f"DELETE FROM {table} WHERE id % 7 = 0")
        catch_up(job)
        require_verified(job, rows=30)
        table_there = load_table(connection, TableId(database, "t"))
        with session(replica, "root") as reader:
            held = load_table(reader, table_there.id)
            shown = [_shown(column) for column in table_there.columns]
            ours = query(connection, f"SELECT {', '.join(shown)} FROM {table} ORDER BY id")
            theirs = query(reader, f"SELECT {', '.join(shown)} FROM {table} ORDER BY id")
        replica.execute(f"DROP DATABASE `{database}`", f"DROP DATABASE `{database}_home`")
    assert held.primary_key == ("id",)
    for column, ours_of, theirs_of in zip(
        table_there.columns, zip(*ours, strict=True), zip(*theirs, strict=True), strict=True
    ):
        assert (column.column_type, theirs_of) == (column.column_type, ours_of)


def _shown(column: MySqlColumn) -> str:
    """SQL that shows a value alike whatever its type is called."""
    name = f"`{column.name}`"
    match column.shape.base:
        case "datetime" | "timestamp":
            return f"DATE_FORMAT({name}, '%Y-%m-%d %H:%i:%s.%f')"
        case "time":
            return f"TIME_FORMAT({name}, '%H:%i:%s.%f')"
        case "float" | "double" if "," in column.column_type:  # FLOAT(7,4) shows so many digits, and its copy all
            return f"ROUND({name}, {column.column_type.partition(',')[2].partition(')')[0]})"
        case "float" | "double" | "bit" | "year" | "decimal":
            return f"{name} + 0"
        case base if base in BYTE_TYPES:
            return f"HEX({name})"
        case "json":
            return f"CAST({name} AS CHAR)"
        case base if column.charset:
            return f"HEX(CONVERT({name} USING utf8mb4))"
        case _:
            return name


def test_ddl_mid_way_is_followed(mariadb: MariaDbServer, postgres: PostgresServer, tmp_path: Path) -> None:
    database = "away_jdbc"
    shop(mariadb, database)
    with postgres.fresh_database() as home:
        job = Job(
            tmp_path, mariadb, database, TABLES, sink="jdbc", sink_keys=sink_keys(postgres, home), local=True, cold=True
        )
        catch_up(job)
        mariadb.execute(*CHANGES, database=database)
        catch_up(job)
        for table in TABLES:
            with session(mariadb, "root") as connection:
                schema = load_table(connection, TableId(database, table)).schema()
            held = read_postgres(postgres, home, TableId(database, table), schema)
            with mariadb.connect() as connection:
                source = read_source(connection, database, table, like=held.schema)
            assert held.to_pylist() == source.sort_by("id").to_pylist()
        changed = postgres.execute(f'SELECT DISTINCT handling FROM "{database}".products WHERE id < 20', database=home)
        assert changed == [(None,)]
        assert postgres.execute(f'SELECT count(*) FROM "{database}".customers', database=home) == [(SIZE.customers,)]
        assert postgres.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'raycdc_stage'", database=home) == [
            (0,)
        ]
