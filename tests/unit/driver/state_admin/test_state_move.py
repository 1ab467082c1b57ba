"""`raycdc state move`: killed at each step, a pipeline goes on from one of two places, and never from both."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from raycdc.driver.command_queue import CommandQueue
from raycdc.driver.state_admin.copying import move
from raycdc.errors import ExitCode, FencedError, StateError
from raycdc.source.tables.table_commands import TableAction, TableCommand
from raycdc.state.drivers.driver_generation import DriverGeneration
from raycdc.state.files.folder import LocalFolder
from raycdc.state.identity import NAME
from raycdc.state.location import StateLocation
from raycdc.state.store import CheckpointStore
from tests.support.jobs import RUN_TIMEOUT_S
from tests.unit.driver.state_admin.small_pipeline import MORE, MOST, command, configured, require_exact, run, told

#: A store that is not asked.
NOWHERE = """
[storage]
endpoint = "http://127.0.0.1:1"
allow_http = true
region = "us-east-1"
access_key_id = "nobody"
secret_access_key = "nothing"
"""
BEFORE_THE_BAR = ["after_marked=kill", "half_written=kill@1", "half_written=kill@7", "after_copied=kill"]


def test_a_moved_pipeline_goes_on_at_the_new_place_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, new = configured(tmp_path), tmp_path / "new"
    assert run(config) == ExitCode.DONE
    code, said = told(capsys, "state", "move", str(config), str(new))
    assert (code, f'Set pipeline.state = "{new}" in {config}.' in said) == (ExitCode.DONE, True), said
    for words in (("tables", "list"), ("state", "check"), ("status",), ("run",), ("check",)):
        more = ("--local",) if words[0] in ("run", "check") else ()
        code, said = told(capsys, *words, str(config), *more)
        assert (code, f"was moved from {tmp_path / 'state'} to {new}" in said) == (ExitCode.STATE, True), (words, said)
    # Again it finds that everything was done.
    assert told(capsys, "state", "move", str(config), str(new))[0] == ExitCode.DONE
    assert told(capsys, "state", "move", str(config), str(tmp_path / "other"))[0] == ExitCode.STATE
    assert run(configured(tmp_path, state=str(new), events=MORE)) == ExitCode.DONE
    require_exact(tmp_path, MORE)


@pytest.mark.parametrize(
    "failpoint",
    [
        "after_barred=kill",
        # The store's test has the last of them in `make test`.
        *(pytest.param(name, marks=pytest.mark.long(suite="stories")) for name in BEFORE_THE_BAR),
    ],
)
def test_a_move_that_is_killed_is_made_again(tmp_path: Path, failpoint: str) -> None:
    config, new = configured(tmp_path), tmp_path / "new"
    assert run(config) == ExitCode.DONE
    assert command(config, "state", "move", str(config), str(new), failpoints=failpoint)[0] == -signal.SIGKILL
    there = configured(tmp_path, state=str(new))
    code, said = command(there, "run", str(there), "--local", "--until", "caught-up")
    if failpoint == BEFORE_THE_BAR[1]:
        # Not even the mark is there: it is a first start, which the target refuses.
        assert code != ExitCode.DONE, said
    else:
        assert (code, "a copy that was begun at" in said) == (ExitCode.STATE, True), said
    config = configured(tmp_path, events=MORE)
    if failpoint in BEFORE_THE_BAR:
        assert run(config) == ExitCode.DONE
        require_exact(tmp_path, MORE)
    else:
        code, said = command(config, "run", str(config), "--local")
        assert (code, "was moved from" in said) == (ExitCode.STATE, True), said
    if failpoint != BEFORE_THE_BAR[1]:
        assert command(config, "state", "move", str(config), str(new))[0] == ExitCode.DONE
        assert run(configured(tmp_path, state=str(new), events=MOST)) == ExitCode.DONE
        require_exact(tmp_path, MOST)


def test_a_state_that_somebody_has_is_not_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, new = configured(tmp_path), tmp_path / "new"
    with CheckpointStore(tmp_path / "state", pipeline="small").lease():
        code, said = told(capsys, "state", "move", str(config), str(new))
    assert (code, "is in use by process" in said, new.exists()) == (ExitCode.STATE, True, False), said


def test_a_driver_that_waited_for_the_state_does_not_go_on_behind_the_bar(tmp_path: Path) -> None:
    waited = CheckpointStore(tmp_path / "state", pipeline="small")
    move(waited.location, StateLocation.of(tmp_path / "new"))
    with pytest.raises(StateError, match="was moved from"):
        DriverGeneration(waited)


def test_a_move_that_a_driver_overtook_leaves_the_state_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another machine that sees the folder, it takes over between the move's look and its bar."""
    there = CheckpointStore(tmp_path / "state", pipeline="small")
    successor: list[DriverGeneration] = []

    def overtaken(folder: LocalFolder, name: str, data: bytes) -> None:
        if name == NAME and b"moved_to" in data and not successor:
            successor.append(DriverGeneration(CheckpointStore(there.location, create=False)))
        write(folder, name, data)

    write = LocalFolder.write
    monkeypatch.setattr(LocalFolder, "write", overtaken)
    with pytest.raises(FencedError):
        move(there.location, StateLocation.of(tmp_path / "new"))
    assert CheckpointStore(there.location, create=False).generations.newest() == successor[0].generation()
    with pytest.raises(StateError, match="a copy that was begun"):
        CheckpointStore(tmp_path / "new", create=False)


