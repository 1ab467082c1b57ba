"""Whoever may create tables at the source names one as no target can be called: it waits, and no other one does."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from raycdc.sandbox.compare import read_changelog, read_delta
from raycdc.sandbox.servers import KafkaServer, MariaDbServer, MongoDb, MySqlServer, PostgresServer
from tests.e2e import test_jdbc, test_mongodb_sink
from tests.e2e.test_parked_targets import make
from tests.e2e.topic_changes import changes
from tests.epochs.sink_world import iceberg_table
from tests.support.forked_commands import completed
from tests.support.jobs import Job, catch_up
from tests.support.table_commands import tables_command

pytestmark = pytest.mark.server

LONG = "a" * 64
WIDE = "é" * 40


class OddNames:
    """A database of the source with a table `healthy`, `strange` ones that arrive all the same, and `odd` ones, which
    `sink` cannot hold under their names.
    """

    def __init__(
        self,
        mariadb: MariaDbServer,
        root: Path,
        odd: tuple[str, ...],
        *,
        database: str = "names",
        healthy: str = "healthy",
        sink: str,
        sink_keys: str = "",
        write: str = "upsert",
        strange: tuple[str, ...] = (),
    ) -> None:
        self.mariadb = mariadb
        self.odd = odd
        self.strange = strange
        self.database = database
        self.healthy = healthy
        make(
            mariadb,
            self.database,
            *(f"CREATE TABLE `{name}` (id INT PRIMARY KEY)" for name in (self.healthy, *odd, *strange)),
            *(f"INSERT INTO `{name}` VALUES (1)" for name in (self.healthy, *odd, *strange)),
        )
        self.job = Job(root, mariadb, self.database, (r"(?s:.*)",), local=True)
        self.job.sink, self.job.sink_keys, self.job.write = sink, sink_keys, write

    def routed(self) -> dict[str, str]:
        """The targets of the odd tables once they have a route."""
        return {name: f"{self.healthy}_{number}" for number, name in enumerate(self.odd)}

    def play(self, rows: Callable[[str], list[int]]) -> None:
        """Check, run, mend by a route, run: `rows` are those of a target."""
        environment = {**os.environ, "RAYCDC_TEST_PASSWORD": self.mariadb.cdc_user}
        words = ("check", str(self.job.configuration()))
        checked = completed(words, environment=environment, folder=self.job.folder)
        told = checked.stdout
        assert told.count("A run parks it") == told.count("FAILED") == len(self.odd), told
        run = self.job.start("--until", "caught-up")
        assert run.wait() == 4, run.story()
        for name in self.odd:
            assert f"{self.database}.{name}" in told, told
            assert re.search(rf"{re.escape(name)}.*\[\[route\]\]", run.story()), run.story()
        for name in (self.healthy, *self.strange):
            assert rows(name) == [1], name
        for name in (self.healthy, *self.odd, *self.strange):
            self.mariadb.execute(f"INSERT INTO `{name}` VALUES (2)", database=self.database)
        self.job.sections = "".join(
            f"[[route]]\ntable = '{self.database}\\.{re.escape(name)}'\nto = \"{self.database}.{target}\"\n"
            for name, target in self.routed().items()
        )
        for name in self.odd:
            tables_command(self.job, "resnapshot", f"{self.database}.{name}")
        catch_up(self.job)
        for target in (self.healthy, *self.strange, *self.routed().values()):
            assert rows(target) == [1, 2], target


def test_tables_that_postgresql_cannot_hold_wait_for_a_route(
    mariadb: MariaDbServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    with postgres.fresh_database() as home:
        keys = test_jdbc.sink_keys(postgres, home)
        story = OddNames(
            mariadb, tmp_path, (LONG, WIDE, "raycdc_commit"), database="public", sink="jdbc", sink_keys=keys
        )
        story.play(
            lambda table: [row for (row,) in postgres.execute(f"SELECT id FROM {table} ORDER BY id", database=home)]
        )


def test_tables_that_mysql_cannot_hold_wait_for_a_route(
    mariadb: MariaDbServer, mysql80: MySqlServer, tmp_path: Path
) -> None:
    with mysql80.fresh_database() as home:
        keys = test_jdbc.mysql_keys(mysql80, home)
        odd = ("raycdc_commit", "Raycdc_Commit", "raycdc_stage_new_0123456789abcdef")
        story = OddNames(mariadb, tmp_path, odd, database=home, sink="jdbc", sink_keys=keys)

        def rows(table: str) -> list[int]:
            with mysql80.connect(database=home) as connection, connection.cursor() as cursor:
                cursor.execute(f"SELECT id FROM {table} ORDER BY id")
                return [row for (row,) in cursor.fetchall()]

        story.play(rows)


def test_tables_that_mongodb_cannot_hold_wait_for_a_route(
    mariadb: MariaDbServer, mongodb: MongoDb, tmp_path: Path
) -> None:
    # Both names with their dot have a byte more than a collection's may.
    database = "n" * 63
    odd = ("ạ" * 64, "raycdc_commit", "raycdc_fence", "a$b", "system.users")
    keys = test_mongodb_sink.sink_keys(mongodb, database)
    story = OddNames(mariadb, tmp_path, odd, database=database, sink="mongodb", sink_keys=keys)
    story.play(lambda table: sorted(row["id"] for row in mongodb.find(database, table)))


def test_tables_that_no_topic_can_be_named_after_wait_for_a_route(
    mariadb: MariaDbServer, kafka: KafkaServer, tmp_path: Path
) -> None:
    # Brokers make no topic whose name differs from another one's only in dots and underscores.
    kafka.create_topic("named.alike")
    odd = (WIDE, "a b", "..", "__consumer_offsets", "named_ddl", "named_alike")
    keys = f"""
bootstrap_servers = "{kafka.bootstrap_servers}"
format = {{ type = "canal-json" }}
topic = "{{table}}"
ddl_topic = "named_ddl"
"""
    options = {"sink": "kafka", "sink_keys": keys, "write": "changelog"}
    story = OddNames(mariadb, tmp_path, odd, healthy="named_healthy", strange=("named.alike",), **options)
    story.play(lambda table: sorted(key for _, ids in changes(kafka, table) for key in ids))


#: Names that are folders' as well as any other.
STRANGE = ("x';DROP TABLE t;--", '<b>"&', "\x1b[31m", "[link=x]%s{0}", LONG)


@pytest.mark.parametrize(
    ("sink", "odd", "strange"),
    [
        ("delta", ("_raycdc", "..", "a/b"), ()),
        ("jsonl", ("_raycdc", "..", "a/b"), ()),
        ("parquet", ("_raycdc", "..", "a[/b]"), (*STRANGE, "a\nb")),
        ("iceberg", ("_raycdc", "..", "a[/b]", "a?b", "a#b"), STRANGE),
    ],
)
def test_tables_that_would_be_hidden_folders_wait_for_a_route(
    mariadb: MariaDbServer, tmp_path: Path, sink: str, odd: tuple[str, ...], strange: tuple[str, ...]
) -> None:
    write = "upsert" if sink in ("delta", "iceberg") else "changelog"
    story = OddNames(mariadb, tmp_path, odd, sink=sink, write=write, strange=strange)

    def rows(table: str) -> list[int]:
        folder = tmp_path / "lake" / "names" / table
        if sink == "iceberg":
            return sorted(iceberg_table(folder).scan().to_arrow()["id"].to_pylist())
        if sink == "delta":
            return sorted(row["id"] for row in read_delta(folder).to_pylist())
        return sorted(row["id"] for row in read_changelog(folder, sink) if row["_op"] == "+I")

    story.play(rows)
