"""A request to stop ends every wait of a run; the waits that it cannot end are few, short, and listed here."""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import raycdc
from raycdc.core.stopping import StoppedWaitingError, StopRequest
from tests.support.clocks import ManualClock

#: The longest time in seconds for which each function waits without a look at a request to stop. At a stop, a service
#: manager allows two minutes. The processes of readers and of Spark are ended from outside. SIGTERM interrupts the main
#: thread of the commands that are not runs, whose folders are in `_COMMANDS`.
DEAF_S = {
    ("connectors/mysql/server/checks.py", "lease_server_id"): 30.0,
    ("connectors/mysql/server/client.py", "start_position"): 11.0,
    ("connectors/mysql/server/connections.py", "follow_catch_up"): 5.0,
    ("connectors/mysql/server/failover.py", "_require_mariadb_history"): 10.0,
    ("connectors/mysql/snapshot/commits.py", "_wait_for_sessions_and_transactions"): 60.0,
    ("connectors/mysql/snapshot/commits.py", "wait_until_visible"): 60.0,
    ("connectors/mysql/snapshot/consistent.py", "wait_until_visible"): 60.0,
    ("datasource/stream.py", "await_lease"): 30.0,
    ("runtime/ray/ray_start.py", "_require_there"): 60.0,
    ("runtime/ray/ray_spools.py", "wait"): 0.0,
    ("runtime/supervisor.py", "leave"): 2.0,
    ("server/client.py", "find"): 1.0,
    ("sinks/kafka/transactions.py", "_committed"): 30.0,
    ("state/files/folder.py", "_lock"): 0.1,
    ("state/location.py", "take"): 5.0,
    ("storage/object_store.py", "_asked"): 120.0,
    ("driver/engine_promotion.py", "close"): 30.0,
    ("state/drivers/heartbeat.py", "require_vacant"): 15.0,
}
AT_MOST_S = 120.0
_COMMANDS = ("cli", "sandbox", "bench", "testing")


def test_each_wait_that_a_stop_cannot_end_is_listed_with_its_longest_time() -> None:
    root = Path(raycdc.__file__).parent
    found = {
        (str(path.relative_to(root)), function)
        for path in root.rglob("*.py")
        if path.relative_to(root).parts[0] not in _COMMANDS
        if any(word in (source := path.read_text()) for word in ("sleep(", "Event()"))
        for function in deaf_waits(source)
    }
    assert found == DEAF_S.keys()
    assert max(DEAF_S.values()) <= AT_MOST_S


@pytest.mark.parametrize(
    "planted",
    [
        "time.sleep(1)",
        "sleep(1)",
        "threading.Event().wait(1)",
        "threads.wait(Event(), 1)",
        "self._threads.wait(threading.Event(), 1)",
    ],
)
def test_a_new_wait_that_nothing_ends_is_found(planted: str) -> None:
    assert list(deaf_waits(f"class A:\n    def retry(self):\n        while True:\n            {planted}\n")) == [
        "retry"
    ]
    assert not [*deaf_waits("def retry(stopping):\n    stopping.pause(1)\n    threads.wait(stopping, 1)\n")]


def deaf_waits(source: str) -> Iterator[str]:
    """Yield the innermost function of each call that sleeps, or waits for an event that was just made."""

    def walk(node: ast.AST, function: str) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        if isinstance(node, ast.Call) and not isinstance(node, ast.Await) and is_deaf(node):
            yield function
        for child in ast.iter_child_nodes(node):
            # An asyncio task that sleeps is cancelled with its loop.
            yield from () if isinstance(child, ast.Await) else walk(child, function)

    return walk(ast.parse(source), "")


def is_deaf(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(ast.Name("time"), "sleep") | ast.Name("sleep"):
            return True
        case ast.Attribute(waited, "wait"):
            return is_new_event(waited) or any(is_new_event(argument) for argument in call.args)
    return False


def is_new_event(node: ast.expr) -> bool:
    match node:
        case ast.Call(ast.Attribute(_, "Event") | ast.Name("Event")):
            return True
    return False


def test_a_stop_that_is_asked_for_ends_a_pause_and_those_of_its_parts() -> None:
    stop = StopRequest()
    part = stop.part()
    assert not part.pause(1.0, ManualClock())
    stop.ask()
    for one in (stop, part, stop.part()):
        with pytest.raises(StoppedWaitingError):
            one.pause(60.0)


def test_a_part_that_ends_for_another_reason_says_so_and_leaves_the_rest_going() -> None:
    stop = StopRequest()
    part = stop.part()
    part.set()
    assert part.pause(60.0)
    assert not stop.is_set()


def test_the_next_run_has_no_stop_asked_for_before() -> None:
    stop = StopRequest()
    part = stop.part()
    stop.ask()
    stop.clear()
    assert not stop.pause(0.0)
    assert part.asked


def test_a_stop_is_heeded_at_once_in_another_thread() -> None:
    stop, ended = StopRequest(), threading.Event()

    def wait() -> None:
        with pytest.raises(StoppedWaitingError):
            stop.pause(60.0)
        ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    stop.ask()
    thread.join(timeout=30)
    assert ended.is_set()
