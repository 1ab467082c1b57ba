"""`raycdc state check` says of every document of a state whether it is whole, and what a start would say of it."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from raycdc.cli.entry import main
from raycdc.errors import ExitCode
from raycdc.state.drivers.driver_generation import DriverGeneration
from raycdc.state.store import CheckpointStore
from tests.unit.driver.state_admin.small_pipeline import configured, run

STATES = Path(__file__).parents[3] / "states"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a pipeline that ran twice."""
    folder = tmp_path_factory.mktemp("ended")
    for _ in range(2):
        assert run(configured(folder)) == ExitCode.DONE
    return folder


@pytest.fixture
def folder(ended: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(ended, tmp_path, dirs_exist_ok=True)
    configured(tmp_path)
    return tmp_path


def checked(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code of the command, and what it says."""
    capsys.readouterr()
    code = main(["state", "check", str(folder / "small.toml")])
    return code, capsys.readouterr().out


def documents(folder: Path) -> list[str]:
    state = folder / "state"
    files = [str(path.relative_to(state)) for path in sorted(state.rglob("*")) if path.is_file()]
    return [name for name in files if name != "lease"]


def test_a_state_that_is_whole_is_said_to_be(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = checked(folder, capsys)
    assert code == ExitCode.DONE
    assert said.startswith(f"The state of pipeline small is whole: {folder / 'state'}\n")
    assert "in use      by nobody" in said
    assert main(["state", "check", str(folder / "small.toml"), "--json"]) == ExitCode.DONE
    found = json.loads(capsys.readouterr().out)
    assert (found["whole"], found["findings"], found["documents"]) == (True, [], len(documents(folder)) - 1)


def test_whatever_document_is_damaged_is_named_and_a_start_is_refused_exactly_where_it_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = documents(folder)
    assert len(names) > 8
    kept = folder.with_name("kept")
    shutil.copytree(folder, kept)
    for name in names:
        file = folder / "state" / name
        file.write_bytes(file.read_bytes().replace(b'"version": ', b'"version":  1', 1))
        code, said = checked(folder, capsys)
        assert f"{name}: " in said, (name, said)
        refused = run(folder / "small.toml")
        stops = "DAMAGED" in said
        assert (code, refused) == ((6, 6) if stops else (0, 0)), (name, said)
        if "remove this file" in said:
            file.unlink()
            assert (checked(folder, capsys)[0], run(folder / "small.toml")) == (0, 0), name
        elif stops:
            assert "Restore this file" in said or "Put a copy of the whole state" in said, said
        for part in ("state", "lake"):
            shutil.rmtree(folder / part)
            shutil.copytree(kept / part, folder / part)


def test_a_schema_that_is_gone_comes_back_from_a_copy(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schemas = folder / "state" / "schemas"
    lost = next(schemas.iterdir())
    lost.rename(folder / lost.name)
    code, said = checked(folder, capsys)
    assert (code, f"DAMAGED  schemas/{lost.name}: it is missing" in said) == (ExitCode.STATE, True), said
    assert run(folder / "small.toml") == ExitCode.STATE
    (folder / lost.name).rename(lost)
    assert checked(folder, capsys)[0] == ExitCode.DONE
    assert run(folder / "small.toml") == ExitCode.DONE


def test_a_command_that_is_damaged_is_given_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = folder / "state" / "commands" / "0123456789.json"
    damaged.parent.mkdir()
    damaged.write_text("{", encoding="utf-8")
    code, said = checked(folder, capsys)
    assert (code, "remove this file" in said) == (ExitCode.STATE, True), said
    assert run(folder / "small.toml") == ExitCode.STATE
    damaged.unlink()
    assert main(["tables", "resnapshot", str(folder / "small.toml"), "shop.a"]) == ExitCode.DONE
    assert (checked(folder, capsys)[0], run(folder / "small.toml")) == (ExitCode.DONE, ExitCode.DONE)


def test_whoever_has_the_state_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = CheckpointStore(folder / "state", create=False)
    with store.lease():
        DriverGeneration(store)
        code, said = checked(folder, capsys)
    assert (code, "in use      by process " in said) == (ExitCode.DONE, True), said


@pytest.mark.parametrize("name", ["kafka", "mariadb", "mongodb", "mysql80"])
def test_a_state_of_an_older_version_is_whole(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tarfile.open(STATES / f"{name}.tar.gz") as stored:
        stored.extractall(tmp_path, filter="data")
    code = main(["state", "check", str(tmp_path), "--json"])
    found = json.loads(capsys.readouterr().out)
    # The rows of epochs that waited were not stored with it.
    assert [finding["effect"] for finding in found["findings"]] == ["costs"] * len(found["waiting_epochs"])
    assert (code, found["whole"]) == ((0, True) if name == "kafka" else (6, False))


def test_a_place_without_a_state_is_said_to_have_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["state", "check", str(configured(tmp_path))]) == ExitCode.STATE
    assert "There is no raycdc state in" in capsys.readouterr().err
