"""Tables whose names are made for terminals, file systems or raycdc itself: shown as they are, and nothing ends."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from raycdc.sandbox.servers import MariaDbServer
from tests.e2e.odd_names import ENVIRONMENT, quoted, write_config
from tests.support.forked_commands import completed

pytestmark = pytest.mark.server

#: Markup of rich that closes nothing, a link, commands to the terminal, a line of our own, text from right to left.
NAMES = ["a[/b]", "[link=http://x]y[/link]", "t\x1b]0;title\x07\x1b[2J", "x\n12:00:00 caught up", "u\u202etxt.exe"]


@pytest.fixture(name="folder")
def _folder(mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path) -> Path:
    for name in NAMES:
        mariadb.execute(
            f"CREATE TABLE {quoted(name)} (id INT PRIMARY KEY)",
            f"INSERT INTO {quoted(name)} VALUES (1)",
            database=mariadb_database,
        )
    write_config(tmp_path / "hostile.toml", mariadb, mariadb_database, sink='type = "jsonl"\npath = "out"\n')
    return tmp_path


def test_a_run_on_a_terminal_shows_every_name_and_nothing_obeys_it(folder: Path) -> None:
    code, screen = _on_a_terminal(folder, "run", "hostile.toml", "--local", "--until", "caught-up")
    assert code == 4, screen  # two of the names are no folder's
    # What rich itself writes moves the cursor and colours; nothing else may.
    rest = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)
    assert "\x1b" not in rest
    assert "\x1b[2J" not in screen
    assert "]8;" not in screen, "no link"
    for shown in ("a[/b]", "[link=http://x]y[/link]", r"t\x1b]0;title\x07\x1b[2J", r"u\u202etxt.exe"):
        assert shown in rest


@pytest.mark.parametrize("command", ["check", "plan", "run"])
def test_no_command_lets_a_name_reach_its_output_raw(folder: Path, command: str) -> None:
    more = ["--local", "--until", "caught-up"] if command == "run" else []
    for words in ([command, "hostile.toml", *more], [command, "hostile.toml", *more, "--json"]):
        done = _raycdc(folder, *words)
        assert done.returncode in (0, 4), done.stderr
        _assert_tame(done)
    for words in (["tables", "list", "hostile.toml"], ["inspect", "checkpoint", "hostile.toml", "--summary"]):
        if command == "run":
            done = _raycdc(folder, *words)
            assert done.returncode == 0, done.stderr
            _assert_tame(done)
            assert r"t\x1b]0;title\x07\x1b[2J" in done.stdout
    if command == "run":
        lines = _raycdc(folder, "tables", "list", "hostile.toml", "--json").stdout.splitlines()
        listed = {json.loads(line)["table"].partition(".")[2] for line in lines}
        assert listed == set(NAMES)


def _assert_tame(done: subprocess.CompletedProcess[str]) -> None:
    for text in (done.stdout, done.stderr):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
        assert not re.search(r"^12:00:00 caught up", text, re.MULTILINE)


def _raycdc(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return completed(words, environment={**os.environ, **ENVIRONMENT}, folder=folder)


def _on_a_terminal(folder: Path, *words: str) -> tuple[int, str]:
    """The exit code of a command and all that it wrote to a terminal of its own."""
    terminal, other = pty.openpty()
    environment = {**os.environ, **ENVIRONMENT, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    command = [sys.executable, "-m", "raycdc.cli", *words]
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=other, stdout=other, stderr=other) as process:
        os.close(other)
        written = b""
        while True:
            try:
                data = os.read(terminal, 1 << 16)
            except OSError:  # the other side is closed: how Linux tells the end
                break
            if not data:
                break
            written += data
    os.close(terminal)
    return process.returncode, written.decode()
