"""A spool server per Ray node: up at the start, up again where it was after its end, gone with its node."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray

from raycdc.runtime.ray.ray_nodes import RayNodes, ReaderNeeds
from raycdc.runtime.ray.ray_spools import EXPECTING_S, LINGER_S, RaySpools, SpoolSettings
from raycdc.segments.access import SpoolAddress
from raycdc.state.manifests.manifest import STATE_NODE
from tests.support.ray_cluster import TwoNodes, two_nodes

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.long(suite="elastic"), pytest.mark.timeout(1800)]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[TwoNodes]:
    with two_nodes(tmp_path) as started:
        ray.init(address=started.address, log_to_driver=False, logging_level=logging.ERROR)
        yield started
        ray.shutdown()


def look_until(spools: RaySpools, reached: Callable[[list[SpoolAddress]], bool]) -> None:
    """Look again and again, as the supervisor does; the test's time limit ends it."""
    while not reached(list(spools.addresses().values())):
        spools.nodes._next_poll_s = 0.0
        spools.nodes.poll()
        spools.poll()
        ray.wait([server.starting for server in spools._servers.values()], num_returns=1, timeout=0.2)


def test_each_node_has_a_server_that_comes_back_in_its_place_and_goes_with_its_node(
    nodes: TwoNodes, tmp_path: Path
) -> None:
    warnings: list[str] = []
    (tmp_path / "state" / "spool").mkdir(parents=True)
    own_id = ray.get_runtime_context().get_node_id()
    known = RayNodes(ReaderNeeds(), own=own_id, network=False, warn=warnings.append)
    settings = SpoolSettings(tmp_path / "state", "checkpoint", "secret")
    spools = RaySpools(settings, known, warn=warnings.append, poll=lambda: None)
    assert "secret" not in repr(spools)
    assert len(spools.addresses()) == 1
    (wanted,) = [node.name for node in known.seen() if not node.own]
    spools.want(wanted)
    look_until(spools, lambda up: len(up) == 2)
    own, other = spools.addresses().values()
    assert (own.node, own.folder) == (STATE_NODE, tmp_path / "state" / "spool")
    assert other.folder == nodes.spool / "checkpoint"
    assert spools.flights() == {own.node: own.flight, other.node: other.flight}

    (other_id,) = [node for node, address in spools.addresses().items() if address == other]
    server = spools._servers[other_id]
    ray.kill(server.actor)
    look_until(spools, lambda up: up == [own])
    look_until(spools, lambda up: len(up) == 2)
    assert spools._servers[other_id] is not server
    assert list(spools.addresses().values()) == [own, other]

    # Nobody reads there any more, but the sink does not hold all that was read.
    spools.give_back(used=(), owing=[other.node])
    assert len(spools.addresses()) == 2
    now_s = time.monotonic()
    spools.give_back(used=(), owing=())
    spools._servers[other_id].idle_s = now_s - LINGER_S
    # A reader that waits may be on its way there, for so long; where it finds no room it keeps nothing for ever.
    spools.give_back(used=(), owing=(), waiting=True)
    assert len(spools.addresses()) == 2
    spools._servers[other_id].idle_s = now_s - EXPECTING_S
    spools.give_back(used=(), owing=(), waiting=True)
    assert list(spools.addresses().values()) == [own]

    spools.want(wanted)
    look_until(spools, lambda up: len(up) == 2)
    spools.give_back(used=(), owing=())
    spools._servers[other_id].idle_s = now_s - LINGER_S
    spools.give_back(used=(), owing=())
    assert list(spools.addresses().values()) == [own]

    spools.want(wanted)
    look_until(spools, lambda up: len(up) == 2)
    nodes.kill_other()
    look_until(spools, lambda up: up == [own])
    assert warnings == []
