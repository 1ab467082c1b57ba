"""Values that are made for terminals, statements or files, as keys and beside them: every sink has them as they are."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from raycdc.model import TableId
from raycdc.sandbox.servers import MariaDbServer
from tests.e2e.test_names_alike import Place, _place, selected  # noqa: F401 (a fixture)
from tests.support.forked_commands import completed
from tests.support.jobs import Job
from tests.support.table_commands import tables_command

pytestmark = pytest.mark.server

DATABASE = "alike"
VALUES = (
    "",
    " x",
    "a\0b",
    "\0",
    "\U0001f600\U0010ffff",
    "'",
    '"',
    "`",
    "\\",
    "\\N",
    "'; DROP TABLE t; --",
    "x' OR '1'='1",
    "<script>alert(1)</script>",
    "a[/b]",
    "[link=http://x]y[/link]",
    "\x1b[31m\x1b[2J",
    "x\n12:00:00 caught up\r\ty",
    "u\u202etxt.exe",
    '{"$oid": "000000000000000000000000", "_op": "-D"}',
    "$where",
    "../../etc/passwd",
    "%s {0} ${env:HOME} %41",
    "NULL",
    "NaN",
    "\ufeff\ufffe\uffff",
)
#: More than a message of Kafka may have as brokers are set up.
LONG = "'\x1b[1m" * 300_000


def source(server: MariaDbServer, statement: str, *rows: tuple[object, ...]) -> None:
    with server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
        cursor.executemany(statement, rows)
        connection.commit()


@pytest.mark.parametrize("place", ["iceberg", "parquet", "kafka", "mongodb", "mysql"], indirect=True)
def test_hostile_values_arrive_as_they_are_and_nothing_obeys_them(
    mariadb: MariaDbServer, place: Place, tmp_path: Path
) -> None:
    mariadb.execute(f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
    mariadb.execute(
        "CREATE TABLE beside (id INT PRIMARY KEY, v LONGTEXT)",
        "CREATE TABLE keyed (k VARCHAR(150) COLLATE utf8mb4_nopad_bin PRIMARY KEY, id INT NOT NULL, v TEXT)",
        "CREATE TABLE lengthy (id INT PRIMARY KEY, v LONGTEXT)",
        database=DATABASE,
    )
    half, more = VALUES[::2], VALUES[1::2]
    insert = {"beside": "INSERT INTO beside VALUES (%s, %s)", "keyed": "INSERT INTO keyed (id, k) VALUES (%s, %s)"}
    for statement in insert.values():
        source(mariadb, statement, *enumerate(half))
    job = Job(tmp_path, mariadb, DATABASE, (r"\w+",), sink=place.sink, write=place.write, local=True)
    job.sink_keys = place.keys
    screen = run(job)
    for statement in insert.values():
        source(mariadb, statement, *enumerate(more, len(half)))
    source(mariadb, "UPDATE beside SET v = %s WHERE id = %s", *((v, n) for n, v in enumerate(reversed(VALUES))))
    source(mariadb, "UPDATE keyed SET v = k WHERE k = %s", *((value,) for value in VALUES[::3]))
    source(mariadb, "DELETE FROM keyed WHERE k = %s", *((value,) for value in VALUES[::5]))
    source(mariadb, "INSERT INTO lengthy VALUES (%s, %s)", (1, "short"), (2, LONG))
    is_kafka = place.sink == "kafka"
    screen += run(job, code=4 if is_kafka else 0)
    names = ("beside", "keyed", *(() if is_kafka else ("lengthy",)))
    equal(place, mariadb, *names)
    if is_kafka:
        assert f"{DATABASE}.lengthy" in screen
        source(mariadb, "UPDATE lengthy SET v = 'mended' WHERE id = %s", (2,))
        tables_command(job, "resnapshot", f"{DATABASE}.lengthy")
        screen += run(job)
        equal(place, mariadb, *names, "lengthy")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", screen)


def run(job: Job, *, code: int = 0) -> str:
    """The output of a run that ends with `code` once it has caught up, as people see it."""
    words = ("run", str(job.configuration()), "--local", "--until", "caught-up")
    environment = {**os.environ, "RAYCDC_TEST_PASSWORD": job.server.cdc_user}
    done = completed(words, environment=environment, folder=job.folder)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def equal(place: Place, server: MariaDbServer, *names: str) -> None:
    for name in names:
        table = TableId(DATABASE, name)
        expected = selected(server.connect(), table)
        # MongoDB calls a key `_id`, too.
        held = {n: {c: v for c, v in row.items() if c in ("id", "v", "k")} for n, row in place.read(table).items()}
        assert held == expected, name
