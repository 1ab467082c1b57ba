"""The list of fail points is complete, and a thread that is stopped at one does nothing behind it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from raycdc.core.failpoints import POINTS
from raycdc.sandbox.servers.private import wait_until
from tests.support.jobs import process_state
from tests.unit.test_tidy import nodes, source_files


def test_the_list_names_exactly_the_places_that_the_code_has() -> None:
    places = {
        str(argument.value)
        for path in source_files("raycdc")
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("reach", "left_out")
        and isinstance(argument := node.args[0], ast.Constant)
    }
    assert sorted(POINTS) == sorted(places)


#: A thread that is stopped at a fail point while others compute; whatever it does behind the point is a line.
STOPPED = """
import os, threading
from raycdc.core.failpoints import reach

def compute():
    while True:
        pass

def stop():
    reach("before_seal")
    os.write(1, b"went on")

for _ in range(2):
    threading.Thread(target=compute, daemon=True).start()
thread = threading.Thread(target=stop)
thread.start()
thread.join()
"""


@pytest.mark.parametrize("attempt", range(3))
def test_a_thread_that_is_stopped_at_a_point_does_nothing_behind_it(tmp_path: Path, attempt: int) -> None:
    environment = {**os.environ, "RAYCDC_FAILPOINTS": "before_seal=stop", "RAYCDC_FAILPOINT_DIR": str(tmp_path)}
    command = [sys.executable, "-c", STOPPED]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        try:
            wait_until(lambda: process_state(process.pid) == "T", timeout_s=60.0, what=f"the stop of attempt {attempt}")
            assert process.stdout is not None
            os.set_blocking(process.stdout.fileno(), False)
            assert process.stdout.read() is None
        finally:
            process.kill()
