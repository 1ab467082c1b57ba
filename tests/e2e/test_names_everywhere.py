"""Names shaped like paths, SQL and HTML through every sink: rows arrive under that name, or the table waits by name.

`verify` reads both sides by other ways than they were written. Nothing is made beside the target, and no statement
that stands in a name is done.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from raycdc.sandbox.servers import KafkaServer, MariaDbServer, PostgresServer
from raycdc.sandbox.servers.mongodb import MongoDb
from tests.e2e.odd_names import ENVIRONMENT, quoted, write_config
from tests.support.forked_commands import completed

pytestmark = pytest.mark.server

NAMES = (
    "../../etc/passwd",
    "a/b",
    "..",
    "con",
    "'; DROP TABLE canary; --",
    '"; DROP TABLE canary; --',
    "`; DROP TABLE canary; --",
    "$where",
    "{db}.{table}",
    "%s%n",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "new\nline",
    "\u202eltr",
    "\x1b[2Jgone",
    "x" * 64,
)


@pytest.fixture
def database(mariadb: MariaDbServer) -> Iterator[str]:
    """Each name is that of a table and of its column."""
    with mariadb.fresh_database() as name:
        for number, odd in enumerate(NAMES):
            mariadb.execute(
                f"CREATE TABLE {quoted(odd)} (id INT PRIMARY KEY, {quoted(odd)} INT)",
                f"INSERT INTO {quoted(odd)} VALUES (1, {number})",
                database=name,
            )
        yield name


def raycdc(folder: Path, *words: str) -> tuple[int, str]:
    done = completed(words, environment={**os.environ, **ENVIRONMENT}, folder=folder)
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said
    assert not {"\x1b", "\u202e"} & set(said), said
    return done.returncode, said


def around(folder: Path) -> set[str]:
    """What is beside the pipeline's own folder, two levels up."""
    return {str(path) for place in (folder.parent, folder.parent.parent) for path in place.iterdir()}


@pytest.mark.parametrize(
    "sink",
    [
        "jsonl",
        *(pytest.param(kind, marks=pytest.mark.long(suite="certificates")) for kind in ("parquet", "delta", "iceberg")),
        *(
            pytest.param(kind, marks=pytest.mark.long(suite="certificates"))
            for kind in ("postgresql", "mongodb", "kafka")
        ),
    ],
)
def test_a_name_is_a_name_in_every_sink(
    sink: str, mariadb: MariaDbServer, database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = tmp_path / "in" / "here"
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        canary: Sequence[object] = []
        if sink == "postgresql":
            postgres: PostgresServer = request.getfixturevalue("postgres")
            home = stack.enter_context(postgres.fresh_database())
            postgres.execute("CREATE TABLE canary (id INT)", "INSERT INTO canary VALUES (7)", database=home)
            account = f'user = "{postgres.user}"\npassword = "{postgres.password}"\n'
            keys = f'type = "jdbc"\nurl = "{postgres.url(home)}"\n{account}'
        elif sink == "mongodb":
            mongodb: MongoDb = request.getfixturevalue("mongodb")
            home = stack.enter_context(mongodb.fresh_database())
            keys = f'type = "mongodb"\nuri = "{mongodb.uri}"\nrecord = "{home}"\n'
        elif sink == "kafka":
            kafka: KafkaServer = request.getfixturevalue("kafka")
            keys = (
                f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"\nformat = {{ type = "canal-json" }}\n'
            )
        else:
            keys = f'type = "{sink}"\npath = "out"\n'
        write_config(folder / "c.toml", mariadb, database, sink=keys)
        before = around(folder)
        code, said = raycdc(folder, "check", "c.toml")
        assert code in (0, 4), said
        code, said = raycdc(folder, "run", "c.toml", "--local", "--until", "caught-up")
        assert code in (0, 4), said
        code, listed = raycdc(folder, "tables", "list", "c.toml", "--json")
        assert code == 0
        assert len(listed.splitlines()) == len(NAMES)
        if sink not in ("jsonl", "parquet", "kafka"):
            said = raycdc(folder, "verify", "c.toml")[1]
            assert said.count(": equal (1 row") + said.count(": not compared: ") == len(NAMES), said
            assert said.count(": equal (1 row") >= len(NAMES) // 2, said
        assert around(folder) == before
        assert {path.name for path in folder.iterdir()} - {"out", "state"} == {"c.toml"}
        if sink == "postgresql":
            canary = postgres.execute("SELECT id FROM canary", database=home)
        assert canary in ([], [(7,)])
        assert (canary == [(7,)]) is (sink == "postgresql")
