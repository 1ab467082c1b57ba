"""Fixtures of the tests that put sinks through crashes, and of those that need Spark."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raycdc import failpoints
from raycdc.spark.session import spark_session


@pytest.fixture
def fail_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, int], None]:
    """An exception at the n-th time that a fail point is reached."""

    def plan(name: str, count: int) -> None:
        monkeypatch.setenv("RAYCDC_FAILPOINT_DIR", str(tmp_path))
        monkeypatch.setattr(failpoints, "_plan", {name: ("raise", count)})
        monkeypatch.setattr(failpoints, "_reached", {})

    return plan


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Spark session of two cores that all tests of this folder share."""
    session = spark_session("local[2]", tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
    # Its sockets are closed here, and not in a test that allows no warnings.
    gc.collect()
