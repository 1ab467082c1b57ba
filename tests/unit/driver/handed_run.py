"""`raycdc` whose Ray and Spark are threads of its own: a hand-over without the seconds that the engines take to start.

``python -m tests.unit.driver.handed_run run CONFIG …`` is a process that a test may kill; `threads_for_engines` is the
same within a test.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from raycdc.cli.entry import main
from raycdc.driver import hand_over
from raycdc.runtime.launcher import JobSpec, Launcher, LocalLauncher


@contextmanager
def threads_for_engines() -> Iterator[None]:
    """Within the block runs begin to hand over at once, to threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hand_over, "START_AFTER_S", 0.0)
        patch.setattr("raycdc.source_side._ray_launcher", _launcher)
        patch.setattr("raycdc.pipeline.new_session", _session)
        yield


def _launcher(_config: Any, spec: JobSpec, *_: Any) -> Launcher:
    return LocalLauncher(spec)


def _session(*_: Any) -> Any:
    return SimpleNamespace(stop=lambda: None, sparkContext=SimpleNamespace(defaultParallelism=0))


if __name__ == "__main__":
    with threads_for_engines():
        sys.exit(main(sys.argv[1:]))
