"""The example of a third party's sink: installed as its own package, and put through what all sinks are."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from raycdc import plugins
from raycdc.errors import ExitCode
from raycdc.model import TableId
from raycdc.sandbox.servers import MariaDbServer
from raycdc.testing import SinkConformance
from raycdc.testing.epochs import Row
from tests.support.forked_commands import completed

ROOT = Path(__file__).resolve().parents[2]


def rows_of(database: Path, table: str) -> list[Row]:
    with closing(sqlite3.connect(database)) as connection:
        connection.row_factory = sqlite3.Row
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
            return []
        return [dict(row) for row in connection.execute(f'SELECT * FROM "{table}" ORDER BY _seq')]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package is installed."""
    folder = tmp_path_factory.mktemp("site")
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--no-build-isolation"]
    subprocess.run([*uv, "--target", folder, ROOT / "examples" / "custom_sink"], check=True, stdin=subprocess.DEVNULL)
    return folder


@pytest.fixture(autouse=True)
def found(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package is there for the tests of this module, and for no other."""
    monkeypatch.syspath_prepend(str(site))
    plugins._discover.cache_clear()
    yield
    plugins._discover.cache_clear()


class TestSqliteChanges(SinkConformance):
    """As the tests of a package of one's own have it."""

    impossible: ClassVar[Mapping[str, str]] = {
        "widen": "Rows of a changelog are never updated.",
        "revoke": "SQLite knows no users.",
        "exchange": "The sink's record has the names of tables, and SQLite has no other identity of a table.",
    }

    def settings(self, folder: Path) -> dict[str, Any]:
        return {"type": "sqlite-changes", "path": str(folder / "changes.db")}

    def rows(self, folder: Path, target: TableId) -> list[Row]:
        return rows_of(folder / "changes.db", str(target))

    def lose(self, folder: Path, target: TableId) -> None:
        self._execute(folder, f'DROP TABLE "{target}"')

    def occupy(self, folder: Path, target: TableId) -> None:
        self._execute(folder, f'CREATE TABLE "{target}" (_seq)', f'INSERT INTO "{target}" VALUES (1)')

    def back_up(self, folder: Path, target: TableId) -> Callable[[], None]:
        self._execute(
            folder,
            f'CREATE TABLE older AS SELECT * FROM "{target}"',
            f"CREATE TABLE older_commit AS SELECT * FROM raycdc_commit WHERE target = '{target}'",
        )
        return partial(
            self._execute,
            folder,
            f'DELETE FROM "{target}"',
            f'INSERT INTO "{target}" SELECT * FROM older',
            "INSERT OR REPLACE INTO raycdc_commit SELECT * FROM older_commit",
        )

    def alter(self, folder: Path, target: TableId) -> None:
        self._execute(folder, f'ALTER TABLE "{target}" DROP COLUMN qty')

    def rename(self, folder: Path, target: TableId, to: TableId) -> None:
        self._execute(folder, f'ALTER TABLE "{target}" RENAME TO "{to}"')

    def erase(self, folder: Path, target: TableId) -> None:
        self._execute(folder, f'DELETE FROM "{target}" WHERE id > 110')

    def maintain(self, folder: Path, target: TableId) -> None:
        self._execute(folder, f'CREATE INDEX theirs ON "{target}" (qty)', "VACUUM")

    @contextmanager
    def unreachable(self, folder: Path) -> Iterator[None]:
        """Somebody has the database for themselves."""
        database = sqlite3.connect(folder / "changes.db", isolation_level=None, check_same_thread=False)
        with closing(database):
            database.execute("BEGIN EXCLUSIVE")
            yield

    def _execute(self, folder: Path, *statements: str) -> None:
        with closing(sqlite3.connect(folder / "changes.db", isolation_level=None)) as database:
            for statement in statements:
                database.execute(statement)

    def test_files_that_a_driver_left_when_it_died_are_removed_by_the_next_commit(self, tmp_path: Path) -> None:
        play = self._play(tmp_path)
        play.epochs(1)
        play.sink().stage(play.commits(1))
        staging = play.folder / "changes.db.staged"
        assert len(list(staging.rglob("*.jsonl"))) == 2
        play.restart()
        assert list(staging.rglob("*.jsonl")) == []


@pytest.mark.parametrize("command", [("check",), ("run", "--until", "caught-up")])
def test_a_place_where_no_file_can_be_made_is_refused_by_name(
    site: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "config.toml").write_text(
        f'''
[pipeline]
name = "own-sink"
state = "{tmp_path / "state"}"

[source]
type = "datagen"
tables = ["shop.orders"]
events = 0

[sink]
type = "sqlite-changes"
path = "/proc/x/changes.db"
'''
    )
    name, *more = command
    words = [name, str(tmp_path / "config.toml"), "--local", *more]
    refused = completed(words, environment=environment(site), folder=tmp_path)
    said = refused.stdout + refused.stderr
    assert refused.returncode == ExitCode.SINK, said
    assert "/proc/x cannot be written" in " ".join(said.split())
    assert "Traceback" not in said


class Job:
    """A pipeline of generated rows into the sink, whose package lies in `site`."""

    def __init__(self, folder: Path, site: Path) -> None:
        self._folder, self._site = folder, site

    def raycdc(self, path: str, *words: str, failpoints: str = "") -> subprocess.CompletedProcess[str]:
        """The command, run with the database at `path`."""
        (self._folder / "config.toml").write_text(
            f'''
[pipeline]
name = "own-sink"
state = "state"

[source]
type = "datagen"
tables = ["shop.orders"]
rows = 10
events = 0

[sink]
type = "sqlite-changes"
path = "{path}"
'''
        )
        points = {"RAYCDC_FAILPOINTS": failpoints, "RAYCDC_FAILPOINT_DIR": str(self._folder)} if failpoints else {}
        command, *more = words
        words = (command, "config.toml", "--local", *more)
        return completed(words, environment=environment(self._site) | points, folder=self._folder)

    def run(self, path: str, *, failpoints: str = "") -> subprocess.CompletedProcess[str]:
        return self.raycdc(path, "run", "--until", "caught-up", failpoints=failpoints)


@pytest.fixture
def undeclared(site: Path, tmp_path: Path) -> Path:
    """A folder with the package as an author has it who did not say what changing its path means."""
    other = tmp_path / "other_site"
    shutil.copytree(site, other)
    plugin = other / "sqlite_changes" / "plugin.py"
    text = plugin.read_text()
    assert text.count(', change="location"') == 1
    plugin.write_text(text.replace(', change="location"', ""))
    return other


@pytest.mark.parametrize("declared", [True, False])
def test_a_path_is_corrected_after_a_first_run_that_wrote_nothing(
    declared: bool, undeclared: Path, site: Path, tmp_path: Path
) -> None:
    job = Job(tmp_path, site if declared else undeclared)
    (tmp_path / "wrong").mkdir()
    failed = job.run("wrong")
    assert failed.returncode == ExitCode.SINK, failed.stderr
    assert "unable to open database file" in failed.stderr
    checked = job.raycdc("right/changes.db", "check")
    assert checked.returncode == 0, checked.stdout
    corrected = job.run("right/changes.db")
    assert corrected.returncode == 0, corrected.stderr
    assert len(rows_of(tmp_path / "right" / "changes.db", "shop.orders")) == 10
    moved = job.run("elsewhere.db")
    assert moved.returncode == (ExitCode.SINK if declared else ExitCode.CONFIG), "its rows are in the other database"


def test_a_path_is_not_corrected_where_a_run_died_after_it_had_written(undeclared: Path, tmp_path: Path) -> None:
    job = Job(tmp_path, undeclared)
    assert job.run("changes.db", failpoints="after_last_commit=kill").returncode != 0
    (tmp_path / "changes.db").rename(tmp_path / "other.db")
    for words in (("check",), ("run", "--until", "caught-up")):
        refused = job.raycdc("other.db", *words)
        assert refused.returncode == ExitCode.CONFIG, refused.stdout + refused.stderr
        said = " ".join((refused.stdout + refused.stderr).split())
        assert "Rows are in shop.orders already." in said
    (tmp_path / "other.db").rename(tmp_path / "changes.db")
    assert job.run("changes.db").returncode == 0
    assert len(rows_of(tmp_path / "changes.db", "shop.orders")) == 10


def test_check_makes_neither_a_database_nor_its_folder(site: Path, tmp_path: Path) -> None:
    checked = Job(tmp_path, site).raycdc("new/changes.db", "check")
    assert checked.returncode == 0, checked.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


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
        words = ["run", str(config), "--local", "--until", "caught-up", "--json"]
        for statement in ("UPDATE big SET raw = NULL", "DELETE FROM big"):
            completed(words, environment=environment(site), folder=tmp_path).check_returncode()
            mariadb.execute(statement, database=database)
        completed(words, environment=environment(site), folder=tmp_path).check_returncode()
        rows = rows_of(tmp_path / "changes.db", f"{database}.big")
        assert [(row["_op"], row["id"], json.loads(row["doc"]), row["raw"]) for row in rows] == [
            (op, str(2**64 - 1), {"a": 1}, raw)
            for op, raw in (("+I", BYTES), ("-U", BYTES), ("+U", None), ("-D", None))
        ]


BYTES = '{"$binary": "AP8="}'


def environment(site: Path) -> dict[str, str]:
    paths = [str(ROOT), str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


@pytest.mark.parametrize("asked", ["--json", "--verbose"])
def test_words_of_the_sink_that_quote_a_row_are_not_told(site: Path, tmp_path: Path, asked: str) -> None:
    """The sink runs in the driver; an error that it did not name ends the command with its kind and place."""
    broken = tmp_path / "broken"
    shutil.copytree(ROOT / "examples" / "custom_sink" / "sqlite_changes", broken / "sqlite_changes")
    sink = broken / "sqlite_changes" / "sink.py"
    before = "        self._db.executemany(into, staged_rows(staged, names))\n"
    assert before in sink.read_text()
    sink.write_text(sink.read_text().replace(before, "        int('planted-' + 'value')\n"))
    (tmp_path / "c.toml").write_text(
        '[pipeline]\nname = "told"\n[source]\ntype = "datagen"\ntables = ["shop.orders"]\nrows = 1\nevents = 0\n'
        '[sink]\ntype = "sqlite-changes"\npath = "changes.db"\nwrite = "changelog"\n'
    )
    paths = os.pathsep.join(map(str, (broken, ROOT, site)))
    words = ["run", "c.toml", "--local", "--until", "caught-up", asked]
    done = completed(words, environment={**os.environ, "PYTHONPATH": paths}, folder=tmp_path)
    assert done.returncode == ExitCode.BUG, done.stderr
    assert "planted-value" not in done.stdout + done.stderr
    assert "ValueError" in done.stderr
    assert "in write" in done.stderr
    assert "This is a bug in the plug-in sqlite-changes" in done.stderr
