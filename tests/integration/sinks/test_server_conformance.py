"""What the suite that each sink is held to plays of others at a target, for servers: they restore, alter, rename it.

`tests.epochs` plays the other stories into servers, and more of what others do there (`test_other_writers`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import SkipTest

import pytest
from pymongo import MongoClient

from raycdc.config.mongodb import parse_mongodb_uri
from raycdc.model import TableId
from raycdc.sandbox.servers import MariaDbServer, MongoDb, MongoDbServer, PostgresServer
from raycdc.testing.epochs import Row, simple_schema
from raycdc.testing.sink_conformance import SinkConformance
from raycdc.testing.sink_play import LARGE
from tests.epochs.sink_world import HOME, Server, database_rows, jdbc_options
from tests.integration.sinks.on_s3 import play_only
from tests.support.servers.gate import Gate, GateMode

pytestmark = [pytest.mark.server, pytest.mark.timeout(1800)]

COMMITS = "raycdc_commit"
#: The sink's user of a database.
LOADER = "loader"
Client = MongoClient[dict[str, Any]]

#: Of the suite: what others do to a target.
TOUCHED = (
    "test_a_foreign_column_keeps_its_values",
    "test_a_lost_target_is_recreated_during_the_run",
    "test_a_target_that_was_restored_from_an_older_copy_is_parked_alone",
    "test_a_target_that_a_copy_of_the_state_brought_to_our_epoch_is_parked_alone",
    "test_a_target_restored_from_an_older_copy_is_resnapshotted_during_the_run",
    "test_an_altered_target_that_rows_do_not_fit_is_parked_alone",
    "test_a_renamed_target_is_parked_alone",
    "test_exchanged_targets_get_no_rows",
    "test_deleted_target_rows_are_noticed_or_later_changes_arrive",
    "test_a_target_that_may_not_be_written_any_more_is_parked_alone",
    "test_what_administrators_do_now_and_then_is_harmless",
    "test_a_briefly_unreachable_store_is_waited_for",
)


class OfServer(SinkConformance):
    """One server behind a gate for all folders: each of them begins with removing what is there."""

    gate: Gate
    folder: Path | None = None

    @abstractmethod
    def sweep(self) -> None:
        """Remove all targets and records."""

    @abstractmethod
    def reached(self) -> dict[str, Any]:
        """The sink's section, which leads through the gate."""

    def settings(self, folder: Path) -> dict[str, Any]:
        if folder != self.folder:
            self.sweep()
            self.folder = folder
        return self.reached()

    @contextmanager
    def unreachable(self, folder: Path) -> Iterator[None]:
        self.gate.set(GateMode.SHUT)
        try:
            yield
        finally:
            self.gate.set(GateMode.OPEN)


class Databases(OfServer):
    """Targets are tables."""

    server: Server
    #: Where the records lie.
    home = ""
    narrower = ""
    rewritten = ""

    def reached(self) -> dict[str, Any]:
        options = jdbc_options(self.server) | {"user": LOADER, "password": LOADER}
        behind = f"{self.server.host}:{self.server.port}"
        return {"type": "jdbc", **options, "url": options["url"].replace(behind, f"{self.gate.host}:{self.gate.port}")}

    def rows(self, folder: Path, target: TableId) -> list[Row]:
        there = "SELECT 1 FROM information_schema.tables WHERE table_schema = '{0.db}' AND table_name = '{0.table}'"
        return database_rows(self.server, target) if self.server.execute(there.format(target)) else []

    def lose(self, folder: Path, target: TableId) -> None:
        self.server.execute(f"DROP TABLE {target}")

    def occupy(self, folder: Path, target: TableId) -> None:
        schema = f"CREATE SCHEMA IF NOT EXISTS {target.db}"
        table = f"CREATE TABLE {target} (id bigint PRIMARY KEY, name varchar(90), qty int)"
        self.server.execute(schema, table, f"INSERT INTO {target} VALUES (1, 'a', 1)")

    def widen(self, folder: Path, target: TableId) -> None:
        self.server.execute(f"ALTER TABLE {target} ADD note varchar(90)", f"UPDATE {target} SET note = 'theirs'")

    def back_up(self, folder: Path, target: TableId) -> Callable[[], None]:
        record, of_target = f"{self.home}.raycdc_commit", f"WHERE target = '{target}'"
        self.server.execute(
            f"CREATE TABLE {target.db}.older AS SELECT * FROM {target}",
            f"CREATE TABLE {target.db}.older_commit AS SELECT * FROM {record} {of_target}",
        )
        statements = (
            f"DELETE FROM {target}",
            f"INSERT INTO {target} SELECT * FROM {target.db}.older",
            f"DELETE FROM {record} {of_target}",
            f"INSERT INTO {record} SELECT * FROM {target.db}.older_commit",
        )

        def restore() -> None:
            self.server.execute(*statements)

        return restore

    def alter(self, folder: Path, target: TableId) -> None:
        self.server.execute(f"ALTER TABLE {target} {self.narrower}")

    def erase(self, folder: Path, target: TableId) -> None:
        self.server.execute(f"DELETE FROM {target} WHERE id > 110")

    def maintain(self, folder: Path, target: TableId) -> None:
        self.server.execute(f"CREATE INDEX theirs ON {target} (qty)", self.rewritten.format(target))


