"""`raycdc` whose Ray and Spark are threads of its own: a hand-over without the seconds that the engines take to start.

``python -m tests.unit.driver.handed_run run CONFIG …`` is a process that a test may kill; `threads_for_engines` is the
same within a test. With ``--never`` before ``run`` the engines never come up.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from raycdc.cli.entry import main
from raycdc.driver import engine_promotion
from raycdc.runtime.launcher import JobSpec, Launcher, LocalLauncher


@contextmanager
def threads_for_engines(
    launcher: Callable[..., Launcher] | None = None, session: Callable[..., Any] | None = None
) -> Iterator[None]:
    """Within the block runs begin to hand over at once, to threads, or to what `launcher` and `session` make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_promotion, "START_AFTER_S", 0.0)
        patch.setattr(engine_promotion, "ENDS_SOON_S", 0.0)
        patch.setattr("raycdc.driver.source_side._ray_launcher", launcher or local_launcher)
        patch.setattr("raycdc.driver.source_side.new_session", session or session_of_threads)
        yield


def local_launcher(_config: Any, spec: JobSpec, *_: Any) -> Launcher:
    return LocalLauncher(spec)


def session_of_threads(*_: Any) -> Any:
    return SimpleNamespace(stop=lambda: None, sparkContext=SimpleNamespace(defaultParallelism=0))


def _never(*_: Any) -> Any:
    """An engine that comes up when nobody lives to see it."""
    sys.stderr.write("it comes up\n")
    sys.stderr.flush()
    threading.Event().wait()


if __name__ == "__main__":
    never = sys.argv[1] == "--never"
    del sys.argv[1 : 1 + never]
    with threads_for_engines(_never, _never) if never else threads_for_engines():
        sys.exit(main())
