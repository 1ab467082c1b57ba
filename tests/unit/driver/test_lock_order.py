"""The locks of a driver are taken in one order, in whatever thread."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from threading import Lock

from tests.unit.driver.lock_order import Noted, Orders
from tests.unit.driver.state_admin.small_pipeline import configured

TIMEOUT_S = 600
#: More than come until the run is stopped.
SECTIONS = """
[logging]
file = "{folder}/run.log"
[[notify]]
type = "command"
command = ["true"]
"""


def test_a_run_takes_no_two_locks_in_both_orders(tmp_path: Path) -> None:
    """Also where its listener stops it, and while somebody is told of something by a thread that has a lock."""
    config = configured(tmp_path, events=None, sections=SECTIONS.format(folder=tmp_path))
    text = config.read_text().replace("[pipeline]", "[pipeline]\nengines = 'auto'")
    config.write_text(text.replace("events = 1000", "events = 20000"))
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.driver.lock_order", str(config)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    *pairs, ring = done.stdout.splitlines() or [done.stderr]
    assert ring == "no ring", done.stdout + done.stderr
    # It has seen what it is to see: the one who tells has the supervisor's lock, and the one who hears has the next.
    told_with_lock = r"runtime/supervisor\.py:\d+ before observe/events/listeners\.py:\d+$"
    assert [pair for pair in pairs if re.match(told_with_lock, pair)], pairs
    stopped_by_listener = r"observe/events/listeners\.py:\d+ before pipeline\.py:\d+$"
    assert [pair for pair in pairs if re.match(stopped_by_listener, pair)], pairs


def test_two_orders_of_two_locks_are_a_ring() -> None:
    orders = Orders()
    first, second, third = (Noted(Lock(), name, orders) for name in ("first", "second", "third"))
    with first, second, third:
        pass
    with second, third:
        pass
    assert orders.ring() == []
    with third, first:
        pass
    assert orders.ring() == ["first", "second", "third"]
