"""The archive of Spark's classes: used when there is one for this Java and these jars, and for no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from raycdc.spark import session
from raycdc.spark.session import check_java

JARS = [Path("delta-spark.jar"), Path("delta-storage.jar")]


def test_an_archive_is_used_by_the_java_and_jars_it_was_made_with_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert session.archive_options("java 17.0.1", JARS) == ()
    path = session.archive_path("java 17.0.1", JARS)
    path.parent.mkdir(parents=True)
    path.touch()
    assert f"-XX:SharedArchiveFile={path}" in session.archive_options("java 17.0.1", JARS)
    assert session.archive_options("java 17.0.2", JARS) == ()
    assert session.archive_options("java 17.0.1", JARS[:1]) == ()


def test_options_of_the_environment_make_no_other_java(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    plain = check_java()
    assert "version" in plain
    for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"):
        monkeypatch.setenv(name, "-XX:TieredStopAtLevel=1")
        assert check_java() == plain