class TestPostgres(Databases):
    home = "public"
    narrower = "ALTER qty TYPE smallint"
    rewritten = "VACUUM FULL {}"

    @pytest.fixture(autouse=True)
    def _server(self, postgres: PostgresServer) -> Iterator[None]:
        self.server = postgres
        postgres.execute(
            f"CREATE ROLE {LOADER} LOGIN PASSWORD '{LOADER}'",
            f"GRANT CREATE ON DATABASE postgres TO {LOADER}",
            f"GRANT ALL ON SCHEMA public TO {LOADER}",
        )
        with Gate(postgres.host, postgres.port) as self.gate:
            yield
        postgres.execute(f"DROP OWNED BY {LOADER} CASCADE", f"DROP ROLE {LOADER}")

    def sweep(self) -> None:
        schemas = [f"DROP SCHEMA IF EXISTS {name} CASCADE" for name in ("shop", "raycdc_stage")]
        self.server.execute(*schemas, "DROP TABLE IF EXISTS raycdc_commit")

    def rename(self, folder: Path, target: TableId, to: TableId) -> None:
        self.server.execute(f"ALTER TABLE {target} RENAME TO {to.table}")

    def revoke(self, folder: Path, target: TableId) -> Callable[[], object]:
        rows = f"INSERT, UPDATE, DELETE ON {target}"
        self.server.execute(f"REVOKE {rows} FROM {LOADER}")
        return partial(self.server.execute, f"GRANT {rows} TO {LOADER}")


class TestMySql(Databases):
    home = HOME
    narrower = "MODIFY qty smallint"
    rewritten = "OPTIMIZE TABLE {}"

    @pytest.fixture(autouse=True)
    def _server(self, mariadb: MariaDbServer) -> Iterator[None]:
        self.server = mariadb
        grants = [f"GRANT ALL ON {name}.* TO {LOADER}" for name in ("shop", HOME)]
        mariadb.execute(f"CREATE USER {LOADER} IDENTIFIED BY '{LOADER}'", *grants)
        with Gate(mariadb.host, mariadb.port) as self.gate:
            yield
        mariadb.execute(f"DROP USER {LOADER}")

    def sweep(self) -> None:
        self.server.execute(*(f"DROP DATABASE IF EXISTS {name}" for name in ("shop", HOME)), f"CREATE DATABASE {HOME}")

    def rename(self, folder: Path, target: TableId, to: TableId) -> None:
        self.server.execute(f"RENAME TABLE {target} TO {to}")

    def revoke(self, folder: Path, target: TableId) -> Callable[[], object]:
        """A privilege for the database counts for each of its tables, so another one keeps its own."""
        rows = "INSERT, UPDATE, DELETE"
        self.server.execute(
            f"GRANT {rows} ON shop.items TO {LOADER}",
            f"REVOKE {rows} ON {target.db}.* FROM {LOADER}",
        )
        return partial(self.server.execute, f"GRANT {rows} ON {target.db}.* TO {LOADER}")


class TestMongoDb(OfServer):
    """Targets are collections."""

    @pytest.fixture(autouse=True)
    def _server(self, mongodb_homes: MongoDb) -> Iterator[None]:
        self.mongodb = mongodb_homes
        where = parse_mongodb_uri(mongodb_homes.uri).where.rpartition("://")[2].partition("/")[0].partition(",")[0]
        host, _, port = where.rpartition(":")
        with Gate(host, int(port)) as self.gate:
            yield

    def sweep(self) -> None:
        self.mongodb.drop("shop", HOME)

    def reached(self) -> dict[str, Any]:
        uri = f"mongodb://{self.gate.host}:{self.gate.port}/?directConnection=true&serverSelectionTimeoutMS=1000"
        return {"type": "mongodb", "uri": uri, "record": HOME}

    def rows(self, folder: Path, target: TableId) -> list[Row]:
        names = dict.fromkeys(("note", *(column.name for column in simple_schema().columns)))
        return [{**names, **document} for document in self.mongodb.find(target.db, target.table)]

    def lose(self, folder: Path, target: TableId) -> None:
        self.do(lambda client: client[target.db].drop_collection(target.table))

    def occupy(self, folder: Path, target: TableId) -> None:
        self.do(lambda client: client[target.db][target.table].insert_one({"_id": 1, "id": 1}))

    def widen(self, folder: Path, target: TableId) -> None:
        self.do(lambda client: client[target.db][target.table].update_many({}, {"$set": {"note": "theirs"}}))

    def back_up(self, folder: Path, target: TableId) -> Callable[[], None]:
        of_target = {"_id.target": str(target)}
        documents, records = self.mongodb.find(target.db, target.table), self.mongodb.find(HOME, COMMITS, of_target)

        def restore(client: Client) -> None:
            client[target.db][target.table].delete_many({})
            client[target.db][target.table].insert_many(documents)
            for record in records:
                client[HOME][COMMITS].replace_one({"_id": record["_id"]}, record)

        return lambda: self.do(restore)

    def alter(self, folder: Path, target: TableId) -> None:
        fits = {"$or": [{"qty": None}, {"qty": {"$lt": LARGE}}]}
        self.do(lambda client: client[target.db].command({"collMod": target.table, "validator": fits}))

    def revoke(self, folder: Path, target: TableId) -> Callable[[], object]:
        if not isinstance(self.mongodb, MongoDbServer):
            raise SkipTest("Roles are for whoever has this server, and its user may not change them.")
        self.mongodb.deny(str(target), ("insert", "update", "delete"))
        return self.mongodb.unfail

    def rename(self, folder: Path, target: TableId, to: TableId) -> None:
        self.do(lambda client: client[target.db][target.table].rename(to.table))

    def erase(self, folder: Path, target: TableId) -> None:
        self.do(lambda client: client[target.db][target.table].delete_many({"id": {"$gt": 110}}))

    def maintain(self, folder: Path, target: TableId) -> None:
        self.do(lambda client: client[target.db][target.table].create_index("qty"))

    def do(self, act: Callable[[Client], object]) -> None:
        with self.mongodb.client() as client:
            act(client)


for suite in (TestPostgres, TestMySql, TestMongoDb):
    play_only(suite, TOUCHED)
