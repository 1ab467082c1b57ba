"""``raycdc sandbox``: what it says is typed as it stands, and Ctrl-C leaves nothing of it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raycdc.cli import main
from raycdc.cli.sandbox import _instructions
from raycdc.config import load_config
from raycdc.errors import ExitCode
from raycdc.sandbox.servers import MongoDb, MongoDbServer
from raycdc.sandbox.trials import KINDS
from raycdc.sandbox.trials.mongodb import MongoDbSandbox
from raycdc.sandbox.trials.trial import typed

TIMEOUT_S = 600


@contextmanager
def trial(*words: str) -> Iterator[list[str]]:
    """The lines that the command prints until it is up. It is ended by Ctrl-C, and must then have left nothing."""
    # Not in the test's own folder, whose path is too long for sockets.
    scratch = Path(tempfile.mkdtemp(prefix="trial-"))
    command = [sys.executable, "-m", "raycdc.cli", "sandbox", *words]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    ) as process:
        assert process.stdout is not None
        lines: list[str] = []
        try:
            for line in process.stdout:
                lines.append(line.rstrip("\n"))
                if "  raycdc run shop.toml" in line or (lines[-1] == "" and any("path = " in each for each in lines)):
                    break
            yield lines
            process.send_signal(signal.SIGINT)
            rest = process.communicate(timeout=TIMEOUT_S)[0]
            assert process.returncode == ExitCode.DONE, lines
            assert rest.endswith("The server is stopped, and its data is gone.\n"), rest
        finally:
            process.kill()
    assert list(scratch.glob("raycdc-*")) == []
    shutil.rmtree(scratch)


@pytest.mark.server
def test_what_a_trial_says_is_typed_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with trial("mariadb", "--live") as lines:
        assert any(re.fullmatch(r"  url       mysql://127\.0\.0\.1:\d+", line) for line in lines), lines
        assert [line for line in lines if len(line) > 80] == []
        said = "\n".join(lines)
        for name, value in re.findall(r"^  export (\w+)='(.*)'$", said, re.MULTILINE):
            monkeypatch.setenv(name, value)
        [words] = re.findall(r"^  raycdc (init shop\.toml(?:.|\\\n)*?)\n  raycdc run", said, re.MULTILINE)
        assert main(shlex.split(words.replace("\\\n", " "))) == ExitCode.DONE
        assert main(["run", "shop.toml", "--local", "--until", "caught-up"]) == ExitCode.DONE
    assert (tmp_path / "lake" / "shop" / "orders").is_dir()
    told = capsys.readouterr().out
    assert "raycdc status shop.toml" in told


@pytest.mark.server
def test_what_a_trial_says_of_a_target_is_typed_beside_a_source(
    mongodb: MongoDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not isinstance(mongodb, MongoDbServer):
        pytest.skip("prints the lines of a server of its own")
    monkeypatch.chdir(tmp_path)
    said = "\n".join(_instructions(MongoDbSandbox(mongodb), filled=False)).partition("As a target")[2]
    [(name, value)] = re.findall(r"^  export (\w+)='(.*)'$", said, re.MULTILINE)
    monkeypatch.setenv(name, value)
    [words] = re.findall(r"^  raycdc (init shop\.toml.*)$", said, re.MULTILINE)
    assert main([*shlex.split(words), "--source", "datagen", "--table", "shop.orders"]) == ExitCode.DONE
    assert "Before a run" not in capsys.readouterr().out
    assert load_config("shop.toml").sink.type == "mongodb"


def test_a_port_that_is_in_use_is_never_taken_for_the_new_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        assert main(["sandbox", "mongodb", "--port", port]) == ExitCode.CONFIG
    assert capsys.readouterr().err.startswith(f"Port {port} of 127.0.0.1 is in use. Name another one")
    assert main(["sandbox", "mariadv"]) == ExitCode.CONFIG
    assert 'did you mean "mariadb"?' in capsys.readouterr().err


def test_without_a_kind_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox"]) == ExitCode.DONE
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[: len(KINDS)]] == list(KINDS)
    assert [line for line in lines if len(line) > 80] == []


def test_a_long_command_is_broken_where_it_can_be_copied() -> None:
    words = ["raycdc", "init", "--answer", f"sink.url={'x' * 50}", "--table", r"shop\..*", "--answer", "y" * 60]
    lines = typed(words)
    assert [line for line in lines if len(line) > 80] == []
    assert shlex.split("\n".join(lines).replace("\\\n", " ")) == words
