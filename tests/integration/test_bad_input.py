"""Bad input at a real server: a one-screen message with the fix, the right exit code, and nothing lost.

Each story ends well: after what the message says was done, the same pipeline runs and its rows are complete.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raycdc.sandbox.servers import MariaDbServer
from tests.support.forked_commands import completed

pytestmark = pytest.mark.server

#: What a terminal shows without scrolling.
SCREEN_LINES = 24
TIMEOUT_S = 600


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDbServer]:
    """A server of this file's own: it is put into states no other test should meet."""
    with MariaDbServer() as started:
        yield started


@pytest.fixture
def shop(server: MariaDbServer) -> Iterator[str]:
    """A database with one table of three rows."""
    with server.fresh_database("bad") as name:
        server.execute("CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(20))", database=name)
        server.execute("INSERT INTO orders VALUES (1, 'a'), (2, 'b'), (3, 'c')", database=name)
        yield name


class Job:
    """A pipeline's configuration in a folder of its own, and the commands on it."""

    def __init__(self, folder: Path, server: MariaDbServer, database: str, **source: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self._settings: dict[str, Any] = {
            "type": "mysql",
            "host": server.host,
            "port": server.port,
            "user": server.cdc_user,
            "password": "${env:RAYCDC_TEST_PASSWORD}",
            "tables": [f"{database}.orders"],
            **source,
        }
        self.database = database
        self.password = server.cdc_password
        self.write()

    def write(self, **source: Any) -> None:
        """Write the configuration, with further keys of ``[source]``."""
        self._settings |= source
        lines = ["[pipeline]", 'name = "bad"', 'epoch_interval = "200ms"', "[source]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in self._settings.items()]
        lines += ["[readers]", "max = 1", "[sink]", 'type = "jsonl"', 'path = "out"']
        (self.folder / "job.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "raycdc.cli", *words]
        environment = {**os.environ, "RAYCDC_TEST_PASSWORD": self.password}
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=pipe, stderr=pipe, text=True)

    def command(self, *words: str) -> tuple[int, str]:
        """Exit code and stderr of a command."""
        environment = {**os.environ, "RAYCDC_TEST_PASSWORD": self.password}
        done = completed(words, environment=environment, folder=self.folder, timeout_s=TIMEOUT_S)
        return done.returncode, done.stderr

    def run(self) -> tuple[int, str]:
        return self.command("run", "job.toml", "--local", "--until", "caught-up")

    def fails(self, exit_code: int) -> str:
        """The screen of a run that must be refused, with nothing written to the sink by it."""
        before = self.rows()
        code, screen = self.run()
        assert (code, "Traceback" in screen) == (exit_code, False), screen
        assert len(screen.splitlines()) <= SCREEN_LINES
        assert self.rows() == before
        return screen

    def rows(self) -> list[tuple[str, int]]:
        """(operation, id) of every row of the changelog, in order."""
        files = (self.folder / "out").glob("**/*.jsonl")
        lines = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
        return [(line["_op"], line["id"]) for line in sorted(lines, key=lambda line: int(line["_seq"]))]

    def succeeds(self, *ids: int) -> None:
        """After the fix the pipeline runs, and has every row exactly once."""
        code, screen = self.run()
        assert code == 0, screen
        assert sorted(self.rows()) == [("+I", key) for key in ids]


@contextmanager
def setting(server: MariaDbServer, name: str, value: str) -> Iterator[None]:
    before = server.scalar(f"SELECT @@GLOBAL.{name}")
    server.execute(f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        server.execute(f"SET GLOBAL {name} = {before}")


def test_wrong_password(server: MariaDbServer, shop: str, tmp_path: Path) -> None:
    job = Job(tmp_path, server, shop)
    job.password = "wrong"
    screen = job.fails(3)
    assert f"{server.host}:{server.port} refused user 'cdc'" in screen
    assert "Check source.user and source.password" in screen
    assert "wrong" not in screen
    job.password = server.cdc_password
    job.succeeds(1, 2, 3)


@pytest.mark.parametrize(
    ("granted", "missing"),
    [
        ("SELECT", "GRANT REPLICATION SLAVE ON *.* TO 'few'@'%'"),
        ("REPLICATION SLAVE, REPLICATION CLIENT", "GRANT SELECT ON `{shop}`.`orders` TO 'few'@'%'"),
    ],
)
def test_missing_privilege(server: MariaDbServer, shop: str, tmp_path: Path, granted: str, missing: str) -> None:
    fix = missing.format(shop=shop)
    server.execute("CREATE OR REPLACE USER 'few'@'%' IDENTIFIED BY 'cdc'", f"GRANT {granted} ON *.* TO 'few'@'%'")
    job = Job(tmp_path, server, shop, user="few")
    screen = job.fails(3)
    code, checked = job.command("check", "job.toml")
    assert (code, checked) == (3, "")
    if "SELECT" in missing:
        assert f"{shop}.orders" in screen
    else:
        assert fix in screen
        assert "GRANT REPLICATION CLIENT ON *.*" in screen or "BINLOG MONITOR" in screen
    server.execute(fix, "GRANT REPLICATION CLIENT ON *.* TO 'few'@'%'")
    job.succeeds(1, 2, 3)


def test_statement_format(server: MariaDbServer, shop: str, tmp_path: Path) -> None:
    job = Job(tmp_path, server, shop)
    with setting(server, "binlog_format", "STATEMENT"):
        screen = job.fails(3)
    assert f"binlog_format is STATEMENT on {server.host}:{server.port}" in screen
    assert "SET GLOBAL binlog_format = ROW" in screen
    job.succeeds(1, 2, 3)


def test_row_image_that_is_not_full(server: MariaDbServer, shop: str, tmp_path: Path) -> None:
    job = Job(tmp_path, server, shop)
    with setting(server, "binlog_row_image", "MINIMAL"):
        screen = job.fails(3)
    assert f"binlog_row_image is MINIMAL on {server.host}:{server.port}" in screen
    assert "SET GLOBAL binlog_row_image = FULL" in screen
    job.succeeds(1, 2, 3)


def test_unknown_table(server: MariaDbServer, shop: str, tmp_path: Path) -> None:
    job = Job(tmp_path, server, shop, tables=[f"{shop}.orders", f"{shop}.ordres"])
    screen = job.fails(3)
    assert f"there is no table {shop}.ordres" in screen
    assert f'did you mean "{shop}.orders"?' in screen
    job.write(tables=[f"{shop}.orders"])
    job.succeeds(1, 2, 3)


def test_unknown_key(server: MariaDbServer, shop: str, tmp_path: Path) -> None:
    job = Job(tmp_path, server, shop, exclud=["a.b"])
    assert job.fails(2) == 'job.toml has 1 problem:\n  source.exclud: unknown key; did you mean "exclude"?\n'


def test_purged_position(server: MariaDbServer, shop: str, tmp_path: Path) -> None:
    job = Job(tmp_path, server, shop)
    job.succeeds(1, 2, 3)
    server.execute("INSERT INTO orders VALUES (4, 'd')", database=shop)
    newest = server.purge_logs()
    screen = job.fails(3)
    assert f"is purged on {server.host}:{server.port}" in screen
    assert newest in screen
    assert 'pipeline.on_log_lost = "resnapshot"' in screen
    # The refusal is not a one-off: the state is as it was, and says the same again.
    assert job.fails(3) == screen
    fresh = Job(tmp_path / "fresh", server, shop)
    fresh.succeeds(1, 2, 3, 4)


def test_duplicate_server_id_harms_neither_job(server: MariaDbServer, shop: str, tmp_path: Path) -> None:
    first = Job(tmp_path / "first", server, shop, server_id=7001, heartbeat="1s")
    second = Job(tmp_path / "second", server, shop, server_id=7001, heartbeat="1s")
    running = first.start("run", "job.toml", "--local", "--json")
    try:
        committed = _read_until(running, rows=3)
        # Without --until: a run that has caught up already does not need the log.
        assert second.command("run", "job.toml", "--local") == (
            3,
            (
                f"Every id of source.server_id (7001) is in use on {server.host}:{server.port}. Stop the other job, or "
                "give this one another range in source.server_id.\n"
            ),
        )
        server.execute("INSERT INTO orders VALUES (4, 'd')", database=shop)
        committed += _read_until(running, rows=1)
        running.send_signal(signal.SIGTERM)
        _, errors = running.communicate(timeout=TIMEOUT_S)
    finally:
        if running.poll() is None:
            running.kill()
            running.communicate()
    assert running.returncode == 0, errors
    assert committed == 4
    assert first.rows() == [("+I", key) for key in (1, 2, 3, 4)]
    second.write(server_id=7002)
    second.succeeds(1, 2, 3, 4)


def _read_until(process: subprocess.Popen[str], *, rows: int) -> int:
    """Read the run's events until `rows` further rows are committed; the session's time limit ends a wait in vain."""
    assert process.stdout is not None
    committed = 0
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "commit":
            committed += event["rows"]
        if committed >= rows:
            return committed
    assert process.stderr is not None
    raise AssertionError(f"the run ended after {committed} rows: {process.stderr.read()}")
