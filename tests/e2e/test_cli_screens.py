"""What commands print and how they end, seen from outside: exit codes, streams, no traceback, quick start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.forked_commands import completed

GOOD = """
[pipeline]
name = "shop"
[source]
type = "mysql"
port = 1
user = "cdc"
password = "${env:RAYCDC_TEST_PASSWORD}"
tables = ["shop.orders"]
[sink]
type = "delta"
path = "lake"
"""


def raycdc(*words: str, cwd: Path, password: str | None = "x") -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "RAYCDC_TEST_PASSWORD"}
    if password is not None:
        environment["RAYCDC_TEST_PASSWORD"] = password
    return completed(words, environment=environment, folder=cwd)


def screen(*words: str, cwd: Path, password: str | None = "x") -> tuple[int, str]:
    """Exit code and stderr of a command that says nothing on stdout."""
    done = raycdc(*words, cwd=cwd, password=password)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", ["run", "check"])
def test_missing_file(command: str, tmp_path: Path) -> None:
    expected = "none.toml cannot be read: No such file or directory. Write one with: raycdc init none.toml\n"
    assert screen(command, "none.toml", cwd=tmp_path) == (2, expected)


def test_bad_toml(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[pipeline]\nname = shop\n")
    assert screen("run", "a.toml", cwd=tmp_path) == (
        2,
        "a.toml is not valid TOML: Invalid value (at line 2, column 8)\n",
    )


def test_unknown_keys_and_a_missing_variable_on_one_screen(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(GOOD.replace("port = 1", "prot = 1\nhots = 'db1'"))
    expected = (
        "a.toml has 3 problems:\n"
        "  source.password: the environment variable RAYCDC_TEST_PASSWORD is not set "
        "(export RAYCDC_TEST_PASSWORD=...)\n"
        '  source.prot: unknown key; did you mean "port"?\n'
        '  source.hots: unknown key; did you mean "host"?\n'
    )
    assert screen("run", "a.toml", cwd=tmp_path, password=None) == (2, expected)


def test_unknown_until(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(GOOD)
    assert screen("run", "a.toml", "--until", "tomorrow", cwd=tmp_path) == (
        2,
        '--until "tomorrow" is unknown; the only value is "caught-up"\n',
    )


def test_unknown_command_and_option_are_usage_errors(tmp_path: Path) -> None:
    code, text = screen("runn", cwd=tmp_path)
    assert (code, "Did you mean 'run'?" in text) == (2, True)
    code, text = screen("run", "a.toml", "--untill", "x", cwd=tmp_path)
    assert (code, "No such option: --untill" in text) == (2, True)


def test_verbose_shows_the_traceback_too(tmp_path: Path) -> None:
    done = raycdc("check", "none.toml", "--verbose", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" in done.stderr


@pytest.mark.parametrize("command", [["check"], ["run", "--local"]])
def test_server_that_is_not_there(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(GOOD)
    done = raycdc(command[0], "a.toml", *command[1:], cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr.startswith("Cannot reach 127.0.0.1:1: ")
    assert len(done.stderr.splitlines()) == 1
    # What needs no server is looked at first, and only `check` says what it found.
    assert all(line.startswith("ok ") for line in done.stdout.splitlines())
    assert bool(done.stdout) is (command == ["check"])


def test_inspecting_a_state_that_is_not_there(tmp_path: Path) -> None:
    code, text = screen("inspect", "checkpoint", "state/shop", cwd=tmp_path)
    assert code == 6
    assert text.endswith("has not run yet (raycdc run), or pipeline.state names another location.\n")


def test_init_without_a_terminal_says_which_option_is_missing(tmp_path: Path) -> None:
    assert screen("init", cwd=tmp_path) == (
        2,
        "--user is required if no person can be asked (standard input is no terminal)\n",
    )


def test_plugins_lists_the_built_ins(tmp_path: Path) -> None:
    done = raycdc("plugins", "--json", cwd=tmp_path)
    assert done.returncode == 0
    listed = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"source mysql", "sink delta"} <= {f"{line['kind']} {line['type']}" for line in listed}


def test_inspect_ddl_prints_events_and_goes_on_after_a_refused_statement(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text(
        "CREATE TABLE shop.orders (id INT PRIMARY KEY, note VARCHAR(9) NOT NULL DEFAULT ';\n');\n"
        "ALTER TABLE shop.orders FROBNICATE;\n"
        "ALTER TABLE shop.orders ADD size INT AFTER id, DROP note; -- done\n"
        "DROP TABLE elsewhere;\n"
    )
    done = raycdc("inspect", "ddl", "a.sql", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["type"] for line in lines] == ["create_table", "refused", "drop_column", "add_column", "drop_table"]
    assert lines[1] == {
        "type": "refused",
        "statement": "ALTER TABLE shop.orders FROBNICATE",
        "reason": "ALTER TABLE … 'FROBNICATE' is not understood",
    }
    tables = raycdc("inspect", "ddl", "a.sql", "--tables", cwd=tmp_path).stdout.splitlines()
    assert json.loads(tables[-1]) == {
        "db": "shop",
        "table": "orders",
        "columns": [
            {"name": "id", "type": "int", "nullable": False},
            {"name": "size", "type": "int", "nullable": True},
        ],
        "primary_key": ["id"],
    }


def test_help_starts_quickly_because_nothing_heavy_is_imported(tmp_path: Path) -> None:
    probe = (
        "import sys; from raycdc.cli import main; code = main(['--help']); "
        "heavy = {'ray', 'pyspark', 'pyarrow', 'numba', 'pydantic', 'deltalake'} & set(sys.modules); "
        "print(code, sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", probe], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
