"""How long Ray's head may be away before a run ends with a name, long before Ray itself ends the process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from raycdc.core.threads import Joinable, Threads
from raycdc.errors import ClusterLostError, ExitCode
from raycdc.runtime.ray.ray_head import POLL_EVERY_S, STUCK_S, UNREACHABLE_MAX_S, RayHead, Raylet
from tests.support.clocks import ManualClock


class Waits(Threads):
    """Runs a thread's call at once, and notes how long it would wait."""

    def __init__(self) -> None:
        self.waited_s: list[float] = []

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.waited_s.append(timeout_s)
        return event.is_set()

    def start(self, call: Callable[[], None], name: str) -> Joinable:
        call()
        return threading.current_thread()


def looked(head: RayHead) -> None:
    head.step()
    head.poll()


def test_a_private_head_is_gone_when_its_process_is() -> None:
    gone = [""]
    head = RayHead("127.0.0.1:1", private=True, ended=lambda: gone[0])
    looked(head)
    gone[0] = "gcs_server (42)"
    with pytest.raises(
        ClusterLostError, match=r"its process gcs_server \(42\) ended.*run the pipeline again"
    ) as raised:
        looked(head)
    assert raised.value.exit_code is ExitCode.CLUSTER


def test_the_head_of_a_cluster_may_be_away_for_a_moment() -> None:
    clock = ManualClock()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        head = RayHead(address, private=False, ended=str, clock=clock)
        for _ in range(3):
            clock.s += POLL_EVERY_S
            looked(head)
    clock.s += UNREACHABLE_MAX_S - POLL_EVERY_S
    looked(head)
    assert not head.answering
    clock.s += POLL_EVERY_S
    with pytest.raises(ClusterLostError, match=rf"{address} is gone: it has not answered for 8 s. Start the cluster"):
        looked(head)
    with pytest.raises(ClusterLostError):
        head.poll()


def test_the_end_of_this_nodes_raylet_is_seen_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "raylet")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        raylet = Raylet(path)
        head = RayHead("127.0.0.1:1", private=False, ended=raylet.ended)
        looked(head)
        with server.accept()[0]:
            looked(head)
    with pytest.raises(ClusterLostError, match=r"is gone: the raylet of this machine ended\. Start the cluster again"):
        looked(head)
    raylet.close()


def test_a_run_that_does_not_leave_a_lost_cluster_is_ended() -> None:
    lost, stuck, waits = list[ClusterLostError](), list[ClusterLostError](), Waits()
    head = RayHead("127.0.0.1:1", private=True, ended=lambda: "raylet (7)")
    head.watch(lost.append, stuck.append, waits)
    assert (waits.waited_s, [error.what for error in stuck]) == (
        [POLL_EVERY_S, STUCK_S],
        ["Ray's head at 127.0.0.1:1 is gone: its process raylet (7) ended."],
    )
    head.close()
    head.watch(lost.append, stuck.append, waits)
    assert (len(lost), len(stuck)) == (2, 1)
