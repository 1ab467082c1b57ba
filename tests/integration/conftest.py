"""Fixtures of the tests that put sinks through crashes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raycdc import failpoints


@pytest.fixture
def fail_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, int], None]:
    """An exception at the n-th time that a fail point is reached."""

    def plan(name: str, count: int) -> None:
        monkeypatch.setenv("RAYCDC_FAILPOINT_DIR", str(tmp_path))
        monkeypatch.setattr(failpoints, "_plan", {name: ("raise", count)})
        monkeypatch.setattr(failpoints, "_reached", {})

    return plan
