"""Which nodes of a cluster may have readers, and what Ray is told of those that may not."""

from __future__ import annotations

import pytest

from raycdc.runtime.ray.ray_nodes import POLL_S, SILENT_S, RayNode, RayNodes, ReaderNeeds
from raycdc.runtime.scaling import SeenNode

OWN = RayNode("own", "10.0.0.1", {"pool": "cdc"}, {"CPU": 4.0}, {"CPU": 3.0}, 9001)
BESIDE = RayNode("beside", "10.0.0.1", {"pool": "cdc"}, {"CPU": 2.0, "reader": 1.0}, {"CPU": 2.0})
FAR = RayNode("far", "10.0.0.2", {}, {"CPU": 8.0, "reader": 1.0}, {}, 9000)


class Cluster:
    """Nodes that a test brings and takes away, and a clock."""

    def __init__(self, *nodes: RayNode, needs: ReaderNeeds | None = None, network: bool = True) -> None:
        self.alive, self.now_s = list(nodes), 0.0
        self.told: list[str] = []
        self.nodes = RayNodes(
            needs or ReaderNeeds(),
            own="own",
            network=network,
            warn=self.told.append,
            nodes=lambda: self.alive,
            clock=lambda: self.now_s,
        )

    def later(self, seconds: float = POLL_S) -> RayNodes:
        self.now_s += seconds
        self.nodes.poll()
        return self.nodes


def names(nodes: RayNodes) -> list[str]:
    return [node.name for node in nodes.seen()]


def test_the_drivers_node_comes_first_and_a_full_one_has_no_cpu_free() -> None:
    cluster = Cluster(FAR, OWN)
    assert cluster.nodes.seen() == [
        SeenNode("own", 4.0, 3.0, own=True, label="10.0.0.1/own"),
        SeenNode("far", 8.0, 0.0, label="10.0.0.2/far"),
    ]
    assert cluster.nodes.selector() == {}


def test_nodes_come_and_go() -> None:
    cluster = Cluster(OWN)
    cluster.alive.append(FAR)
    assert names(cluster.nodes) == ["own"]
    assert names(cluster.later()) == ["own", "far"]
    cluster.alive.remove(FAR)
    assert names(cluster.later()) == ["own"]
    assert not cluster.nodes.may_have_readers("far")


def test_labels_and_resources_say_which_nodes_may_have_readers() -> None:
    labelled = Cluster(OWN, BESIDE, FAR, needs=ReaderNeeds(labels={"pool": "cdc"}))
    assert names(labelled.nodes) == ["own", "beside"]
    assert labelled.nodes.selector() == {"pool": "cdc"}
    assert [n.name for n in Cluster(OWN, BESIDE, needs=ReaderNeeds(resources={"reader": 1})).nodes.seen()] == ["beside"]


def test_a_node_whose_spool_cannot_be_reached_gets_no_readers_which_is_told_once() -> None:
    cluster = Cluster(OWN, BESIDE, FAR, network=False)
    assert names(cluster.later()) == ["own", "beside"]
    assert cluster.nodes.selector() == {"ray.io/node-id": "!in(far)"}
    assert [text[:36] for text in cluster.told] == ["Ray node 10.0.0.2 gets no readers: t"]


def test_a_silent_node_gets_none_for_a_while() -> None:
    cluster = Cluster(OWN, FAR)
    cluster.nodes.avoid("far")
    assert [node.silent for node in cluster.nodes.seen()] == [False, True]
    assert cluster.nodes.selector() == {"ray.io/node-id": "!in(far)"}
    assert cluster.later(SILENT_S).selector() == {}


def test_a_node_that_does_not_answer_is_told_once_and_whoever_waits_hears_that_its_time_is_over() -> None:
    cluster = Cluster(OWN, FAR)
    assert cluster.nodes.raylet("far") == ("10.0.0.2", 9000)
    assert cluster.nodes.raylet("own") is None
    assert [cluster.nodes.does_not_answer(node) for node in ("far", "far", "gone")] == [True, False, False]
    assert cluster.told == ["Ray node 10.0.0.2 does not answer: readers go elsewhere for 60 s."]
    assert cluster.nodes.raylet("far") is None
    assert [node.silent for node in cluster.nodes.seen()] == [False, True]
    assert cluster.later().take_again() == set()
    assert cluster.later(SILENT_S).take_again() == {"far"}
    assert cluster.later().take_again() == set()
    # One that is gone is nobody's any more.
    cluster.nodes.avoid("far")
    cluster.alive.remove(FAR)
    assert cluster.later().take_again() == set()


@pytest.mark.parametrize("alive", [(OWN,), (OWN, FAR)])
def test_readers_are_not_barred_from_every_node(alive: tuple[RayNode, ...]) -> None:
    """They would wait for ever, where Ray itself knows best."""
    cluster = Cluster(*alive)
    for node in alive:
        cluster.nodes.avoid(node.node_id)
    assert cluster.nodes.selector() == {}


def test_a_node_whose_resource_is_taken_has_no_room() -> None:
    taken = RayNode("taken", "10.0.0.1", {}, {"CPU": 2.0, "reader": 1.0}, {"CPU": 1.0})
    free = RayNode("free", "10.0.0.1", {}, {"CPU": 2.0, "reader": 1.0}, {"CPU": 1.0, "reader": 1.0})
    assert Cluster(taken, free, needs=ReaderNeeds(resources={"reader": 1})).nodes.with_room() == ["free"]
    assert Cluster(taken, free).nodes.with_room() == ["taken", "free"]
