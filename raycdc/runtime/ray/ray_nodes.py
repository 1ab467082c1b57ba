"""Selects the nodes of a Ray cluster that may have readers, and makes Ray use only these.

A node may have readers if it has the labels and resources that the configuration requires, and if the driver's node can
reach its spool. Readers are not pinned to nodes, because Ray's autoscaler does not see the needs of pinned actors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray

from raycdc.runtime.scaling import SeenNode

#: Seconds between two queries of the cluster's nodes.
POLL_S = 1.0
#: Seconds for which a node with a silent reader gets no other reader: Ray takes about half a minute to declare a node
#: dead.
SILENT_S = 60.0
_ID_LABEL = "ray.io/node-id"


@dataclass(frozen=True, slots=True)
class ReaderNeeds:
    """The resources of a reader, and the labels that its node must have."""

    cpus: float = 1.0
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RayNode:
    """A live node, as Ray describes it."""

    node_id: str
    host: str
    labels: Mapping[str, str]
    total: Mapping[str, float]
    free: Mapping[str, float]
    #: The port of the node's raylet.
    port: int = 0


class RayNodes:
    """The nodes of the cluster; see the module's docstring.

    Only the supervisor's thread calls `poll`; any thread may call the other methods.
    """

    def __init__(
        self,
        needs: ReaderNeeds,
        *,
        own: str,
        network: bool,
        warn: Callable[[str], None],
        nodes: Callable[[], list[RayNode]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the object. `network` is True if spools on other machines can be reached."""
        self._needs = needs
        self._own = own
        self._network = network
        self._warn = warn
        self._nodes = nodes or alive_nodes
        self._clock = clock
        self._next_poll_s = float("-inf")
        self._alive: dict[str, RayNode] = {}
        self._silent: dict[str, float] = {}
        #: Nodes that were silent, may have readers again, and were not returned by `take_again` yet.
        self._again: set[str] = set()
        self._left_out: set[str] = set()
        self.poll()

    def __repr__(self) -> str:
        return f"RayNodes({sorted(self._alive)}, silent={sorted(self._silent)})"

    def poll(self) -> None:
        """Query Ray's nodes, at most once a second."""
        now_s = self._clock()
        if now_s < self._next_poll_s:
            return
        self._next_poll_s = now_s + POLL_S
        self._alive = {node.node_id: node for node in self._nodes()}
        over = {node_id for node_id, until_s in self._silent.items() if until_s <= now_s or node_id not in self._alive}
        self._silent = {node_id: until_s for node_id, until_s in self._silent.items() if node_id not in over}
        self._again |= over & self._alive.keys()
        for node in self._alive.values():
            self._report_unreachable(node)

    def hosts(self) -> dict[str, str]:
        """Return the address of each node that may have a spool server."""
        return {node.node_id: node.host for node in self._alive.values() if self._reachable(node)}

    def avoid(self, node_id: str) -> None:
        """Note that a reader on this node was silent."""
        self._silent[node_id] = self._clock() + SILENT_S

    def does_not_answer(self, node_id: str) -> bool:
        """Note that this node does not answer; return True if that was not known before."""
        node = self._alive.get(node_id)
        if node is None or node_id in self._silent:
            return False
        self.avoid(node_id)
        self._warn(f"Ray node {node.host} does not answer: readers go elsewhere for {SILENT_S:g} s.")
        return True

    def take_again(self) -> set[str]:
        """Return the nodes that were silent and may have readers again, once."""
        again, self._again = self._again, set()
        return again

    def raylet(self, node_id: str) -> tuple[str, int] | None:
        """Return host and port at which a live node can be checked.

        Return None for a node that is already silent, and for the driver's node, which lives as long as the driver.
        """
        node = self._alive.get(node_id)
        if node is None or not node.port or node_id in self._silent or node_id == self._own:
            return None
        return node.host, node.port

    def may_have_readers(self, node_id: str) -> bool:
        """Return True if the node is alive, reachable and has what readers need."""
        node = self._alive.get(node_id)
        return node is not None and self._reachable(node) and self._fits(node)

    def with_room(self) -> list[str]:
        """Return the nodes on which Ray may put another reader now."""
        return [
            node.name
            for node in self.seen()
            if not node.silent
            and node.cpus_free >= self._needs.cpus
            and _has(self._alive[node.name].free, self._needs.resources)
        ]

    def seen(self) -> list[SeenNode]:
        """Return the nodes that may have readers, the driver's node first."""
        fitting = [node for node in self._alive.values() if self._reachable(node) and self._fits(node)]
        return [
            SeenNode(
                node.node_id,
                cpus=node.total.get("CPU", 0.0),
                cpus_free=node.free.get("CPU", 0.0),
                own=node.node_id == self._own,
                silent=node.node_id in self._silent,
                # Ray's numbers differ in their last bits even if they are counted up.
                label=f"{node.host}/{node.node_id[-6:]}",
            )
            for node in sorted(fitting, key=lambda node: node.node_id != self._own)
        ]

    def selector(self) -> dict[str, str]:
        """Return the labels that a node must have to get a reader from Ray."""
        barred = sorted(n for n, node in self._alive.items() if n in self._silent or not self._reachable(node))
        if not barred or set(barred) >= self._alive.keys():
            return dict(self._needs.labels)
        return {**self._needs.labels, _ID_LABEL: f"!in({', '.join(barred)})"}

    def _reachable(self, node: RayNode) -> bool:
        own = self._alive.get(self._own)
        return self._network or own is None or node.host == own.host

    def _fits(self, node: RayNode) -> bool:
        return _has(node.total, self._needs.resources) and all(
            node.labels.get(name) == value for name, value in self._needs.labels.items()
        )

    def _report_unreachable(self, node: RayNode) -> None:
        if self._reachable(node) or node.host in self._left_out:
            return
        self._left_out.add(node.host)
        self._warn(
            f"Ray node {node.host} gets no readers: their rows could not be fetched from this machine, as Flight "
            "listens on loopback only. Leave ray.flight out to use it."
        )


def _has(resources: Mapping[str, float], needed: Mapping[str, float]) -> bool:
    return all(resources.get(name, 0.0) >= count for name, count in needed.items())


def alive_nodes() -> list[RayNode]:
    """Return the nodes that Ray's head knows; blocks until it answers."""
    from ray._private import state

    # This part of Ray has no type annotations.
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    free: dict[str, dict[str, float]] = state.available_resources_per_node()  # type: ignore[no-untyped-call]
    return [
        RayNode(
            node["NodeID"],
            node["NodeManagerAddress"],
            node.get("Labels") or {},
            node.get("Resources") or {},
            free.get(node["NodeID"], {}),
            int(node.get("NodeManagerPort") or 0),
        )
        for node in nodes
        if node["Alive"]
    ]
