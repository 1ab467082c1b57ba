"""The example of a third party's source, installed as its own package and used from the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from raycdc.model import TableId
from raycdc.source.snapshot.enumerator.snapshot_plan import first_state
from raycdc.source.snapshot.log.log_unit import LogTransactions, LogUnit, SchemaChange, TransactionPart, rows_of
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.split import StreamSplit
from raycdc.source.tables.table_life import ParkingCause
from raycdc.state.opaque import Position
from tests.support.forked_commands import completed

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
[pipeline]
name = "csv"
[source]
type = "csv-files"
path = "./in"
[sink]
type = "jsonl"
path = "./out"
write = "changelog"
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the package is installed in a folder of its own."""
    target = tmp_path_factory.mktemp("site")
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--no-build-isolation"]
    subprocess.run([*uv, "--target", target, ROOT / "examples" / "custom_source"], check=True, stdin=subprocess.DEVNULL)
    paths = [str(ROOT), str(target), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class Folder:
    """A folder with CSV files, and the commands in it."""

    def __init__(self, path: Path, environment: dict[str, str]) -> None:
        self._path = path
        self._environment = environment
        (path / "in").mkdir()
        (path / "csv.toml").write_text(CONFIG)

    def append(self, table: str, text: str) -> None:
        with (self._path / "in" / f"{table}.csv").open("a") as file:
            file.write(text)

    def cut_off(self, table: str) -> None:
        os.truncate(self._path / "in" / f"{table}.csv", 8)

    def raycdc(self, *words: str, failpoints: str = "") -> subprocess.CompletedProcess[str]:
        points = {"RAYCDC_FAILPOINTS": failpoints, "RAYCDC_FAILPOINT_DIR": str(self._path)} if failpoints else {}
        return completed(words, environment=self._environment | points, folder=self._path)

    def run(self, *, failpoints: str = "") -> int:
        words = ("run", "csv.toml", "--local", "--until", "caught-up")
        return self.raycdc(*words, failpoints=failpoints).returncode

    def rows(self, table: str) -> list[tuple[str | None, str]]:
        """The first column and the kind of each row in the target, in order."""
        files = (self._path / "out" / "csv" / table).glob("*.jsonl")
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return [(line["id"], line["_op"]) for line in sorted(lines, key=lambda line: int(line["_seq"]))]


@pytest.fixture
def folder(tmp_path: Path, environment: dict[str, str]) -> Folder:
    return Folder(tmp_path, environment)


def test_check_and_plan_ask_its_page(folder: Folder) -> None:
    folder.append("people", "id,name\n1,ann\n")
    checked = folder.raycdc("check", "csv.toml", "--local")
    assert (checked.returncode, "1 files are there." in checked.stdout) == (0, True), checked
    planned = json.loads(folder.raycdc("plan", "csv.toml", "--json").stdout)
    assert (planned["target"], [column["name"] for column in planned["columns"]]) == ("csv.people", ["id", "name"])


def test_each_line_comes_once_when_it_has_ended_whatever_dies(folder: Folder) -> None:
    folder.append("people", "id,name\n1,ann\n2,bo")
    assert folder.run() == 0
    assert folder.rows("people") == [("1", "+I")]
    folder.append("people", "b\n3,cy\n")
    assert folder.run(failpoints="after_manifest=kill") != 0
    assert folder.run() == 0
    assert folder.rows("people") == [("1", "+I"), ("2", "+I"), ("3", "+I")]


def test_a_file_that_appears_is_a_new_table(folder: Folder) -> None:
    folder.append("people", "id,name\n1,ann\n")
    assert folder.run() == 0
    folder.append("pets", "id,kind,name\n7,cat,mia\n")
    assert folder.run() == 0
    assert folder.rows("pets") == [("7", "+I")]


def test_a_table_that_is_read_again_has_the_lines_of_its_file_once(folder: Folder) -> None:
    folder.append("people", "id,name\n1,ann\n2,bo\n")
    folder.append("pets", "id,kind\n7,cat\n")
    assert folder.run() == 0
    assert folder.raycdc("tables", "resnapshot", "csv.toml", "csv.people").returncode == 0
    folder.append("people", "3,cy\n")
    assert folder.run() == 0
    again = folder.rows("people")[2:]
    assert again == [(None, "T"), ("1", "+I"), ("2", "+I"), ("3", "+I")]
    assert folder.rows("pets") == [("7", "+I")]
    assert folder.run() == 0
    assert folder.rows("people")[2:] == again


def test_a_table_that_is_paused_is_not_told_until_it_goes_on(folder: Folder) -> None:
    folder.append("people", "id,name\n1,ann\n")
    assert folder.run() == 0
    assert folder.raycdc("tables", "pause", "csv.toml", "csv.people").returncode == 0
    folder.append("people", "2,bo\n")
    assert folder.run() == 0
    assert folder.rows("people") == [("1", "+I")]
    assert folder.raycdc("tables", "resume", "csv.toml", "csv.people").returncode == 0
    assert folder.run() == 0
    # It goes on from where it was left.
    assert folder.rows("people")[1:] == [("2", "+I")]


def test_a_file_that_was_cut_off_is_refused(folder: Folder) -> None:
    folder.append("people", "id,name\n1,ann\n")
    assert folder.run() == 0
    folder.cut_off("people")
    refused = folder.raycdc("run", "csv.toml", "--local", "--until", "caught-up")
    assert (refused.returncode, "it was cut off or deleted" in refused.stderr) == (3, True), refused


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The source of the folder, in this process."""
    monkeypatch.syspath_prepend(ROOT / "examples" / "custom_source")
    config = import_module("csv_files.plugin").CsvFilesConfig(type="csv-files", path=str(tmp_path / "in"))
    return import_module("csv_files.source").CsvFilesSource(config)


def log_of(source: Any, state: StreamState) -> Any:
    documents = {plan.fingerprint: plan.document for plan in source.enumerator_dialect().start_point().tables}
    return source.log_reader(StreamSplit(state, documents))


def told_by(unit: LogUnit | None) -> list[tuple[str, str | None]]:
    """Tables and first columns of the rows of a unit."""
    assert unit is not None
    return [(rows.table.table, value) for rows in rows_of(unit) for value in rows.batch.column(0).to_pylist()]


def test_a_busy_file_lets_the_others_have_their_turn(folder: Folder, source: Any) -> None:
    folder.append("busy", "id\n1\n")
    folder.append("quiet", "id\n2\n")
    log = log_of(source, first_state(source.enumerator_dialect().start_point()))
    told = []
    for line in "345":
        told += told_by(log.fetch())
        folder.append("busy", f"{line}\n")
    assert told == [("busy", "1"), ("quiet", "2"), ("busy", "3"), ("busy", "4")]


def test_a_long_file_is_read_again_in_one_transaction(
    folder: Folder, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.append("long", "id\n1\n2\n3\n")
    monkeypatch.setattr("csv_files.source.BYTES_AT_ONCE", 4)
    size = len("id\n1\n2\n3\n")
    end = Position.from_json({"long.csv": size})
    parking = ParkingCause("somebody asked for it", end, 0, again=True)
    state = StreamState(end, size).park(TableId("csv", "long"), parking, number=1)
    folder.append("long", "4\n")
    log = log_of(source, state)
    units = [log.fetch() for _ in range(5)]
    assert [type(unit) for unit in units] == [
        SchemaChange,
        TransactionPart,
        TransactionPart,
        LogTransactions,
        LogTransactions,
    ]
    told = [value for unit in units for _, value in told_by(unit)]
    assert told == [None, "1", "2", "3", "4"]
    assert [unit.log_position.ordinal for unit in units] == [9, 9, 9, 9, 11]


def broken(tmp_path: Path, environment: dict[str, str], statement: str) -> tuple[Folder, str]:
    """A folder where the plug-in's fetch has another `statement`; and the place of that."""
    package = tmp_path / "broken"
    shutil.copytree(ROOT / "examples" / "custom_source" / "csv_files", package / "csv_files")
    source = package / "csv_files" / "source.py"
    text = source.read_text()
    before = "        files = _files(self._config).items()\n"
    assert text.count(before) == 1
    source.write_text(text.replace(before, f"        {statement}\n"))
    paths = os.pathsep.join([str(package), environment["PYTHONPATH"]])
    folder = Folder(tmp_path, {**environment, "PYTHONPATH": paths})
    folder.append("people", "id,name\n1,ann\n")
    line = text[: text.index(before)].count("\n") + 1
    return folder, f"{source}:{line}"


@pytest.mark.parametrize("verbose", [False, True])
def test_words_of_a_plug_in_that_quote_a_row_are_not_told(
    tmp_path: Path, environment: dict[str, str], *, verbose: bool
) -> None:
    folder, place = broken(tmp_path, environment, "raise KeyError('planted-' + 'value')")
    words = ("run", "csv.toml", "--local", "--until", "caught-up", "--json")
    told = folder.raycdc(*words, *(["--verbose"] if verbose else []))
    assert "planted-value" not in told.stdout + told.stderr
    assert f"KeyError ({place}, in fetch)." in told.stdout
    assert f"KeyError ({place}, in fetch)." in told.stderr


def test_a_bug_of_the_plug_in_ends_the_run_after_few_tries_and_names_its_line(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    folder, where = broken(tmp_path, environment, "files = self._files_by_table.items()")
    words = ("run", "csv.toml", "--local", "--until", "caught-up")
    place = f"AttributeError: 'CsvFilesLog' object has no attribute '_files_by_table' ({where}, in fetch)."
    quiet = folder.raycdc(*words)
    assert quiet.returncode == 1
    told = quiet.stderr.splitlines()[-2:]
    assert re.match(r"A reader ended [3-5] times within ", told[0]), told
    assert f"the last time: {place} The job stops" in told[0]
    assert told[1].startswith("This is a bug in the plug-in csv-files (package ")
    assert told[1].endswith(" --verbose shows its traceback.")
    assert "Traceback" not in quiet.stderr
    verbose = folder.raycdc(*words, "--verbose").stderr
    source, _, line = where.rpartition(":")
    assert f'  File "{source}", line {line}, in fetch\n' in verbose
