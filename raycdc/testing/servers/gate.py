"""A gate in front of a server: connections pass through it, and the test shuts it, counts who knocks, and opens it.

A shared server seems to be away to one test alone, which neither stops nor starts it. Works for servers whose clients
go where they are told: MySQL, PostgreSQL, a MongoDB with ``directConnection=true``.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Self

from raycdc.testing.servers.relay import LOOPBACK, Before, Doorway, relay, shut


class Way(Enum):
    """The treatment of connections."""

    #: They reach the server.
    OPEN = auto()
    #: Those there are end, and new ones are counted and ended at once, as by a server that is restarting.
    SHUT = auto()
    #: Bytes wait, those of new connections, too: a server that stands still.
    STILL = auto()


class Gate:
    """See the module's docstring. ``with Gate(host, port) as gate:`` listens on `gate.port` of 127.0.0.1."""

    host = LOOPBACK

    def __init__(self, host: str, port: int, *, listens_on: int = 0, way: Way = Way.OPEN) -> None:
        """`listens_on` a port that nobody has, or any (0)."""
        self._server = (host, port)
        self._way = way
        self._changed = threading.Condition()
        self._sockets: set[socket.socket] = set()
        self._shut_s = time.monotonic()
        #: When somebody connected while the gate was not open, in monotonic seconds.
        self.knocks: list[float] = []
        self._doorway = Doorway(self._pass, port=listens_on)
        self.port = self._doorway.port

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set(self, way: Way) -> None:
        """From now on."""
        with self._changed:
            if self._way is Way.OPEN:
                self._shut_s = time.monotonic()
            self._way = way
            if way is Way.SHUT:
                self._end_all()
            self._changed.notify_all()

    @contextmanager
    def being(self, way: Way) -> Iterator[None]:
        """So within the block, and open after it."""
        self.set(way)
        try:
            yield
        finally:
            self.set(Way.OPEN)

    def wait_for_knocks(self, count: int, *, timeout_s: float = 120.0) -> None:
        """Return when so many have knocked."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.knocks) >= count, timeout_s):
                raise AssertionError(f"only {len(self.knocks)} knocked within {timeout_s:g} s")

    def is_spared(self, pause_s: float) -> bool:
        """Whether since the gate was shut nobody knocked more often than every `pause_s`, but for one on its way then.

        Each knock is compared with that beginning: one that a busy machine notices late is no breach.
        """
        return all(at - self._shut_s >= (number - 1) * pause_s for number, at in enumerate(self.knocks))

    def close(self) -> None:
        """End all connections, and take no further one."""
        self.set(Way.SHUT)
        self._doorway.close()

    def valve(self) -> Before:
        """Holds back the bytes of one connection that go one way: here, while the server is to stand still."""
        return self._wait

    def _pass(self, client: socket.socket) -> None:
        with self._changed:
            if self._way is not Way.OPEN:
                self.knocks.append(time.monotonic())
                self._changed.notify_all()
            if self._way is Way.SHUT:
                return
            self._sockets.add(client)
        ends = {client}
        try:
            with socket.create_connection(self._server) as server:
                ends.add(server)
                with self._changed:
                    self._sockets |= ends
                relay(client, server, asked=self.valve(), answered=self.valve())
        finally:
            with self._changed:
                self._sockets -= ends

    def _wait(self, _data: bytes) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._way is not Way.STILL)

    def _end_all(self) -> None:
        for end in self._sockets:
            shut(end)
