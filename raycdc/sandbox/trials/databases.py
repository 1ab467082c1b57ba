"""Sandbox servers that speak SQL: MariaDB and MySQL, as sources and targets, and PostgreSQL, as a target."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from raycdc.sandbox.servers.postgres import PostgresServer
from raycdc.sandbox.servers.server import DatabaseServer
from raycdc.sandbox.shop import TABLES, ShopSize, ShopWorkload, create_shop
from raycdc.sandbox.trials.trial import COMPARED, DATABASE, SandboxAccount, SandboxServer, SandboxSourceServer

#: The database with the commit record of a pipeline that writes to the server.
TARGET = "lake"
_VERSION = "SELECT current_setting('server_version')"


class MySqlSandbox(SandboxSourceServer):
    """A MariaDB or MySQL server."""

    title: ClassVar[str] = "MySQL"
    accounts: ClassVar[tuple[SandboxAccount, ...]] = (
        SandboxAccount("cdc", "cdc", "reads all tables and follows the log"),
        SandboxAccount("root", "root", "may do everything"),
    )

    def __init__(self, server: DatabaseServer) -> None:
        super().__init__(server)
        self._server = server
        self._workload: ShopWorkload | None = None

    def prepare(self) -> None:
        self._server.execute(f"CREATE DATABASE IF NOT EXISTS {TARGET}")

    @property
    def version(self) -> str:
        said = str(self._server.scalar("SELECT VERSION()"))
        return f"{'MariaDB' if 'MariaDB' in said else 'MySQL'} {said.partition('-')[0]}"

    @property
    def url(self) -> str:
        return f"mysql://{self.address}"

    def preview_code(self, database: str, table: str) -> str:
        return f"""import pymysql
account = {{"user": "root", "password": "root"}}
server = pymysql.connect(host="{self.server.host}", port={self.server.port}, **account)
with server.cursor() as cursor:
    cursor.execute("SELECT * FROM {database}.{table} LIMIT 5")
    print(*cursor.fetchall(), sep="\\n")"""

    @property
    def environment(self) -> Mapping[str, str]:
        return {"MYSQL_PASSWORD": "cdc"}

    @property
    def as_source(self) -> Mapping[str, str | int | Sequence[str]]:
        return {
            "type": "mysql",
            "host": self.server.host,
            "port": self.server.port,
            "user": "cdc",
            "password": "${env:DEMO_PASSWORD:-cdc}",
            "tables": [f"{DATABASE}.{table}" for table in TABLES],
        }

    @property
    def as_sink(self) -> Mapping[str, str]:
        return {
            "type": "jdbc",
            "url": f"jdbc:mysql://{self.address}/{TARGET}",
            "user": "root",
            "password": "${env:DEMO_SINK_PASSWORD:-root}",
        }

    @property
    def init_words(self) -> Sequence[str]:
        port = ["--port", str(self.server.port)]
        return ["--host", self.server.host, *port, "--user", "cdc", "--table", rf"{DATABASE}\..*"]

    def fill(self, size: ShopSize) -> None:
        with self._server.connect() as connection:
            create_shop(connection, DATABASE, size)
        self._workload = ShopWorkload(self._server.connect, seed=random.randrange(2**31), database=DATABASE, size=size)

    def step(self) -> None:
        self._shop.step()

    def alter(self) -> None:
        """Add a column with points to the customers."""
        self._shop.add_points_column()

    def summary(self) -> str:
        done = self._shop.counts
        altered = ", one column added" if done["alter"] else ""
        return (
            f"{done['transactions']:,} transactions changed the shop: {done['insert']:,} rows inserted, "
            f"{done['update']:,} updated, {done['delete']:,} deleted{altered}"
        )

    def held(self, table: str) -> dict[int, str]:
        return _held(self._server.execute(f"SELECT id, {COMPARED[table]} FROM {DATABASE}.{table}"))

    @property
    def _shop(self) -> ShopWorkload:
        assert self._workload is not None, "the shop is filled first"
        return self._workload


class MariaDbSandbox(MySqlSandbox):
    """A MariaDB server."""

    title: ClassVar[str] = "MariaDB"


class PostgresSandbox(SandboxServer):
    """A PostgreSQL server, as a target."""

    title: ClassVar[str] = "PostgreSQL"
    accounts: ClassVar[tuple[SandboxAccount, ...]] = (SandboxAccount("postgres", "postgres", "may do everything"),)

    def __init__(self, server: PostgresServer) -> None:
        super().__init__(server)
        self._server = server

    def prepare(self) -> None:
        self._server.execute(f'CREATE DATABASE "{TARGET}"')

    @property
    def version(self) -> str:
        return f"PostgreSQL {str(self._server.execute(_VERSION)[0][0]).partition(' ')[0]}"

    @property
    def url(self) -> str:
        return self._server.url(TARGET)

    def preview_code(self, database: str, table: str) -> str:
        return f"""import adbc_driver_postgresql.dbapi as postgresql
url = "postgresql://postgres:postgres@{self.address}/{TARGET}"
with postgresql.connect(url) as server, server.cursor() as cursor:
    cursor.execute("SELECT * FROM {database}.{table} LIMIT 5")
    print(*cursor.fetchall(), sep="\\n")"""

    @property
    def as_sink(self) -> Mapping[str, str]:
        return {
            "type": "jdbc",
            "url": f"jdbc:postgresql://{self.address}/{TARGET}",
            "user": "postgres",
            "password": "${env:DEMO_SINK_PASSWORD:-postgres}",
        }

    def held(self, table: str) -> dict[int, str]:
        """Return the rows of the shop's table, as `SandboxSourceServer.held` does."""
        wanted = f'SELECT id, "{COMPARED[table]}" FROM "{DATABASE}"."{table}"'
        return _held(self._server.execute(wanted, database=TARGET))


def _held(rows: Sequence[tuple[Any, ...]]) -> dict[int, str]:
    return {int(key): str(value) for key, value in rows}
