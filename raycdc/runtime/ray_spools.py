"""One spool server per Ray node that may have readers: started, watched, replaced.

A private Ray (``address = "local"``) has one node and needs none. In a cluster that was joined, every node gets one,
the driver's for the state's spool. A server has no state but its files: one that ended is started again on the same
port, so that what readers have told about their segments stays true; when its node is gone, its readers end with it
and its segments are gone until it comes back.

A node on another machine is reached over the network, which Flight must have been told to listen on
(``ray.flight``); otherwise readers stay on the driver's machine. Then connections are encrypted.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from raycdc.bridge.access import SpoolAddress
from raycdc.bridge.certificates import JobAuthority, ServerIdentity
from raycdc.checkpoint.manifest import STATE_NODE
from raycdc.errors import RaycdcError
from raycdc.runtime.ray_actors import CONCURRENCY, actor_class
from raycdc.runtime.ray_private import machine_address
from raycdc.runtime.restarts import ProcessEnd, RestartBudget
from raycdc.runtime.spools import SpoolServer, spool_folder

#: How often the nodes of the cluster are looked at.
LOOK_S = 1.0
#: How long a start waits for the servers of the nodes that are there; a later one is used once it is up.
START_S = 60.0
#: Readers on other nodes wait for their server this long; busy machines take tens of seconds to start a process.
CALL_TIMEOUT_S = 30.0
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    """Where other nodes keep segments (see `spool_folder`). With an `authority` Flight listens beyond this machine: on
    `address` at the driver's node, where that is given.
    """

    state: Path
    checkpoint: str
    token: str = field(repr=False)
    folder: str = ""
    authority: JobAuthority | None = None
    address: str = ""


class SpoolActor:
    """`SpoolServer` in an actor."""

    def __init__(
        self, settings: SpoolSettings, *, own: bool, host: str, port: int, identity: ServerIdentity | None
    ) -> None:
        folder = settings.state / "spool" if own else spool_folder(settings.folder, settings.checkpoint)
        name = STATE_NODE if own else None
        self._server = SpoolServer(folder, name=name, token=settings.token, host=host, port=port, identity=identity)

    def address(self) -> tuple[SpoolAddress, int]:
        return self._server.address, self._server.port

    def sweep(self, needed: Collection[str]) -> int:
        return self._server.sweep(needed)

    def wait(self) -> None:
        """Never returns: the call ends when the process does."""
        threading.Event().wait()


@dataclass(slots=True)
class _Server:
    """A node's server; `address` is None until it is up. One that ended is started again at `again_s`."""

    actor: Any
    starting: Any
    life: Any
    address: SpoolAddress | None = None
    port: int = 0
    again_s: float | None = None


class RaySpools:
    """See the module's docstring. Called by the supervisor's thread; `flights` and `addresses` from any."""

    def __init__(self, settings: SpoolSettings, *, warn: Callable[[str], None], look: Callable[[], None]) -> None:
        """`look` raises what ends the wait for the first servers."""
        self._settings = settings
        self._warn = warn
        self._own = ray.get_runtime_context().get_node_id()
        self._servers: dict[str, _Server] = {}
        self._budgets: dict[str, RestartBudget] = {}
        self._left_out: set[str] = set()
        self._next_look_s = 0.0
        self._lock = threading.Lock()
        deadline = time.monotonic() + START_S
        self.look()
        while time.monotonic() < deadline and any(s.address is None for s in self._servers.values()):
            ray.wait([s.starting for s in self._servers.values() if s.address is None], timeout=0.5)
            look()
            self._next_look_s = 0.0
            self.look()
        if self._own not in self.addresses():
            raise RaycdcError(f"The spool server of the driver's own node did not start within {START_S:g} s.")

    def __repr__(self) -> str:
        return f"RaySpools({self.addresses()})"

    @property
    def own(self) -> str:
        """The driver's Ray node."""
        return str(self._own)

    def addresses(self) -> dict[str, SpoolAddress]:
        """The spool of each Ray node that may have readers now; the driver's own comes first."""
        with self._lock:
            ready = {node: s.address for node, s in self._servers.items() if s.address is not None}
        return dict(sorted(ready.items(), key=lambda entry: entry[0] != self._own))

    def flights(self) -> dict[str, str]:
        """Flight endpoint by the name of the spool."""
        return {address.node: address.flight for address in self.addresses().values()}

    def sweep(self, needed: Collection[str]) -> None:
        """Have the other nodes delete what nothing refers to."""
        with self._lock:
            actors = [s.actor for node, s in self._servers.items() if s.address is not None and node != self._own]
        try:
            ray.get([actor.sweep.remote(set(needed)) for actor in actors], timeout=CALL_TIMEOUT_S)
        except (RayActorError, GetTimeoutError):
            return  # Its node is gone or busy; the next start sweeps.

    def look(self) -> None:
        """Start servers on new nodes and again where one ended; forget nodes that are gone."""
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_S
        alive = {node["NodeID"]: node["NodeManagerAddress"] for node in _nodes() if node["Alive"]}
        with self._lock:
            for node in [n for n in self._servers if n not in alive]:
                del self._servers[node]
            for node, host in alive.items():
                if self._reachable(host, alive.get(self._own, host)):
                    self._look_at(node, host)

    def _reachable(self, host: str, own_host: str) -> bool:
        if self._settings.authority or host == own_host:
            return True
        if host not in self._left_out:
            self._left_out.add(host)
            self._warn(
                f"Ray node {host} gets no readers: their rows could not be fetched from this machine, as Flight "
                "listens on loopback only. Leave ray.flight out to use it."
            )
        return False

    def _look_at(self, node: str, host: str) -> None:
        server = self._servers.get(node)
        if server is None:
            self._servers[node] = self._start(node, host, port=0)
        elif server.again_s is not None:
            if server.again_s <= time.monotonic():
                self._servers[node] = self._start(node, host, port=server.port)
        elif ray.wait([server.life], timeout=0)[0]:
            self._on_ended(node, server)
        elif server.address is None and ray.wait([server.starting], timeout=0)[0]:
            # Ended just now: the next look sees that.
            with suppress(RayError):
                server.address, server.port = ray.get(server.starting)

    def _on_ended(self, node: str, server: _Server) -> None:
        try:
            ray.get(server.life)
            text = "it returned"
        except RayError as error:
            text = str(error).strip().splitlines()[-1]
        if server.address is None:
            server.port = 0  # It never came up; its port may be why.
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
        # A private Ray is on loopback only; whoever fetches from its node over the network needs another address.
        reached = machine_address() if host == LOOPBACK else host
        if own and self._settings.address:
            reached = self._settings.address
        authority = self._settings.authority
        listen, identity = (reached, authority.identity(reached)) if authority else (LOOPBACK, None)
        actor = actor_class(SpoolActor, node_id=node, concurrency=CONCURRENCY).remote(
            self._settings, own=own, host=listen, port=port, identity=identity
        )
        self._budgets.setdefault(node, RestartBudget()).started(time.monotonic())
        return _Server(actor, actor.address.remote(), actor.wait.remote(), port=port)


def _nodes() -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # Ray has no types there
    return nodes
