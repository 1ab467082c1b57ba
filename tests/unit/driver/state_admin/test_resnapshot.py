"""`raycdc tables resnapshot` prints what it means, and asks where it has a terminal."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from raycdc.driver.command_queue import CommandQueue
from raycdc.errors import ExitCode
from raycdc.state.store import CheckpointStore
from tests.unit.driver.state_admin.small_pipeline import configured, run, told


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
    code, said = told(capsys, "tables", "resnapshot", str(config), "shop.a")
    assert (code, "There is no raycdc state" in said) == (ExitCode.STATE, True), said
    assert run(config) == ExitCode.DONE
    desk = CommandQueue(CheckpointStore(tmp_path / "state", create=False))
    monkeypatch.setattr(sys, "stdin", Person("n\n"))
    code, said = told(capsys, "tables", "resnapshot", str(config), "shop.a")
    assert (code, said.splitlines()[-1]) == (ExitCode.DONE, "Resnapshot it? [y/N] Nothing was changed."), said
    assert "every row of the table once more" in said
    monkeypatch.setattr(sys, "stdin", Person())  # Ctrl-D
    code, said = told(capsys, "tables", "resnapshot", str(config), "shop.a")
    assert (code, said.splitlines()[-2:]) == (ExitCode.DONE, ["Resnapshot it? [y/N] ", "Nothing was changed."]), said
    assert desk.all() == []
    code, said = told(capsys, "tables", "resnapshot", str(config), "shop.c", "--yes")
    assert (code, "not one of the pipeline's tables" in said) == (ExitCode.CONFIG, True), said
    monkeypatch.setattr(sys, "stdin", Person("y\n"))
    code, said = told(capsys, "tables", "resnapshot", str(config), "shop.a", "--wait", "0")
    assert code == ExitCode.DONE, said
    states = {(status.action, status.table): status.state.value for status in desk.all()}
    assert states == {("resnapshot", "shop.c"): "refused", ("resnapshot", "shop.a"): "accepted"}
    assert run(config) == ExitCode.DONE
    assert (begun(tmp_path, "a"), begun(tmp_path, "b")) == (2, 1)
    monkeypatch.setattr(sys, "stdin", io.StringIO())  # a script has no terminal, and is not asked
    code, said = told(capsys, "tables", "resnapshot", str(config), "shop.b")
    assert (code, "every row of the table once more" in said) == (ExitCode.DONE, True), said
    assert run(config) == ExitCode.DONE
    assert (begun(tmp_path, "a"), begun(tmp_path, "b")) == (2, 2)
