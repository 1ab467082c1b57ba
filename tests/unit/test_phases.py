"""Phases of `make test`: what they start is counted, what they leave is ended, and Ctrl-C ends both halves quietly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from raycdc.sandbox.servers.private import wait_until

CI = Path(__file__).parents[2] / ".ci"
SLEEP_S = 300
#: Longer than the commands have after SIGINT (`PATIENCE_S` of `.ci/phase`).
TIMEOUT_S = 120


def phase(name: str, command: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(CI / "phase"), name, "bash", "-c", command]
    environment = {**os.environ, "RAYCDC_TEST_PATIENCE_S": "1"}
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, env=environment)


def living(marker: str) -> list[str]:
    """The processes whose command lines have a text."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            line = (folder / "cmdline").read_bytes() if folder.name.isdigit() else b""
        except OSError:
            continue
        if marker.encode() in line and int(folder.name) != os.getpid():
            found.append(line.replace(b"\0", b" ").decode())
    return found


def test_a_phase_has_the_status_of_its_command() -> None:
    assert phase("good", "echo fine").returncode == 0
    assert phase("bad", "exit 3").returncode == 3


def test_what_a_phase_started_is_counted(tmp_path: Path) -> None:
    guard = tmp_path / "sandbox" / "servers" / "guard.py"
    guard.parent.mkdir(parents=True)
    guard.write_text("import time; time.sleep(1.5)")
    for name in ("java", "gcs_server"):
        (tmp_path / name).symlink_to("/bin/sleep")
    started = [f"{tmp_path}/java 1.5", f"{tmp_path}/java 1.5", f"{tmp_path}/gcs_server 1.5"]
    started += [f"{sys.executable} -I -S {guard} {tmp_path}/raycdc-mariadb-xyz setpriv mariadbd --no-defaults"]
    done = phase("counted", f"{' & '.join(started)} & wait")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("; started 2 JVMs, 1 Ray cluster, 1 mariadb server\n")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_ends_both_halves_without_a_traceback(tmp_path: Path, stop: signal.Signals) -> None:
    marker = f"sleeper-{tmp_path.name}-{os.getpid()}"
    sleeper = tmp_path / f"{marker}.py"
    # The second child ignores the interrupt, and is in another session.
    sleeper.write_text(
        "import signal, subprocess, sys, time\n"
        "if len(sys.argv) == 1:\n"
        "    subprocess.Popen([sys.executable, __file__, 'child'], start_new_session=True)\n"
        "else:\n"
        "    signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "open(__file__ + str(time.monotonic_ns()), 'w').close()\n"
        "try:\n"
        f"    time.sleep({SLEEP_S})\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(2)\n"
    )
    half = f"{sys.executable} {CI}/phase half {sys.executable} {sleeper}"
    words = [sys.executable, str(CI / "parallel"), half, f"{half} && echo never"]
    if stop is signal.SIGTERM:  # SIGINT is ignored in the background of a script.
        words = ["bash", "-c", 'trap "" INT; exec "$@"', "bash", *words]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as command:
        wait_until(
            lambda: len(list(tmp_path.glob("*.py?*"))) == 4, timeout_s=TIMEOUT_S, what="the start of both halves"
        )
        command.send_signal(stop)
        output, _ = command.communicate(timeout=TIMEOUT_S)
    assert command.returncode == 130
    assert "Traceback" not in output
    assert output.count("(interrupted)") == 2
    assert "\nnever" not in output
    assert living(marker) == []


def test_a_process_that_is_left_is_an_error_and_is_ended() -> None:
    marker = f"{SLEEP_S}.{os.getpid()}"
    done = phase("leaves", f"sleep {marker} & disown; exit 0")
    assert done.returncode == 1
    assert f"sleep {marker}" in done.stderr
    assert living(marker) == []
