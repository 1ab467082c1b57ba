"""The example of a source whose two sides speak to each other, installed as its own package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from raycdc import plugins
from raycdc.core import failpoints
from raycdc.source.connector import Source
from raycdc.source.protocol.source_event import SourceEvent
from raycdc.testing.source_play import SourcePlay
from tests.support.forked_commands import completed

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
[pipeline]
name = "lines"
[source]
type = "line-files"
path = "./logs"
[sink]
type = "jsonl"
path = "./out"
write = "changelog"
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package is installed."""
    folder = tmp_path_factory.mktemp("site")
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--no-build-isolation"]
    subprocess.run([*uv, "--target", folder, ROOT / "examples" / "custom_events"], check=True, stdin=subprocess.DEVNULL)
    return folder


@pytest.fixture(autouse=True)
def found(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package is there for the tests of this module, and for no other."""
    monkeypatch.syspath_prepend(str(site))
    plugins._discover.cache_clear()
    yield
    plugins._discover.cache_clear()


def append(folder: Path, name: str, text: str) -> None:
    (folder / "logs").mkdir(exist_ok=True)
    with (folder / "logs" / name).open("a") as file:
        file.write(text)


def source_of(folder: Path) -> Source[Any]:
    config = import_module("line_files.plugin").LineFilesConfig(type="line-files", path=str(folder / "logs"))
    source: Source[Any] = import_module("line_files.source").LineFilesSource(config)
    return source


def lines_of(play: SourcePlay) -> list[tuple[str, str]]:
    (rows,) = play.target.values()
    return sorted((row["file"], row["line"]) for row in rows.values())


def test_events_go_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enumerator, reader = import_module("line_files.enumerator"), import_module("line_files.reader")
    told: list[SourceEvent] = []
    for side in (enumerator.LineFilesEnumerator, reader.LineFilesReader):
        real = side.handle_source_event

        def noted(self: Any, *values: Any, real: Any = real) -> None:
            told.append(values[-1])
            real(self, *values)

        monkeypatch.setattr(side, "handle_source_event", noted)
    append(tmp_path, "a.log", "one\ntwo\nthr")
    append(tmp_path, "b.log", "uno\n")
    play = SourcePlay(tmp_path, lambda: source_of(tmp_path))
    play.run()
    assert lines_of(play) == [("a.log", "one"), ("a.log", "two"), ("b.log", "uno")]
    assert {enumerator.FileGrown("a.log", 8), enumerator.FileGrown("b.log", 4)} <= set(told)
    # The end of a run waits for no event: the last one may still be on its way.
    assert {enumerator.FileRead("a.log", 8), enumerator.FileRead("b.log", 4)} & set(told)


@pytest.mark.parametrize("point", ["before_seal", "after_seal", "before_manifest", "after_manifest"])
def test_each_line_comes_once_whatever_ends(tmp_path: Path, point: str) -> None:
    append(tmp_path, "a.log", "".join(f"line {n}\n" for n in range(100)))
    append(tmp_path, "b.log", "uno\n")
    play = SourcePlay(tmp_path, lambda: source_of(tmp_path))
    play.run()
    append(tmp_path, "a.log", "another\n")
    # Where the job ends with it, as a process would have, the next run goes on.
    with suppress(failpoints.FailpointError), failpoints.planned(point, count=1, folder=tmp_path):
        play.run()
    play.run()
    assert len(lines_of(play)) == 102
    assert len(set(play.positions)) == len(play.positions) == 102


def test_check_plan_and_run_know_it(tmp_path: Path, site: Path) -> None:
    (tmp_path / "lines.toml").write_text(CONFIG)
    append(tmp_path, "a.log", "one\ntwo\n")
    paths = [str(ROOT), str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def raycdc(*words: str) -> str:
        done = completed(words, environment=environment, folder=tmp_path)
        done.check_returncode()
        return done.stdout

    assert "1 files are there." in raycdc("check", "lines.toml", "--local")
    assert json.loads(raycdc("plan", "lines.toml", "--json"))["target"] == "files.lines"
    raycdc("run", "lines.toml", "--local", "--until", "caught-up")
    written = [
        json.loads(line)
        for file in (tmp_path / "out" / "files" / "lines").glob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    assert sorted(row["line"] for row in written) == ["one", "two"]
