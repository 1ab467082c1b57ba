"""Starts, watches, replaces and ends spool servers: one per Ray node with readers.

A private Ray (``address = "local"``) has one node and needs no server. In a joined cluster, the driver's node has a
server for the state's spool. Any other node has a server while it has readers, or segments that the sink does not hold.
A server has no state except its files. If it ended, it is started again on the same port, so that the addresses of
reported segments stay valid. If a node is lost, its readers end, and its segments are unavailable until the node comes
back.

A node on another machine is reached over the network if Flight is configured to listen there (``ray.flight``);
otherwise readers stay on the driver's machine. Such connections are encrypted.

A cluster that scales removes unused nodes. Ray's autoscaler keeps a node with any actor, but an older one only keeps it
if an actor holds a resource. A server therefore holds a resource, and ends when it is not needed any more.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from raycdc.errors import ClusterNotStartedError
from raycdc.runtime.ray.ray_actors import CONCURRENCY, Needs, actor_class, last_line
from raycdc.runtime.ray.ray_nodes import RayNodes
from raycdc.runtime.ray.ray_private import machine_address
from raycdc.runtime.restarts import ProcessEnd, RestartBudget
from raycdc.runtime.spools import SpoolServer, spool_folder
from raycdc.segments.access import SpoolAddress
from raycdc.segments.certificates import JobAuthority, ServerIdentity
from raycdc.state.manifests.manifest import STATE_NODE

#: Seconds for which a server that is not needed stays, because deletes of the last segments may still arrive.
LINGER_S = 5.0
#: The same time while readers wait. It is longer, because Ray may have chosen the server's node for a reader whose
#: process is still starting.
EXPECTING_S = 60.0
#: The resource that a server holds; every node has it.
HELD = Needs(memory_bytes=1 << 20)
#: Seconds that a start waits for the servers of the present nodes; a later server is used when it is up.
START_S = 60.0
#: Seconds that a reader on another node waits for its server; busy machines take tens of seconds to start a process.
CALL_TIMEOUT_S = 30.0
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    """The configuration of spools on other nodes (see `spool_folder`).

    If there is an `authority`, Flight listens on the network; on the driver's node it listens at `address`, if that is
    set.
    """

    state: Path
    checkpoint: str
    token: str = field(repr=False)
    folder: str = ""
    authority: JobAuthority | None = None
    address: str = ""
    #: The names of spools with segments of uncommitted epochs, whose servers are needed immediately.
    owing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Sweep:
    """The segments that were needed when the run began. Spools that were `used` since then contain newer ones, too."""

    needed: frozenset[str]
    used: frozenset[str]


class SpoolActor:
    """`SpoolServer` in an actor."""

    def __init__(
        self,
        settings: SpoolSettings,
        *,
        host: str,
        port: int,
        own: bool = False,
        identity: ServerIdentity | None = None,
        sweep: Sweep | None = None,
    ) -> None:
        """Start the server.

        `own` is True on the driver's node. `sweep` has the segments to keep when all others are deleted.
        """
        folder = settings.state / "spool" if own else spool_folder(settings.folder, settings.checkpoint)
        name = STATE_NODE if own else None
        self._server = SpoolServer(folder, name=name, token=settings.token, host=host, port=port, identity=identity)
        if sweep is not None and self._server.address.node not in sweep.used:
            self._server.sweep(sweep.needed)

    def address(self) -> tuple[SpoolAddress, int]:
        return self._server.address, self._server.port

    def sweep(self, needed: Collection[str]) -> int:
        return self._server.sweep(needed)

    def wait(self) -> None:
        """Never return, so that the call ends when the process does."""
        threading.Event().wait()


@dataclass(slots=True)
class _Server:
    """The server of a node. `address` is None until it is up. A server that ended is restarted at `again_s`."""

    actor: Any
    starting: Any
    life: Any
    address: SpoolAddress | None = None
    port: int = 0
    again_s: float | None = None
    #: The time since which the server is not needed.
    idle_s: float | None = None


class RaySpools:
    """The spool servers of a job; see the module's docstring.

    The supervisor's thread calls it; any thread may call `flights` and `addresses`.
    """

    def __init__(
        self, settings: SpoolSettings, nodes: RayNodes, *, warn: Callable[[str], None], poll: Callable[[], None]
    ) -> None:
        """Create the object; `poll` raises the error that ends the wait for the first servers."""
        self._settings = settings
        self.nodes = nodes
        self._warn = warn
        self._own = ray.get_runtime_context().get_node_id()
        self._servers: dict[str, _Server] = {}
        self._budgets: dict[str, RestartBudget] = {}
        self._wanted = {self._own}
        self._sweep: Sweep | None = None
        self._lock = threading.Lock()
        if settings.owing - {STATE_NODE}:
            # Only the server of a node knows the name of its spool.
            self._wanted.update(nodes.hosts())
        deadline = time.monotonic() + START_S
        self.poll()
        while time.monotonic() < deadline and any(s.address is None for s in self._servers.values()):
            ray.wait([s.starting for s in self._servers.values() if s.address is None], timeout=0.5)
            poll()
            self.poll()
        if self._own not in self.addresses():
            raise ClusterNotStartedError(
                f"Ray has started no spool server on the driver's node within {START_S:g} s (Ray's node "
                f"{self._own}). See with `ray status` whether that node has memory free, and with `uptime` whether its "
                "machine is overloaded; then start the run again, which goes on from what was sealed."
            )

    def __repr__(self) -> str:
        return f"RaySpools({self.addresses()})"

    @property
    def own(self) -> str:
        """Return the id of the driver's Ray node."""
        return str(self._own)

    def addresses(self) -> dict[str, SpoolAddress]:
        """Return the spool of each Ray node that may have readers now; the driver's own comes first."""
        with self._lock:
            ready = {node: s.address for node, s in self._servers.items() if s.address is not None}
        return dict(sorted(ready.items(), key=lambda entry: entry[0] != self._own))

    def flights(self) -> dict[str, str]:
        """Return the Flight endpoint of each spool, by the spool's name."""
        return {address.node: address.flight for address in self.addresses().values()}

    def sweep(self, needed: Collection[str]) -> None:
        """Make the other nodes delete unused segments, including those that get a server later."""
        with self._lock:
            used = frozenset(s.address.node for s in self._servers.values() if s.address is not None)
            self._sweep = Sweep(frozenset(needed), used)
            actors = [s.actor for node, s in self._servers.items() if s.address is not None and node != self._own]
        try:
            ray.get([actor.sweep.remote(set(needed)) for actor in actors], timeout=CALL_TIMEOUT_S)
        except (RayActorError, GetTimeoutError):
            return  # The node is lost or busy. The next start sweeps its spool.

    def want(self, node: str) -> None:
        """Note that the node has a reader, and needs a server from now on."""
        self._wanted.add(node)

    def poll(self) -> None:
        """Start servers on nodes that need one, restart ended ones, and forget lost nodes."""
        hosts = self.nodes.hosts()
        with self._lock:
            for node in [n for n in self._servers if n not in hosts]:
                del self._servers[node]
            self._wanted &= {*hosts, self._own}
            for node, host in hosts.items():
                if node in self._wanted:
                    self._poll_node(node, host)

    def give_back(self, *, used: Collection[str], owing: Collection[str], waiting: bool = False) -> None:
        """End servers of nodes without readers and without needed segments.

        `used` are nodes with readers, `owing` the spools with needed segments. `waiting` is True if some readers have
        no process yet.
        """
        now_s, linger_s = time.monotonic(), EXPECTING_S if waiting else LINGER_S
        with self._lock:
            for node, server in list(self._servers.items()):
                needed = node == self._own or node in used or server.address is None or server.address.node in owing
                if needed:
                    server.idle_s = None
                elif server.idle_s is None:
                    server.idle_s = now_s
                elif now_s - server.idle_s >= linger_s:
                    ray.kill(server.actor)
                    del self._servers[node]
                    self._wanted.discard(node)

    def _poll_node(self, node: str, host: str) -> None:
        server = self._servers.get(node)
        if server is None:
            self._servers[node] = self._start(node, host, port=0)
        elif server.again_s is not None:
            if server.again_s <= time.monotonic():
                self._servers[node] = self._start(node, host, port=server.port)
        elif ray.wait([server.life], timeout=0)[0]:
            self._on_ended(node, server)
        elif server.address is None and ray.wait([server.starting], timeout=0)[0]:
            # The server ended just now, which the next poll finds.
            with suppress(RayError):
                server.address, server.port = ray.get(server.starting)
                if self._sweep is not None:
                    self._sweep = replace(self._sweep, used=self._sweep.used | {server.address.node})

    def _on_ended(self, node: str, server: _Server) -> None:
        try:
            ray.get(server.life)
            text = "it returned"
        except RayError as error:
            text = last_line(error)
        if server.address is None:
            server.port = 0  # The server never came up, possibly because of its port.
        server.address = None
        budget, now_s = self._budgets.setdefault(node, RestartBudget()), time.monotonic()
        pause_s = budget.pause_after(ProcessEnd(text), now_s)
        if pause_s is None:
            self._warn(f"The spool server of Ray node {node[:12]} does not start; the node gets no readers. {text}")
            server.again_s = math.inf
        else:
            server.again_s = now_s + pause_s

    def _start(self, node: str, host: str, *, port: int) -> _Server:
        own = node == self._own
        # A private Ray uses only the loopback interface; other machines need another address of its node.
        reached = machine_address() if host == LOOPBACK else host
        if own and self._settings.address:
            reached = self._settings.address
        authority = self._settings.authority
        listen, identity = (reached, authority.identity(reached)) if authority else (LOOPBACK, None)
        sweep = None if own else self._sweep
        actor = actor_class(SpoolActor, needs=HELD, node_id=node, concurrency=CONCURRENCY).remote(
            self._settings, own=own, host=listen, port=port, identity=identity, sweep=sweep
        )
        self._budgets.setdefault(node, RestartBudget()).started(time.monotonic())
        return _Server(actor, actor.address.remote(), actor.wait.remote(), port=port)
