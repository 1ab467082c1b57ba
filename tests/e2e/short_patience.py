"""Commands that wait for seconds where others wait for minutes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

#: Python runs it before everything else.
_SITE = """
from raycdc.sinks.jdbc import database
from raycdc.core import retry

object.__setattr__(retry.POLICY, "retry_s", 4.0)
database.LOCK_TIMEOUT_S = 2
"""


def shorten_retry(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For processes that are started afresh (`Job.cold`) from here on; `folder` is to be empty."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_SITE)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
