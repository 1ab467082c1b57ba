"""How long Ray's head may be away before a run ends with a name, long before Ray itself ends the process."""

from __future__ import annotations

import socket

import pytest

from raycdc.errors import ClusterLostError, ExitCode
from raycdc.runtime.ray_head import ASK_EVERY_S, AWAY_MAX_S, RayHead


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_private_head_is_gone_when_its_process_is() -> None:
    gone = [""]
    head = RayHead("127.0.0.1:1", ended=lambda: gone[0])
    head.look()
    gone[0] = "gcs_server (42)"
    with pytest.raises(
        ClusterLostError, match=r"its process gcs_server \(42\) ended.*run the pipeline again"
    ) as raised:
        head.look()
    assert raised.value.exit_code is ExitCode.CLUSTER
    assert head.lost


def test_the_head_of_a_cluster_may_be_away_for_a_moment() -> None:
    clock = Clock()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        head = RayHead(address, ended=None, clock=clock)
        for _ in range(3):
            clock.now_s += ASK_EVERY_S
            head.look()
    clock.now_s += AWAY_MAX_S - ASK_EVERY_S
    head.look()
    clock.now_s += ASK_EVERY_S
    with pytest.raises(ClusterLostError, match=rf"{address} is gone: it has not answered for 8 s. Start the cluster"):
        head.look()
    with pytest.raises(ClusterLostError):
        head.look()