def test_a_driver_that_looked_before_the_bar_and_claims_behind_it_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another machine that sees the folder: the move cannot see its claim any more, so it must see the bar."""
    there, waited = (CheckpointStore(tmp_path / "state", pipeline="small") for _ in range(2))
    looked, moved = threading.Event(), threading.Event()
    successor: list[Future[DriverGeneration]] = []

    def beside_the_bar(folder: LocalFolder, name: str, data: bytes) -> None:
        if name == NAME and b"moved_to" in data and not successor:
            successor.append(pool.submit(DriverGeneration, waited))
            assert looked.wait(RUN_TIMEOUT_S)
        write(folder, name, data)

    def late(folder: LocalFolder, name: str, data: bytes) -> None:
        if threading.current_thread().name.startswith("successor"):
            looked.set()
            assert moved.wait(RUN_TIMEOUT_S)
        create_once(folder, name, data)

    write, create_once = LocalFolder.write, LocalFolder.create_once
    monkeypatch.setattr(LocalFolder, "write", beside_the_bar)
    monkeypatch.setattr(LocalFolder, "create_once", late)
    with ThreadPoolExecutor(1, "successor") as pool:
        try:
            move(there.location, StateLocation.of(tmp_path / "new"))
        finally:
            moved.set()
        with pytest.raises(StateError, match="was moved from"):
            successor[0].result(RUN_TIMEOUT_S)
    assert there.generations.newest() == CheckpointStore(tmp_path / "new", create=False).generations.newest()


@pytest.mark.parametrize("killed", [False, True])
def test_a_command_that_is_given_while_the_state_is_moved_goes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, killed: bool
) -> None:
    """Between the copy and the bar, whether or not the same move goes on behind the bar."""
    there, new = CheckpointStore(tmp_path / "state", pipeline="small"), StateLocation.of(tmp_path / "new")
    given = TableCommand.new(TableAction.PAUSE, "shop.a")

    def just_before(folder: LocalFolder, name: str, data: bytes) -> None:
        if name == NAME and b"moved_to" in data:
            CommandQueue(there).submit(given)
        write(folder, name, data)
        if killed and name == NAME and b"moved_to" in data:
            raise KeyboardInterrupt

    write = LocalFolder.write
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(LocalFolder, "write", just_before)
        move(there.location, new)
    move(there.location, new)
    assert CommandQueue(CheckpointStore(new, create=False)).waiting() == [given]


def test_whoever_gives_a_command_beside_the_bar_is_told_where_the_state_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, new = CheckpointStore(tmp_path / "state", pipeline="small"), tmp_path / "new"
    given = TableCommand.new(TableAction.PAUSE, "shop.a")

    def moved(folder: LocalFolder, name: str, data: bytes) -> None:
        if name.startswith("commands/") and not new.exists():
            move(there.location, StateLocation.of(new))
        create_once(folder, name, data)

    create_once = LocalFolder.create_once
    monkeypatch.setattr(LocalFolder, "create_once", moved)
    with pytest.raises(StateError, match=r"was moved from .* Give the command there"):
        CommandQueue(there).submit(given)
    assert CommandQueue(CheckpointStore(new, create=False)).waiting() == []


@pytest.mark.parametrize("what", ["a state", "a file", "inside", "around"])
def test_only_an_empty_place_apart_is_taken(tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    config, new = configured(tmp_path), tmp_path / "new"
    CheckpointStore(tmp_path / "state", pipeline="small")
    match what:
        case "a state":
            CheckpointStore(new, pipeline="small")
        case "a file":
            new.mkdir()
            (new / "mine").touch()
        case "inside":
            new = tmp_path / "state" / "new"
        case "around":
            new = tmp_path
    for verb in ("move", "backup"):
        code, said = told(capsys, "state", verb, str(config), str(new))
        assert (code, "name " in said) == (ExitCode.STATE, True), said
    CheckpointStore(tmp_path / "state", create=False)


def test_a_state_does_not_leave_its_work_in_the_place_that_it_goes_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That place is to be removed, and the default would be inside."""
    monkeypatch.chdir(tmp_path)
    config = configured(tmp_path, sections=NOWHERE)
    CheckpointStore(tmp_path / "state", pipeline="small")
    code, said = told(capsys, "state", "move", str(config), "s3://lake/state")
    work = tmp_path / "state" / "small.work"
    assert (code, f"would be in {work}, inside {tmp_path / 'state'}" in said) == (ExitCode.STATE, True), said
    assert "set pipeline.work_dir" in said
