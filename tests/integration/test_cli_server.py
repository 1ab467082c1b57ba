"""init, check, run and inspect checkpoint in a row, as a new user meets them, on a real server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from raycdc.config import load_config
from raycdc.model import TableId
from raycdc.sandbox.servers import MariaDbServer
from tests.support.forked_commands import completed

pytestmark = pytest.mark.server


def raycdc(folder: Path, *words: str, exit_code: int = 0) -> str:
    """Stdout of a command that must end with `exit_code`; its input is no terminal."""
    environment = {**os.environ, "MYSQL_PASSWORD": "cdc"}
    done = completed(words, environment=environment, folder=folder)
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stdout if exit_code == 0 else done.stdout + done.stderr


@pytest.fixture
def first_database(mariadb: MariaDbServer) -> Iterator[str]:
    """Name of an empty database that comes before those of other tests, where only the first are listed."""
    with mariadb.fresh_database("a") as name:
        yield name


def test_from_init_to_a_checkpoint(mariadb: MariaDbServer, first_database: str, tmp_path: Path) -> None:
    mariadb.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, v VARCHAR(9))",
        "CREATE TABLE log (message TEXT)",
        "INSERT INTO orders VALUES (1, 'a'), (2, 'b')",
        database=first_database,
    )
    orders = f"{first_database}.orders"
    server = ["--host", mariadb.host, "--port", str(mariadb.port), "--user", "cdc"]

    # Nobody can be asked: the message lists what the account sees.
    assert orders in raycdc(tmp_path, "init", *server, exit_code=2)
    missing = raycdc(tmp_path, "init", *server, "--table", f"{first_database}.nothing", exit_code=3)
    assert missing.startswith(f"cdc does not see {first_database}.nothing on {mariadb.host}:{mariadb.port}.")
    written = raycdc(tmp_path, "init", "shop.toml", *server, "--table", orders, "--name", "shop", "--sink", "jsonl")
    assert written.startswith("Wrote shop.toml.")
    assert "exists already" in raycdc(tmp_path, "init", "shop.toml", *server, "--table", orders, exit_code=2)

    findings = [json.loads(line) for line in raycdc(tmp_path, "check", "shop.toml", "--json").splitlines()]
    assert [finding for finding in findings if finding["status"] == "failed"] == []
    assert "connection" in [finding["check"] for finding in findings]

    events = [
        json.loads(line)
        for line in raycdc(tmp_path, "run", "shop.toml", "--local", "--until", "caught-up", "--json").splitlines()
    ]
    assert events[0]["event"] == "started"
    assert sum(event["rows"] for event in events if event["event"] == "commit") == 2
    assert events[-1]["event"] == "caught_up"

    checkpoint = json.loads(raycdc(tmp_path, "inspect", "checkpoint", "shop.toml"))
    assert checkpoint == json.loads(raycdc(tmp_path, "inspect", "checkpoint", "state/shop", "--json"))
    assert checkpoint["pipeline"] == "shop"
    assert checkpoint["committed_epoch"] == checkpoint["manifest"]["epoch"]
    summary = raycdc(tmp_path, "inspect", "checkpoint", "shop.toml", "--summary")
    assert f"table       {orders}: stream" in summary


def test_init_leaves_out_what_the_target_cannot_hold_and_says_why(
    mariadb: MariaDbServer, first_database: str, tmp_path: Path
) -> None:
    mariadb.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, v VARCHAR(9))",
        "CREATE TABLE visits (page TEXT)",
        "INSERT INTO orders VALUES (1, 'a'), (2, 'b')",
        database=first_database,
    )
    orders, visits = f"{first_database}.orders", f"{first_database}.visits"
    server = ["--host", mariadb.host, "--port", str(mariadb.port), "--user", "cdc", "--sink", "delta"]
    reason = f"# {visits} has no primary key, so an upsert target cannot tell its rows apart."

    def init(file: str, *words: str, exit_code: int = 0) -> str:
        return raycdc(tmp_path, "init", file, *server, *words, exit_code=exit_code)

    told = init("pattern.toml", "--table", rf"{first_database}\..*")
    assert f"\nLeft out, each with its reason: {visits}\nNext:\n  raycdc check pattern.toml" in told
    pattern = load_config(tmp_path / "pattern.toml", environment={"MYSQL_PASSWORD": "cdc"})
    assert pattern.source.captures(TableId.parse(orders))
    assert not pattern.source.captures(TableId.parse(visits))
    init("names.toml", "--table", orders, "--table", visits)
    text = (tmp_path / "names.toml").read_text()
    assert f'  "{orders}",\n  {reason}' in text
    assert f'  # "{visits}",\n]' in text
    assert [line for line in told.splitlines() if len(line) > 80] == []
    # What is written is fit, though one of the tables is not.
    assert raycdc(tmp_path, "check", "names.toml", "--local").endswith("Everything needed is there.\n")

    none = init("none.toml", "--table", visits, exit_code=2)
    assert "A delta sink can hold none of the tables, so nothing was written." in none
    assert not (tmp_path / "none.toml").exists()
    assert "--answer sink.write=changelog" in none
    init("none.toml", "--table", visits, "--answer", "sink.write=changelog")
    assert raycdc(tmp_path, "check", "none.toml", "--local").endswith("Everything needed is there.\n")


def test_init_names_a_password_that_is_not_set_and_offers_a_server(
    mariadb: MariaDbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["init", "--host", mariadb.host, "--port", str(mariadb.port), "--user", "cdc", "--table", "shop.orders"]
    told = raycdc(tmp_path, *words, "--password-env", "RAYCDC_TEST_NO_PASSWORD", exit_code=3)
    assert "refused user 'cdc'" in told
    assert told.endswith("The variable RAYCDC_TEST_NO_PASSWORD is not set: export RAYCDC_TEST_NO_PASSWORD=...\n")
    told = raycdc(tmp_path, *[word.replace(str(mariadb.port), "1") for word in words], exit_code=3)
    assert told.startswith("Cannot reach 127.0.0.1:1: ")
    assert told.endswith("\nNo server to try with? Start one in another terminal:  raycdc sandbox mariadb\n")
    told = raycdc(tmp_path, *words[:-1], "orders", exit_code=2)
    assert told == "--table: 'orders' can match no table: it needs DATABASE.TABLE, e.g. 'shop.orders'\n"


def test_check_names_what_is_missing_with_its_fix(
    mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    (tmp_path / "a.toml").write_text(
        f"""
        [pipeline]
        name = "a"
        [source]
        type = "mysql"
        port = {mariadb.port}
        user = "cdc"
        password = "${{env:MYSQL_PASSWORD}}"
        tables = ["{mariadb_database}.orders", '{mariadb_database}\\.x_.*']
        [sink]
        type = "console"
        """
    )
    screen = raycdc(tmp_path, "check", "a.toml", exit_code=3)
    assert f"FAILED   source.tables: there is no table {mariadb_database}.orders, or this account" in screen
    assert f"GRANT SELECT ON `{mariadb_database}`.`orders` TO" in screen
    assert f"warning  The pattern {mariadb_database}\\.x_.* of source.tables matches no table yet." in screen
    assert screen.splitlines()[-1].startswith("1 of ")
