"""``raycdc sandbox`` ends by a signal at whatever moment it comes, on a server that is none."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import nullcontext
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from raycdc.cli import sandbox as trial
from raycdc.errors import ExitCode

#: A command that waits for a lock waits for ever.
TIMEOUT_S = 300


class _Trial(nullcontext[None]):
    """One that is up at once."""

    version = "None 1.0"
    server = SimpleNamespace(running=True)


def _interrupted_at(line: int) -> int:
    """The exit code of a command that SIGINT reaches at the `line`-th line of a wait, over all that it calls."""
    lines = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename in (trial.__file__, sys.modules["threading"].__file__) and event == "line":
            lines += 1
            if lines == line:
                signal.raise_signal(signal.SIGINT)
        return trace

    def told(*_: object, **__: object) -> list[str]:
        # The server is up: from here on it waits.
        sys._getframe(1).f_trace = trace
        sys.settrace(trace)
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raycdc.sandbox.trials.new_trial", lambda *_, **__: _Trial())
        patch.setattr(trial, "_instructions", told)
        patch.setattr(trial, "_PAUSE_S", 0.001)
        try:
            return trial.serve("mariadb", port=None, empty=True, live=False)
        finally:
            sys.settrace(None)


def test_a_signal_ends_a_trial_wherever_it_interrupts_the_wait() -> None:
    """In a process of its own: a handler that waits for the interrupted code is interrupted by nobody."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.cli.test_cli_trial"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == ["ended each time"], done.stderr


if __name__ == "__main__":
    for number in range(1, 60):
        assert _interrupted_at(number) == ExitCode.DONE, number
    sys.stdout.write("ended each time\n")
