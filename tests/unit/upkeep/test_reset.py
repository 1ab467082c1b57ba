"""`raycdc reset` says what a new beginning means and asks; `raycdc rewind` says why there is no such thing."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from raycdc.checkpoint.store import CheckpointStore
from raycdc.cli.reset import reset_table
from raycdc.driver.commands import CommandDesk
from raycdc.errors import ExitCode
from tests.unit.upkeep.small_pipeline import configured, run, told


class Person(io.StringIO):
    """Somebody at a terminal, who types this."""

    def isatty(self) -> bool:
        return True


def begun(folder: Path, table: str) -> int:
    """How often a row that was there from the beginning was inserted."""
    lines = [
        line for file in (folder / "lake" / "shop" / table).glob("*.jsonl") for line in file.read_text().splitlines()
    ]
    return sum((change["id"], change["_op"]) == (1, "+I") for change in map(json.loads, lines))


def test_a_table_begins_anew_once_somebody_agrees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(tmp_path)
    code, said = told(capsys, "reset", str(config), "shop.a")
    assert (code, "There is no raycdc state" in said) == (ExitCode.STATE, True), said
    assert run(config) == ExitCode.DONE
    desk = CommandDesk(CheckpointStore(tmp_path / "state", create=False))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    code, said = told(capsys, "reset", str(config), "shop.a")
    assert (code, "nobody to ask: say --yes" in said) == (ExitCode.CONFIG, True), said
    monkeypatch.setattr(sys, "stdin", Person("n\n"))
    code, said = told(capsys, "reset", str(config), "shop.a")
    assert (code, said.splitlines()[-1]) == (ExitCode.DONE, "Do it? [y/N] Nothing was changed."), said
    assert "with every row once more" in said
    monkeypatch.setattr(sys, "stdin", Person())  # Ctrl-D
    code, said = told(capsys, "reset", str(config), "shop.a")
    assert (code, said.splitlines()[-2:]) == (ExitCode.DONE, ["Do it? [y/N] ", "Nothing was changed."]), said
    assert desk.all() == []
    code, said = told(capsys, "reset", str(config), "shop.c", "--yes")
    assert (code, "not one of the pipeline's tables" in said) == (ExitCode.CONFIG, True), said
    monkeypatch.setattr(sys, "stdin", Person("y\n"))
    assert reset_table(config, "shop.a", yes=False, wait_s=0) == ExitCode.DONE
    assert [(status.action, status.table) for status in desk.all()] == [("resnapshot", "shop.a")]
    assert run(config) == ExitCode.DONE
    assert (begun(tmp_path, "a"), begun(tmp_path, "b")) == (2, 1)


def test_nothing_goes_back_and_the_ways_out_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = configured(tmp_path)
    assert run(config) == ExitCode.DONE
    code, said = told(capsys, "rewind", str(config))
    assert (code, "A pipeline does not go back by itself" in said) == (ExitCode.CONFIG, True), said
    assert [way for way in ("verify", "reset", "state backup", "on_existing") if way not in said] == []
