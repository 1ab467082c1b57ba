"""The example of a third party's source, installed as its own package and used from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
        command = [sys.executable, "-m", "raycdc.cli", *words]
        return subprocess.run(
            command, env=self._environment | points, cwd=self._path, capture_output=True, text=True, check=False
        )

    def run(self, *, failpoints: str = "") -> int:
        words = ("run", "csv.toml", "--local", "--until", "caught-up")
        return self.raycdc(*words, failpoints=failpoints).returncode

    def rows(self, table: str) -> list[tuple[str, str]]:
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


def test_a_file_that_was_cut_off_is_refused(folder: Folder) -> None:
    folder.append("people", "id,name\n1,ann\n")
    assert folder.run() == 0
    folder.cut_off("people")
    refused = folder.raycdc("run", "csv.toml", "--local", "--until", "caught-up")
    assert (refused.returncode, "it was cut off or deleted" in refused.stderr) == (3, True), refused
