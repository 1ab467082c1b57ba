"""Files of a state are their user's alone under the loosest umask: after a death, at rest, moved and backed up."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

from raycdc.sandbox.servers.private import wait_until

CONFIG = """
pipeline = { name = "modes", state = "state", epoch_interval = "200ms", on_bad_record = "dead-letter" }
source = { type = "datagen", tables = ["shop.orders"], rows = 300, events = 300 }
sink = { type = "jsonl", path = "out" }
"""
CLI = (sys.executable, "-m", "raycdc.cli")


def raycdc(folder: Path, *words: str, failpoints: str = "") -> subprocess.CompletedProcess[str]:
    """A command whose umask lets everybody read and write."""
    environment = {**os.environ, "RAYCDC_FAILPOINTS": failpoints, "RAYCDC_FAILPOINT_DIR": str(folder)}
    return subprocess.run(
        [*CLI, *words], cwd=folder, env=environment, umask=0, capture_output=True, text=True, timeout=600, check=False
    )


def until_its_door_has_opened(folder: Path) -> None:
    """A run that goes on until it has written the token of its door, and is stopped then."""
    with (folder / "said").open("wb") as said:
        command = [*CLI, "run", "modes.toml", "--local"]
        process = subprocess.Popen(command, cwd=folder, umask=0, stdout=said, stderr=said)
        try:
            private = folder / "state" / "private"
            wait_until(
                lambda: any(private.glob("private-*")) or process.poll() is not None, timeout_s=600, what="the token"
            )
            assert open_to_others(private) == {}
            process.send_signal(signal.SIGTERM)
            assert process.wait(600) == 0, (folder / "said").read_text()
        finally:
            process.kill()
            process.wait()


def open_to_others(*places: Path) -> dict[str, str]:
    """Each file or folder that another user could read, change or list."""
    found = [path for place in places for path in (place, *place.rglob("*"))]
    modes = {str(path): stat.S_IMODE(path.lstat().st_mode) for path in found if not path.is_symlink()}
    return {name: oct(mode) for name, mode in modes.items() if mode & 0o077}


def test_nobody_else_reads_a_state_wherever_it_is(tmp_path: Path) -> None:
    (tmp_path / "modes.toml").write_text(CONFIG)
    run = ("run", "modes.toml", "--local", "--until", "caught-up")
    killed = raycdc(tmp_path, *run, failpoints="in_commit=kill@1")
    assert killed.returncode == -9, killed.stderr
    state = tmp_path / "state"
    assert [path for path in (state / "spool").rglob("*") if path.is_file()], "rows of an epoch wait for their commit"
    assert open_to_others(state) == {}
    until_its_door_has_opened(tmp_path)
    assert (state / "private").is_dir()
    ended = raycdc(tmp_path, *run)
    assert ended.returncode == 0, ended.stderr
    backed = raycdc(tmp_path, "state", "backup", "modes.toml", str(tmp_path / "copy"))
    assert backed.returncode == 0, backed.stderr
    moved = raycdc(tmp_path, "state", "move", "modes.toml", str(tmp_path / "moved"))
    assert moved.returncode == 0, moved.stderr
    assert open_to_others(*(place for place in (state, tmp_path / "copy", tmp_path / "moved") if place.exists())) == {}
