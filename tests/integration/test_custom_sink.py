"""The example of a third party's sink: installed as its own package, and put through what all sinks are."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from raycdc import plugins
from raycdc.testing.epochs import Row, ScriptedTable
from raycdc.testing.servers import MariaDbServer
from tests.integration import test_epoch_loop as conformance
from tests.integration.sink_world import World, new_world

ROOT = Path(__file__).resolve().parents[2]

# Collected here, they are played in the world below.
test_all_epochs = conformance.test_all_epochs_reach_the_sink_once
test_tasks_that_run_twice = conformance.test_a_task_that_runs_twice_is_harmless
test_dropped_epochs = conformance.test_epochs_whose_segments_are_gone_are_dropped_barred_and_read_again
test_interrupted_dropping = conformance.test_an_interrupted_dropping_is_finished_by_the_next_start
test_half_committed_epochs = conformance.test_lost_segments_of_a_half_committed_epoch_are_refused
test_lost_tables = conformance.test_a_sink_that_lost_a_table_is_refused
test_added_columns = conformance.test_added_columns_reach_the_sink


@dataclass
class SqliteWorld(World):
    """Whose sink is the example."""

    @property
    def database(self) -> Path:
        return self.root / "changes.db"

    @property
    def settings(self) -> dict[str, Any]:
        return {"type": "sqlite-changes", "path": str(self.database)}

    def rows(self, table: ScriptedTable) -> list[Row]:
        return rows_of(self.database, str(table.id))

    def lose(self, table: ScriptedTable) -> None:
        with closing(sqlite3.connect(self.database)) as database:
            database.execute(f'DROP TABLE "{table.id}"')


def rows_of(database: Path, table: str) -> list[Row]:
    with closing(sqlite3.connect(database)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(f'SELECT * FROM "{table}" ORDER BY _seq')]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package is installed."""
    folder = tmp_path_factory.mktemp("site")
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--no-build-isolation"]
    subprocess.run([*uv, "--target", folder, ROOT / "examples" / "custom_sink"], check=True, stdin=subprocess.DEVNULL)
    return folder


@pytest.fixture
def world(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteWorld]:
    monkeypatch.syspath_prepend(str(site))
    plugins._discover.cache_clear()
    plain = new_world("sqlite", tmp_path)
    yield SqliteWorld(**vars(plain))
    # It is not there for other tests.
    plugins._discover.cache_clear()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("point", [point for point in conformance.POINTS if point != "after_parts"])
def test_errors_at_any_point(world: SqliteWorld, point: str, count: int, fail_at: Callable[[str, int], None]) -> None:
    """Its epochs have no parts."""
    conformance.require_exact_after_an_error(world, point, count, fail_at)


def test_named_errors(world: SqliteWorld) -> None:
    conformance.require_named_errors(world)


@pytest.mark.server
def test_a_run_into_it_holds_every_change_once(mariadb: MariaDbServer, site: Path, tmp_path: Path) -> None:
    with mariadb.fresh_database() as database:
        big = "CREATE TABLE big (id BIGINT UNSIGNED PRIMARY KEY, doc JSON, raw BLOB)"
        mariadb.execute(big, f"""INSERT INTO big VALUES ({2**64 - 1}, '{{"a": 1}}', x'00ff')""", database=database)
        config = tmp_path / "config.toml"
        config.write_text(
            f'''
[pipeline]
name = "own-sink"
state = "{tmp_path / "state"}"

[source]
type = "mysql"
port = {mariadb.port}
user = "cdc"
password = "cdc"
tables = ["{database}.big"]

[sink]
type = "sqlite-changes"
path = "{tmp_path / "changes.db"}"
'''
        )
        command = [sys.executable, "-m", "raycdc.cli", "run", str(config), "--local", "--until", "caught-up", "--json"]
        for statement in ("UPDATE big SET raw = NULL", "DELETE FROM big"):
            subprocess.run(command, env=environment(site), check=True, capture_output=True)
            mariadb.execute(statement, database=database)
        subprocess.run(command, env=environment(site), check=True, capture_output=True)
        rows = rows_of(tmp_path / "changes.db", f"{database}.big")
        assert [(row["_op"], row["id"], json.loads(row["doc"]), row["raw"]) for row in rows] == [
            (op, str(2**64 - 1), {"a": 1}, raw)
            for op, raw in (("+I", BYTES), ("-U", BYTES), ("+U", None), ("-D", None))
        ]


BYTES = '{"$binary": "AP8="}'


def environment(site: Path) -> dict[str, str]:
    paths = [str(ROOT), str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
