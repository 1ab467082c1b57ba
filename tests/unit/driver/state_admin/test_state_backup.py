"""`raycdc state backup`: a copy of one moment, which goes on exactly or is refused."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import nullcontext
from pathlib import Path

import pytest

from raycdc.cli.entry import main
from raycdc.driver.state_admin.copying import Copy, CopyLocation, back_up
from raycdc.errors import ExitCode, StateError
from raycdc.state.location import StateLocation, StateLock
from raycdc.state.store import CheckpointStore
from tests.support.forked_commands import nursery
from tests.support.jobs import RUN_TIMEOUT_S
from tests.unit.driver.state_admin.small_pipeline import MORE, MOST, command, configured, require_exact, run


def test_a_copy_goes_on_exactly_where_its_target_is_as_it_was(tmp_path: Path) -> None:
    config, copy = configured(tmp_path), tmp_path / "copy"
    assert run(config) == ExitCode.DONE
    code, said = command(config, "state", "backup", str(config), str(copy))
    assert (code, f"Copied the state of pipeline small to {copy}, as of epoch" in said) == (ExitCode.DONE, True), said
    assert main(["state", "check", str(copy)]) == ExitCode.DONE
    shutil.rmtree(tmp_path / "state")
    copy.rename(tmp_path / "state")
    assert run(configured(tmp_path, events=MORE)) == ExitCode.DONE
    require_exact(tmp_path, MORE)


def test_a_copy_is_refused_where_its_target_went_on(tmp_path: Path) -> None:
    config, copy = configured(tmp_path), tmp_path / "copy"
    assert run(config) == ExitCode.DONE
    assert command(config, "state", "backup", str(config), str(copy))[0] == ExitCode.DONE
    assert run(configured(tmp_path, events=MORE)) == ExitCode.DONE
    older = configured(tmp_path, state=str(copy), events=MOST)
    code, said = command(older, "run", str(older), "--local", "--until", "caught-up")
    assert (code, "the state was restored from an older copy" in said) == (ExitCode.SINK, True), said
    require_exact(tmp_path, MORE)
    assert run(configured(tmp_path, events=MOST)) == ExitCode.DONE
    require_exact(tmp_path, MOST)


@pytest.mark.parametrize(
    "point", ["after_manifest", pytest.param("before_commit", marks=pytest.mark.long(suite="stories"))]
)
def test_rows_that_wait_go_along(tmp_path: Path, point: str) -> None:
    """A second run dies at its first epoch. A first run may have a single epoch, depending on the machine's load."""
    copy = tmp_path / "copy"
    assert run(configured(tmp_path)) == ExitCode.DONE
    config = configured(tmp_path, events=MORE)
    words = ("run", str(config), "--local", "--until", "caught-up")
    assert command(config, *words, failpoints=f"{point}=kill")[0] == -signal.SIGKILL
    code, said = command(config, "state", "backup", str(config), str(copy))
    assert (code, "files of rows" in said or "file of rows" in said) == (ExitCode.DONE, True), said
    assert main(["state", "check", str(copy)]) == ExitCode.DONE
    shutil.rmtree(tmp_path / "state")
    copy.rename(tmp_path / "state")
    assert run(config) == ExitCode.DONE
    require_exact(tmp_path, MORE)


def test_of_two_copies_to_one_place_at_once_the_second_is_refused(tmp_path: Path) -> None:
    """Files of both would be there, and documents of one. A copy that ended on the way is made anew."""
    source, target = CheckpointStore(tmp_path / "state", pipeline="small").location, StateLocation.of(tmp_path / "copy")
    with Copy(CopyLocation(source), CopyLocation(target), segments=True) as first:
        first.begin()
        first.copy_once()
        with pytest.raises(StateError, match=rf"process {os.getpid()} writes a copy to {tmp_path / 'copy'}"):
            back_up(source, target)
    assert back_up(source, target).pipeline == "small"
    CheckpointStore(target, create=False)


def test_a_copy_that_another_one_took_the_place_of_ends_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a store, or on another machine that sees the folder, no lock keeps the second out."""
    monkeypatch.setattr(StateLock, "take", lambda self: nullcontext())
    source, target = CheckpointStore(tmp_path / "state", pipeline="small").location, StateLocation.of(tmp_path / "copy")
    first, second = (Copy(CopyLocation(source), CopyLocation(target), segments=True) for _ in range(2))
    for one in (first, second):
        one.begin()
    second.copy_once()
    second.write()
    for step in (first.copy_once, first.write, first.end):
        with pytest.raises(StateError, match=r"Another copy .* began .* this one ends"):
            step()
    second.end()
    for step in (first.write, first.end):
        with pytest.raises(StateError, match="this one ends"):
            step()
    CheckpointStore(target, create=False)


def test_what_is_copied_belongs_to_the_pipeline_alone(tmp_path: Path) -> None:
    """Also where anybody may read whatever else this process makes."""
    source, copy = CheckpointStore(tmp_path / "state", pipeline="small").location, tmp_path / "copy"
    names = ["known/shop/a/1.parquet", "dead_letters/shop.a.jsonl", "looked_up/1.arrow"]
    for name in names:
        (source.work / name).parent.mkdir(parents=True)
        (source.work / name).touch()
    before = os.umask(0o022)
    try:
        back_up(source, StateLocation.of(copy))
    finally:
        os.umask(before)
    modes = {str(path.relative_to(copy)): path.stat().st_mode for path in (copy, *copy.rglob("*"))}
    assert set(names) <= set(modes)
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o077} == {}


def test_a_copy_of_a_running_pipeline_is_whole(tmp_path: Path) -> None:
    config = configured(tmp_path, events=None)
    with (tmp_path / "run.log").open("wb") as log:
        process = nursery().start(
            ["run", str(config), "--local", "--json"], environment=os.environ, folder=tmp_path, stderr=log
        )
        try:
            seen = b""
            while b'"commit"' not in seen:
                seen = process.stdout.readline()
                assert seen, (tmp_path / "run.log").read_text()
            for number in range(2):
                code, said = command(config, "state", "backup", str(config), str(tmp_path / f"copy{number}"))
                assert code == ExitCode.DONE, said
                code, said = command(config, "state", "check", str(tmp_path / f"copy{number}"))
                assert code == ExitCode.DONE, said
        finally:
            process.send_signal(signal.SIGTERM)
            process.stdout.read()
            process.stdout.close()
            assert process.wait(RUN_TIMEOUT_S) == ExitCode.DONE
