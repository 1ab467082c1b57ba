"""Machine code is loaded from files that nobody else can have written, and from no others."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from raycdc.core.trusted_files import is_own, read_own, write_own
from raycdc.spark import session

#: Another user: only root can give files away, and where the tests run as somebody else, that is left to modes.
OTHER = 12345
BY_ROOT = os.geteuid() == 0

HASHES = """
import numpy as np
from raycdc.model.key_hash_loops import finish
hashes = np.arange(3, dtype=np.uint64)
finish(hashes)
print(hashes.tolist())
"""


@pytest.fixture(name="kept")
def _kept(tmp_path: Path) -> Path:
    path = tmp_path / "cache" / "code"
    assert write_own(path, b"code")
    return path


def test_a_file_is_written_for_its_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = tmp_path / "a" / "b" / "code"
        assert write_own(path, b"code")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(place.stat().st_mode) for place in (path, path.parent, path.parent.parent)]
    assert modes == [0o600, 0o700, 0o700]
    assert read_own(path) == b"code"
    assert sorted(path.parent.iterdir()) == [path]


def test_a_file_that_others_may_write_is_not_read(kept: Path) -> None:
    for mode in (0o620, 0o602, 0o666):
        kept.chmod(mode)
        assert (read_own(kept), is_own(kept)) == (None, False)
    kept.chmod(0o644)
    assert (read_own(kept), is_own(kept)) == (b"code", True)


def test_nothing_is_read_from_or_written_to_a_folder_that_others_may_write(
    kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept.parent.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert (read_own(kept), is_own(kept)) == (None, False)
        assert not write_own(kept, b"other")
    assert kept.read_bytes() == b"code"
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        f"{kept.parent} belongs to user {os.geteuid()} with mode 0777"
    ]


@pytest.mark.skipif(not BY_ROOT, reason="only root can give files away")
def test_files_and_folders_of_others_are_not_read(kept: Path) -> None:
    os.chown(kept, OTHER, OTHER)
    assert (read_own(kept), is_own(kept)) == (None, False)
    assert write_own(kept, b"ours")  # in a folder of ours, ours takes its place
    assert read_own(kept) == b"ours"
    os.chown(kept.parent, OTHER, OTHER)
    assert (read_own(kept), is_own(kept), write_own(kept, b"again")) == (None, False, False)


def test_links_pipes_and_folders_are_no_files_of_ours(kept: Path) -> None:
    link, pipe, folder = (kept.with_name(name) for name in ("link", "pipe", "folder"))
    link.symlink_to(kept)
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (link, pipe, folder, kept.with_name("nothing")):
        assert (read_own(path), is_own(path)) == (None, False)


def test_a_folder_that_cannot_be_written_to_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not write_own(tmp_path / "file" / "code", b"code")


@pytest.mark.parametrize("planted", ["a file of another user", "a file that others may write", "a folder of others"])
def test_a_process_does_not_run_planted_code(tmp_path: Path, planted: str) -> None:
    if "another" in planted and not BY_ROOT:
        pytest.skip("only root can give files away")
    right = _hashes(tmp_path)
    (code,) = (path for path in tmp_path.rglob("*finish*"))
    code.write_bytes(b"planted")
    assert _hashes(tmp_path, fails=True) == ""  # it is loaded where it is ours: damage of one's own
    if planted == "a file of another user":
        os.chown(code, OTHER, OTHER)
    elif planted == "a file that others may write":
        code.chmod(0o666)
    else:
        code.parent.chmod(0o777)
    assert _hashes(tmp_path) == right
    assert (code.read_bytes() == b"planted") is (planted == "a folder of others")


def test_an_archive_of_classes_is_used_only_where_it_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = session.archive_path("java 17.0.1", [])
    assert write_own(path, b"classes")
    assert f"-XX:SharedArchiveFile={path}" in session.archive_options("java 17.0.1", [])
    path.chmod(0o606)
    assert session.archive_options("java 17.0.1", []) == ()


def _hashes(cache: Path, *, fails: bool = False) -> str:
    """The answer of a process whose cache of machine code is `cache`."""
    environment = {**os.environ, "RAYCDC_COMPILED_DIR": str(cache)}
    ended = subprocess.run([sys.executable, "-c", HASHES], capture_output=True, text=True, check=False, env=environment)
    assert (ended.returncode != 0) is fails, ended.stderr
    return ended.stdout
