"""Two servers that replicate, and an address in front of them that can be moved: what a fail-over test needs.

``with ReplicatedPair(MySqlServer) as pair:`` one is `primary`, the other its `replica`; `swap` makes the replica the
primary and the old primary, started again, its replica.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Self

from raycdc.sandbox.servers import DatabaseServer, MariaDbServer
from raycdc.sandbox.servers.private import ServerError, wait_until
from tests.support.servers.gate import LOOPBACK, ConnectionListener, relay, shut

_CAUGHT_UP_S = 300


class ReplicatedPair:
    """Two servers that replicate; see the module's docstring. `make` makes a server from its settings."""

    def __init__(self, make: Callable[[Mapping[str, str | None]], DatabaseServer]) -> None:
        self.primary = make({"server-id": "1071"})
        self.replica = make({"server-id": "1072"})

    def __enter__(self) -> Self:
        try:
            for server in (self.primary, self.replica):
                server.start()
            if isinstance(self.primary, MariaDbServer):
                # Both servers have the transactions of the template from which they were copied.
                (position,) = self.primary.execute("SELECT @@gtid_binlog_pos")[0]
                self.replica.execute(f"SET GLOBAL gtid_slave_pos = '{position}'")
            self._follow()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End both servers."""
        for server in (self.primary, self.replica):
            server.close()

    def wait_until_replicated(self) -> None:
        """Return when the replica has executed all that the primary has."""
        if isinstance(self.primary, MariaDbServer):
            done = "SELECT MASTER_GTID_WAIT('{}', {})"
            position = self.primary.scalar("SELECT @@gtid_binlog_pos")
        else:
            done = "SELECT WAIT_FOR_EXECUTED_GTID_SET('{}', {})"
            position = self.primary.scalar("SELECT @@GLOBAL.gtid_executed")
        if self.replica.scalar(done.format(position.replace("\n", ""), _CAUGHT_UP_S)) != 0:
            raise ServerError(f"the replica did not catch up: {self.replica.execute('SHOW SLAVE STATUS')}")

    def promote(self) -> None:
        """Kill the primary and promote its replica, which has all transactions: `primary` is then the new one."""
        self.wait_until_replicated()
        self.primary.kill()
        self.replica.execute("STOP SLAVE", "RESET SLAVE ALL")
        self.primary, self.replica = self.replica, self.primary

    def swap_back(self) -> None:
        """Start the server that died, as replica of the other one. Called after `promote`."""
        self.replica.start()
        self._follow()
        self.wait_until_replicated()

    def _follow(self) -> None:
        auto = (
            "MASTER_USE_GTID = slave_pos"
            if isinstance(self.primary, MariaDbServer)
            else "MASTER_AUTO_POSITION = 1, GET_MASTER_PUBLIC_KEY = 1"
        )
        if isinstance(self.replica, MariaDbServer) and self.replica.scalar("SELECT @@gtid_slave_pos") == "":
            position = self.replica.scalar("SELECT @@gtid_binlog_pos")
            self.replica.execute(f"SET GLOBAL gtid_slave_pos = '{position}'")
        self.replica.execute(
            f"CHANGE MASTER TO MASTER_HOST = '{self.primary.host}', MASTER_PORT = {self.primary.port}, "
            f"MASTER_USER = 'root', MASTER_PASSWORD = 'root', {auto}",
            "START SLAVE",
        )


class Forwarder:
    """A TCP address that leads to `target`, (host, port), at the time of each connection."""

    host = LOOPBACK

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self._open: set[socket.socket] = set()
        self._doorway = ConnectionListener(self._serve)
        self.port = self._doorway.port

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the address and every connection through it."""
        self._doorway.close()
        self.cut()

    def cut(self) -> None:
        """End every connection through it, as a fail-over does."""
        for end in list(self._open):
            shut(end)
        wait_until(lambda: not self._open, timeout_s=120, what="every connection through the address ended")

    def _serve(self, client: socket.socket) -> None:
        with socket.create_connection(self.target, timeout=5) as server:
            server.settimeout(None)
            self._open |= {client, server}
            relay(client, server)
        self._open -= {client, server}
