"""Jars are what they were when they were pinned, or they are refused by name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raycdc.errors import ConfigError
from raycdc.spark import artifacts, session
from raycdc.spark.artifacts import LOCK, ArtifactError, fetch, verify

JAR = "io.delta_delta-spark_4.1_2.13-4.4.0.jar"


def lock(folder: Path, content: bytes) -> Path:
    path = folder / "artifacts.lock"
    path.write_text(f"{hashlib.sha256(content).hexdigest()}  {JAR}\n")
    return path


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose jars the resolver finds, with one that is pinned as ``right``."""

    @contextmanager
    def resolved(_coordinates: object, _exclude: object) -> Iterator[list[Path]]:
        yield sorted(folder.glob("*.jar"))

    folder = tmp_path / "mirror"
    folder.mkdir()
    (folder / JAR).write_bytes(b"right")
    monkeypatch.setattr(artifacts, "_resolved", resolved)
    monkeypatch.setattr(artifacts, "LOCK", lock(tmp_path, b"right"))
    return folder


def test_a_jar_that_was_changed_is_refused_and_none_is_there(mirror: Path, tmp_path: Path) -> None:
    assert [jar.read_bytes() for jar in fetch(tmp_path / "first", ["g:n:1"])] == [b"right"]
    (mirror / JAR).write_bytes(b"wrong")
    with pytest.raises(
        ArtifactError, match=rf"{JAR} has the SHA-256 .*, and should have .*: it was changed at the mir"
    ):
        fetch(tmp_path / "second", ["g:n:1"])
    assert not (tmp_path / "second").exists()


def test_a_jar_that_nobody_pinned_is_refused_until_it_is(mirror: Path, tmp_path: Path) -> None:
    (mirror / JAR).write_bytes(b"right")
    (mirror / "g_other-1.jar").write_bytes(b"other")
    with pytest.raises(ArtifactError, match=r"g_other-1\.jar is not in artifacts\.lock.*--pin"):
        fetch(tmp_path / "first", ["g:n:1"])
    assert artifacts.main(["--pin", "g:n:1"]) == 0
    assert len(fetch(tmp_path / "second", ["g:n:1"])) == 2


def test_jars_that_a_start_fetched_are_compared_at_each_start(
    mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RAYCDC_JARS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(session, "_PROJECT", tmp_path)
    assert session.delta_jars() == []
    (mirror / JAR).write_bytes(b"wrong")
    with pytest.raises(ConfigError, match="was changed at the mirror"):
        session.fetch_delta_jars()
    assert session.delta_jars() == []
    (mirror / JAR).write_bytes(b"right")
    capsys.readouterr()
    session.fetch_delta_jars()
    (jar,) = session.delta_jars()
    begun, ended = capsys.readouterr().err.splitlines()
    assert begun.startswith("raycdc: fetching io.delta:delta-spark")
    assert ended.startswith("raycdc: 1 jars are here")
    session.fetch_delta_jars()
    assert capsys.readouterr().err == ""
    jar.write_bytes(b"wrong")
    with pytest.raises(ConfigError, match="is not used"):
        session.fetch_delta_jars()


def test_the_jars_that_tests_and_spark_use_here_are_pinned() -> None:
    there = session.delta_jars()
    assert there
    verify(there)
    assert all(len(line.split()[0]) == 64 for line in LOCK.read_text().splitlines())
